/* linear_panel_bf16.h -- the body of the engines that multiply pairs of bf16 with f32 sums: for bf16, fp8 and int8 weights
 * and x that bf16 holds exactly (BF16, or e4m3 codes). An x of type F32 is not rounded: the same panels then go through f32
 * products. */
#ifndef OQ_CPU_LINEAR_LINEAR_PANEL_BF16_H
#define OQ_CPU_LINEAR_LINEAR_PANEL_BF16_H

#include "cpu/linear/linear_bytes_bf16.h"
#include "cpu/linear/linear_micro_avx512.h"

#define OQ_PANEL_WIDE 1
#include "cpu/linear/linear_pairs.h"

enum { NR = 32, STEP = 2 };

MICRO_TABLE(micro_f32, "vfmadd231ps")

static const char *piece_of(const oq_panel_job *job, int64_t panel, int64_t k)
{
    return job->panels + (size_t)panel * job->layout.panel_bytes + (size_t)(k * NR) * job->layout.element;
}

static inline __attribute__((always_inline)) void decode_codes(__m512i *dst, const char *src, int64_t count,
                                                               const bool integers)
{
    const code_bytes t = code_bytes_of(integers);
    for (int64_t i = 0; i < count; i++) bf16_of_codes(dst + 2 * i, _mm512_loadu_si512(src + 64 * i), &t, integers);
}

static const void *decode_bf16(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                               int64_t count)
{
    const char *const src = piece_of(job, panel, first * STEP);
    if (job->layout.element == 2) return src;
    if (is_i8(job))
        decode_codes(buffer, src, count, true);
    else
        decode_codes(buffer, src, count, false);
    return buffer;
}

/* Pairs at rest to two rows of f32: the even k in the lower half of each pair. */
static void split_bf16(float *even, float *odd, const char *src)
{
    const __m512i pairs = _mm512_loadu_si512(src), upper = _mm512_set1_epi32((int)0xffff0000);
    _mm512_store_si512(even, _mm512_slli_epi32(pairs, 16));
    _mm512_store_si512(odd, _mm512_and_si512(pairs, upper));
}

static void split_codes(float *even, float *odd, const char *src)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)src);
    const __m256i mask = _mm256_set1_epi16((short)0xbf80);
    const __m512 by = _mm512_set1_ps(256.0f);
    const __m256i low = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 1), mask);
    const __m256i high = _mm256_and_si256(_mm256_srai_epi16(pairs, 1), mask);
    _mm512_store_ps(even, _mm512_mul_ps(_mm512_cvtph_ps(low), by));
    _mm512_store_ps(odd, _mm512_mul_ps(_mm512_cvtph_ps(high), by));
}

static void split_i8(float *even, float *odd, const char *src)
{
    const __m512i pairs = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)src));
    _mm512_store_ps(even, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24)));
    _mm512_store_ps(odd, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 24)));
}

/* Numbers of k from `first` on times their blocks' scales. */
static void scale_blocks(const oq_panel_job *job, float *numbers, int64_t panel, int64_t first, int64_t count)
{
    const float *const scale = oq_panel_block_scales(job, panel);
    for (int64_t k = 0; k < count; k++) {
        const __m512 by = _mm512_set1_ps(scale[(first + k) / OQ_PANEL_BLOCK_K]);
        for (int64_t c = 0; c < NR; c += 16, numbers += 16) _mm512_store_ps(numbers, _mm512_mul_ps(_mm512_load_ps(numbers), by));
    }
}

static const void *decode_f32(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                              int64_t count)
{
    const size_t element = job->layout.element;
    const bool integers = is_i8(job);
    for (int64_t k = 0; k < count; k += 2)
        for (int64_t c = 0; c < NR; c += 16) {
            const char *const src = piece_of(job, panel, first + k) + (size_t)(2 * c) * element;
            float *const even = (float *)buffer + k * NR + c, *const odd = even + NR;
            if (element == 2)
                split_bf16(even, odd, src);
            else if (integers)
                split_i8(even, odd, src);
            else
                split_codes(even, odd, src);
        }
    if (job->block_scale) scale_blocks(job, buffer, panel, first, count);
    return buffer;
}

/* The engine over pairs with tiles of `rows` rows, and what it does with an x of type F32. */
#define PAIRS_ENGINE(rows, table, ...)                                                                       \
    {                                                                                                        \
        .mr = rows, .nr = NR, .step = STEP, .pack_step = STEP, .integers = false, .plain = &oq_dtype_bf16,   \
        .micro = table, .prologue = prologue_bf16, .decode = decode_bf16, .store = oq_panel_store_avx512bf16, \
        __VA_ARGS__                                                                                          \
    }

static const oq_panel_engine engine_f32 = {.mr = 12,
                                           .nr = NR,
                                           .step = 1,
                                           .pack_step = STEP,
                                           .integers = false,
                                           .plain = &oq_dtype_f32,
                                           .micro = micro_f32,
                                           .prologue = prologue_f32,
                                           .decode = decode_f32,
                                           .store = oq_panel_store_avx512};

#endif
