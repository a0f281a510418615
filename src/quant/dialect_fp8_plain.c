/* dialect_fp8_plain.c -- files whose weights were only cast to FP8: codes (e4m3 or e5m2) and no scale anywhere, so a code is its
 * value. Activations stay as they are. */
#include "quant/dialect_comfy.h"
#include "quant/scaled_planes.h"

#include "format/format_e5m2.h"

#include <string.h>

extern const oq_method oq_method_fp8;

/* Does the name speak of a scale? Then codes without one are a broken file, not a cast one. */
static bool speaks_of_scale(const char *name)
{
    const char *leaf = strrchr(name, '.');
    leaf = leaf ? leaf + 1 : name;
    return strstr(leaf, "weight_scale") || strstr(leaf, "scale_weight") || strcmp(leaf, "input_scale") == 0 ||
           strcmp(leaf, "scale_input") == 0;
}

static bool is_fp8(const oq_dtype *t)
{
    return t == &oq_dtype_f8_e4m3 || t == &oq_dtype_f8_e5m2;
}

static bool is_cast(const oq_ckpt_tensor *t)
{
    const size_t n = strlen(t->name), m = strlen(".weight");
    return is_fp8(t->dtype) && t->n_dims == 2 && n > m && strcmp(t->name + n - m, ".weight") == 0;
}

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    bool any = false;
    if (named || !ckpt || oq_comfy_marked(ckpt)) return false;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        if (speaks_of_scale(ckpt->tensors[i].name)) return false;
        any |= is_cast(&ckpt->tensors[i]);
    }
    return any;
}

static void fix_one(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    const float one = 1.0f;
    (void)src, (void)n, (void)k;
    memcpy(dst, &one, sizeof one);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    (void)declared;
    *found = t && is_fp8(t->dtype);
    if (!*found) return OQ_OK;
    if (t->n_dims != 2 || t->dim[0] != n || t->dim[1] != k)
        return oq_fail(env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values in %d dimensions, its layer needs [%lld, %lld]", t->name,
                       (long long)t->elems, t->n_dims, (long long)n, (long long)k);
    *out = (oq_part_source){.format = t->dtype == &oq_dtype_f8_e5m2 ? &oq_format_fp8_e5m2_tensor
                                                                    : &oq_format_fp8_e4m3_tensor,
                            .act_scale = OQ_ACT_NONE};
    out->plane[OQ_PLANE_DATA].tensor = t;
    out->plane[OQ_PLANE_SCALE] = (oq_plane_source){.tensor = t, .fix = fix_one};
    return OQ_OK;
}

const oq_dialect oq_dialect_fp8_plain = {
    .name = "fp8_plain",
    .help = "weight (e4m3 or e5m2) without any scale: a cast checkpoint",
    .method = &oq_method_fp8,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .values_in_codes = true,
};
