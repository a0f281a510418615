/* requantize.cu -- activations rounded to what a block format would keep, as ordinary numbers: the exact meaning of MX,
 * NVFP4 and four-bit activations on devices whose products know no such blocks. The arithmetic is oq_act_quantize_row's. */
#include "cuda/power.cuh"

struct rounding { /* of one run */
    float scale, inverse;
    bool divide, e4m3, int4, positive;
    __device__ __forceinline__ float of(float x) const
    {
        if (int4) return fmaxf(rintf(x * inverse), positive ? 0.0f : -15.0f) * scale;
        const float v = divide ? __fdiv_rn(x, scale) : x * inverse;
        return (e4m3 ? round_e4m3(v) : round_e2m1(v)) * scale;
    }
};

static __device__ __forceinline__ rounding rounding_for(const oq_cu_blocks &how, float amax, float given)
{
    const float nan = __int_as_float(0x7fc00000);
    if (how.nvfp4) {
        const bool ok = amax <= 3.402823466e38f;
        const float wanted = __fdiv_rn(amax, 6.0f * given);
        const float scale = round_e4m3(fminf(fmaxf(wanted, 0x1p-9f), 448.0f)) * given;
        return {ok ? scale : nan, 0.0f, true, false, false, false};
    }
    if (how.int4) { /* amax so small that the quotient is none: zeros */
        const float inverse = __fdiv_rn(how.limit, amax);
        const bool none = inverse > 3.402823466e38f;
        return {none ? 0.0f : __fdiv_rn(amax, how.limit), none ? 0.0f : inverse, false, false, true, how.positive};
    }
    const uint32_t byte = choose_power(amax, how.limit, how.below);
    return {power_of(byte), byte == 255 ? 0.0f : power_of(254 - byte), false, how.e4m3, false, false};
}

/* RUN / 8 neighbouring threads share a run of eight columns each. */
template <int RUN>
__global__ void __launch_bounds__(256) requantize_kernel(oq_cu_view y, oq_cu_view x, oq_cu_blocks how)
{
    constexpr int LANES = RUN / 8;
    const int64_t per_row = (x.cols + RUN - 1) / RUN * LANES, n = x.rows * per_row;
    const int64_t rounds = (n + 255) / 256 * 256; /* all threads of a warp stay together */
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < rounds; i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / per_row, col = (i - row * per_row) * 8;
        const bool inside = i < n && col < x.cols;
        float v[8] = {}, amax = 0.0f;
        if (inside) load<8>(x, row * x.ld + col, v);
#pragma unroll
        for (int j = 0; j < 8; j++) amax = op_max::join(fabsf(v[j]), amax);
#pragma unroll
        for (int d = LANES / 2; d > 0; d /= 2)
            amax = op_max::join(amax, __shfl_xor_sync(0xffffffffu, amax, d));
        const rounding r = rounding_for(how, amax, how.given ? *how.given : 0.0f);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = r.of(v[j]);
        if (inside) store<8>(y, row * y.ld + col, v);
    }
}

/* Any width and alignment: a thread for each run. */
__global__ void __launch_bounds__(256)
    requantize_any_kernel(oq_cu_view y, oq_cu_view x, oq_cu_blocks how, int run)
{
    const int64_t per_row = (x.cols + run - 1) / run, n = x.rows * per_row;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / per_row, first = (i - row * per_row) * run, end = min(first + run, x.cols);
        float v[1], amax = 0.0f;
        for (int64_t c = first; c < end; c++)
            load<1>(x, row * x.ld + c, v), amax = op_max::join(fabsf(v[0]), amax);
        const rounding r = rounding_for(how, amax, how.given ? *how.given : 0.0f);
        for (int64_t c = first; c < end; c++) {
            load<1>(x, row * x.ld + c, v);
            v[0] = r.of(v[0]);
            store<1>(y, row * y.ld + c, v);
        }
    }
}

/* A warp for each 512 columns: their own scale, then groups of 32 under powers of two. */
__global__ void __launch_bounds__(256) requantize_dual_kernel(oq_cu_view y, oq_cu_view x, oq_cu_blocks how)
{
    constexpr int GROUPS = 16;
    const int64_t per_row = (x.cols + 511) / 512, n = x.rows * per_row;
    const int lane = (int)threadIdx.x & 31;
    for (int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; i < n; i += (int64_t)gridDim.x * 8) {
        const int64_t row = i / per_row, first = (i - row * per_row) * 512 + lane;
        float v[GROUPS], one[1], amax = 0.0f;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            one[0] = 0.0f;
            if (first + g * 32 < x.cols) load<1>(x, row * x.ld + first + g * 32, one);
            v[g] = one[0];
            amax = op_max::join(fabsf(v[g]), amax);
        }
        const float sixth = __fdiv_rn(warp_reduce<op_max>(amax), 6.0f), by = sixth < 0x1p-100f ? 1.0f : sixth;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const float over = __fdiv_rn(v[g], by);
            rounding r = rounding_for(how, warp_reduce<op_max>(fabsf(over)), 0.0f);
            r.scale = __fmul_rn(r.scale, by);
            one[0] = r.of(over);
            if (first + g * 32 < x.cols) store<1>(y, row * y.ld + first + g * 32, one);
        }
    }
}

extern "C" void oq_cu_requantize(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_blocks *how)
{
    if (x.rows <= 0) return;
    if (how->dual) {
        const unsigned blocks = blocks_for(x.rows * ((x.cols + 511) / 512), 8, 132 * 16);
        requantize_dual_kernel<<<blocks, 256, 0, stream>>>(y, x, *how);
        return;
    }
    const int run = how->nvfp4 ? 16 : how->int4 ? 64 : 32;
    const unsigned grid = blocks_for(x.rows * ((x.cols + run - 1) / run) * (run / 8), 256, 132 * 16);
    if (!wide(x) || !wide(y))
        requantize_any_kernel<<<grid, 256, 0, stream>>>(y, x, *how, run);
    else if (run == 16)
        requantize_kernel<16><<<grid, 256, 0, stream>>>(y, x, *how);
    else if (run == 64)
        requantize_kernel<64><<<grid, 256, 0, stream>>>(y, x, *how);
    else
        requantize_kernel<32><<<grid, 256, 0, stream>>>(y, x, *how);
}

__global__ void __launch_bounds__(256)
    dequantize_kernel(oq_cu_view y, oq_cu_view codes, const float *scales, int64_t x_group)
{
    const int64_t n = y.rows * y.cols;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / y.cols, col = i - row * y.cols;
        const float s = scales[(x_group ? col / x_group : 0) * y.rows + row];
        const float v[1] = {element(codes.data, codes.type, row * codes.ld + col) * s};
        store<1>(y, row * y.ld + col, v);
    }
}

extern "C" void oq_cu_dequantize(cudaStream_t stream, oq_cu_view y, oq_cu_view codes, const float *scales,
                                 int64_t x_group)
{
    if (y.rows > 0)
        dequantize_kernel<<<blocks_for(y.rows * y.cols, 256, 132 * 16), 256, 0, stream>>>(y, codes, scales,
                                                                                          x_group);
}
