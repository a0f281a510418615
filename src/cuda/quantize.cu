/* quantize.cu -- activations become FP8 or INT8 codes with a scale per row, per row and 128 columns, or a
 * given one. One block per row, the row in registers, one pass over memory. The arithmetic is
 * oq_act_quantize_row's, code for code: quotients are correctly rounded. */
#include "cuda/quantize.cuh"

struct quantize_args {
    oq_cu_view x;
    uint8_t *codes;
    float *scales;
    const float *given;
    oq_cu_act_scale kind;
    bool integer;
};

/* One scale per row; thread t owns columns 8 (t + i T). */
template <int CHUNKS> __global__ void quantize_row_kernel(quantize_args a)
{
    const int64_t row = blockIdx.x;
    const int n_vec = (int)(a.x.cols / 8), t = (int)threadIdx.x, step = (int)blockDim.x;
    float v[CHUNKS][8], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec) load<8>(a.x, row * a.x.ld + 8 * (t + i * step), v[i]);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec) amax = amax_of<8>(v[i], amax);
    amax = block_reduce<op_max>(amax);
    const coder c = coder_for(a.integer, a.kind, amax, a.given ? *a.given : 0.0f);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec) put_codes<8>(c, a.codes + row * a.x.cols + 8 * (t + i * step), v[i]);
    if (t == 0) a.scales[row] = c.scale;
}

__global__ void quantize_row_any_kernel(quantize_args a)
{
    const int64_t row = blockIdx.x;
    float v[1], amax = 0.0f;
    for (int64_t c = threadIdx.x; c < a.x.cols; c += blockDim.x) {
        load<1>(a.x, row * a.x.ld + c, v);
        amax = amax_of<1>(v, amax);
    }
    amax = block_reduce<op_max>(amax);
    const coder k = coder_for(a.integer, a.kind, amax, a.given ? *a.given : 0.0f);
    for (int64_t c = threadIdx.x; c < a.x.cols; c += blockDim.x) {
        load<1>(a.x, row * a.x.ld + c, v);
        put_codes<1>(k, a.codes + row * a.x.cols + c, v);
    }
    if (threadIdx.x == 0) a.scales[row] = k.scale;
}

/* A half warp per group of 128 columns (16 threads of eight); the last group may be shorter. */
template <int N> __global__ void quantize_group_kernel(quantize_args a, int64_t groups)
{
    const int64_t g = (int64_t)blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, row = blockIdx.x;
    if (g >= groups) return;
    const int lane = (int)(threadIdx.x & 31);
    constexpr int CHUNKS = N == 8 ? 1 : 4, WIDTH = N;
    float v[CHUNKS][WIDTH], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int64_t col = g * 128 + (N == 8 ? (int64_t)lane * 8 : (int64_t)(i * 32 + lane));
        if (col < a.x.cols && (N != 8 || lane < 16)) {
            load<WIDTH>(a.x, row * a.x.ld + col, v[i]);
            amax = amax_of<WIDTH>(v[i], amax);
        }
    }
    amax = warp_reduce<op_max>(amax);
    const coder c = coder_for(a.integer, a.kind, amax, 0.0f);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int64_t col = g * 128 + (N == 8 ? (int64_t)lane * 8 : (int64_t)(i * 32 + lane));
        if (col < a.x.cols && (N != 8 || lane < 16))
            put_codes<WIDTH>(c, a.codes + row * a.x.cols + col, v[i]);
    }
    if (lane == 0) a.scales[g * a.x.rows + row] = c.scale;
}

static void quantize_groups(cudaStream_t stream, const quantize_args &a, bool eight)
{
    const int64_t groups = (a.x.cols + 127) / 128;
    const dim3 grid((unsigned)a.x.rows, (unsigned)((groups + 3) / 4));
    if (eight)
        quantize_group_kernel<8><<<grid, 128, 0, stream>>>(a, groups);
    else
        quantize_group_kernel<1><<<grid, 128, 0, stream>>>(a, groups);
}

extern "C" void oq_cu_quantize(cudaStream_t stream, oq_cu_type code, oq_cu_act_scale kind,
                               const float *static_scale, void *codes, float *scales, oq_cu_view x)
{
    if (x.rows <= 0) return;
    const quantize_args a = {x, (uint8_t *)codes, scales, static_scale, kind, code == OQ_CU_I8};
    const bool eight = wide(x) && wide_ptr(codes);
    const int64_t vec = x.cols / 8;
    const unsigned rows = (unsigned)x.rows, any = x.cols > 255 ? 256 : 32;
    if (kind == OQ_CU_ACT_GROUP)
        quantize_groups(stream, a, eight);
    else if (eight && vec <= 256)
        quantize_row_kernel<1><<<rows, (unsigned)((vec + 31) / 32 * 32), 0, stream>>>(a);
    else if (eight && vec <= 512)
        quantize_row_kernel<2><<<rows, (unsigned)((vec + 63) / 64 * 32), 0, stream>>>(a);
    else if (eight && vec <= 4096)
        quantize_row_kernel<4><<<rows, (unsigned)((vec + 127) / 128 * 32), 0, stream>>>(a);
    else
        quantize_row_any_kernel<<<rows, any, 0, stream>>>(a);
}
