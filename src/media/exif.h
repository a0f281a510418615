/* exif.h -- the little of EXIF that pictures here carry: which way up they are, and the two texts of a run. */
#ifndef OQ_MEDIA_EXIF_H
#define OQ_MEDIA_EXIF_H

#include "base/strbuf.h"
#include "media/image.h"

/* A TIFF block (without "Exif\0\0"): "parameters" as UserComment, where other tools look for it, "omniq" as
 * ImageDescription. Other keys have no place. */
oq_status oq_exif_make(oq_env *env, const oq_image_text *texts, size_t n_texts, oq_strbuf *out);

/* 1 to 8; 1 where the block says nothing or is damaged. "Exif\0\0" before it is skipped. */
int oq_exif_orientation(const uint8_t *bytes, size_t n);
/* The text under `key` as UTF-8, the caller's; OQ_E_NOTFOUND. `name` stands for the file. */
oq_status oq_exif_text(oq_env *env, const uint8_t *bytes, size_t n, const char *name, const char *key, char **out);

/* Turns and mirrors the picture in memory so that orientation 1 shows it. */
oq_status oq_image_upright(oq_env *env, oq_image *image, int orientation);

#endif
