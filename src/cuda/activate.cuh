/* activate.cuh -- the activations, one number at a time. Products and sums are written as the instructions that they are, so
 * that every file that includes this computes the same bits, contracted (fmad) or not. */
#ifndef OQ_CUDA_ACTIVATE_CUH
#define OQ_CUDA_ACTIVATE_CUH

#include "cuda/device.cuh"

enum { SILU, GELU_TANH, GELU_ERF, QUICK_GELU, TANH }; /* the order of oq_unary; ops.c asserts it */

/* x / (1 + 2^of_two), by the approximate exponential and division. */
static __device__ __forceinline__ float over_one_plus_power(float x, float of_two)
{
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(of_two));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fadd_rn(1.0f, power)));
    return __fmul_rn(x, inverse);
}

/* x / (1 + e^u). For results that are rounded to bf16, `brief` takes the approximate exponential and division: their error
 * is a hundredth of that rounding, and the exact ones cost more than the memory that an activation reads. */
static __device__ __forceinline__ float sigmoid_of(float x, float u, bool brief)
{
    if (brief) return over_one_plus_power(x, __fmul_rn(u, 1.4426950408889634f));
    return x / __fadd_rn(1.0f, expf(u));
}

static __device__ __forceinline__ float activate(int kind, float x, bool brief)
{
    switch (kind) {
    case SILU:
        return sigmoid_of(x, -x, brief);
    case GELU_TANH: { /* 1 + tanh(u) is 2 / (1 + e^-2u) */
        if (brief) return over_one_plus_power(x, __fmul_rn(x, __fmaf_rn(__fmul_rn(x, x), -0.10294324f, -2.3022082f)));
        const float cubic = __fmul_rn(__fmul_rn(__fmul_rn(0.044715f, x), x), x);
        return sigmoid_of(x, __fmul_rn(-1.5957691216057308f, __fadd_rn(x, cubic)), brief);
    }
    case GELU_ERF: /* 1 + erf(u), without its cancellation */
        return __fmul_rn(__fmul_rn(0.5f, x), erfcf(__fmul_rn(x, -0.7071067811865476f)));
    case QUICK_GELU:
        return sigmoid_of(x, __fmul_rn(-1.702f, x), brief);
    default:
        return tanhf(x);
    }
}

#endif
