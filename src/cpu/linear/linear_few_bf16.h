/* linear_few_bf16.h -- a few rows of x times four-bit codes that bf16 holds exactly, by vdpbf16ps: codes become numbers and
 * meet x in registers, a group's scale multiplies their sum in f32. A vector of words gives 32 codes a step. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_BF16_H
#define OQ_CPU_LINEAR_LINEAR_FEW_BF16_H

#include "cpu/linear/linear_few_codes.h"

enum {
    PAIR_STEPS = 4, /* codes in a word */
    PAIR_LANES = 32
};

/* Are the format's numbers, before their scales, bf16? Offsets cost too much for one row. */
static inline bool few_pairs_take(const oq_linear_spec *spec, int64_t rows)
{
    const few_kind kind = few_kind_of(spec);
    const oq_format *const f = spec->scheme.weight;
    return rows <= OQ_PANEL_FEW &&
           (kind == FEW_Q4_0 || (kind == FEW_OFFSETS && rows > 1) || (kind == FEW_CODES && !f->flat)); /* flat: NF4's levels */
}

/* A row of x in the order in which its kind's codes come. */
static inline void few_order_pairs(few_kind kind, uint16_t *x, int64_t k)
{
    int from[FEW_RUN];
    uint16_t run[FEW_RUN];
    for (int e = 0; e < PAIR_STEPS; e++)
        for (int d = 0; d < PAIR_LANES; d++) from[e * PAIR_LANES + d] = few_column(kind, 2, d, e);
    for (int64_t i = 0; i < k; i += FEW_RUN) {
        memcpy(run, x + i, sizeof run);
        for (int j = 0; j < FEW_RUN; j++) x[i + j] = run[from[j]];
    }
}

/* Numbers of the low four bits of each word: by a table that holds all twice, since five bits name its entries. */
OQ_INLINE __m512i pair_table(const few_piece *p)
{
    const __m512 numbers = _mm512_loadu_ps(p->table);
    return (__m512i)_mm512_cvtne2ps_pbh(numbers, numbers);
}

/* Codes less their groups' offsets, which may be any byte: bf16 holds whole numbers up to 256. */
OQ_INLINE __m512i pair_less(__m512i words, __m512i offsets)
{
    const __m512i ints = _mm512_sub_epi16(_mm512_and_si512(words, _mm512_set1_epi16(15)), offsets);
    const __m512i low = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(ints));
    const __m512i high = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(ints, 1));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}

/* Scales of four blocks of q4_0 side by side. */
OQ_INLINE __m256 pair_q4_0_scales(const uint8_t *at, int stride)
{
    uint64_t halves = 0;
    for (int b = 0; b < 4; b++) halves |= (uint64_t)oq_block_u16(at + b * stride) << 16 * b;
    return _mm256_cvtph_ps(_mm_cvtsi64_si128((long long)halves));
}

OQ_INLINE void pairs_body(const few_piece *p, vf *sums, few_kind kind, const int rows)
{
    enum { Q4_0 = 18 };
    const bool blocks = kind == FEW_Q4_0;
    const int group = blocks ? 32 : p->spec->scheme.weight->block_k;
    const int64_t first = p->row * p->spec->k + p->first, run_bytes = blocks ? 4 * Q4_0 : FEW_RUN / 2;
    const uint8_t *at = (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (blocks ? first / 32 * Q4_0 : first / 2);
    const int shift = __builtin_ctz((unsigned)group); /* every group is a power of two */
    const few_dwords index = few_each(group < FEW_RUN ? shift - 3 : 4); /* a lane has eight codes */
    const __m512i table = pair_table(p);
    few_scales s;
    vf acc[FEW_ROWS];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = sums[m];
    if (!blocks) few_scales_of(p, &s);
    for (int64_t i = 0; i < p->count; i += FEW_RUN, at += run_bytes) {
        const uint16_t *const x = (const uint16_t *)p->x + i;
        const int64_t g = blocks ? 0 : i >> shift;
        __m512i v = blocks ? few_gather(at + 2, Q4_0) : few_load(at), offsets = _mm512_setzero_si512();
        vf sum[FEW_ROWS];
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        if (kind == FEW_OFFSETS) {
            const __m512i each = _mm512_cvttps_epi32(few_pick(_mm256_loadu_ps(s.offset + g), index));
            offsets = _mm512_or_si512(each, _mm512_slli_epi32(each, 16));
        }
        OQ_UNROLL
        for (int e = 0; e < PAIR_STEPS; e++, v = _mm512_srli_epi16(v, 4)) {
            const __m512i w = kind == FEW_OFFSETS ? pair_less(v, offsets) : _mm512_permutexvar_epi16(v, table);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const __m512i xm = _mm512_loadu_si512(x + m * few_ld(rows, 2) + e * PAIR_LANES);
                sum[m] = _mm512_dpbf16_ps(e ? sum[m] : v_zero(), (__m512bh)xm, (__m512bh)w);
            }
        }
        const __m256 scales = blocks ? pair_q4_0_scales(at, Q4_0) : _mm256_loadu_ps(s.scale + g);
        const vf by = few_pick(scales, index);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) sums[m] = acc[m];
}

#define PAIR_PIECES(rows)                                                                                    \
    static void pair_pieces_##rows(const few_piece *p, vf *acc, few_kind kind)                               \
    {                                                                                                        \
        if (kind == FEW_Q4_0)                                                                                \
            pairs_body(p, acc, FEW_Q4_0, rows);                                                              \
        else if (kind == FEW_OFFSETS)                                                                        \
            pairs_body(p, acc, FEW_OFFSETS, rows);                                                           \
        else                                                                                                 \
            pairs_body(p, acc, FEW_CODES, rows);                                                             \
    }
PAIR_PIECES(1)
PAIR_PIECES(2)
PAIR_PIECES(3)
PAIR_PIECES(4)
PAIR_PIECES(5)
PAIR_PIECES(6)
PAIR_PIECES(7)
PAIR_PIECES(8)

static inline void pairs_few(const oq_panel_job *job, float *c, int64_t panel, int64_t nr)
{
    static const few_pieces_fn pieces[] = {NULL,          pair_pieces_1, pair_pieces_2, pair_pieces_3, pair_pieces_4,
                                           pair_pieces_5, pair_pieces_6, pair_pieces_7, pair_pieces_8};
    few_panel(job, pieces, c, panel, nr, sizeof(uint16_t));
}

#endif
