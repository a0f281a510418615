/* attention_fp8.cu -- attention over e4m3 codes for Hopper, heads of 128 columns: attention_wgmma.cu's course (Shah et al.,
 * FlashAttention-3), with scales that are powers of two per block.
 *
 * Scores are exact sums of products of codes; the scales of a block of queries and of keys enter with the softmax. The
 * probabilities become e4m3 themselves, times 256 and times the scale of their block of values over the largest such
 * scale: all of it is one addition to the exponent. Products with the values start anew for each tile of keys and are
 * added up in f32 registers, since the tensor cores keep few bits of long sums. */
#include "cuda/attention_work.cuh"
#include "cuda/wgmma.cuh"

#define DIM     128
#define TILE    128 /* queries, and keys */
#define STAGES  4
#define THREADS 384          /* loader, and two warpgroups of 64 queries */
#define BYTES   (TILE * DIM) /* of a tile of codes */
#define HALF    8            /* pairs of columns whose probabilities are made while the values are still multiplied */
#define SPARED  8            /* of so many pairs of probabilities one comes from multiplications */
/* 2^x for |x| <= 1/2, relative error 0.0017 */
#define POLY0 1.0004427f
#define POLY1 0.70343643f
#define POLY2 0.23842251f

struct fp8_args {
    oq_cu_view o;
    work_plan work;
    int64_t n_kv;
    int kv_share, q_blocks, kv_blocks; /* query heads per key head; blocks of 128 and 256 rows */
    float scale;                       /* times log2 e */
    const float *q_scale, *k_scale, *v_scale;
    const uint8_t *map;
};

/* Shared memory, in bytes from its start. */
#define AT_K   BYTES
#define AT_V   (AT_K + STAGES * BYTES)
#define AT_BAR (AT_V + STAGES * BYTES)
#define AT_NOTE (AT_BAR + 16 + 32 * STAGES) /* what the loader writes beside a tile of keys */
#define AT_MOST (AT_NOTE + 16 * STAGES)     /* and beside a block of queries: `largest` */
#define SHARED  (AT_MOST + 16 + 1024)       /* and room to align */
#define SLOT   (BYTES >> 4)                     /* from one stage to the next in a descriptor */

#if HOPPER
struct barriers { /* of 8 bytes each */
    uint32_t q, q_free, k_full, k_free, v_full, v_free;
};

/* exp2_fast by multiplications, within 2^-9: codes of three bits are made of it. The special unit gives 16 results a cycle and
 * is what the products wait for, so it is spared a part of them. Below 2^-120, and for a NaN, which other columns of the
 * row have too: next to nothing. */
static __device__ __forceinline__ float exp2_by_parts(float x)
{
    x = fmaxf(x, -120.0f);
    const float shifted = x + 12582912.0f; /* 1.5 * 2^23: the nearest integer is in its last bits */
    const float part = x - (shifted - 12582912.0f);
    const float p = fmaf(fmaf(POLY2, part, POLY1), part, POLY0);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

/* What the scales of a tile make of its scores and probabilities, and its keys that are there. The loader works it out,
 * since nobody waits for that. */
struct note {
    float scores, lift, unlift;
    int left;
};

static __device__ __forceinline__ note note_of(const fp8_args &a, const float *k, const float *v, float of_q,
                                               float largest, int tile)
{
    /* Scales are powers of two. A block whose values are 2^-40 of the largest, or zeros, adds nothing either way; a NaN is
     * in `largest` too, and comes back at the end. */
    const float ratio = fmaxf(v[tile / 2] / largest, 0x1p-40f);
    return {of_q * k[tile / 2], (float)((int)(__float_as_uint(ratio) >> 23) - 127 + 8), 1.0f / (256.0f * ratio),
            (int)min(a.n_kv - (int64_t)tile * TILE, (int64_t)TILE)};
}

static __device__ __forceinline__ void note_write(uint32_t at, const note &n)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(n.scores), "f"(n.lift), "f"(n.unlift),
                 "r"(n.left)
                 : "memory");
}

static __device__ __forceinline__ note note_read(uint32_t at)
{
    note n;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(n.scores), "=f"(n.lift), "=f"(n.unlift), "=r"(n.left)
                 : "r"(at)
                 : "memory");
    return n;
}

/* The largest scale of the values that a head reads; by a whole warp. */
static __device__ __forceinline__ float largest_of(const float *v_scale, int n)
{
    float largest = 0.0f;
    for (int i = (int)threadIdx.x & 31; i < n; i += 32) largest = op_max::join(v_scale[i], largest);
    return warp_reduce<op_max>(largest);
}

/* By one warp, whose first lane loads. */
template <bool MAP>
static __device__ void load_all(uint32_t base, const barriers &b, const CUtensorMap *q, const CUtensorMap *k,
                                const CUtensorMap *v, const fp8_args &a, const tile_list &tiles)
{
    uint32_t at = 0; /* tiles so far */
    piece p;
    for (int i = 0; piece_at(a.work, i, p); i++) {
        const int kv_head = p.head / a.kv_share, n = MAP ? tiles.n : p.n;
        const float *const k_scale = a.k_scale + kv_head * a.kv_blocks, *const v_scale = a.v_scale + kv_head * a.kv_blocks;
        const float largest = largest_of(v_scale, a.kv_blocks);
        const float of_q = a.q_scale[p.head * a.q_blocks + p.block] * a.scale;
        if (threadIdx.x == 0) {
            barrier_wait(b.q_free, (i & 1) ^ 1);
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(base + AT_MOST), "f"(largest) : "memory");
            barrier_expect(b.q, BYTES);
            tensor_load(base, q, 0, (p.head * a.q_blocks + p.block) * TILE, b.q);
            for (int t = 0; t < n; t++, at++) {
                const uint32_t s = at % STAGES, phase = (at / STAGES & 1) ^ 1;
                const int tile = tile_at<MAP>(tiles, p, t), key = tile * TILE;
                const note c = note_of(a, k_scale, v_scale, of_q, largest, tile);
                barrier_wait(b.k_free + 8 * s, phase);
                note_write(base + AT_NOTE + 16 * s, c); /* before the arrival that tells of it */
                barrier_expect(b.k_full + 8 * s, BYTES);
                tensor_load(base + AT_K + s * BYTES, k, 0, kv_head * a.kv_blocks * 256 + key, b.k_full + 8 * s);
                barrier_wait(b.v_free + 8 * s, phase);
                barrier_expect(b.v_full + 8 * s, BYTES);
                tensor_load(base + AT_V + s * BYTES, v, key, kv_head * DIM, b.v_full + 8 * s);
            }
        }
        __syncwarp();
    }
}

/* Steps of 32 columns, or keys: 32 bytes further in the descriptors. */
static __device__ __forceinline__ void product_qk(float (&s)[64], uint64_t q, uint64_t k)
{
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) wgmma_e4m3(s, q + 2 * i, k + 2 * i, i > 0);
}

static __device__ __forceinline__ void product_pv(float (&o)[64], const uint32_t (&p)[16], uint64_t v)
{
#pragma unroll
    for (int i = 0; i < TILE / 32; i++) wgmma_e4m3(o, p + 4 * i, v + 2 * i, i > 0);
}

/* The exponents' offset by row, by how much earlier sums shrink, and sums in two chains each. */
struct softening {
    float base[2], shrink[2], add[2][2];
};

static __device__ __forceinline__ softening next_top(const float (&s)[64], row_state &st, const note &c)
{
    softening f = {};
    float top[2];
    row_tops(s, top);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float now = fmaxf(st.top[h], top[h] * c.scores);
        f.base[h] = c.lift - now;
        f.shrink[h] = exp2_fast(st.top[h] - now);
        st.top[h] = now;
    }
    return f;
}

/* Scores of columns 8 FIRST on, to 8 END, times `scores` become powers of two below the running maximum, times 2^lift. */
template <int FIRST, int END>
static __device__ __forceinline__ void soften(float (&s)[64], softening &f, const note &c)
{
#pragma unroll
    for (int n = FIRST; n < END; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = s[4 * n + i];
            x = fmaf(x, c.scores, f.base[i / 2]);
            x = n % SPARED == SPARED - 1 ? exp2_by_parts(x) : exp2_fast(x);
            f.add[i / 2][i % 2] += x;
        }
}

static __device__ __forceinline__ void add_up(row_state &st, const softening &f, const note &c)
{
#pragma unroll
    for (int h = 0; h < 2; h++) st.sum[h] = fmaf(st.sum[h], f.shrink[h], (f.add[h][0] + f.add[h][1]) * c.unlift);
}

/* As codes: registers of a step of 32 keys are rows r, r + 8 of its first sixteen, then of its second. */
static __device__ __forceinline__ void pack(uint32_t (&p)[16], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int c =
                    16 * i + 8 * half + 2 * h; /* of two neighbouring columns, and of those eight further */
                uint16_t low, high;
                asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(s[c + 1]), "f"(s[c]));
                asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(s[c + 5]), "f"(s[c + 4]));
                p[4 * i + 2 * half + h] = (uint32_t)low | (uint32_t)high << 16;
            }
}

/* What a thread has of 64 rows' results, over their sums, to memory. */
static __device__ __forceinline__ void store_rows(const fp8_args &a, const piece &p, int group, const float (&o)[64],
                                                  const row_state &st, float largest)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32 % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = st.sum[h];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const float inverse = largest / (256.0f * total);
        const int64_t row = (int64_t)p.block * TILE + group * 64 + warp * 16 + lane / 4 + 8 * h;
        if (row >= a.o.rows) continue;
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.o.data + row * a.o.ld + (int64_t)p.head * DIM + (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            *(uint32_t *)(to + 8 * n) = bf16_pair(o[4 * n + 2 * h] * inverse, o[4 * n + 2 * h + 1] * inverse);
    }
}

template <bool MAP>
static __device__ void multiply(const fp8_args &a, uint32_t base, const barriers &b, int group, const tile_list &tiles,
                                int *last)
{
    const uint64_t q = descriptor(base + (uint32_t)group * 64 * DIM, 16), k = descriptor(base + AT_K, 16),
                   v = descriptor(base + AT_V, 16);
    const bool speaker = threadIdx.x % 128 == 0;
    float o[64], s[64], pv[64];
    uint32_t codes[16], slot = 0, phase = 0; /* of the next tile of keys */
    if (group == 1) turn_pass(1);            /* the first group begins */

    piece p;
    for (int i = 0; piece_at(a.work, i, p); i++) {
        const int n = MAP ? uniform(tiles.n) : p.n;
        float before[2] = {0.0f, 0.0f}, largest;
        row_state st = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
        for (int j = 0; j < 64; j++) o[j] = 0.0f;
        barrier_wait(b.q, i & 1);
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(largest) : "r"(base + AT_MOST) : "memory");
        barrier_wait(b.k_full + 8 * slot, phase);
        note c = note_read(base + AT_NOTE + 16 * slot); /* by all before the turn, and so before their speaker gives the
                                                           slot back */
        turn_wait(group);
        wgmma_fence();
        product_qk(s, q, k + slot * SLOT);
        wgmma_commit();
        turn_pass(group);
        wgmma_wait<0>();
        hold(s);
        if (speaker) barrier_arrive(b.k_free + 8 * slot);
        if (speaker && n == 1) barrier_arrive(b.q_free);
        if (tile_at<MAP>(tiles, p, 0) == a.work.tiles - 1) hide_tail(s, c.left);
        softening f = next_top(s, st, c);
        soften<0, 16>(s, f, c);
        add_up(st, f, c);
        pack(codes, s);

        for (int t = 1; t < n; t++) {
            const uint32_t v_slot = slot, v_phase = phase; /* of the tile before */
            slot = (slot + 1) % STAGES, phase ^= slot == 0;
            barrier_wait(b.k_full + 8 * slot, phase);
            c = note_read(base + AT_NOTE + 16 * slot);
            barrier_wait(b.v_full + 8 * v_slot, v_phase); /* long there; the other group should not wait for the look */
            turn_wait(group);
            wgmma_fence();
            product_qk(s, q, k + slot * SLOT);
            wgmma_commit();
            product_pv(pv, codes, v + v_slot * SLOT);
            wgmma_commit();
            turn_pass(group);
            wgmma_wait<1>();
            hold(s);
            if (speaker) barrier_arrive(b.k_free + 8 * slot);
            if (speaker && t == n - 1) barrier_arrive(b.q_free);
            if (tile_at<MAP>(tiles, p, t) == a.work.tiles - 1) hide_tail(s, c.left);
            f = next_top(s, st, c);
            soften<0, HALF>(s, f, c);
            after((f.add[0][0] + f.add[0][1]) + (f.add[1][0] + f.add[1][1]));
            wgmma_wait<0>();
            hold(pv);
            if (speaker) barrier_arrive(b.v_free + 8 * v_slot);
            soften<HALF, 16>(s, f, c);
            add_up(st, f, c);
            /* pv belongs to the maximum of its own tile: earlier sums had shrunk to it, and all shrink now at once */
#pragma unroll
            for (int j = 0; j < 64; j++) o[j] = fmaf(o[j], before[j / 2 % 2], pv[j]);
            before[0] = f.shrink[0], before[1] = f.shrink[1];
            pack(codes, s);
        }
        barrier_wait(b.v_full + 8 * slot, phase);
        wgmma_fence();
        product_pv(pv, codes, v + slot * SLOT);
        wgmma_commit();
        wgmma_wait<0>();
        hold(pv);
        if (speaker) barrier_arrive(b.v_free + 8 * slot);
        slot = (slot + 1) % STAGES, phase ^= slot == 0;
#pragma unroll
        for (int j = 0; j < 64; j++) o[j] = fmaf(o[j], before[j / 2 % 2], pv[j]);
        if (p.cut >= 0 && !join_parts(a.work, p, group, o, st, 1.0f, last)) continue;
        store_rows(a, p, group, o, st, largest);
    }
}
#endif

template <bool MAP>
__global__ void __launch_bounds__(THREADS, 1)
    fp8_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
               const __grid_constant__ CUtensorMap v, const __grid_constant__ fp8_args a)
{
#if HOPPER
    extern __shared__ uint8_t shared[];
    __shared__ uint16_t chosen[MAX_CHOSEN];
    __shared__ int n_chosen, last[GROUPS];
    const uint32_t base = (uint32_t)uniform((int)(((uint32_t)__cvta_generic_to_shared(shared) + 1023u) & ~1023u));
    const uint32_t bar = base + AT_BAR;
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
    const uint8_t *const map = MAP ? a.map + (int64_t)blockIdx.x * a.q_blocks : nullptr;
    const tile_list tiles = list_tiles(map, a.work.tiles, chosen, &n_chosen);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x < 32) load_all<MAP>(base, b, &q, &k, &v, a, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply<MAP>(a, base, b, group - 1, tiles, last);
    }
#endif
}

/* ---- host side ----------------------------------------------------------------------------------------- */

static bool map_of(encode_fn encode, CUtensorMap *map, const void *codes, int64_t rows, int64_t row_bytes)
{
    const cuuint64_t size[2] = {(cuuint64_t)row_bytes, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)row_bytes};
    const cuuint32_t box[2] = {128, TILE}, one[2] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)codes, size, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool fits_view(const oq_cu_view &v, uintptr_t alignment, int64_t step)
{
    return v.type == OQ_CU_BF16 && ((uintptr_t)v.data & (alignment - 1)) == 0 && v.ld % step == 0;
}

extern "C" bool oq_cu_attention_fp8_fits(const oq_cu_attention *a)
{
    return a->head_dim == DIM && !a->causal && !a->key_mask && !a->bias && a->q.rows > 0 && a->k.rows > 0 &&
           (!a->block_map || a->k.rows <= (int64_t)MAX_CHOSEN * TILE) && fits_view(a->q, 16, 8) &&
           fits_view(a->k, 16, 8) && fits_view(a->v, 16, 8) && fits_view(a->o, 4, 2) && tensor_map_encoder();
}

extern "C" bool oq_cu_attention_fp8(cudaStream_t stream, const oq_cu_attention *a,
                                    const oq_cu_fp8_operands *codes, const oq_cu_attention_room *room)
{
    const encode_fn encode = tensor_map_encoder();
    const int64_t q_blocks = (a->q.rows + 127) / 128, kv_blocks = (a->k.rows + 255) / 256;
    CUtensorMap q, k, v;
    unsigned grid;
    const auto kernel = a->block_map ? fp8_kernel<true> : fp8_kernel<false>;
    if (!encode || !map_of(encode, &q, codes->q, q_blocks * 128 * a->n_heads, DIM) ||
        !map_of(encode, &k, codes->k, kv_blocks * 256 * a->n_kv_heads, DIM) ||
        !map_of(encode, &v, codes->v, DIM * a->n_kv_heads, kv_blocks * 256) ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED) != cudaSuccess)
        return false;
    const work_plan work = plan_work(a, room, TILE, TILE, &grid);
    const fp8_args args = {a->o,           work,           a->k.rows,      (int)(a->n_heads / a->n_kv_heads),
                           (int)q_blocks,  (int)kv_blocks, a->scale * 1.4426950408889634f,
                           codes->q_scale, codes->k_scale, codes->v_scale, a->block_map};
    kernel<<<grid, THREADS, SHARED, stream>>>(q, k, v, args);
    return true;
}
