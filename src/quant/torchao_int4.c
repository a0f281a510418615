/* torchao_int4.c -- finds and checks TorchAO's integers of four bits, mostly with zero points that are floats, value = (code - 8) *
 * scale + zero, and puts their tiles and columns into rows. */
#include "quant/torchao_int4.h"

#include "quant/around_planes.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "format/format_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TILE_ROWS = 8, TILE_COLS = 16, LANES = 32 };

static const oq_around_names smoothed = {.smooth = "_weight_act_pre_scale"};

typedef struct layer {
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k, group, groups, of_format; /* groups of a row as stored; columns of a group of the format */
    const oq_ckpt_tensor *codes, *scale, *zero;
} layer;

/* ---- planes: arg[0] which of a pair, arg[1] columns of a group in the file, arg[2] those of the format ---------- */

/* Two's complement, the first of two in the low nibble: adding 8 is flipping the upper bit. */
static void make_row_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < n * (k / 2); i++) ((uint8_t *)dst)[i] = self->tensor->data[i] ^ 0x88;
}

static void make_tile_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *t = self->tensor;
    const int64_t words = t->dim[3], across = t->dim[1], row_bytes = k / 2 + (k & 1);
    memset(dst, 0, (size_t)(n * row_bytes));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            const int64_t tile = c / TILE_COLS, in = c % TILE_COLS, inner = tile % (2 * words);
            const int64_t lane = r % TILE_ROWS * 4 + in % 8 / 2;
            const int64_t word =
                ((r / TILE_ROWS * across + tile / (2 * words)) * LANES + lane) * words + inner / 2;
            const int shift = (int)(4 * (inner % 2 * 2 + in / 8) + in % 2 * 16);
            uint32_t bits;
            memcpy(&bits, t->data + word * 4, sizeof bits);
            oq_code_put((uint8_t *)dst + r * row_bytes, c, 4, bits >> shift & 15);
        }
}

/* [groups, rows] or [groups, rows, 2] -> [n, groups of the format], in the type of the file */
static void make_across(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *t = self->tensor;
    const int64_t groups = oq_ceil_div(k, self->arg[2]), pair = t->n_dims == 3 ? 2 : 1;
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++) {
            const int64_t at = (j * self->arg[2] / self->arg[1] * t->dim[1] + r) * pair + self->arg[0];
            memcpy((char *)dst + (size_t)(r * groups + j) * t->dtype->bytes,
                   t->data + (size_t)at * t->dtype->bytes, t->dtype->bytes);
        }
}

/* Zero points of a byte each, [groups, rows], to those of the format. */
static void make_whole_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++)
            oq_int_put_zero(dst, 4, r, j, groups,
                            self->tensor->data[j * self->arg[2] / self->arg[1] * n + r]);
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    return t ? OQ_OK : oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing", l->name, suffix);
}

static bool take_group(layer *l)
{
    if (l->group <= 0 || l->group > INT32_MAX || l->k % 2) return false;
    l->groups = oq_ceil_div(l->k, l->group);
    l->of_format = oq_group_of_format(l->group, l->groups);
    return oq_format_int4_float((int)l->of_format, true, &oq_dtype_f32) != NULL;
}

static oq_status read_group(layer *l, const oq_json *data)
{
    const oq_json *block = oq_json_get(data, "block_size");
    l->group = oq_json_int(oq_json_at(block, 1), 0);
    if (oq_json_int(oq_json_at(block, 0), 0) == 1 && take_group(l)) return OQ_OK;
    return oq_fail(
        l->env, OQ_E_UNSUPPORTED,
        "layer '%s' has blocks of [%lld, %lld] over %lld columns; [1, multiples of 32] and whole rows "
        "are read",
        l->name, (long long)oq_json_int(oq_json_at(block, 0), 0), (long long)l->group, (long long)l->k);
}

static bool is_float(const oq_ckpt_tensor *t)
{
    return t->dtype == &oq_dtype_f32 || t->dtype == &oq_dtype_bf16 || t->dtype == &oq_dtype_f16;
}

static oq_status check_numbers(const layer *l, const oq_ckpt_tensor *t)
{
    if (!is_float(t))
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %s, it must be F32, BF16 or F16", t->name,
                       t->type_name);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        float x = 0.0f;
        t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
        if (!isfinite(x))
            return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %g at index %lld; it must be finite", t->name,
                           (double)x, (long long)i);
    }
    return OQ_OK;
}

static oq_status check_across(const layer *l, const oq_ckpt_tensor *t)
{
    if (t->n_dims != 2 || t->dim[0] != l->groups || t->dim[1] != l->n)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values, its layer needs [%lld, %lld]",
                       t->name, (long long)t->elems, (long long)l->groups, (long long)l->n);
    return check_numbers(l, t);
}

static oq_status refuse_strangers(const layer *l, const char *known)
{
    const oq_ckpt_tensor *other = oq_scaled_stranger(l->ckpt, l->name, known);
    if (!other) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                   other->name, l->name);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static oq_status fill(const layer *l, void (*codes)(void *, const oq_plane_source *, int64_t, int64_t),
                      oq_part_source *out, bool *found)
{
    if (l->scale->dtype != l->zero->dtype)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' is %s, but '%s' is %s; they are read in one type", l->scale->name,
                       l->scale->type_name, l->zero->name, l->zero->type_name);
    *out = (oq_part_source){.format = oq_format_int4_float((int)l->of_format, true, l->scale->dtype)};
    out->plane[OQ_PLANE_DATA] = (oq_plane_source){.tensor = l->codes, .make = codes};
    out->plane[OQ_PLANE_SCALE] =
        (oq_plane_source){.tensor = l->scale, .make = make_across, .arg = {0, l->group, l->of_format}};
    out->plane[OQ_PLANE_ZERO] = (oq_plane_source){
        .tensor = l->zero, .make = make_across, .arg = {l->zero == l->scale, l->group, l->of_format}};
    const oq_status st = oq_around_locate(l->env, &smoothed, l->ckpt, l->name, l->n, l->k, out);
    *found = st == OQ_OK;
    return st;
}

static oq_status locate_rows(layer *l, const oq_int4_rows *rows, oq_part_source *out, bool *found)
{
    l->codes = oq_scaled_find(l->ckpt, l->name, rows->codes);
    l->scale = oq_scaled_find(l->ckpt, l->name, rows->scale);
    l->zero = oq_scaled_find(l->ckpt, l->name, rows->zero);
    OQ_TRY(need(l, l->codes, rows->codes));
    OQ_TRY(need(l, l->scale, rows->scale));
    OQ_TRY(need(l, l->zero, rows->zero));
    if ((l->codes->dtype != &oq_dtype_u8 && l->codes->dtype != &oq_dtype_i8) || l->codes->n_dims != 2 ||
        l->codes->dim[0] != l->n || l->codes->dim[1] != l->k / 2)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values of %s, it needs [%lld, %lld] of U8 or I8", l->codes->name,
                       (long long)l->codes->elems, l->codes->type_name, (long long)l->n,
                       (long long)(l->k / 2));
    OQ_TRY(check_across(l, l->scale));
    OQ_TRY(check_across(l, l->zero));
    OQ_TRY(refuse_strangers(l, rows->known));
    return fill(l, rows->is_signed ? make_row_codes : NULL, out, found);
}

oq_status oq_int4_rows_locate(oq_env *env, const oq_int4_rows *rows, int64_t group, const oq_ckpt *ckpt,
                              const char *name, int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k, .group = group};
    *found = false;
    if (take_group(&l) && k % group == 0) return locate_rows(&l, rows, out, found);
    return oq_fail(
        env, OQ_E_UNSUPPORTED,
        "layer '%s' has groups of %lld over %lld columns; multiples of 32 that divide them are read", name,
        (long long)group, (long long)k);
}

oq_status oq_torchao_locate_int4(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                                 const oq_json *data, oq_part_source *out, bool *found)
{
    static const oq_int4_rows rows = {
        "_weight_qdata", "_weight_scale", "_weight_zero_point",
        "_weight_qdata,_weight_scale,_weight_zero_point,_weight_act_pre_scale,bias", true};
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k};
    const char *act = oq_json_string(oq_json_get(oq_json_get(data, "activation_dtype"), "_data"));
    if (act && !oq_csv_has("float8_e4m3fn,bfloat16,float16,float32", act))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s': activations of type '%s' are not in this build yet; float8_e4m3fn and "
                       "plain ones are",
                       name, act);
    OQ_TRY(read_group(&l, data));
    OQ_TRY(locate_rows(&l, &rows, out, found));
    if (act && strcmp(act, "float8_e4m3fn") == 0)
        out->act = &oq_dtype_f8_e4m3, out->act_scale = OQ_ACT_DYNAMIC_TOKEN;
    return OQ_OK;
}

static oq_status check_words(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes, *z = l->zero;
    if (t->dtype != &oq_dtype_i32 || t->n_dims != 2 || t->dim[0] != l->n || t->dim[1] != l->k / 8 || l->k % 8)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it needs [%lld, %lld] of I32",
                       t->name, (long long)t->elems, t->type_name, (long long)l->n, (long long)(l->k / 8));
    OQ_TRY(check_across(l, l->scale));
    if (is_float(z))
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' is %s: Int4PlainInt32Tensor as NPUs write it, with zero points that are "
                       "floats, is not in this build yet; that of XPUs (I8) is",
                       z->name, z->type_name);
    if (z->dtype != &oq_dtype_i8 || z->n_dims != 2 || z->dim[0] != l->groups || z->dim[1] != l->n)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it needs [%lld, %lld] of I8",
                       z->name, (long long)z->elems, z->type_name, (long long)l->groups, (long long)l->n);
    for (int64_t i = 0; z->data && i < z->elems; i++)
        if (z->data[i] > 15)
            return oq_fail(l->env, OQ_E_FORMAT,
                           "tensor '%s' has zero point %d at index %lld, outside of 4 bits", z->name,
                           (int8_t)z->data[i], (long long)i);
    return refuse_strangers(l, "_weight_qdata,_weight_scale,_weight_zero_point,_weight_act_pre_scale,bias");
}

oq_status oq_torchao_locate_words(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                                  const oq_json *data, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k};
    l.codes = oq_scaled_find(ckpt, name, "_weight_qdata");
    l.scale = oq_scaled_find(ckpt, name, "_weight_scale");
    l.zero = oq_scaled_find(ckpt, name, "_weight_zero_point");
    OQ_TRY(read_group(&l, data));
    OQ_TRY(need(&l, l.codes, "_weight_qdata"));
    OQ_TRY(need(&l, l.scale, "_weight_scale"));
    OQ_TRY(need(&l, l.zero, "_weight_zero_point"));
    OQ_TRY(check_words(&l));
    *out = (oq_part_source){.format = oq_format_int(4, (int)l.of_format, true, l.scale->dtype)};
    out->plane[OQ_PLANE_DATA].tensor = l.codes;
    out->plane[OQ_PLANE_SCALE] =
        (oq_plane_source){.tensor = l.scale, .make = make_across, .arg = {0, l.group, l.of_format}};
    out->plane[OQ_PLANE_ZERO] =
        (oq_plane_source){.tensor = l.zero, .make = make_whole_zeros, .arg = {0, l.group, l.of_format}};
    const oq_status st = oq_around_locate(env, &smoothed, ckpt, name, n, k, out);
    *found = st == OQ_OK;
    return st;
}

/* Rows may be padded to tiles, columns to whole runs of them. */
static oq_status check_tiles(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes, *s = l->scale;
    const bool shaped = t->dtype == &oq_dtype_i32 && t->n_dims == 4 && t->dim[2] == LANES && t->dim[3] >= 1 &&
                        t->dim[3] <= 4 && t->dim[0] <= INT32_MAX && t->dim[1] <= INT32_MAX;
    const int64_t rows = shaped ? t->dim[0] * TILE_ROWS : 0,
                  cols = shaped ? t->dim[1] * 2 * t->dim[3] * TILE_COLS : 0;
    if (!shaped || rows < l->n || cols < l->k)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values of %s, which are no tiles of [%lld, %lld] codes", t->name,
                       (long long)t->elems, t->type_name, (long long)l->n, (long long)l->k);
    if (s->n_dims != 3 || s->dim[0] != oq_ceil_div(cols, l->group) || s->dim[1] != rows || s->dim[2] != 2)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values, its layer needs [%lld, %lld, 2]",
                       s->name, (long long)s->elems, (long long)oq_ceil_div(cols, l->group), (long long)rows);
    return check_numbers(l, s);
}

oq_status oq_torchao_locate_tiles_in(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *codes,
                                     int64_t n, int64_t k, const oq_json *data, oq_part_source *out,
                                     bool *found)
{
    char known[128];
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k};
    l.codes = oq_scaled_find(ckpt, name, codes);
    l.scale = l.zero = oq_scaled_find(ckpt, name, "_weight_scale_and_zero");
    OQ_TRY(read_group(&l, data));
    OQ_TRY(need(&l, l.codes, codes));
    OQ_TRY(need(&l, l.scale, "_weight_scale_and_zero"));
    OQ_TRY(check_tiles(&l));
    snprintf(known, sizeof known, "%s,_weight_scale_and_zero,_weight_act_pre_scale,bias", codes);
    OQ_TRY(refuse_strangers(&l, known));
    return fill(&l, make_tile_codes, out, found);
}

oq_status oq_torchao_locate_tiles(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                                  const oq_json *data, oq_part_source *out, bool *found)
{
    return oq_torchao_locate_tiles_in(env, ckpt, name, "_weight_qdata", n, k, data, out, found);
}
