/* comfy_formats.h -- layers of ComfyUI's files whose codes are fewer than eight bits of whole numbers, one function for each format that
 * a layer's word may name. Private to this room. */
#ifndef OQ_QUANT_COMFY_FORMATS_H
#define OQ_QUANT_COMFY_FORMATS_H

#include "quant/dialect.h"

typedef struct oq_comfy_layer {
    oq_env *env;
    const oq_ckpt *ckpt;
    const oq_json *word; /* what the file says about the layer: {"format": ...} */
    const char *name;
    int64_t n, k;
    bool plain_x; /* activations stay as they are */
} oq_comfy_layer;

/* An option of a layer, which may also stand under its `params`. */
bool    oq_comfy_flag(const oq_json *word, const char *key);
int64_t oq_comfy_number(const oq_json *word, const char *key, int64_t none);
const char *oq_comfy_text(const oq_json *word, const char *key, const char *none);
/* convrot_groupsize (256 unless told), which must be a power of four that divides k. */
oq_status oq_comfy_rotation(const oq_comfy_layer *l, int32_t *out);

/* convrot_w4a4: `weight` I8 [n, k/2], two's complement, the first of two columns in the low nibble; `weight_scale` [n]. Activations are
 * rotated, then of four bits per token (linear_dtype "int8": of eight). */
oq_status oq_comfy_w4a4_locate(const oq_comfy_layer *l, oq_part_source *out);
/* asym_w4a8_int8: `weight` I8 [n, k/2], codes of four bits, or [n, 3k/4], of six; `weight_s_rel` e4m3 (as such or as U8) [n, k/group_size];
 * `weight_s_channel` F32 [n]; with four bits `weight_codebook` F32 [16], without it the numbers are -8 .. 7. Activations are rotated, then of
 * eight bits per token. */
oq_status oq_comfy_w4a8_locate(const oq_comfy_layer *l, oq_part_source *out);
/* Columns of such a layer whose codes are t; 0: the file does not tell. */
int64_t oq_comfy_w4a8_columns(const oq_ckpt *ckpt, const oq_json *word, const char *name, const oq_ckpt_tensor *t);
/* svdquant_w4a4: `weight` I8 [n, k/2] as in convrot_w4a4; `weight_scale` [k/64, n]; x is divided by `smooth_factor` [k]; a branch of
 * `proj_down` [k, rank] and `proj_up` [n, rank]. In tiles: [n/128, k/64, 32, 128], [n/128, k/64, 128] and [n/128, rank, 128]. The three of
 * floats may be called `weight_...`. Activations are of four bits per 64 columns. */
oq_status oq_comfy_svdquant_locate(const oq_comfy_layer *l, oq_part_source *out);

/* ---- for these files alone: "name.suffix", which must be there; tensors directly beside that the csv does not list are an error */
oq_status oq_comfy_need(const oq_comfy_layer *l, const char *suffix, const oq_ckpt_tensor **out);
oq_status oq_comfy_refuse_strangers(const oq_comfy_layer *l, const char *known);

#endif
