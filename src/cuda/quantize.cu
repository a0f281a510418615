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
    oq_cu_narrow beside;
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

/* What makes a row of bf16: nothing, one of the activations that networks have there, or any. */
enum made { AS_IT_IS, BY_SILU, BY_GELU_TANH, BY_ANY };

/* Two numbers of an activation, times two more where it is gated; each step rounds where its operation would store. */
template <made MADE>
static __device__ __forceinline__ uint32_t made_pair(int unary, uint32_t a, bool gated, uint32_t b)
{
    const int kind = MADE == BY_SILU ? SILU : MADE == BY_GELU_TANH ? GELU_TANH : unary;
    const uint32_t act = bf16_pair(activate(kind, __uint_as_float(a << 16), true),
                                   activate(kind, __uint_as_float(a & 0xffff0000u), true));
    return gated ? bf16_times(act, b) : act;
}

static __device__ __forceinline__ uint4 vector_at(const oq_cu_view &v, int64_t row, int64_t column)
{
    return __ldcs((const uint4 *)((const __nv_bfloat16 *)v.data + row * v.ld + column));
}

/* A number over its scale; one that was given may send it far beyond the codes. */
template <bool GIVEN> static __device__ __forceinline__ float ratio(const coder &c, float x)
{
    return GIVEN ? quotient(x, c.divisor, c.factor) : quotient_in_range(x, c.divisor, c.factor);
}

/* The same for rows of bf16 to e4m3 under a scale per row or a given one, where arithmetic, not memory, is what costs: numbers
 * stay packed in pairs until they are divided, and magnitudes are compared as the integers that they are (a NaN's is the
 * largest). A given scale wants the largest one too: what is not finite is told by the row's scale. */
template <int CHUNKS, made MADE, bool GATED, bool GIVEN>
__global__ void quantize_bf16_kernel(const __grid_constant__ quantize_args a)
{
    const int64_t row = blockIdx.x;
    const int n_vec = (int)(a.x.cols / 8), t = (int)threadIdx.x, step = (int)blockDim.x;
    uint4 v[CHUNKS], gate[CHUNKS]; /* no registers where nothing is gated: more blocks share a multiprocessor */
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) { /* all loads first */
        const int64_t column = 8 * (t + i * step), from = column - a.pre.from;
        v[i] = gate[i] = make_uint4(0, 0, 0, 0);
        if (t + i * step >= n_vec) continue;
        if (MADE == AS_IT_IS || from < 0) {
            v[i] = vector_at(a.x, row, column);
            continue;
        }
        v[i] = vector_at(a.pre.a, row, from);
        if (GATED) gate[i] = vector_at(a.pre.b, row, from);
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (MADE == AS_IT_IS || t + i * step >= n_vec || 8 * (t + i * step) < a.pre.from) continue;
        v[i] = make_uint4(made_pair<MADE>(a.pre.unary, v[i].x, GATED, gate[i].x),
                          made_pair<MADE>(a.pre.unary, v[i].y, GATED, gate[i].y),
                          made_pair<MADE>(a.pre.unary, v[i].z, GATED, gate[i].z),
                          made_pair<MADE>(a.pre.unary, v[i].w, GATED, gate[i].w));
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) most = __vmaxu2(most, w[j] & 0x7fff7fffu);
    }
    most = max(most & 0xffffu, most >> 16);
    const float amax = block_reduce<op_max>(bf16_bits(most));
    const coder c = GIVEN ? coder_for(false, OQ_CU_ACT_STATIC, amax, *a.given)
                          : coder_for(false, OQ_CU_ACT_TOKEN, amax, 0.0f);
    uint2 *const codes = (uint2 *)(a.codes + row * a.x.cols);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (t + i * step >= n_vec) break;
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        uint32_t q[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            q[j] = e4m3_pair(ratio<GIVEN>(c, __uint_as_float(w[j] << 16)),
                             ratio<GIVEN>(c, __uint_as_float(w[j] & 0xffff0000u)));
        codes[t + i * step] = make_uint2(q[0] | q[1] << 16, q[2] | q[3] << 16);
    }
    if (t == 0) a.scales[row] = c.scale;
    narrow_share(a.beside);
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

template <made MADE, bool GATED, bool GIVEN> static void quantize_bf16(cudaStream_t stream, const quantize_args &a)
{
    const int64_t vec = a.x.cols / 8;
    const unsigned rows = (unsigned)a.x.rows;
    /* smaller blocks, of which one divides while another waits for memory; few rows want all threads they can get */
    constexpr int MOST = MADE != AS_IT_IS && !GATED ? 1024 : 2048;
    if (vec <= 128)
        quantize_bf16_kernel<1, MADE, GATED, GIVEN><<<rows, threads_for(vec, 1), 0, stream>>>(a);
    else if (vec <= MOST || (vec <= 2048 && rows < 1024))
        quantize_bf16_kernel<4, MADE, GATED, GIVEN><<<rows, threads_for(vec, 4), 0, stream>>>(a);
    else
        quantize_bf16_kernel<8, MADE, GATED, GIVEN><<<rows, threads_for(vec, 8), 0, stream>>>(a);
}

/* False: not bf16 to e4m3. */
template <made MADE> static bool quantize_packed(cudaStream_t stream, const quantize_args &a)
{
    if (a.x.type != OQ_CU_BF16 || a.integer) return false;
    const bool given = a.kind == OQ_CU_ACT_STATIC, gated = MADE != AS_IT_IS && a.pre.b.rows != 0;
    if (given)
        gated ? quantize_bf16<MADE, MADE != AS_IT_IS, true>(stream, a) : quantize_bf16<MADE, false, true>(stream, a);
    else
        gated ? quantize_bf16<MADE, MADE != AS_IT_IS, false>(stream, a) : quantize_bf16<MADE, false, false>(stream, a);
    return true;
}

static bool quantize_made(cudaStream_t stream, const quantize_args &a)
{
    switch (a.pre.unary) {
    case SILU:
        return quantize_packed<BY_SILU>(stream, a);
    case GELU_TANH:
        return quantize_packed<BY_GELU_TANH>(stream, a);
    default:
        return quantize_packed<BY_ANY>(stream, a);
    }
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
                               const float *static_scale, void *codes, float *scales, oq_cu_view x,
                               oq_cu_narrow beside)
{
    if (x.rows <= 0) return;
    const quantize_args a = {x, (uint8_t *)codes, scales, static_scale, kind, code == OQ_CU_I8, {}, beside};
    const bool eight = wide(x) && wide_ptr(codes);
    const int64_t vec = x.cols / 8;
    if (kind != OQ_CU_ACT_GROUP && eight && vec <= 4096 && quantize_packed<AS_IT_IS>(stream, a)) return;
    oq_cu_to_bf16(stream, beside.to, beside.from, beside.n);
    if (kind == OQ_CU_ACT_GROUP)
        quantize_groups(stream, a, eight);
    else if (eight && vec <= 4096)
        quantize_rows<false>(stream, a);
    else
        quantize_row_any_kernel<<<(unsigned)x.rows, x.cols > 255 ? 256 : 32, 0, stream>>>(a);
}

extern "C" bool oq_cu_quantize_pre(cudaStream_t stream, oq_cu_type code, oq_cu_act_scale kind,
                                   const float *static_scale, void *codes, float *scales, oq_cu_view x,
                                   const oq_cu_pre *pre, oq_cu_narrow beside)
{
    const bool eight =
        wide(x) && wide_ptr(codes) && wide(pre->a) && wide(pre->b) && pre->from % 8 == 0 && x.cols <= 8 * 4096;
    if (kind == OQ_CU_ACT_GROUP || !eight) return false;
    if (x.rows <= 0) return true;
    const quantize_args a = {x, (uint8_t *)codes, scales, static_scale, kind, code == OQ_CU_I8, *pre, beside};
    const bool same = pre->a.type == x.type && (!pre->b.rows || pre->b.type == x.type);
    if (same && quantize_made(stream, a)) return true;
    oq_cu_to_bf16(stream, beside.to, beside.from, beside.n);
    quantize_rows<true>(stream, a);
    return true;
}
