/* conv.cu -- a convolution as a product: rows of kt * kh * kw * c_in values gathered from NHWC (or NDHWC) pixels (zeros outside), and weights in the same order. */
#include "cuda/device.cuh"

/* Item: N channels of one tap of one output pixel. dst and x have the same element type. */
template <int N> __global__ void __launch_bounds__(256) im2col_kernel(oq_cu_view dst, oq_cu_im2col a)
{
    const uint32_t per_row = (uint32_t)(a.ld / N), n = (uint32_t)a.rows * per_row;
    const uint32_t c_in = (uint32_t)a.x.cols, area = (uint32_t)(a.kh * a.kw), taps = (uint32_t)a.kt * area;
    for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
        const uint32_t r = i / per_row, col = (i - r * per_row) * N, tap = col / c_in, c = col - tap * c_in;
        const int64_t pixel = a.first + r, image = pixel / (a.oh * a.ow);
        const uint32_t at = (uint32_t)(pixel - image * a.oh * a.ow), oy = at / (uint32_t)a.ow,
                       ox = at % (uint32_t)a.ow;
        const uint32_t in_frame = tap % area;
        const int64_t y = (int64_t)oy * a.stride - a.pad_top + in_frame / (uint32_t)a.kw;
        const int64_t x = (int64_t)ox * a.stride - a.pad_left + in_frame % (uint32_t)a.kw;
        const int64_t entry = image / a.out_frames,
                      t = (image - entry * a.out_frames) * a.stride_t - a.pad_front + tap / area;
        float v[N] = {};
        if (tap < taps && y >= 0 && y < a.h && x >= 0 && x < a.w && t >= -a.n_before) {
            const int64_t frame = t < 0 ? entry * a.n_before + a.n_before + t : entry * a.frames + t;
            if (t < 0)
                load<N>(a.before, ((frame * a.h + y) * a.w + x) * a.before.ld + c, v);
            else
                load<N>(a.x, ((frame * a.h + y) * a.w + x) * a.x.ld + c, v);
        }
        store<N>(dst, (int64_t)r * a.ld + col, v);
    }
}

extern "C" void oq_cu_im2col_run(cudaStream_t stream, void *dst, const oq_cu_im2col *a)
{
    if (a->rows <= 0) return;
    const oq_cu_view d = {dst, a->rows, a->ld, a->ld, a->x.type};
    const unsigned grid = blocks_for(a->rows * a->ld / 8, 256, 132 * 16);
    if (wide(a->x) && wide(a->before) && wide(d))
        im2col_kernel<8><<<grid, 256, 0, stream>>>(d, *a);
    else
        im2col_kernel<1><<<grid, 256, 0, stream>>>(d, *a);
}

__global__ void pad_weight_kernel(oq_cu_view dst, const float *src, int64_t rows, int64_t k)
{
    const int64_t n = dst.rows * dst.cols;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / dst.cols, col = i - row * dst.cols;
        const float v[1] = {row < rows && col < k ? src[row * k + col] : 0.0f};
        store<1>(dst, i, v);
    }
}

extern "C" void oq_cu_pad_weight(cudaStream_t stream, void *dst, bool to_bf16, const float *src, int64_t rows,
                                 int64_t k, int64_t padded_rows, int64_t ld)
{
    const oq_cu_view d = {dst, padded_rows, ld, ld, to_bf16 ? OQ_CU_BF16 : OQ_CU_F32};
    pad_weight_kernel<<<blocks_for(padded_rows * ld, 256, 132 * 16), 256, 0, stream>>>(d, src, rows, k);
}
