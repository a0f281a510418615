/* group_small.cu -- y = x . W^T for few rows of x and compressed weights, at the speed at which the weights arrive.
 *
 * Codes become bf16 by lookup, two four-bit codes at a time: the 256 pairs lie in shared memory once for every lane, so
 * that no two lanes meet at a bank. They are exact there (NF4 and FP4 are rounded), are multiplied by mma.sync with the
 * weights as its rows, and a group's scale is applied to the f32 sums of the group. The warps of a block share sixteen rows of W
 * and divide k; their sums are joined in a fixed order. */
#include "cuda/group.cuh"

#define WARPS     8
#define THREADS   (WARPS * 32)
#define ROWS      16  /* of W, a tile */
#define ENTRY     256 /* bytes: 32 copies, and room for as many: a code's place is made by one instruction */
#define LUT_BYTES (256 * ENTRY)

struct small_args {
    oq_cu_group w;
    oq_cu_view x, y;
    const float *bias;
    int64_t n_tiles;
    int n_blocks; /* of 128 columns */
    bool packed;  /* the scales of a block start at multiples of their size */
};

static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint2 b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, "
                 "%1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

static __device__ __forceinline__ uint32_t subtract(uint32_t pair, uint32_t zeros)
{
    __nv_bfloat162 a, b;
    memcpy(&a, &pair, 4), memcpy(&b, &zeros, 4);
    const __nv_bfloat162 d = __hsub2(a, b);
    uint32_t u;
    memcpy(&u, &d, 4);
    return u;
}

/* Each pair (or single code) is made once, then written 32 times, four to a store. */
template <int BITS> static __device__ void fill_lut(uint32_t *lut, const oq_cu_group &w)
{
    __shared__ uint32_t once[256];
    const int i = (int)threadIdx.x;
    static_assert(THREADS == 256, "a thread for each entry");
    once[i] = bf16_pair(entry_of(w, BITS == 4 ? i & 15 : i), BITS == 4 ? entry_of(w, i >> 4) : 0.0f);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t v = once[j * 32 + i / 8];
        ((uint4 *)lut)[(j * 32 + i / 8) * (ENTRY / 16) + i % 8] = make_uint4(v, v, v, v);
    }
    __syncthreads();
}

/* Entry of byte B of w, for this lane (its number times 4 in `lane`). */
template <int B>
static __device__ __forceinline__ uint32_t entry(const uint32_t *lut, uint32_t w, uint32_t lane)
{
    return *(const uint32_t *)((const char *)lut + __byte_perm(w, lane, 0x7704 | B << 4));
}

/* Columns 16 j + 4 q .. + 3 of row h as two registers of a product. */
template <int BITS, scale_layout L>
static __device__ __forceinline__ void pair_of(uint32_t (&out)[2], const part<BITS, L> &p, int h, int j,
                                               const uint32_t *lut, uint32_t lane)
{
    if constexpr (BITS == 4) {
        const uint32_t w = word_of(p.code[h][0], j / 2);
        out[0] = j % 2 ? entry<2>(lut, w, lane) : entry<0>(lut, w, lane);
        out[1] = j % 2 ? entry<3>(lut, w, lane) : entry<1>(lut, w, lane);
    } else {
        const uint32_t w = word_of(p.code[h][j / 4], j % 4);
        out[0] = __byte_perm(entry<0>(lut, w, lane), entry<1>(lut, w, lane), 0x5410);
        out[1] = __byte_perm(entry<2>(lut, w, lane), entry<3>(lut, w, lane), 0x5410);
    }
}

template <int BITS, scale_layout L, int MT>
static __device__ __forceinline__ void
multiply(float (&acc)[MT][4], const part<BITS, L> &p, const shared_scale<L> &shared, bool integers,
         const uint32_t *lut, uint32_t lane, const __nv_bfloat16 *const (&x)[MT])
{
    constexpr int STEPS = 8 / layout_of<L>::GROUPS; /* of sixteen columns under one scale */
    float d[MT][4] = {};
    uint2 b[MT][8];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int j = 0; j < 8; j++) b[t][j] = __ldg((const uint2 *)(x[t] + 16 * j));
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t low[2], high[2];
        pair_of<BITS, L>(low, p, 0, j, lut, lane);
        pair_of<BITS, L>(high, p, 1, j, lut, lane);
        if (layout_of<L>::ZEROS && integers) {
            const float z0 = zero_in<BITS, L>(p, 0, j / STEPS), z1 = zero_in<BITS, L>(p, 1, j / STEPS);
            const uint32_t pair0 = bf16_pair(z0, z0), pair1 = bf16_pair(z1, z1);
            low[0] = subtract(low[0], pair0), low[1] = subtract(low[1], pair0);
            high[0] = subtract(high[0], pair1), high[1] = subtract(high[1], pair1);
        }
        const uint32_t f[4] = {low[0], high[0], low[1], high[1]};
#pragma unroll
        for (int t = 0; t < MT; t++) mma(d[t], f, b[t][j]);
        if ((j + 1) % STEPS != 0) continue;
        const float s0 = scale_in<BITS, L>(p, shared, 0, j / STEPS),
                    s1 = scale_in<BITS, L>(p, shared, 1, j / STEPS);
#pragma unroll
        for (int t = 0; t < MT; t++) {
            acc[t][0] = fmaf(d[t][0], s0, acc[t][0]), acc[t][1] = fmaf(d[t][1], s0, acc[t][1]);
            acc[t][2] = fmaf(d[t][2], s1, acc[t][2]), acc[t][3] = fmaf(d[t][3], s1, acc[t][3]);
            d[t][0] = d[t][1] = d[t][2] = d[t][3] = 0.0f;
        }
    }
}

/* Sums of the warps over k, in their order; bias; store. */
template <int MT>
static __device__ __forceinline__ void finish(const small_args &a, const float *sums, int64_t tile,
                                              int64_t m0, float bias)
{
    for (int i = (int)threadIdx.x; i < 8 * MT * ROWS; i += THREADS) {
        const int64_t m = m0 + i / ROWS, n = tile * ROWS + i % ROWS;
        if (m >= a.y.rows || n >= a.y.cols) continue;
        float v[1] = {0.0f};
#pragma unroll
        for (int k = 0; k < WARPS; k++) v[0] += sums[k * 8 * MT * ROWS + i];
        v[0] += bias;
        store<1>(a.y, m * a.y.ld + n, v);
    }
}

/* Walks over the blocks of this warp, from tile to tile. */
struct cursor {
    stream at;
    int64_t tile;
    int left; /* blocks of this warp in the tile */
};

template <int BITS, scale_layout L>
static __device__ __forceinline__ void enter(cursor &c, const small_args &a, int warp, int g, int q)
{
    const int64_t row[2] = {min(c.tile * ROWS + g, a.w.n - 1), min(c.tile * ROWS + g + 8, a.w.n - 1)};
    c.left = (a.n_blocks - warp + WARPS - 1) / WARPS;
    c.at = stream_at<BITS, L>(a.w, row, warp, q);
}

template <int BITS, scale_layout L>
static __device__ __forceinline__ void fetch_next(part<BITS, L> &p, const small_args &a, cursor &c, int warp,
                                                  int g, int q)
{
    if (c.left <= 0) return; /* there is nothing more, or nothing at all for this warp */
    fetch<BITS, L>(p, a.w, c.at);
    advance<BITS, L>(c.at, WARPS);
    if (--c.left > 0) return;
    c.tile += gridDim.x;
    if (c.tile < a.n_tiles) enter<BITS, L>(c, a, warp, g, q);
}

/* The tile that sums belong to, and what its rows share. */
template <scale_layout L> struct place {
    int64_t tile;
    shared_scale<L> shares;
    float bias; /* of the column that this thread will store */
};

template <scale_layout L>
static __device__ __forceinline__ place<L> place_of(const small_args &a, int64_t tile, int g,
                                                    const float *map)
{
    const int64_t row[2] = {min(tile * ROWS + g, a.w.n - 1), min(tile * ROWS + g + 8, a.w.n - 1)};
    const int64_t col = tile * ROWS + threadIdx.x % ROWS;
    return {tile, shared_scale_of<L>(a.w, row, map), a.bias && col < a.w.n ? __ldg(a.bias + col) : 0.0f};
}

template <int BITS, scale_layout L, int MT>
__global__ void __launch_bounds__(THREADS, MT == 1 && BITS == 4 ? 3
                                           : MT <= 2            ? 2
                                                     : 1) small_kernel(const __grid_constant__ small_args a)
{
    extern __shared__ uint32_t shared[];
    __shared__ float map[L == NESTED_2 ? 256 : 1];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, g = lane / 4, q = lane & 3;
    const int64_t m0 = (int64_t)blockIdx.y * (8 * MT);
    const bool integers = a.w.zeros != nullptr; /* else the table has taken the zero off */
    float *sums =
        (float *)(shared + LUT_BYTES / 4); /* two of [warp][8 MT][16]: one is read while the next is made */
    const __nv_bfloat16 *x[MT];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        const int64_t m = min(m0 + g + 8 * t, a.x.rows - 1); /* results of rows beyond are not stored */
        x[t] = (const __nv_bfloat16 *)a.x.data + m * a.x.ld + 4 * q;
    }
    constexpr int DEPTH =
        MT == 1 || BITS == 8 ? 2 : 3; /* blocks under way; a slot is filled again when it was used */
    part<BITS, L> slot[DEPTH];
    cursor ahead;
    ahead.tile = blockIdx.x;
    enter<BITS, L>(ahead, a, warp, g, q);
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        fetch_next<BITS, L>(slot[i], a, ahead, warp, g, q); /* under way while the table is made */
    if (L == NESTED_2) map[threadIdx.x] = a.w.global[1 + threadIdx.x];
    fill_lut<BITS>(shared, a.w);
    int odd = 0, block = warp;
    place<L> at = place_of<L>(a, blockIdx.x, g, map);
    float acc[MT][4] = {};
    while (at.tile < a.n_tiles) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (at.tile >= a.n_tiles) break;
            if (block < a.n_blocks) {
                const __nv_bfloat16 *from[MT];
#pragma unroll
                for (int t = 0; t < MT; t++) from[t] = x[t] + block * BLOCK_K;
                multiply<BITS, L, MT>(acc, slot[i], at.shares, integers, shared, (uint32_t)lane * 4, from);
                fetch_next<BITS, L>(slot[i], a, ahead, warp, g, q);
                block += WARPS;
            }
            if (block < a.n_blocks) continue;
            float *const to = sums + odd * (WARPS * 8 * MT * ROWS);
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    to[(warp * 8 * MT + 8 * t + 2 * q + (e & 1)) * ROWS + g + 8 * (e / 2)] = acc[t][e];
                    acc[t][e] = 0.0f;
                }
            __syncthreads();
            finish<MT>(a, to, at.tile, m0, at.bias);
            at = place_of<L>(a, at.tile + gridDim.x, g, map);
            odd ^= 1, block = warp;
        }
    }
}

/* ---- host side ----------------------------------------------------------------------------------------- */

template <int BITS, scale_layout L, int MT> static bool launch(cudaStream_t stream, const small_args &a)
{
    constexpr int bytes = LUT_BYTES + 2 * WARPS * 8 * MT * ROWS * 4;
    static int n_sm = 0,
               per_sm = 0; /* the same on every card that one program meets, or nearly: a size of a grid */
    if (!per_sm) {
        int device = 0;
        cudaFuncSetAttribute(small_kernel<BITS, L, MT>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, small_kernel<BITS, L, MT>, THREADS, bytes);
    }
    const int64_t m_tiles = (a.x.rows + 8 * MT - 1) / (8 * MT);
    int64_t grid = (int64_t)n_sm * (per_sm > 0 ? per_sm : 1) / m_tiles;
    grid = grid < 1 ? 1 : grid > a.n_tiles ? a.n_tiles : grid;
    small_kernel<BITS, L, MT><<<dim3((unsigned)grid, (unsigned)m_tiles), THREADS, bytes, stream>>>(a);
    return true;
}

template <int BITS, scale_layout L> static bool run(cudaStream_t stream, const small_args &a)
{
    if (a.x.rows <= 8) return launch<BITS, L, 1>(stream, a);
    if (a.x.rows <= 16) return launch<BITS, L, 2>(stream, a);
    return launch<BITS, L, 4>(stream, a);
}

extern "C" bool oq_cu_group_small_fits(const oq_cu_group *w, oq_cu_view x, oq_cu_view y)
{
    const bool aligned = ((uintptr_t)x.data & 7) == 0 && x.ld % 4 == 0 && ((uintptr_t)w->codes & 15) == 0;
    return aligned && w->k % BLOCK_K == 0 && (w->n + TILE_ROWS) * w->groups < INT32_MAX &&
           x.type == OQ_CU_BF16 && x.rows > 0 && y.rows == x.rows;
}

extern "C" bool oq_cu_group_small(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_group *w,
                                  const float *bias)
{
    if (!oq_cu_group_small_fits(w, x, y)) return false;
    const small_args a = {*w, x, y, bias, (w->n + ROWS - 1) / ROWS, (int)(w->k / BLOCK_K)};
    return WITH_LAYOUT(*w, run, stream, a);
}
