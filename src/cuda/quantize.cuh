/* quantize.cuh -- numbers to FP8 and INT8 codes, and the scale that a row's largest magnitude leads to: the arithmetic of
 * oq_act_quantize_row. */
#ifndef OQ_CUDA_QUANTIZE_CUH
#define OQ_CUDA_QUANTIZE_CUH

#include "cuda/device.cuh"

#define E4M3_MAX 448.0f

/* x / s rounded to nearest: the reciprocal's product, corrected by its own remainder. Far beyond every code
 * the correction could overflow and is not needed. */
static __device__ __forceinline__ float quotient(float x, float s, float inverse)
{
    const float q = x * inverse;
    return fabsf(q) < 1e6f ? fmaf(fmaf(-q, s, x), inverse, q) : q;
}

/* The same where |x / s| is a code's magnitude: a scale that the row's own largest number led to. */
static __device__ __forceinline__ float quotient_in_range(float x, float s, float inverse)
{
    const float q = x * inverse;
    return fmaf(fmaf(-q, s, x), inverse, q);
}

static __device__ __forceinline__ uint32_t e4m3_pair(float a, float b)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

/* Each block's share of a vector. */
static __device__ __forceinline__ void narrow_share(const oq_cu_narrow &v)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < v.n; i += (int64_t)gridDim.x * blockDim.x)
        ((__nv_bfloat16 *)v.to)[i] = __float2bfloat16_rn(v.from[i]);
}

struct coder {
    bool integer, divide; /* codes are i8; value is x / divisor, else x * factor */
    bool ranged;          /* the scale is the numbers' own: no quotient leaves the codes' range */
    float scale;          /* stored beside the codes */
    float divisor, factor;
    __device__ __forceinline__ float value(float x) const
    {
        if (!divide) return x * factor;
        return ranged ? quotient_in_range(x, divisor, factor) : quotient(x, divisor, factor);
    }
};

static __device__ __forceinline__ uint32_t i8_code(float x)
{
    int q = __float2int_rn(x);
    q = q > 127 ? 127 : q < -128 ? -128 : q;
    return (uint32_t)q & 0xffu;
}

/* Scale of a row or group from its largest magnitude (NaN and infinity store NaN). */
static __device__ __forceinline__ coder coder_for(bool integer, oq_cu_act_scale kind, float amax, float given)
{
    const float nan = __int_as_float(0x7fc00000);
    const bool ok = amax <= 3.402823466e38f;
    if (integer && kind != OQ_CU_ACT_STATIC) {
        const float multiplier = 127.0f / amax;
        const bool tiny = isinf(multiplier);
        return {true, false, true, !ok ? nan : tiny ? 0.0f : amax / 127.0f, 0.0f, tiny || !ok ? 0.0f : multiplier};
    }
    float s = given;
    if (kind == OQ_CU_ACT_TOKEN) s = fmaxf(amax / E4M3_MAX, 1.0f / (E4M3_MAX * 512.0f));
    if (kind == OQ_CU_ACT_GROUP) s = fmaxf(amax, 1e-12f) / E4M3_MAX;
    return {integer, true, kind != OQ_CU_ACT_STATIC, ok ? s : nan, s, 1.0f / s};
}

template <int N>
static __device__ __forceinline__ void put_codes(const coder &c, uint8_t *to, const float (&v)[N])
{
    if constexpr (N == 8) {
        uint32_t w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float q[4];
#pragma unroll
            for (int j = 0; j < 4; j++) q[j] = c.value(v[4 * i + j]);
            w[i] = c.integer ? i8_code(q[0]) | i8_code(q[1]) << 8 | i8_code(q[2]) << 16 | i8_code(q[3]) << 24
                             : e4m3_pair(q[0], q[1]) | e4m3_pair(q[2], q[3]) << 16;
        }
        *(uint2 *)to = make_uint2(w[0], w[1]);
    } else {
        const float q = c.value(v[0]);
        *to = (uint8_t)(c.integer ? i8_code(q) : e4m3_pair(q, 0.0f) & 0xffu);
    }
}

template <int N> static __device__ __forceinline__ float amax_of(const float (&v)[N], float m)
{
#pragma unroll
    for (int i = 0; i < N; i++) m = op_max::join(fabsf(v[i]), m);
    return m;
}

#endif
