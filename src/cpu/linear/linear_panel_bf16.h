/* linear_panel_bf16.h -- the body of the engines that multiply pairs of bf16 with f32 sums: for bf16, fp8 and int8 weights
 * and x that bf16 holds exactly (BF16, or e4m3 codes). An x of type F32 is not rounded: the same panels then go through f32
 * products. */
#ifndef OQ_CPU_LINEAR_LINEAR_PANEL_BF16_H
#define OQ_CPU_LINEAR_LINEAR_PANEL_BF16_H

#include "cpu/linear/linear_bytes_bf16.h"
#include "cpu/linear/linear_micro_avx512.h"

#define OQ_PANEL_WIDE 1
#include "cpu/linear/linear_panel_rows.h"

enum { NR = 32, STEP = 2 };

MICRO_TABLE(micro_f32, "vfmadd231ps")

/* The e4m3 numbers nearest to x / scale as bf16, 16 of them; as e4m3_nearest. */
OQ_INLINE __m256i nearest_codes(vf quotient)
{
    const __m512i m = _mm512_castps_si512(v_min(v_abs(quotient), v_set(448.0f)));
    const __m512i power = _mm512_and_si512(m, _mm512_set1_epi32(0x7f800000));
    const __m512i shift = _mm512_add_epi32(_mm512_max_epu32(power, _mm512_set1_epi32(0x3c800000)), _mm512_set1_epi32(20 << 23));
    const vf far = _mm512_castsi512_ps(shift);
    const vf rounded = v_sub(v_add(_mm512_castsi512_ps(m), far), far);
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(quotient), _mm512_set1_epi32(INT32_MIN));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_or_si512(_mm512_castps_si512(rounded), sign), 16));
}

/* May x . (1 / scale), off by less than three steps of f32, have another nearest e4m3 number than x / scale? Where one of the
 * lanes is near the middle between two numbers, or small, where numbers lie otherwise; nothing is halfway to 2^-11. */
OQ_INLINE bool is_doubtful(vf product)
{
    const __m512i u = _mm512_castps_si512(v_abs(product)), below = _mm512_and_si512(u, _mm512_set1_epi32(0xfffff));
    const __m512i from_middle = _mm512_sub_epi32(below, _mm512_set1_epi32(0x80000 - 8));
    const __mmask16 middle = _mm512_cmplt_epu32_mask(from_middle, _mm512_set1_epi32(17));
    const __m512i from_small = _mm512_sub_epi32(u, _mm512_set1_epi32(0x3a000000)); /* 2^-11 */
    return middle | _mm512_cmplt_epu32_mask(from_small, _mm512_set1_epi32(0x3c800000 + 16 - 0x3a000000));
}

/* Columns [first, first + count) of a row as e4m3 codes in bf16: the upper half of an e4m3 number in f32 is all of it. A
 * division takes as long as all the rest, so it is made where it matters. */
static void codes_of(const oq_tensor *x, int64_t row, int64_t first, int64_t count, float scale, uint16_t *a)
{
    const bool bf16 = x->dtype == &oq_dtype_bf16, inverts = scale > 0x1p-100f && scale < 0x1p100f;
    const void *const src = (const char *)x->data + (size_t)(row * x->ld + first) * x->dtype->bytes;
    const vf by = v_set(scale), inverse = v_set(1.0f / scale);
    for (int64_t i = 0; i < count; i += VF) {
        const vf v = v_get(src, bf16, i, count - i);
        vf quotient = v_mul(v, inverse);
        if (!inverts || is_doubtful(quotient)) quotient = v_div(v, by);
        _mm256_mask_storeu_epi16(a + first + i, count - i >= VF ? 0xffff : v_mask(count - i), nearest_codes(quotient));
    }
}

/* The same under the scale of these columns, which is returned; NaN: the codes are zero. */
static float codes_scaled(const oq_panel_job *job, int64_t row, int64_t first, int64_t count, uint16_t *a)
{
    const oq_tensor *const x = &job->args->x, piece = oq_tensor_cols(*x, first, count);
    const float amax = view_amax(&piece, row, count), scale = e4m3_scale(job, amax);
    if (amax != amax)
        memset(a + first, 0, (size_t)count * sizeof *a);
    else
        codes_of(x, row, first, count, scale, a);
    return scale;
}

/* A whole row under one scale; or, where sums are scaled block by block, under one for each block, behind the row. */
static float codes_prologue(const oq_panel_job *job, int64_t row, uint16_t *a)
{
    const int64_t k = job->args->spec->k;
    if (!job->layout.row_scales) return codes_scaled(job, row, 0, k, a);
    float *const scale = (float *)(void *)(a + job->layout.depth * STEP);
    for (int64_t first = 0; first < k; first += OQ_PANEL_BLOCK_K)
        scale[first / OQ_PANEL_BLOCK_K] =
            codes_scaled(job, row, first, k - first < OQ_PANEL_BLOCK_K ? k - first : OQ_PANEL_BLOCK_K, a);
    return 1.0f;
}

static void prologue_bf16(const oq_panel_job *job, int64_t row)
{
    const oq_tensor *const x = &job->args->x;
    const int64_t k = job->args->spec->k, from = job->first + row;
    uint16_t *const a = (uint16_t *)(job->a + (size_t)row * job->lda);
    memset(a + k, 0, (size_t)(job->layout.depth * STEP - k) * sizeof *a);
    job->row_scale[row] = 1.0f;
    if (job->args->spec->scheme.act)
        job->row_scale[row] = codes_prologue(job, from, a);
    else
        memcpy(a, (const uint16_t *)x->data + from * x->ld, (size_t)k * sizeof *a);
}

static const char *piece_of(const oq_panel_job *job, int64_t panel, int64_t k)
{
    return job->panels + (size_t)panel * job->layout.panel_bytes + (size_t)(k * NR) * job->layout.element;
}

static bool is_i8(const oq_panel_job *job)
{
    return job->args->spec->scheme.weight->element == &oq_dtype_i8;
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

static void prologue_f32(const oq_panel_job *job, int64_t row)
{
    f32_prologue(job, row);
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

static size_t pairs_scratch_bytes(const oq_panel_engine *pairs, const oq_linear_spec *spec, int64_t m)
{
    const size_t a = oq_panel_scratch_bytes(pairs, spec, m), b = oq_panel_scratch_bytes(&engine_f32, spec, m);
    return a > b ? a : b;
}

static void pairs_run(const oq_panel_engine *pairs, oq_device *device, const oq_linear_args *args)
{
    const bool exact = args->spec->scheme.act || args->x.dtype == &oq_dtype_bf16;
    oq_panel_run(exact ? pairs : &engine_f32, device, args);
}

#define PAIRS_ENGINE_DEFINE(name, pairs)                                                                     \
    size_t oq_panel_##name##_packed_bytes(const oq_linear_spec *spec)                                        \
    {                                                                                                        \
        return oq_panel_packed_bytes(pairs, spec);                                                           \
    }                                                                                                        \
    void oq_panel_##name##_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)                 \
    {                                                                                                        \
        oq_panel_pack(pairs, dst, src, spec);                                                                \
    }                                                                                                        \
    size_t oq_panel_##name##_scratch_bytes(const oq_linear_spec *spec, int64_t m)                            \
    {                                                                                                        \
        return pairs_scratch_bytes(pairs, spec, m);                                                          \
    }                                                                                                        \
    void oq_panel_##name##_run(oq_device *device, const oq_linear_args *args)                                \
    {                                                                                                        \
        pairs_run(pairs, device, args);                                                                      \
    }                                                                                                        \
    unsigned oq_panel_##name##_fuses(const oq_linear_spec *spec)                                             \
    {                                                                                                        \
        return oq_panel_fuses(pairs, spec); /* as engine_f32 */                                              \
    }

#endif
