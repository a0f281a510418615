/* rows.cu -- what happens to activations between two products, in one pass over memory: norm and gated residual of the
 * last product, norm and modulation of the next, and the codes that it takes. A row stays in the registers of its block;
 * each step rounds where the operation of its name would store, sums go the way of norm.cu's. */
#include "cuda/quantize.cuh"

/* The row's norm in registers, as norm_row_wide of norm.cu; thread t of T has columns 8 (t + i T). */
template <int CHUNKS>
static __device__ __forceinline__ void normalise(float (&v)[CHUNKS][8], const oq_cu_step_norm &a,
                                                 const oq_cu_view &as, int n_vec, float (*part)[32], int &turn)
{
    const int t = (int)threadIdx.x, step = (int)blockDim.x;
    const float cols = (float)(n_vec * 8);
    float mean = 0.0f, sum = 0.0f, squares = 0.0f;
    if (a.kind == 2) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum += v[i][j];
        mean = row_reduce<op_sum>(sum, part[turn++ & 1]) / cols;
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[i][j] -= mean;
                squares += v[i][j] * v[i][j];
            }
        }
    const float scale = 1.0f / sqrtf(row_reduce<op_sum>(squares, part[turn++ & 1]) / cols + a.eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = t + i * step;
        if (c >= n_vec) break;
        float w[8], b[8];
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] = 1.0f, b[j] = 0.0f;
        if (a.weight) load_f32<8>(a.weight, 8 * c, w);
        if (a.bias && a.kind == 2) load_f32<8>(a.bias, 8 * c, b);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float y = v[i][j] * scale;
            if (a.round_before_weight) y = keep(as, y);
            v[i][j] = keep(as, y * w[j] + b[j]);
        }
    }
}

/* Registers for as many blocks a multiprocessor as keep memory busy. */
template <int CHUNKS, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS > 256 ? 1 : CHUNKS == 4 ? 3 : 5) rows_kernel(const __grid_constant__ oq_cu_rows a)
{
    const int64_t row = blockIdx.x;
    const int n_vec = (int)(a.x.cols / 8), t = (int)threadIdx.x, step = (int)blockDim.x;
    __shared__ float part[2][32];
    int turn = 0;
    float v[CHUNKS][8];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] = 0.0f;
        if (t + i * step < n_vec) load<8>(a.x, row * a.x.ld + 8 * (t + i * step), v[i]);
    }
    if (a.r.rows) {
        float r[CHUNKS][8];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) r[i][j] = 0.0f;
            if (t + i * step < n_vec) load<8>(a.r, row * a.r.ld + 8 * (t + i * step), r[i]);
        }
        if (a.r_norm.kind) normalise<CHUNKS>(r, a.r_norm, a.r, n_vec, part, turn);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const int c = 8 * (t + i * step);
            if (c >= 8 * n_vec) break;
            float g[8];
            if (a.gate.rows) {
                load<8>(a.gate, row_start(a.gate, row) + c, g);
#pragma unroll
                for (int j = 0; j < 8; j++) r[i][j] = keep(a.x, __fmul_rn(g[j], r[i][j]));
            }
#pragma unroll
            for (int j = 0; j < 8; j++) v[i][j] = keep(a.x, __fadd_rn(v[i][j], r[i][j]));
            store<8>(a.x, row * a.x.ld + c, v[i]);
        }
    }
    if (!a.h.rows) return;
    if (a.norm.kind) normalise<CHUNKS>(v, a.norm, a.h, n_vec, part, turn);
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = 8 * (t + i * step);
        if (c >= 8 * n_vec) break;
        float s[8];
        if (a.scale.rows) {
            load<8>(a.scale, row_start(a.scale, row) + c, s);
#pragma unroll
            for (int j = 0; j < 8; j++) v[i][j] = __fmul_rn(v[i][j], __fadd_rn(a.one, s[j]));
        }
        if (a.shift.rows) {
            load<8>(a.shift, row_start(a.shift, row) + c, s);
#pragma unroll
            for (int j = 0; j < 8; j++) v[i][j] = __fadd_rn(v[i][j], s[j]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] = keep(a.h, v[i][j]);
        if (a.codes)
            amax = amax_of<8>(v[i], amax);
        else
            store<8>(a.h, row * a.h.ld + c, v[i]);
    }
    if (!a.codes) return;
    amax = row_reduce<op_max>(amax, part[turn++ & 1]);
    const coder k = coder_for(a.code == OQ_CU_I8, a.kind, amax, a.given ? *a.given : 0.0f);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec)
            put_codes<8>(k, (uint8_t *)a.codes + row * a.x.cols + 8 * (t + i * step), v[i]);
    if (t == 0) a.scales[row] = k.scale;
}

/* Narrow rows are normalised by a warp each (norm.cu), whose sums go another way: those stay with the operations. */
extern "C" bool oq_cu_rows_fits(const oq_cu_rows *a)
{
    const int64_t vec = a->x.cols / 8;
    const bool weights = wide_ptr(a->norm.weight) && wide_ptr(a->norm.bias) && wide_ptr(a->r_norm.weight) &&
                         wide_ptr(a->r_norm.bias);
    return a->x.rows > 0 && vec > 128 && vec <= 4096 && weights && wide(a->x) && wide(a->h) && wide(a->r) &&
           wide(a->gate) && wide(a->scale) && wide(a->shift) && (!a->codes || wide_ptr(a->codes));
}

extern "C" void oq_cu_rows_run(cudaStream_t stream, const oq_cu_rows *a)
{
    const int64_t vec = a->x.cols / 8;
    const unsigned rows = (unsigned)a->x.rows;
    if (oq_cu_rows_bf16(stream, a)) return;
    oq_cu_to_bf16(stream, a->beside.to, a->beside.from, a->beside.n);
    if (vec <= 256)
        rows_kernel<1, 256><<<rows, (unsigned)((vec + 31) / 32 * 32), 0, stream>>>(*a);
    else if (vec <= 512)
        rows_kernel<2, 256><<<rows, (unsigned)((vec + 63) / 64 * 32), 0, stream>>>(*a);
    else if (vec <= 1024)
        rows_kernel<4, 256><<<rows, (unsigned)((vec + 127) / 128 * 32), 0, stream>>>(*a);
    else
        rows_kernel<4, 1024><<<rows, (unsigned)((vec + 127) / 128 * 32), 0, stream>>>(*a);
}

/* ---- q and k on their way to an attention --------------------------------------------------------------- */

/* LANES threads for each head of a row, thread t of them has columns 8 t. A block takes 256 / LANES heads of one row. */
template <bool HALF, int LANES, bool BF16>
__global__ void __launch_bounds__(256) qk_kernel(const __grid_constant__ oq_cu_qk a, int q_heads, int heads)
{
    const int which = (int)(blockIdx.y * (256 / LANES) + threadIdx.x / LANES);
    const int64_t row = blockIdx.x;
    const bool inside = which < heads; /* whole warps stay for the shuffles */
    const bool is_q = which < q_heads;
    oq_cu_view x = is_q ? a.q : a.k;
    if (BF16) x.type = OQ_CU_BF16; /* known to the compiler: no question at each number */
    const int64_t at = row * x.ld + (is_q ? which : which - q_heads) * a.head_dim;
    const int t = inside ? (int)(threadIdx.x % LANES) : LANES;
    constexpr int n_vec = LANES, pairs = 4 * LANES;
    const float *const weight = is_q ? a.q_weight : a.k_weight;
    float v[8] = {}, squares = 0.0f;
    if (t < n_vec) load<8>(x, at + 8 * t, v);
    if (weight) {
#pragma unroll
        for (int j = 0; j < 8; j++) squares += v[j] * v[j];
#pragma unroll
        for (int d = LANES / 2; d > 0; d >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, d);
        const float scale = 1.0f / sqrtf(squares / (float)a.head_dim + a.eps);
        float w[8] = {};
        if (t < n_vec) load_f32<8>(weight, 8 * t, w);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float y = v[j] * scale;
            if (a.round_before_weight) y = keep(x, y);
            v[j] = keep(x, y * w[j]);
        }
    }
    float y[8];
    if constexpr (HALF) {
        const bool high = t >= n_vec / 2;
        float other[8], co[8] = {}, si[8] = {};
#pragma unroll
        for (int j = 0; j < 8; j++) other[j] = __shfl_xor_sync(0xffffffffu, v[j], n_vec / 2);
        if (t < n_vec) {
            const int64_t p = row * pairs + 8 * (high ? t - n_vec / 2 : t);
            load_f32<8>(a.cos, p, co);
            load_f32<8>(a.sin, p, si);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float turned = __fmul_rn(other[j], si[j]), kept = __fmul_rn(v[j], co[j]);
            y[j] = high ? __fadd_rn(kept, turned) : __fsub_rn(kept, turned);
        }
    } else {
        float4 co = make_float4(0, 0, 0, 0), si = co;
        if (t < n_vec) {
            co = *(const float4 *)(a.cos + row * pairs + 4 * t);
            si = *(const float4 *)(a.sin + row * pairs + 4 * t);
        }
        const float c[4] = {co.x, co.y, co.z, co.w}, s[4] = {si.x, si.y, si.z, si.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            y[2 * j] = __fsub_rn(__fmul_rn(v[2 * j], c[j]), __fmul_rn(v[2 * j + 1], s[j]));
            y[2 * j + 1] = __fadd_rn(__fmul_rn(v[2 * j + 1], c[j]), __fmul_rn(v[2 * j], s[j]));
        }
    }
    if (t < n_vec) store<8>(x, at + 8 * t, y);
}

template <int LANES, bool BF16>
static void launch_qk_of(cudaStream_t stream, const oq_cu_qk *a, int64_t q_heads, int64_t heads)
{
    constexpr int PER_BLOCK = 256 / LANES;
    const dim3 grid((unsigned)a->q.rows, (unsigned)((heads + PER_BLOCK - 1) / PER_BLOCK));
    if (a->half)
        qk_kernel<true, LANES, BF16><<<grid, 256, 0, stream>>>(*a, (int)q_heads, (int)heads);
    else
        qk_kernel<false, LANES, BF16><<<grid, 256, 0, stream>>>(*a, (int)q_heads, (int)heads);
}

template <int LANES>
static void launch_qk(cudaStream_t stream, const oq_cu_qk *a, int64_t q_heads, int64_t heads)
{
    if (a->q.type == OQ_CU_BF16 && a->k.type == OQ_CU_BF16)
        launch_qk_of<LANES, true>(stream, a, q_heads, heads);
    else
        launch_qk_of<LANES, false>(stream, a, q_heads, heads);
}

extern "C" bool oq_cu_qk_norm_rope(cudaStream_t stream, const oq_cu_qk *a)
{
    const int64_t d = a->head_dim, q_heads = a->q.cols / d, heads = q_heads + a->k.cols / d;
    const bool pointers =
        wide_ptr(a->q_weight) && wide_ptr(a->k_weight) && wide_ptr(a->cos) && wide_ptr(a->sin);
    if (d < 32 || d > 256 || (d & (d - 1)) != 0 || !wide(a->q) || !wide(a->k) || !pointers ||
        a->q.rows != a->k.rows)
        return false;
    if (a->q.rows <= 0) return true;
    switch (d) {
    case 32:
        launch_qk<4>(stream, a, q_heads, heads);
        break;
    case 64:
        launch_qk<8>(stream, a, q_heads, heads);
        break;
    case 128:
        launch_qk<16>(stream, a, q_heads, heads);
        break;
    default:
        launch_qk<32>(stream, a, q_heads, heads);
    }
    return true;
}
