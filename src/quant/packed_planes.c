/* packed_planes.c -- finds and checks the planes of integer weights in 32-bit words, and unpacks them: codes into rows of
 * bits, scales and zero points into [n, groups] of the format's own group. */
#include "quant/packed_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "format/format_int.h"
#include "quant/scaled_planes.h"
#include "quant/word_codes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct layer {
    oq_env *env;
    const oq_packed_layout *layout;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k, group, groups; /* of the file */
    const oq_ckpt_tensor *codes, *scale, *zero, *index;
    bool reordered;
} layer;

static const struct packing_row {
    const char *codes, *scale, *zero, *index;
} packings[] = {
    [OQ_PACK_GPTQ] = {"qweight", "scales", "qzeros", "g_idx"},
    [OQ_PACK_PLANES] = {"qweight", "scales", "qzeros", "g_idx"},
    [OQ_PACK_AWQ] = {"qweight", "scales", "qzeros", NULL},
    [OQ_PACK_AWQ_PLAIN] = {"weight", "weight_scale", "weight_zero_point", NULL},
    [OQ_PACK_ROWS] = {"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"},
};

static const struct packing_row *row_of(const layer *l)
{
    return &packings[l->layout->packing];
}

const char *oq_packed_codes(oq_packing packing)
{
    return packings[packing].codes;
}

/* ---- canonical planes: arg[0] bits, arg[1] columns of a group in the file, arg[2] those of the format; `of`: the index of
 * groups where columns are out of order -------------------------------------------------------------------- */

/* Columns by their groups, in the order of the file within each: calls `visit` with each column and its place. */
static void each_ordered(const oq_ckpt_tensor *index, int64_t k,
                         void (*visit)(void *user, int64_t column, int64_t at), void *user)
{
    int64_t at = 0;
    for (uint32_t group = 0; at < k; group++)
        for (int64_t c = 0; c < k; c++)
            if (word_at(index, c) == group) visit(user, c, at++);
}

typedef uint32_t (*code_reader)(const oq_ckpt_tensor *t, int64_t first, int64_t step, int64_t i,
                                int64_t bits);

typedef struct ordered_codes {
    uint8_t *dst;
    const oq_plane_source *self;
    int64_t n, bits, row_bytes;
    code_reader read;
} ordered_codes;

static void put_column(void *user, int64_t column, int64_t at)
{
    const ordered_codes *o = user;
    for (int64_t r = 0; r < o->n; r++)
        oq_code_put(o->dst + r * o->row_bytes, at, (int)o->bits,
                    o->read(o->self->tensor, r, o->n, column, o->bits));
}

static void put_order(void *user, int64_t column, int64_t at)
{
    const int32_t c = (int32_t)column;
    memcpy((int32_t *)user + at, &c, sizeof c);
}

static void make_order(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    (void)n;
    each_ordered(self->tensor, k, put_order, dst);
}

static void make_column_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k, code_reader read)
{
    const int64_t bits = self->arg[0], row_bytes = (k * bits + 7) / 8;
    ordered_codes o = {dst, self, n, bits, row_bytes, read};
    memset(dst, 0, (size_t)(n * row_bytes));
    if (self->of) each_ordered(self->of, k, put_column, &o);
    for (int64_t r = 0; r < n && !self->of; r++)
        for (int64_t c = 0; c < k; c++)
            oq_code_put((uint8_t *)dst + r * row_bytes, c, (int)bits, read(self->tensor, r, n, c, bits));
}

static void make_gptq_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_column_codes(dst, self, n, k, code_at);
}

static void make_plane_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_column_codes(dst, self, n, k, plane_code_at);
}

static void make_awq_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t row_bytes = (k + 1) / 2;
    memset(dst, 0, (size_t)(n * row_bytes));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++)
            oq_code_put((uint8_t *)dst + r * row_bytes, c, 4, awq_code(self->tensor, r, c, 4));
}

static void make_signed_awq_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_awq_codes(dst, self, n, k);
    for (int64_t i = 0; i < n * ((k + 1) / 2); i++) ((uint8_t *)dst)[i] ^= 0x88;
}

static void put_row_column(void *user, int64_t column, int64_t at)
{
    const ordered_codes *o = user;
    const int64_t words = o->self->tensor->dim[1];
    for (int64_t r = 0; r < o->n; r++)
        oq_code_put(o->dst + r * o->row_bytes, at, (int)o->bits,
                    code_at(o->self->tensor, r * words, 1, column, o->bits));
}

/* The same stream, in rows of whole words. */
static void make_row_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t row_bytes = (k * self->arg[0] + 7) / 8, stored = words_of(k, self->arg[0]) * 4;
    ordered_codes o = {dst, self, n, self->arg[0], row_bytes, code_at};
    if (self->of) {
        memset(dst, 0, (size_t)(n * row_bytes));
        each_ordered(self->of, k, put_row_column, &o);
        return;
    }
    for (int64_t r = 0; r < n; r++)
        memcpy((uint8_t *)dst + r * row_bytes, self->tensor->data + r * stored, (size_t)row_bytes);
}

/* Group of the file that the format's group j lies in. */
static int64_t file_group(const oq_plane_source *self, int64_t j)
{
    return j * self->arg[2] / self->arg[1];
}

static float scale_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

/* The formats hold scales in the type of the file. */
static void copy_scale(void *dst, int64_t to, const oq_ckpt_tensor *t, int64_t from)
{
    const size_t each = t->dtype->bytes;
    memcpy((char *)dst + (size_t)to * each, t->data + (size_t)from * each, each);
}

/* Scales [groups, n] where the packing goes down the columns, else [n, groups]. */
static void make_column_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++) {
            copy_scale(dst, r * groups + j, self->tensor, file_group(self, j) * n + r);
        }
}

void oq_group_make_wide_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]), stored = oq_ceil_div(k, self->arg[1]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++)
            ((float *)dst)[r * groups + j] = scale_at(self->tensor, r * stored + file_group(self, j));
}

void oq_group_make_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]), stored = oq_ceil_div(k, self->arg[1]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++) {
            copy_scale(dst, r * groups + j, self->tensor, r * stored + file_group(self, j));
        }
}

/* Zero point of row r in group g of the file. */
static uint32_t gptq_zero(const oq_ckpt_tensor *t, int64_t r, int64_t g, int64_t bits)
{
    return code_at(t, g * t->dim[1], 1, r, bits);
}

static uint32_t plane_zero(const oq_ckpt_tensor *t, int64_t r, int64_t g, int64_t bits)
{
    return plane_code_at(t, g * t->dim[1], 1, r, bits);
}

static uint32_t row_zero(const oq_ckpt_tensor *t, int64_t r, int64_t g, int64_t bits)
{
    return code_at(t, g, t->dim[1], r, bits);
}

typedef uint32_t (*zero_of)(const oq_ckpt_tensor *t, int64_t r, int64_t g, int64_t bits);

/* Zero points of the format's groups, each (stored + add) ^ flip within the bits. */
static void make_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k, zero_of stored,
                       uint32_t add, uint32_t flip)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]), bits = self->arg[0];
    const uint32_t mask = (1u << bits) - 1u;
    memset(dst, 0, (size_t)n * oq_int_zero_row_bytes((int)bits, groups));
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++)
            oq_int_put_zero(dst, (int)bits, r, j, groups,
                            ((stored(self->tensor, r, file_group(self, j), bits) + add) & mask) ^ flip);
}

static void make_gptq_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_zeros(dst, self, n, k, gptq_zero, 0, 0);
}

static void make_plane_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_zeros(dst, self, n, k, plane_zero, 0, 0);
}

/* Stored less by one; a zero point of 0 wraps around. */
static void make_gptq_v1_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_zeros(dst, self, n, k, gptq_zero, 1, 0);
}

/* One is added to all zero points of a word at once, as GPTQModel took it off; those of 3 bits lie across words, and wrap around
 * each by itself there too. */
static uint32_t gptqmodel_zero(const oq_ckpt_tensor *t, int64_t r, int64_t g, int64_t bits)
{
    const int64_t per_word = 32 / bits, at = g * t->dim[1] + r / per_word;
    if (bits == 3) return gptq_zero(t, r, g, bits) + 1u;
    return (word_at(t, at) + UINT32_MAX / ((1u << bits) - 1u)) >> (r % per_word * bits);
}

static void make_gptqmodel_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_zeros(dst, self, n, k, gptqmodel_zero, 0, 0);
}

static void make_awq_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_zeros(dst, self, n, k, awq_code, 0, 0);
}

static void make_signed_awq_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_zeros(dst, self, n, k, awq_code, 0, 8);
}

static void make_row_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_zeros(dst, self, n, k, row_zero, 0, 0);
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static oq_status fail_shape(const layer *l, const oq_ckpt_tensor *t, int64_t rows, int64_t cols)
{
    return oq_fail(
        l->env, OQ_E_FORMAT,
        "tensor '%s' is [%lld, %lld]; a weight of [%lld, %lld] in codes of %lld bits, groups of %lld, needs "
        "[%lld, %lld]",
        t->name, (long long)(t->n_dims > 0 ? t->dim[0] : 0), (long long)(t->n_dims > 1 ? t->dim[1] : 0),
        (long long)l->n, (long long)l->k, (long long)l->layout->bits, (long long)l->layout->group,
        (long long)rows, (long long)cols);
}

static oq_status check_matrix(const layer *l, const oq_ckpt_tensor *t, int64_t rows, int64_t cols, bool words)
{
    if (words && t->dtype != &oq_dtype_i32)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %s, packed codes are I32", t->name, t->type_name);
    if (t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols) return OQ_OK;
    return fail_shape(l, t, rows, cols);
}

static bool is_awq(const layer *l)
{
    return l->layout->packing == OQ_PACK_AWQ || l->layout->packing == OQ_PACK_AWQ_PLAIN;
}

static oq_status check_codes(const layer *l)
{
    const int64_t bits = l->layout->bits;
    if (l->layout->packing == OQ_PACK_GPTQ || l->layout->packing == OQ_PACK_PLANES)
        return check_matrix(l, l->codes, words_of(l->k, bits), l->n, true);
    if (is_awq(l)) return check_matrix(l, l->codes, l->k, words_of(l->n, 4), true);
    return check_matrix(l, l->codes, l->n, words_of(l->k, bits), true);
}

static bool is_scale_type(const oq_dtype *t)
{
    return t == &oq_dtype_f16 || t == &oq_dtype_bf16 || t == &oq_dtype_f32;
}

/* Scales may be negative, and zero where all is zero. */
oq_status oq_group_scale_values(oq_env *env, const oq_ckpt_tensor *t)
{
    if (!is_scale_type(t->dtype))
        return oq_fail(env, OQ_E_FORMAT, "scale '%s' is %s, it must be F16, BF16 or F32", t->name,
                       t->type_name);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const float x = scale_at(t, i);
        if (!isfinite(x))
            return oq_fail(env, OQ_E_FORMAT, "scale '%s' is %g at index %lld; it must be finite", t->name,
                           (double)x, (long long)i);
    }
    return OQ_OK;
}

static oq_status check_scale(const layer *l)
{
    const bool rows = l->layout->packing == OQ_PACK_ROWS;
    OQ_TRY(check_matrix(l, l->scale, rows ? l->n : l->groups, rows ? l->groups : l->n, false));
    return oq_group_scale_values(l->env, l->scale);
}

oq_status oq_group_scale(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *suffix, int64_t n,
                         int64_t groups, const oq_ckpt_tensor **out)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, suffix);
    *out = t;
    if (!t) return oq_fail(env, OQ_E_FORMAT, "tensor '%s.%s' is missing", name, suffix);
    if (t->n_dims != 2 || t->dim[0] != n || t->dim[1] != groups)
        return oq_fail(env, OQ_E_FORMAT, "scale '%s' has %lld values, it needs [%lld, %lld]", t->name,
                       (long long)t->elems, (long long)n, (long long)groups);
    return oq_group_scale_values(env, t);
}

static oq_status check_zeros(const layer *l)
{
    const int64_t bits = l->layout->bits;
    if (!l->zero) return OQ_OK;
    if (l->layout->packing == OQ_PACK_ROWS)
        return check_matrix(l, l->zero, words_of(l->n, bits), l->groups, true);
    return check_matrix(l, l->zero, l->groups, words_of(l->n, bits), true);
}

static uint32_t stored_zero(const layer *l, int64_t r, int64_t g)
{
    if (is_awq(l)) return awq_code(l->zero, r, g, 4) ^ (l->layout->is_signed ? 8u : 0u);
    return l->layout->packing == OQ_PACK_ROWS     ? row_zero(l->zero, r, g, l->layout->bits)
           : l->layout->packing == OQ_PACK_PLANES ? plane_zero(l->zero, r, g, l->layout->bits)
                                                  : gptq_zero(l->zero, r, g, l->layout->bits);
}

/* A zero point that contradicts symmetric codes, as the layout means it. */
static oq_status check_symmetric(const layer *l)
{
    const uint32_t half = 1u << (l->layout->bits - 1), one = l->layout->zeros_minus_one;
    if (!l->zero || !l->zero->data || !l->layout->symmetric) return OQ_OK;
    for (int64_t g = 0; g < l->groups; g++)
        for (int64_t r = 0; r < l->n; r++) {
            const uint32_t is = stored_zero(l, r, g);
            if (is + one == half) continue;
            return oq_fail(
                l->env, OQ_E_FORMAT,
                "tensor '%s' has zero point %u for row %lld, group %lld, but the metadata says symmetric "
                "codes, whose zero point is %u%s",
                l->zero->name, is + one, (long long)r, (long long)g, half,
                one && is == half ? "; zero points stored as they are mean checkpoint_format gptq_v2" : "");
        }
    return OQ_OK;
}

/* Columns of a group: all of its size but the last one's. */
static oq_status check_group_sizes(const layer *l)
{
    for (int64_t g = 0; g < l->groups; g++) {
        int64_t count = 0;
        for (int64_t i = 0; i < l->k; i++) count += word_at(l->index, i) == (uint32_t)g;
        if (count != oq_min_i64(l->group, l->k - g * l->group))
            return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' puts %lld columns into group %lld, not %lld",
                           l->index->name, (long long)count, (long long)g,
                           (long long)oq_min_i64(l->group, l->k - g * l->group));
    }
    return OQ_OK;
}

/* llm-compressor begins with -1 everywhere: columns are in order. */
static bool is_unused(const layer *l)
{
    for (int64_t i = 0; l->index->data && i < l->k; i++)
        if (word_at(l->index, i) != UINT32_MAX) return false;
    return true;
}

/* Columns out of order (act-order) are sorted, and those of the layer's input with them. */
static oq_status check_index(layer *l)
{
    const oq_ckpt_tensor *t = l->index;
    if (!t) return OQ_OK;
    if (t->dtype != &oq_dtype_i32 || t->elems != l->k)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it needs %lld of I32",
                       t->name, (long long)t->elems, t->type_name, (long long)l->k);
    if (l->layout->packing == OQ_PACK_ROWS && is_unused(l)) return OQ_OK;
    for (int64_t i = 0; t->data && i < l->k && !l->reordered; i++)
        l->reordered = word_at(t, i) != (uint32_t)(i / l->group);
    return l->reordered ? check_group_sizes(l) : OQ_OK;
}

static oq_status refuse_unknown(const layer *l)
{
    const struct packing_row *row = row_of(l);
    char known[128];
    snprintf(known, sizeof known, "%s,%s,%s,bias,weight_shape%s%s", row->codes, row->scale, row->zero,
             row->index ? "," : "", row->index ? row->index : "");
    const oq_ckpt_tensor *other = oq_scaled_stranger(l->ckpt, l->name, known);
    if (!other) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                   other->name, l->name);
}

int64_t oq_group_of_format(int64_t group, int64_t groups)
{
    static const int64_t sizes[] = {128, 64, 32, 16};
    for (size_t i = 0; i < OQ_COUNT(sizes); i++)
        if (groups == 1 || group % sizes[i] == 0) return sizes[i];
    return 0;
}

static int64_t format_group(const layer *l)
{
    return oq_group_of_format(l->group, l->groups);
}

static oq_status check_bits(const layer *l)
{
    const int64_t bits = l->layout->bits;
    const bool awq = is_awq(l), planes = l->layout->packing == OQ_PACK_PLANES;
    if (planes && (bits < 2 || bits > 8 || l->n % 32 || l->k % 32))
        return oq_fail(
            l->env, OQ_E_FORMAT,
            "layer '%s' of [%lld, %lld] has codes of %lld bits in planes of 32; 2 to 8 of sides that are "
            "multiples of 32 are",
            l->name, (long long)l->n, (long long)l->k, (long long)bits);
    if (planes) return OQ_OK;
    if (awq ? bits != 4 : bits != 2 && bits != 3 && bits != 4 && bits != 8)
        return oq_fail(l->env, OQ_E_UNSUPPORTED, "layer '%s' has codes of %lld bits; %s", l->name,
                       (long long)bits, awq ? "AWQ's packing is read with 4" : "2, 3, 4 and 8 are read");
    return OQ_OK;
}

static oq_status check_layout(const layer *l)
{
    const int64_t group = l->layout->group;
    OQ_TRY(check_bits(l));
    if (group != -1 && (group < 1 || group > INT32_MAX))
        return oq_fail(l->env, OQ_E_FORMAT, "layer '%s' has groups of %lld columns", l->name,
                       (long long)group);
    if (format_group(l)) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "layer '%s' has groups of %lld columns; multiples of 16 and whole rows are read", l->name,
                   (long long)group);
}

/* compressed-tensors' [n, k]: it must say the same as the network. */
static oq_status check_told_shape(const layer *l)
{
    const oq_ckpt_tensor *t = oq_scaled_find(l->ckpt, l->name, "weight_shape");
    int64_t shape[2];
    if (!t || !t->data) return OQ_OK;
    if (t->dtype != &oq_dtype_i64 || t->bytes != sizeof shape)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it needs 2 of I64", t->name,
                       (long long)t->elems, t->type_name);
    memcpy(shape, t->data, sizeof shape);
    if (shape[0] == l->n && shape[1] == l->k) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' says [%lld, %lld], its layer needs [%lld, %lld]",
                   t->name, (long long)shape[0], (long long)shape[1], (long long)l->n, (long long)l->k);
}

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    if (t) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s.%s'", l->name, suffix, l->name,
                   row_of(l)->codes);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

typedef void (*plane_maker)(void *dst, const oq_plane_source *self, int64_t n, int64_t k);

static const struct {
    plane_maker codes, scales, zeros;
} makers[] = {
    [OQ_PACK_GPTQ] = {make_gptq_codes, make_column_scales, make_gptq_zeros},
    [OQ_PACK_PLANES] = {make_plane_codes, make_column_scales, make_plane_zeros},
    [OQ_PACK_AWQ] = {make_awq_codes, make_column_scales, make_awq_zeros},
    [OQ_PACK_AWQ_PLAIN] = {make_awq_codes, make_column_scales, make_awq_zeros},
    [OQ_PACK_ROWS] = {make_row_codes, oq_group_make_scales, make_row_zeros},
};

static void fill(const layer *l, oq_part_source *out)
{
    const oq_packed_layout *layout = l->layout;
    const bool zeros = !layout->symmetric && l->zero;
    const oq_plane_source common = {.arg = {layout->bits, l->group, format_group(l)}};
    *out = (oq_part_source){
        .format = oq_format_int((int)layout->bits, (int)format_group(l), zeros, l->scale->dtype)};
    for (int p = OQ_PLANE_DATA; p <= OQ_PLANE_ZERO; p++) out->plane[p] = common;
    out->plane[OQ_PLANE_DATA].tensor = l->codes;
    out->plane[OQ_PLANE_DATA].make = makers[layout->packing].codes;
    if (l->reordered) out->plane[OQ_PLANE_DATA].of = l->index;
    if (l->reordered) out->plane[OQ_PLANE_ORDER] = (oq_plane_source){.tensor = l->index, .make = make_order};
    out->plane[OQ_PLANE_SCALE].tensor = l->scale;
    out->plane[OQ_PLANE_SCALE].make = makers[layout->packing].scales;
    out->plane[OQ_PLANE_ZERO].tensor = l->zero;
    out->plane[OQ_PLANE_ZERO].make = !layout->zeros_minus_one ? makers[layout->packing].zeros
                                     : layout->zeros_borrow   ? make_gptqmodel_zeros
                                                              : make_gptq_v1_zeros;
    if (layout->is_signed) {
        out->plane[OQ_PLANE_DATA].make = make_signed_awq_codes;
        out->plane[OQ_PLANE_ZERO].make = make_signed_awq_zeros;
    }
    out->beside[0] = oq_scaled_find(l->ckpt, l->name, "weight_shape");
    out->beside[out->beside[0] ? 1 : 0] = l->index;
}

oq_status oq_packed_locate(oq_env *env, const oq_packed_layout *layout, const oq_ckpt *ckpt, const char *name,
                           int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .layout = layout, .ckpt = ckpt, .name = name, .n = n, .k = k};
    const struct packing_row *row = row_of(&l);
    *found = false;
    l.codes = oq_scaled_find(ckpt, name, row->codes);
    l.scale = oq_scaled_find(ckpt, name, row->scale);
    l.zero = oq_scaled_find(ckpt, name, row->zero);
    l.index = row->index ? oq_scaled_find(ckpt, name, row->index) : NULL;
    if (!l.codes) return OQ_OK;
    l.group = layout->group == -1 || layout->group > k ? k : layout->group;
    l.groups = oq_ceil_div(k, l.group < 1 ? 1 : l.group);
    OQ_TRY(check_layout(&l));
    OQ_TRY(need(&l, l.scale, row->scale));
    if (!layout->symmetric) OQ_TRY(need(&l, l.zero, row->zero));
    OQ_TRY(refuse_unknown(&l));
    OQ_TRY(check_told_shape(&l));
    OQ_TRY(check_codes(&l));
    OQ_TRY(check_scale(&l));
    OQ_TRY(check_zeros(&l));
    OQ_TRY(check_symmetric(&l));
    OQ_TRY(check_index(&l));
    fill(&l, out);
    *found = true;
    return OQ_OK;
}
