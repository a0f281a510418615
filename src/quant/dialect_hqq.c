/* dialect_hqq.c -- HQQ's layers as its safetensors have them: `W_q`, `scale`, `zero`, and what they mean in small tensors beside
 * them (`nbits`, `group_size`, `shape`, `axis`, `packing`, `view_as_float` ...). The matrix is cut into groups [rows, group_size];
 * a byte holds codes of rows that stand a half, a quarter or an eighth of all rows apart. */
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "format/format_int.h"

#include <stdio.h>
#include <string.h>

extern const oq_method oq_method_hqq;

#define MEANS "nbits,group_size,shape,axis,packing,view_as_float"
#define IDLE                                                                                                 \
    "unpack_view_dtype,compute_dtype,offload_meta,encoded_state_dict,stores_quant_config,channel_wise,"      \
    "optimize,round_zero,quant_scale,quant_zero"

static bool ends_with(const char *name, const char *ending, size_t *length)
{
    const size_t n = strlen(name), m = strlen(ending);
    if (n <= m + 1 || name[n - m - 1] != '.' || strcmp(name + n - m, ending) != 0) return false;
    *length = n - m - 1;
    return true;
}

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    char name[1024];
    size_t length;
    if (named) return named == &oq_method_hqq;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        if (!ends_with(ckpt->tensors[i].name, "W_q", &length) || length >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)length, ckpt->tensors[i].name);
        if (oq_scaled_find(ckpt, name, "nbits") && oq_scaled_find(ckpt, name, "scale")) return true;
    }
    return false;
}

typedef struct layer {
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k, bits, group,
        rows;      /* rows of the matrix of groups: groups, or (axis 0) numbers of a group */
    bool across;   /* axis 0: a group is a column of that matrix */
    bool as_float; /* the bytes of the codes stand there under a type of floats */
    const oq_ckpt_tensor *codes, *scale, *zero;
} layer;

/* ---- planes ------------------------------------------------------------------------------------------------ */

/* Codes of a unit (a byte; a word of 32 bits for those of three bits), the first of them in its upper bits. */
static int64_t codes_per_unit(int64_t bits)
{
    return bits == 3 ? 10 : 8 / bits;
}

/* arg[0] bits, arg[1] columns of a group, arg[2] rows of units */
static void make_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t bits = self->arg[0], group = self->arg[1], step = self->arg[2],
                  row_bytes = (k * bits + 7) / 8;
    const size_t each = bits == 3 ? 4 : 1;
    memset(dst, 0, (size_t)(n * row_bytes));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            const int64_t row = (r * k + c) / group, at = row % step * group + c % group;
            const int64_t shift = bits * (codes_per_unit(bits) - 1 - row / step);
            uint32_t unit = 0;
            memcpy(&unit, self->tensor->data + (size_t)at * each, each);
            oq_code_put((uint8_t *)dst + r * row_bytes, c, (int)bits, unit >> shift & ((1u << bits) - 1u));
        }
}

/* Axis 0, whose matrix is W cut into `group` runs of whole rows: arg[0] bits, arg[1] columns of the matrix, arg[2] rows of units */
static void make_across_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t bits = self->arg[0], columns = self->arg[1], step = self->arg[2],
                  row_bytes = (k * bits + 7) / 8;
    const size_t each = bits == 3 ? 4 : 1;
    memset(dst, 0, (size_t)(n * row_bytes));
    for (int64_t r = 0; r < n; r++) {
        const int64_t row = r * k / columns, first = r * k % columns;
        const int64_t shift = bits * (codes_per_unit(bits) - 1 - row / step);
        for (int64_t c = 0; c < k; c++) {
            uint32_t unit = 0;
            memcpy(&unit, self->tensor->data + (size_t)(row % step * columns + first + c) * each, each);
            oq_code_put((uint8_t *)dst + r * row_bytes, c, (int)bits, unit >> shift & ((1u << bits) - 1u));
        }
    }
}

/* arg[0] columns of a group, arg[1] those of a group of the format, 0: a row */
static void make_numbers(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *t = self->tensor;
    const int64_t columns = self->arg[1] ? self->arg[1] : k, groups = oq_ceil_div(k, columns),
                  stored = k / self->arg[0];
    const size_t each = t->dtype->bytes;
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++)
            memcpy((char *)dst + (size_t)(r * groups + j) * each,
                   t->data + (size_t)(r * stored + j * columns / self->arg[0]) * each, each);
}

/* ---- what the small tensors say ---------------------------------------------------------------------------- */

static oq_status read_number(const layer *l, const char *suffix, int64_t *out)
{
    const oq_ckpt_tensor *t = oq_scaled_find(l->ckpt, l->name, suffix);
    int32_t narrow = 0;
    uint8_t byte = 0;
    *out = 0;
    if (!t)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s'", l->name, suffix,
                       l->codes->name);
    if (t->elems != 1 || (t->dtype != &oq_dtype_i32 && t->dtype != &oq_dtype_i64 && t->dtype != &oq_dtype_u8))
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it needs one whole number",
                       t->name, (long long)t->elems, t->type_name);
    if (!t->data) return OQ_OK;
    if (t->dtype == &oq_dtype_i64) memcpy(out, t->data, sizeof *out);
    if (t->dtype == &oq_dtype_i32) memcpy(&narrow, t->data, sizeof narrow), *out = narrow;
    if (t->dtype == &oq_dtype_u8) memcpy(&byte, t->data, sizeof byte), *out = byte;
    return OQ_OK;
}

/* Words that each say how codes of so many bits are packed. */
static const char *packing_of(int64_t bits)
{
    return bits == 8   ? "8bit_u8"
           : bits == 4 ? "4bit_u8"
           : bits == 3 ? "3bit_32"
           : bits == 2 ? "2bit_u8"
           : bits == 1 ? "1bit_u8"
                       : NULL;
}

static oq_status check_packing(const layer *l)
{
    const oq_ckpt_tensor *t = oq_scaled_find(l->ckpt, l->name, "packing");
    const char *wanted = packing_of(l->bits);
    if (!wanted)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "layer '%s' has codes of %lld bits; 1, 2, 3, 4 and 8 are read", l->name,
                       (long long)l->bits);
    if (!t)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.packing' is missing beside '%s'", l->name,
                       l->codes->name);
    if (t->dtype == &oq_dtype_u8 && t->bytes == strlen(wanted) &&
        (!t->data || memcmp(t->data, wanted, t->bytes) == 0))
        return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' does not say '%s', which codes of %lld bits are read in", t->name, wanted,
                   (long long)l->bits);
}

static oq_status check_shape(const layer *l)
{
    const oq_ckpt_tensor *t = oq_scaled_find(l->ckpt, l->name, "shape");
    int64_t shape[2] = {l->n, l->k};
    if (!t)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.shape' is missing beside '%s'", l->name,
                       l->codes->name);
    if (t->dtype != &oq_dtype_i64 || t->bytes != sizeof shape)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it needs 2 of I64", t->name,
                       (long long)t->elems, t->type_name);
    if (t->data) memcpy(shape, t->data, sizeof shape);
    if (shape[0] == l->n && shape[1] == l->k) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' says [%lld, %lld], its layer needs [%lld, %lld]",
                   t->name, (long long)shape[0], (long long)shape[1], (long long)l->n, (long long)l->k);
}

/* Scales or zero points that are codes themselves. Older files have no word of it. */
static oq_status refuse_coded(const layer *l, const char *suffix)
{
    int64_t coded = 0;
    if (oq_scaled_find(l->ckpt, l->name, suffix)) OQ_TRY(read_number(l, suffix, &coded));
    if (!coded) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "layer '%s' has quantized scales or zero points (%s), which are not in this "
                   "build yet",
                   l->name, suffix);
}

static oq_status read_across(layer *l)
{
    l->rows = l->group;
    if (oq_format_spread((int)l->bits, l->group, &oq_dtype_f32) && l->n % l->group == 0) return OQ_OK;
    return oq_fail(
        l->env, OQ_E_UNSUPPORTED,
        "layer '%s' has groups of %lld across its %lld rows; 32, 64 and 128 that divide them are read",
        l->name, (long long)l->group, (long long)l->n);
}

static oq_status read_meaning(layer *l)
{
    int64_t axis, as_float;
    OQ_TRY(read_number(l, "nbits", &l->bits));
    OQ_TRY(check_packing(l));
    OQ_TRY(check_shape(l));
    OQ_TRY(read_number(l, "axis", &axis));
    OQ_TRY(read_number(l, "view_as_float", &as_float));
    OQ_TRY(refuse_coded(l, "quant_scale"));
    OQ_TRY(refuse_coded(l, "quant_zero"));
    l->group = l->k; /* it has no tensor for "none" */
    if (oq_scaled_find(l->ckpt, l->name, "group_size")) OQ_TRY(read_number(l, "group_size", &l->group));
    l->as_float = as_float != 0;
    l->across = axis == 0;
    if (axis != 0 && axis != 1)
        return oq_fail(l->env, OQ_E_FORMAT, "layer '%s' has groups along axis %lld; there are 0 and 1",
                       l->name, (long long)axis);
    if (l->across) return read_across(l);
    if (l->group < 1 || l->k % l->group || (l->group != l->k && l->group % 16))
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "layer '%s' has groups of %lld over %lld columns; multiples of 16 that divide them "
                       "and whole rows "
                       "are read",
                       l->name, (long long)l->group, (long long)l->k);
    l->rows = l->n * (l->k / l->group);
    return OQ_OK;
}

/* ---- checks ------------------------------------------------------------------------------------------------ */

/* Columns of the matrix of groups. */
static int64_t matrix_columns(const layer *l)
{
    return l->across ? l->n / l->group * l->k : l->group;
}

static int64_t unit_rows(const layer *l)
{
    return oq_ceil_div(l->rows, codes_per_unit(l->bits));
}

static oq_status check_codes(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes;
    const oq_dtype *plain = l->bits == 3 ? &oq_dtype_i32 : &oq_dtype_u8;
    const bool typed = l->as_float ? t->dtype && t->dtype->floating : t->dtype == plain;
    const int64_t bytes = unit_rows(l) * matrix_columns(l) * (l->bits == 3 ? 4 : 1);
    const bool whole = l->bits == 3 || l->rows % codes_per_unit(l->bits) == 0;
    const bool shaped = t->n_dims == 2 && t->dim[0] == unit_rows(l) && whole && (int64_t)t->bytes == bytes;
    if (typed && shaped) return OQ_OK;
    return oq_fail(
        l->env, OQ_E_FORMAT,
        "tensor '%s' has %lld elements of %s in %d dimensions; [%lld, %lld] codes of %lld bits in groups of "
        "%lld need [%lld, %lld] of %s",
        t->name, (long long)t->elems, t->type_name, t->n_dims, (long long)l->n, (long long)l->k,
        (long long)l->bits, (long long)l->group, (long long)unit_rows(l), (long long)matrix_columns(l),
        plain->name);
}

static oq_status check_numbers(const layer *l, const oq_ckpt_tensor *t, const char *suffix, bool scale)
{
    if (!t)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s'", l->name, suffix,
                       l->codes->name);
    const int64_t down = l->across ? 1 : l->rows, along = l->across ? matrix_columns(l) : 1;
    if (t->n_dims != 2 || t->dim[0] != down || t->dim[1] != along)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values in %d dimensions, its layer needs [%lld, %lld]", t->name,
                       (long long)t->elems, t->n_dims, (long long)down, (long long)along);
    OQ_TRY(oq_group_scale_values(l->env, t));
    return scale ? oq_scale_not_below_zero(l->env, t, "HQQ") : OQ_OK;
}

static oq_status check_layer(layer *l)
{
    OQ_TRY(read_meaning(l));
    const oq_ckpt_tensor *other = oq_scaled_stranger(l->ckpt, l->name, "W_q,scale,zero,bias," MEANS "," IDLE);
    if (other)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                       other->name, l->name);
    OQ_TRY(check_codes(l));
    OQ_TRY(check_numbers(l, l->scale, "scale", true));
    OQ_TRY(check_numbers(l, l->zero, "zero", false));
    if (l->scale->dtype == l->zero->dtype) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %s, but '%s' is %s; they are of one type",
                   l->scale->name, l->scale->type_name, l->zero->name, l->zero->type_name);
}

/* ---- one layer --------------------------------------------------------------------------------------------- */

static int64_t format_columns(const layer *l)
{
    static const int64_t sizes[] = {256, 128, 64, 32};
    if (l->group == l->k) return 0;
    for (size_t i = 0; i < OQ_COUNT(sizes); i++)
        if (l->group % sizes[i] == 0) return sizes[i];
    return 16;
}

static void claim_meaning(const layer *l, oq_part_source *out)
{
    char word[32];
    int n = 0;
    for (size_t i = 0; n < OQ_MAX_BESIDE && oq_csv_word(MEANS, i, word, sizeof word); i++) {
        const oq_ckpt_tensor *t = oq_scaled_find(l->ckpt, l->name, word);
        if (t) out->beside[n++] = t;
    }
}

static void fill(const layer *l, oq_part_source *out)
{
    const int64_t columns = format_columns(l);
    *out = (oq_part_source){.format =
                                oq_format_affine(OQ_AFFINE_ZF, (int)l->bits, (int)columns, l->scale->dtype)};
    if (l->across) {
        out->format = oq_format_spread((int)l->bits, l->group, l->scale->dtype);
        out->plane[OQ_PLANE_DATA] = (oq_plane_source){
            .tensor = l->codes, .make = make_across_codes, .arg = {l->bits, matrix_columns(l), unit_rows(l)}};
        out->plane[OQ_PLANE_SCALE].tensor = l->scale, out->plane[OQ_PLANE_ZERO].tensor = l->zero;
        claim_meaning(l, out);
        return;
    }
    out->plane[OQ_PLANE_DATA] =
        (oq_plane_source){.tensor = l->codes, .make = make_codes, .arg = {l->bits, l->group, unit_rows(l)}};
    out->plane[OQ_PLANE_SCALE] =
        (oq_plane_source){.tensor = l->scale, .make = make_numbers, .arg = {l->group, columns}};
    out->plane[OQ_PLANE_ZERO] =
        (oq_plane_source){.tensor = l->zero, .make = make_numbers, .arg = {l->group, columns}};
    claim_meaning(l, out);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k};
    (void)declared;
    l.codes = oq_scaled_find(ckpt, name, "W_q");
    l.scale = oq_scaled_find(ckpt, name, "scale");
    l.zero = oq_scaled_find(ckpt, name, "zero");
    *found = false;
    if (!l.codes) return OQ_OK;
    OQ_TRY(check_layer(&l));
    fill(&l, out);
    *found = true;
    return OQ_OK;
}

static bool harmless(const oq_ckpt_tensor *t)
{
    char word[32];
    size_t length;
    for (size_t i = 0; oq_csv_word(IDLE, i, word, sizeof word); i++)
        if (ends_with(t->name, word, &length)) return true;
    return false;
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    int64_t shape[2];
    (void)declared;
    if (!ends_with(t->name, "W_q", name_length) || *name_length >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    const oq_ckpt_tensor *told = oq_scaled_find(ckpt, name, "shape");
    if (!told || !told->data || told->dtype != &oq_dtype_i64 || told->bytes != sizeof shape) return false;
    memcpy(shape, told->data, sizeof shape);
    *n = shape[0];
    *k = shape[1];
    return *n > 0 && *k > 0 && *n <= INT32_MAX && *k <= INT32_MAX;
}

const oq_dialect oq_dialect_hqq = {
    .name = "hqq",
    .help = "HQQ's W_q of 1, 2, 3, 4 and 8 bits with scale and zero per group, along rows or across them",
    .method = &oq_method_hqq,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .harmless = harmless,
    .layer_of = layer_of,
    .shape_from = "'shape' beside it: two numbers of I64, each from 1 to 2147483647",
    .types_of_their_own = true,
};
