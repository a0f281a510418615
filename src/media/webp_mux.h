/* webp_mux.h -- what still and animated WebP share: an EXIF chunk in a finished file. Private to this room. */
#ifndef OQ_MEDIA_WEBP_MUX_H
#define OQ_MEDIA_WEBP_MUX_H

#include "media/image.h"

/* `data`: a WebP file. *bytes: the same with the texts, the caller's. */
oq_status oq_webp_add_texts(oq_env *env, const uint8_t *data, size_t data_n, const oq_image_text *texts, size_t n_texts,
                            const char *name, char **bytes, size_t *n);

#endif
