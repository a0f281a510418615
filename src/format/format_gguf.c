/* format_gguf.c -- GGUF's small blocks: 32 (64, 128) weights under one half-precision scale, with or without a minimum.
 * Decoding is the producer's, bit for bit: products and sums in f32 in the order written here. */
#include "format/format_block.h"

#include <math.h>

#include "format/float4.h"

enum { HALF = 16, ELEMS = 32 };

/* The number of largest magnitude (the first of them), and the range. */
typedef struct extent {
    float peak, amax, min, max;
} extent;

static extent extent_of(const float *x, int n)
{
    extent e = {.min = x[0], .max = x[0]};
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > e.amax) e.amax = fabsf(x[i]), e.peak = x[i];
        if (x[i] < e.min) e.min = x[i];
        if (x[i] > e.max) e.max = x[i];
    }
    return e;
}

static float inverse(float d)
{
    return d < 0.0f || d > 0.0f ? 1.0f / d : 0.0f;
}

/* Nibbles: element i in the low half of byte i, element i + 16 in its high half. */
static void put_nibbles(uint8_t *dst, const uint8_t *code)
{
    for (int i = 0; i < HALF; i++) dst[i] = (uint8_t)((code[i] & 15) | (code[i + HALF] & 15) << 4);
}

static void get_nibbles(uint8_t *code, const uint8_t *src)
{
    for (int i = 0; i < HALF; i++) code[i] = src[i] & 15, code[i + HALF] = src[i] >> 4;
}

/* The fifth bits: bit i of a little-endian word is element i's. */
static void put_fifth(uint8_t *dst, const uint8_t *code)
{
    memset(dst, 0, 4);
    for (int i = 0; i < ELEMS; i++) dst[i / 8] = (uint8_t)(dst[i / 8] | (code[i] >> 4 & 1) << i % 8);
}

static void add_fifth(uint8_t *code, const uint8_t *src)
{
    for (int i = 0; i < ELEMS; i++) code[i] = (uint8_t)(code[i] | (src[i / 8] >> i % 8 & 1) << 4);
}

static void poison_f16(uint8_t *dst)
{
    oq_block_put_f16(dst, NAN);
}

/* ---- symmetric: d * (code - middle); the number of largest magnitude becomes -middle ------------------- */

static void symmetric_codes(uint8_t *code, float *d, const float *x, int middle)
{
    *d = extent_of(x, ELEMS).peak / (float)-middle;
    const float by = inverse(*d);
    for (int i = 0; i < ELEMS; i++) {
        const float level = x[i] * by + ((float)middle + 0.5f);
        code[i] = (uint8_t)oq_block_clamp((int)level, 0, 2 * middle - 1);
    }
}

static void q4_0_encode(uint8_t *dst, const float *x)
{
    uint8_t code[ELEMS];
    float d;
    symmetric_codes(code, &d, x, 8);
    oq_block_put_f16(dst, d);
    put_nibbles(dst + 2, code);
}

static void q4_0_decode(float *dst, const uint8_t *src)
{
    uint8_t code[ELEMS];
    const float d = oq_block_f16(src);
    get_nibbles(code, src + 2);
    for (int i = 0; i < ELEMS; i++) dst[i] = d * (float)(code[i] - 8);
}

static void q5_0_encode(uint8_t *dst, const float *x)
{
    uint8_t code[ELEMS];
    float d;
    symmetric_codes(code, &d, x, 16);
    oq_block_put_f16(dst, d);
    put_fifth(dst + 2, code);
    put_nibbles(dst + 6, code);
}

static void q5_0_decode(float *dst, const uint8_t *src)
{
    uint8_t code[ELEMS];
    const float d = oq_block_f16(src);
    get_nibbles(code, src + 6);
    add_fifth(code, src + 2);
    for (int i = 0; i < ELEMS; i++) dst[i] = d * (float)(code[i] - 16);
}

/* ---- with a minimum: d * code + min --------------------------------------------------------------------- */

static void ranged_codes(uint8_t *code, uint8_t *dst, const float *x, int top)
{
    const extent e = extent_of(x, ELEMS);
    const float d = (e.max - e.min) / (float)top, by = inverse(d);
    for (int i = 0; i < ELEMS; i++) {
        const float level = (x[i] - e.min) * by + 0.5f;
        code[i] = (uint8_t)oq_block_clamp((int)level, 0, top);
    }
    oq_block_put_f16(dst, d);
    oq_block_put_f16(dst + 2, e.min);
}

static void ranged_values(float *dst, const uint8_t *src, const uint8_t *code)
{
    const float d = oq_block_f16(src), min = oq_block_f16(src + 2);
    for (int i = 0; i < ELEMS; i++) {
        const float product = d * (float)code[i];
        dst[i] = product + min;
    }
}

static void q4_1_encode(uint8_t *dst, const float *x)
{
    uint8_t code[ELEMS];
    ranged_codes(code, dst, x, 15);
    put_nibbles(dst + 4, code);
}

static void q4_1_decode(float *dst, const uint8_t *src)
{
    uint8_t code[ELEMS];
    get_nibbles(code, src + 4);
    ranged_values(dst, src, code);
}

static void q5_1_encode(uint8_t *dst, const float *x)
{
    uint8_t code[ELEMS];
    ranged_codes(code, dst, x, 31);
    put_fifth(dst + 4, code);
    put_nibbles(dst + 8, code);
}

static void q5_1_decode(float *dst, const uint8_t *src)
{
    uint8_t code[ELEMS];
    get_nibbles(code, src + 8);
    add_fifth(code, src + 4);
    ranged_values(dst, src, code);
}

/* ---- eight bits ------------------------------------------------------------------------------------------ */

static void q8_0_encode(uint8_t *dst, const float *x)
{
    const float d = extent_of(x, ELEMS).amax / 127.0f, by = inverse(d);
    oq_block_put_f16(dst, d);
    for (int i = 0; i < ELEMS; i++) dst[2 + i] = (uint8_t)(int8_t)roundf(x[i] * by);
}

static void q8_0_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < ELEMS; i++) dst[i] = (float)(int8_t)src[2 + i] * d;
}

/* ---- sixteen uneven levels ------------------------------------------------------------------------------- */

const int8_t oq_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

int oq_iq4_nearest(float x)
{
    int high = 1;
    if (x <= (float)oq_iq4_levels[0]) return 0;
    if (x >= (float)oq_iq4_levels[15]) return 15;
    while (x >= (float)oq_iq4_levels[high]) high++;
    return x - (float)oq_iq4_levels[high - 1] < (float)oq_iq4_levels[high] - x ? high - 1 : high;
}

static void iq4_nl_decode(float *dst, const uint8_t *src)
{
    uint8_t code[ELEMS];
    const float d = oq_block_f16(src);
    get_nibbles(code, src + 2);
    for (int i = 0; i < ELEMS; i++) dst[i] = d * (float)oq_iq4_levels[code[i]];
}

/* ---- e2m1 under powers of two, or under e4m3 scales ------------------------------------------------------- */

/* 2^(byte - 128): half of the scale, as codes count in halves here; byte 255 is an ordinary power. */
static float half_power(uint8_t byte)
{
    return oq_f32_from_bits(byte < 2 ? 0x00200000u << byte : (uint32_t)(byte - 1) << 23);
}

/* Codes 0 1 2 3 4 6 8 12 and their negatives, in halves. */
static float e2m1_halves(uint8_t code)
{
    return oq_e2m1_table[code] * 2.0f;
}

/* The first of the nearest; -0 is never it. */
static uint8_t e2m1_first_nearest(float x, float d)
{
    uint8_t best = 0;
    float least = fabsf(e2m1_halves(0) * d - x);
    for (uint8_t code = 1; code < 16; code++) {
        const float error = fabsf(e2m1_halves(code) * d - x);
        if (error < least) least = error, best = code;
    }
    return best;
}

static void mxfp4_encode(uint8_t *dst, const float *x)
{
    const float amax = extent_of(x, ELEMS).amax;
    uint8_t code[ELEMS];
    dst[0] = amax > 0.0f ? (uint8_t)(int)(floorf(log2f(amax)) - 2.0f + 127.0f) : 0;
    const float d = half_power(dst[0]);
    for (int i = 0; i < ELEMS; i++) code[i] = e2m1_first_nearest(x[i], d);
    put_nibbles(dst + 1, code);
}

static void mxfp4_decode(float *dst, const uint8_t *src)
{
    uint8_t code[ELEMS];
    const float d = half_power(src[0]);
    get_nibbles(code, src + 1);
    for (int i = 0; i < ELEMS; i++) dst[i] = d * e2m1_halves(code[i]);
}

/* The format has no NaN; the largest scale times 12 is infinite. */
static void mxfp4_poison(uint8_t *dst)
{
    memset(dst, 0x77, 17);
    dst[0] = 255;
}

/* Half of an e4m3 number without its sign; 0x7f is 0 here. */
static float half_e4m3(uint8_t byte)
{
    const uint8_t magnitude = byte & 0x7f;
    return byte == 0x7f ? 0.0f : magnitude == 0x7f ? 240.0f : oq_e4m3_to_f32(magnitude) * 0.5f;
}

/* Nearest, halves up; at most 0x7e. */
static uint8_t e4m3_halves_up(float x)
{
    const uint32_t bits = oq_f32_bits(x > 448.0f ? 448.0f : x);
    const int exponent = (int)(bits >> 23) - 127 + 7;
    if (exponent <= 0) return (uint8_t)oq_block_clamp((int)(x * 512.0f + 0.5f), 0, 7);
    const int code = (int)((uint32_t)exponent << 3 | (bits >> 20 & 7)) + (int)(bits >> 19 & 1);
    return (uint8_t)oq_block_clamp(code, 0, 0x7e);
}

enum { SUB = 16, N_SUB = 4 };

static void nvfp4_encode(uint8_t *dst, const float *x)
{
    for (int s = 0; s < N_SUB; s++, x += SUB) {
        uint8_t *const to = dst + N_SUB + s * SUB / 2;
        dst[s] = e4m3_halves_up(extent_of(x, SUB).amax / 6.0f);
        const float d = half_e4m3(dst[s]);
        for (int i = 0; i < SUB / 2; i++)
            to[i] = (uint8_t)(e2m1_first_nearest(x[i], d) | e2m1_first_nearest(x[i + SUB / 2], d) << 4);
    }
}

static void nvfp4_decode(float *dst, const uint8_t *src)
{
    for (int s = 0; s < N_SUB; s++, dst += SUB) {
        const uint8_t *const from = src + N_SUB + s * SUB / 2;
        const float d = half_e4m3(src[s]);
        for (int i = 0; i < SUB / 2; i++) {
            dst[i] = d * e2m1_halves(from[i] & 15);
            dst[i + SUB / 2] = d * e2m1_halves(from[i] >> 4);
        }
    }
}

/* ---- one and two bits: read alone ------------------------------------------------------------------------- */

static void q1_0_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < 128; i++) dst[i] = src[2 + i / 8] >> i % 8 & 1 ? d : -d;
}

static void q2_0_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < 64; i++) dst[i] = (float)((src[2 + i / 4] >> 2 * (i % 4) & 3) - 1) * d;
}

/* ---- the best of several scales for uneven levels --------------------------------------------------------- */

/* Sums of a least-squares fit of scale * level to x, each x weighted by its square. */
typedef struct fit {
    float xl, ll;
} fit;

static fit fit_levels(const float *x, float by)
{
    fit f = {0};
    for (int i = 0; i < ELEMS; i++) {
        const float level = (float)oq_iq4_levels[oq_iq4_nearest(by * x[i])], w = x[i] * x[i];
        f.xl += w * level * x[i];
        f.ll += w * level * level;
    }
    return f;
}

float oq_iq4_scale(const float *x) /* of 32 */
{
    enum { TRIES = 7 };
    const extent e = extent_of(x, ELEMS);
    if (e.amax < 1e-15f) return 0.0f;
    fit f = fit_levels(x, 1.0f / (-e.peak / (float)oq_iq4_levels[0]));
    float d = f.xl / f.ll, best = d * f.xl;
    for (int t = -TRIES; t <= TRIES; t++) {
        f = fit_levels(x, (float)(t + oq_iq4_levels[0]) / e.peak);
        if (f.ll > 0.0f && f.xl * f.xl > best * f.ll) d = f.xl / f.ll, best = d * f.xl;
    }
    return d;
}

static void iq4_nl_encode(uint8_t *dst, const float *x)
{
    uint8_t code[ELEMS];
    const float d = oq_iq4_scale(x), by = inverse(d);
    for (int i = 0; i < ELEMS; i++) code[i] = d < 0.0f || d > 0.0f ? (uint8_t)oq_iq4_nearest(by * x[i]) : 0;
    oq_block_put_f16(dst, d);
    put_nibbles(dst + 2, code);
}

static const oq_block q4_0 = {32, 18, q4_0_decode, q4_0_encode, poison_f16},
                      q4_1 = {32, 20, q4_1_decode, q4_1_encode, poison_f16},
                      q5_0 = {32, 22, q5_0_decode, q5_0_encode, poison_f16},
                      q5_1 = {32, 24, q5_1_decode, q5_1_encode, poison_f16},
                      q8_0 = {32, 34, q8_0_decode, q8_0_encode, poison_f16},
                      iq4_nl = {32, 18, iq4_nl_decode, iq4_nl_encode, poison_f16},
                      mxfp4 = {32, 17, mxfp4_decode, mxfp4_encode, mxfp4_poison},
                      nvfp4 = {64, 36, nvfp4_decode, nvfp4_encode, NULL},
                      q1_0 = {128, 18, q1_0_decode, NULL, NULL}, q2_0 = {64, 18, q2_0_decode, NULL, NULL};

const oq_format oq_format_q4_0 = OQ_BLOCK_FORMAT("q4_0", "q4_0", q4_0, 32, oq_block_encode);
const oq_format oq_format_q4_1 = OQ_BLOCK_FORMAT("q4_1", "q4_1", q4_1, 32, oq_block_encode);
const oq_format oq_format_q5_0 = OQ_BLOCK_FORMAT("q5_0", "q5_0", q5_0, 32, oq_block_encode);
const oq_format oq_format_q5_1 = OQ_BLOCK_FORMAT("q5_1", "q5_1", q5_1, 32, oq_block_encode);
const oq_format oq_format_q8_0 = OQ_BLOCK_FORMAT("q8_0", "q8_0", q8_0, 32, oq_block_encode);
const oq_format oq_format_iq4_nl = OQ_BLOCK_FORMAT("iq4_nl", "iq4_nl", iq4_nl, 32, oq_block_encode);
const oq_format oq_format_mxfp4_gguf =
    OQ_BLOCK_FORMAT("mxfp4_gguf", "mxfp4_gguf", mxfp4, 32, oq_block_encode);
/* Nothing in it can say NaN: who encodes to it looks at the weights first. */
const oq_format oq_format_nvfp4_gguf =
    OQ_BLOCK_FORMAT("nvfp4_gguf", "nvfp4_gguf", nvfp4, 64, oq_block_encode);
const oq_format oq_format_q1_0 = OQ_BLOCK_FORMAT("q1_0", "q1_0", q1_0, 128, NULL);
const oq_format oq_format_q2_0 = OQ_BLOCK_FORMAT("q2_0", "q2_0", q2_0, 64, NULL);
