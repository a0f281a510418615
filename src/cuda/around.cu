/* around.cu -- what a layer does to its activations before the product, and what must be known of all rows first: columns
 * smoothed, put in another order and rotated; outliers found and left alone. The arithmetic is that of the CPU's
 * linear_around.c. */
#include "cuda/device.cuh"

#define THREADS 256

/* Half the sum of three less the fourth, for each of four numbers at distance `step`. */
static __device__ __forceinline__ void turn(float *x, int step)
{
    const float w = x[0], y = x[step], z = x[2 * step], v = x[3 * step];
    x[0] = 0.5f * ((w + y) + (z - v));
    x[step] = 0.5f * ((w + y) - (z - v));
    x[2 * step] = 0.5f * ((w - y) + (z + v));
    x[3 * step] = 0.5f * ((y - w) + (z + v));
}

/* One block a row, which lies in shared memory. */
__global__ void __launch_bounds__(THREADS) prepare_kernel(oq_cu_view y, oq_cu_view x, oq_cu_around a)
{
    extern __shared__ float row[];
    const int64_t r = blockIdx.x;
    const int k = (int)x.cols;
    for (int i = (int)threadIdx.x; i < k; i += THREADS) {
        const int from = a.order ? a.order[i] : i;
        float v[1];
        load<1>(x, r * x.ld + from, v);
        v[0] = __fadd_rn(v[0], a.shift);
        row[i] = a.smooth ? keep(x, __fmul_rn(v[0], a.smooth[from])) : v[0];
    }
    for (int step = 1; step < a.rotate; step *= 4) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < k / 4; i += THREADS)
            turn(row + i / step * 4 * step + i % step, step);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < k; i += THREADS) {
        const float v[1] = {row[i]};
        store<1>(y, r * y.ld + i, v);
    }
}

extern "C" bool oq_cu_around_prepare(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_around *a)
{
    const size_t shared = (size_t)x.cols * sizeof(float);
    if (x.rows <= 0) return true;
    if (shared > OQ_CU_AROUND_SHARED ||
        cudaFuncSetAttribute(prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared) !=
            cudaSuccess)
        return false;
    prepare_kernel<<<(unsigned)x.rows, THREADS, shared, stream>>>(y, x, *a);
    return true;
}

/* ---- what all rows say --------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) amax_kernel(oq_cu_view x, uint32_t *most)
{
    float amax = 0.0f, v[1];
    const int64_t n = x.rows * x.cols;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        load<1>(x, i / x.cols * x.ld + i % x.cols, v);
        amax = op_max::join(fabsf(v[0]), amax);
    }
    amax = block_reduce<op_max>(amax);
    if (threadIdx.x == 0) atomicMax(most, __float_as_uint(amax)); /* magnitudes order as integers; a NaN is above all */
}

__global__ void nvfp4_global_kernel(float *global)
{
    const float amax = *global;
    *global = amax > 0.0f || amax != amax ? __fdiv_rn(amax, 6.0f * 448.0f) : 1.0f;
}

extern "C" void oq_cu_around_global(cudaStream_t stream, float *global, oq_cu_view x)
{
    cudaMemsetAsync(global, 0, sizeof *global, stream);
    if (x.rows > 0)
        amax_kernel<<<blocks_for(x.rows * x.cols, THREADS * 8, 132 * 8), THREADS, 0, stream>>>(x, (uint32_t *)global);
    nvfp4_global_kernel<<<1, 1, 0, stream>>>(global);
}

__global__ void __launch_bounds__(THREADS) outlier_kernel(oq_cu_view x, float limit, uint8_t *outlier)
{
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= x.cols) return;
    for (int64_t r = blockIdx.y; r < x.rows; r += gridDim.y) {
        float v[1];
        load<1>(x, r * x.ld + c, v);
        if (fabsf(v[0]) >= limit) outlier[c] = 1; /* whoever writes writes the same */
    }
}

/* Codes of eight bits under the row's largest number that is no outlier; columns of outliers stay. One block a row. */
__global__ void __launch_bounds__(THREADS) beside_outliers_kernel(oq_cu_view x, float limit, const uint8_t *outlier)
{
    const int64_t r = blockIdx.x;
    float amax = 0.0f, v[1];
    for (int64_t c = threadIdx.x; c < x.cols; c += THREADS) {
        load<1>(x, r * x.ld + c, v);
        const float a = fabsf(v[0]);
        if (a < limit || a != a) amax = op_max::join(a, amax);
    }
    amax = block_reduce<op_max>(amax);
    const float multiplier = __fdiv_rn(127.0f, amax), scale = __fmul_rn(amax, 1.0f / 127.0f);
    for (int64_t c = threadIdx.x; c < x.cols; c += THREADS) {
        if (outlier[c]) continue;
        load<1>(x, r * x.ld + c, v);
        v[0] = amax > 0.0f ? __fmul_rn(rintf(__fmul_rn(v[0], multiplier)), scale) : amax;
        store<1>(x, r * x.ld + c, v);
    }
}

extern "C" void oq_cu_around_outliers(cudaStream_t stream, oq_cu_view x, float limit, uint8_t *outlier)
{
    cudaMemsetAsync(outlier, 0, (size_t)x.cols, stream);
    if (x.rows <= 0) return;
    const dim3 grid((unsigned)((x.cols + THREADS - 1) / THREADS), blocks_for(x.rows, 32, 128));
    outlier_kernel<<<grid, THREADS, 0, stream>>>(x, limit, outlier);
    beside_outliers_kernel<<<(unsigned)x.rows, THREADS, 0, stream>>>(x, limit, outlier);
}
