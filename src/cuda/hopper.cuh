/* hopper.cuh -- the instructions of SM90a as functions: wgmma's fences and descriptors, mbarriers, bulk tensor copies;
 * and on the host the encoder of tensor maps. */
#ifndef OQ_CUDA_HOPPER_CUH
#define OQ_CUDA_HOPPER_CUH

#include "cuda/device.cuh"

#include <cuda.h>

/* The code exists for the host's eyes and for SM90a; other targets get an empty kernel that is never launched. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

#if HOPPER
static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from touching registers of a product that is under way. */
template <int N> static __device__ __forceinline__ void hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N> static __device__ __forceinline__ void hold(uint32_t (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

template <int N> static __device__ __forceinline__ void hold(int (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* What follows waits until `sum`, which is not negative, is there: the assembler moves a wait for products up to where its
 * block begins, since no number depends on it, and then nothing is done beside them. This mask is a number, and full. */
static __device__ __forceinline__ void after(float sum)
{
    asm volatile("{ .reg .b32 m; .reg .pred p; setp.lt.f32 p, %0, 0f00000000; selp.b32 m, 0, -1, p; bar.warp.sync m; }" ::"f"(
                     sum)
                 : "memory");
}

/* Shared-memory matrix in rows of 128 bytes with the 128-byte swizzle. `leading` is the distance between blocks of 64
 * columns where rows are the summed dimension (values), unused otherwise. */
static __device__ __forceinline__ uint64_t descriptor(uint32_t at, uint32_t leading)
{
    return (uint64_t)((at & 0x3ffffu) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

static __device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}

static __device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(
            bar),
        "r"(parity)
        : "memory");
}

static __device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap *map, int col, int row,
                                                   uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(bar)
                 : "memory");
}

#endif

/* ---- host side ---- */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                              CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill);

/* The driver's function, found at run time: the plugin does not link the driver. NULL: too old. */
static inline encode_fn tensor_map_encoder()
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? (encode_fn)entry : nullptr;
}

#endif
