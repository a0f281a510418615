/* attention_blocks.cu -- block-sparse choice: means of Q and of K over blocks of 128 rows, the dot product of two means as
 * the score of a block of keys; a block of queries keeps its own block and the best of the others, a tie goes to the
 * earlier one. The rule is docs/numerics.md's; sums are in double. */
#include "cuda/device.cuh"

#define BLOCK   128
#define MAX_DIM 256

struct choice {
    oq_cu_attention a;
    uint8_t *map;
    float *q, *k, *scores;
    int64_t blocks, kept;
};

/* One block of rows of one head; a thread for each column. */
__global__ void __launch_bounds__(MAX_DIM) mean_kernel(choice c)
{
    const int64_t n_q = c.a.n_heads * c.blocks, i = blockIdx.x;
    const bool is_q = i < n_q;
    const int64_t at = is_q ? i : i - n_q, head = at / c.blocks, block = at - head * c.blocks;
    const oq_cu_view &x = is_q ? c.a.q : c.a.k;
    const uint8_t *const seen = is_q ? nullptr : c.a.key_mask;
    const int64_t first = block * BLOCK, end = min(first + BLOCK, x.rows), dim = c.a.head_dim,
                  col = threadIdx.x;
    if (col >= dim) return;
    double sum = 0.0;
    int64_t n = 0;
    for (int64_t r = first; r < end; r++) {
        if (seen && !seen[r]) continue;
        float v[1];
        load<1>(x, r * x.ld + head * dim + col, v);
        sum += (double)v[0];
        n++;
    }
    float *const to = (is_q ? c.q : c.k) + at * dim;
    to[col] = n ? (float)(sum / (double)n) : is_q ? 0.0f : -INFINITY; /* no key of the block is seen */
}

/* A block of threads for one row of the map. */
__global__ void __launch_bounds__(256) choose_kernel(choice c)
{
    __shared__ float best[8];
    __shared__ int where[8];
    const int64_t row = blockIdx.x, head = row / c.blocks, own = row - head * c.blocks, dim = c.a.head_dim;
    const float *const q = c.q + row * dim, *const k =
                                                c.k + head / (c.a.n_heads / c.a.n_kv_heads) * c.blocks * dim;
    float *const scores = c.scores + row * c.blocks;
    uint8_t *const map = c.map + row * c.blocks;
    const int t = (int)threadIdx.x;
    for (int64_t j = t; j < c.blocks; j += 256) {
        double dot = 0.0;
        for (int64_t i = 0; i < dim; i++) dot += (double)q[i] * (double)k[j * dim + i];
        scores[j] = k[j * dim] == -INFINITY ? -INFINITY : (float)dot;
        map[j] = j == own;
    }
    __syncthreads();
    for (int64_t n = 1; n < c.kept; n++) {
        float top = 0.0f;
        int at = -1;
        for (int64_t j = t; j < c.blocks; j += 256)
            if (!map[j] && (at < 0 || scores[j] > top)) top = scores[j], at = (int)j;
        for (int d = 16; d > 0; d /= 2) {
            const float other = __shfl_down_sync(0xffffffffu, top, d);
            const int from = __shfl_down_sync(0xffffffffu, at, d);
            if (from >= 0 && (at < 0 || other > top || (other == top && from < at))) top = other, at = from;
        }
        if (t % 32 == 0) best[t / 32] = top, where[t / 32] = at;
        __syncthreads();
        if (t == 0) {
            for (int i = 1; i < 8; i++)
                if (where[i] >= 0 && (at < 0 || best[i] > top || (best[i] == top && where[i] < at)))
                    top = best[i], at = where[i];
            map[at] = 1;
        }
        __syncthreads();
    }
}

extern "C" size_t oq_cu_attention_blocks_work(int64_t n, int64_t n_heads, int64_t n_kv_heads,
                                              int64_t head_dim)
{
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    return (size_t)(blocks * ((n_heads + n_kv_heads) * head_dim + n_heads * blocks)) * sizeof(float);
}

extern "C" void oq_cu_attention_blocks(cudaStream_t stream, uint8_t *map, const oq_cu_attention *a,
                                       int64_t kept, void *work)
{
    choice c = {*a, map, (float *)work, nullptr, nullptr, (a->q.rows + BLOCK - 1) / BLOCK, kept};
    c.k = c.q + a->n_heads * c.blocks * a->head_dim;
    c.scores = c.k + a->n_kv_heads * c.blocks * a->head_dim;
    mean_kernel<<<(unsigned)((a->n_heads + a->n_kv_heads) * c.blocks), MAX_DIM, 0, stream>>>(c);
    choose_kernel<<<(unsigned)(a->n_heads * c.blocks), 256, 0, stream>>>(c);
}
