/* attention_operand.cu -- Q, K and V of a quantized attention: rotated (not V), rounded in blocks under powers of two. Once
 * as bf16 numbers, which they are exactly, for any plain attention; once as e4m3 codes for attention_fp8.cu. The
 * arithmetic is format/attention_operand.c's, in its order of sums. */
#include "cuda/power.cuh"

#define MXFP4     3 /* oq_attention_precision */
#define SIDE_V    2
#define MAX_LANES 8 /* values of one lane: heads of 256 */

/* Bit i is the sign of column i: format/attention_operand.c. */
__constant__ uint32_t sign_bits[8] = {0x0f2f19a7u, 0x7ba01823u, 0xe422526eu, 0xa656e9dfu,
                                      0x0ce1306eu, 0xecf5a7cdu, 0xbe57782du, 0x1a7a879fu};

/* A row of 32 N values, lane l has N from column N l on (N 1 and half the lanes: rows of 16). */
template <int N> static __device__ __forceinline__ void rotate(float (&x)[N], int lane, int dim)
{
    const float unit = 1.0f / sqrtf((float)dim);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = lane * N + i;
        x[i] = __fmul_rn(x[i], sign_bits[c / 32 & 7] >> (c % 32) & 1 ? unit : -unit);
    }
#pragma unroll
    for (int h = 1; h < N; h *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((i & h) == 0) {
                const float a = x[i], b = x[i + h];
                x[i] = a + b, x[i + h] = a - b;
            }
    for (int h = 1; h * N < dim; h *= 2)
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float other = __shfl_xor_sync(0xffffffffu, x[i], h);
            x[i] = lane & h ? other - x[i] : x[i] + other;
        }
}

template <int N>
static __device__ __forceinline__ void load_row(float (&x)[N], const oq_cu_view &v, int64_t at, int lane,
                                                int dim)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        float one[1] = {0.0f};
        if (lane * N + i < dim) load<1>(v, at + lane * N + i, one);
        x[i] = one[0];
    }
}

static __device__ __forceinline__ uint32_t magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

static __device__ __forceinline__ float quantized(float x, uint32_t byte, bool e2m1)
{
    const float y = byte == 255 ? __int_as_float(0x7fc00000) : x * power_of(254 - byte);
    return (e2m1 ? round_e2m1(y) : round_e4m3(y)) * power_of(byte);
}

/* ---- bf16 numbers -------------------------------------------------------------------------------------- */

struct operand_args {
    oq_cu_operand a;
    int64_t heads, block_rows, blocks; /* blocks of rows (FP8) */
    int parts;                         /* of 128 columns of a head */
    bool last;                         /* second pass of FP8 */
};

/* Q and K, and V of FP8: a warp for each row of one head. FP8 takes two passes: magnitudes of the blocks, then numbers. MX:
 * groups of 32 columns lie within the warp. */
template <int N> __global__ void __launch_bounds__(256) operand_rows_kernel(operand_args p)
{
    const oq_cu_operand &a = p.a;
    const int lane = (int)threadIdx.x & 31, dim = (int)a.head_dim;
    const int64_t n = a.x.rows * p.heads;
    const bool fp8 = a.precision == 1;
    for (int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; i < n; i += (int64_t)gridDim.x * 8) {
        const int64_t row = i / p.heads, head = i - row * p.heads, at = row * a.x.ld + head * dim;
        const bool hidden = a.seen && !a.seen[row];
        float x[N];
        load_row<N>(x, a.x, at, lane, dim);
        if (hidden)
#pragma unroll
            for (int j = 0; j < N; j++) x[j] = 0.0f;
        if (a.side != SIDE_V && !hidden) rotate<N>(x, lane, dim);
        uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < N; j++) most = max(most, magnitude(x[j]));
        uint32_t *const of_block = a.work + (head * p.blocks + row / p.block_rows) * p.parts + lane * N / 128;
        if (fp8 && !p.last) {
            if (lane * N < dim) atomicMax(of_block, most);
            continue;
        }
        if (!fp8)
            for (int d = 1; d * N < 32 && d * N < dim; d *= 2)
                most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
        else if (lane * N < dim)
            most = *of_block;
        const bool e2m1 = a.precision == MXFP4;
        const uint32_t byte = choose_power(__uint_as_float(most), e2m1 ? 8.0f : 448.0f, e2m1);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float one[1] = {hidden ? 0.0f : quantized(x[j], byte, e2m1)};
            if (lane * N + j < dim) store<1>(a.y, row * a.y.ld + head * dim + lane * N + j, one);
        }
    }
}

/* V of MX: a thread for 32 rows of one column. */
__global__ void __launch_bounds__(256) operand_columns_kernel(operand_args p)
{
    const oq_cu_operand &a = p.a;
    const int64_t groups = (a.x.rows + 31) / 32, n = groups * a.x.cols;
    const bool e2m1 = a.precision == MXFP4;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        const int64_t group = i / a.x.cols, col = i - group * a.x.cols, end = min(group * 32 + 32, a.x.rows);
        uint32_t most = 0;
        float v[1];
        for (int64_t r = group * 32; r < end; r++) {
            if (a.seen && !a.seen[r]) continue;
            load<1>(a.x, r * a.x.ld + col, v);
            most = max(most, magnitude(v[0]));
        }
        const uint32_t byte = choose_power(__uint_as_float(most), e2m1 ? 8.0f : 448.0f, e2m1);
        for (int64_t r = group * 32; r < end; r++) {
            load<1>(a.x, r * a.x.ld + col, v);
            v[0] = a.seen && !a.seen[r] ? 0.0f : quantized(v[0], byte, e2m1);
            store<1>(a.y, r * a.y.ld + col, v);
        }
    }
}

extern "C" size_t oq_cu_operand_work(int64_t rows, int64_t cols)
{
    return (size_t)((rows + 127) / 128 * ((cols + 15) / 16)) *
           sizeof(uint32_t); /* heads of 16 columns at least */
}

static void operand_rows(cudaStream_t stream, const operand_args &p)
{
    const int64_t dim = p.a.head_dim;
    const unsigned grid = blocks_for(p.a.x.rows * p.heads, 8, 132 * 32);
    if (dim <= 32)
        operand_rows_kernel<1><<<grid, 256, 0, stream>>>(p);
    else if (dim == 64)
        operand_rows_kernel<2><<<grid, 256, 0, stream>>>(p);
    else if (dim == 128)
        operand_rows_kernel<4><<<grid, 256, 0, stream>>>(p);
    else
        operand_rows_kernel<8><<<grid, 256, 0, stream>>>(p);
}

extern "C" void oq_cu_operand_round(cudaStream_t stream, const oq_cu_operand *a)
{
    operand_args p = {*a, a->x.cols / a->head_dim,          a->side == 0 ? 128 : 256,
                      0,  (int)((a->head_dim + 127) / 128), true};
    if (a->x.rows <= 0) return;
    p.blocks = (a->x.rows + p.block_rows - 1) / p.block_rows;
    if (a->precision != 1 && a->side == SIDE_V) {
        operand_columns_kernel<<<blocks_for((a->x.rows + 31) / 32 * a->x.cols, 256, 132 * 32), 256, 0,
                                 stream>>>(p);
        return;
    }
    if (a->precision == 1) {
        cudaMemsetAsync(a->work, 0, (size_t)(p.heads * p.blocks * p.parts) * sizeof(uint32_t), stream);
        p.last = false;
        operand_rows(stream, p);
        p.last = true;
    }
    operand_rows(stream, p);
}

/* ---- e4m3 codes, heads of 128 columns ------------------------------------------------------------------ */

#define DIM     128
#define Q_ROWS  128
#define KV_ROWS 256
#define WARPS   16

#define COLS 32 /* of one lane: four lanes share a row, so that few sums cross lanes */
#define ROWS_WARP 8 /* at a step */

static __device__ __forceinline__ uint32_t four_codes(const float *x, float inverse)
{
    const uint32_t low =
        __nv_cvt_float2_to_fp8x2(make_float2(x[0] * inverse, x[1] * inverse), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high =
        __nv_cvt_float2_to_fp8x2(make_float2(x[2] * inverse, x[3] * inverse), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

struct code_args {
    oq_cu_fp8_operands to;
    oq_cu_view q, k, v;
    int64_t q_blocks, kv_blocks, n_heads, n_kv_heads;
};

/* Where column word `word` (four codes) of a row of the transposed tile lies: neighbouring rows meet other banks, and so do
 * rows sixteen apart. */
static __device__ __forceinline__ int word_at(int row, int word)
{
    return row * (DIM / 4) + (word ^ (row / 16 * 2 & 31) ^ (row & 7));
}

/* `rotate` for thirty-two columns of 128: signs from one register, not from as many. */
static __device__ __forceinline__ void rotate_32(float (&v)[COLS], int part)
{
    const float unit = 1.0f / sqrtf((float)DIM);
    uint32_t signs = ~sign_bits[part];
    asm volatile("" : "+r"(signs)); /* not kept in thirty-two registers either */
#pragma unroll
    for (int i = 0; i < COLS; i++)
        v[i] = __uint_as_float(__float_as_uint(__fmul_rn(v[i], unit)) ^ (signs << (31 - i) & 0x80000000u));
#pragma unroll
    for (int h = 1; h < COLS; h *= 2)
#pragma unroll
        for (int i = 0; i < COLS; i++)
            if ((i & h) == 0) {
                const float a = v[i], b = v[i + h];
                v[i] = a + b, v[i + h] = a - b;
            }
#pragma unroll
    for (int h = 1; h < DIM / COLS; h *= 2)
#pragma unroll
        for (int i = 0; i < COLS; i++) {
            const float other = __shfl_xor_sync(0xffffffffu, v[i], h);
            v[i] = part & h ? other - v[i] : v[i] + other;
        }
}

/* A lane's numbers of a row, as they come or rotated; zeros beyond the last row. */
template <bool ROTATE>
static __device__ __forceinline__ void numbers(float (&v)[COLS], const oq_cu_view &x, int64_t row, int64_t head, int part)
{
    const uint4 *const from = (const uint4 *)((const __nv_bfloat16 *)x.data + row * x.ld + head * DIM + part * COLS);
#pragma unroll
    for (int h = 0; h < COLS / 8; h++) {
        const uint4 u = row < x.rows ? from[h] : make_uint4(0, 0, 0, 0);
        const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[8 * h + 2 * i] = __uint_as_float(w[i] << 16), v[8 * h + 2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
    if (ROTATE) rotate_32(v, part);
}

/* A block of one head, in two passes: its largest magnitude, then its codes. Where it takes a step alone, its numbers stay;
 * else the second pass finds its rows in the first cache and rotates them again, which costs less than registers that would
 * hold a block: so two blocks share a multiprocessor. */
template <int STEPS, bool ROTATE>
static __device__ void code_block(const oq_cu_view &x, int64_t head, int64_t block, uint8_t *codes,
                                  float *scale, uint32_t *tile)
{
    constexpr int ROWS = STEPS * ROWS_WARP * WARPS;
    __shared__ uint32_t warp_most[WARPS];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, part = lane & 3;
    float v[COLS];
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < STEPS; r++) {
        numbers<ROTATE>(v, x, block * ROWS + (r * WARPS + warp) * ROWS_WARP + lane / 4, head, part);
#pragma unroll
        for (int i = 0; i < COLS; i++) most = max(most, magnitude(v[i]));
    }
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 0) warp_most[warp] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) most = max(most, warp_most[i]);
    const uint32_t byte = choose_power(__uint_as_float(most), 448.0f, false);
    if (threadIdx.x == 0) *scale = power_of(byte);
    const float inverse = byte == 255 ? 0.0f : power_of(254 - byte);
#pragma unroll
    for (int r = 0; r < STEPS; r++) {
        const int row = (r * WARPS + warp) * ROWS_WARP + lane / 4;
        uint32_t w[COLS / 4];
        if (STEPS > 1) numbers<ROTATE>(v, x, block * ROWS + row, head, part);
#pragma unroll
        for (int i = 0; i < COLS / 4; i++) w[i] = four_codes(&v[4 * i], inverse);
        if (!tile)
#pragma unroll
            for (int i = 0; i < COLS / 16; i++)
                ((uint4 *)(codes + (int64_t)row * DIM + part * COLS))[i] =
                    make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
        else
#pragma unroll
            for (int i = 0; i < COLS / 4; i++) tile[word_at(row, part * (COLS / 4) + i)] = w[i];
    }
    if (tile) __syncthreads();
}

/* Sixteen keys of four columns: position 4q + e holds key 2q + e, or 6 + 2q + e from e = 2 on. Threads of a half warp take
 * neighbouring keys, so that they write what lies side by side. */
static __device__ __forceinline__ void store_keys(const uint32_t *tile, uint8_t *to, int64_t width, int group,
                                                  int word)
{
    uint32_t out[4][4]; /* [column][q] */
#pragma unroll
    for (int q = 0; q < 4; q++) {
        uint32_t key[4]; /* four columns of one key each */
#pragma unroll
        for (int e = 0; e < 4; e++) key[e] = tile[word_at(group * 16 + 2 * q + (e & 1) + 8 * (e / 2), word)];
        const uint32_t a = __byte_perm(key[0], key[1], 0x5140), b = __byte_perm(key[2], key[3], 0x5140);
        const uint32_t c = __byte_perm(key[0], key[1], 0x7362), d = __byte_perm(key[2], key[3], 0x7362);
        out[0][q] = __byte_perm(a, b, 0x5410), out[1][q] = __byte_perm(a, b, 0x7632);
        out[2][q] = __byte_perm(c, d, 0x5410), out[3][q] = __byte_perm(c, d, 0x7632);
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        *(uint4 *)(to + (word * 4 + c) * width + group * 16) =
            make_uint4(out[c][0], out[c][1], out[c][2], out[c][3]);
}

__global__ void __launch_bounds__(WARPS * 32, 2) code_kernel(const __grid_constant__ code_args a)
{
    extern __shared__ uint32_t tile[]; /* [keys][32 words] */
    int64_t i = blockIdx.x;
    const int64_t n_q = a.q_blocks * a.n_heads, n_kv = a.kv_blocks * a.n_kv_heads;
    if (i < n_q) {
        const int64_t head = i / a.q_blocks, block = i - head * a.q_blocks;
        code_block<Q_ROWS / WARPS / ROWS_WARP, true>(a.q, head, block, a.to.q + i * Q_ROWS * DIM, a.to.q_scale + i,
                                             nullptr);
        return;
    }
    i -= n_q;
    if (i < n_kv) {
        const int64_t head = i / a.kv_blocks, block = i - head * a.kv_blocks;
        code_block<KV_ROWS / WARPS / ROWS_WARP, true>(a.k, head, block, a.to.k + i * KV_ROWS * DIM, a.to.k_scale + i,
                                              nullptr);
        return;
    }
    i -= n_kv;
    const int64_t head = i / a.kv_blocks, block = i - head * a.kv_blocks, width = a.kv_blocks * KV_ROWS;
    code_block<KV_ROWS / WARPS / ROWS_WARP, false>(a.v, head, block, nullptr, a.to.v_scale + i, tile);
    for (int t = (int)threadIdx.x; t < DIM / 4 * (KV_ROWS / 16); t += WARPS * 32)
        store_keys(tile, a.to.v + head * DIM * width + block * KV_ROWS, width, t % 16, t / 16);
}

static size_t padded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static int64_t blocks_of(int64_t n, int64_t rows)
{
    return (n + rows - 1) / rows;
}

extern "C" oq_cu_fp8_operands oq_cu_fp8_operands_at(void *memory, int64_t n_q, int64_t n_kv, int64_t n_heads,
                                                    int64_t n_kv_heads)
{
    uint8_t *at = (uint8_t *)memory;
    const int64_t q = blocks_of(n_q, Q_ROWS) * n_heads, kv = blocks_of(n_kv, KV_ROWS) * n_kv_heads;
    oq_cu_fp8_operands o;
    o.q = at, at += q * Q_ROWS * DIM;
    o.k = at, at += kv * KV_ROWS * DIM;
    o.v = at, at += kv * KV_ROWS * DIM;
    o.q_scale = (float *)at, at += padded((size_t)q * 4);
    o.k_scale = (float *)at, at += padded((size_t)kv * 4);
    o.v_scale = (float *)at;
    return o;
}

extern "C" size_t oq_cu_fp8_operands_bytes(int64_t n_q, int64_t n_kv, int64_t n_heads, int64_t n_kv_heads)
{
    const int64_t q = blocks_of(n_q, Q_ROWS) * n_heads, kv = blocks_of(n_kv, KV_ROWS) * n_kv_heads;
    return (size_t)((q * Q_ROWS + 2 * kv * KV_ROWS) * DIM) + padded((size_t)q * 4) +
           2 * padded((size_t)kv * 4);
}

extern "C" void oq_cu_fp8_quantize(cudaStream_t stream, const oq_cu_fp8_operands *to,
                                   const oq_cu_attention *a)
{
    const code_args args = {
        *to,        a->q,         a->k, a->v, blocks_of(a->q.rows, Q_ROWS), blocks_of(a->k.rows, KV_ROWS),
        a->n_heads, a->n_kv_heads};
    const int64_t blocks = args.q_blocks * a->n_heads + 2 * args.kv_blocks * a->n_kv_heads;
    constexpr int bytes = KV_ROWS * DIM;
    code_kernel<<<(unsigned)blocks, WARPS * 32, bytes, stream>>>(args);
}
