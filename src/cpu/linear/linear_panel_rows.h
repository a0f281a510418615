/* linear_panel_rows.h -- the loops over numbers of the packed-panel product, in plain C for the compiler to
 * vectorise: each engine file includes this text and so compiles it for its own instruction set. They give
 * the very bits of oq_act_quantize_row and of the formats' decode_row. */
#ifndef OQ_CPU_LINEAR_LINEAR_PANEL_ROWS_H
#define OQ_CPU_LINEAR_LINEAR_PANEL_ROWS_H

#include <string.h>

#include "cpu/linear/linear_panel.h"
#include "cpu/vec/sixteen.h"
#include "cpu/vec/vec.h"
#include "format/float8.h"

#ifndef OQ_PANEL_WIDE
#define OQ_PANEL_WIDE 0 /* panels of 32 columns, not 16 */
#endif

enum { ROW_CHUNK = 512 }; /* columns that a row is treated by where it is not kept as f32 */

/* ---- rows of x ----------------------------------------------------------------------------------------- */

static inline void row_load(float *restrict dst, const oq_tensor *x, int64_t row, int64_t k)
{
    if (x->dtype == &oq_dtype_bf16) {
        const uint16_t *const src = (const uint16_t *)x->data + row * x->ld;
        for (int64_t i = 0; i < k; i++) dst[i] = oq_f32_from_bits((uint32_t)src[i] << 16);
    } else {
        memcpy(dst, (const float *)x->data + row * x->ld, (size_t)k * sizeof *dst);
    }
}

/* Largest |x|; NaN if one is not finite. As integers, magnitudes compare like numbers and NaN is the largest.
 */
static inline float row_amax(const float *x, int64_t k)
{
    int32_t top = 0;
    for (int64_t i = 0; i < k; i++) {
        const int32_t magnitude = (int32_t)(oq_f32_bits(x[i]) & 0x7fffffffu);
        top = magnitude > top ? magnitude : top;
    }
    return oq_f32_from_bits(top >= 0x7f800000 ? 0x7fc00000u : (uint32_t)top);
}

/* row_amax of a row in x itself. The magnitudes of bf16 compare like integers of 16 bits. */
static inline float view_amax(const oq_tensor *x, int64_t row, int64_t k)
{
    if (x->dtype == &oq_dtype_bf16) {
        const uint16_t *const src = (const uint16_t *)x->data + row * x->ld;
        uint16_t most = 0;
        for (int64_t i = 0; i < k; i++) {
            const uint16_t magnitude = src[i] & 0x7fffu;
            most = magnitude > most ? magnitude : most;
        }
        return oq_f32_from_bits(most >= 0x7f80 ? 0x7fc00000u : (uint32_t)most << 16);
    }
    float part[ROW_CHUNK], top = 0.0f;
    for (int64_t first = 0; first < k; first += ROW_CHUNK) {
        const int64_t n = k - first < ROW_CHUNK ? k - first : ROW_CHUNK;
        const oq_tensor piece = oq_tensor_cols(*x, first, n);
        row_load(part, &piece, row, n);
        const float amax = row_amax(part, n);
        if (amax != amax) return amax;
        top = amax > top ? amax : top;
    }
    return top;
}

/* The e4m3 number nearest to x, as f32: oq_e4m3_to_f32(oq_e4m3_from_f32(x)) without the code in between and without
 * a branch, which would keep the loop scalar. Adding 2^20 times the power of two below |x| (at least 2^-6) leaves the
 * three mantissa bits of e4m3 and rounds to even; taking it away again is exact. */
static inline float e4m3_nearest(float x)
{
    const uint32_t bits = oq_f32_bits(x), sign = bits & 0x80000000u, all = bits & 0x7fffffffu;
    const uint32_t magnitude = all < 0x43e00000u ? all : 0x43e00000u; /* 448 */
    const uint32_t power = magnitude & 0x7f800000u;
    const uint32_t shift = (power > 0x3c800000u ? power : 0x3c800000u) + (20u << 23);
    const float rounded = (oq_f32_from_bits(magnitude) + oq_f32_from_bits(shift)) - oq_f32_from_bits(shift);
    return oq_f32_from_bits(oq_f32_bits(rounded) | sign);
}

static inline float e4m3_scale(const oq_panel_job *job, float amax)
{
    const oq_act_scale how = job->args->spec->scheme.act_scale;
    const float least = 1.0f / (448.0f * 512.0f), by_row = amax / OQ_E4M3_MAX;
    if (amax != amax) return amax;
    if (how == OQ_ACT_STATIC_TENSOR) return *job->input_scale;
    if (how == OQ_ACT_DYNAMIC_GROUP) return (amax > 1e-12f ? amax : 1e-12f) / OQ_E4M3_MAX;
    return by_row > least ? by_row : least;
}

/* x[k] becomes its e4m3 codes as numbers; returns their scale. NaN: the numbers are zero. */
static inline float row_e4m3(const oq_panel_job *job, float *x, int64_t k)
{
    const float amax = row_amax(x, k), scale = e4m3_scale(job, amax);
    if (amax != amax)
        memset(x, 0, (size_t)k * sizeof *x);
    else
        for (int64_t i = 0; i < k; i++) x[i] = e4m3_nearest(x[i] / scale);
    return scale;
}

/* Groups of 128 carry their scale into the numbers; the row's own is 1 then. */
static inline float row_e4m3_groups(const oq_panel_job *job, float *x, int64_t k)
{
    for (int64_t first = 0; first < k; first += OQ_ACT_GROUP) {
        const int64_t n = k - first < OQ_ACT_GROUP ? k - first : OQ_ACT_GROUP;
        const float scale = row_e4m3(job, x + first, n);
        for (int64_t i = 0; i < n; i++) x[first + i] *= scale;
    }
    return 1.0f;
}

static inline void f32_prologue(const oq_panel_job *job, int64_t row)
{
    const oq_scheme *const scheme = &job->args->spec->scheme;
    const int64_t k = job->args->spec->k;
    float *const a = (float *)(job->a + (size_t)row * job->lda);
    row_load(a, &job->args->x, job->first + row, k);
    memset(a + k, 0, (size_t)(job->layout.depth - k) * sizeof *a);
    float scale = 1.0f;
    if (scheme->act)
        scale = scheme->act_scale == OQ_ACT_DYNAMIC_GROUP ? row_e4m3_groups(job, a, k) : row_e4m3(job, a, k);
    job->row_scale[row] = scale;
}

/* ---- rows of x as integers: codes in [-128, 127], as i16, as i8 (NEON) or as u8 with 128 added (x86) ----- */

#if defined(__aarch64__)
enum { CODES_ZERO = 0 };
#else
enum { CODES_ZERO = 0x80 };
#endif

/* VF numbers within +-2^31 of [-128, 127] to the nearest (even) code there. */
OQ_INLINE void codes_put(char *dst, vf v, bool wide)
{
    const vf most = v_set(127.0f), least = v_set(-128.0f);
    v = v_max(v_min(v, most), least);
#if VF == 16
    const __m128i codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
    (void)wide;
    _mm_storeu_si128((__m128i *)(void *)dst, _mm_xor_si128(codes, _mm_set1_epi8((char)0x80)));
#elif defined(__aarch64__)
    const int16x8_t words = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.a)), vqmovn_s32(vcvtnq_s32_f32(v.b)));
    if (wide)
        vst1q_s16((int16_t *)(void *)dst, words);
    else
        vst1_s8((int8_t *)dst, vqmovn_s16(words));
#else
    const __m256i ints = _mm256_cvtps_epi32(v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
    if (wide)
        _mm_storeu_si128((__m128i *)(void *)dst, words);
    else
        _mm_storel_epi64((__m128i *)(void *)dst,
                         _mm_xor_si128(_mm_packs_epi16(words, words), _mm_set1_epi8((char)0x80)));
#endif
}

/* A row's codes in whole vectors, zeros behind its end. */
OQ_INLINE void codes_row(char *dst, const oq_tensor *x, int64_t row, int64_t k, vf factor, bool divide, bool wide)
{
    const bool bf16 = x->dtype == &oq_dtype_bf16;
    const void *const src = (const char *)x->data + (size_t)(row * x->ld) * x->dtype->bytes;
    for (int64_t i = 0; i < k; i += VF) {
        const vf v = v_get(src, bf16, i, k - i);
        codes_put(dst + (wide ? 2 * i : i), divide ? v_div(v, factor) : v_mul(v, factor), wide);
    }
}

/* How codes come from numbers: factor, whether it divides, and the scale of the row. factor NaN: all codes
 * are 0. */
typedef struct int_rule {
    float factor, scale;
    bool divide;
} int_rule;

static inline int_rule int_rule_of(const oq_panel_job *job, int64_t row, int64_t k)
{
    const float amax = view_amax(&job->args->x, row, k), none = oq_f32_from_bits(0x7fc00000u);
    if (amax != amax) return (int_rule){none, amax, false};
    if (job->input_scale) return (int_rule){*job->input_scale, *job->input_scale, true};
    const float top = job->args->spec->scheme.act_scale == OQ_ACT_DYNAMIC_TOKEN4 ? 7.0f : 127.0f;
    const float factor = top / amax;
    if (oq_f32_bits(factor) >= 0x7f800000u) return (int_rule){none, 0.0f, false};
    return (int_rule){factor, amax / top, false};
}

/* i16 codes are for AVX2 and the first NEON. */
static inline void int_prologue(const oq_panel_job *job, int64_t row, bool wide)
{
    const oq_tensor *const x = &job->args->x;
    const int64_t k = job->args->spec->k, from = job->first + row, bytes = wide ? 2 * k : k;
    char *const a = job->a + (size_t)row * job->lda;
    const int_rule rule = int_rule_of(job, from, k);
    const bool none = rule.factor != rule.factor;
    const int64_t start = none ? 0 : bytes;
    job->row_scale[row] = rule.scale;
    memset(a + start, wide ? 0 : CODES_ZERO, (size_t)(job->layout.depth * 4 - start));
    if (none) return;
    if (rule.divide)
        codes_row(a, x, from, k, v_set(rule.factor), true, wide);
    else
        codes_row(a, x, from, k, v_set(rule.factor), false, wide);
}

/* ---- pieces of panels ---------------------------------------------------------------------------------- */

/* dst[k][column] = code * scale[column] for `rows` of k and the engine's nr columns, through f16 (also the subnormal
 * codes, which the conversion takes at full speed).
 * NaN codes do not come here: packing turned them into NaN scales. */
static inline void decode_e4m3(float *restrict dst, const uint8_t *restrict src, int64_t rows,
                               const float *scale)
{
    enum { WIDTH = OQ_PANEL_WIDE + 1 }; /* sixteens of columns */
    const f16x up = f16x_set(256.0f), low = f16x_mul(f16x_load(scale), up);
    const f16x by[2] = {low, f16x_mul(f16x_load(scale + 16 * (WIDTH - 1)), up)};
    for (int64_t i = 0; i < WIDTH * rows; i++)
        f16x_store(dst + 16 * i, f16x_mul(f16x_halves(h16_of_e4m3(b16_load(src + 16 * i))), by[i % WIDTH]));
}

/* Scales of a panel's columns in block `block` of k; columns beyond n hold zeros and need only a number. */
static inline void block_scales(const oq_panel_job *job, float *scale, int64_t panel, int64_t block)
{
    const oq_linear_spec *const spec = job->args->spec;
    const int64_t nr = job->engine->nr, cols = job->layout.block_cols, rows = spec->scheme.weight->block_n;
    const float *const at = job->block_scale + (block < cols ? block : cols - 1);
    if (rows % nr == 0) { /* the panel is within one block */
        const float one = at[panel * nr / rows * cols];
        for (int64_t c = 0; c < nr; c++) scale[c] = one;
        return;
    }
    for (int64_t c = 0; c < nr; c++) {
        const int64_t column = panel * nr + c < spec->n ? panel * nr + c : spec->n - 1;
        scale[c] = at[column / rows * cols];
    }
}

/* Rows [first, first + count) of k; each run within one block of 128 has its own scales. */
static inline void decode_e4m3_blocks(const oq_panel_job *job, float *dst, const uint8_t *src, int64_t panel,
                                      int64_t first, int64_t count)
{
    const int64_t nr = job->engine->nr, end = first + count;
    for (int64_t k = first, next; k < end; k = next) {
        float scale[OQ_PANEL_MAX_NR];
        next = (k / 128 + 1) * 128 < end ? (k / 128 + 1) * 128 : end;
        block_scales(job, scale, panel, k / 128);
        decode_e4m3(dst + (k - first) * nr, src + (k - first) * nr, next - k, scale);
    }
}

static inline const void *f32_decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                                     int64_t count)
{
    const int64_t nr = job->engine->nr, n = count * nr;
    const oq_dtype *const type = job->args->spec->scheme.weight->element;
    const char *const src =
        job->panels + (size_t)panel * job->layout.panel_bytes + (size_t)(first * nr) * job->layout.element;
    float *restrict const dst = buffer;
    if (type == &oq_dtype_f32) return src;
    if (type == &oq_dtype_bf16) {
        const uint16_t *restrict const code = (const uint16_t *)src;
        for (int64_t i = 0; i < n; i++) dst[i] = oq_f32_from_bits((uint32_t)code[i] << 16);
    } else if (type == &oq_dtype_i8) {
        const int8_t *restrict const code = (const int8_t *)src;
        for (int64_t i = 0; i < n; i++) dst[i] = (float)code[i];
    } else if (job->block_scale) {
        decode_e4m3_blocks(job, dst, (const uint8_t *)src, panel, first, count);
    } else {
        float ones[OQ_PANEL_MAX_NR];
        for (int i = 0; i < OQ_PANEL_MAX_NR; i++) ones[i] = 1.0f;
        decode_e4m3(dst, (const uint8_t *)src, count, ones);
    }
    return buffer;
}

static inline const void *i16_decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                                     int64_t count)
{
    const int64_t run = job->engine->nr * 2;
    const int8_t *restrict const src =
        (const int8_t *)job->panels + (size_t)panel * job->layout.panel_bytes + (size_t)(first * run);
    int16_t *restrict const dst = buffer;
    for (int64_t i = 0; i < count * run; i++) dst[i] = src[i];
    return buffer;
}

static inline const void *i8_decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                                    int64_t count)
{
    (void)buffer;
    (void)count;
    return job->panels + (size_t)panel * job->layout.panel_bytes + (size_t)(first * job->engine->nr * 4);
}

#endif
