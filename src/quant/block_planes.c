/* block_planes.c -- finds and checks the planes of NVFP4 and MXFP8 layers and puts tiled scales and swapped nibbles into
 * canonical order. */
#include "quant/block_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "quant/scaled_planes.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 128, TILE_COLS = 4, PAD = 16 };

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

/* ---- order
 * -------------------------------------------------------------------------------------------------------- */

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

/* ---- checks
 * ------------------------------------------------------------------------------------------------------- */

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    if (t) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing: layer '%s' is in %s", l->name, suffix,
                   l->name, l->layout->mxfp8 ? "MXFP8" : "NVFP4");
}

static bool is_known(const char *suffix, const char *spare)
{
    return oq_csv_has("weight,bias,weight_scale,weight_scale_2,input_scale", suffix) ||
           (spare && oq_csv_has(spare, suffix));
}

/* Tensors beside the weight that change what the layer computes. */
static oq_status refuse_unknown(const layer *l, const char *spare)
{
    const size_t length = strlen(l->name);
    for (size_t i = 0; i < l->ckpt->n_tensors; i++) {
        const char *name = l->ckpt->tensors[i].name;
        if (strncmp(name, l->name, length) != 0 || name[length] != '.') continue;
        if (strchr(name + length + 1, '.') || is_known(name + length + 1, spare)) continue;
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                       name, l->name);
    }
    return OQ_OK;
}

/* Producers may pad rows and columns to multiples of 16 (mxfp8: 32). */
static oq_status check_codes(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes;
    const bool mx = l->layout->mxfp8;
    const int64_t pad = mx ? 2 * PAD : PAD, per_byte = mx ? 1 : 2;
    if (mx ? t->dtype != &oq_dtype_f8_e4m3 : t->dtype != &oq_dtype_u8)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %s, %s codes are %s", t->name, t->type_name,
                       mx ? "MXFP8" : "NVFP4", mx ? "F8_E4M3" : "U8");
    if (is_matrix(t, l->n, oq_ceil_div(l->k, per_byte)) ||
        is_matrix(t, round_up(l->n, pad), round_up(l->k, pad) / per_byte))
        return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT,
                   "tensor '%s' has %lld bytes; a weight of [%lld, %lld] has %lld codes, %s a byte", t->name,
                   (long long)t->bytes, (long long)l->n, (long long)l->k, (long long)(l->n * l->k),
                   mx ? "one" : "two");
}

static bool fits_tiles(const layer *l)
{
    return is_matrix(l->scale, round_up(l->n, TILE_ROWS), round_up(l->groups, TILE_COLS));
}

static oq_status check_scale(const layer *l)
{
    const oq_ckpt_tensor *t = l->scale;
    const bool mx = l->layout->mxfp8;
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
    for (size_t i = 0; t->data && i < t->bytes; i++)
        if (mx ? t->data[i] == 0xff : t->data[i] >= 0x7f)
            return oq_fail(l->env, OQ_E_FORMAT, "scale '%s' is byte 0x%02x at index %zu, which is %s",
                           t->name, t->data[i], i,
                           !mx && t->data[i] > 0x7f && t->data[i] < 0xff ? "negative" : "NaN");
    return OQ_OK;
}

static oq_status check_number(const layer *l, const oq_ckpt_tensor *t)
{
    float x = 1.0f;
    if (t->elems != 1 || t->dtype != &oq_dtype_f32)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it must be one of F32",
                       t->name, (long long)t->elems, t->type_name);
    if (t->data) memcpy(&x, t->data, sizeof x);
    if (isfinite(x) && x > 0) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %g; it must be positive and finite", t->name,
                   (double)x);
}

/* ---- one layer
 * ---------------------------------------------------------------------------------------------------- */

static oq_plane_source codes_source(const layer *l)
{
    const bool mx = l->layout->mxfp8,
               padded = l->codes->dim[0] != l->n || l->codes->dim[1] != (mx ? l->k : oq_ceil_div(l->k, 2));
    if (!mx && l->layout->high_first) return (oq_plane_source){l->codes, swap_nibbles};
    return (oq_plane_source){l->codes, !padded ? NULL : mx ? crop_codes8 : crop_codes4};
}

static oq_plane_source scale_source(const layer *l)
{
    const bool tiled = fits_tiles(l) && (l->layout->tiled || !is_matrix(l->scale, l->n, l->groups));
    return (oq_plane_source){l->scale, !tiled ? NULL : l->layout->mxfp8 ? untile32 : untile16};
}

/* NVFP4's activations stay as they are; MXFP8's take a power of two per 32 columns. */
static void fill(const layer *l, oq_part_source *out)
{
    const bool mx = l->layout->mxfp8;
    *out = (oq_part_source){.format = mx ? &oq_format_mxfp8 : &oq_format_nvfp4,
                            .act = mx ? &oq_dtype_f8_e4m3 : NULL,
                            .act_scale = mx ? OQ_ACT_DYNAMIC_MX : OQ_ACT_NONE};
    out->plane[OQ_PLANE_DATA] = codes_source(l);
    out->plane[OQ_PLANE_SCALE] = scale_source(l);
    if (!mx) out->plane[OQ_PLANE_GLOBAL].tensor = l->global;
    out->plane[OQ_PLANE_INPUT_SCALE].tensor = l->input;
}

oq_status oq_block_locate(oq_env *env, const oq_block_layout *layout, const char *spare, const oq_ckpt *ckpt,
                          const char *name, int64_t n, int64_t k, oq_part_source *out)
{
    layer l = {env,  layout, ckpt, name, n, k, oq_ceil_div(k, layout->mxfp8 ? 32 : 16),
               NULL, NULL,   NULL, NULL};
    l.codes = oq_scaled_find(ckpt, name, "weight");
    l.scale = oq_scaled_find(ckpt, name, "weight_scale");
    l.global = oq_scaled_find(ckpt, name, "weight_scale_2");
    l.input = oq_scaled_find(ckpt, name, "input_scale");
    OQ_TRY(need(&l, l.codes, "weight"));
    OQ_TRY(need(&l, l.scale, "weight_scale"));
    if (!layout->mxfp8) OQ_TRY(need(&l, l.global, "weight_scale_2"));
    OQ_TRY(refuse_unknown(&l, spare));
    OQ_TRY(check_codes(&l));
    OQ_TRY(check_scale(&l));
    if (l.global) OQ_TRY(check_number(&l, l.global));
    if (l.input) OQ_TRY(check_number(&l, l.input));
    fill(&l, out);
    return OQ_OK;
}

bool oq_block_layer_of(const oq_ckpt_tensor *t, size_t *name_length, int64_t *n, int64_t *k)
{
    const size_t length = strlen(t->name), m = strlen(".weight");
    if (t->dtype != &oq_dtype_u8 || t->n_dims != 2 || length <= m ||
        strcmp(t->name + length - m, ".weight") != 0)
        return false;
    *name_length = length - m;
    *n = t->dim[0];
    *k = 2 * t->dim[1];
    return true;
}

oq_block_evidence oq_block_look(const oq_ckpt *ckpt)
{
    oq_block_evidence out = {false, true, true};
    char name[1024];
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++) {
        layer l = {0};
        size_t length = 0;
        if (!oq_block_layer_of(&ckpt->tensors[i], &length, &l.n, &l.k) || length >= sizeof name) continue;
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
