/* decode.cu -- codes to bf16, f32 biases to bf16, and integer or float accumulators to activations. */
#include "cuda/device.cuh"

__global__ void to_bf16_kernel(__nv_bfloat16 *dst, const float *src, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        dst[i] = __float2bfloat16_rn(src[i]);
}

extern "C" void oq_cu_to_bf16(cudaStream_t stream, void *dst, const float *src, int64_t n)
{
    if (n > 0) to_bf16_kernel<<<blocks_for(n, 256, 132 * 16), 256, 0, stream>>>((__nv_bfloat16 *)dst, src, n);
}

/* Row blockIdx.y (grid-stride); eight codes per thread where k allows it. */
template <int N> __global__ void decode_kernel(oq_cu_view dst, oq_cu_codes w)
{
    const int64_t per_row = w.k / N;
    for (int64_t row = blockIdx.y; row < w.n; row += gridDim.y) {
        const float *scales = w.scales ? w.scales + row / w.block_n * w.scale_ld : nullptr;
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < per_row;
             i += (int64_t)gridDim.x * blockDim.x) {
            const int64_t at = row * w.k + i * N;
            float v[N];
            if (N == 8 && (w.type == OQ_CU_E4M3 || w.type == OQ_CU_I8)) {
                const uint2 u = *(const uint2 *)((const uint8_t *)w.codes + at);
                const uint8_t *bytes = (const uint8_t *)&u;
#pragma unroll
                for (int j = 0; j < N; j++) v[j] = element(bytes, w.type, j);
            } else {
#pragma unroll
                for (int j = 0; j < N; j++) v[j] = element(w.codes, w.type, at + j);
            }
            if (scales) {
#pragma unroll
                for (int j = 0; j < N; j++) v[j] *= scales[(i * N + j) / w.block_k];
            }
            store<N>(dst, at, v);
        }
    }
}

extern "C" void oq_cu_decode(cudaStream_t stream, void *dst, const oq_cu_codes *codes)
{
    oq_cu_codes w = *codes;
    if (w.block_n == 0) w.block_n = w.n;
    if (w.block_k == 0) w.block_k = w.k;
    if (w.scale_ld == 0) w.scale_ld = (w.k + w.block_k - 1) / w.block_k;
    const oq_cu_view y = {dst, w.n, w.k, w.k, OQ_CU_BF16};
    const unsigned rows = (unsigned)(w.n < 32768 ? w.n : 32768);
    if (w.k % 8 == 0 && wide_ptr(dst) && wide_ptr(w.codes))
        decode_kernel<8><<<dim3(blocks_for(w.k / 8, 256, 64), rows), 256, 0, stream>>>(y, w);
    else
        decode_kernel<1><<<dim3(blocks_for(w.k, 256, 64), rows), 256, 0, stream>>>(y, w);
}

template <int N, bool FLOATING>
__global__ void scale_rows_kernel(oq_cu_view y, const void *acc, const float *sx, const float *sw,
                                  const float *bias)
{
    const int64_t row = blockIdx.y + (int64_t)blockIdx.z * gridDim.y;
    if (row >= y.rows) return;
    const float s = sx[row];
    for (int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; c < y.cols;
         c += (int64_t)gridDim.x * blockDim.x * N) {
        float v[N], w[N], b[N];
#pragma unroll
        for (int j = 0; j < N; j++) b[j] = 0.0f;
        if (FLOATING) {
            load_f32<N>((const float *)acc + row * y.cols, c, v);
        } else if constexpr (N == 8) {
            const int4 lo = *(const int4 *)((const int *)acc + row * y.cols + c);
            const int4 hi = *(const int4 *)((const int *)acc + row * y.cols + c + 4);
            const int q[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = (float)q[j];
        } else {
            v[0] = (float)((const int *)acc)[row * y.cols + c];
        }
        load_f32<N>(sw, c, w);
        if (bias) load_f32<N>(bias, c, b);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = v[j] * (s * w[j]) + b[j];
        store<N>(y, row * y.ld + c, v);
    }
}

extern "C" void oq_cu_scale_rows(cudaStream_t stream, oq_cu_view y, const void *acc, bool floating,
                                 const float *sx, const float *sw, const float *bias)
{
    if (y.rows <= 0) return;
    const bool eight = wide(y) && wide_ptr(acc) && wide_ptr(sw) && wide_ptr(bias);
    const unsigned rows = y.rows < 32768 ? (unsigned)y.rows : 32768;
    const dim3 grid(blocks_for(y.cols, eight ? 256 * 8 : 256, 64), rows,
                    (unsigned)((y.rows + rows - 1) / rows));
    if (eight && floating)
        scale_rows_kernel<8, true><<<grid, 256, 0, stream>>>(y, acc, sx, sw, bias);
    else if (eight)
        scale_rows_kernel<8, false><<<grid, 256, 0, stream>>>(y, acc, sx, sw, bias);
    else if (floating)
        scale_rows_kernel<1, true><<<grid, 256, 0, stream>>>(y, acc, sx, sw, bias);
    else
        scale_rows_kernel<1, false><<<grid, 256, 0, stream>>>(y, acc, sx, sw, bias);
}
