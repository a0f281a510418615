/* layout_comfy.c -- ComfyUI's layouts: FP8 with one scale, NVFP4 and MXFP8 with scales in the tiles that GPUs take them in; a
 * tensor `comfy_quant` of JSON text per layer tells which. */
#include "write/layout.h"

#include "base/size.h"

#include <stdio.h>
#include <string.h>

enum { TILE_ROWS = 128, TILE_COLS = 4, TEXT_MAX = 96 };

static const char *word(const oq_format *f)
{
    if (f == &oq_format_fp8_e4m3_tensor) return "float8_e4m3fn";
    if (f == &oq_format_nvfp4) return "nvfp4";
    return f == &oq_format_mxfp8 ? "mxfp8" : NULL;
}

/* Its reader quantizes activations unless it is told not to. */
static size_t text_of(const oq_write_layer *l, char out[TEXT_MAX])
{
    return (size_t)snprintf(out, TEXT_MAX, "{\"format\": \"%s\"%s}", word(l->scheme.weight),
                            l->scheme.act ? "" : ", \"full_precision_matrix_mult\": true");
}

static void put_text(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    char text[TEXT_MAX];
    (void)planes;
    memcpy(dst, text, text_of(l, text));
}

static int64_t tiled_rows(const oq_write_layer *l)
{
    return oq_ceil_div(l->n, TILE_ROWS) * TILE_ROWS;
}

static int64_t tiled_cols(const oq_write_layer *l)
{
    return oq_ceil_div(l->k / l->scheme.weight->block_k, TILE_COLS) * TILE_COLS;
}

/* Tiles of 128 rows x 4 scales; in a tile the rows r, r + 32, r + 64, r + 96 stand side by side. Edges are zeros. */
static void put_tiled(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const uint8_t *scale = planes->plane[OQ_PLANE_SCALE];
    const int64_t groups = l->k / l->scheme.weight->block_k, across = tiled_cols(l) / TILE_COLS;
    memset(dst, 0, (size_t)(tiled_rows(l) * tiled_cols(l)));
    for (int64_t r = 0; r < l->n; r++)
        for (int64_t g = 0; g < groups; g++) {
            const int64_t tile = r / TILE_ROWS * across + g / TILE_COLS, in = r % TILE_ROWS;
            ((uint8_t *)dst)[tile * TILE_ROWS * TILE_COLS + in % 32 * 16 + in / 32 * 4 + g % TILE_COLS] =
                scale[r * groups + g];
        }
}

static int spell(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const oq_format *f = l->scheme.weight;
    char text[TEXT_MAX];
    int n = 0;
    if (!word(f)) return 0;
    const bool fp8 = f == &oq_format_fp8_e4m3_tensor, nvfp4 = f == &oq_format_nvfp4;
    if (!fp8 && (l->n % 16 || l->k % (nvfp4 ? 16 : 32))) return 0; /* their pads are another shape */
    if (nvfp4)
        out[n++] = oq_spell_made(".weight", "U8", f->plane_bytes(f, OQ_PLANE_DATA, l->n, l->k), l->n,
                                 l->k / 2, oq_put_nibbles_swapped);
    else
        out[n++] = oq_spell_plane(l, ".weight", "F8_E4M3", OQ_PLANE_DATA, l->n, l->k);
    if (fp8)
        out[n++] = oq_spell_plane(l, ".weight_scale", "F32", OQ_PLANE_SCALE, -1, -1);
    else
        out[n++] =
            oq_spell_made(".weight_scale", nvfp4 ? "F8_E4M3" : "U8", (size_t)(tiled_rows(l) * tiled_cols(l)),
                          tiled_rows(l), tiled_cols(l), put_tiled);
    if (nvfp4) out[n++] = oq_spell_plane(l, ".weight_scale_2", "F32", OQ_PLANE_GLOBAL, -1, -1);
    const size_t bytes = text_of(l, text);
    out[n++] = oq_spell_made(".comfy_quant", "U8", bytes, (int64_t)bytes, -1, put_text);
    if (l->input_scale > 0) out[n++] = oq_spell_input_scale(".input_scale");
    return n;
}

const oq_layout oq_layout_comfy = {
    .name = "comfy",
    .help = "FP8 with one scale per tensor, NVFP4, MXFP8",
    .producer = "ComfyUI",
    .in_file = true,
    .spell = spell,
};
