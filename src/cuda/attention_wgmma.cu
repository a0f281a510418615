/* attention_wgmma.cu -- bf16 attention for Hopper: queries, keys and values come by the bulk tensor copy engine into
 * swizzled shared memory, one warpgroup loads, two multiply 64 queries each with wgmma (Shah et al., FlashAttention-3).
 *
 * In each warpgroup the scores of the next tile of keys are multiplied while the last tile's values are, and softmax runs
 * beside the second product; the two warpgroups take turns at the tensor cores, so that one's softmax hides under the
 * other's products. No masks: those cases belong to attention_flash.cu. */
#include "cuda/tiles.cuh"
#include "cuda/wgmma.cuh"

#define TILE_Q  128
#define TILE_KV 128
#define STAGES  2
#define THREADS 384 /* loader, and two warpgroups of 64 queries */

#if HOPPER
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Named barriers 1 and 2: whose turn it is at the tensor cores. */
static __device__ __forceinline__ void turn_wait(int group)
{
    asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory");
}

static __device__ __forceinline__ void turn_pass(int group)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
}

#endif

/* ---- the kernel ---------------------------------------------------------------------------------------- */

struct wgmma_args {
    oq_cu_view o;
    int64_t n_kv;
    int head_dim, kv_share; /* query heads per key head */
    float scale;            /* times log2 e */
    const uint8_t *map;     /* of blocks of 128 by 128, or NULL */
};

template <int D> struct layout { /* shared memory, in bytes from its start */
    static constexpr uint32_t Q = TILE_Q * D * 2, KV = TILE_KV * D * 2;
    static constexpr uint32_t AT_K = Q, AT_V = AT_K + STAGES * KV, AT_BAR = AT_V + STAGES * KV;
    static constexpr uint32_t BYTES = AT_BAR + 128 + 1024; /* and room to align */
};

#if HOPPER
struct barriers { /* of 8 bytes each */
    uint32_t q, k_full, k_free, v_full, v_free;
};

/* Boxes of 64 columns, one behind the other. */
template <int D, int ROWS>
static __device__ __forceinline__ void load_rows(uint32_t to, const CUtensorMap *map, int col, int row,
                                                 uint32_t bar)
{
    barrier_expect(bar, ROWS * D * 2);
#pragma unroll
    for (int c = 0; c < D / 64; c++) tensor_load(to + c * ROWS * 128, map, col + c * 64, row, bar);
}

template <int D>
static __device__ void load_all(uint32_t base, const barriers &b, const CUtensorMap *q, const CUtensorMap *k,
                                const CUtensorMap *v, int head, int kv_head, const tile_list &tiles)
{
    using L = layout<D>;
    load_rows<D, TILE_Q>(base, q, head * D, (int)blockIdx.x * TILE_Q, b.q);
    for (int t = 0; t < tiles.n; t++) {
        const uint32_t s = (uint32_t)t % STAGES, phase = ((uint32_t)t / STAGES & 1) ^ 1;
        const int key = tiles.at(t) * TILE_KV;
        barrier_wait(b.k_free + 8 * s, phase);
        load_rows<D, TILE_KV>(base + L::AT_K + s * L::KV, k, kv_head * D, key, b.k_full + 8 * s);
        barrier_wait(b.v_free + 8 * s, phase);
        load_rows<D, TILE_KV>(base + L::AT_V + s * L::KV, v, kv_head * D, key, b.v_full + 8 * s);
    }
}

/* s = q k^T for 64 queries and 128 keys. Operands are descriptors, in which a step is an addition. */
template <int D> static __device__ __forceinline__ void product_qk(float (&s)[64], uint64_t q, uint64_t k)
{
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint32_t half = i / 4, step = (i % 4) * 32;
        wgmma(s, q + ((half * TILE_Q * 128 + step) >> 4), k + ((half * TILE_KV * 128 + step) >> 4), i > 0);
    }
}

/* o += p v for 64 queries: p in registers, v with its rows as the summed dimension. */
template <int D>
static __device__ __forceinline__ void product_pv(float (&o)[D / 2], const uint32_t (&p)[32], uint64_t v)
{
#pragma unroll
    for (int i = 0; i < TILE_KV / 16; i++)
        wgmma(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], v + (i * 2048 >> 4));
}

struct row_state { /* of rows r and r + 8 of this thread's fragment */
    float top[2], sum[2];
};

/* Scores become powers of two below the running maximum; returns by how much earlier sums shrink. */
static __device__ __forceinline__ void soften(float (&s)[64], row_state &st, float (&shrink)[2], float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float t = s[2 * h];
#pragma unroll
        for (int n = 0; n < 16; n++) t = fmaxf(t, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
        const float now = fmaxf(st.top[h], t), base = now * scale;
        shrink[h] = exp2_fast(st.top[h] * scale - base);
        st.top[h] = now;
        float add = 0.0f;
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[4 * n + 2 * h + e];
                x = exp2_fast(fmaf(x, scale, -base));
                add += x;
            }
        st.sum[h] = st.sum[h] * shrink[h] + add;
    }
}

static __device__ __forceinline__ void pack(uint32_t (&p)[32], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/* Keys at and beyond n_kv in the tile that starts at key0. */
static __device__ __forceinline__ void hide_tail(float (&s)[64], int64_t key0, int64_t n_kv)
{
    if (key0 + TILE_KV <= n_kv) return;
    const int left = (int)(n_kv - key0), first = (int)(threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < 64; i++)
        if ((i / 4) * 8 + first + (i & 1) >= left) s[i] = -INFINITY;
}

template <int D>
static __device__ void multiply(const wgmma_args &a, uint32_t base, const barriers &b, int group,
                                const tile_list &tiles, int head)
{
    using L = layout<D>;
    const uint64_t q = descriptor(base + (uint32_t)group * 64 * 128, 16), k = descriptor(base + L::AT_K, 16),
                   v = descriptor(base + L::AT_V, TILE_KV * 128);
    constexpr uint64_t STAGE = L::KV >> 4;
    const bool speaker = threadIdx.x % 128 == 0;
    float o[D / 2], s[64], shrink[2];
    uint32_t p[32];
    row_state st = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0.0f;
    if (group == 1) turn_pass(1); /* the first group begins */

    barrier_wait(b.q, 0);
    barrier_wait(b.k_full, 0);
    turn_wait(group);
    wgmma_fence();
    product_qk<D>(s, q, k);
    wgmma_commit();
    turn_pass(group);
    wgmma_wait<0>();
    hold(s);
    if (speaker) barrier_arrive(b.k_free);
    hide_tail(s, (int64_t)tiles.at(0) * TILE_KV, a.n_kv);
    soften(s, st, shrink, a.scale);
    pack(p, s);

    for (int t = 1; t < tiles.n; t++) {
        const uint32_t k_stage = (uint32_t)t % STAGES, k_phase = (uint32_t)t / STAGES & 1;
        const uint32_t v_stage = (uint32_t)(t - 1) % STAGES, v_phase = (uint32_t)(t - 1) / STAGES & 1;
        barrier_wait(b.k_full + 8 * k_stage, k_phase);
        barrier_wait(b.v_full + 8 * v_stage, v_phase); /* long there; the other group should not wait for the look */
        turn_wait(group);
        wgmma_fence();
        product_qk<D>(s, q, k + k_stage * STAGE);
        wgmma_commit();
        product_pv<D>(o, p, v + v_stage * STAGE);
        wgmma_commit();
        turn_pass(group);
        wgmma_wait<1>();
        hold(s);
        if (speaker) barrier_arrive(b.k_free + 8 * k_stage);
        hide_tail(s, (int64_t)tiles.at(t) * TILE_KV, a.n_kv);
        soften(s, st, shrink, a.scale);
        after(st.sum[0] + st.sum[1]);
        wgmma_wait<0>();
        hold(o);
        if (speaker) barrier_arrive(b.v_free + 8 * v_stage);
        pack(p, s);
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 % 2];
    }
    const uint32_t v_stage = (uint32_t)(tiles.n - 1) % STAGES, v_phase = (uint32_t)(tiles.n - 1) / STAGES & 1;
    barrier_wait(b.v_full + 8 * v_stage, v_phase);
    wgmma_fence();
    product_pv<D>(o, p, v + v_stage * STAGE);
    wgmma_commit();
    wgmma_wait<0>();
    hold(o);

    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32 % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = st.sum[h];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const float inverse = 1.0f / total;
        const int64_t row = (int64_t)blockIdx.x * TILE_Q + group * 64 + warp * 16 + lane / 4 + 8 * h;
        if (row >= a.o.rows) continue;
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.o.data + row * a.o.ld + (int64_t)head * D + (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(uint32_t *)(to + 8 * n) = bf16_pair(o[4 * n + 2 * h] * inverse, o[4 * n + 2 * h + 1] * inverse);
    }
}

#endif

template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v, wgmma_args a)
{
#if HOPPER
    using L = layout<D>;
    extern __shared__ uint8_t shared[];
    __shared__ uint16_t chosen[MAX_CHOSEN];
    __shared__ int n_chosen;
    const uint32_t base = ((uint32_t)__cvta_generic_to_shared(shared) + 1023u) & ~1023u;
    const uint32_t bar = base + L::AT_BAR;
    const barriers b = {bar, bar + 8, bar + 8 + 8 * STAGES, bar + 8 + 16 * STAGES, bar + 8 + 24 * STAGES};
    const int group = (int)threadIdx.x / 128, head = (int)blockIdx.y;
    const int n_tiles = (int)((a.n_kv + TILE_KV - 1) / TILE_KV);
    if (threadIdx.x == 0) {
        barrier_init(b.q, 1);
        for (uint32_t s = 0; s < STAGES; s++) {
            barrier_init(b.k_full + 8 * s, 1);
            barrier_init(b.v_full + 8 * s, 1);
            barrier_init(b.k_free + 8 * s, 2);
            barrier_init(b.v_free + 8 * s, 2);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    const uint8_t *const map = a.map ? a.map + ((int64_t)head * gridDim.x + blockIdx.x) * gridDim.x : nullptr;
    const tile_list tiles = list_tiles(map, n_tiles, chosen, &n_chosen);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) load_all<D>(base, b, &q, &k, &v, head, head / a.kv_share, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply<D>(a, base, b, group - 1, tiles, head);
    }
#endif
}

/* ---- host side ----------------------------------------------------------------------------------------- */

static bool map_of(encode_fn encode, CUtensorMap *map, const oq_cu_view &v, uint32_t rows)
{
    const cuuint64_t size[2] = {(cuuint64_t)v.cols, (cuuint64_t)v.rows}, stride[1] = {(cuuint64_t)v.ld * 2};
    const cuuint32_t box[2] = {64, rows}, one[2] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, v.data, size, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int D> static bool run(cudaStream_t stream, const oq_cu_attention *a, encode_fn encode)
{
    CUtensorMap q, k, v;
    if (!map_of(encode, &q, a->q, TILE_Q) || !map_of(encode, &k, a->k, TILE_KV) ||
        !map_of(encode, &v, a->v, TILE_KV))
        return false;
    const wgmma_args args = {
        a->o, a->k.rows, D, (int)(a->n_heads / a->n_kv_heads), a->scale * 1.4426950408889634f, a->block_map};
    constexpr int bytes = (int)layout<D>::BYTES;
    if (cudaFuncSetAttribute(wgmma_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return false;
    const dim3 grid((unsigned)((a->q.rows + TILE_Q - 1) / TILE_Q), (unsigned)a->n_heads);
    wgmma_kernel<D><<<grid, THREADS, bytes, stream>>>(q, k, v, args);
    return true;
}

extern "C" bool oq_cu_attention_wgmma_fits(int64_t head_dim)
{
    return head_dim == 64 || head_dim == 128;
}

extern "C" bool oq_cu_attention_wgmma(cudaStream_t stream, const oq_cu_attention *a)
{
    if (a->causal || a->key_mask || a->bias || a->q.rows <= 0 || a->k.rows <= 0) return false;
    if (a->block_map && a->k.rows > (int64_t)MAX_CHOSEN * TILE_KV) return false;
    const encode_fn encode = tensor_map_encoder();
    if (!encode) return false;
    return a->head_dim == 128 ? run<128>(stream, a, encode) : run<64>(stream, a, encode);
}
