/* norm.cu -- norms of rows (one block or one warp per row, the row in registers) and group norm over NHWC
 * images (partial Welford statistics, joined in a fixed order, then one pass that applies them). */
#include "cuda/device.cuh"

/* ---- rows ---- */

#define MAX_CHUNKS 4 /* chunks of eight columns that one thread keeps */

static __device__ __forceinline__ float norm_one(const oq_cu_norm &a, float x, float scale, float w, float b)
{
    float y = x * scale;
    if (a.round_before_weight) y = keep(a.y, y);
    return y * w + b;
}

/* Thread t of T owns columns 8 (t + i T), i < CHUNKS. The sums go over the whole row in registers. */
template <int CHUNKS, bool WARP>
static __device__ void norm_row_wide(const oq_cu_norm &a, int64_t x_at, int64_t y_at, int t, int n_threads)
{
    const int n_vec = (int)(a.group / 8);
    float v[CHUNKS][8];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = t + i * n_threads;
        if (c < n_vec) {
            load<8>(a.x, x_at + 8 * c, v[i]);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) v[i][j] = 0.0f;
        }
    }
    float mean = 0.0f;
    if (a.mean) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum += v[i][j];
        mean = (WARP ? warp_reduce<op_sum>(sum) : block_reduce<op_sum>(sum)) / (float)a.group;
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (t + i * n_threads < n_vec) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[i][j] -= mean;
                squares += v[i][j] * v[i][j];
            }
        }
    squares = WARP ? warp_reduce<op_sum>(squares) : block_reduce<op_sum>(squares);
    const float scale = 1.0f / sqrtf(squares / (float)a.group + a.eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = t + i * n_threads;
        if (c >= n_vec) break;
        float w[8], b[8];
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] = 1.0f, b[j] = 0.0f;
        if (a.weight) load_f32<8>(a.weight, 8 * c, w);
        if (a.bias) load_f32<8>(a.bias, 8 * c, b);
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] = norm_one(a, v[i][j], scale, w[j], b[j]);
        store<8>(a.y, y_at + 8 * c, v[i]);
    }
}

/* Any number of columns, any alignment: the row is read again for each pass. */
static __device__ void norm_row_any(const oq_cu_norm &a, int64_t x_at, int64_t y_at)
{
    float v[1], mean = 0.0f, squares = 0.0f;
    if (a.mean) {
        float sum = 0.0f;
        for (int64_t c = threadIdx.x; c < a.group; c += blockDim.x) load<1>(a.x, x_at + c, v), sum += v[0];
        mean = block_reduce<op_sum>(sum) / (float)a.group;
    }
    for (int64_t c = threadIdx.x; c < a.group; c += blockDim.x) {
        load<1>(a.x, x_at + c, v);
        squares += (v[0] - mean) * (v[0] - mean);
    }
    squares = block_reduce<op_sum>(squares);
    const float scale = 1.0f / sqrtf(squares / (float)a.group + a.eps);
    for (int64_t c = threadIdx.x; c < a.group; c += blockDim.x) {
        load<1>(a.x, x_at + c, v);
        v[0] = norm_one(a, v[0] - mean, scale, a.weight ? a.weight[c] : 1.0f, a.bias ? a.bias[c] : 0.0f);
        store<1>(a.y, y_at + c, v);
    }
}

template <int CHUNKS> __global__ void norm_block_kernel(oq_cu_norm a)
{
    norm_row_wide<CHUNKS, false>(a, blockIdx.x * a.x.ld, blockIdx.x * a.y.ld, (int)threadIdx.x,
                                 (int)blockDim.x);
}

/* One warp per run of `group` columns; runs are counted over rows and groups. */
template <int CHUNKS> __global__ void norm_warp_kernel(oq_cu_norm a, int64_t n_runs, int64_t runs_per_row)
{
    const int64_t run = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (run >= n_runs) return;
    const int64_t row = run / runs_per_row, col = (run - row * runs_per_row) * a.group;
    norm_row_wide<CHUNKS, true>(a, row * a.x.ld + col, row * a.y.ld + col, (int)(threadIdx.x & 31), 32);
}

__global__ void norm_any_kernel(oq_cu_norm a, int64_t runs_per_row)
{
    const int64_t row = blockIdx.x / runs_per_row, col = (blockIdx.x - row * runs_per_row) * a.group;
    norm_row_any(a, row * a.x.ld + col, row * a.y.ld + col);
}

extern "C" void oq_cu_row_norm(cudaStream_t stream, const oq_cu_norm *a)
{
    const int64_t per_row = a->x.cols / a->group, runs = a->x.rows * per_row, vec = a->group / 8;
    if (runs <= 0) return;
    const bool eight =
        wide(a->x) && wide(a->y) && a->group % 8 == 0 && wide_ptr(a->weight) && wide_ptr(a->bias);
    if (eight && vec <= 32) {
        norm_warp_kernel<1><<<(unsigned)((runs + 7) / 8), 256, 0, stream>>>(*a, runs, per_row);
    } else if (eight && vec <= 128) {
        norm_warp_kernel<4><<<(unsigned)((runs + 7) / 8), 256, 0, stream>>>(*a, runs, per_row);
    } else if (eight && per_row == 1 && vec <= 256) {
        norm_block_kernel<1><<<(unsigned)runs, (unsigned)((vec + 31) / 32 * 32), 0, stream>>>(*a);
    } else if (eight && per_row == 1 && vec <= 512) {
        norm_block_kernel<2><<<(unsigned)runs, (unsigned)((vec + 63) / 64 * 32), 0, stream>>>(*a);
    } else if (eight && per_row == 1 && vec <= 1024 * MAX_CHUNKS) {
        const int64_t threads = (vec + MAX_CHUNKS - 1) / MAX_CHUNKS;
        norm_block_kernel<MAX_CHUNKS>
            <<<(unsigned)runs, (unsigned)((threads + 31) / 32 * 32), 0, stream>>>(*a);
    } else {
        const unsigned threads = a->group > 255 ? 256 : 32;
        norm_any_kernel<<<(unsigned)runs, threads, 0, stream>>>(*a, per_row);
    }
}

/* ---- group norm ---- */

struct moments { /* of n values: mean, and sum of squares about it */
    float n, mean, m2;
};

static __device__ __forceinline__ moments join(moments a, moments b)
{
    if (b.n == 0.0f) return a;
    if (a.n == 0.0f) return b;
    const float n = a.n + b.n, d = b.mean - a.mean;
    return {n, a.mean + d * (b.n / n), a.m2 + b.m2 + d * d * (a.n * (b.n / n))};
}

#define STAT_THREADS 256
#define STAT_SLICES  256 /* most slices of rows of one image */

/* Layout of `work`: partial moments [batch][slices][groups], then {mean, scale} [batch][groups]. */
static int64_t slices_for(int64_t rows_per_image, int64_t cols)
{
    const int64_t per_slice = (131072 + cols - 1) / cols; /* about 128 Ki elements each */
    const int64_t n = (rows_per_image + per_slice - 1) / per_slice;
    return n < 1 ? 1 : n > STAT_SLICES ? STAT_SLICES : n;
}

extern "C" size_t oq_cu_group_norm_work(int64_t rows, int64_t cols, int64_t batch, int64_t n_groups)
{
    const size_t partials = (size_t)(batch * slices_for(rows / batch, cols) * n_groups);
    return partials * sizeof(moments) + (size_t)(batch * n_groups) * sizeof(float2);
}

/* Block (slice, group block, image): threads stride over the elements of GB consecutive groups' columns. Here
 * each block takes all columns; thread t keeps moments of the columns it meets, which all belong to one group
 * because the thread's column step is fixed. */
template <int N>
__global__ void __launch_bounds__(STAT_THREADS)
    group_stats_kernel(oq_cu_view x, int64_t rows_per_image, int n_groups, int lanes, moments *part)
{
    extern __shared__ moments shared[]; /* [row lane][lanes][N] */
    const int64_t image = blockIdx.y, slices = gridDim.x;
    const int64_t first = blockIdx.x * rows_per_image / slices,
                  end = (blockIdx.x + 1) * rows_per_image / slices;
    const int per_group = (int)(x.cols / n_groups), n_cols = (int)(x.cols / N);
    const int lane = (int)threadIdx.x % lanes, row_lane = (int)threadIdx.x / lanes,
              row_lanes = STAT_THREADS / lanes;
    for (int base = 0; base < n_cols; base += lanes) {
        const int col = base + lane;
        float mean[N], m2[N], n = 0.0f;
#pragma unroll
        for (int j = 0; j < N; j++) mean[j] = m2[j] = 0.0f;
        if (col < n_cols && row_lane < row_lanes)
            for (int64_t r = first + row_lane; r < end; r += row_lanes) {
                float v[N];
                load<N>(x, (image * rows_per_image + r) * x.ld + (int64_t)col * N, v);
                n += 1.0f;
                const float inverse = 1.0f / n;
#pragma unroll
                for (int j = 0; j < N; j++) {
                    const float d = v[j] - mean[j];
                    mean[j] += d * inverse;
                    m2[j] += d * (v[j] - mean[j]);
                }
            }
        __syncthreads();
        if (row_lane < row_lanes)
#pragma unroll
            for (int j = 0; j < N; j++)
                shared[(row_lane * lanes + lane) * N + j] = {col < n_cols ? n : 0.0f, mean[j], m2[j]};
        __syncthreads();
        /* Column by column over the row lanes, then group by group. */
        const int width = lanes * N;
        for (int c = (int)threadIdx.x; c < width; c += STAT_THREADS) {
            moments m = shared[c];
            for (int r = 1; r < row_lanes; r++) m = join(m, shared[r * width + c]);
            shared[c] = m;
        }
        __syncthreads();
        const int first_group = base * N / per_group, last = min((int)x.cols, (base + lanes) * N);
        for (int g = first_group + (int)threadIdx.x; g * per_group < last; g += STAT_THREADS) {
            moments m = {0.0f, 0.0f, 0.0f};
            for (int c = max(g * per_group, base * N); c < min((g + 1) * per_group, last); c++)
                m = join(m, shared[c - base * N]);
            moments *to = part + (image * slices + blockIdx.x) * n_groups + g;
            *to = g * per_group < base * N ? join(*to, m) : m; /* a group may continue over two bases */
        }
    }
}

__global__ void group_finish_kernel(const moments *part, int slices, int n_groups, float eps, float2 *out)
{
    const int image = (int)blockIdx.x;
    for (int g = (int)threadIdx.x; g < n_groups; g += (int)blockDim.x) {
        moments m = {0.0f, 0.0f, 0.0f};
        for (int s = 0; s < slices; s++) m = join(m, part[(image * slices + s) * n_groups + g]);
        out[image * n_groups + g] = make_float2(m.mean, 1.0f / sqrtf(m.m2 / m.n + eps));
    }
}

template <int N> struct group_apply {
    oq_cu_view y, x;
    const float *weight, *bias;
    const float2 *stats;
    int64_t rows_per_image;
    int n_groups, per_group;
    bool silu;
};

template <int N> __global__ void __launch_bounds__(256) group_apply_kernel(group_apply<N> a)
{
    const int64_t per_row = a.x.cols / N, n = a.x.rows * per_row;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / per_row;
        const int col = (int)(i - row * per_row) * N;
        const float2 *stats = a.stats + row / a.rows_per_image * a.n_groups;
        float v[N];
        load<N>(a.x, row * a.x.ld + col, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float2 s = stats[(col + j) / a.per_group];
            float y = (v[j] - s.x) * s.y;
            if (a.weight) y *= a.weight[col + j];
            if (a.bias) y += a.bias[col + j];
            if (a.silu) y = y / (1.0f + expf(-y));
            v[j] = y;
        }
        store<N>(a.y, row * a.y.ld + col, v);
    }
}

template <int N>
static void group_norm(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const float *weight,
                       const float *bias, float eps, int n_groups, int64_t batch, bool silu, void *work)
{
    const int64_t per_image = x.rows / batch, slices = slices_for(per_image, x.cols);
    moments *part = (moments *)work;
    float2 *stats = (float2 *)(part + batch * slices * n_groups);
    int lanes = (int)(x.cols / N);
    if (lanes > STAT_THREADS) lanes = STAT_THREADS;
    const size_t shared = (size_t)(STAT_THREADS / lanes) * (size_t)lanes * N * sizeof(moments);
    const dim3 grid((unsigned)slices, (unsigned)batch);
    group_stats_kernel<N><<<grid, STAT_THREADS, shared, stream>>>(x, per_image, n_groups, lanes, part);
    group_finish_kernel<<<(unsigned)batch, 64, 0, stream>>>(part, (int)slices, n_groups, eps, stats);
    const group_apply<N> a = {y, x, weight, bias, stats, per_image, n_groups, (int)(x.cols / n_groups), silu};
    group_apply_kernel<N><<<blocks_for(x.rows * (x.cols / N), 256, 132 * 32), 256, 0, stream>>>(a);
}

extern "C" void oq_cu_group_norm(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const float *weight,
                                 const float *bias, float eps, int64_t n_groups, int64_t batch, bool silu,
                                 void *work)
{
    if (x.rows <= 0 || x.cols <= 0) return;
    if (wide(x) && wide(y))
        group_norm<8>(stream, y, x, weight, bias, eps, (int)n_groups, batch, silu, work);
    else
        group_norm<1>(stream, y, x, weight, bias, eps, (int)n_groups, batch, silu, work);
}
