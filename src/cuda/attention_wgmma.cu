/* attention_wgmma.cu -- bf16 attention for Hopper: queries, keys and values come by the bulk tensor copy engine into
 * swizzled shared memory, one warpgroup loads, two multiply 64 queries each with wgmma (Shah et al., FlashAttention-3).
 *
 * In each warpgroup the scores of the next tile of keys are multiplied while the last tile's values are, and softmax runs
 * beside the second product; the two warpgroups take turns at the tensor cores, so that one's softmax hides under the
 * other's products. Thread blocks stay for as many blocks of queries as fall to them (attention_work.cuh): the next one's
 * queries and keys arrive while the last one's results are stored. No masks: those cases belong to attention_flash.cu. */
#include "cuda/attention_work.cuh"
#include "cuda/wgmma.cuh"

#define TILE_Q  128
#define STAGES  2
#define THREADS 384 /* loader, and two warpgroups of 64 queries */

/* ---- the kernel ---------------------------------------------------------------------------------------- */

struct wgmma_args {
    oq_cu_view o;
    work_plan work;
    int64_t n_kv;
    int kv_share;       /* query heads per key head */
    float scale;        /* times log2 e */
    const uint8_t *map; /* of blocks of 128 by 128, or NULL */
};

template <int D, int TILE_KV> struct layout { /* shared memory, in bytes from its start */
    static constexpr uint32_t Q = TILE_Q * D * 2, KV = TILE_KV * D * 2;
    static constexpr uint32_t AT_K = Q, AT_V = AT_K + STAGES * KV, AT_BAR = AT_V + STAGES * KV;
    static constexpr uint32_t BYTES = AT_BAR + 128 + 1024; /* and room to align */
};

#if HOPPER
struct barriers { /* of 8 bytes each */
    uint32_t q, q_free, k_full, k_free, v_full, v_free;
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

template <int D, int TILE_KV, bool MAP>
static __device__ void load_all(uint32_t base, const barriers &b, const CUtensorMap *q, const CUtensorMap *k,
                                const CUtensorMap *v, const wgmma_args &a, const tile_list &tiles)
{
    using L = layout<D, TILE_KV>;
    uint32_t at = 0; /* tiles so far */
    piece p;
    for (int i = 0; piece_at(a.work, i, p); i++) {
        barrier_wait(b.q_free, (i & 1) ^ 1);
        load_rows<D, TILE_Q>(base, q, p.head * D, p.block * TILE_Q, b.q);
        const int kv_head = p.head / a.kv_share, n = MAP ? tiles.n : p.n;
        for (int t = 0; t < n; t++, at++) {
            const uint32_t s = at % STAGES, phase = (at / STAGES & 1) ^ 1;
            const int key = tile_at<MAP>(tiles, p, t) * TILE_KV;
            barrier_wait(b.k_free + 8 * s, phase);
            load_rows<D, TILE_KV>(base + L::AT_K + s * L::KV, k, kv_head * D, key, b.k_full + 8 * s);
            barrier_wait(b.v_free + 8 * s, phase);
            load_rows<D, TILE_KV>(base + L::AT_V + s * L::KV, v, kv_head * D, key, b.v_full + 8 * s);
        }
    }
}

/* s = q k^T for 64 queries and a tile of keys. Operands are descriptors, in which a step is an addition. */
template <int D, int TILE_KV>
static __device__ __forceinline__ void product_qk(float (&s)[TILE_KV / 2], uint64_t q, uint64_t k)
{
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint32_t half = i / 4, step = (i % 4) * 32;
        wgmma(s, q + ((half * TILE_Q * 128 + step) >> 4), k + ((half * TILE_KV * 128 + step) >> 4), i > 0);
    }
}

/* o += p v for 64 queries: p in registers, v with its rows as the summed dimension. */
template <int D, int TILE_KV>
static __device__ __forceinline__ void product_pv(float (&o)[D / 2], const uint32_t (&p)[TILE_KV / 4], uint64_t v)
{
#pragma unroll
    for (int i = 0; i < TILE_KV / 16; i++)
        wgmma(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], v + (i * 2048 >> 4));
}

/* Scores become powers of two below the running maximum; returns by how much earlier sums shrink. */
template <int N>
static __device__ __forceinline__ void soften(float (&s)[N], row_state &st, float (&shrink)[2], float scale)
{
    float top[2], base[2], add[2][2] = {};
    row_tops_as_integers(s, top);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float now = fmaxf(st.top[h], top[h]);
        base[h] = now * scale;
        shrink[h] = exp2_fast(st.top[h] * scale - base[h]);
        st.top[h] = now;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int h = i / 2 % 2;
        s[i] = exp2_fast(fmaf(s[i], scale, -base[h]));
        add[h][i % 2] += s[i];
    }
#pragma unroll
    for (int h = 0; h < 2; h++) st.sum[h] = fmaf(st.sum[h], shrink[h], add[h][0] + add[h][1]);
}

template <int N> static __device__ __forceinline__ void pack(uint32_t (&p)[N], const float (&s)[2 * N])
{
#pragma unroll
    for (int i = 0; i < N; i++) p[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

/* What a thread has of 64 rows' results, over their sums, to memory. */
template <int D>
static __device__ __forceinline__ void store_rows(const wgmma_args &a, const piece &p, int group, const float (&o)[D / 2],
                                                  const row_state &st)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32 % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = st.sum[h];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const float inverse = 1.0f / total;
        const int64_t row = (int64_t)p.block * TILE_Q + group * 64 + warp * 16 + lane / 4 + 8 * h;
        if (row >= a.o.rows) continue;
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.o.data + row * a.o.ld + (int64_t)p.head * D + (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(uint32_t *)(to + 8 * n) = bf16_pair(o[4 * n + 2 * h] * inverse, o[4 * n + 2 * h + 1] * inverse);
    }
}

template <int D, int TILE_KV, bool MAP>
static __device__ void multiply(const wgmma_args &a, uint32_t base, const barriers &b, int group,
                                const tile_list &tiles, int *last)
{
    using L = layout<D, TILE_KV>;
    const uint64_t q = descriptor(base + (uint32_t)group * 64 * 128, 16), k = descriptor(base + L::AT_K, 16),
                   v = descriptor(base + L::AT_V, TILE_KV * 128);
    constexpr uint64_t STAGE = L::KV >> 4;
    const bool speaker = threadIdx.x % 128 == 0;
    const int left = (int)(a.n_kv - (int64_t)(a.work.tiles - 1) * TILE_KV); /* keys of the last tile */
    float o[D / 2], s[TILE_KV / 2], shrink[2];
    uint32_t prob[TILE_KV / 4], at = 0; /* tiles so far */
    if (group == 1) turn_pass(1);       /* the first group begins */

    piece p;
    for (int i = 0; piece_at(a.work, i, p); i++) {
        const int n = MAP ? uniform(tiles.n) : p.n;
        row_state st = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
        for (int j = 0; j < D / 2; j++) o[j] = 0.0f;
        uint32_t stage = at % STAGES, phase = at / STAGES & 1;
        barrier_wait(b.q, i & 1);
        barrier_wait(b.k_full + 8 * stage, phase);
        turn_wait(group);
        wgmma_fence();
        product_qk<D, TILE_KV>(s, q, k + stage * STAGE);
        wgmma_commit();
        turn_pass(group);
        wgmma_wait<0>();
        hold(s);
        if (speaker) barrier_arrive(b.k_free + 8 * stage);
        if (speaker && n == 1) barrier_arrive(b.q_free);
        if (tile_at<MAP>(tiles, p, 0) == a.work.tiles - 1) hide_tail(s, left);
        soften(s, st, shrink, a.scale);
        pack(prob, s);

        for (int t = 1; t < n; t++) {
            const uint32_t v_stage = stage, v_phase = phase; /* of the tile before */
            at++;
            stage = at % STAGES, phase = at / STAGES & 1;
            barrier_wait(b.k_full + 8 * stage, phase);
            barrier_wait(b.v_full + 8 * v_stage, v_phase); /* long there; the other group should not wait for the look */
            turn_wait(group);
            wgmma_fence();
            product_qk<D, TILE_KV>(s, q, k + stage * STAGE);
            wgmma_commit();
            product_pv<D, TILE_KV>(o, prob, v + v_stage * STAGE);
            wgmma_commit();
            turn_pass(group);
            wgmma_wait<1>();
            hold(s);
            if (speaker) barrier_arrive(b.k_free + 8 * stage);
            if (speaker && t == n - 1) barrier_arrive(b.q_free);
            if (tile_at<MAP>(tiles, p, t) == a.work.tiles - 1) hide_tail(s, left);
            soften(s, st, shrink, a.scale);
            after(st.sum[0] + st.sum[1]);
            wgmma_wait<0>();
            hold(o);
            if (speaker) barrier_arrive(b.v_free + 8 * v_stage);
            pack(prob, s);
#pragma unroll
            for (int j = 0; j < D / 2; j++) o[j] *= shrink[j / 2 % 2];
        }
        barrier_wait(b.v_full + 8 * stage, phase);
        wgmma_fence();
        product_pv<D, TILE_KV>(o, prob, v + stage * STAGE);
        wgmma_commit();
        wgmma_wait<0>();
        hold(o);
        if (speaker) barrier_arrive(b.v_free + 8 * stage);
        at++;
        if constexpr (D == 128)
            if (p.cut >= 0 && !join_parts(a.work, p, group, o, st, a.scale, last)) continue;
        store_rows<D>(a, p, group, o, st);
    }
}

#endif

template <int D, int TILE_KV, bool MAP>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v, const __grid_constant__ wgmma_args a)
{
#if HOPPER
    using L = layout<D, TILE_KV>;
    extern __shared__ uint8_t shared[];
    __shared__ uint16_t chosen[MAX_CHOSEN];
    __shared__ int n_chosen, last[GROUPS];
    const uint32_t base = (uint32_t)uniform((int)(((uint32_t)__cvta_generic_to_shared(shared) + 1023u) & ~1023u));
    const uint32_t bar = base + L::AT_BAR;
    const barriers b = {bar,
                        bar + 8,
                        bar + 16,
                        bar + 16 + 8 * STAGES,
                        bar + 16 + 16 * STAGES,
                        bar + 16 + 24 * STAGES};
    const int group = uniform((int)threadIdx.x / 128);
    if (threadIdx.x == 0) {
        barrier_init(b.q, 1);
        barrier_init(b.q_free, GROUPS);
        for (uint32_t s = 0; s < STAGES; s++) {
            barrier_init(b.k_full + 8 * s, 1);
            barrier_init(b.v_full + 8 * s, 1);
            barrier_init(b.k_free + 8 * s, GROUPS);
            barrier_init(b.v_free + 8 * s, GROUPS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    /* with a map, one block of queries a thread block: attention_work.cuh */
    const int blocks = a.work.q_blocks;
    const uint8_t *const map = a.map ? a.map + (int64_t)blockIdx.x * blocks : nullptr;
    const tile_list tiles = list_tiles(map, a.work.tiles, chosen, &n_chosen);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) load_all<D, TILE_KV, MAP>(base, b, &q, &k, &v, a, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply<D, TILE_KV, MAP>(a, base, b, group - 1, tiles, last);
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

template <int D, int TILE_KV, bool MAP>
static bool run(cudaStream_t stream, const oq_cu_attention *a, const oq_cu_attention_room *room, encode_fn encode)
{
    CUtensorMap q, k, v;
    unsigned grid;
    if (!map_of(encode, &q, a->q, TILE_Q) || !map_of(encode, &k, a->k, TILE_KV) ||
        !map_of(encode, &v, a->v, TILE_KV))
        return false;
    const work_plan work = plan_work(a, room, TILE_Q, TILE_KV, &grid);
    const wgmma_args args = {
        a->o, work, a->k.rows, (int)(a->n_heads / a->n_kv_heads), a->scale * 1.4426950408889634f, a->block_map};
    constexpr int bytes = (int)layout<D, TILE_KV>::BYTES;
    if (cudaFuncSetAttribute(wgmma_kernel<D, TILE_KV, MAP>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return false;
    wgmma_kernel<D, TILE_KV, MAP><<<grid, THREADS, bytes, stream>>>(q, k, v, args);
    return true;
}

extern "C" bool oq_cu_attention_wgmma_fits(int64_t head_dim)
{
    return head_dim == 64 || head_dim == 128;
}

extern "C" bool oq_cu_attention_wgmma(cudaStream_t stream, const oq_cu_attention *a, const oq_cu_attention_room *room)
{
    if (a->causal || a->key_mask || a->bias || a->q.rows <= 0 || a->k.rows <= 0) return false;
    if (a->block_map && a->k.rows > (int64_t)MAX_CHOSEN * 128) return false;
    const encode_fn encode = tensor_map_encoder();
    if (!encode) return false;
    if (a->head_dim == 64)
        return a->block_map ? run<64, 128, true>(stream, a, room, encode) : run<64, 128, false>(stream, a, room, encode);
    /* a map is of blocks of 128 keys; else the largest tiles that shared memory and registers hold: fewer turns */
    return a->block_map ? run<128, 128, true>(stream, a, room, encode) : run<128, 176, false>(stream, a, room, encode);
}
