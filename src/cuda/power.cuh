/* power.cuh -- numbers of block formats on the device: powers of two as scales, e2m1 and e4m3 to nearest. */
#ifndef OQ_CUDA_POWER_CUH
#define OQ_CUDA_POWER_CUH

#include "cuda/device.cuh"

/* Nearest number of e2m1 (ties to the even code), saturating; NaN is 6, as its code is 7. Adding 2^22 times the power of two
 * below |x|, at least 1, leaves the number of half powers. */
static __device__ __forceinline__ float round_e2m1(float x)
{
    const uint32_t bits = __float_as_uint(x), all = bits & 0x7fffffffu;
    if (all > 0x7f800000u) return 6.0f;
    const float magnitude = fminf(__uint_as_float(all), 6.0f);
    const float power =
        __uint_as_float(max(__float_as_uint(magnitude) & 0x7f800000u, 0x3f800000u)) * 4194304.0f;
    return copysignf(__fsub_rn(__fadd_rn(magnitude, power), power), x);
}

static __device__ __forceinline__ float round_e4m3(float x)
{
    const __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    return element(&code, OQ_CU_E4M3, 0);
}

/* oq_e8m0_choose: the smallest power with amax / 2^X <= limit, or below it. */
static __device__ __forceinline__ uint32_t choose_power(float amax, float limit, bool below)
{
    const uint32_t bits = __float_as_uint(amax), top = __float_as_uint(limit);
    const uint32_t m = bits & 0x7fffffu, l = top & 0x7fffffu;
    if (bits >= 0x7f800000u) return 255;
    const int byte = (int)(bits >> 23) - (int)(top >> 23) + 127 + (below ? m >= l : m > l);
    if (!(bits >> 23) || byte < 0) return 0;
    return (uint32_t)min(byte, 254);
}

static __device__ __forceinline__ float power_of(uint32_t byte)
{
    return __uint_as_float(byte == 255 ? 0x7fc00000u : byte ? byte << 23 : 0x00400000u);
}

#endif
