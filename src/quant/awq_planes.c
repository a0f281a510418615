/* awq_planes.c -- finds and checks the planes of AWQ's gemv, gemv_fast and marlin packings, and puts their codes into rows. */
#include "quant/awq_planes.h"

#include "base/size.h"
#include "format/format_int.h"
#include "quant/nunchaku_tiles.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include <math.h>
#include <string.h>

typedef struct layer {
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    oq_awq_packing packing;
    int64_t n, k, group, groups, of_format;
    const oq_ckpt_tensor *codes, *scale, *zero;
} layer;

/* ---- where things are ---------------------------------------------------------------------------------- */

/* Words of eight groups that a row's scales are filled up to. */
static int64_t group_words(int64_t group, int64_t groups)
{
    const int64_t step = group >= 128 ? 1 : group == 64 ? 2 : 4;
    return oq_ceil_div(oq_ceil_div(groups, 8), step) * step;
}

/* marlin: tiles of 16 x 16, four of them a run of 1024 codes, in the order in which threads take them. */
static int64_t marlin_place(int64_t r, int64_t c, int64_t n)
{
    const int64_t column = r % 8, half = r / 8 % 2, row = c % 16; /* inside of a tile */
    const int64_t thread = column * 4 + row % 8 / 2, raw = half * 4 + row % 2 + 2 * (row / 8);
    const int64_t tile = r / 16, order = raw % 2 ? 4 + raw / 2 : raw / 2;
    return c / 16 * n * 16 + tile / 4 * 1024 + thread * 32 + tile % 4 * 8 + order;
}

/* The scale of row r among those of a group; `single`: groups are whole rows. */
static int64_t marlin_scale(int64_t r, bool single)
{
    const int64_t in = r % 32;
    if (!single) return r / 64 * 64 + r % 8 * 8 + r % 64 / 8;
    return r / 32 * 32 + in % 8 / 2 * 8 + in / 8 * 2 + in % 2;
}

static uint32_t word_at(const oq_ckpt_tensor *t, int64_t i)
{
    uint32_t word;
    memcpy(&word, t->data + i * 4, sizeof word);
    return word;
}

/* ---- planes: arg[0] whether groups are whole rows, arg[1] columns of a group in the file, arg[2] those of the format ---------- */

static void make_gemv_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    memcpy(dst, self->tensor->data, (size_t)(n * (k / 2)));
}

static void make_fast_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    memset(dst, 0, (size_t)(n * (k / 2)));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            int shift = 0;
            uint16_t word;
            memcpy(&word, self->tensor->data + 2 * oq_nunchaku_awq(r, c, k, &shift), sizeof word);
            oq_code_put((uint8_t *)dst + r * (k / 2), c, 4, (uint32_t)word >> shift & 15);
        }
}

static void make_marlin_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    memset(dst, 0, (size_t)(n * (k / 2)));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            const int64_t at = marlin_place(r, c, n);
            oq_code_put((uint8_t *)dst + r * (k / 2), c, 4, word_at(self->tensor, at / 8) >> at % 8 * 4 & 15);
        }
}

static void make_numbers(void *dst, const oq_plane_source *self, int64_t n, int64_t k,
                         int64_t (*place)(const oq_plane_source *self, int64_t r, int64_t g))
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]);
    const size_t each = self->tensor->dtype->bytes;
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++) {
            const int64_t from = place(self, r, j * self->arg[2] / self->arg[1]);
            memcpy((char *)dst + (size_t)(r * groups + j) * each, self->tensor->data + (size_t)from * each,
                   each);
        }
}

static int64_t place_gemv(const oq_plane_source *self, int64_t r, int64_t g)
{
    return r * self->tensor->dim[1] + g;
}

static int64_t place_fast(const oq_plane_source *self, int64_t r, int64_t g)
{
    return g * self->tensor->dim[1] + r;
}

static int64_t place_marlin(const oq_plane_source *self, int64_t r, int64_t g)
{
    return g * self->tensor->dim[1] + marlin_scale(r, self->arg[0] != 0);
}

static void make_gemv_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_numbers(dst, self, n, k, place_gemv);
}

static void make_fast_numbers(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_numbers(dst, self, n, k, place_fast);
}

static void make_marlin_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    make_numbers(dst, self, n, k, place_marlin);
}

static void make_gemv_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]), words = self->tensor->dim[1];
    memset(dst, 0, (size_t)n * oq_int_zero_row_bytes(4, groups));
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++) {
            const int64_t g = j * self->arg[2] / self->arg[1];
            oq_int_put_zero(dst, 4, r, j, groups, word_at(self->tensor, r * words + g / 8) >> g % 8 * 4 & 15);
        }
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    return t ? OQ_OK
             : oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s.qweight'", l->name, suffix,
                       l->name);
}

static const char *packing_name(oq_awq_packing packing)
{
    static const char *const names[] = {
        [OQ_AWQ_GEMV] = "gemv", [OQ_AWQ_GEMV_FAST] = "gemv_fast", [OQ_AWQ_MARLIN] = "marlin"};
    return names[packing];
}

static oq_status check_matrix(const layer *l, const oq_ckpt_tensor *t, int64_t rows, int64_t cols,
                              const oq_dtype *type)
{
    if (t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols && (!type || t->dtype == type)) return OQ_OK;
    return oq_fail(
        l->env, OQ_E_FORMAT,
        "tensor '%s' has %lld values of %s; a weight of [%lld, %lld] in AWQ's packing '%s', groups of "
        "%lld, needs [%lld, %lld]%s%s",
        t->name, (long long)t->elems, t->type_name, (long long)l->n, (long long)l->k,
        packing_name(l->packing), (long long)l->group, (long long)rows, (long long)cols, type ? " of " : "",
        type ? type->name : "");
}

/* What each packing cuts a weight into. */
static oq_status check_sides(layer *l, int64_t told)
{
    const bool marlin = l->packing == OQ_AWQ_MARLIN, fast = l->packing == OQ_AWQ_GEMV_FAST;
    const int64_t rows = marlin ? 64 : fast ? 4 : 1, cols = marlin ? 16 : fast ? 64 : 8;
    l->group = told == -1 ? l->k : told;
    if (l->group < 1 || l->group % 32 || l->k % l->group)
        return oq_fail(
            l->env, OQ_E_UNSUPPORTED,
            "layer '%s' has groups of %lld over %lld columns; multiples of 32 that divide them are "
            "read in AWQ's packing '%s'",
            l->name, (long long)told, (long long)l->k, packing_name(l->packing));
    if (l->n % rows || l->k % cols)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "layer '%s' is [%lld, %lld]; AWQ's packing '%s' has multiples of [%lld, %lld]",
                       l->name, (long long)l->n, (long long)l->k, packing_name(l->packing), (long long)rows,
                       (long long)cols);
    l->groups = l->k / l->group;
    l->of_format = oq_group_of_format(l->group, l->groups);
    return OQ_OK;
}

static oq_status check_planes(const layer *l)
{
    const int64_t words = group_words(l->group, l->groups), n = l->n, k = l->k;
    switch (l->packing) {
    case OQ_AWQ_GEMV:
        OQ_TRY(check_matrix(l, l->codes, n, k / 8, &oq_dtype_i32));
        OQ_TRY(check_matrix(l, l->scale, n, 8 * words, NULL));
        if (l->zero) OQ_TRY(check_matrix(l, l->zero, n, words, &oq_dtype_i32));
        break;
    case OQ_AWQ_GEMV_FAST:
        OQ_TRY(check_matrix(l, l->codes, n / 4, k, &oq_dtype_i16));
        OQ_TRY(check_matrix(l, l->scale, 8 * words, n, NULL));
        OQ_TRY(check_matrix(l, l->zero, 8 * words, n, NULL));
        OQ_TRY(oq_group_scale_values(l->env, l->zero));
        if (l->zero->dtype != l->scale->dtype)
            return oq_fail(l->env, OQ_E_UNSUPPORTED,
                           "tensor '%s' is %s, but '%s' is %s; they are read in one type", l->scale->name,
                           l->scale->type_name, l->zero->name, l->zero->type_name);
        break;
    case OQ_AWQ_MARLIN:
        OQ_TRY(check_matrix(l, l->codes, k / 16, 2 * n, &oq_dtype_i32));
        OQ_TRY(check_matrix(l, l->scale, l->groups, n, NULL));
        break;
    }
    return oq_group_scale_values(l->env, l->scale);
}

static oq_status find_planes(layer *l, bool zero_points)
{
    const oq_ckpt_tensor *const plain = oq_scaled_find(l->ckpt, l->name, "qzeros"), *const scaled =
                                                                                        oq_scaled_find(
                                                                                            l->ckpt, l->name,
                                                                                            "scaled_zeros");
    const char *const known = l->packing == OQ_AWQ_GEMV        ? "qweight,scales,qzeros,bias"
                              : l->packing == OQ_AWQ_GEMV_FAST ? "qweight,scales,qzeros,scaled_zeros,bias"
                                                               : "qweight,scales,bias";
    const oq_ckpt_tensor *const other = oq_scaled_stranger(l->ckpt, l->name, known);
    l->scale = oq_scaled_find(l->ckpt, l->name, "scales");
    l->zero = plain ? plain : scaled;
    if (other || (plain && scaled))
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                       other ? other->name : scaled->name, l->name);
    OQ_TRY(need(l, l->scale, "scales"));
    if (l->packing == OQ_AWQ_MARLIN && zero_points)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "layer '%s' is in AWQ's packing 'marlin', which has no zero points, but the metadata "
                       "says zero_point",
                       l->name);
    return l->packing != OQ_AWQ_MARLIN && (zero_points || l->packing == OQ_AWQ_GEMV_FAST)
               ? need(l, l->zero, "qzeros")
               : OQ_OK;
}

/* Without zero points in the metadata, those that a file has all the same must be the middle. */
static oq_status check_middle(const layer *l, bool zero_points)
{
    if (zero_points || l->packing != OQ_AWQ_GEMV || !l->zero || !l->zero->data) return OQ_OK;
    for (int64_t r = 0; r < l->n; r++)
        for (int64_t g = 0; g < l->groups; g++) {
            const uint32_t is = word_at(l->zero, r * l->zero->dim[1] + g / 8) >> g % 8 * 4 & 15;
            if (is != 8)
                return oq_fail(
                    l->env, OQ_E_FORMAT,
                    "tensor '%s' has zero point %u for row %lld, group %lld, but the metadata says "
                    "symmetric codes, whose zero point is 8",
                    l->zero->name, is, (long long)r, (long long)g);
        }
    return OQ_OK;
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

typedef void (*plane_maker)(void *dst, const oq_plane_source *self, int64_t n, int64_t k);

static const struct {
    plane_maker codes, scales, zeros;
} makers[] = {
    [OQ_AWQ_GEMV] = {make_gemv_codes, make_gemv_scales, make_gemv_zeros},
    [OQ_AWQ_GEMV_FAST] = {make_fast_codes, make_fast_numbers, make_fast_numbers},
    [OQ_AWQ_MARLIN] = {make_marlin_codes, make_marlin_scales, NULL},
};

static void fill(const layer *l, bool zero_points, oq_part_source *out)
{
    const oq_plane_source common = {.arg = {l->groups == 1, l->group, l->of_format}};
    const bool fast = l->packing == OQ_AWQ_GEMV_FAST;
    *out =
        (oq_part_source){.format = fast ? oq_format_int4_float((int)l->of_format, false, l->scale->dtype)
                                        : oq_format_int(4, (int)l->of_format, zero_points, l->scale->dtype)};
    for (int p = OQ_PLANE_DATA; p <= OQ_PLANE_ZERO; p++) out->plane[p] = common;
    out->plane[OQ_PLANE_DATA].tensor = l->codes, out->plane[OQ_PLANE_DATA].make = makers[l->packing].codes;
    out->plane[OQ_PLANE_SCALE].tensor = l->scale, out->plane[OQ_PLANE_SCALE].make = makers[l->packing].scales;
    out->plane[OQ_PLANE_ZERO].tensor = l->zero, out->plane[OQ_PLANE_ZERO].make = makers[l->packing].zeros;
}

oq_status oq_awq_locate(oq_env *env, oq_awq_packing packing, int64_t group, bool zero_points,
                        const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k, oq_part_source *out,
                        bool *found)
{
    layer l = {.env = env, .ckpt = ckpt, .name = name, .packing = packing, .n = n, .k = k};
    *found = false;
    l.codes = oq_scaled_find(ckpt, name, "qweight");
    if (!l.codes) return OQ_OK;
    OQ_TRY(check_sides(&l, group));
    OQ_TRY(find_planes(&l, zero_points));
    OQ_TRY(check_planes(&l));
    OQ_TRY(check_middle(&l, zero_points));
    fill(&l, zero_points, out);
    *found = true;
    return OQ_OK;
}

bool oq_awq_layer_of(oq_awq_packing packing, const oq_ckpt_tensor *t, size_t *name_length, int64_t *n,
                     int64_t *k)
{
    static const char ending[] = ".qweight";
    const size_t length = strlen(t->name), m = sizeof ending - 1;
    if (length <= m || strcmp(t->name + length - m, ending) != 0 || t->n_dims != 2 || t->elems <= 0)
        return false;
    if (t->dim[0] > INT32_MAX || t->dim[1] > INT32_MAX) return false;
    *name_length = length - m;
    *n = packing == OQ_AWQ_MARLIN ? t->dim[1] / 2 : packing == OQ_AWQ_GEMV_FAST ? 4 * t->dim[0] : t->dim[0];
    *k = packing == OQ_AWQ_MARLIN ? 16 * t->dim[0] : packing == OQ_AWQ_GEMV_FAST ? t->dim[1] : 8 * t->dim[1];
    return *n > 0 && *k > 0;
}
