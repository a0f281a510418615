/* toybox_run.h -- commands and pictures of the demo model, for tests of what is written: run, read back, compared. */
#ifndef SUPPORT_TOYBOX_RUN_H
#define SUPPORT_TOYBOX_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "ckpt/ckpt.h"

#define MODEL       OMNIQ_SOURCE_DIR "/models/toybox"
#define TRANSFORMER MODEL "/transformer"

/* argument (may be NULL), then pairs of option and value, NULL at the end. json may be NULL. */
oq_status toybox_command(oq_env *env, const char *name, const char *argument, const char *const *pairs,
                         oq_json **json);
/* The same, which must succeed. */
void done(oq_env *env, const char *name, const char *argument, const char *const *pairs, oq_json **json);
/* `quantize`, which must fail with this status and a sentence that holds `text`. */
void refused(oq_env *env, const char *argument, const char *const *pairs, oq_status status, const char *text);
oq_json *of_transformer(const oq_json *report, const char *key); /* the caller's */

typedef struct picture {
    uint8_t *pixels; /* the caller's */
    size_t n;
} picture;
/* 128x128, four steps; option may be NULL. */
picture draw(oq_env *env, const char *model, const char *option, const char *value);
double psnr(const picture *a, const picture *b);

/* `quantized` dequantized into `to`: every layer of the report is the format's own encode and decode of the source's, all else
 * is as it was. Paths are folders of a component, or files. */
void expect_encoded(oq_env *env, const char *source, const char *quantized, const char *to, const oq_json *layers);
/* The same of the demo model's transformer. */
void expect_plain_again(oq_env *env, const char *quantized, const char *to, const oq_json *layers);

#endif
