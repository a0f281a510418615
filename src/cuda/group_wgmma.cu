/* group_wgmma.cu -- y = x . W^T for tens to hundreds of rows of x and compressed weights, on Hopper: each weight is read
 * and decoded once, or twice. Two or three warpgroups keep 64 rows of W each as the register operand: codes come straight
 * from memory, become bf16 (number times scale, rounded once) and are multiplied with up to 256 rows of x, whose tiles one
 * more warp fetches with the copy engine. Columns of x are permuted in every sixteen so that they meet the codes' order. */
#include "cuda/group.cuh"
#include "cuda/wgmma.cuh"

#define GROUP_N 64 /* rows of W of a warpgroup; G of them multiply, one more loads */
#define TILE_K  64 /* columns of a tile of x: 128 bytes */

struct group_args {
    oq_cu_group w;
    oq_cu_view y;
    const float *bias;
    int n_blocks; /* of 128 columns */
};

template <int M> struct ring { /* shared memory, in bytes from its start */
    static constexpr int STAGES = M == 256 ? 6 : 8;
    static constexpr uint32_t STAGE = M * 128, AT_BAR = STAGES * STAGE;
    static constexpr uint32_t BYTES = AT_BAR + 16 * STAGES + 1024; /* and room to align */
};

/* ---- columns of x in the codes' order ------------------------------------------------------------------- */

/* Pairs of columns 0..7 of sixteen become 0 2 4 6 1 3 5 7: a product's thread q has columns 2q and 2q + 8, the codes'
 * has 4q .. + 3. Columns beyond x are zeros. */
__global__ void __launch_bounds__(256) permute_kernel(__nv_bfloat16 *to, oq_cu_view x, int64_t ld)
{
    const int64_t per_row = ld / 16, n = x.rows * per_row;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / per_row, col = (i - row * per_row) * 16;
        uint2 u[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (col + 4 * j < x.cols)
                u[j] = *(const uint2 *)((const __nv_bfloat16 *)x.data + row * x.ld + col + 4 * j);
        uint4 *const at = (uint4 *)(to + row * ld + col);
        at[0] = make_uint4(u[0].x, u[1].x, u[2].x, u[3].x);
        at[1] = make_uint4(u[0].y, u[1].y, u[2].y, u[3].y);
    }
}

#if HOPPER
template <int M>
static __device__ void load_all(const group_args &a, uint32_t base, const CUtensorMap *x, int m0)
{
    using R = ring<M>;
    const uint32_t full = base + R::AT_BAR, free = full + 8 * R::STAGES;
    for (int i = 0; i < 2 * a.n_blocks; i++) {
        const uint32_t s = (uint32_t)(i % R::STAGES);
        barrier_wait(free + 8 * s, ((uint32_t)(i / R::STAGES) & 1) ^ 1);
        barrier_expect(full + 8 * s, R::STAGE);
        tensor_load(base + s * R::STAGE, x, i * TILE_K, m0, full + 8 * s);
    }
}

/* Numbers of the four codes that step j of a block has for this thread in row h. */
template <int BITS, scale_layout L>
static __device__ __forceinline__ void numbers(float (&v)[4], const part<BITS, L> &p, int h, int j,
                                               const float *table)
{
    if constexpr (BITS == 4) {
        const uint32_t w = word_of(p.code[h][0], j / 2) >> (j % 2 * 16);
#pragma unroll
        for (int e = 0; e < 4; e++) v[e] = table[w >> (4 * e) & 15u];
    } else {
        const uint32_t w = word_of(p.code[h][j / 4], j % 4);
        if constexpr (layout_of<L>::ZEROS) {
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] = (float)(w >> (8 * e) & 255u);
        } else {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const __half2_raw pair =
                    __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(w >> (16 * e)), __NV_E4M3);
                const float2 f = __half22float2(*(const __half2 *)&pair);
                v[2 * e] = f.x, v[2 * e + 1] = f.y;
            }
        }
    }
}

/* The register operand of step j: rows r and r + 8. */
template <int BITS, scale_layout L>
static __device__ __forceinline__ void operand(uint32_t (&f)[4], const part<BITS, L> &p,
                                               const shared_scale<L> &shared, int j, bool integers,
                                               const float *table)
{
    constexpr int STEPS = 8 / layout_of<L>::GROUPS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float s = scale_in<BITS, L>(p, shared, h, j / STEPS);
        float v[4];
        numbers<BITS, L>(v, p, h, j, table);
        if (layout_of<L>::ZEROS && integers) {
            const float z = zero_in<BITS, L>(p, h, j / STEPS);
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] -= z;
        }
        f[h] = bf16_pair(v[0] * s, v[1] * s);
        f[2 + h] = bf16_pair(v[2] * s, v[3] * s);
    }
}

/* y[m][n] of this warpgroup's 64 rows of W: through shared memory where the tile is whole, so that rows are written in
 * pieces of 16 bytes. */
template <int M>
static __device__ void finish(const group_args &a, const float (&acc)[M / 2], uint8_t *shared, int group,
                              int64_t n0, int64_t m0)
{
    const int t = (int)threadIdx.x % 128, lane = t & 31, r = t / 32 * 16 + lane / 4, q = lane & 3;
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; h++) bias[h] = a.bias && n0 + r + 8 * h < a.w.n ? a.bias[n0 + r + 8 * h] : 0.0f;
    const bool whole =
        a.y.type == OQ_CU_BF16 && n0 + 64 <= a.w.n && a.y.ld % 8 == 0 && ((uintptr_t)a.y.data & 15) == 0;
    constexpr int LD = 72; /* of a row of 64, padded against bank conflicts */
    __nv_bfloat16 *const tile = (__nv_bfloat16 *)shared + group * M * LD;
#pragma unroll
    for (int i = 0; i < M / 2; i++) {
        const int m = i / 4 * 8 + 2 * q + (i & 1), h = i / 2 & 1;
        const float v[1] = {acc[i] + bias[h]};
        if (whole)
            tile[m * LD + r + 8 * h] = __float2bfloat16_rn(v[0]);
        else if (m0 + m < a.y.rows && n0 + r + 8 * h < a.w.n)
            store<1>(a.y, (m0 + m) * a.y.ld + n0 + r + 8 * h, v);
    }
    if (!whole) return;
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    for (int i = t; i < M * 8; i += 128) {
        const int m = i / 8, c = i % 8 * 8;
        if (m0 + m < a.y.rows)
            *(uint4 *)((__nv_bfloat16 *)a.y.data + (m0 + m) * a.y.ld + n0 + c) =
                *(const uint4 *)(tile + m * LD + c);
    }
}

template <int BITS, scale_layout L, int M, int G>
static __device__ void multiply(const group_args &a, uint32_t base, uint8_t *shared, const float *table,
                                const float *map, int group)
{
    using R = ring<M>;
    const uint32_t full = base + R::AT_BAR, free = full + 8 * R::STAGES;
    const int t = (int)threadIdx.x % 128, lane = t & 31, q = lane & 3;
    const int64_t n0 = ((int64_t)blockIdx.x * G + group) * GROUP_N, r = n0 + t / 32 * 16 + lane / 4;
    const int64_t row[2] = {min(r, a.w.n - 1), min(r + 8, a.w.n - 1)};
    const bool speaker = t == 0, integers = a.w.zeros != nullptr || BITS == 8;
    const shared_scale<L> shares = shared_scale_of<L>(a.w, row, map);
    float acc[M / 2];
#pragma unroll
    for (int i = 0; i < M / 2; i++) acc[i] = 0.0f;
    constexpr int DEPTH =
        M == 256 || BITS == 8 || G == 3 ? 2 : 3; /* blocks under way; a slot is filled again when it was used */
    part<BITS, L> slot[DEPTH];
    uint32_t f[2][4][4] =
        {}; /* operands of the halves of a block: one is multiplied while the other is made */
    stream at = stream_at<BITS, L>(a.w, row, 0, q);
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (i >= a.n_blocks) break;
        fetch<BITS, L>(slot[i], a.w, at);
        advance<BITS, L>(at, 1);
    }
    for (int first = 0; first < a.n_blocks; first += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int block = first + d;
            if (block >= a.n_blocks) break;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 2 * block + half;
                const uint32_t s = (uint32_t)(i % R::STAGES);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    operand<BITS, L>(f[half][k], slot[d], shares, half * 4 + k, integers, table);
                if (half == 1 && block + DEPTH < a.n_blocks) {
                    fetch<BITS, L>(slot[d], a.w, at);
                    advance<BITS, L>(at, 1);
                }
                barrier_wait(full + 8 * s, (uint32_t)(i / R::STAGES) & 1);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    wgmma_rows(acc, f[half][k], descriptor(base + s * R::STAGE + k * 32, 16), 1);
                wgmma_commit();
                wgmma_wait<1>(); /* the half before is done with its stage and its registers */
#pragma unroll
                for (int k = 0; k < 4; k++) hold(f[half ^ 1][k]);
                if (speaker && i > 0) barrier_arrive(free + 8 * (uint32_t)((i - 1) % R::STAGES));
            }
        }
    }
    wgmma_wait<0>();
    hold(acc);
    asm volatile("bar.sync 4, %0;" ::"n"(G * 128)
                 : "memory"); /* nobody reads a stage any more: they hold the result now */
    finish<M>(a, acc, shared, group, n0, (int64_t)blockIdx.y * M);
}
#endif

template <int BITS, scale_layout L, int M, int G>
__global__ void __launch_bounds__(128 * (G + 1), 1)
    group_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ group_args a)
{
#if HOPPER
    using R = ring<M>;
    extern __shared__ uint8_t shared[];
    __shared__ float table[16], map[L == NESTED_2 ? 256 : 1];
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared), base = (at + 1023u) & ~1023u;
    const int group = (int)threadIdx.x / 128;
    if (threadIdx.x < 16 && BITS == 4) table[threadIdx.x] = entry_of(a.w, (int)threadIdx.x);
    if (L == NESTED_2 && threadIdx.x < 256) map[threadIdx.x] = a.w.global[1 + threadIdx.x];
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < R::STAGES; s++) {
            barrier_init(base + R::AT_BAR + 8 * s, 1);
            barrier_init(base + R::AT_BAR + 8 * (R::STAGES + s), G);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (group == G) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 128 * G) load_all<M>(a, base, &x, (int)blockIdx.y * M);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(G == 2 ? 240 : 160));
        multiply<BITS, L, M, G>(a, base, shared + (base - at), table, map, group);
    }
#endif
}

/* ---- host side ------------------------------------------------------------------------------------------ */

extern "C" size_t oq_cu_group_wgmma_work(int64_t m, int64_t k)
{
    return (size_t)(m * k) * 2;
}

template <int BITS, scale_layout L, int M, int G>
static bool launch(cudaStream_t stream, const oq_cu_view &x, void *work, const group_args &a,
                   encode_fn encode)
{
    const int64_t ld = a.w.k;
    const cuuint64_t size[2] = {(cuuint64_t)ld, (cuuint64_t)x.rows}, stride[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t box[2] = {TILE_K, M}, one[2] = {1, 1};
    CUtensorMap map;
    constexpr int bytes = (int)ring<M>::BYTES;
    static_assert(ring<M>::AT_BAR >= G * M * 72 * 2, "the result fits where the stages were");
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, work, size, stride, box, one,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS ||
        cudaFuncSetAttribute(group_kernel<BITS, L, M, G>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
            cudaSuccess)
        return false;
    permute_kernel<<<blocks_for(x.rows * ld / 16, 256, 132 * 8), 256, 0, stream>>>((__nv_bfloat16 *)work, x,
                                                                                   ld);
    const dim3 grid((unsigned)((a.w.n + G * GROUP_N - 1) / (G * GROUP_N)), (unsigned)((x.rows + M - 1) / M));
    group_kernel<BITS, L, M, G><<<grid, 128 * (G + 1), bytes, stream>>>(map, a);
    return true;
}

/* Multiplications that the multiprocessor with most tiles of m x n makes, in units of 64 x 64: all of them wait for it. */
static int64_t longest(const oq_cu_view &x, int64_t n, int m, int tile_n)
{
    constexpr int64_t MULTIPROCESSORS = 132;
    const int64_t tiles = (n + tile_n - 1) / tile_n * ((x.rows + m - 1) / m);
    return (tiles + MULTIPROCESSORS - 1) / MULTIPROCESSORS * (m / 64) * (tile_n / 64);
}

template <int BITS, scale_layout L>
static bool run(cudaStream_t stream, const oq_cu_view &x, void *work, const group_args &a, encode_fn encode)
{
    if (x.rows <= 64) return launch<BITS, L, 64, 2>(stream, x, work, a, encode);
    if (x.rows <= 128) return launch<BITS, L, 128, 2>(stream, x, work, a, encode);
    /* tiles of 128 x 192 decode each weight twice as often: only where a multiprocessor's share is that much smaller */
    if (10 * longest(x, a.w.n, 128, 192) < 9 * longest(x, a.w.n, 256, 128))
        return launch<BITS, L, 128, 3>(stream, x, work, a, encode);
    return launch<BITS, L, 256, 2>(stream, x, work, a, encode);
}

extern "C" bool oq_cu_group_wgmma(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_group *w,
                                  const float *bias, void *work)
{
    const encode_fn encode = tensor_map_encoder();
    if (!encode || !oq_cu_group_small_fits(w, x, y)) return false;
    const group_args a = {*w, y, bias, (int)(w->k / BLOCK_K)};
    return WITH_LAYOUT(*w, run, stream, x, work, a, encode);
}
