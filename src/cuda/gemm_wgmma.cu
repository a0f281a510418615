/* gemm_wgmma.cu -- products on Hopper's tensor cores with own prologue and epilogue: y = x . W^T where x is a matrix, or the
 * pixels of an image under a sliding window (a convolution without gathering: the copy engine fetches each shifted box
 * and fills what lies outside with zeros).
 *
 * One warp loads tiles of 128 bytes along k through a ring of stages, two warpgroups multiply 64 rows each. INT8 and FP8
 * products are scaled per row and column on the way out, FP8 under block scales every 128 columns of k, so that no
 * accumulator ever reaches memory. */
#include "cuda/wgmma.cuh"

#define TILE_M  128
#define BOX_W   16 /* pixels of one tile: 16 x 8 */
#define BOX_H   8
#define BAND    16  /* tiles of rows that are multiplied with all columns before the next */
#define THREADS 288 /* two warpgroups of 64 rows, and the loader's warp */

/* What is multiplied: bf16 pixels, or the codes of matrices with scales of rows, or of 128 columns and 128 x 128. */
enum form { CONV_BF16, ROWS_I8, ROWS_E4M3, BLOCKS_E4M3 };

template <form F> struct sum_of {
    using type = float;
};
template <> struct sum_of<ROWS_I8> {
    using type = int;
};

/* What the loader and the epilogue need to know. */
struct gemm_args {
    oq_cu_view y;
    const float *bias, *x_scale, *w_scale; /* scales: matrices alone */
    int64_t w_scale_ld;                    /* BLOCKS_E4M3: floats from one row of w's scales to the next */
    int n_blocks;                          /* of 128 bytes along k */
    int n, tiles_n, tiles_m;
    bool even; /* pairs of bf16 columns start at multiples of four bytes */
    /* convolution */
    int kw, per_tap, pad_top, pad_left, oh, ow, tiles_x, tiles_y;
};

template <int BN> struct ring { /* shared memory, in bytes from its start */
    static constexpr int STAGES = BN == 256 ? 4 : 3;
    static constexpr uint32_t A = TILE_M * 128, B = BN * 128, STAGE = A + B;
    static constexpr uint32_t AT_BAR = STAGES * STAGE, BYTES = AT_BAR + 128 + 1024; /* and room to align */
};

struct tile {
    int n0, m0;          /* first column; first row of a matrix */
    int image, oy0, ox0; /* first pixel of an image */
};

/* Images: columns first, so that a box of pixels is fetched once. Matrices: bands of rows, and in a band rows first, so
 * that the tiles under way at one time share both operands and the outputs push neither out of the L2. */
template <form F> static __device__ __forceinline__ tile tile_of(const gemm_args &a, int bn)
{
    tile t = {};
    const int i = (int)blockIdx.x;
    if constexpr (F == CONV_BF16) {
        const int m = i / a.tiles_n, per_image = a.tiles_x * a.tiles_y, at = m % per_image;
        t.n0 = (i - m * a.tiles_n) * bn;
        t.image = m / per_image;
        t.oy0 = at / a.tiles_x * BOX_H;
        t.ox0 = at % a.tiles_x * BOX_W;
    } else {
        const int first = i / (BAND * a.tiles_n) * BAND, rest = i - first * a.tiles_n;
        const int band = min(BAND, a.tiles_m - first);
        t.m0 = (first + rest % band) * TILE_M;
        t.n0 = rest / band * bn;
    }
    return t;
}

#if HOPPER
static __device__ __forceinline__ void box_load(uint32_t to, const CUtensorMap *map, int c, int x, int y,
                                                int image, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(c), "r"(x), "r"(y), "r"(image), "r"(bar)
                 : "memory");
}

template <int BN, form F>
static __device__ void load_all(const gemm_args &a, const tile &t, uint32_t base, const CUtensorMap *x,
                                const CUtensorMap *w)
{
    constexpr int ELEMENTS = F == CONV_BF16 ? 64 : 128; /* in 128 bytes */
    using R = ring<BN>;
    const uint32_t full = base + R::AT_BAR, free = full + 8 * R::STAGES;
    for (int i = 0; i < a.n_blocks; i++) {
        const uint32_t s = (uint32_t)(i % R::STAGES), to = base + s * R::STAGE;
        barrier_wait(free + 8 * s, ((uint32_t)(i / R::STAGES) & 1) ^ 1);
        barrier_expect(full + 8 * s, R::STAGE);
        if constexpr (F == CONV_BF16) {
            const int tap = i / a.per_tap, c = i - tap * a.per_tap;
            box_load(to, x, c * ELEMENTS, t.ox0 + tap % a.kw - a.pad_left, t.oy0 + tap / a.kw - a.pad_top,
                     t.image, full + 8 * s);
        } else {
            tensor_load(to, x, i * ELEMENTS, t.m0, full + 8 * s);
        }
        tensor_load(to + R::A, w, i * ELEMENTS, t.n0, full + 8 * s);
    }
}

/* Two neighbouring parameters of columns; beyond the last column, and for an absent array, `none`. */
static __device__ __forceinline__ float2 pair_of(const float *p, int col, int n, float none)
{
    if (!p || col >= n) return make_float2(none, none);
    if (col + 1 < n) return make_float2(p[col], p[col + 1]);
    return make_float2(p[col], none);
}

static __device__ __forceinline__ void put_pair(const gemm_args &a, int64_t at, int col, float v0, float v1)
{
    if (col + 1 < a.n && a.y.type == OQ_CU_BF16 && a.even) {
        *(uint32_t *)((__nv_bfloat16 *)a.y.data + at) = bf16_pair(v0, v1);
    } else if (col < a.n) {
        const float one[1] = {v0}, two[1] = {v1};
        store<1>(a.y, at, one);
        if (col + 1 < a.n) store<1>(a.y, at + 1, two);
    }
}

/* Row of y that row r of the tile is; negative: none. */
template <form F>
static __device__ __forceinline__ int64_t row_of(const gemm_args &a, const tile &t, int r)
{
    if constexpr (F == CONV_BF16) {
        const int oy = t.oy0 + r / BOX_W, ox = t.ox0 + r % BOX_W;
        return oy < a.oh && ox < a.ow ? ((int64_t)t.image * a.oh + oy) * a.ow + ox : -1;
    } else {
        return t.m0 + r < a.y.rows ? t.m0 + r : -1;
    }
}

/* Accumulators of this thread: rows r and r + 8, pairs of columns; each parameter is loaded once. */
template <int BN, form F, class ACC>
static __device__ __forceinline__ void finish(const gemm_args &a, const tile &t, const ACC (&acc)[BN / 2],
                                              int group)
{
    const int lane = (int)threadIdx.x & 31, r = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int64_t rows[2] = {row_of<F>(a, t, r), row_of<F>(a, t, r + 8)};
    const float *const w_scale = F == BLOCKS_E4M3 ? NULL : a.w_scale; /* scaled already */
    float row_scale[2] = {1.0f, 1.0f};
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (F != BLOCKS_E4M3 && a.x_scale && rows[h] >= 0) row_scale[h] = a.x_scale[rows[h]];
#pragma unroll
    for (int n = 0; n < BN / 8; n++) {
        const int col = t.n0 + n * 8 + (lane & 3) * 2;
        const float2 w = pair_of(w_scale, col, a.n, 1.0f), b = pair_of(a.bias, col, a.n, 0.0f);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (rows[h] < 0) continue;
            const float v0 = (float)acc[4 * n + 2 * h], v1 = (float)acc[4 * n + 2 * h + 1];
            put_pair(a, rows[h] * a.y.ld + col, col, v0 * (row_scale[h] * w.x) + b.x,
                     v1 * (row_scale[h] * w.y) + b.y);
        }
    }
}

template <int BN, form F>
static __device__ __forceinline__ void product(typename sum_of<F>::type (&sums)[BN / 2], uint32_t a, uint32_t b, int add)
{
    if constexpr (F == ROWS_E4M3 || F == BLOCKS_E4M3)
        wgmma_e4m3(sums, descriptor(a, 16), descriptor(b, 16), add);
    else
        wgmma(sums, descriptor(a, 16), descriptor(b, 16), add);
}

/* Each 128 columns of k are summed from nothing and added under the scales of their rows and of their block of w. */
template <int BN>
static __device__ void multiply_blocks(const gemm_args &a, const tile &t, uint32_t base, int group)
{
    static_assert(BN == 128, "one scale of w to a tile's block");
    using R = ring<BN>;
    const uint32_t full = base + R::AT_BAR, free = full + 8 * R::STAGES;
    const int lane = (int)threadIdx.x & 31, r = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int64_t rows[2] = {row_of<BLOCKS_E4M3>(a, t, r), row_of<BLOCKS_E4M3>(a, t, r + 8)};
    const float *const w_scale = a.w_scale + (int64_t)(t.n0 / 128) * a.w_scale_ld;
    float acc[BN / 2] = {}, part[BN / 2] = {};
    for (int i = 0; i < a.n_blocks; i++) {
        const uint32_t s = (uint32_t)(i % R::STAGES), at = base + s * R::STAGE;
        float scale[2] = {0.0f, 0.0f};
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (rows[h] >= 0) scale[h] = a.x_scale[(int64_t)i * a.y.rows + rows[h]] * w_scale[i];
        barrier_wait(full + 8 * s, (uint32_t)(i / R::STAGES) & 1);
        hold(part);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            product<BN, BLOCKS_E4M3>(part, at + group * 64 * 128 + k * 32, at + R::A + k * 32, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(part);
        if (threadIdx.x % 128 == 0) barrier_arrive(free + 8 * s);
#pragma unroll
        for (int j = 0; j < BN / 2; j++) acc[j] += part[j] * scale[j / 2 % 2];
    }
    finish<BN, BLOCKS_E4M3>(a, t, acc, group);
}

template <int BN, form F> static __device__ void multiply(const gemm_args &a, const tile &t, uint32_t base, int group)
{
    using R = ring<BN>;
    const uint32_t full = base + R::AT_BAR, free = full + 8 * R::STAGES;
    const bool speaker = threadIdx.x % 128 == 0;
    typename sum_of<F>::type acc[BN / 2] = {};
    for (int i = 0; i < a.n_blocks; i++) {
        const uint32_t s = (uint32_t)(i % R::STAGES), at = base + s * R::STAGE;
        barrier_wait(full + 8 * s, (uint32_t)(i / R::STAGES) & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            product<BN, F>(acc, at + group * 64 * 128 + k * 32, at + R::A + k * 32, i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the block before is done with its stage */
        if (speaker && i > 0) barrier_arrive(free + 8 * (uint32_t)((i - 1) % R::STAGES));
    }
    wgmma_wait<0>();
    hold(acc);

    finish<BN, F>(a, t, acc, group);
}
#endif

template <int BN, form F>
__global__ void __launch_bounds__(THREADS, BN == 256 || F == BLOCKS_E4M3 ? 1 : 2)
    gemm_wgmma_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                      const __grid_constant__ gemm_args a)
{
#if HOPPER
    using R = ring<BN>;
    extern __shared__ uint8_t shared[];
    const uint32_t base = ((uint32_t)__cvta_generic_to_shared(shared) + 1023u) & ~1023u;
    const int group = (int)threadIdx.x / 128;
    const tile t = tile_of<F>(a, BN);
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < R::STAGES; s++) {
            barrier_init(base + R::AT_BAR + 8 * s, 1);
            barrier_init(base + R::AT_BAR + 8 * (R::STAGES + s), 2);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (group == 2) {
        if (threadIdx.x == 256) load_all<BN, F>(a, t, base, &x, &w);
    } else if constexpr (F == BLOCKS_E4M3) {
        multiply_blocks<BN>(a, t, base, group);
    } else {
        multiply<BN, F>(a, t, base, group);
    }
#endif
}

/* ---- host side ----------------------------------------------------------------------------------------- */

static bool matrix_map(encode_fn encode, CUtensorMap *map, CUtensorMapDataType type, const void *data,
                       int64_t rows, int64_t cols, int64_t row_bytes, int box_cols, int box_rows)
{
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)row_bytes};
    const cuuint32_t box[2] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, one[2] = {1, 1};
    return encode(map, type, 2, (void *)data, size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int BN, form F>
static bool launch(cudaStream_t stream, const CUtensorMap &x, const CUtensorMap &w, gemm_args a,
                   int64_t tiles_m)
{
    constexpr int bytes = (int)ring<BN>::BYTES;
    const auto kernel = gemm_wgmma_kernel<BN, F>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess)
        return false;
    a.tiles_n = (a.n + BN - 1) / BN;
    a.tiles_m = (int)tiles_m;
    a.even = a.y.ld % 2 == 0 && ((uintptr_t)a.y.data & 3) == 0;
    kernel<<<(unsigned)(tiles_m * a.tiles_n), THREADS, bytes, stream>>>(x, w, a);
    return true;
}

template <int BN> static bool conv(cudaStream_t stream, const oq_cu_conv *c, encode_fn encode)
{
    const int64_t k = c->x.cols * c->kh * c->kw, batch = c->x.rows / (c->h * c->w), ld = c->x.ld * 2;
    CUtensorMap x, w;
    const cuuint64_t size[4] = {(cuuint64_t)c->x.cols, (cuuint64_t)c->w, (cuuint64_t)c->h, (cuuint64_t)batch};
    const cuuint64_t stride[3] = {(cuuint64_t)ld, (cuuint64_t)(ld * c->w), (cuuint64_t)(ld * c->w * c->h)};
    const cuuint32_t box[4] = {64, BOX_W, BOX_H, 1}, one[4] = {1, 1, 1, 1};
    if (encode(&x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, c->x.data, size, stride, box, one,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS ||
        !matrix_map(encode, &w, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, c->weight, c->y.cols, k, k * 2, 64, BN))
        return false;
    gemm_args a = {};
    a.y = c->y;
    a.bias = c->bias;
    a.n = (int)c->y.cols;
    a.n_blocks = (int)(k / 64);
    a.per_tap = (int)(c->x.cols / 64);
    a.kw = c->kw;
    a.pad_top = c->pad_top, a.pad_left = c->pad_left;
    a.oh = (int)c->oh, a.ow = (int)c->ow;
    a.tiles_x = (a.ow + BOX_W - 1) / BOX_W, a.tiles_y = (a.oh + BOX_H - 1) / BOX_H;
    return launch<BN, CONV_BF16>(stream, x, w, a, batch * a.tiles_x * a.tiles_y);
}

extern "C" bool oq_cu_conv_wgmma(cudaStream_t stream, const oq_cu_conv *c)
{
    const encode_fn encode = tensor_map_encoder();
    if (!encode || c->x.rows <= 0) return false;
    return c->y.cols > 128 ? conv<256>(stream, c, encode) : conv<128>(stream, c, encode);
}

template <int BN, form F> static bool matrix(cudaStream_t stream, const oq_cu_gemm *g, encode_fn encode)
{
    const int64_t k = g->x.cols;
    CUtensorMap x, w;
    if (!matrix_map(encode, &x, CU_TENSOR_MAP_DATA_TYPE_UINT8, g->x.data, g->x.rows, k, g->x.ld, 128,
                    TILE_M) ||
        !matrix_map(encode, &w, CU_TENSOR_MAP_DATA_TYPE_UINT8, g->w, g->y.cols, k, k, 128, BN))
        return false;
    gemm_args a = {};
    a.y = g->y;
    a.bias = g->bias, a.x_scale = g->x_scale, a.w_scale = g->w_scale, a.w_scale_ld = g->w_scale_ld;
    a.n = (int)g->y.cols;
    a.n_blocks = (int)((k + 127) / 128);
    return launch<BN, F>(stream, x, w, a, (g->x.rows + TILE_M - 1) / TILE_M);
}

extern "C" bool oq_cu_gemm_wgmma(cudaStream_t stream, const oq_cu_gemm *g)
{
    const encode_fn encode = tensor_map_encoder();
    if (!encode || g->x.rows <= 0 || g->x.cols % 16 != 0 || g->x.ld % 16 != 0) return false;
    if (g->x.type == OQ_CU_E4M3)
        return g->x_group ? matrix<128, BLOCKS_E4M3>(stream, g, encode) : matrix<128, ROWS_E4M3>(stream, g, encode);
    return g->x.rows > 128 ? matrix<256, ROWS_I8>(stream, g, encode) : matrix<128, ROWS_I8>(stream, g, encode);
}
