/* rows_bf16.cu -- rows.cu's pass where everything is bf16, as it is in a network's steps: there arithmetic, not memory, is
 * what a row costs. Numbers stay packed in pairs between the steps, products and sums of bf16 numbers are taken two at a
 * time, and what is given for all rows is looked up once. The bits are rows.cu's. */
#include "cuda/quantize.cuh"

enum ending { NO_RESULT, PLAIN, E4M3_TOKEN, OTHER_CODES };

static __device__ __forceinline__ float low_of(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float high_of(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/* Eight numbers as pairs, and as f32. */
struct eight {
    uint32_t pair[4];
    __device__ __forceinline__ void take(const __nv_bfloat16 *p)
    {
        const uint4 u = *(const uint4 *)p;
        pair[0] = u.x, pair[1] = u.y, pair[2] = u.z, pair[3] = u.w;
    }
    __device__ __forceinline__ void give(__nv_bfloat16 *p) const
    {
        *(uint4 *)p = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
    __device__ __forceinline__ float at(int j) const
    {
        return j % 2 ? high_of(pair[j / 2]) : low_of(pair[j / 2]);
    }
};

static __device__ __forceinline__ __nv_bfloat16 *at(const oq_cu_view &v, int64_t row, int column)
{
    return (__nv_bfloat16 *)v.data + row_start(v, row) + column;
}

/* rows.cu's `normalise`: sums go the same way, each rounding is at the same place. */
template <int CHUNKS, bool LAYER>
static __device__ __forceinline__ void normalise_as(eight (&v)[CHUNKS], const oq_cu_step_norm &a, int n_vec, float (*part)[32],
                                                 int &turn)
{
    const int t = (int)threadIdx.x, step = (int)blockDim.x;
    const float cols = (float)(n_vec * 8);
    float mean = 0.0f, sum = 0.0f, squares = 0.0f;
    if (LAYER) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum += v[i].at(j);
        mean = row_reduce<op_sum>(sum, part[turn++ & 1]) / cols;
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float x = LAYER ? v[i].at(j) - mean : v[i].at(j);
                squares += x * x;
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
        if (LAYER && a.bias) load_f32<8>(a.bias, 8 * c, b);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float low = v[i].at(2 * j), high = v[i].at(2 * j + 1);
            if (LAYER) low -= mean, high -= mean;
            low *= scale, high *= scale;
            if (a.round_before_weight) {
                const uint32_t rounded = bf16_pair(low, high);
                low = low_of(rounded), high = high_of(rounded);
            }
            v[i].pair[j] = bf16_pair(low * w[2 * j] + b[2 * j], high * w[2 * j + 1] + b[2 * j + 1]);
        }
    }
}

template <int CHUNKS>
static __device__ __forceinline__ void normalise(eight (&v)[CHUNKS], const oq_cu_step_norm &a, int n_vec, float (*part)[32],
                                                 int &turn)
{
    if (a.kind == 2)
        normalise_as<CHUNKS, true>(v, a, n_vec, part, turn);
    else
        normalise_as<CHUNKS, false>(v, a, n_vec, part, turn);
}

static __device__ __forceinline__ void modulate(eight &v, const oq_cu_rows &a, int64_t row, int column)
{
    eight s, o;
    if (a.scale.rows) s.take(at(a.scale, row, column));
    if (a.shift.rows) o.take(at(a.shift, row, column));
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float low = v.at(2 * j), high = v.at(2 * j + 1);
        if (a.scale.rows)
            low = __fmul_rn(low, __fadd_rn(a.one, s.at(2 * j))), high = __fmul_rn(high, __fadd_rn(a.one, s.at(2 * j + 1)));
        if (a.shift.rows) low = __fadd_rn(low, o.at(2 * j)), high = __fadd_rn(high, o.at(2 * j + 1));
        v.pair[j] = bf16_pair(low, high);
    }
}

/* r normalised where it is, times its gate, added to x, which is stored. */
template <int CHUNKS>
static __device__ __forceinline__ void add_residual(eight (&x)[CHUNKS], const oq_cu_rows &a, int64_t row, int n_vec,
                                                    float (*part)[32], int &turn)
{
    const int t = (int)threadIdx.x, step = (int)blockDim.x;
    eight r[CHUNKS] = {};
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec) r[i].take(at(a.r, row, 8 * (t + i * step)));
    if (a.r_norm.kind) normalise<CHUNKS>(r, a.r_norm, n_vec, part, turn);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = 8 * (t + i * step);
        if (c >= 8 * n_vec) break;
        if (a.gate.rows) {
            eight g;
            g.take(at(a.gate, row, c));
#pragma unroll
            for (int j = 0; j < 4; j++) r[i].pair[j] = bf16_times(g.pair[j], r[i].pair[j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) x[i].pair[j] = bf16_plus(x[i].pair[j], r[i].pair[j]);
        x[i].give(at(a.x, row, c));
    }
}

/* Codes of a row and their scale. */
template <int CHUNKS, ending END>
static __device__ __forceinline__ void put_row(const eight (&v)[CHUNKS], const oq_cu_rows &a, int64_t row, int n_vec, float *part)
{
    const int t = (int)threadIdx.x, step = (int)blockDim.x;
    uint32_t most = 0; /* magnitudes are compared as the integers that they are; a NaN's is the largest */
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (t + i * step < n_vec) most = __vmaxu2(most, v[i].pair[j] & 0x7fff7fffu);
    const float amax = row_reduce<op_max>(bf16_bits(max(most & 0xffffu, most >> 16)), part);
    const coder k = END == E4M3_TOKEN ? coder_for(false, OQ_CU_ACT_TOKEN, amax, 0.0f)
                                      : coder_for(a.code == OQ_CU_I8, a.kind, amax, a.given ? *a.given : 0.0f);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (t + i * step >= n_vec) break;
        uint8_t *const to = (uint8_t *)a.codes + row * a.x.cols + 8 * (t + i * step);
        if constexpr (END == E4M3_TOKEN) {
            uint32_t q[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                q[j] = e4m3_pair(quotient_in_range(v[i].at(2 * j), k.divisor, k.factor),
                                 quotient_in_range(v[i].at(2 * j + 1), k.divisor, k.factor));
            *(uint2 *)to = make_uint2(q[0] | q[1] << 16, q[2] | q[3] << 16);
        } else {
            float f[8];
#pragma unroll
            for (int j = 0; j < 8; j++) f[j] = v[i].at(j);
            put_codes<8>(k, to, f);
        }
    }
    if (t == 0) a.scales[row] = k.scale;
}

/* Steps that networks ask for in every block: what is there, and which vectors serve all rows, is then known to the compiler. */
enum known {
    ANY,
    LAYER_MODULATED,       /* LayerNorm without weights, scale and shift */
    LAYER_MODULATED_AFTER, /* the same, once x has a gated residual */
    RMS_SCALED_AFTER       /* RMS norm and scale, once x has a gated residual with a norm of its own */
};

template <known K> static __device__ __forceinline__ oq_cu_rows as_known(const oq_cu_rows &given)
{
    constexpr int MANY = 2; /* rows: not one for all */
    oq_cu_rows a = given;
    if constexpr (K == ANY) return a;
    constexpr bool LAYER = K == LAYER_MODULATED || K == LAYER_MODULATED_AFTER;
    a.x.rows = a.h.rows = MANY;
    a.r.rows = K == LAYER_MODULATED ? 0 : MANY;
    a.gate.rows = a.scale.rows = 1;
    a.shift.rows = LAYER ? 1 : 0;
    a.norm.kind = LAYER ? 2 : 1;
    a.r_norm.kind = LAYER ? 0 : 1;
    if (LAYER) a.norm.weight = a.norm.bias = nullptr;
    return a;
}

static known known_of(const oq_cu_rows *a)
{
    const bool after = a->r.rows > 0 && a->gate.rows == 1;
    if (!a->h.rows || a->scale.rows != 1) return ANY;
    if (a->norm.kind == 2 && !a->norm.weight && !a->norm.bias && a->shift.rows == 1 && !a->r_norm.kind)
        return after ? LAYER_MODULATED_AFTER : a->r.rows ? ANY : LAYER_MODULATED;
    return after && a->norm.kind == 1 && a->r_norm.kind == 1 && !a->shift.rows ? RMS_SCALED_AFTER : ANY;
}

/* Registers for as many blocks a multiprocessor as keep memory busy. */
template <int CHUNKS, int THREADS, ending END, known K = ANY>
__global__ void __launch_bounds__(THREADS, THREADS > 256 ? 1 : CHUNKS == 4 ? 3 : 5)
    rows_bf16_kernel(const __grid_constant__ oq_cu_rows given)
{
    const oq_cu_rows a = as_known<K>(given);
    const int64_t row = blockIdx.x;
    const int n_vec = (int)(a.x.cols / 8), t = (int)threadIdx.x, step = (int)blockDim.x;
    __shared__ float part[2][32];
    int turn = 0;
    eight v[CHUNKS] = {};
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * step < n_vec) v[i].take(at(a.x, row, 8 * (t + i * step)));
    if (a.r.rows) add_residual<CHUNKS>(v, a, row, n_vec, part, turn);
    if constexpr (END == NO_RESULT) return;
    if (a.norm.kind) normalise<CHUNKS>(v, a.norm, n_vec, part, turn);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = 8 * (t + i * step);
        if (c >= 8 * n_vec) break;
        if (a.scale.rows || a.shift.rows) modulate(v[i], a, row, c);
        if constexpr (END == PLAIN) v[i].give(at(a.h, row, c));
    }
    if constexpr (END == E4M3_TOKEN || END == OTHER_CODES) {
        put_row<CHUNKS, END>(v, a, row, n_vec, part[turn & 1]);
        narrow_share(a.beside);
    }
}

/* ---- host side ----------------------------------------------------------------------------------------- */

/* Two vectors a thread: the width of large networks. */
template <ending END> static void launch_two(cudaStream_t stream, const oq_cu_rows *a, unsigned rows, unsigned threads)
{
    if constexpr (END == PLAIN || END == E4M3_TOKEN) {
        switch (known_of(a)) {
        case LAYER_MODULATED:
            rows_bf16_kernel<2, 256, END, LAYER_MODULATED><<<rows, threads, 0, stream>>>(*a);
            return;
        case LAYER_MODULATED_AFTER:
            rows_bf16_kernel<2, 256, END, LAYER_MODULATED_AFTER><<<rows, threads, 0, stream>>>(*a);
            return;
        case RMS_SCALED_AFTER:
            rows_bf16_kernel<2, 256, END, RMS_SCALED_AFTER><<<rows, threads, 0, stream>>>(*a);
            return;
        default:
            break;
        }
    }
    rows_bf16_kernel<2, 256, END><<<rows, threads, 0, stream>>>(*a);
}

template <ending END> static void launch(cudaStream_t stream, const oq_cu_rows *a)
{
    const int64_t vec = a->x.cols / 8;
    const unsigned rows = (unsigned)a->x.rows;
    if (vec <= 256)
        rows_bf16_kernel<1, 256, END><<<rows, (unsigned)((vec + 31) / 32 * 32), 0, stream>>>(*a);
    else if (vec <= 512)
        launch_two<END>(stream, a, rows, (unsigned)((vec + 63) / 64 * 32));
    else if (vec <= 1024)
        rows_bf16_kernel<4, 256, END><<<rows, (unsigned)((vec + 127) / 128 * 32), 0, stream>>>(*a);
    else
        rows_bf16_kernel<4, 1024, END><<<rows, (unsigned)((vec + 127) / 128 * 32), 0, stream>>>(*a);
}

extern "C" bool oq_cu_rows_bf16(cudaStream_t stream, const oq_cu_rows *a)
{
    const oq_cu_view *const views[] = {&a->x, &a->h, &a->r, &a->gate, &a->scale, &a->shift};
    for (int i = 0; i < 6; i++)
        if (views[i]->rows && views[i]->type != OQ_CU_BF16) return false;
    if (!a->h.rows)
        launch<NO_RESULT>(stream, a);
    else if (!a->codes)
        launch<PLAIN>(stream, a);
    else if (a->code == OQ_CU_E4M3 && a->kind == OQ_CU_ACT_TOKEN)
        launch<E4M3_TOKEN>(stream, a);
    else
        launch<OTHER_CODES>(stream, a);
    return true;
}
