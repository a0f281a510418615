/* dialect_gguf.c -- weights as GGUF files hold them: blocks of codes with their scales, one tensor per layer. What is
 * not in blocks (F32, F16, BF16) is plain; a file whose tensors are all plain declares no quantization. */
#include "quant/dialect.h"

#include "base/size.h"
#include "format/gguf_type.h"

#include <stdio.h>
#include <string.h>

extern const oq_method oq_method_gguf;

static bool is_block(const oq_ckpt_tensor *t)
{
    const oq_gguf_type *type = t->dtype ? NULL : oq_gguf_type_by_name(t->type_name);
    return type && type->elems > 1;
}

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    if (named) return named == &oq_method_gguf;
    if (!ckpt || !ckpt->container || strcmp(ckpt->container, "gguf") != 0) return false;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        if (is_block(&ckpt->tensors[i])) return true;
    return false;
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    char full[1024];
    (void)declared;
    *found = false;
    if (snprintf(full, sizeof full, "%s.weight", name) >= (int)sizeof full) return OQ_OK;
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, full);
    if (!t || !is_block(t)) return OQ_OK;
    if (!t->format)
        return oq_fail(env, OQ_E_UNSUPPORTED, "tensor '%s' is %s: %s", t->name, t->type_name,
                       oq_gguf_type_by_name(t->type_name)->why);
    if (t->n_dims != 2 || t->dim[0] != n || t->dim[1] != k) {
        char shape[160];
        oq_ckpt_put_shape(t, shape, sizeof shape);
        return oq_fail(env, OQ_E_FORMAT,
                       "tensor '%s' (%s) holds %lld weights of shape %s, its layer needs [%lld, %lld]",
                       t->name, t->type_name, (long long)t->elems, shape, (long long)n, (long long)k);
    }
    *out = (oq_part_source){.format = t->format, .act_scale = OQ_ACT_NONE};
    out->plane[OQ_PLANE_DATA] = (oq_plane_source){.tensor = t};
    *found = true;
    return OQ_OK;
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    static const char ending[] = ".weight";
    (void)declared, (void)ckpt;
    const size_t length = strlen(t->name), m = sizeof ending - 1;
    if (t->n_dims != 2 || length <= m || strcmp(t->name + length - m, ending) != 0 || !is_block(t))
        return false;
    *name_length = length - m;
    *n = t->dim[0];
    *k = t->dim[1];
    return true;
}

const oq_dialect oq_dialect_gguf = {
    .name = "gguf",
    .help = "GGUF's blocks: Q4_0 to Q8_0, Q2_K to Q8_K, IQ4, TQ, MXFP4, NVFP4",
    .method = &oq_method_gguf,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
    .types_of_their_own = true,
};
