/* elementwise.cu -- operations that touch each element once: activations, modulation, gates, copies,
 * embeddings, rotary positions, permutations. Built without contraction (fmad), so sums and products take the
 * steps of the CPU's reference and agree with it bit for bit. */
#include "cuda/activate.cuh"

#define THREADS    256
#define GRID_LIMIT (132 * 32)

/* Walks rows x (cols / N) items with a grid-stride loop; `body` gets row, column. */
template <int N, class BODY>
__global__ void __launch_bounds__(THREADS) each_kernel(int64_t rows, int64_t cols, BODY body)
{
    const int64_t per_row = cols / N, n = rows * per_row;
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        const int64_t row = i / per_row;
        body(row, (i - row * per_row) * N);
    }
}

/* 32-bit indices: a 64-bit division costs more than the memory access it serves. */
template <int N, class BODY>
__global__ void __launch_bounds__(THREADS) each_kernel_small(uint32_t rows, uint32_t cols, BODY body)
{
    const uint32_t per_row = cols / N, n = rows * per_row, step = gridDim.x * THREADS;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        const uint32_t row = i / per_row;
        body((int64_t)row, (int64_t)((i - row * per_row) * N));
    }
}

template <int N, class BODY> static void each(cudaStream_t stream, int64_t rows, int64_t cols, BODY body)
{
    if (rows <= 0 || cols <= 0) return;
    const int64_t n = rows * (cols / N);
    const unsigned grid = blocks_for(n, THREADS, GRID_LIMIT);
    if (n < (int64_t)1 << 31 && rows < (int64_t)1 << 31)
        each_kernel_small<N><<<grid, THREADS, 0, stream>>>((uint32_t)rows, (uint32_t)cols, body);
    else
        each_kernel<N><<<grid, THREADS, 0, stream>>>(rows, cols, body);
}

template <int N> struct unary_body {
    int kind;
    oq_cu_view y, x;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        float v[N];
        load<N>(x, r * x.ld + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = activate(kind, v[i], y.type == OQ_CU_BF16);
        store<N>(y, r * y.ld + c, v);
    }
};

extern "C" void oq_cu_unary(cudaStream_t stream, int kind, oq_cu_view y, oq_cu_view x)
{
    if (wide(y) && wide(x))
        each<8>(stream, y.rows, y.cols, unary_body<8>{kind, y, x});
    else
        each<1>(stream, y.rows, y.cols, unary_body<1>{kind, y, x});
}

template <int N> struct glu_body {
    int kind;
    oq_cu_view y, a, b;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        float v[N], w[N];
        load<N>(a, r * a.ld + c, v);
        load<N>(b, r * b.ld + c, w);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = keep(y, activate(kind, v[i], y.type == OQ_CU_BF16)) * w[i];
        store<N>(y, r * y.ld + c, v);
    }
};

extern "C" void oq_cu_glu(cudaStream_t stream, int kind, oq_cu_view y, oq_cu_view a, oq_cu_view b)
{
    if (wide(y) && wide(a) && wide(b))
        each<8>(stream, y.rows, y.cols, glu_body<8>{kind, y, a, b});
    else
        each<1>(stream, y.rows, y.cols, glu_body<1>{kind, y, a, b});
}

template <int N> struct modulate_body {
    oq_cu_view y, x, scale, shift;
    float one;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        float v[N], s[N];
        load<N>(x, r * x.ld + c, v);
        if (scale.rows) {
            load<N>(scale, row_start(scale, r) + c, s);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] *= one + s[i];
        }
        if (shift.rows) {
            load<N>(shift, row_start(shift, r) + c, s);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += s[i];
        }
        store<N>(y, r * y.ld + c, v);
    }
};

extern "C" void oq_cu_modulate(cudaStream_t stream, oq_cu_view y, oq_cu_view x, oq_cu_view scale,
                               oq_cu_view shift, float one)
{
    if (wide(y) && wide(x) && wide(scale) && wide(shift))
        each<8>(stream, y.rows, y.cols, modulate_body<8>{y, x, scale, shift, one});
    else
        each<1>(stream, y.rows, y.cols, modulate_body<1>{y, x, scale, shift, one});
}

template <int N> struct add_gated_body {
    oq_cu_view y, x, gate, r;
    __device__ void operator()(int64_t i, int64_t c) const
    {
        float v[N], g[N], w[N];
        load<N>(x, i * x.ld + c, v);
        load<N>(r, i * r.ld + c, w);
        if (gate.rows) {
            load<N>(gate, row_start(gate, i) + c, g);
#pragma unroll
            for (int j = 0; j < N; j++) w[j] = keep(y, g[j] * w[j]);
        }
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += w[j];
        store<N>(y, i * y.ld + c, v);
    }
};

extern "C" void oq_cu_add_gated(cudaStream_t stream, oq_cu_view y, oq_cu_view x, oq_cu_view gate,
                                oq_cu_view r)
{
    if (wide(y) && wide(x) && wide(gate) && wide(r))
        each<8>(stream, y.rows, y.cols, add_gated_body<8>{y, x, gate, r});
    else
        each<1>(stream, y.rows, y.cols, add_gated_body<1>{y, x, gate, r});
}

template <int N> struct axpby_body {
    oq_cu_view y, x;
    float a, b;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        float v[N], w[N];
        load<N>(x, r * x.ld + c, v);
        load<N>(y, r * y.ld + c, w);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = __fadd_rn(__fmul_rn(a, v[i]), __fmul_rn(b, w[i]));
        store<N>(y, r * y.ld + c, v);
    }
};

extern "C" void oq_cu_axpby(cudaStream_t stream, oq_cu_view y, float a, oq_cu_view x, float b)
{
    if (wide(y) && wide(x))
        each<8>(stream, y.rows, y.cols, axpby_body<8>{y, x, a, b});
    else
        each<1>(stream, y.rows, y.cols, axpby_body<1>{y, x, a, b});
}

template <int N> struct copy_body {
    oq_cu_view y, x;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        float v[N];
        load<N>(x, r * x.ld + c, v);
        store<N>(y, r * y.ld + c, v);
    }
};

extern "C" void oq_cu_copy(cudaStream_t stream, oq_cu_view y, oq_cu_view x)
{
    if (wide(y) && wide(x))
        each<8>(stream, y.rows, y.cols, copy_body<8>{y, x});
    else
        each<1>(stream, y.rows, y.cols, copy_body<1>{y, x});
}

template <int N> struct embed_body {
    oq_cu_view y, table;
    const int32_t *ids;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        float v[N];
        load<N>(table, (int64_t)ids[r] * table.ld + c, v);
        store<N>(y, r * y.ld + c, v);
    }
};

extern "C" void oq_cu_embed(cudaStream_t stream, oq_cu_view y, oq_cu_view table, const int32_t *ids)
{
    if (wide(y) && wide(table))
        each<8>(stream, y.rows, y.cols, embed_body<8>{y, table, ids});
    else
        each<1>(stream, y.rows, y.cols, embed_body<1>{y, table, ids});
}

template <int N> struct upsample_body {
    oq_cu_view y, x;
    int64_t h, w; /* of x */
    __device__ void operator()(int64_t r, int64_t c) const
    {
        const int64_t ox = r % (2 * w), oy = r / (2 * w) % (2 * h), image = r / (4 * h * w);
        float v[N];
        load<N>(x, ((image * h + oy / 2) * w + ox / 2) * x.ld + c, v);
        store<N>(y, r * y.ld + c, v);
    }
};

extern "C" void oq_cu_upsample2x(cudaStream_t stream, oq_cu_view y, oq_cu_view x, int64_t batch, int64_t h,
                                 int64_t w)
{
    const int64_t rows = batch * 4 * h * w;
    if (wide(y) && wide(x))
        each<8>(stream, rows, y.cols, upsample_body<8>{y, x, h, w});
    else
        each<1>(stream, rows, y.cols, upsample_body<1>{y, x, h, w});
}

/* One item is N pairs of one head: column c of the row's n_heads * head_dim / 2 pairs. */
template <int N, bool HALF> struct rope_body {
    oq_cu_view x;
    const float *cos, *sin;
    int64_t pairs; /* head_dim / 2 */
    __device__ void operator()(int64_t r, int64_t c) const
    {
        const int64_t head = c / pairs, p = c - head * pairs;
        float co[N], si[N];
        load_f32<N>(cos, r * pairs + p, co);
        load_f32<N>(sin, r * pairs + p, si);
        const int64_t at = r * x.ld + head * 2 * pairs;
        float a[N], b[N];
        if constexpr (HALF) {
            load<N>(x, at + p, a);
            load<N>(x, at + pairs + p, b);
        } else {
            float v[2][N];
            load<N>(x, at + 2 * p, v[0]);
            load<N>(x, at + 2 * p + N, v[1]);
#pragma unroll
            for (int i = 0; i < N; i++)
                a[i] = v[2 * i / N][2 * i % N], b[i] = v[(2 * i + 1) / N][(2 * i + 1) % N];
        }
        float y0[N], y1[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            y0[i] = a[i] * co[i] - b[i] * si[i];
            y1[i] = b[i] * co[i] + a[i] * si[i];
        }
        if constexpr (HALF) {
            store<N>(x, at + p, y0);
            store<N>(x, at + pairs + p, y1);
        } else {
            float v[2][N];
#pragma unroll
            for (int i = 0; i < N; i++)
                v[2 * i / N][2 * i % N] = y0[i], v[(2 * i + 1) / N][(2 * i + 1) % N] = y1[i];
            store<N>(x, at + 2 * p, v[0]);
            store<N>(x, at + 2 * p + N, v[1]);
        }
    }
};

extern "C" void oq_cu_rope(cudaStream_t stream, oq_cu_view x, const float *cos, const float *sin,
                           int64_t n_heads, int64_t head_dim, bool half)
{
    const int64_t pairs = head_dim / 2, cols = n_heads * pairs;
    const bool eight = pairs % 8 == 0 && wide(x) && wide_ptr(cos) && wide_ptr(sin);
    if (eight && half)
        each<8>(stream, x.rows, cols, rope_body<8, true>{x, cos, sin, pairs});
    else if (eight)
        each<8>(stream, x.rows, cols, rope_body<8, false>{x, cos, sin, pairs});
    else if (half)
        each<1>(stream, x.rows, cols, rope_body<1, true>{x, cos, sin, pairs});
    else
        each<1>(stream, x.rows, cols, rope_body<1, false>{x, cos, sin, pairs});
}

template <int N> struct permute_body {
    oq_cu_view y, x;
    oq_cu_permutation p;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        int64_t yi = c * p.ys[5], xi = c * p.xs[5];
#pragma unroll
        for (int d = 4; d >= 0; d--) {
            const int64_t q = r / p.dim[d], i = r - q * p.dim[d];
            yi += i * p.ys[d];
            xi += i * p.xs[d];
            r = q;
        }
        float v[N];
        load<N>(x, xi, v);
        store<N>(y, yi, v);
    }
};

extern "C" void oq_cu_permute(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_permutation *p)
{
    int64_t rows = 1;
    bool eight = p->dim[5] % 8 == 0 && p->ys[5] == 1 && p->xs[5] == 1 && wide_ptr(y.data) && wide_ptr(x.data);
    for (int d = 0; d < 5; d++) {
        rows *= p->dim[d];
        if (p->dim[d] > 1) eight = eight && p->ys[d] % 8 == 0 && p->xs[d] % 8 == 0;
    }
    if (eight)
        each<8>(stream, rows, p->dim[5], permute_body<8>{y, x, *p});
    else
        each<1>(stream, rows, p->dim[5], permute_body<1>{y, x, *p});
}

template <int N> struct finite_body {
    oq_cu_view x;
    int *flag;
    __device__ void operator()(int64_t r, int64_t c) const
    {
        float v[N];
        load<N>(x, r * x.ld + c, v);
        bool ok = true;
#pragma unroll
        for (int i = 0; i < N; i++) ok = ok && isfinite(v[i]);
        if (!ok) *flag = 0; /* every writer writes the same */
    }
};

extern "C" void oq_cu_all_finite(cudaStream_t stream, oq_cu_view x, int *flag)
{
    if (wide(x))
        each<8>(stream, x.rows, x.cols, finite_body<8>{x, flag});
    else
        each<1>(stream, x.rows, x.cols, finite_body<1>{x, flag});
}
