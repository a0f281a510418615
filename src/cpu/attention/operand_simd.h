/* operand_simd.h -- the body of operand_avx2.c and operand_avx512.c, in loops that the
 * compiler turns into vectors. Same steps as format/attention_operand.c in the same order, so the same bits. A block of
 * many rows goes through twice (largest value, then codes); rotating a row again is cheaper than keeping it. */
#include "cpu/attention/operand.h"

#include "base/size.h"
#include "cpu/elementwise/elem.h"

#include <math.h>

#define MAX_DIM OQ_ATTENTION_MAX_DIM
#define INLINE  static inline __attribute__((always_inline))

typedef struct walk {
    const oq_operand_job *job;
    int64_t head, d;
    bool bf16, rotate;
    float factor[MAX_DIM]; /* sign / sqrt(d) of each column */
} walk;

static void walk_begin(walk *w, const oq_operand_job *job, int64_t head)
{
    *w = (walk){.job = job, .head = head, .d = job->head_dim};
    w->bf16 = oq_elem_is_bf16(&job->x);
    w->rotate = job->side != OQ_SIDE_V;
    const float unit = 1.0f / sqrtf((float)w->d);
    for (int64_t i = 0; i < w->d; i++) w->factor[i] = oq_attention_sign(i) * unit;
}

static bool hidden(const walk *w, int64_t row)
{
    return w->job->seen && !w->job->seen[row];
}

/* ---- one row ------------------------------------------------------------------------------------------- */

typedef float lanes __attribute__((vector_size(64), aligned(4)));

/* Sums and differences over a distance of 1, 2, 4 or 8 within 16 values: x . (+1 or -1) + its partner. The product is
 * exact, so these are the sums of the definition. */
#define SIGNS(h, i)     ((i) & (h) ? -1.0f : 1.0f)
#define SIGNS4(h, i)    SIGNS(h, i), SIGNS(h, (i) + 1), SIGNS(h, (i) + 2), SIGNS(h, (i) + 3)
#define PARTNERS4(h, i) (i) ^ (h), ((i) + 1) ^ (h), ((i) + 2) ^ (h), ((i) + 3) ^ (h)
#define WITHIN(x, h)                                                                                         \
    ((x) * (lanes){SIGNS4(h, 0), SIGNS4(h, 4), SIGNS4(h, 8), SIGNS4(h, 12)} +                               \
     __builtin_shufflevector(x, x, PARTNERS4(h, 0), PARTNERS4(h, 4), PARTNERS4(h, 8), PARTNERS4(h, 12)))

INLINE void rotate_row(float *x, const float *factor, int64_t d)
{
    for (int64_t c = 0; c < d; c += 16) {
        lanes v = *(const lanes *)(x + c) * *(const lanes *)(factor + c);
        v = WITHIN(v, 1);
        v = WITHIN(v, 2);
        v = WITHIN(v, 4);
        *(lanes *)(x + c) = WITHIN(v, 8);
    }
    for (int64_t h = 16; h < d; h *= 2)
        for (int64_t i = 0; i < d; i += 2 * h)
            for (int64_t j = i; j < i + h; j += 16) {
                const lanes low = *(const lanes *)(x + j), high = *(const lanes *)(x + j + h);
                *(lanes *)(x + j) = low + high;
                *(lanes *)(x + j + h) = low - high;
            }
}

static void load_row(const walk *w, int64_t row, float *x)
{
    const int64_t at = row * w->job->x.ld + w->head * w->d;
    if (w->bf16) {
        const uint16_t *src = (const uint16_t *)w->job->x.data + at;
        for (int64_t c = 0; c < w->d; c++) x[c] = oq_bf16_to_f32(src[c]);
    } else {
        memcpy(x, (const float *)w->job->x.data + at, (size_t)w->d * sizeof *x);
    }
    if (w->rotate) rotate_row(x, w->factor, w->d);
}

/* Bits of the largest magnitude so far; a value that is not finite lies above every number. */
INLINE uint32_t largest_bits(const float *x, int64_t n, uint32_t max)
{
    for (int64_t c = 0; c < n; c++) {
        const uint32_t u = oq_f32_bits(x[c]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return max;
}

/* ---- codes --------------------------------------------------------------------------------------------- */

typedef struct power { /* a block's scale */
    float scale, inverse;
} power;

INLINE power choose(uint32_t max, oq_e8m0_rule rule)
{
    const uint8_t byte = oq_e8m0_choose(oq_f32_from_bits(max), rule);
    return (power){oq_e8m0_to_f32(byte), byte == 255 ? NAN : oq_e8m0_inverse(byte)};
}

/* The nearest e4m3 number to y, |y| <= 448: below 2^-6 the numbers are 2^-9 apart, which is the distance of floats
 * around 2^14. */
INLINE float to_e4m3(float y)
{
    const uint32_t u = oq_f32_bits(y), sign = u & 0x80000000u;
    const uint32_t normal = (u + 0x7ffffu + (u >> 20 & 1u)) & 0xfff00000u;
    const float small = (fabsf(y) + 0x1p14f) - 0x1p14f;
    return fabsf(y) < 0x1p-6f ? oq_f32_from_bits(oq_f32_bits(small) | sign) : oq_f32_from_bits(normal);
}

/* The nearest e2m1 number; beyond 6 saturates. */
INLINE float to_e2m1(float y)
{
    const uint32_t sign = oq_f32_bits(y) & 0x80000000u;
    const float m = fabsf(y) > 6.0f ? 6.0f : fabsf(y);
    const uint32_t u = oq_f32_bits(m);
    const uint32_t normal = (u + 0x1fffffu + (u >> 22 & 1u)) & 0xffc00000u;
    const float small = (m + 0x1p22f) - 0x1p22f;
    return oq_f32_from_bits((m < 1.0f ? oq_f32_bits(small) : normal) | sign);
}

INLINE uint16_t to_bits(float code, float scale)
{
    return (uint16_t)(oq_f32_bits(code * scale) >> 16);
}

/* [n] values under one scale; one that is not finite makes all of them NaN. */
INLINE void put_codes(uint16_t *y, const float *x, int64_t n, power p, bool e2m1)
{
    if (!(p.scale == p.scale)) {
        for (int64_t c = 0; c < n; c++) y[c] = 0x7fc0u;
    } else if (e2m1) {
        for (int64_t c = 0; c < n; c++) y[c] = to_bits(to_e2m1(x[c] * p.inverse), p.scale);
    } else {
        for (int64_t c = 0; c < n; c++) y[c] = to_bits(to_e4m3(x[c] * p.inverse), p.scale);
    }
}

static uint16_t *row_out(const walk *w, int64_t row)
{
    return (uint16_t *)w->job->y.data + row * w->job->y.ld + w->head * w->d;
}

static void put_zeros(const walk *w, int64_t row)
{
    memset(row_out(w, row), 0, (size_t)w->d * sizeof(uint16_t));
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/* fp8: a scale per block of rows and 128 columns. */
static void tall_block(const walk *w, const oq_attention_block *block, int64_t first, int64_t end)
{
    enum { COLS = 128, SLABS = MAX_DIM / COLS };
    const int64_t width = oq_min_i64(COLS, w->d), slabs = w->d / width;
    uint32_t max[SLABS] = {0};
    power p[SLABS];
    float x[MAX_DIM];
    for (int64_t i = first; i < end; i++) {
        if (hidden(w, i)) continue;
        load_row(w, i, x);
        for (int64_t s = 0; s < slabs; s++) max[s] = largest_bits(x + s * width, width, max[s]);
    }
    for (int64_t s = 0; s < slabs; s++) p[s] = choose(max[s], block->rule);
    for (int64_t i = first; i < end; i++) {
        if (hidden(w, i)) {
            put_zeros(w, i);
            continue;
        }
        load_row(w, i, x);
        for (int64_t s = 0; s < slabs; s++)
            put_codes(row_out(w, i) + s * width, x + s * width, width, p[s], false);
    }
}

/* mx, Q and K: a scale per row and 32 columns, 16 for the narrowest heads. */
static void wide_blocks(const walk *w, const oq_attention_block *block, int64_t first, int64_t end)
{
    const int64_t width = oq_min_i64(block->cols, w->d);
    float x[MAX_DIM];
    for (int64_t i = first; i < end; i++) {
        if (hidden(w, i)) {
            put_zeros(w, i);
            continue;
        }
        load_row(w, i, x);
        for (int64_t c = 0; c < w->d; c += width)
            put_codes(row_out(w, i) + c, x + c, width, choose(largest_bits(x + c, width, 0), block->rule),
                      block->e2m1);
    }
}

/* One row under a scale per column. */
INLINE void put_columns(uint16_t *y, const float *x, const float *scale, const float *inverse, int64_t n,
                        bool e2m1)
{
    for (int64_t c = 0; c < n; c++) {
        const float v = x[c] * inverse[c];
        const uint16_t bits = to_bits(e2m1 ? to_e2m1(v) : to_e4m3(v), scale[c]);
        y[c] = scale[c] == scale[c] ? bits : (uint16_t)0x7fc0u;
    }
}

/* mx, V: a scale per column and 32 rows. */
static void column_block(const walk *w, const oq_attention_block *block, int64_t first, int64_t end)
{
    uint32_t max[MAX_DIM] = {0};
    float x[MAX_DIM], scale[MAX_DIM], inverse[MAX_DIM];
    for (int64_t i = first; i < end; i++) {
        if (hidden(w, i)) continue;
        load_row(w, i, x);
        for (int64_t c = 0; c < w->d; c++) {
            const uint32_t u = oq_f32_bits(x[c]) & 0x7fffffffu;
            max[c] = u > max[c] ? u : max[c];
        }
    }
    for (int64_t c = 0; c < w->d; c++) {
        const power p = choose(max[c], block->rule);
        scale[c] = p.scale;
        inverse[c] = p.inverse;
    }
    for (int64_t i = first; i < end; i++) {
        if (hidden(w, i)) {
            put_zeros(w, i);
            continue;
        }
        load_row(w, i, x);
        if (block->e2m1)
            put_columns(row_out(w, i), x, scale, inverse, w->d, true);
        else
            put_columns(row_out(w, i), x, scale, inverse, w->d, false);
    }
}

static void operand(const oq_operand_job *job, int64_t head, int64_t first)
{
    const oq_attention_block block = oq_attention_block_of(job->precision, job->side);
    const int64_t end = oq_min_i64(first + OQ_OPERAND_ROWS, job->x.rows);
    walk w;
    walk_begin(&w, job, head);
    for (int64_t i = first; i < end;) {
        const int64_t next = block.rows == 1 ? end : oq_min_i64(i + block.rows, end);
        if (job->precision == OQ_ATTENTION_FP8)
            tall_block(&w, &block, i, next);
        else if (block.rows == 1)
            wide_blocks(&w, &block, i, next);
        else
            column_block(&w, &block, i, next);
        i = next;
    }
}
