/* attention_flash.cu -- bf16 attention in one pass: tiles of 64 keys stream through shared memory, scores and
 * running maxima stay in registers (Dao et al., FlashAttention-2), products by mma.sync (SM80 and later).
 *
 * One block takes 4 warps x 16 MT queries of one head. K and V tiles are loaded by cp.async: V of this tile
 * while the scores are computed, K of the next while the probabilities are multiplied. Shared rows are
 * swizzled in chunks of 16 bytes, so that ldmatrix meets no bank twice. Softmax works in base 2. */
#include "cuda/device.cuh"

#define TILE_KV 64
#define WARPS   4

template <int D> struct shape {
    static constexpr int MT = D <= 128 ? 2 : 1; /* 16-row fragments of queries per warp */
    static constexpr int ROWS = WARPS * 16 * MT;
    static constexpr int CHUNKS = D / 8; /* of 16 bytes in one row */
    static constexpr int SWIZZLE = CHUNKS < 8 ? CHUNKS - 1 : 7;
    static constexpr size_t BYTES = (size_t)(ROWS + 2 * TILE_KV) * D * 2;
};

template <int D> static __device__ __forceinline__ uint32_t chunk_at(int row, int chunk)
{
    constexpr int DIVIDE = shape<D>::CHUNKS >= 8 ? 1 : 8 / shape<D>::CHUNKS; /* rows in 128 bytes */
    return (uint32_t)(row * shape<D>::CHUNKS + (chunk ^ ((row / DIVIDE) & shape<D>::SWIZZLE))) * 16u;
}

static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool valid)
{
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

static __device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;");
}

template <int N> static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

static __device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Rows [first, first + ROWS) of one head into shared memory; rows and columns outside are zero, and rows that
 * `mask` (NULL: none) hides: what they hold must not reach a sum, not even times zero. */
template <int D, int ROWS>
static __device__ __forceinline__ void load_tile(uint32_t to, const oq_cu_view &v, int64_t col, int64_t first,
                                                 int head_dim, const uint8_t *mask)
{
    constexpr int CHUNKS = shape<D>::CHUNKS;
#pragma unroll
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += WARPS * 32) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool valid = first + row < v.rows && chunk * 8 < head_dim && (!mask || mask[first + row]);
        const __nv_bfloat16 *from =
            (const __nv_bfloat16 *)v.data + (valid ? (first + row) * v.ld + col + chunk * 8 : 0);
        copy16(to + chunk_at<D>(row, chunk), from, valid);
    }
}

/* Scores of one fragment column pair after scale (times log2 e), bias and masks. */
template <int MT>
static __device__ __forceinline__ void mask_scores(const oq_cu_attention &a, float (&s)[MT][8][4],
                                                   int64_t head, int64_t row0, int64_t key0, float scale)
{
    const int lane = (int)(threadIdx.x & 31);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t row = row0 + m * 16 + lane / 4 + (e / 2) * 8;
                const int64_t key = key0 + n * 8 + (lane & 3) * 2 + (e & 1);
                bool see = key < a.k.rows && row < a.q.rows;
                if (a.causal) see = see && key <= row + (a.k.rows - a.q.rows);
                if (a.key_mask && see) see = a.key_mask[key] != 0;
                float v = s[m][n][e] * scale;
                if (a.bias && see)
                    v += a.bias[head * a.bias_head + row * a.bias_row + key] * 1.4426950408889634f;
                s[m][n][e] = see ? v : -INFINITY;
            }
}

template <int D>
__global__ void __launch_bounds__(WARPS * 32, D <= 128 ? 2 : 1) flash_kernel(oq_cu_attention a)
{
    constexpr int MT = shape<D>::MT, ROWS = shape<D>::ROWS, NT = D / 8;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t sq = (uint32_t)__cvta_generic_to_shared(shared);
    const uint32_t sk = sq + ROWS * D * 2, sv = sk + TILE_KV * D * 2;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x & 31;
    const int64_t head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads),
                  block0 = (int64_t)blockIdx.x * ROWS;
    const int64_t row0 = block0 + warp * 16 * MT;
    const int head_dim = (int)a.head_dim;
    int64_t n_keys = a.k.rows;
    if (a.causal) { /* the block's last query sees the most */
        const int64_t last = block0 + ROWS + (a.k.rows - a.q.rows);
        n_keys = last < n_keys ? last : n_keys;
    }
    const int n_tiles = n_keys <= 0 ? 0 : (int)((n_keys + TILE_KV - 1) / TILE_KV);
    const bool masked = a.causal || a.key_mask || a.bias;
    const float scale = a.scale * 1.4426950408889634f;

    float o[MT][NT][4] = {}, top[MT][2], sum[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0.0f;

    load_tile<D, ROWS>(sq, a.q, head * head_dim, block0, head_dim, nullptr);
    if (n_tiles > 0) load_tile<D, TILE_KV>(sk, a.k, kv_head * head_dim, 0, head_dim, nullptr);
    copy_commit();

    for (int tile = 0; tile < n_tiles; tile++) {
        const int64_t key0 = (int64_t)tile * TILE_KV;
        copy_wait<0>();
        __syncthreads(); /* K is there, and everybody is done with the last V */
        load_tile<D, TILE_KV>(sv, a.v, kv_head * head_dim, key0, head_dim, a.key_mask);
        copy_commit();

        float s[MT][8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t q[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                ldmatrix(q[m], sq + chunk_at<D>(warp * 16 * MT + m * 16 + (lane & 15), 2 * k + lane / 16));
#pragma unroll
            for (int n = 0; n < 4; n++) { /* 16 keys at a time */
                uint32_t b[4];
                ldmatrix(b, sk + chunk_at<D>(n * 16 + (lane & 7) + (lane / 16) * 8, 2 * k + (lane / 8 & 1)));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma(s[m][2 * n], q[m], b[0], b[1]);
                    mma(s[m][2 * n + 1], q[m], b[2], b[3]);
                }
            }
        }
        const bool full = !masked && key0 + TILE_KV <= a.k.rows;
        if (full) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[m][n][e] *= scale;
        } else {
            mask_scores<MT>(a, s, head, row0, key0, scale);
        }

        uint32_t p[MT][8][2]; /* probabilities of 16-row fragments: pairs of keys, rows r and r + 8 */
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) { /* rows r and r + 8 of the fragment */
                float t = -INFINITY;
#pragma unroll
                for (int n = 0; n < 8; n++) t = fmaxf(t, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
                t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
                t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
                const float now = fmaxf(top[m][h], t), base = now == -INFINITY ? 0.0f : now;
                const float shrink = exp2f(top[m][h] - base);
                top[m][h] = now;
                float add = 0.0f;
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    const float x = exp2f(s[m][n][2 * h] - base), y = exp2f(s[m][n][2 * h + 1] - base);
                    add += x + y;
                    p[m][n][h] = bf16_pair(x, y);
                }
                sum[m][h] = sum[m][h] * shrink + add;
#pragma unroll
                for (int n = 0; n < NT; n++) o[m][n][2 * h] *= shrink, o[m][n][2 * h + 1] *= shrink;
            }

        copy_wait<0>();
        __syncthreads(); /* V is there, and everybody is done with K */
        if (tile + 1 < n_tiles)
            load_tile<D, TILE_KV>(sk, a.k, kv_head * head_dim, key0 + TILE_KV, head_dim, nullptr);
        copy_commit();
#pragma unroll
        for (int k = 0; k < TILE_KV / 16; k++)
#pragma unroll
            for (int n = 0; n < NT / 2; n++) { /* 16 columns of V at a time */
                uint32_t b[4];
                ldmatrix_transposed(b, sv + chunk_at<D>(k * 16 + (lane & 15), 2 * n + lane / 16));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const uint32_t pa[4] = {p[m][2 * k][0], p[m][2 * k][1], p[m][2 * k + 1][0],
                                            p[m][2 * k + 1][1]};
                    mma(o[m][2 * n], pa, b[0], b[1]);
                    mma(o[m][2 * n + 1], pa, b[2], b[3]);
                }
            }
    }

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float t = sum[m][h];
            t += __shfl_xor_sync(0xffffffffu, t, 1);
            t += __shfl_xor_sync(0xffffffffu, t, 2);
            const float inverse = t == 0.0f ? 0.0f : 1.0f / t;
            const int64_t row = row0 + m * 16 + lane / 4 + h * 8;
            if (row >= a.o.rows) continue;
            __nv_bfloat16 *to = (__nv_bfloat16 *)a.o.data + row * a.o.ld + head * head_dim;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const int col = n * 8 + (lane & 3) * 2;
                if (col < head_dim)
                    *(uint32_t *)(to + col) =
                        bf16_pair(o[m][n][2 * h] * inverse, o[m][n][2 * h + 1] * inverse);
            }
        }
}

template <int D> static void flash(cudaStream_t stream, const oq_cu_attention *a)
{
    constexpr int bytes = (int)shape<D>::BYTES;
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(flash_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const dim3 grid((unsigned)((a->q.rows + shape<D>::ROWS - 1) / shape<D>::ROWS), (unsigned)a->n_heads);
    flash_kernel<D><<<grid, WARPS * 32, bytes, stream>>>(*a);
}

extern "C" bool oq_cu_attention_flash_fits(int64_t head_dim)
{
    return head_dim % 8 == 0 && head_dim <= 256;
}

extern "C" void oq_cu_attention_flash(cudaStream_t stream, const oq_cu_attention *a)
{
    if (a->q.rows <= 0) return;
    if (a->head_dim <= 32)
        flash<32>(stream, a);
    else if (a->head_dim <= 64)
        flash<64>(stream, a);
    else if (a->head_dim <= 128)
        flash<128>(stream, a);
    else
        flash<256>(stream, a);
}
