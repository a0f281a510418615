/* image_type.h -- the picture types that this build reads and writes: one file each in this room, one row in image_list.c. */
#ifndef OQ_MEDIA_IMAGE_TYPE_H
#define OQ_MEDIA_IMAGE_TYPE_H

#include "media/image.h"

enum { OQ_IMAGE_MAX_BYTES = 512 << 20, OQ_IMAGE_MAX_PIXELS = 1 << 28 };

typedef struct oq_image_type {
    const char *name;    /* "JPEG" */
    const char *endings; /* csv: ".jpg,.jpeg" */
    const char *missing; /* NULL: in this build; else what it would need */
    bool (*is)(const uint8_t *bytes, size_t n); /* by the first bytes */
    /* `name` stands for the file in messages. Pictures come upright. */
    oq_status (*decode)(oq_env *env, const uint8_t *bytes, size_t n, const char *name, oq_image *out);
    oq_status (*decode_text)(oq_env *env, const uint8_t *bytes, size_t n, const char *name, const char *key, char **out);
    oq_status (*encode)(oq_env *env, int64_t width, int64_t height, const uint8_t *pixels, const oq_image_text *texts,
                        size_t n_texts, const char *name, char **bytes, size_t *n);
} oq_image_type;

extern const oq_image_type *const oq_image_list[]; /* NULL-terminated */

#endif
