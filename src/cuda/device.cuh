/* device.cuh -- what every kernel file uses: typed loads and stores of one or eight elements, reductions,
 * grids. */
#ifndef OQ_CUDA_DEVICE_CUH
#define OQ_CUDA_DEVICE_CUH

#include "cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

static __device__ __forceinline__ float bf16_bits(uint32_t h)
{
    return __uint_as_float(h << 16);
}

static __device__ __forceinline__ float bf16_round(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

static __device__ __forceinline__ uint32_t bf16_pair(float lo, float hi)
{
    const __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    uint32_t u;
    memcpy(&u, &p, 4);
    return u;
}

/* Products and sums of pairs, each rounded once; of two bf16 numbers that is what f32 and a rounding give. */
static __device__ __forceinline__ uint32_t bf16_times(uint32_t a, uint32_t b)
{
    __nv_bfloat162 x, y;
    memcpy(&x, &a, 4), memcpy(&y, &b, 4);
    x = __hmul2_rn(x, y);
    memcpy(&a, &x, 4);
    return a;
}

static __device__ __forceinline__ uint32_t bf16_plus(uint32_t a, uint32_t b)
{
    __nv_bfloat162 x, y;
    memcpy(&x, &a, 4), memcpy(&y, &b, 4);
    x = __hadd2_rn(x, y);
    memcpy(&a, &x, 4);
    return a;
}

/* N elements (1, or 8 with 16-byte aligned rows) from a view of f32 or bf16; the branch is uniform. */
template <int N> static __device__ __forceinline__ void load(const oq_cu_view &v, int64_t at, float (&out)[N])
{
    if (v.type == OQ_CU_BF16) {
        const __nv_bfloat16 *p = (const __nv_bfloat16 *)v.data + at;
        if constexpr (N == 8) {
            const uint4 u = *(const uint4 *)p;
            const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[2 * i] = bf16_bits(w[i] & 0xffffu), out[2 * i + 1] = bf16_bits(w[i] >> 16);
        } else {
            out[0] = __bfloat162float(*p);
        }
    } else {
        const float *p = (const float *)v.data + at;
        if constexpr (N == 8) {
            const float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
            out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
            out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
        } else {
            out[0] = *p;
        }
    }
}

template <int N>
static __device__ __forceinline__ void store(const oq_cu_view &v, int64_t at, const float (&x)[N])
{
    if (v.type == OQ_CU_BF16) {
        __nv_bfloat16 *p = (__nv_bfloat16 *)v.data + at;
        if constexpr (N == 8)
            *(uint4 *)p = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
                                     bf16_pair(x[6], x[7]));
        else
            *p = __float2bfloat16_rn(x[0]);
    } else {
        float *p = (float *)v.data + at;
        if constexpr (N == 8) {
            *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
            *(float4 *)(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
        } else {
            *p = x[0];
        }
    }
}

/* One element of any type as f32, exactly. */
static __device__ __forceinline__ float element(const void *data, oq_cu_type type, int64_t at)
{
    switch (type) {
    case OQ_CU_E4M3: {
        const __half_raw h = __nv_cvt_fp8_to_halfraw(((const uint8_t *)data)[at], __NV_E4M3);
        return __half2float(*(const __half *)&h);
    }
    case OQ_CU_I8:
        return (float)((const int8_t *)data)[at];
    case OQ_CU_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)data)[at]);
    default:
        return ((const float *)data)[at];
    }
}

/* The value as y's type would keep it. */
static __device__ __forceinline__ float keep(const oq_cu_view &y, float x)
{
    return y.type == OQ_CU_BF16 ? bf16_round(x) : x;
}

/* Where a row starts; a view of one row is every row's. */
static __device__ __forceinline__ int64_t row_start(const oq_cu_view &v, int64_t row)
{
    return v.rows == 1 ? 0 : row * v.ld;
}

/* N f32 parameters (weights, biases) from memory aligned to 16 bytes at multiples of eight. */
template <int N> static __device__ __forceinline__ void load_f32(const float *p, int64_t at, float (&out)[N])
{
    const oq_cu_view v = {(void *)p, 1, 0, 0, OQ_CU_F32};
    load<N>(v, at, out);
}

/* Sum or maximum over the block's threads (a multiple of 32); every thread gets it. Two barriers. */
struct op_sum {
    static constexpr float none = 0.0f;
    static __device__ __forceinline__ float join(float a, float b)
    {
        return a + b;
    }
};
struct op_max { /* a NaN wins */
    static constexpr float none = 0.0f;
    static __device__ __forceinline__ float join(float a, float b)
    {
        return a != a || a > b ? a : b;
    }
};

template <class OP> static __device__ __forceinline__ float warp_reduce(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x = OP::join(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

template <class OP> static __device__ __forceinline__ float block_reduce(float x)
{
    __shared__ float part[32];
    x = warp_reduce<OP>(x);
    const int n_warps = (int)(blockDim.x >> 5);
    if (n_warps == 1) return x;
    __syncthreads(); /* `part` may still be read from an earlier call */
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
    __syncthreads();
    float r = OP::none;
    for (int i = 0; i < n_warps; i++) r = OP::join(r, part[i]);
    return r;
}

/* The same with one barrier: `part` is one of two that calls use in turn, so that nobody still reads it. */
template <class OP> static __device__ __forceinline__ float row_reduce(float x, float *part)
{
    x = warp_reduce<OP>(x);
    const int n_warps = (int)(blockDim.x >> 5);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
    __syncthreads();
    float r = OP::none;
    for (int i = 0; i < n_warps; i++) r = OP::join(r, part[i]);
    return n_warps == 1 ? x : r;
}

/* ---- host side ---- */

/* Eight at a time is allowed when columns, row distance and address agree with 16-byte accesses. */
static inline bool wide(const oq_cu_view &v)
{
    return v.rows == 0 || (v.cols % 8 == 0 && v.ld % 8 == 0 && ((uintptr_t)v.data & 15) == 0);
}

static inline bool wide_ptr(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

static inline unsigned blocks_for(int64_t n, int64_t per_block, int64_t limit)
{
    const int64_t b = (n + per_block - 1) / per_block;
    return (unsigned)(b < 1 ? 1 : b > limit ? limit : b);
}

#endif
