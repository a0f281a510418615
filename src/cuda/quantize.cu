/* quantize.cu -- activations become FP8 or INT8 codes with a scale per row, per row and 128 columns, or a
 * given one. One block per row, the row in registers, one pass over memory. The arithmetic is
 * oq_act_quantize_row's, code for code: quotients are correctly rounded. */
#include "cuda/device.cuh"

#define E4M3_MAX 448.0f

/* x / s rounded to nearest: the reciprocal's product, corrected by its own remainder. Far beyond every code
 * the correction could overflow and is not needed. */
static __device__ __forceinline__ float quotient(float x, float s, float inverse)
{
    const float q = x * inverse;
    return fabsf(q) < 1e6f ? fmaf(fmaf(-q, s, x), inverse, q) : q;
}

static __device__ __forceinline__ uint32_t e4m3_pair(float a, float b)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

struct coder {
    bool integer, divide; /* codes are i8; value is x / divisor, else x * factor */
    float scale;          /* stored beside the codes */
    float divisor, factor;
    __device__ __forceinline__ float value(float x) const
    {
        return divide ? quotient(x, divisor, factor) : x * factor;
    }
};

static __device__ __forceinline__ uint32_t i8_code(float x)
{
    int q = __float2int_rn(x);
    q = q > 127 ? 127 : q < -128 ? -128 : q;
    return (uint32_t)q & 0xffu;
}

/* Scale of a row or group from its largest magnitude (NaN and infinity store NaN). */
static __device__ __forceinline__ coder coder_for(bool integer, oq_cu_act_scale kind, float amax, float given)
{
    const float nan = __int_as_float(0x7fc00000);
    const bool ok = amax <= 3.402823466e38f;
    if (integer && kind != OQ_CU_ACT_STATIC) {
        const float multiplier = 127.0f / amax;
        const bool tiny = isinf(multiplier);
        return {true, false, !ok ? nan : tiny ? 0.0f : amax / 127.0f, 0.0f, tiny || !ok ? 0.0f : multiplier};
    }
    float s = given;
    if (kind == OQ_CU_ACT_TOKEN) s = fmaxf(amax / E4M3_MAX, 1.0f / (E4M3_MAX * 512.0f));
    if (kind == OQ_CU_ACT_GROUP) s = fmaxf(amax, 1e-12f) / E4M3_MAX;
    return {integer, true, ok ? s : nan, s, 1.0f / s};
}

template <int N>
static __device__ __forceinline__ void put_codes(const coder &c, uint8_t *to, const float (&v)[N])
{
    if constexpr (N == 8) {
        uint32_t w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float q[4];
#pragma unroll
            for (int j = 0; j < 4; j++) q[j] = c.value(v[4 * i + j]);
            w[i] = c.integer ? i8_code(q[0]) | i8_code(q[1]) << 8 | i8_code(q[2]) << 16 | i8_code(q[3]) << 24
                             : e4m3_pair(q[0], q[1]) | e4m3_pair(q[2], q[3]) << 16;
        }
        *(uint2 *)to = make_uint2(w[0], w[1]);
    } else {
        const float q = c.value(v[0]);
        *to = (uint8_t)(c.integer ? i8_code(q) : e4m3_pair(q, 0.0f) & 0xffu);
    }
}

struct quantize_args {
    oq_cu_view x;
    uint8_t *codes;
    float *scales;
    const float *given;
    oq_cu_act_scale kind;
    bool integer;
};

template <int N> static __device__ __forceinline__ float amax_of(const float (&v)[N], float m)
{
#pragma unroll
    for (int i = 0; i < N; i++) m = op_max::join(fabsf(v[i]), m);
    return m;
}

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
