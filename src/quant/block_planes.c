/* block_planes.c -- finds and checks the planes of NVFP4, MXFP8 and MXFP4 layers and puts tiled scales and swapped nibbles into
 * canonical order. */
#include "quant/block_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "format/float4.h"
#include "quant/scaled_planes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TILE_ROWS = 128, TILE_COLS = 4 };

typedef struct layer {
    oq_env *env;
    const oq_block_layout *layout;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k, groups; /* groups: scales of one row */
    const oq_ckpt_tensor *codes, *scale, *global, *input;
} layer;

static int64_t round_up(int64_t x, int64_t to)
{
    return oq_ceil_div(x, to) * to;
}

static bool is_matrix(const oq_ckpt_tensor *t, int64_t rows, int64_t cols)
{
    return t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

/* ---- order --------------------------------------------------------------------------------------------- */

/* Tiles of 128 rows x 4 scales; in a tile the rows r, r + 32, r + 64, r + 96 stand side by side. */
static void untile(uint8_t *dst, const uint8_t *src, int64_t n, int64_t groups)
{
    const int64_t across = oq_ceil_div(groups, TILE_COLS);
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++) {
            const int64_t tile = r / TILE_ROWS * across + g / TILE_COLS, in = r % TILE_ROWS;
            dst[r * groups + g] =
                src[tile * TILE_ROWS * TILE_COLS + in % 32 * 16 + in / 32 * 4 + g % TILE_COLS];
        }
}

static void untile16(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    untile(dst, src->data, n, oq_ceil_div(k, 16));
}

static void untile32(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    untile(dst, src->data, n, oq_ceil_div(k, 32));
}

/* Rows of `bytes` each, out of longer ones. */
static void crop(uint8_t *dst, const oq_ckpt_tensor *src, int64_t n, int64_t bytes)
{
    for (int64_t r = 0; r < n; r++) memcpy(dst + r * bytes, src->data + r * src->dim[1], (size_t)bytes);
}

static void crop_codes4(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    crop(dst, src, n, oq_ceil_div(k, 2));
}

static void crop_codes8(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    crop(dst, src, n, k);
}

static void swap_nibbles(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    uint8_t *p = dst;
    const int64_t bytes = n * oq_ceil_div(k, 2);
    crop(p, src, n, oq_ceil_div(k, 2));
    for (int64_t i = 0; i < bytes; i++) p[i] = (uint8_t)(p[i] << 4 | p[i] >> 4);
}

/* ---- what a kind is ------------------------------------------------------------------------------------ */

static const struct kind_row {
    const char *label; /* for messages */
    oq_block_names names;
    const oq_format *format;
    const oq_dtype *code, *act;
    int64_t group, pad,
        per_byte; /* columns under a scale; multiple that codes may be padded to; codes in a byte */
    void (*untile)(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k);
    void (*crop)(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k);
} kinds[] = {
    [OQ_BLOCK_NVFP4] = {"NVFP4",
                        {"weight", "weight_scale", "weight_scale_2", "input_scale", false},
                        &oq_format_nvfp4,
                        &oq_dtype_u8,
                        &oq_dtype_f4_e2m1,
                        16,
                        16,
                        2,
                        untile16,
                        crop_codes4},
    [OQ_BLOCK_MXFP8] = {"MXFP8",
                        {"weight", "weight_scale", "", "", false},
                        &oq_format_mxfp8,
                        &oq_dtype_f8_e4m3,
                        &oq_dtype_f8_e4m3,
                        32,
                        32,
                        1,
                        untile32,
                        crop_codes8},
    [OQ_BLOCK_MXFP4] = {"MXFP4",
                        {"weight_packed", "weight_scale", "", "", false},
                        &oq_format_mxfp4,
                        &oq_dtype_u8,
                        &oq_dtype_f4_e2m1,
                        32,
                        32,
                        2,
                        untile32,
                        crop_codes4},
};

const oq_block_names oq_block_names_global = {"weight_packed", "weight_scale", "weight_global_scale",
                                              "input_global_scale", true};

static const struct kind_row *kind_of(const layer *l)
{
    return &kinds[l->layout->kind];
}

static const oq_block_names *names_of(const layer *l)
{
    return l->layout->names ? l->layout->names : &kind_of(l)->names;
}

static bool is_mx(const layer *l)
{
    return l->layout->kind != OQ_BLOCK_NVFP4;
}

/* A static scale of the activations; where they stay as they are, one may stand there unused. */
static bool has_input(const layer *l)
{
    return !is_mx(l) || l->layout->act_scale == OQ_ACT_STATIC_TENSOR;
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    if (t) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing: layer '%s' is in %s", l->name, suffix,
                   l->name, kind_of(l)->label);
}

/* Tensors beside the weight that change what the layer computes. */
static oq_status refuse_unknown(const layer *l, const char *spare)
{
    const oq_block_names *names = names_of(l);
    char known[256];
    snprintf(known, sizeof known, "bias,%s,%s,%s,%s,%s", names->codes, names->scale, names->global,
             names->input, spare ? spare : "");
    const oq_ckpt_tensor *other = oq_scaled_stranger(l->ckpt, l->name, known);
    if (!other) return OQ_OK;
    return oq_fail(l->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                   other->name, l->name);
}

/* Producers may pad rows and columns. */
static oq_status check_codes(const layer *l)
{
    const struct kind_row *row = kind_of(l);
    const oq_ckpt_tensor *t = l->codes;
    if (t->dtype != row->code)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %s, %s codes are %s", t->name, t->type_name,
                       row->label, row->code == &oq_dtype_u8 ? "U8" : "F8_E4M3");
    if (is_matrix(t, l->n, oq_ceil_div(l->k, row->per_byte)) ||
        is_matrix(t, round_up(l->n, row->pad), round_up(l->k, row->pad) / row->per_byte))
        return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT,
                   "tensor '%s' has %lld bytes; a weight of [%lld, %lld] has %lld codes, %s a byte", t->name,
                   (long long)t->bytes, (long long)l->n, (long long)l->k, (long long)(l->n * l->k),
                   row->per_byte == 1 ? "one" : "two");
}

/* TorchAO folds the same bytes: 32 rows and 16 columns for each tile. */
static bool fits_tiles(const layer *l)
{
    const int64_t rows = round_up(l->n, TILE_ROWS), cols = round_up(l->groups, TILE_COLS);
    return is_matrix(l->scale, rows, cols) ||
           (l->layout && l->layout->tiled && is_matrix(l->scale, rows / 4, cols * 4));
}

static bool is_tiled(const layer *l)
{
    return fits_tiles(l) && (l->layout->tiled || !is_matrix(l->scale, l->n, l->groups));
}

/* Where the scale of row r and group g stands. */
static size_t scale_at(const layer *l, int64_t r, int64_t g)
{
    const int64_t across = oq_ceil_div(l->groups, TILE_COLS), in = r % TILE_ROWS;
    if (!is_tiled(l)) return (size_t)(r * l->groups + g);
    return (size_t)((r / TILE_ROWS * across + g / TILE_COLS) * TILE_ROWS * TILE_COLS + in % 32 * 16 +
                    in / 32 * 4 + g % TILE_COLS);
}

/* Sixteen columns of e2m1 whose codes are all zero, of either sign. */
static bool block_is_zero(const layer *l, int64_t r, int64_t g)
{
    const uint8_t *row = l->codes->data ? l->codes->data + r * l->codes->dim[1] : NULL;
    for (int64_t i = g * 8; row && i < oq_min_i64(g * 8 + 8, oq_ceil_div(l->k, 2)); i++)
        if (row[i] & 0x77) return false;
    return row != NULL;
}

/* A NaN over zeros is what some producers write for a block of zeros: it is read as zeros. */
static oq_status check_scale_bytes(const layer *l)
{
    const bool mx = is_mx(l);
    for (int64_t r = 0; l->scale->data && r < l->n; r++)
        for (int64_t g = 0; g < l->groups; g++) {
            const uint8_t byte = l->scale->data[scale_at(l, r, g)];
            if (mx ? byte != 0xff : byte < 0x7f) continue;
            if (!mx && (byte & 0x7f) == 0x7f && block_is_zero(l, r, g)) continue;
            return oq_fail(l->env, OQ_E_FORMAT, "scale '%s' is byte 0x%02x at index %zu, which is %s",
                           l->scale->name, byte, scale_at(l, r, g),
                           !mx && byte > 0x7f && byte < 0xff ? "negative" : "NaN");
        }
    return OQ_OK;
}

static oq_status check_scale(const layer *l)
{
    const oq_ckpt_tensor *t = l->scale;
    const bool mx = is_mx(l);
    const bool type =
        mx ? t->dtype == &oq_dtype_u8 || strcmp(t->type_name, "F8_E8M0") == 0 : t->dtype == &oq_dtype_f8_e4m3;
    if (!type)
        return oq_fail(l->env, OQ_E_FORMAT, "scale '%s' is %s, it must be %s", t->name, t->type_name,
                       mx ? "U8 or F8_E8M0" : "F8_E4M3");
    if (!is_matrix(t, l->n, l->groups) && !fits_tiles(l))
        return oq_fail(
            l->env, OQ_E_FORMAT,
            "scale '%s' has %lld values; a weight of [%lld, %lld] needs [%lld, %lld], or tiles of 128 x 4",
            t->name, (long long)t->elems, (long long)l->n, (long long)l->k, (long long)l->n,
            (long long)l->groups);
    if (l->layout->told && l->layout->tiled != is_tiled(l))
        return oq_fail(l->env, OQ_E_FORMAT,
                       "scale '%s' has %lld values, which are %s, but the metadata says %s", t->name,
                       (long long)t->elems, l->layout->tiled ? "rows" : "tiles of 128 x 4",
                       l->layout->tiled ? "tiles of 128 x 4" : "rows");
    return check_scale_bytes(l);
}

static oq_status check_number(oq_env *env, const oq_ckpt_tensor *t)
{
    float x = 1.0f;
    if (t->elems != 1 || t->dtype != &oq_dtype_f32)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it must be one of F32",
                       t->name, (long long)t->elems, t->type_name);
    if (t->data) memcpy(&x, t->data, sizeof x);
    if (isfinite(x) && x > 0) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %g; it must be positive and finite", t->name, (double)x);
}

oq_status oq_block_number(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *suffix,
                          const oq_ckpt_tensor **out)
{
    *out = oq_scaled_find(ckpt, name, suffix);
    if (!*out) return oq_fail(env, OQ_E_FORMAT, "tensor '%s.%s' is missing", name, suffix);
    return check_number(env, *out);
}

oq_status oq_block_dual(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                        const oq_ckpt_tensor **out)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight_dual_scale");
    const int64_t blocks = oq_ceil_div(k, OQ_ACT_DUAL_GROUP);
    *out = t;
    if (!t) return OQ_OK;
    if (t->dtype != &oq_dtype_f32 || t->n_dims < 2 || t->dim[0] != n || t->dim[1] != blocks ||
        t->elems != n * blocks)
        return oq_fail(env, OQ_E_FORMAT, "scale '%s' has %lld values of %s, it needs [%lld, %lld, 1] of F32",
                       t->name, (long long)t->elems, t->type_name, (long long)n, (long long)blocks);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        float x;
        memcpy(&x, t->data + (size_t)i * sizeof x, sizeof x);
        if (!isfinite(x) || x < 0)
            return oq_fail(env, OQ_E_FORMAT, "scale '%s' is %g at index %lld; it must be positive and finite",
                           t->name, (double)x, (long long)i);
    }
    return OQ_OK;
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static oq_plane_source codes_source(const layer *l)
{
    const struct kind_row *row = kind_of(l);
    const bool padded = !is_matrix(l->codes, l->n, oq_ceil_div(l->k, row->per_byte));
    if (l->layout->high_first && row->per_byte == 2)
        return (oq_plane_source){.tensor = l->codes, .fix = swap_nibbles};
    return (oq_plane_source){.tensor = l->codes, .fix = padded ? row->crop : NULL};
}

/* Scales of NVFP4 whose NaN stand over zeros: arg[0] says whether they are tiled. */
static void make_clean_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    uint8_t *p = dst;
    const int64_t count = n * oq_ceil_div(k, 16);
    if (self->arg[0])
        untile16(dst, self->tensor, n, k);
    else
        memcpy(dst, self->tensor->data, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        if ((p[i] & 0x7f) == 0x7f) p[i] = 0;
}

static bool has_nan_scale(const layer *l)
{
    for (size_t i = 0; l->scale->data && i < l->scale->bytes; i++)
        if ((l->scale->data[i] & 0x7f) == 0x7f) return true;
    return false;
}

static oq_plane_source scale_source(const layer *l)
{
    const bool tiled = is_tiled(l);
    if (is_mx(l) || !has_nan_scale(l))
        return (oq_plane_source){.tensor = l->scale, .fix = tiled ? kind_of(l)->untile : NULL};
    oq_log(l->env, OQ_LOG_WARN, "scale '%s' is NaN over blocks of zeros, which are read as zeros",
           l->scale->name);
    return (oq_plane_source){.tensor = l->scale, .make = make_clean_scales, .arg = {tiled}};
}

static void fix_inverse(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    float x;
    (void)n, (void)k;
    memcpy(&x, src->data, sizeof x);
    x = 1.0f / x;
    memcpy(dst, &x, sizeof x);
}

static oq_act_scale act_scale_of(const layer *l)
{
    if (l->layout->weight_only) return OQ_ACT_NONE;
    const oq_act_scale told = l->layout->act_scale;
    if (is_mx(l)) return told != OQ_ACT_NONE ? told : OQ_ACT_DYNAMIC_MX;
    return told == OQ_ACT_STATIC_TENSOR || told == OQ_ACT_DYNAMIC_NVFP4 ? told : OQ_ACT_STATIC_NVFP4;
}

/* A static scale that goes unused is still claimed by its plane. */
static void fill(const layer *l, oq_part_source *out)
{
    const bool inverse = names_of(l)->inverse;
    *out = (oq_part_source){.format = inverse ? &oq_format_nvfp4_inverse : kind_of(l)->format,
                            .act = l->layout->weight_only ? NULL
                                   : l->layout->act       ? l->layout->act
                                                          : kind_of(l)->act,
                            .act_scale = act_scale_of(l)};
    out->plane[OQ_PLANE_DATA] = codes_source(l);
    out->plane[OQ_PLANE_SCALE] = scale_source(l);
    if (!is_mx(l)) out->plane[OQ_PLANE_GLOBAL].tensor = l->global;
    out->plane[OQ_PLANE_INPUT_SCALE] =
        (oq_plane_source){.tensor = l->input, .fix = inverse ? fix_inverse : NULL};
}

oq_status oq_block_locate(oq_env *env, const oq_block_layout *layout, const char *spare, const oq_ckpt *ckpt,
                          const char *name, int64_t n, int64_t k, oq_part_source *out)
{
    layer l = {env,  layout, ckpt, name, n, k, oq_ceil_div(k, kinds[layout->kind].group),
               NULL, NULL,   NULL, NULL};
    const oq_block_names *names = names_of(&l);
    l.codes = oq_scaled_find(ckpt, name, names->codes);
    l.scale = oq_scaled_find(ckpt, name, names->scale);
    l.global = is_mx(&l) ? NULL : oq_scaled_find(ckpt, name, names->global);
    l.input = has_input(&l) ? oq_scaled_find(ckpt, name, names->input) : NULL;
    OQ_TRY(need(&l, l.codes, names->codes));
    OQ_TRY(need(&l, l.scale, names->scale));
    if (!is_mx(&l)) OQ_TRY(need(&l, l.global, names->global));
    if (has_input(&l) && !layout->weight_only && layout->act_scale != OQ_ACT_DYNAMIC_NVFP4)
        OQ_TRY(need(&l, l.input, names->input));
    OQ_TRY(check_codes(&l));
    OQ_TRY(refuse_unknown(&l, spare));
    OQ_TRY(check_scale(&l));
    if (l.global) OQ_TRY(check_number(env, l.global));
    if (l.input) OQ_TRY(check_number(env, l.input));
    if (l.input && l.input->data && !names->inverse) {
        float x;
        memcpy(&x, l.input->data, sizeof x);
        OQ_TRY(oq_scaled_check_input(env, l.input, x));
    }
    fill(&l, out);
    return OQ_OK;
}

bool oq_block_layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                       size_t *name_length, int64_t *n, int64_t *k)
{
    (void)declared, (void)ckpt;
    static const char *const endings[] = {".weight", ".weight_packed"};
    const size_t length = strlen(t->name);
    /* words hold integers of four bits: a dialect refuses them by their layout */
    const int64_t per_element = t->dtype == &oq_dtype_u8 ? 2 : t->dtype == &oq_dtype_i32 ? 8 : 1;
    for (size_t i = 0; i < OQ_COUNT(endings) && t->n_dims == 2 && t->elems > 0; i++) {
        const size_t m = strlen(endings[i]);
        if (length <= m || strcmp(t->name + length - m, endings[i]) != 0) continue;
        *name_length = length - m;
        *n = t->dim[0];
        *k = per_element * t->dim[1];
        return true;
    }
    return false;
}

oq_block_evidence oq_block_look(const oq_ckpt *ckpt)
{
    oq_block_evidence out = {false, true, true};
    char name[1024];
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++) {
        layer l = {0};
        size_t length = 0;
        if (ckpt->tensors[i].dtype != &oq_dtype_u8) continue;
        if (!oq_block_layer_of(NULL, ckpt, &ckpt->tensors[i], &length, &l.n, &l.k) || length >= sizeof name)
            continue;
        memcpy(name, ckpt->tensors[i].name, length);
        name[length] = '\0';
        l.groups = oq_ceil_div(l.k, 16);
        l.scale = oq_scaled_find(ckpt, name, "weight_scale");
        if (!l.scale || !oq_scaled_find(ckpt, name, "weight_scale_2")) continue;
        out.any = true;
        out.rows = out.rows && is_matrix(l.scale, l.n, l.groups);
        out.tiles = out.tiles && fits_tiles(&l);
    }
    out.rows = out.rows && out.any;
    out.tiles = out.tiles && out.any;
    return out;
}
