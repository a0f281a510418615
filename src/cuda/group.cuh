/* group.cuh -- weights with a scale for each short run of columns, as kernels see them: numbers of codes, scales. */
#ifndef OQ_CUDA_GROUP_CUH
#define OQ_CUDA_GROUP_CUH

#include "cuda/device.cuh"

#define TILE_ROWS 16
#define BLOCK_K   128 /* columns of a block of codes: one line of packing.c's transposition */

/* The number of a code. NF4 and FP4 are bitsandbytes' tables. */
static __device__ __forceinline__ float number_of(oq_cu_code kind, int code)
{
    constexpr float e2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    constexpr float nf4[16] = {-1.0f,
                               -0.6961928009986877f,
                               -0.5250730514526367f,
                               -0.39491748809814453f,
                               -0.28444138169288635f,
                               -0.18477343022823334f,
                               -0.09105003625154495f,
                               0.0f,
                               0.07958029955625534f,
                               0.16093020141124725f,
                               0.24611230194568634f,
                               0.33791524171829224f,
                               0.44070982933044434f,
                               0.5626170039176941f,
                               0.7229568362236023f,
                               1.0f};
    constexpr float fp4[8] = {0.0f,      0.0625f / 12, 8.0f / 12, 1.0f,
                              4.0f / 12, 6.0f / 12,    2.0f / 12, 3.0f / 12};
    float v = 0.0f;
    if (kind == OQ_CU_CODE_E4M3) {
        const uint8_t byte = (uint8_t)code;
        return element(&byte, OQ_CU_E4M3, 0);
    }
    if (kind == OQ_CU_INT) return (float)code;
#pragma unroll
    for (int i = 0; i < 16; i++) { /* selected without an indexed array */
        const float entry = kind == OQ_CU_NF4    ? nf4[i]
                            : kind == OQ_CU_E2M1 ? (i < 8 ? e2m1[i & 7] : -e2m1[i & 7])
                            : i < 8              ? fp4[i & 7]
                            : i == 8             ? 0.0f
                                                 : -fp4[i & 7];
        v = code == i ? entry : v;
    }
    return v;
}

static __device__ __forceinline__ float e8m0_value(uint32_t byte)
{
    return __uint_as_float(byte == 255 ? 0x7fc00000u : byte ? byte << 23 : 0x00400000u);
}

/* Where the part of a row in a block of columns is, counted in such parts. */
static __device__ __forceinline__ int64_t part_at(const oq_cu_group &w, int64_t row, int64_t block)
{
    return (row / TILE_ROWS * w.blocks + block) * TILE_ROWS + row % TILE_ROWS;
}

/* Scale of a group of a row. */
static __device__ __forceinline__ float scale_of(const oq_cu_group &w, int64_t row, int64_t group)
{
    const int per_block = BLOCK_K / w.group;
    const int64_t at = part_at(w, row, group / per_block) * per_block + group % per_block;
    if (w.scale_kind == OQ_CU_SCALE_F32) return ((const float *)w.scales)[at];
    const uint8_t byte = ((const uint8_t *)w.scales)[at];
    if (w.scale_kind == OQ_CU_SCALE_E8M0) return e8m0_value(byte);
    if (w.scale_kind == OQ_CU_SCALE_E4M3)
        return __fmul_rn(element(&byte, OQ_CU_E4M3, 0), w.global[row * w.global_step]);
    if (w.scale_kind == OQ_CU_SCALE_E4M3_OVER)
        return __fdiv_rn(element(&byte, OQ_CU_E4M3, 0), w.global[row * w.global_step]);
    return __fadd_rn(__fmul_rn(w.global[1 + byte], w.global[257 + (row * w.groups + group) / 256]),
                     w.global[0]);
}

/* What is subtracted from a code's number: integers alone have it. */
static __device__ __forceinline__ float zero_of(const oq_cu_group &w, int64_t row, int64_t group)
{
    const int per_block = BLOCK_K / w.group;
    const int64_t at = part_at(w, row, group / per_block) * per_block + group % per_block;
    return w.code != OQ_CU_INT ? 0.0f : (float)(w.zeros ? w.zeros[at] : w.zero);
}

/* ---- for products that decode as they go: k is a multiple of BLOCK_K ------------------------------------- */

/* How the scales of a block of columns lie: their kind and number. */
enum scale_layout { F32_1, F32_2, F32_4, E8M0_4, E4M3_8, OVER_8, NESTED_2 };

template <scale_layout L> struct layout_of {
    static constexpr int GROUPS = L == F32_1                    ? 1
                                  : L == F32_2 || L == NESTED_2 ? 2
                                  : L == E4M3_8 || L == OVER_8  ? 8
                                                                : 4;
    static constexpr int WORDS = L == F32_4 ? 4 : L == F32_2 || L == E4M3_8 || L == OVER_8 ? 2 : 1;
    static constexpr bool ZEROS = L == F32_1 || L == F32_2 || L == F32_4; /* may have zero points */
};

/* This thread's codes of a block of columns, of rows r and r + 8, and their scales as they lie in memory. */
template <int BITS, scale_layout L> struct part {
    uint4 code[2][BITS / 4];
    uint32_t scale[2][layout_of<L>::WORDS];
    uint32_t zero[2]; /* bytes */
    float absmax[2];  /* nested: of the block's groups, which share one */
};

/* Where this thread's next block of columns is, of rows r and r + 8. */
struct stream {
    const uint4 *code[2];
    uint32_t at[2];    /* index of its first scale where it lies */
    uint32_t count[2]; /* and as the format counts: nested scales */
};

template <int BITS, scale_layout L>
static __device__ __forceinline__ stream stream_at(const oq_cu_group &w, const int64_t (&row)[2], int block,
                                                   int q)
{
    stream s;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t part = part_at(w, row[h], block);
        s.code[h] = (const uint4 *)(w.codes + part * (16 * BITS)) + q * (BITS / 4);
        s.at[h] = (uint32_t)(part * layout_of<L>::GROUPS);
        s.count[h] = (uint32_t)(row[h] * w.groups + (int64_t)block * layout_of<L>::GROUPS);
    }
    return s;
}

template <int BITS, scale_layout L> static __device__ __forceinline__ void advance(stream &s, int blocks)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.code[h] += blocks * (TILE_ROWS * BITS),
            s.at[h] += (uint32_t)(blocks * TILE_ROWS * layout_of<L>::GROUPS);
        s.count[h] += (uint32_t)(blocks * layout_of<L>::GROUPS);
    }
}

template <int BITS, scale_layout L>
static __device__ __forceinline__ void fetch(part<BITS, L> &p, const oq_cu_group &w, const stream &s)
{
    constexpr int GROUPS = layout_of<L>::GROUPS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t at = s.at[h];
#pragma unroll
        for (int i = 0; i < BITS / 4; i++) p.code[h][i] = __ldcs(s.code[h] + i);
        const uint8_t *const bytes = (const uint8_t *)w.scales + at;
        if constexpr (layout_of<L>::ZEROS) {
            const uint32_t *const words = (const uint32_t *)w.scales + at;
            if constexpr (GROUPS == 1) p.scale[h][0] = __ldg(words);
            if constexpr (GROUPS == 2) {
                const uint2 u = __ldg((const uint2 *)words);
                p.scale[h][0] = u.x, p.scale[h][1] = u.y;
            }
            if constexpr (GROUPS == 4) {
                const uint4 u = __ldg((const uint4 *)words);
                p.scale[h][0] = u.x, p.scale[h][1] = u.y, p.scale[h][2] = u.z, p.scale[h][3] = u.w;
            }
            p.zero[h] =
                BITS == 8 ? (uint32_t)w.zero * 0x01010101u : 0; /* four bits: the table has taken it off */
            if (w.zeros) {
                if constexpr (GROUPS == 1) p.zero[h] = __ldg(w.zeros + at);
                if constexpr (GROUPS == 2) p.zero[h] = __ldg((const uint16_t *)(w.zeros + at));
                if constexpr (GROUPS == 4) p.zero[h] = __ldg((const uint32_t *)(w.zeros + at));
            }
        } else if constexpr (L == E8M0_4) {
            p.scale[h][0] = __ldg((const uint32_t *)bytes);
        } else if constexpr (L == E4M3_8 || L == OVER_8) {
            const uint2 u = __ldg((const uint2 *)bytes);
            p.scale[h][0] = u.x, p.scale[h][1] = u.y;
        } else {
            p.scale[h][0] = __ldg((const uint16_t *)bytes);
            p.absmax[h] = __ldg(w.global + 257 + s.count[h] / 256);
        }
    }
}

/* The number of a code, less the zero point where all groups have the same. */
static __device__ __forceinline__ float entry_of(const oq_cu_group &w, int code)
{
    return number_of(w.code, code) - (w.code == OQ_CU_INT && !w.zeros ? (float)w.zero : 0.0f);
}

/* What the scales of a whole row or matrix share. */
template <scale_layout L> struct shared_scale {
    float global[2], offset;
    const float *map; /* nested: in shared memory */
};

template <scale_layout L>
static __device__ __forceinline__ shared_scale<L> shared_scale_of(const oq_cu_group &w,
                                                                  const int64_t (&row)[2], const float *map)
{
    shared_scale<L> s = {{1.0f, 1.0f}, 0.0f, map};
    if constexpr (L == E4M3_8 || L == OVER_8)
        s.global[0] = w.global[row[0] * w.global_step], s.global[1] = w.global[row[1] * w.global_step];
    if constexpr (L == NESTED_2) s.offset = w.global[0];
    return s;
}

/* Scale of group i of the block, of row h; both are constants after unrolling. */
template <int BITS, scale_layout L>
static __device__ __forceinline__ float scale_in(const part<BITS, L> &p, const shared_scale<L> &s, int h,
                                                 int i)
{
    if constexpr (L == E8M0_4) return e8m0_value(p.scale[h][0] >> (8 * i) & 255u);
    if constexpr (L == E4M3_8 || L == OVER_8) {
        const uint8_t byte = (uint8_t)(p.scale[h][i / 4] >> (8 * (i & 3)));
        const float e = element(&byte, OQ_CU_E4M3, 0);
        return L == OVER_8 ? __fdiv_rn(e, s.global[h]) : __fmul_rn(e, s.global[h]);
    }
    if constexpr (L == NESTED_2)
        return __fadd_rn(__fmul_rn(s.map[p.scale[h][0] >> (8 * i) & 255u], p.absmax[h]), s.offset);
    return __uint_as_float(p.scale[h][i]);
}

template <int BITS, scale_layout L>
static __device__ __forceinline__ float zero_in(const part<BITS, L> &p, int h, int i)
{
    return (float)(p.zero[h] >> (8 * i) & 255u);
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &u, int i)
{
    return i == 0 ? u.x : i == 1 ? u.y : i == 2 ? u.z : u.w;
}

/* Host: calls f<BITS, L>(arguments...) for the layout that w has; false: none. */
#define WITH_LAYOUT(w, f, ...)                                                                               \
    ((w).bits == 8 && (w).scale_kind == OQ_CU_SCALE_E8M0 ? f<8, E8M0_4>(__VA_ARGS__)                         \
     : (w).bits == 8 && (w).code != OQ_CU_INT            ? false                                             \
     : (w).bits == 8 && (w).group == 128                 ? f<8, F32_1>(__VA_ARGS__)                          \
     : (w).bits == 8 && (w).group == 64                  ? f<8, F32_2>(__VA_ARGS__)                          \
     : (w).bits == 8 && (w).group == 32                  ? f<8, F32_4>(__VA_ARGS__)                          \
     : (w).bits == 8                                     ? false                                             \
     : (w).scale_kind == OQ_CU_SCALE_E8M0                ? f<4, E8M0_4>(__VA_ARGS__)                         \
     : (w).scale_kind == OQ_CU_SCALE_E4M3                ? f<4, E4M3_8>(__VA_ARGS__)                         \
     : (w).scale_kind == OQ_CU_SCALE_E4M3_OVER           ? f<4, OVER_8>(__VA_ARGS__)                         \
     : (w).scale_kind == OQ_CU_SCALE_NESTED              ? f<4, NESTED_2>(__VA_ARGS__)                       \
     : (w).group == 128                                  ? f<4, F32_1>(__VA_ARGS__)                          \
     : (w).group == 64                                   ? f<4, F32_2>(__VA_ARGS__)                          \
     : (w).group == 32                                   ? f<4, F32_4>(__VA_ARGS__)                          \
                                                         : false)

#endif
