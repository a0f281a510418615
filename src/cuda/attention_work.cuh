/* attention_work.cuh -- what the attention kernels of Hopper share: how blocks of queries are shared out among
 * multiprocessors, and the first steps of a softmax in the registers of a product.
 *
 * One thread block runs on each multiprocessor and goes through blocks of queries. What is left of them after whole rounds
 * would keep few multiprocessors busy, so these last blocks are cut: their tiles of keys, one block's behind another's, go in
 * equal runs to all thread blocks. A piece of a block leaves its sums in memory; whoever comes last adds the pieces up, in
 * the order of the keys, so that the result does not depend on who that was. */
#ifndef OQ_CUDA_ATTENTION_WORK_CUH
#define OQ_CUDA_ATTENTION_WORK_CUH

#include "cuda/hopper.cuh"
#include "cuda/tiles.cuh"

#define GROUPS       2                   /* warpgroups that multiply, 64 queries each */
#define PART_FLOATS  (128 * (64 + 2 + 2)) /* of one group: results of 128 columns, maximum and sum of a thread's two rows */
#define LEAST_GAINED 4                   /* tiles of keys that cutting must save: loading, storing and adding cost as much */
#define LEAST_TILES  2                   /* of a thread block's run */

struct work_plan {
    int q_blocks, blocks;  /* of a head; of all heads */
    int tiles;             /* of keys, of one block */
    int cut, sharers;      /* how many of the blocks, the last ones, are cut; among the first so many thread blocks */
    float *parts;          /* [2 thread blocks][GROUPS][PART_FLOATS] */
    int *tickets;          /* [cut][GROUPS], zeros between launches */
};

struct piece {
    int head, block; /* of queries within its head */
    int first, n;    /* tiles of keys */
    int cut;         /* which of the cut blocks it belongs to; -1: it is a whole one */
    int part;        /* where its sums go */
};

#if HOPPER
static __device__ __forceinline__ int cut_begin(const work_plan &w, int thread_block)
{
    return (int)((unsigned)(w.cut * w.tiles) * (unsigned)min(thread_block, w.sharers) / (unsigned)w.sharers);
}

/* The thread block whose run has tile `unit` of the cut blocks' tiles. */
static __device__ __forceinline__ int cut_owner(const work_plan &w, int unit)
{
    return (int)(((unsigned)(unit + 1) * (unsigned)w.sharers - 1) / (unsigned)(w.cut * w.tiles));
}

/* This thread block's piece i: those of cut blocks come first. */
static __device__ __forceinline__ bool piece_at(const work_plan &w, int i, piece &p)
{
    int index = 0;
    p.cut = -1, p.first = 0, p.n = w.tiles, p.part = 0;
    if (w.cut) {
        const int begin = cut_begin(w, (int)blockIdx.x), end = cut_begin(w, (int)blockIdx.x + 1);
        const int first = begin / w.tiles, n = end > begin ? (end - 1) / w.tiles - first + 1 : 0;
        if (i < n) {
            p.cut = first + i;
            p.first = max(begin - p.cut * w.tiles, 0);
            p.n = min(end - p.cut * w.tiles, w.tiles) - p.first;
            p.part = 2 * (int)blockIdx.x + i;
            index = w.blocks - w.cut + p.cut;
        } else {
            i -= n;
        }
    }
    if (p.cut < 0) {
        index = (int)blockIdx.x + i * (int)gridDim.x;
        if (index >= w.blocks - w.cut) return false;
    }
    p.head = index / w.q_blocks;
    p.block = index - p.head * w.q_blocks;
    return true;
}

struct row_state { /* of rows r and r + 8 of this thread's fragment: maximum, and this thread's share of the sum */
    float top[2], sum[2];
};

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The same number in all lanes, which the compiler may keep once. */
static __device__ __forceinline__ int uniform(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

template <bool MAP> static __device__ __forceinline__ int tile_at(const tile_list &tiles, const piece &p, int t)
{
    return MAP ? tiles.at(t) : p.first + t;
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

/* All threads of a group: named barriers 3 and 4. */
static __device__ __forceinline__ void group_sync(int group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(group + 3) : "memory");
}

/* The largest of each row in a fragment, for all four threads that share the rows. Eight chains side by side: a maximum is
 * ready for the next one after as many cycles as two of these take. */
template <int N> static __device__ __forceinline__ void row_tops(const float (&s)[N], float (&top)[2])
{
    float t[2][4];
#pragma unroll
    for (int n = 0; n < N / 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &to = t[i / 2][n % 2 * 2 + i % 2];
            to = n < 2 ? s[4 * n + i] : fmaxf(to, s[4 * n + i]);
        }
#pragma unroll
    for (int h = 0; h < 2; h++) top[h] = fmaxf(fmaxf(t[h][0], t[h][1]), fmaxf(t[h][2], t[h][3]));
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
        for (int h = 0; h < 2; h++) top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], lanes));
}

/* The same, where most rows have a number that is not negative: then the largest is that of the bits as whole numbers, of which
 * Hopper compares three at once. A NaN without a sign comes out as one; one with a sign is less than zero and may get lost
 * here, but comes back as the weight of its own key. */
template <int N> static __device__ __forceinline__ void row_tops_as_integers(const float (&s)[N], float (&top)[2])
{
    int t[2][2], most[2];
#pragma unroll
    for (int n = 0; n < N / 4; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int a = __float_as_int(s[4 * n + 2 * h]), b = __float_as_int(s[4 * n + 2 * h + 1]);
            t[h][n % 2] = n < 2 ? max(a, b) : __vimax3_s32(t[h][n % 2], a, b);
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = max(t[h][0], t[h][1]);
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2)
            most[h] = max(most[h], __shfl_xor_sync(0xffffffffu, most[h], lanes));
        top[h] = __int_as_float(most[h]);
    }
    if (__any_sync(0xffffffffu, (most[0] | most[1]) < 0)) row_tops(s, top);
}

/* Keys of a tile that has only `left`. */
template <int N> static __device__ __forceinline__ void hide_tail(float (&s)[N], int left)
{
    if (left >= 2 * N) return;
    const int first = (int)(threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < N; i++)
        if ((i / 4) * 8 + first + (i & 1) >= left) s[i] = -INFINITY;
}

/* A piece's sums to memory; true for the group that comes last, which then has the whole block's in its registers. `scale`
 * makes powers of two of the maximum. */
static __device__ bool join_parts(const work_plan &w, const piece &p, int group, float (&o)[64], row_state &st,
                                  float scale, int *last)
{
    const int thread = (int)threadIdx.x % 128;
    float *const mine = w.parts + (int64_t)(p.part * GROUPS + group) * PART_FLOATS + thread;
#pragma unroll
    for (int i = 0; i < 64; i++) mine[i * 128] = o[i];
#pragma unroll
    for (int h = 0; h < 2; h++) mine[(64 + h) * 128] = st.top[h], mine[(66 + h) * 128] = st.sum[h];
    const int unit = p.cut * w.tiles, first = cut_owner(w, unit), end = cut_owner(w, unit + w.tiles - 1) + 1;
    __threadfence();
    group_sync(group);
    if (thread == 0) {
        int *const ticket = w.tickets + p.cut * GROUPS + group;
        last[group] = atomicAdd(ticket, 1) == end - first - 1;
        if (last[group]) *ticket = 0;
    }
    group_sync(group);
    if (!last[group]) return false;
    __threadfence();
    row_state all = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < 64; i++) o[i] = 0.0f;
    for (int pass = 0; pass < 2; pass++)
        for (int b = first; b < end; b++) {
            const int part = 2 * b + p.cut - cut_begin(w, b) / w.tiles;
            const float *const from = w.parts + (int64_t)(part * GROUPS + group) * PART_FLOATS + thread;
            float f[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float top = __ldcg(from + (64 + h) * 128);
                if (pass == 0) all.top[h] = fmaxf(all.top[h], top);
                f[h] = exp2_fast((top - all.top[h]) * scale);
                if (pass == 1) all.sum[h] = fmaf(__ldcg(from + (66 + h) * 128), f[h], all.sum[h]);
            }
            if (pass == 0) continue;
#pragma unroll
            for (int i = 0; i < 64; i++) o[i] = fmaf(__ldcg(from + i * 128), f[i / 2 % 2], o[i]);
        }
    st = all;
    return true;
}
#endif

/* ---- host side ---- */

/* A grid of as many thread blocks as work together. With a map of blocks, whose lengths differ, each takes one block. */
static inline work_plan plan_work(const oq_cu_attention *a, const oq_cu_attention_room *room, int q_rows, int kv_rows,
                                  unsigned *grid)
{
    work_plan w = {(int)((a->q.rows + q_rows - 1) / q_rows), 0,           (int)((a->k.rows + kv_rows - 1) / kv_rows), 0, 0,
                   room->parts,                              room->tickets};
    w.blocks = w.q_blocks * (int)a->n_heads;
    *grid = (unsigned)(a->block_map ? w.blocks : min(w.blocks, room->n_sm));
    const size_t bytes = (size_t)room->n_sm * 2 * GROUPS * PART_FLOATS * sizeof(float);
    if (a->block_map || a->head_dim != 128 || bytes > room->parts_bytes || room->n_sm * GROUPS > room->n_tickets) return w;
    const int rest = w.blocks % room->n_sm;
    const double gained = (double)w.tiles * (1.0 - (double)rest / room->n_sm);
    if (!rest || gained < LEAST_GAINED || (int64_t)rest * w.tiles * room->n_sm >= INT32_MAX) return w;
    w.cut = rest, w.sharers = min(room->n_sm, rest * w.tiles / LEAST_TILES);
    *grid = (unsigned)(w.blocks < room->n_sm ? w.sharers : room->n_sm);
    return w;
}

#endif
