/* linear_few_panel_simd.h -- a few rows of x times panels of f32, bf16, int8 or e4m3, whose codes become numbers in
 * registers: nothing is written between memory and the product. Each engine of f32 products includes this text. A panel
 * has two vectors of columns; two-byte words and the bytes of a word are taken apart by shifts, so that the two vectors
 * hold its even and its odd columns. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_PANEL_SIMD_H
#define OQ_CPU_LINEAR_LINEAR_FEW_PANEL_SIMD_H

#include "base/size.h"
#include "cpu/linear/linear_panel_rows.h"
#include "cpu/vec/vec.h"

enum {
    STREAM_NR = 2 * VF,
    STREAM_ROWS = VF == 16 ? 8 : 4, /* rows of x at once: twice as many accumulators */
    STREAM_RUN = 128,               /* k under one scale where there are several */
    STREAM_AHEAD = 2048             /* bytes that are fetched before they are needed */
};

typedef enum stream_kind { STREAM_F32, STREAM_BF16, STREAM_I8, STREAM_E4M3 } stream_kind;

static inline stream_kind stream_kind_of(const oq_linear_spec *spec)
{
    const oq_dtype *const type = spec->scheme.weight->element;
    return type == &oq_dtype_f32    ? STREAM_F32
           : type == &oq_dtype_bf16 ? STREAM_BF16
           : type == &oq_dtype_i8   ? STREAM_I8
                                    : STREAM_E4M3;
}

/* Are the two vectors of columns the even and the odd ones? */
static inline bool stream_is_split(stream_kind kind)
{
    return kind == STREAM_BF16 || kind == STREAM_E4M3;
}

/* ---- codes of one k (two of e4m3) of a panel's columns ----------------------------------------------------- */

#if defined(__AVX512F__)
typedef __m512i stream_bytes;
OQ_INLINE stream_bytes stream_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
OQ_INLINE vf stream_upper(stream_bytes v) /* the second word of each dword, as bf16 */
{
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
}
OQ_INLINE vf stream_lower(stream_bytes v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}
/* Bytes of words, the first or the second: e4m3 as f16 numbers 2^-8 times as large. */
OQ_INLINE stream_bytes stream_halves(stream_bytes v, bool second)
{
    const __m512i at_top = second ? v : _mm512_slli_epi16(v, 8);
    return _mm512_and_si512(_mm512_srai_epi16(at_top, 1), _mm512_set1_epi16((short)0xbf80));
}
OQ_INLINE vf stream_half_of(stream_bytes v, int i)
{
    return _mm512_cvtph_ps(i ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v));
}
#elif defined(__aarch64__)
typedef uint32x4x2_t stream_bytes;
OQ_INLINE stream_bytes stream_load(const void *p)
{
    return vld1q_u32_x2((const uint32_t *)p);
}
OQ_INLINE vf stream_upper(stream_bytes v)
{
    return neon_words(v.val[0], v.val[1], true);
}
OQ_INLINE vf stream_lower(stream_bytes v)
{
    return neon_words(v.val[0], v.val[1], false);
}
OQ_INLINE uint32x4_t stream_halves4(uint32x4_t v, bool second)
{
    const int16x8_t words = vreinterpretq_s16_u32(v), at_top = second ? words : vshlq_n_s16(words, 8);
    const int16x8_t half = vandq_s16(vshrq_n_s16(at_top, 1), vdupq_n_s16((int16_t)0xbf80));
    return vreinterpretq_u32_s16(half);
}
OQ_INLINE stream_bytes stream_halves(stream_bytes v, bool second)
{
    return (stream_bytes){{stream_halves4(v.val[0], second), stream_halves4(v.val[1], second)}};
}
OQ_INLINE vf stream_half_of(stream_bytes v, int i)
{
    const uint16x8_t words = vreinterpretq_u16_u32(v.val[i]);
    return (vf){f32x4_of_f16(vget_low_u16(words)), f32x4_of_f16(vget_high_u16(words))};
}
#else
typedef __m256i stream_bytes;
OQ_INLINE stream_bytes stream_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
OQ_INLINE vf stream_upper(stream_bytes v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
}
OQ_INLINE vf stream_lower(stream_bytes v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}
OQ_INLINE stream_bytes stream_halves(stream_bytes v, bool second)
{
    const __m256i at_top = second ? v : _mm256_slli_epi16(v, 8);
    return _mm256_and_si256(_mm256_srai_epi16(at_top, 1), _mm256_set1_epi16((short)0xbf80));
}
OQ_INLINE vf stream_half_of(stream_bytes v, int i)
{
    return _mm256_cvtph_ps(i ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v));
}
#endif

/* ---- a run of k -------------------------------------------------------------------------------------------- */

typedef struct stream_run {
    const char *codes; /* of the run's first k */
    const float *x;
    size_t lda; /* bytes from row to row of x */
    int64_t count;
} stream_run;

OQ_INLINE void stream_add(vf (*sum)[2], const stream_run *r, int64_t k, vf w0, vf w1, const int rows)
{
    OQ_UNROLL
    for (int m = 0; m < rows; m++) {
        const vf x = v_set(((const float *)(const void *)((const char *)r->x + (size_t)m * r->lda))[k]);
        sum[m][0] = v_fma(w0, x, sum[m][0]);
        sum[m][1] = v_fma(w1, x, sum[m][1]);
    }
}

/* sum += x . W of the run; a run of e4m3 has an even number of k. */
OQ_INLINE void stream_body(vf (*sum)[2], const stream_run *r, stream_kind kind, const int rows)
{
    const char *at = r->codes;
    if (kind == STREAM_E4M3) {
        for (int64_t k = 0; k < r->count; k += 2, at += 2 * STREAM_NR) {
            const stream_bytes v = stream_load(at);
            const stream_bytes even = stream_halves(v, false), odd = stream_halves(v, true);
            oq_fetch(at + STREAM_AHEAD);
            stream_add(sum, r, k, stream_half_of(even, 0), stream_half_of(odd, 0), rows);
            stream_add(sum, r, k + 1, stream_half_of(even, 1), stream_half_of(odd, 1), rows);
        }
    } else if (kind == STREAM_BF16) {
        for (int64_t k = 0; k < r->count; k++, at += 2 * STREAM_NR) {
            const stream_bytes v = stream_load(at);
            oq_fetch(at + STREAM_AHEAD);
            stream_add(sum, r, k, stream_lower(v), stream_upper(v), rows);
        }
    } else if (kind == STREAM_I8) {
        for (int64_t k = 0; k < r->count; k++, at += STREAM_NR) {
            oq_fetch(at + STREAM_AHEAD);
            stream_add(sum, r, k, v_load_i8(at), v_load_i8(at + VF), rows);
        }
    } else {
        for (int64_t k = 0; k < r->count; k++, at += 4 * STREAM_NR) {
            const float *const w = (const float *)(const void *)at;
            stream_add(sum, r, k, v_load(w), v_load(w + VF), rows);
        }
    }
}

/* Rows of x times all of k; acc has the sums, e4m3's 2^-8 times as large or under their blocks' scales. */
OQ_INLINE void stream_rows(const oq_panel_job *job, vf (*acc)[2], int64_t panel, int64_t from, stream_kind kind,
                           const int rows)
{
    const int64_t depth = job->layout.depth, run = job->block_scale ? STREAM_RUN : depth;
    const size_t row_bytes = STREAM_NR * job->layout.element;
    const char *const codes = job->panels + (size_t)panel * job->layout.panel_bytes;
    const char *const x = job->a + (size_t)from * job->lda;
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m][0] = acc[m][1] = v_zero();
    for (int64_t k = 0; k < depth; k += run) {
        const stream_run r = {codes + (size_t)k * row_bytes, (const float *)(const void *)x + k, job->lda,
                              oq_min_i64(run, depth - k)};
        vf sum[STREAM_ROWS][2];
        OQ_UNROLL
        for (int m = 0; m < rows; m++) sum[m][0] = sum[m][1] = v_zero();
        stream_body(sum, &r, kind, rows);
        if (!job->block_scale) {
            OQ_UNROLL
            for (int m = 0; m < rows; m++) acc[m][0] = sum[m][0], acc[m][1] = sum[m][1];
            return;
        }
        float scale[OQ_PANEL_MAX_NR], half[2][VF];
        block_scales(job, scale, panel, k / STREAM_RUN);
        for (int l = 0; l < STREAM_NR; l++) half[l % 2][l / 2] = scale[l];
        OQ_UNROLL
        for (int m = 0; m < rows; m++) {
            acc[m][0] = v_fma(sum[m][0], v_load(half[0]), acc[m][0]);
            acc[m][1] = v_fma(sum[m][1], v_load(half[1]), acc[m][1]);
        }
    }
}

OQ_INLINE void stream_store(float *c, vf (*acc)[2], stream_kind kind, int rows)
{
    const vf up = v_set(kind == STREAM_E4M3 ? 256.0f : 1.0f);
    for (int m = 0; m < rows; m++, c += STREAM_NR) {
        float half[2][VF];
        v_store(half[0], v_mul(acc[m][0], up));
        v_store(half[1], v_mul(acc[m][1], up));
        for (int l = 0; l < STREAM_NR; l++)
            c[l] = stream_is_split(kind) ? half[l % 2][l / 2] : half[l / VF][l % VF];
    }
}

OQ_INLINE void stream_batch(const oq_panel_job *job, float *c, int64_t panel, int64_t from, const int rows)
{
    const stream_kind kind = stream_kind_of(job->args->spec);
    vf acc[STREAM_ROWS][2];
    switch (kind) {
    case STREAM_F32:
        stream_rows(job, acc, panel, from, STREAM_F32, rows);
        break;
    case STREAM_BF16:
        stream_rows(job, acc, panel, from, STREAM_BF16, rows);
        break;
    case STREAM_I8:
        stream_rows(job, acc, panel, from, STREAM_I8, rows);
        break;
    case STREAM_E4M3:
        stream_rows(job, acc, panel, from, STREAM_E4M3, rows);
        break;
    }
    stream_store(c + from * STREAM_NR, acc, kind, rows);
}

#define STREAM_BATCH(rows)                                                                                   \
    static void stream_batch_##rows(const oq_panel_job *job, float *c, int64_t panel, int64_t from)          \
    {                                                                                                        \
        stream_batch(job, c, panel, from, rows);                                                             \
    }
STREAM_BATCH(1)
STREAM_BATCH(2)
STREAM_BATCH(3)
STREAM_BATCH(4)
#if VF == 16
STREAM_BATCH(5)
STREAM_BATCH(6)
STREAM_BATCH(7)
STREAM_BATCH(8)
#endif

static inline void panel_few(const oq_panel_job *job, float *c, int64_t panel)
{
    static void (*const batches[])(const oq_panel_job *job, float *c, int64_t panel, int64_t from) = {
        NULL, stream_batch_1, stream_batch_2, stream_batch_3, stream_batch_4,
#if VF == 16
        stream_batch_5, stream_batch_6, stream_batch_7, stream_batch_8,
#endif
    };
    const int64_t parts = oq_ceil_div(job->rows, STREAM_ROWS), part = oq_ceil_div(job->rows, parts);
    for (int64_t from = 0; from < job->rows; from += part)
        batches[oq_min_i64(part, job->rows - from)](job, c, panel, from);
}

static inline int64_t panel_few_rows(const oq_linear_spec *spec)
{
    (void)spec;
    return OQ_PANEL_FEW;
}

#endif
