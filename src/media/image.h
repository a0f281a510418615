/* image.h -- pictures in memory and on disk: 8 bit RGB, row-major, interleaved. */
#ifndef OQ_MEDIA_IMAGE_H
#define OQ_MEDIA_IMAGE_H

#include "base/env.h"

enum { OQ_IMAGE_MAX_PX = 65536 }; /* of a side */

typedef struct oq_image {
    int64_t width, height;
    uint8_t *pixels; /* [height, width, 3]; owned */
} oq_image;

oq_status oq_image_new(oq_env *env, int64_t width, int64_t height,
                       oq_image *out); /* sizes 1..65536, checked */
void oq_image_deinit(oq_env *env, oq_image *image);

typedef struct oq_image_text { /* one tEXt or iTXt entry */
    const char *key, *text;    /* key: 1 to 79 ASCII characters; text: UTF-8, repaired where it is not */
} oq_image_text;

/* A picture of any type that this build reads (PNG, JPEG, WebP), by its first bytes, upright (EXIF orientation), as RGB. */
oq_status oq_image_read(oq_env *env, const char *path, oq_image *out);
oq_status oq_image_decode(oq_env *env, const void *bytes, size_t n, const char *name, oq_image *out);
/* What the first bytes say: "PNG", "JPEG", "WebP", also where this build cannot read it; NULL: no picture that it knows. */
const char *oq_image_type_of(const void *bytes, size_t n);
/* A text that oq_image_write put in, as UTF-8, the caller's; OQ_E_NOTFOUND. */
oq_status oq_image_read_text(oq_env *env, const char *path, const char *key, char **out);
oq_status oq_image_decode_text(oq_env *env, const void *bytes, size_t n, const char *name, const char *key, char **out);
/* As the name's ending says: PNG ("-" too), JPEG at quality 95, WebP without loss; any other ending, or none, is OQ_E_ARG naming
 * those that are. Atomically; texts go to EXIF in JPEG and WebP ("parameters", "omniq"). check_output refuses alike. */
oq_status oq_image_check_output(oq_env *env, const char *path);
oq_status oq_image_write(oq_env *env, const char *path, int64_t width, int64_t height, const uint8_t *pixels,
                         const oq_image_text *texts, size_t n_texts);
/* As PIL's resize with the filter of the name does: separable, a window of three lobes (LANCZOS) or two (BICUBIC) of the
 * larger step, bytes between the passes. */
typedef enum oq_image_filter { OQ_LANCZOS, OQ_BICUBIC } oq_image_filter;
oq_status oq_image_resize(oq_env *env, const oq_image *image, oq_image_filter filter, int64_t width, int64_t height,
                          oq_image *out);

/* PNG by libpng; written atomically; text outside ASCII goes to iTXt. "-" is stdout. */
oq_status oq_png_write(oq_env *env, const char *path, int64_t width, int64_t height, const uint8_t *pixels,
                       const oq_image_text *texts, size_t n_texts);
/* Any PNG to RGB: gray replicated, alpha dropped, 16 bit reduced to the nearest, palette expanded. At most
 * 2^28 pixels; errors name the file. */
oq_status oq_png_read(oq_env *env, const char *path, oq_image *out);
/* The value of a text entry as UTF-8, the caller's (oq_free); OQ_E_NOTFOUND if absent. */
oq_status oq_png_read_text(oq_env *env, const char *path, const char *key, char **out);

/* The same in memory; `name` stands for the file in errors. *bytes is the caller's. */
oq_status oq_png_encode(oq_env *env, int64_t width, int64_t height, const uint8_t *pixels,
                        const oq_image_text *texts, size_t n_texts, const char *name, char **bytes,
                        size_t *n);
oq_status oq_png_decode(oq_env *env, const void *bytes, size_t n, const char *name, oq_image *out);
oq_status oq_png_decode_text(oq_env *env, const void *bytes, size_t n, const char *name, const char *key,
                             char **out);

/* [a | b | 8 x |a - b|] in one picture; sizes equal. */
oq_status oq_image_side_by_side(oq_env *env, const oq_image *a, const oq_image *b, oq_image *out);

/* How a terminal shows it, chosen from the environment variables. */
typedef enum oq_terminal { OQ_TERM_HALF_BLOCKS, OQ_TERM_KITTY, OQ_TERM_ITERM2, OQ_TERM_SIXEL } oq_terminal;
oq_terminal oq_terminal_detect(void);
/* `columns` character cells wide at most, fewer for a small picture; ends in a line feed. */
oq_status oq_image_show(oq_env *env, oq_terminal terminal, int64_t width, int64_t height,
                        const uint8_t *pixels, int columns, char **out); /* bytes to print, the caller's */

#endif
