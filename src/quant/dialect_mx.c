/* dialect_mx.c -- MXFP8, MXFP4 and MXFP4 with two scales as Ascend's tools write them: `weight` holds the codes as numbers
 * (e4m3, or a wider type whose every number is one of the format; those of four bits also two to a byte), `weight_scale` their exponents, `weight_dual_scale` the
 * second scale, `mul_scale` factors of the layer's input. */
#include "quant/around_planes.h"
#include "quant/block_planes.h"
#include "quant/scaled_planes.h"

#include "base/size.h"
#include "format/float4.h"

#include <math.h>
#include <string.h>

extern const oq_method oq_method_mxfp8, oq_method_mxfp4, oq_method_mxfp4_dualscale;

static const oq_around_names around = {.smooth = "mul_scale"};

typedef struct layer {
    oq_env *env;
    const char *name;
    const oq_method *method;
    int64_t n, k;
    const oq_ckpt_tensor *weight, *scale, *dual;
} layer;

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_mxfp8 || named == &oq_method_mxfp4 || named == &oq_method_mxfp4_dualscale;
}

/* ---- numbers that are codes ---------------------------------------------------------------------------- */

static float value_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x = 0.0f;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

static const oq_dtype *code_of(const layer *l)
{
    return l->method == &oq_method_mxfp8 ? &oq_dtype_f8_e4m3 : &oq_dtype_f4_e2m1;
}

static void make_codes8(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < n * k; i++) {
        const float x = value_at(self->tensor, i);
        oq_dtype_f8_e4m3.from_f32((uint8_t *)dst + i, &x, 1);
    }
}

static void make_codes4(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t row_bytes = (k + 1) / 2;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            const uint8_t code = oq_e2m1_from_f32(value_at(self->tensor, r * k + c));
            oq_code4_pack((uint8_t *)dst + r * row_bytes, c, &code, 1);
        }
}

/* ---- checks -------------------------------------------------------------------------------------------- */

/* Newer files have codes of four bits two to a byte, the first in the low nibble. */
static bool is_packed(const layer *l)
{
    const oq_ckpt_tensor *t = l->weight;
    return code_of(l) == &oq_dtype_f4_e2m1 && t->dtype == &oq_dtype_u8 && t->n_dims == 2 &&
           t->dim[0] == l->n && t->dim[1] == oq_ceil_div(l->k, 2);
}

/* Every number must be one of the format's: nothing is rounded. */
static oq_status check_weight(const layer *l)
{
    const oq_ckpt_tensor *t = l->weight;
    const oq_dtype *code = code_of(l);
    if (is_packed(l)) return OQ_OK;
    if (!t->dtype || !t->dtype->floating || t->n_dims != 2 || t->dim[0] != l->n || t->dim[1] != l->k)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values of %s, its layer needs [%lld, %lld] of a float", t->name,
                       (long long)t->elems, t->type_name, (long long)l->n, (long long)l->k);
    for (int64_t i = 0; t->data && t->dtype != code && i < t->elems; i++) {
        const float x = value_at(t, i);
        uint8_t byte;
        float back;
        code->from_f32(&byte, &x, 1);
        code->to_f32(&back, &byte, 1);
        if (back < x || back > x || x != x)
            return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %g at index %lld, which is no number of %s",
                           t->name, (double)x, (long long)i, code->label);
    }
    return OQ_OK;
}

static oq_status check_scale(const layer *l)
{
    const oq_ckpt_tensor *t = l->scale;
    const int64_t groups = oq_ceil_div(l->k, OQ_ACT_MX_GROUP);
    if ((t->dtype != &oq_dtype_u8 && strcmp(t->type_name, "F8_E8M0") != 0) || t->n_dims != 2 ||
        t->dim[0] != l->n || t->dim[1] != groups)
        return oq_fail(l->env, OQ_E_FORMAT, "scale '%s' has %lld values of %s, it needs [%lld, %lld] of U8",
                       t->name, (long long)t->elems, t->type_name, (long long)l->n, (long long)groups);
    for (size_t i = 0; t->data && i < t->bytes; i++)
        if (t->data[i] == 0xff)
            return oq_fail(l->env, OQ_E_FORMAT, "scale '%s' is byte 0xff at index %zu, which is NaN", t->name,
                           i);
    return OQ_OK;
}

/* Only one of the methods has a second scale, and it needs it. */
static oq_status check_dual(const layer *l)
{
    const bool wanted = l->method == &oq_method_mxfp4_dualscale;
    if (wanted == (l->dual != NULL)) return OQ_OK;
    if (wanted) return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.weight_dual_scale' is missing", l->name);
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is a second scale, which method '%s' does not have",
                   l->dual->name, l->method->name);
}

static oq_status refuse_unknown(const layer *l, const oq_ckpt *ckpt)
{
    const oq_ckpt_tensor *other =
        oq_scaled_stranger(ckpt, l->name, "weight,bias,weight_scale,weight_dual_scale,mul_scale");
    if (!other) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                   other->name, l->name);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static void fill(const layer *l, oq_part_source *out)
{
    const bool eight = l->method == &oq_method_mxfp8;
    *out = (oq_part_source){.format = eight     ? &oq_format_mxfp8
                                      : l->dual ? &oq_format_mxfp4_dual
                                                : &oq_format_mxfp4,
                            .act = code_of(l),
                            .act_scale = l->dual ? OQ_ACT_DYNAMIC_MX_DUAL : OQ_ACT_DYNAMIC_MX};
    out->plane[OQ_PLANE_DATA].tensor = l->weight;
    if ((l->weight->dtype != &oq_dtype_f8_e4m3 || !eight) && !is_packed(l))
        out->plane[OQ_PLANE_DATA].make = eight ? make_codes8 : make_codes4;
    out->plane[OQ_PLANE_SCALE].tensor = l->scale;
    out->plane[OQ_PLANE_GLOBAL].tensor = l->dual;
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .name = name, .method = declared->method, .n = n, .k = k};
    const bool smooth = oq_json_bool(oq_json_get(declared->options, "require_smooth_scale"), false);
    *found = false;
    l.weight = oq_scaled_find(ckpt, name, "weight");
    l.scale = oq_scaled_find(ckpt, name, "weight_scale");
    OQ_TRY(oq_block_dual(env, ckpt, name, n, k, &l.dual));
    if (!l.scale && !l.dual && (!l.weight || (l.weight->dtype && l.weight->dtype->bytes > 1))) return OQ_OK;
    if (!l.scale) return oq_fail(env, OQ_E_FORMAT, "tensor '%s.weight_scale' is missing", name);
    if (!l.weight)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is there, '%s.weight' is missing", l.scale->name, name);
    OQ_TRY(refuse_unknown(&l, ckpt));
    OQ_TRY(check_weight(&l));
    OQ_TRY(check_scale(&l));
    OQ_TRY(check_dual(&l));
    fill(&l, out);
    OQ_TRY(oq_around_locate(env, &around, ckpt, name, n, k, out));
    if (smooth && !out->plane[OQ_PLANE_SMOOTH].tensor)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s.mul_scale' is missing: require_smooth_scale is true",
                       name);
    *found = true;
    return OQ_OK;
}

const oq_dialect oq_dialect_mx = {
    .name = "mx",
    .help = "MXFP8, MXFP4 and MXFP4 with two scales as Ascend's tools write them, codes as numbers",
    .method = &oq_method_mxfp4,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
};
