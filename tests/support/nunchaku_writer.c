/* nunchaku_writer.c -- layers of FLUX.1 quantized, placed lane by lane, and named. */
#include "support/nunchaku_writer.h"

#include "format/float4.h"
#include "format/float8.h"
#include "support/st_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 16, MAX_TENSORS = 1024, MAX_PARTS = 3 };
#define GELU_SHIFT 0.171875f

typedef struct out {
    const oq_ckpt *plain;
    nunchaku_precision precision;
    st_tensor tensors[MAX_TENSORS];
    size_t n;
    bool *taken; /* of the plain tensors */
    nunchaku_file file;
} out;

static void *grab(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

static uint16_t bf16(float x)
{
    uint16_t code;
    oq_dtype_bf16.from_f32(&code, &x, 1);
    return code;
}

static void put(out *o, const char *layer, const char *suffix, const oq_dtype *dtype, int64_t rows,
                int64_t cols, const void *data)
{
    char *name = grab(160);
    if (o->n == MAX_TENSORS) abort();
    snprintf(name, 160, "%s%s%s", layer, *suffix ? "." : "", suffix);
    o->tensors[o->n++] = (st_tensor){name, dtype, cols ? 2 : 1, {rows, cols}, data};
}

static const oq_ckpt_tensor *take(out *o, const char *name, const char *suffix)
{
    char full[192];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    const oq_ckpt_tensor *t = oq_ckpt_find(o->plain, full);
    if (!t) fprintf(stderr, "the folder has no '%s'\n", full), abort();
    o->taken[t - o->plain->tensors] = true;
    return t;
}

/* ---- places: one lane after the other ---------------------------------------------------------------------- */

/* [n, k] nibbles: of 128 x 64 codes, eight packs of 16 rows; a lane takes eight columns of row r and of row r + 8, in the
 * first 32 columns and in the second. */
static uint32_t *place_codes(const uint8_t *code, int64_t n, int64_t k)
{
    uint32_t *words = grab((size_t)(n * k / 8) * 4), *to = words;
    for (int64_t row = 0; row < n; row += 128)
        for (int64_t col = 0; col < k; col += 64)
            for (int64_t lane = 0; lane < 8 * 32; lane++)
                for (int64_t half = 0; half < 2; half++)
                    for (int64_t run = 0; run < 2; run++, to++)
                        for (int64_t i = 0; i < 8; i++)
                            *to |= (uint32_t)(code[(row + lane / 32 * 16 + half * 8 + lane % 32 / 4) * k +
                                                   col + run * 32 + lane % 4 * 8 + i] &
                                              15)
                                   << 4 * i;
    return words;
}

/* [n, groups] -> [groups, n] within 128 rows: a lane has rows 2 q, 2 q + 1 and those eight further of its 16. */
static uint16_t *place_scales(const float *scale, int64_t n, int64_t groups)
{
    uint16_t *placed = grab((size_t)(n * groups) * 2), *to = placed;
    for (int64_t row = 0; row < n; row += 128)
        for (int64_t g = 0; g < groups; g++)
            for (int64_t lane = 0; lane < 32; lane++)
                for (int64_t i = 0; i < 4; i++)
                    *to++ =
                        bf16(scale[(row + lane / 4 * 16 + lane % 4 * 2 + i / 2 * 8 + i % 2) * groups + g]);
    return placed;
}

/* The same of bytes: a lane has one row of each 32 and four groups of each. */
static uint8_t *place_scales8(const uint8_t *scale, int64_t n, int64_t groups)
{
    uint8_t *placed = grab((size_t)(n * groups)), *to = placed;
    for (int64_t row = 0; row < n; row += 128)
        for (int64_t g = 0; g < groups; g += 4)
            for (int64_t lane = 0; lane < 32; lane++)
                for (int64_t quarter = 0; quarter < 4; quarter++, to += 4)
                    memcpy(to, scale + (row + quarter * 32 + lane % 4 * 8 + lane / 4) * groups + g, 4);
    return placed;
}

/* Tiles of 16 x 16; of down [rank, k] they go along k first, of up [n, rank] along n. */
static uint16_t *place_branch(const float *m, int64_t rows, int64_t cols, bool down)
{
    uint16_t *placed = grab((size_t)(rows * cols) * 2), *to = placed;
    const int64_t outer = down ? cols / 16 : rows / 16, inner = down ? rows / 16 : cols / 16;
    for (int64_t tile = 0; tile < outer * inner; tile++) {
        const int64_t a = tile / inner, b = tile % inner, row = (down ? b : a) * 16,
                      col = (down ? a : b) * 16;
        for (int64_t lane = 0; lane < 32; lane++)
            for (int64_t i = 0; i < 8; i++)
                *to++ =
                    bf16(m[(row + i / 4 * 8 + lane / 4) * cols + col + i / 2 % 2 * 8 + lane % 4 * 2 + i % 2]);
    }
    return placed;
}

/* Four rows side by side, 64 columns of each; a word of 16 bits has columns c, c + 8, c + 16, c + 24. */
static uint16_t *place_awq(const uint8_t *code, int64_t n, int64_t k)
{
    uint16_t *words = grab((size_t)(n * k / 4) * 2), *to = words;
    for (int64_t quad = 0; quad < n; quad += 4)
        for (int64_t col = 0; col < k; col += 64)
            for (int64_t row = quad; row < quad + 4; row++)
                for (int64_t c = col; c < col + 64; c += 32)
                    for (int64_t i = 0; i < 8; i++, to++)
                        for (int64_t j = 0; j < 4; j++)
                            *to = (uint16_t)(*to | code[row * k + c + 8 * j + i] << 4 * j);
    return words;
}

/* ---- numbers ------------------------------------------------------------------------------------------------- */

/* Codes of `rest` [n, k], their scales, and the values that both are. */
static void put_int4(out *o, const char *name, const float *rest, float *values, int64_t n, int64_t k)
{
    const int64_t groups = k / 64;
    uint8_t *code = grab((size_t)(n * k));
    float *scale = grab((size_t)(n * groups) * sizeof *scale);
    for (int64_t i = 0; i < n * groups; i++) {
        float most = 0;
        for (int64_t c = 0; c < 64; c++) most = fmaxf(most, fabsf(rest[i * 64 + c]));
        scale[i] = oq_bf16_round(fmaxf(most / 7, 1e-8f));
        for (int64_t c = 0; c < 64; c++) {
            const float q = fminf(fmaxf(rintf(rest[i * 64 + c] / scale[i]), -8), 7);
            code[i * 64 + c] = (uint8_t)((int)q & 15);
            values[i * 64 + c] = q * scale[i];
        }
    }
    put(o, name, "qweight", &oq_dtype_i8, n, k / 2, place_codes(code, n, k));
    put(o, name, "wscales", &oq_dtype_bf16, groups, n, place_scales(scale, n, groups));
    free(code), free(scale);
}

static float whole_scale(const float *rest, int64_t count)
{
    float most = 0;
    for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(rest[i]));
    return most / (6 * 448);
}

static void put_nvfp4(out *o, const char *name, const float *rest, float *values, int64_t n, int64_t k)
{
    const int64_t groups = k / 16;
    uint8_t *code = grab((size_t)(n * k)), *scale = grab((size_t)(n * groups));
    float *whole = grab(sizeof *whole);
    *whole = whole_scale(rest, n * k);
    for (int64_t i = 0; i < n * groups; i++) {
        float most = 0, both;
        for (int64_t c = 0; c < 16; c++) most = fmaxf(most, fabsf(rest[i * 16 + c]));
        most = fmaxf(most / 6 / *whole, 0x1p-9f);
        oq_dtype_f8_e4m3.from_f32(&scale[i], &most, 1);
        oq_dtype_f8_e4m3.to_f32(&both, &scale[i], 1);
        both *= *whole;
        for (int64_t c = 0; c < 16; c++) {
            code[i * 16 + c] = oq_e2m1_from_f32(rest[i * 16 + c] / both);
            values[i * 16 + c] = oq_e2m1_table[code[i * 16 + c]] * both;
        }
    }
    put(o, name, "qweight", &oq_dtype_i8, n, k / 2, place_codes(code, n, k));
    put(o, name, "wscales", &oq_dtype_f8_e4m3, groups, n, place_scales8(scale, n, groups));
    put(o, name, "wtscale", &oq_dtype_f32, 1, 0, whole);
    free(code), free(scale);
}

/* ---- a product ------------------------------------------------------------------------------------------------ */

/* Rows of several plain layers, columns from `first` on; [n, k] of the caller's. */
static float *rows_of(out *o, const char *const *parts, int n_parts, int64_t first, int64_t k, int64_t *n)
{
    int64_t rows = 0;
    for (int p = 0; p < n_parts; p++) rows += take(o, parts[p], ".weight")->dim[0];
    float *w = grab((size_t)(rows * k) * sizeof *w), *to = w;
    for (int p = 0; p < n_parts; p++) {
        const oq_ckpt_tensor *t = take(o, parts[p], ".weight");
        for (int64_t r = 0; r < t->dim[0]; r++, to += k)
            t->dtype->to_f32(to, t->data + (size_t)(r * t->dim[1] + first) * t->dtype->bytes, (size_t)k);
    }
    *n = rows;
    return w;
}

static float *bias_of(out *o, const char *const *parts, int n_parts, int64_t n)
{
    float *bias = grab((size_t)n * sizeof *bias), *to = bias;
    for (int p = 0; p < n_parts; p++) {
        const oq_ckpt_tensor *t = take(o, parts[p], ".bias");
        t->dtype->to_f32(to, t->data, (size_t)t->elems);
        to += t->elems;
    }
    return bias;
}

/* The branch takes RANK columns of the smoothed weight as they are, rounded to BF16: up [n, RANK] and one 1 per row of down. */
static void make_branch(const float *w, const float *smooth, int64_t n, int64_t k, float *up, float *down,
                        float *rest)
{
    memcpy(rest, w, (size_t)(n * k) * sizeof *rest);
    for (int64_t i = 0; i < RANK; i++) {
        const int64_t c = (i * 37 + 5) % k;
        down[i * k + c] = oq_bf16_round(1.0f / smooth[c]);
        for (int64_t r = 0; r < n; r++) {
            up[r * RANK + i] = oq_bf16_round(w[r * k + c]);
            rest[r * k + c] -= up[r * RANK + i];
        }
    }
}

static void fold(const nunchaku_layer *l, const float *smooth, const float *up, const float *down)
{
    for (int64_t r = 0; r < l->n; r++)
        for (int64_t c = 0; c < l->k; c++) {
            float x = l->values[r * l->k + c] * (1.0f / smooth[c]);
            for (int64_t i = 0; i < RANK; i++) x += up[r * RANK + i] * down[i * l->k + c];
            l->folded[r * l->k + c] = x;
        }
}

/* What is behind GELU takes x + shift without sign; the branch takes x. */
static void unshift(nunchaku_layer *l, const float *smooth)
{
    for (int64_t r = 0; r < l->n; r++) {
        double sum = 0;
        for (int64_t c = 0; c < l->k; c++) sum += (double)l->values[r * l->k + c] / (double)smooth[c];
        l->bias[r] -= (float)(sum * (double)GELU_SHIFT);
    }
}

static nunchaku_layer *new_layer(out *o, const char *name, int64_t n, int64_t k)
{
    nunchaku_layer *l = &o->file.layers[o->file.n_layers++];
    *l = (nunchaku_layer){.n = n, .k = k};
    snprintf(l->name, sizeof l->name, "%s", name);
    l->values = grab((size_t)(n * k) * sizeof *l->values);
    l->folded = grab((size_t)(n * k) * sizeof *l->folded);
    return l;
}

/* bias_parts 0: the file's is zero, as another piece has it. */
static void put_product(out *o, const char *name, const char *const *parts, int n_parts, int n_biases,
                        int64_t first, int64_t k, bool behind_gelu)
{
    int64_t n = 0;
    float *w = rows_of(o, parts, n_parts, first, k, &n), *smooth = grab((size_t)k * sizeof *smooth);
    float *rest = grab((size_t)(n * k) * sizeof *rest), *up = grab((size_t)(n * RANK) * sizeof *up);
    float *down = grab((size_t)(k * RANK) * sizeof *down);
    nunchaku_layer *l = new_layer(o, name, n, k);
    for (int64_t c = 0; c < k; c++) smooth[c] = oq_bf16_round(0.75f + (float)(c * 29 % 64) / 128);
    for (int64_t i = 0; i < n * k; i++) w[i] *= smooth[i % k];
    make_branch(w, smooth, n, k, up, down, rest);
    (o->precision == NUNCHAKU_INT4 ? put_int4 : put_nvfp4)(o, name, rest, l->values, n, k);
    fold(l, smooth, up, down);
    l->bias = bias_of(o, parts, n_biases, n);
    if (behind_gelu && o->precision == NUNCHAKU_INT4) unshift(l, smooth);
    for (int64_t r = 0; r < n; r++) l->bias[r] = oq_bf16_round(l->bias[r]);
    put(o, name, "bias", &oq_dtype_bf16, n, 0, place_scales(l->bias, n, 1));
    put(o, name, "smooth", &oq_dtype_bf16, k, 0, place_scales(smooth, k, 1));
    put(o, name, "smooth_orig", &oq_dtype_bf16, k, 0, place_scales(smooth, k, 1));
    put(o, name, "lora_down", &oq_dtype_bf16, k, RANK, place_branch(down, RANK, k, true));
    put(o, name, "lora_up", &oq_dtype_bf16, n, RANK, place_branch(up, n, RANK, false));
    free(w), free(smooth), free(rest), free(up), free(down);
}

/* Row s * (n / splits) + c stands at c * splits + s, with the 1 of "1 + scale" in the bias. */
static void put_modulation(out *o, const char *name, int64_t splits)
{
    int64_t n = 0;
    const int64_t k = take(o, name, ".weight")->dim[1];
    float *w = rows_of(o, &name, 1, 0, k, &n);
    const int64_t groups = k / 64, each = n / splits;
    nunchaku_layer *l = new_layer(o, name, n, k);
    uint8_t *code = grab((size_t)(n * k));
    uint16_t *scales = grab((size_t)(n * groups) * 2), *zeros = grab((size_t)(n * groups) * 2),
             *biases = grab((size_t)n * 2);
    l->bias = bias_of(o, &name, 1, n);
    for (int64_t r = 0; r < n; r++) {
        const int64_t at = r % each * splits + r / each;
        const float one = r / each == 1 || r / each == splits - 2 ? 1.0f : 0.0f;
        for (int64_t g = 0; g < groups; g++) {
            const float *x = w + r * k + g * 64;
            float low = x[0], high = x[0];
            for (int64_t c = 0; c < 64; c++) low = fminf(low, x[c]), high = fmaxf(high, x[c]);
            const float scale = oq_bf16_round(fmaxf((high - low) / 15, 1e-6f)), zero = oq_bf16_round(low);
            scales[g * n + at] = bf16(scale), zeros[g * n + at] = bf16(zero);
            for (int64_t c = 0; c < 64; c++) {
                const float q = fminf(fmaxf(rintf((x[c] - zero) / scale), 0), 15);
                const float product = q * scale;
                code[at * k + g * 64 + c] = (uint8_t)q;
                l->values[r * k + g * 64 + c] = product + zero;
            }
        }
        biases[at] = bf16(l->bias[r] + one);
        l->bias[r] = oq_bf16_round(l->bias[r] + one) - one;
    }
    memcpy(l->folded, l->values, (size_t)(n * k) * sizeof *l->folded);
    put(o, name, "qweight", &oq_dtype_i32, n / 4, k / 2, place_awq(code, n, k));
    put(o, name, "wscales", &oq_dtype_bf16, groups, n, scales);
    put(o, name, "wzeros", &oq_dtype_bf16, groups, n, zeros);
    put(o, name, "bias", &oq_dtype_bf16, n, 0, biases);
    free(w), free(code);
}

/* ---- the network ---------------------------------------------------------------------------------------------- */

typedef struct row { /* a layer of a block: its names in both spellings, the plain layers, columns */
    const char *cpp, *later, *parts[MAX_PARTS];
    int columns; /* 0: all; 1: as many as there are rows; 2: those behind them */
    bool behind_gelu;
} row;

static const row doubles[] = {
    {"qkv_proj", "attn.to_qkv", {"attn.to_q", "attn.to_k", "attn.to_v"}, 0, false},
    {"qkv_proj_context",
     "attn.add_qkv_proj",
     {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"},
     0,
     false},
    {"out_proj", "attn.to_out.0", {"attn.to_out.0"}, 0, false},
    {"out_proj_context", "attn.to_add_out", {"attn.to_add_out"}, 0, false},
    {"mlp_fc1", "ff.net.0.proj", {"ff.net.0.proj"}, 0, false},
    {"mlp_fc2", "ff.net.2", {"ff.net.2"}, 0, true},
    {"mlp_context_fc1", "ff_context.net.0.proj", {"ff_context.net.0.proj"}, 0, false},
    {"mlp_context_fc2", "ff_context.net.2", {"ff_context.net.2"}, 0, true},
};
static const row singles[] = {
    {"qkv_proj", "attn.to_qkv", {"attn.to_q", "attn.to_k", "attn.to_v"}, 0, false},
    {"out_proj", "attn.to_out", {"proj_out"}, 1, false},
    {"mlp_fc1", "mlp_fc1", {"proj_mlp"}, 0, false},
    {"mlp_fc2", "mlp_fc2", {"proj_out"}, 2, true},
};
static const char *const norms[][2] = {{"norm_q", "attn.norm_q"},
                                       {"norm_k", "attn.norm_k"},
                                       {"norm_added_q", "attn.norm_added_q"},
                                       {"norm_added_k", "attn.norm_added_k"}};

static void put_row(out *o, const char *block, const row *r, bool later)
{
    char full[MAX_PARTS][96], name[96];
    const char *parts[MAX_PARTS];
    int n = 0;
    for (; n < MAX_PARTS && r->parts[n]; n++) {
        snprintf(full[n], sizeof full[n], "%s.%s", block, r->parts[n]);
        parts[n] = full[n];
    }
    const int64_t *dim = take(o, parts[0], ".weight")->dim;
    const int64_t first = r->columns == 2 ? dim[0] : 0, k = r->columns == 1 ? dim[0] : dim[1] - first;
    snprintf(name, sizeof name, "%s.%s", block, later ? r->later : r->cpp);
    put_product(o, name, parts, n, r->columns == 1 ? 0 : n, first, k, r->behind_gelu);
}

static void put_plain(out *o, const char *name, const oq_ckpt_tensor *t)
{
    float *x = grab((size_t)t->elems * sizeof *x);
    uint16_t *code = grab((size_t)t->elems * 2);
    t->dtype->to_f32(x, t->data, (size_t)t->elems);
    oq_dtype_bf16.from_f32(code, x, (size_t)t->elems);
    o->taken[t - o->plain->tensors] = true;
    put(o, name, "", &oq_dtype_bf16, t->dim[0], t->n_dims == 2 ? t->dim[1] : 0, code);
    free(x);
}

static void put_block(out *o, const char *block, bool is_double, bool later)
{
    char name[160], other[160];
    const row *rows = is_double ? doubles : singles;
    const size_t n = is_double ? OQ_COUNT(doubles) : OQ_COUNT(singles);
    for (size_t i = 0; i < n; i++) put_row(o, block, &rows[i], later);
    snprintf(name, sizeof name, is_double ? "%s.norm1.linear" : "%s.norm.linear", block);
    put_modulation(o, name, is_double ? 6 : 3);
    snprintf(name, sizeof name, "%s.norm1_context.linear", block);
    if (is_double) put_modulation(o, name, 6);
    for (size_t i = 0; i < (is_double ? 4 : 2); i++) {
        snprintf(name, sizeof name, "%s.%s", block, norms[i][1]);
        snprintf(other, sizeof other, "%s.%s.weight", block, norms[i][later]);
        put_plain(o, other, take(o, name, ".weight"));
    }
}

nunchaku_file nunchaku_write(const oq_ckpt *plain, const char *path, nunchaku_precision precision, bool later)
{
    out o = {.plain = plain, .precision = precision, .taken = grab(plain->n_tensors)};
    char block[64];
    o.file.layers = grab(MAX_TENSORS * sizeof *o.file.layers);
    for (int is_double = 0; is_double < 2; is_double++)
        for (int i = 0;; i++) {
            snprintf(block, sizeof block,
                     is_double ? "transformer_blocks.%d" : "single_transformer_blocks.%d", i);
            if (!oq_ckpt_any_below(plain, block)) break;
            put_block(&o, block, is_double, later);
        }
    for (size_t i = 0; i < plain->n_tensors; i++)
        if (!o.taken[i]) put_plain(&o, plain->tensors[i].name, &plain->tensors[i]);
    st_write(path, o.tensors, o.n);
    for (size_t i = 0; i < o.n; i++)
        free((void *)(uintptr_t)o.tensors[i].name), free((void *)(uintptr_t)o.tensors[i].data);
    free(o.taken);
    return o.file;
}

void nunchaku_free(nunchaku_file *file)
{
    for (size_t i = 0; i < file->n_layers; i++)
        free(file->layers[i].values), free(file->layers[i].folded), free(file->layers[i].bias);
    free(file->layers);
    *file = (nunchaku_file){0};
}
