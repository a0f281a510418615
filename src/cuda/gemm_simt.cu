/* gemm_simt.cu -- y = x . W^T in f32 for every format, type, size and alignment: operands are decoded into
 * shared memory as f32, 128 x 128 results per block, 8 x 8 per thread. Per-row scales are applied after the
 * sum, block scales while decoding. It serves the f32 path, odd sizes and the check of the fast kernels. */
#include "cuda/device.cuh"

#define TILE_M  128
#define TILE_N  128
#define TILE_K  16
#define THREADS 256

/* Scales that vary along k must be folded in before the sum. */
struct fold {
    bool x, w;
};

static __device__ __forceinline__ float x_element(const oq_cu_gemm &a, const fold &f, int64_t row,
                                                  int64_t col)
{
    if (row >= a.x.rows || col >= a.x.cols) return 0.0f;
    const float v = element(a.x.data, a.x.type, row * a.x.ld + col);
    return f.x ? v * a.x_scale[col / a.x_group * a.x.rows + row] : v;
}

static __device__ __forceinline__ float w_element(const oq_cu_gemm &a, const fold &f, int64_t row,
                                                  int64_t col)
{
    if (row >= a.y.cols || col >= a.x.cols) return 0.0f;
    const float v = element(a.w, a.w_type, row * a.w_ld + col);
    if (!f.w) return v;
    return v * a.w_scale[row / a.w_block_n * a.w_scale_ld + col / a.w_block_k];
}

static __device__ __forceinline__ void fetch(const oq_cu_gemm &a, const fold &f, int64_t m0, int64_t n0,
                                             int64_t k0, float (&fx)[8], float (&fw)[8])
{
    /* Thread t takes column t % 16 of rows t / 16 + 16 i: rows' neighbours in k are read by neighbouring
     * threads. */
    const int64_t k = k0 + threadIdx.x % TILE_K;
    const int r = (int)threadIdx.x / TILE_K;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        fx[i] = x_element(a, f, m0 + r + 16 * i, k);
        fw[i] = w_element(a, f, n0 + r + 16 * i, k);
    }
}

__global__ void __launch_bounds__(THREADS) gemm_simt_kernel(oq_cu_gemm a, fold f)
{
    __shared__ __align__(16) float sx[TILE_K][TILE_M + 4], sw[TILE_K][TILE_N + 4];
    const int64_t m0 = (int64_t)blockIdx.y * TILE_M, n0 = (int64_t)blockIdx.x * TILE_N;
    const int tm = (int)threadIdx.x / 16, tn = (int)threadIdx.x % 16;
    float acc[8][8] = {}, fx[8], fw[8];
    fetch(a, f, m0, n0, 0, fx, fw);
    for (int64_t k0 = 0; k0 < a.x.cols; k0 += TILE_K) {
        const int c = (int)threadIdx.x % TILE_K, r = (int)threadIdx.x / TILE_K;
#pragma unroll
        for (int i = 0; i < 8; i++) sx[c][r + 16 * i] = fx[i], sw[c][r + 16 * i] = fw[i];
        __syncthreads();
        if (k0 + TILE_K < a.x.cols) fetch(a, f, m0, n0, k0 + TILE_K, fx, fw);
#pragma unroll
        for (int k = 0; k < TILE_K; k++) {
            const float4 x0 = *(const float4 *)&sx[k][tm * 4], x1 = *(const float4 *)&sx[k][64 + tm * 4];
            const float4 w0 = *(const float4 *)&sw[k][tn * 4], w1 = *(const float4 *)&sw[k][64 + tn * 4];
            const float vx[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
            const float vw[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) acc[i][j] = fmaf(vx[i], vw[j], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t row = m0 + (i / 4) * 64 + tm * 4 + i % 4;
        if (row >= a.y.rows) continue;
        const float row_scale = a.x_scale && !f.x ? a.x_scale[row] : 1.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int64_t col = n0 + (j / 4) * 64 + tn * 4 + j % 4;
            if (col >= a.y.cols) continue;
            float v[1] = {acc[i][j]};
            if (a.x_scale || a.w_scale)
                v[0] *= row_scale * (a.w_scale && !f.w ? a.w_scale[col / a.w_block_n] : 1.0f);
            if (a.bias) v[0] += a.bias[col];
            store<1>(a.y, row * a.y.ld + col, v);
        }
    }
}

extern "C" void oq_cu_gemm_simt(cudaStream_t stream, const oq_cu_gemm *args)
{
    oq_cu_gemm a = *args;
    if (a.y.rows <= 0 || a.y.cols <= 0) return;
    const fold f = {a.x_scale && a.x_group != 0, a.w_scale && a.w_block_k != 0};
    if (a.w_ld == 0) a.w_ld = a.x.cols;
    if (a.w_block_n == 0) a.w_block_n = a.y.cols;
    if (a.w_block_k == 0) a.w_block_k = a.x.cols;
    if (a.w_scale_ld == 0) a.w_scale_ld = (a.x.cols + a.w_block_k - 1) / a.w_block_k;
    const dim3 grid((unsigned)((a.y.cols + TILE_N - 1) / TILE_N),
                    (unsigned)((a.y.rows + TILE_M - 1) / TILE_M));
    gemm_simt_kernel<<<grid, THREADS, 0, stream>>>(a, f);
}
