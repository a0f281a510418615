/* linear_pairs.h -- what engines of bf16 pairs share, whatever their instructions: rows of x as bf16, and which products go
 * through pairs. Each of them includes this text. */
#ifndef OQ_CPU_LINEAR_LINEAR_PAIRS_H
#define OQ_CPU_LINEAR_LINEAR_PAIRS_H

#include "cpu/linear/linear_panel_rows.h"

#if defined(__aarch64__)
/* Columns [first, first + count) of a row as e4m3 codes in bf16: the upper half of an e4m3 number in f32 is all of it. */
static void codes_of(const oq_tensor *x, int64_t row, int64_t first, int64_t count, float scale, uint16_t *a)
{
    for (int64_t end = first + count, n; first < end; first += n) {
        n = end - first < ROW_CHUNK ? end - first : ROW_CHUNK;
        const oq_tensor piece = oq_tensor_cols(*x, first, n);
        float part[ROW_CHUNK];
        row_load(part, &piece, row, n);
        for (int64_t i = 0; i < n; i++)
            a[first + i] = (uint16_t)(oq_f32_bits(e4m3_nearest(part[i] / scale)) >> 16);
    }
}
#else
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
#endif

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
    float *const scale = (float *)(void *)(a + job->layout.depth * job->engine->step);
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
    memset(a + k, 0, (size_t)(job->layout.depth * job->engine->step - k) * sizeof *a);
    job->row_scale[row] = 1.0f;
    if (job->args->spec->scheme.act)
        job->row_scale[row] = codes_prologue(job, from, a);
    else
        memcpy(a, (const uint16_t *)x->data + from * x->ld, (size_t)k * sizeof *a);
}

static bool is_i8(const oq_panel_job *job)
{
    return job->args->spec->scheme.weight->element == &oq_dtype_i8;
}

static void prologue_f32(const oq_panel_job *job, int64_t row)
{
    f32_prologue(job, row);
}

static size_t pairs_scratch_bytes(const oq_panel_engine *pairs, const oq_panel_engine *plain, const oq_linear_spec *spec,
                                  int64_t m)
{
    const size_t a = oq_panel_scratch_bytes(pairs, spec, m), b = oq_panel_scratch_bytes(plain, spec, m);
    return a > b ? a : b;
}

static void pairs_run(const oq_panel_engine *pairs, const oq_panel_engine *plain, oq_device *device,
                      const oq_linear_args *args)
{
    const bool exact = args->spec->scheme.act || args->x.dtype == &oq_dtype_bf16;
    oq_panel_run(exact ? pairs : plain, device, args);
}

#define PAIRS_ENGINE_DEFINE(name, pairs, plain)                                                              \
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
        return pairs_scratch_bytes(pairs, plain, spec, m);                                                   \
    }                                                                                                        \
    void oq_panel_##name##_run(oq_device *device, const oq_linear_args *args)                                \
    {                                                                                                        \
        pairs_run(pairs, plain, device, args);                                                               \
    }                                                                                                        \
    unsigned oq_panel_##name##_fuses(const oq_linear_spec *spec)                                             \
    {                                                                                                        \
        return oq_panel_fuses(pairs, spec); /* as plain */                                                   \
    }

#endif
