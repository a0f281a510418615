/* norm.cu -- norms of rows (one block or one warp per row, the row in registers) and group norm over NHWC
 * images (partial Welford statistics, joined in a fixed order, then one pass that applies them). */
#include "cuda/device.cuh"

/* ---- rows ---------------------------------------------------------------------------------------------- */

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

/* ---- group norm ---------------------------------------------------------------------------------------- */

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
#define STAT_SLICES  1024 /* most slices of rows of one image */

/* Layout of `work`: {mean, scale} [batch][groups], then partial moments [batch][groups][slices]. */
static int64_t slices_for(int64_t rows_per_image, int64_t cols)
{
    const int64_t per_slice = (65536 + cols - 1) / cols; /* about 64 Ki elements each */
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
    constexpr int AHEAD = 4;
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
            for (int64_t r = first + row_lane; r < end; r += AHEAD * row_lanes) {
                float v[AHEAD][N]; /* several loads under way before the first is used */
#pragma unroll
                for (int i = 0; i < AHEAD; i++)
                    if (r + i * row_lanes < end)
                        load<N>(x, (image * rows_per_image + r + i * row_lanes) * x.ld + (int64_t)col * N,
                                v[i]);
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    if (r + i * row_lanes >= end) break;
                    n += 1.0f;
                    const float inverse = 1.0f / n;
#pragma unroll
                    for (int j = 0; j < N; j++) {
                        const float d = v[i][j] - mean[j];
                        mean[j] += d * inverse;
                        m2[j] += d * (v[i][j] - mean[j]);
                    }
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
            moments *to = part + (image * n_groups + g) * slices + blockIdx.x;
            *to = g * per_group < base * N ? join(*to, m) : m; /* a group may continue over two bases */
        }
    }
}

/* The slices of an image's group, joined pairwise and always in the same order; thread 0 has the result. */
static __device__ moments join_slices(const moments *part, int slices)
{
    __shared__ moments shared[STAT_THREADS];
    const int t = (int)threadIdx.x;
    moments m = {0.0f, 0.0f, 0.0f};
    for (int s = t; s < slices; s += STAT_THREADS) m = join(m, part[(int64_t)blockIdx.x * slices + s]);
    shared[t] = m;
    for (int half = STAT_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) shared[t] = join(shared[t], shared[t + half]);
    }
    return shared[0];
}

/* One block per image and group. */
__global__ void __launch_bounds__(STAT_THREADS)
    group_finish_kernel(const moments *part, int slices, float eps, float2 *out)
{
    const moments m = join_slices(part, slices);
    if (threadIdx.x == 0) out[blockIdx.x] = make_float2(m.mean, 1.0f / sqrtf(m.m2 / m.n + eps));
}

/* The same of a piece of an image, in double; [groups, 3]. */
__global__ void __launch_bounds__(STAT_THREADS) group_piece_kernel(const moments *part, int slices, double *out)
{
    const moments m = join_slices(part, slices);
    if (threadIdx.x != 0) return;
    out[blockIdx.x * 3] = (double)m.n;
    out[blockIdx.x * 3 + 1] = (double)m.mean;
    out[blockIdx.x * 3 + 2] = (double)m.m2;
}

/* Pieces [n, groups, 3] to the statistics of the whole image; a thread per group. */
__global__ void group_pieces_kernel(const double *pieces, int n, int n_groups, float eps, float2 *out)
{
    const int g = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (g >= n_groups) return;
    double count = 0, mean = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        const double *piece = pieces + ((int64_t)i * n_groups + g) * 3;
        count += piece[0];
        mean += piece[0] * piece[1];
    }
    mean /= count;
    for (int i = 0; i < n; i++) {
        const double *piece = pieces + ((int64_t)i * n_groups + g) * 3, apart = piece[1] - mean;
        squares += piece[2] + piece[0] * apart * apart;
    }
    out[g] = make_float2((float)mean, (float)(1.0 / sqrt(squares / count + (double)eps)));
}

struct group_apply {
    oq_cu_view y, x;
    const float *weight, *bias;
    const float2 *stats;
    int64_t rows_per_image;
    int n_groups, per_group, lanes;
    bool silu;
};

/* A thread stays with its N columns, whose parameters it keeps in registers, and walks over rows of one image. */
template <int N> __global__ void __launch_bounds__(STAT_THREADS) group_apply_kernel(group_apply a)
{
    const int lane = (int)threadIdx.x % a.lanes, row_lane = (int)threadIdx.x / a.lanes;
    const int row_lanes = STAT_THREADS / a.lanes, n_cols = (int)(a.x.cols / N);
    const int64_t image = blockIdx.y, slices = gridDim.x;
    const int64_t first = blockIdx.x * a.rows_per_image / slices,
                  end = (blockIdx.x + 1) * a.rows_per_image / slices;
    if (row_lane >= row_lanes) return;
    for (int vec = lane; vec < n_cols; vec += a.lanes) {
        const int col = vec * N;
        float mean[N], scale[N], w[N], b[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float2 s = a.stats[image * a.n_groups + (col + j) / a.per_group];
            mean[j] = s.x, scale[j] = s.y;
            w[j] = a.weight ? a.weight[col + j] : 1.0f;
            b[j] = a.bias ? a.bias[col + j] : 0.0f;
        }
#pragma unroll 4
        for (int64_t r = first + row_lane; r < end; r += row_lanes) {
            const int64_t row = image * a.rows_per_image + r;
            float v[N];
            load<N>(a.x, row * a.x.ld + col, v);
#pragma unroll
            for (int j = 0; j < N; j++) {
                v[j] = (v[j] - mean[j]) * scale[j] * w[j] + b[j];
                if (a.silu) v[j] = v[j] / (1.0f + __expf(-v[j]));
            }
            store<N>(a.y, row * a.y.ld + col, v);
        }
    }
}

static int lanes_for(int64_t vectors)
{
    return (int)(vectors > STAT_THREADS ? STAT_THREADS : vectors);
}

/* Partial moments of x to `part`. */
template <int N>
static void group_stats(cudaStream_t stream, oq_cu_view x, int n_groups, int64_t batch, moments *part)
{
    const int64_t per_image = x.rows / batch;
    const int lanes = lanes_for(x.cols / N);
    const size_t shared = (size_t)(STAT_THREADS / lanes) * (size_t)lanes * N * sizeof(moments);
    const dim3 grid((unsigned)slices_for(per_image, x.cols), (unsigned)batch);
    group_stats_kernel<N><<<grid, STAT_THREADS, shared, stream>>>(x, per_image, n_groups, lanes, part);
}

template <int N> static void group_norm(cudaStream_t stream, const oq_cu_group_norm_args *g, void *work)
{
    const int64_t per_image = g->x.rows / g->batch, slices = slices_for(per_image, g->x.cols);
    float2 *stats = (float2 *)work;
    moments *part = (moments *)(stats + g->batch * g->n_groups);
    const dim3 grid((unsigned)slices, (unsigned)g->batch);
    const int groups = (int)g->n_groups;
    if (g->pieces) {
        group_pieces_kernel<<<(unsigned)((groups + 31) / 32), 32, 0, stream>>>(g->pieces, (int)g->n_pieces, groups,
                                                                              g->eps, stats);
    } else {
        group_stats<N>(stream, g->x, groups, g->batch, part);
        group_finish_kernel<<<(unsigned)(g->batch * groups), STAT_THREADS, 0, stream>>>(part, (int)slices, g->eps,
                                                                                        stats);
    }
    const group_apply a = {g->y,   g->x,   g->weight,
                           g->bias, stats, per_image,
                           groups, (int)(g->x.cols / groups), lanes_for(g->x.cols / N),
                           g->silu};
    group_apply_kernel<N><<<grid, STAT_THREADS, 0, stream>>>(a);
}

extern "C" void oq_cu_group_norm(cudaStream_t stream, const oq_cu_group_norm_args *g, void *work)
{
    if (g->x.rows <= 0 || g->x.cols <= 0) return;
    if (wide(g->x) && wide(g->y))
        group_norm<8>(stream, g, work);
    else
        group_norm<1>(stream, g, work);
}

extern "C" void oq_cu_group_moments(cudaStream_t stream, oq_cu_view x, int64_t n_groups, double *out, void *work)
{
    if (x.rows <= 0 || x.cols <= 0) return;
    moments *part = (moments *)work;
    if (wide(x))
        group_stats<8>(stream, x, (int)n_groups, 1, part);
    else
        group_stats<1>(stream, x, (int)n_groups, 1, part);
    group_piece_kernel<<<(unsigned)n_groups, STAT_THREADS, 0, stream>>>(part, (int)slices_for(x.rows, x.cols), out);
}
