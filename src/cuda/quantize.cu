/* quantize.cu -- activations become FP8 or INT8 codes with a scale per row, per row and 128 columns, or a
 * given one. One block per row, the row in registers, one pass over memory. The arithmetic is
 * oq_act_quantize_row's, code for code: quotients are correctly rounded. */
#include "cuda/activate.cuh"
#include "cuda/quantize.cuh"

struct quantize_args {
    oq_cu_view x;
    uint8_t *codes;
    float *scales;
    const float *given;
    oq_cu_act_scale kind;
    bool integer;
    oq_cu_pre pre; /* from == x.cols: none */
};

/* Eight numbers at (row, column) of the product's operand, made on the way where `pre` says so. */
template <bool PRE>
static __device__ __forceinline__ void operand(const quantize_args &a, int64_t row, int64_t column,
                                               float (&v)[8])
{
    if (!PRE || column < a.pre.from) {
        load<8>(a.x, row * a.x.ld + column, v);
        return;
    }
    column -= a.pre.from;
    load<8>(a.pre.a, row * a.pre.a.ld + column, v);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = keep(a.x, activate(a.pre.unary, v[j], a.x.type == OQ_CU_BF16));
    if (!a.pre.b.rows) return;
    float b[8];
    load<8>(a.pre.b, row * a.pre.b.ld + column, b);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = keep(a.x, __fmul_rn(v[j], b[j]));
}

/* One scale per row; thread t owns columns 8 (t + i T). */
template <int CHUNKS, bool PRE> __global__ void quantize_row_kernel(const __grid_constant__ quantize_args a)
{
    const int64_t row = blockIdx.x;
    const int n_vec = (int)(a.x.cols / 8), t = (int)threadIdx.x, step = (int)blockDim.x;
    float v[CHUNKS][8], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec) operand<PRE>(a, row, 8 * (t + i * step), v[i]);
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

/* Two numbers of a gated pair, or of an activation alone, rounded where the operations round. */
static __device__ __forceinline__ uint32_t made_pair(int unary, uint32_t a, bool gated, uint32_t b)
{
    const float low = activate(unary, __uint_as_float(a << 16), true),
                high = activate(unary, __uint_as_float(a & 0xffff0000u), true);
    const uint32_t act = bf16_pair(low, high);
    if (!gated) return act;
    return bf16_pair(__fmul_rn(__uint_as_float(act << 16), __uint_as_float(b << 16)),
                     __fmul_rn(__uint_as_float(act & 0xffff0000u), __uint_as_float(b & 0xffff0000u)));
}

static __device__ __forceinline__ uint4 vector_at(const oq_cu_view &v, int64_t row, int64_t column)
{
    return __ldcs((const uint4 *)((const __nv_bfloat16 *)v.data + row * v.ld + column));
}

/* Eight bf16 numbers of the operand, as they lie in memory. */
template <bool PRE>
static __device__ __forceinline__ uint4 operand_bf16(const quantize_args &a, int64_t row, int64_t column)
{
    if (!PRE || column < a.pre.from) return vector_at(a.x, row, column);
    const bool gated = a.pre.b.rows != 0;
    const uint4 x = vector_at(a.pre.a, row, column - a.pre.from),
                y = gated ? vector_at(a.pre.b, row, column - a.pre.from) : make_uint4(0, 0, 0, 0);
    return make_uint4(made_pair(a.pre.unary, x.x, gated, y.x), made_pair(a.pre.unary, x.y, gated, y.y),
                      made_pair(a.pre.unary, x.z, gated, y.z), made_pair(a.pre.unary, x.w, gated, y.w));
}

/* The same for rows of bf16 to e4m3 under a scale per row, where arithmetic, not memory, is what costs: numbers stay packed
 * in pairs until they are divided, and magnitudes are compared as the integers that they are (a NaN's is the largest). */
template <int CHUNKS, bool PRE> __global__ void quantize_bf16_kernel(const __grid_constant__ quantize_args a)
{
    const int64_t row = blockIdx.x;
    const int n_vec = (int)(a.x.cols / 8), t = (int)threadIdx.x, step = (int)blockDim.x;
    uint4 v[CHUNKS];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        v[i] = t + i * step < n_vec ? operand_bf16<PRE>(a, row, 8 * (t + i * step)) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) most = __vmaxu2(most, w[j] & 0x7fff7fffu);
    }
    most = max(most & 0xffffu, most >> 16);
    const float amax = block_reduce<op_max>(bf16_bits(most));
    const coder c = coder_for(false, OQ_CU_ACT_TOKEN, amax, 0.0f);
    uint2 *const codes = (uint2 *)(a.codes + row * a.x.cols);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (t + i * step >= n_vec) break;
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        uint32_t q[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            q[j] = e4m3_pair(quotient_in_range(__uint_as_float(w[j] << 16), c.divisor, c.factor),
                             quotient_in_range(__uint_as_float(w[j] & 0xffff0000u), c.divisor, c.factor));
        codes[t + i * step] = make_uint2(q[0] | q[1] << 16, q[2] | q[3] << 16);
    }
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

/* Threads that take `vec` pieces of a row in `chunks` steps. */
static unsigned threads_for(int64_t vec, int64_t chunks)
{
    return (unsigned)((vec + 32 * chunks - 1) / (32 * chunks) * 32);
}

template <bool PRE> static void quantize_bf16(cudaStream_t stream, const quantize_args &a)
{
    const int64_t vec = a.x.cols / 8;
    const unsigned rows = (unsigned)a.x.rows;
    if (vec <= 128)
        quantize_bf16_kernel<1, PRE><<<rows, threads_for(vec, 1), 0, stream>>>(a);
    else if (vec <= 2048)
        quantize_bf16_kernel<4, PRE><<<rows, threads_for(vec, 4), 0, stream>>>(a);
    else
        quantize_bf16_kernel<8, PRE><<<rows, threads_for(vec, 8), 0, stream>>>(a);
}

static bool takes_bf16(const quantize_args &a)
{
    return a.x.type == OQ_CU_BF16 && a.kind == OQ_CU_ACT_TOKEN && !a.integer;
}

template <bool PRE> static void quantize_rows(cudaStream_t stream, const quantize_args &a)
{
    const int64_t vec = a.x.cols / 8;
    const unsigned rows = (unsigned)a.x.rows;
    if (vec <= 256)
        quantize_row_kernel<1, PRE><<<rows, threads_for(vec, 1), 0, stream>>>(a);
    else if (vec <= 512)
        quantize_row_kernel<2, PRE><<<rows, threads_for(vec, 2), 0, stream>>>(a);
    else
        quantize_row_kernel<4, PRE><<<rows, threads_for(vec, 4), 0, stream>>>(a);
}

extern "C" void oq_cu_quantize(cudaStream_t stream, oq_cu_type code, oq_cu_act_scale kind,
                               const float *static_scale, void *codes, float *scales, oq_cu_view x)
{
    if (x.rows <= 0) return;
    const quantize_args a = {x, (uint8_t *)codes, scales, static_scale, kind, code == OQ_CU_I8, {}};
    const bool eight = wide(x) && wide_ptr(codes);
    const int64_t vec = x.cols / 8;
    if (kind == OQ_CU_ACT_GROUP)
        quantize_groups(stream, a, eight);
    else if (eight && vec <= 4096 && takes_bf16(a))
        quantize_bf16<false>(stream, a);
    else if (eight && vec <= 4096)
        quantize_rows<false>(stream, a);
    else
        quantize_row_any_kernel<<<(unsigned)x.rows, x.cols > 255 ? 256 : 32, 0, stream>>>(a);
}

extern "C" bool oq_cu_quantize_pre(cudaStream_t stream, oq_cu_type code, oq_cu_act_scale kind,
                                   const float *static_scale, void *codes, float *scales, oq_cu_view x,
                                   const oq_cu_pre *pre)
{
    const bool eight =
        wide(x) && wide_ptr(codes) && wide(pre->a) && wide(pre->b) && pre->from % 8 == 0 && x.cols <= 8 * 4096;
    if (kind == OQ_CU_ACT_GROUP || !eight) return false;
    if (x.rows <= 0) return true;
    const quantize_args a = {x, (uint8_t *)codes, scales, static_scale, kind, code == OQ_CU_I8, *pre};
    const bool same = pre->a.type == x.type && (!pre->b.rows || pre->b.type == x.type);
    if (same && takes_bf16(a))
        quantize_bf16<true>(stream, a);
    else
        quantize_rows<true>(stream, a);
    return true;
}
