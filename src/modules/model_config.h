/* model_config.h -- a network's config.json by table: one row per key, so that nothing is read twice and
 * nothing that would change the computation passes unnoticed. Keys without a row are refused unless they are
 * switched off (null, false) or begin with '_'. */
#ifndef OQ_MODULES_MODEL_CONFIG_H
#define OQ_MODULES_MODEL_CONFIG_H

#include "base/json.h"

typedef enum oq_field_kind {
    OQ_FIELD_INT,     /* int64_t at offset */
    OQ_FIELD_REAL,    /* double at offset */
    OQ_FIELD_BOOL,    /* bool at offset; fallback 0 or 1 */
    OQ_FIELD_FIXED,   /* one supported value: `only`, its JSON text; absent is that value */
    OQ_FIELD_IGNORED, /* does not change what is computed here */
    OQ_FIELD_CUSTOM   /* the module reads it itself */
} oq_field_kind;

typedef struct oq_model_field {
    const char *key;
    oq_field_kind kind;
    size_t offset;
    double min, max;  /* bounds of numbers */
    double fallback;  /* when absent or null; NAN: the key is required */
    const char *only; /* OQ_FIELD_FIXED */
} oq_model_field;

/* `what` names the network in messages ("ZImageTransformer2DModel"). Wrong type or bound: OQ_E_FORMAT; a
 * value or key that is not supported: OQ_E_UNSUPPORTED naming both. */
oq_status oq_model_config_read(oq_env *env, const char *what, const oq_json *config,
                               const oq_model_field *fields, size_t n_fields, void *self);
/* An array of 1 to `capacity` integers within [min, max]. */
oq_status oq_model_config_ints(oq_env *env, const char *what, const oq_json *config, const char *key,
                               int64_t min, int64_t max, int64_t *dst, int64_t capacity, int64_t *count);
/* How a head's channels are shared out between the axes of rotary positions: n even numbers, `published` where the key is absent,
 * whose sum is `width` (-1: nothing fits); `of` says in the message what that is: "'attention_head_dim' 128". */
oq_status oq_model_config_axes(oq_env *env, const char *what, const oq_json *config, const char *key,
                               const int64_t *published, int64_t n, int64_t width, const char *of, int64_t *axes);

#endif
