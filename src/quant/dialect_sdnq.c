/* dialect_sdnq.c -- SD.Next's (SDNQ's) layers: `weight` in packed or whole bytes, `scale` and `zero_point` per row or per group
 * of columns, `svd_up` and `svd_down`; those that its kernels multiply as codes lie transposed. */
#include "quant/around_planes.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"
#include "quant/sdnq_words.h"

#include "base/size.h"
#include "format/format_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MATMUL_ROWS = 32 }; /* of all of x: the producer multiplies fewer in floats */

extern const oq_method oq_method_sdnq;

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_sdnq;
}

typedef struct layer {
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k, groups, of_format; /* groups of a row as stored; columns of a group of the format, 0: all */
    oq_sdnq_words words;
    const oq_ckpt_tensor *codes, *scale, *zero;
    bool across; /* codes are [k, n], scales [1, n] */
} layer;

/* ---- codes: arg[0] bits, arg[1] across, arg[2] flipped in the upper bit ------------------------------------ */

/* The last of four or eight codes lies in the upper bits of the others' bytes, its own upper bits in the first of them. */
static unsigned scattered_high(const uint8_t *b, int bytes, int own, int each)
{
    unsigned code = 0;
    for (int i = 0; i < bytes; i++) {
        const int shift = own - each * (i + 1);
        code |= (unsigned)(b[i] >> (8 - each)) << shift;
    }
    return code;
}

static unsigned code3(const uint8_t *b, int64_t i)
{
    if (i < 6) return (unsigned)(b[i % 3] >> i / 3 * 3) & 7;
    return (unsigned)(b[i - 6] >> 6) | (unsigned)(b[2] >> (i - 6 + 4) & 4);
}

static unsigned code5(const uint8_t *b, int64_t i)
{
    if (i < 5) return b[i] & 31;
    if (i < 7) return (unsigned)(b[i - 5] >> 5) | (unsigned)(b[i - 2] >> 2 & 24);
    return (unsigned)(b[2] >> 5) | (unsigned)(b[3] >> 3 & 16) | (unsigned)(b[4] >> 4 & 8);
}

/* Code number i of the flattened matrix. */
static unsigned packed_code(const uint8_t *data, int bits, int64_t i)
{
    switch (bits) {
    case 3:
        return code3(data + i / 8 * 3, i % 8);
    case 5:
        return code5(data + i / 8 * 5, i % 8);
    case 6:
        return i % 4 < 3 ? data[i / 4 * 3 + i % 4] & 63 : scattered_high(data + i / 4 * 3, 3, 6, 2);
    case 7:
        return i % 8 < 7 ? data[i / 8 * 7 + i % 8] & 127 : scattered_high(data + i / 8 * 7, 7, 7, 1);
    default:
        return (unsigned)(data[i * bits / 8] >> i * bits % 8) & ((1u << bits) - 1u);
    }
}

static void make_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int bits = (int)self->arg[0];
    const int64_t row_bytes = (k * bits + 7) / 8;
    memset(dst, 0, (size_t)(n * row_bytes));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++)
            oq_code_put((uint8_t *)dst + r * row_bytes, c, bits,
                        packed_code(self->tensor->data, bits, r * k + c));
}

/* A byte each, in rows. */
static void make_bytes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const uint8_t *const data = self->tensor->data, flip = self->arg[2] ? 0x80 : 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++)
            ((uint8_t *)dst)[r * k + c] = (uint8_t)(data[self->arg[1] ? c * n + r : r * k + c] ^ flip);
}

/* ---- numbers: arg[0] groups of a row in the file, 0: one number for all; arg[1] columns of a group of the format, 0: all; arg[2]
 * as f32 ------------------------------------------------------------------------------------------------------ */

static void make_numbers(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *t = self->tensor;
    const int64_t stored = self->arg[0], groups = self->arg[1] ? oq_ceil_div(k, self->arg[1]) : 1;
    const size_t each = t->dtype->bytes;
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++) {
            const int64_t group = self->arg[1] ? j * self->arg[1] / (k / (stored ? stored : 1)) : 0;
            const uint8_t *const from = t->data + (size_t)(stored ? r * stored + group : 0) * each;
            if (self->arg[2])
                t->dtype->to_f32((float *)dst + r * groups + j, from, 1);
            else
                memcpy((char *)dst + (size_t)(r * groups + j) * each, from, each);
        }
}

/* ---- the branch of a rotated layer: arg[0] columns of a run, arg[1] across, arg[2] rank -------------------- */

/* It takes x after the rotation: rotated rows take x as it came. */
static void make_rotated_down(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *t = self->tensor;
    const int64_t rank = self->arg[2];
    (void)n;
    for (int64_t r = 0; r < rank; r++) {
        float *const row = (float *)dst + r * k;
        for (int64_t i = 0; i < k; i++)
            t->dtype->to_f32(
                row + i, t->data + (size_t)(self->arg[1] ? i * rank + r : r * k + i) * t->dtype->bytes, 1);
        for (int64_t i = 0; i < k; i += self->arg[0]) oq_rotate(row + i, self->arg[0]);
    }
}

/* ---- checks ------------------------------------------------------------------------------------------------ */

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    if (t) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing: the metadata says that layer '%s' is %s",
                   l->name, suffix, l->name, l->words.type_name);
}

/* Codes with a sign of their own, a byte each. */
static bool is_int8(const layer *l)
{
    const oq_sdnq_type *t = &l->words.type;
    return t->bits == 8 && !t->has_zero && !t->is_e4m3 && !t->exponent;
}

static const oq_dtype *code_type(const layer *l)
{
    return l->words.type.is_e4m3   ? &oq_dtype_f8_e4m3
           : l->words.type.is_e5m2 ? &oq_dtype_f8_e5m2
           : is_int8(l)            ? &oq_dtype_i8
                                   : &oq_dtype_u8;
}

/* Bytes of a run of packed codes, as the tensor's last dimension has them; 0: it has one dimension. */
static int64_t run_of_bytes(int bits)
{
    return bits == 6 ? 3 : bits == 3 || bits == 5 || bits == 7 ? bits : 0;
}

/* [n, k], [n, groups, k / groups] or, across, [k, n]. */
static bool has_bytes(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes;
    if (l->groups > 1)
        return t->n_dims == 3 && t->dim[0] == l->n && t->dim[1] == l->groups && t->dim[2] == l->k / l->groups;
    return t->n_dims == 2 && t->dim[0] == (l->across ? l->k : l->n) && t->dim[1] == (l->across ? l->n : l->k);
}

/* Codes of e5m2 that are infinities or NaN. */
static oq_status check_numbers_alone(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes;
    for (int64_t i = 0; t->data && i < t->elems; i++)
        if ((t->data[i] & 0x7c) == 0x7c)
            return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is not finite at index %lld", t->name,
                           (long long)i);
    return OQ_OK;
}

static oq_status check_codes(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes;
    const int bits = l->words.type.bits;
    const int64_t run = run_of_bytes(bits), codes = bits == 6 ? 4 : run ? 8 : bits == 8 ? 1 : 8 / bits;
    if (t->dtype != code_type(l))
        return oq_fail(l->env, OQ_E_MISMATCH, "tensor '%s' is %s, but the metadata says that its layer is %s",
                       t->name, t->type_name, l->words.type_name);
    const bool shaped = bits == 8 ? has_bytes(l) : run ? t->n_dims == 2 && t->dim[1] == run : t->n_dims == 1;
    if (shaped && l->n * l->k % codes == 0 && t->elems == l->n * l->k / codes * (run ? run : 1))
        return l->words.type.is_e5m2 ? check_numbers_alone(l) : OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT,
                   "tensor '%s' has %lld bytes in %d dimensions, which are no [%lld, %lld] codes of %s",
                   t->name, (long long)t->elems, t->n_dims, (long long)l->n, (long long)l->k,
                   l->words.type_name);
}

/* [n, 1], [n, groups, 1], [1, n] beside transposed codes, or [1, 1] for all of them. */
static oq_status check_scale_shape(layer *l)
{
    const oq_ckpt_tensor *t = l->scale;
    const bool pair = t->n_dims == 2, one = t->elems == 1;
    l->groups = one ? 0 : pair ? 1 : t->n_dims == 3 && t->dim[2] == 1 && t->dim[1] > 0 ? t->dim[1] : -1;
    l->across = pair && l->words.type.bits == 8 && (!l->words.type.exponent || l->words.type.is_e5m2) &&
                !one && t->dim[0] == 1 && t->dim[1] == l->n;
    const bool rows = pair ? t->dim[0] == l->n && t->dim[1] == 1 : t->n_dims == 3 && t->dim[0] == l->n;
    if (l->n == 1 && one) l->groups = 1;
    if ((rows || l->across || (one && pair)) && l->groups >= 0 && (!l->groups || l->k % l->groups == 0))
        return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT,
                   "scale '%s' has %lld values in %d dimensions; a layer of [%lld, %lld] has [%lld, 1] or "
                   "[%lld, groups, 1]",
                   t->name, (long long)t->elems, t->n_dims, (long long)l->n, (long long)l->k, (long long)l->n,
                   (long long)l->n);
}

/* Finite, and scales not below zero. */
static oq_status check_numbers(const layer *l, const oq_ckpt_tensor *t, bool scale)
{
    OQ_TRY(oq_group_scale_values(l->env, t));
    return scale ? oq_scale_not_below_zero(l->env, t, "SDNQ") : OQ_OK;
}

static oq_status check_zero(const layer *l)
{
    const oq_ckpt_tensor *t = l->zero;
    if (!l->words.type.has_zero) {
        if (!t) return OQ_OK;
        return oq_fail(l->env, OQ_E_MISMATCH,
                       "tensor '%s' is there, but the metadata says that its layer is %s", t->name,
                       l->words.type_name);
    }
    OQ_TRY(need(l, t, "zero_point"));
    bool same = t->n_dims == l->scale->n_dims && t->dtype == l->scale->dtype;
    for (int d = 0; same && d < t->n_dims; d++) same = t->dim[d] == l->scale->dim[d];
    if (!same)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, its scale has %lld of %s",
                       t->name, (long long)t->elems, t->type_name, (long long)l->scale->elems,
                       l->scale->type_name);
    return check_numbers(l, t, false);
}

static oq_status refuse_unknown(const layer *l)
{
    const oq_ckpt_tensor *other =
        oq_scaled_stranger(l->ckpt, l->name, "weight,scale,zero_point,svd_up,svd_down,bias");
    if (!other) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                   other->name, l->name);
}

/* Codes that lie in runs of bytes, or that no element of their own is for: not those that the producer transposes. */
static bool is_packed(const layer *l)
{
    return l->words.type.bits < 8 || (l->words.type.exponent && !l->words.type.is_e5m2);
}

static bool is_float(const layer *l)
{
    return l->words.type.is_e4m3 || l->words.type.exponent;
}

/* Rows that the producer quantizes anew for its product (re_quantize_for_matmul): of another kind than the activations, floats
 * without a sign, and packed floats that are as wide or reach further (all of five bits of exponent do). */
static bool is_made_anew(const layer *l)
{
    const oq_sdnq_type *t = &l->words.type;
    const char *type = l->words.matmul;
    const bool as_float = strncmp(type, "f", 1) == 0,
               as_half = strcmp(type, "float16") == 0 || strcmp(type, "fp16") == 0;
    if (is_float(l) != as_float) return true;
    return t->exponent && !t->is_e5m2 && (t->has_zero || t->exponent == 5 || (t->bits == 8 && !as_half));
}

/* Does the producer multiply the codes themselves? What has groups, and rows as above, it quantizes anew for its product, or not,
 * as the user likes: those are read as what is stored. */
static bool multiplies_codes(const layer *l)
{
    return l->words.matmul && (l->across || (l->groups == 1 && is_packed(l) && !is_made_anew(l)));
}

/* Activations with a zero point of their own. */
static bool has_zero_inputs(const layer *l)
{
    return strcmp(l->words.matmul, "uint8") == 0;
}

static oq_status check_matmul(const layer *l)
{
    const char *type = l->words.matmul, *as = is_float(l) ? "float8_e4m3fn" : "int8";
    if (type && !l->groups && !is_made_anew(l))
        return oq_fail(
            l->env, OQ_E_UNSUPPORTED,
            "layer '%s' has one scale for all and is multiplied by activations of %s, which is not in "
            "this build yet; a scale for each row is",
            l->name, type);
    if (!multiplies_codes(l)) return OQ_OK;
    if (is_float(l) && l->words.type.mantissa > 3)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "layer '%s' of %s is rounded to %s for its product, which is not in this build yet",
                       l->name, l->words.type_name, type);
    if (strcmp(type, as) == 0 || (!is_float(l) && has_zero_inputs(l))) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "layer '%s' of %s is multiplied by activations of %s, which is not in this build yet; "
                   "int8, uint8 and "
                   "float8_e4m3fn of weights of their kind are",
                   l->name, l->words.type_name, type);
}

/* ---- one layer --------------------------------------------------------------------------------------------- */

/* The largest groups of the format's that those of the file are made of; a row that is one group has one, or more of them where
 * the format has no whole rows. */
static int64_t format_columns(const layer *l)
{
    static const int64_t sizes[] = {256, 128, 64, 32, 16};
    const int64_t columns = l->groups > 1 ? l->k / l->groups : 0;
    const bool any_row = l->words.type.has_zero || l->words.type.exponent;
    if (l->words.type.is_e4m3 || is_int8(l)) return columns ? columns % 128 ? -1 : 128 : 0;
    if (!columns) return any_row ? 0 : 128;
    for (size_t i = any_row ? 0 : 1; i < OQ_COUNT(sizes); i++)
        if (columns % sizes[i] == 0) return sizes[i];
    return -1;
}

static const oq_format *find_format(const layer *l)
{
    const oq_sdnq_type *type = &l->words.type;
    if (type->is_e4m3) return l->of_format ? &oq_format_fp8_e4m3_group128 : &oq_format_fp8_e4m3_channel;
    if (type->exponent)
        return oq_format_mini(type->exponent, type->mantissa, !type->has_zero, (int)l->of_format);
    if (type->has_zero)
        return oq_format_affine(OQ_AFFINE_FMA, type->bits, (int)l->of_format, l->scale->dtype);
    if (type->bits == 8 && !l->of_format) return &oq_format_int8_channel;
    return oq_format_int(type->bits, (int)l->of_format, false, l->scale->dtype);
}

static oq_status locate_branch(const layer *l, oq_part_source *out)
{
    const oq_ckpt_tensor *down = oq_scaled_find(l->ckpt, l->name, "svd_down");
    const bool flat = down && down->n_dims == 2;
    const bool as_rows = flat && down->dim[1] == l->k, as_columns = flat && down->dim[0] == l->k;
    const bool across = as_columns && (!as_rows || l->words.matmul);
    const oq_around_names names = {
        .down = "svd_down", .up = "svd_up", .down_across = across, .up_across = across};
    OQ_TRY(oq_around_locate(l->env, &names, l->ckpt, l->name, l->n, l->k, out));
    oq_plane_source *plane = &out->plane[OQ_PLANE_DOWN];
    if (out->rank && l->words.rotate) plane->make = make_rotated_down, plane->arg[0] = l->words.rotate;
    return OQ_OK;
}

static void fill(const layer *l, oq_part_source *out)
{
    const oq_sdnq_type *type = &l->words.type;
    const oq_format *format = find_format(l);
    const bool wide = !format->scale_type && l->scale->dtype != &oq_dtype_f32;
    *out = (oq_part_source){.format = format, .rotate = (int32_t)l->words.rotate};
    out->plane[OQ_PLANE_DATA] = (oq_plane_source){.tensor = l->codes,
                                                  .make = type->bits < 8 ? make_codes : make_bytes,
                                                  .arg = {type->bits, l->across, is_int8(l) && l->of_format}};
    out->plane[OQ_PLANE_SCALE] =
        (oq_plane_source){.tensor = l->scale, .make = make_numbers, .arg = {l->groups, l->of_format, wide}};
    if (type->has_zero) {
        out->plane[OQ_PLANE_ZERO] = out->plane[OQ_PLANE_SCALE];
        out->plane[OQ_PLANE_ZERO].tensor = l->zero;
    }
    if (multiplies_codes(l)) {
        out->act = is_float(l) ? &oq_dtype_f8_e4m3 : &oq_dtype_i8;
        out->act_scale = has_zero_inputs(l) ? OQ_ACT_DYNAMIC_LEAST : OQ_ACT_DYNAMIC_TOKEN;
        out->act_min_rows = MATMUL_ROWS;
    }
}

static oq_status check_layer(layer *l)
{
    if (l->words.left_out)
        return oq_fail(l->env, OQ_E_MISMATCH,
                       "layer '%s' is quantized in the file, but '%s' of modules_to_not_convert names it",
                       l->name, l->words.left_out);
    OQ_TRY(need(l, l->scale, "scale"));
    OQ_TRY(refuse_unknown(l));
    OQ_TRY(check_scale_shape(l));
    OQ_TRY(check_matmul(l));
    OQ_TRY(check_codes(l));
    OQ_TRY(check_numbers(l, l->scale, true));
    OQ_TRY(check_zero(l));
    l->of_format = format_columns(l);
    if (l->of_format >= 0) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "layer '%s' has groups of %lld columns; multiples of %d and whole rows are read", l->name,
                   (long long)(l->k / l->groups), is_int8(l) || l->words.type.is_e4m3 ? 128 : 16);
}

static bool is_plain(const oq_ckpt_tensor *t)
{
    return t && (t->dtype == &oq_dtype_f32 || t->dtype == &oq_dtype_bf16 || t->dtype == &oq_dtype_f16);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k};
    l.codes = oq_scaled_find(ckpt, name, "weight");
    l.scale = oq_scaled_find(ckpt, name, "scale");
    l.zero = oq_scaled_find(ckpt, name, "zero_point");
    *found = false;
    if (!l.codes || (is_plain(l.codes) && !l.scale)) return OQ_OK;
    OQ_TRY(oq_sdnq_words_read(env, declared, name, n, k, &l.words));
    OQ_TRY(check_layer(&l));
    fill(&l, out);
    OQ_TRY(locate_branch(&l, out));
    *found = true;
    return OQ_OK;
}

/* ---- reports ----------------------------------------------------------------------------------------------- */

/* Its rows are those of its scales, its columns what is left of its codes. */
static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    static const char ending[] = ".weight";
    const size_t length = strlen(t->name), m = sizeof ending - 1;
    char name[1024];
    oq_sdnq_words words = {0};
    if (length <= m || strcmp(t->name + length - m, ending) != 0 || length - m >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)(length - m), t->name);
    const oq_ckpt_tensor *scale = oq_scaled_find(ckpt, name, "scale");
    if (!scale || is_plain(t) || scale->n_dims < 2 || t->elems <= 0) return false;
    const oq_status st = oq_sdnq_words_read(NULL, declared, name, 0, 0, &words);
    const bool across =
        t->n_dims == 2 && scale->n_dims == 2 && scale->dim[0] == 1 && scale->dim[1] == t->dim[1];
    const int64_t rows = across ? t->dim[1] : scale->elems == 1 && t->n_dims == 2 ? t->dim[0] : scale->dim[0];
    if (st != OQ_OK || rows < 1) return false;
    *name_length = length - m;
    *n = rows;
    *k = t->elems * 8 / words.type.bits / rows;
    return *k > 0;
}

const oq_dialect oq_dialect_sdnq = {
    .name = "sdnq",
    .help =
        "SD.Next's (SDNQ's) integers and floats of 2 to 8 bits in groups and rows, with svd_up and svd_down",
    .method = &oq_method_sdnq,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
    .types_of_their_own = true,
};
