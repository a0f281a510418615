/* linear_few_bf16.h -- a few rows of x times codes that bf16 holds exactly, of four or eight bits, by vdpbf16ps: codes become
 * numbers and meet x in registers, a group's scale multiplies their sum in f32, and what offsets make it too large is taken off
 * at the end of a piece. A vector of words gives 32 four-bit codes a step. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_BF16_H
#define OQ_CPU_LINEAR_LINEAR_FEW_BF16_H

#include "cpu/linear/linear_bytes_bf16.h"
#include "cpu/linear/linear_few_codes.h"

enum {
    PAIR_STEPS = 4, /* codes in a word */
    PAIR_LANES = 32
};

/* Are the format's numbers, before their scales and offsets, bf16? */
static inline bool few_pairs_take(const oq_linear_spec *spec, int64_t rows)
{
    const few_kind kind = few_kind_of(spec);
    const bool bytes = (kind == FEW_Q8_0 || kind == FEW_MXFP8) && spec->k % FEW_RUN == 0;
    const bool levels = kind == FEW_CODES && spec->scheme.weight->flat; /* NF4's are no bf16 numbers */
    return rows <= OQ_PANEL_FEW && (bytes || (kind >= FEW_CODES && !levels));
}

static inline void few_order_of(few_kind kind, int from[FEW_RUN])
{
    for (int e = 0; e < PAIR_STEPS; e++)
        for (int d = 0; d < PAIR_LANES; d++) from[e * PAIR_LANES + d] = few_column(kind, 2, d, e);
}

/* A row of x in the order in which its kind's codes come. */
static inline void few_order_pairs(few_kind kind, uint16_t *x, int64_t k)
{
    int from[FEW_RUN];
    uint16_t run[FEW_RUN];
    few_order_of(kind, from);
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

/* Sums of a row of x, not ordered yet, over groups of columns; true: each is a number. */
static inline bool few_sum_groups(float *sums, const uint16_t *x, int64_t k, int group)
{
    const __m512i one = _mm512_set1_epi16(0x3f80);
    bool finite = true;
    for (int64_t i = 0; i < k; i += group) {
        vf sum = v_zero();
        for (int64_t j = i; j < i + group; j += PAIR_LANES) {
            const int64_t left = i + group - j;
            const __mmask32 there = left < PAIR_LANES ? (1u << left) - 1 : 0xffffffffu;
            sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(there, x + j), (__m512bh)one);
        }
        sums[i / group] = v_sum(sum);
        finite &= !v_any_wild(v_set(sums[i / group]));
    }
    return finite;
}

/* Row m of x, which holds an infinity or a NaN: a sum less an offset times a sum would be NaN where the product is infinite,
 * so every number of W meets its own number of x. */
static inline void few_odd_row(const oq_panel_job *job, float *c, int64_t m, int64_t panel, int64_t nr)
{
    const oq_linear_spec *const spec = job->args->spec;
    const uint16_t *const x = (const uint16_t *)(const void *)(job->a + (size_t)m * job->lda);
    const int64_t columns = oq_min_i64(nr, spec->n - panel * nr);
    int from[FEW_RUN];
    float w[FEW_RUN];
    few_order_of(few_kind_of(spec), from);
    for (int64_t col = 0; col < columns; col++) {
        double sum = 0;
        for (int64_t i = 0; i < spec->k; i += FEW_RUN) {
            spec->scheme.weight->decode_span(spec->scheme.weight, w, &job->planes, panel * nr + col, i, FEW_RUN, spec->n,
                                             spec->k);
            for (int j = 0; j < FEW_RUN; j++) sum += (double)w[from[j]] * (double)oq_bf16_to_f32(x[i + j]);
        }
        c[m * nr + col] = (float)sum;
    }
}

/* sums[m] -= offsets . sums of x: n groups. */
OQ_INLINE void pairs_take_off(const few_piece *p, vf *sums, const float *offset, int64_t n, const int rows)
{
    for (int64_t g = 0; g < n; g += VF) {
        const vf by = v_param(offset, g, n - g, 0.0f);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) sums[m] = v_fnma(by, v_param(p->sums + m * p->sums_ld, g, n - g, 0.0f), sums[m]);
    }
}

/* Scales of four blocks side by side. */
OQ_INLINE __m256 pair_block_scales(const uint8_t *at, int stride)
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
        __m512i v = blocks ? few_gather(at + 2, Q4_0) : few_load(at);
        vf sum[FEW_ROWS];
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        OQ_UNROLL
        for (int e = 0; e < PAIR_STEPS; e++, v = _mm512_srli_epi16(v, 4)) {
            const __m512i w = _mm512_permutexvar_epi16(v, table);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const __m512i xm = _mm512_loadu_si512(x + m * few_ld(rows, 2) + e * PAIR_LANES);
                sum[m] = _mm512_dpbf16_ps(e ? sum[m] : v_zero(), (__m512bh)xm, (__m512bh)w);
            }
        }
        const __m256 scales = blocks ? pair_block_scales(at, Q4_0) : _mm256_loadu_ps(s.scale + g);
        const vf by = few_pick(scales, index);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
    if (kind == FEW_OFFSETS) {
        const int64_t n = p->count >> shift;
        for (int64_t g = 0; g < n; g++) s.offset[g] *= s.scale[g];
        pairs_take_off(p, acc, s.offset, n, rows);
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) sums[m] = acc[m];
}

/* A block has eight sub-blocks of 32; a vector of codes has the low ones of two of them, and the high ones of the next. */
OQ_INLINE void pairs_q4_k(const few_piece *p, vf *sums, const int rows)
{
    enum { BYTES = 144, ELEMS = 256 };
    const uint8_t *at =
        (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (p->row * p->spec->k + p->first) / ELEMS * BYTES;
    const __m512i table = pair_table(p);
    float offset[FEW_SCALES];
    vf acc[FEW_ROWS];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = sums[m];
    for (int64_t i = 0; i < p->count; i += ELEMS, at += BYTES) {
        uint64_t scale, min;
        k_scales(at + 4, &scale, &min);
        const __m256 by8 = eight_bytes(scale, f16_at(at));
        _mm256_storeu_ps(offset + i / 32, eight_bytes(min, f16_at(at + 2)));
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        _mm_prefetch((const char *)at + p->ahead + 64, _MM_HINT_T0);
        OQ_UNROLL
        for (int j = 0; j < 2; j++) {
            const uint16_t *const x = (const uint16_t *)p->x + i + j * FEW_RUN;
            __m512i v = few_load(at + 16 + 64 * j);
            vf sum[2][FEW_ROWS];
            OQ_UNROLL
            for (int e = 0; e < PAIR_STEPS; e++, v = _mm512_srli_epi16(v, 4)) {
                const __m512i w = _mm512_permutexvar_epi16(v, table);
                OQ_UNROLL
                for (int m = 0; m < rows; m++) {
                    const __m512i xm = _mm512_loadu_si512(x + m * few_ld(rows, 2) + e * PAIR_LANES);
                    sum[e % 2][m] = _mm512_dpbf16_ps(e > 1 ? sum[e % 2][m] : v_zero(), (__m512bh)xm, (__m512bh)w);
                }
            }
            OQ_UNROLL
            for (int h = 0; h < 2; h++) {
                const vf by = few_pick(by8, few_index(8, 2, 4 * j + h));
                OQ_UNROLL
                for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[h][m], by, acc[m]);
            }
        }
    }
    pairs_take_off(p, acc, offset, p->count / 32, rows);
    OQ_UNROLL
    for (int m = 0; m < rows; m++) sums[m] = acc[m];
}

/* Four groups of 32 bytes side by side, a quarter of a vector each: the first sixteen of all, then the others. A NaN code
 * of e4m3 makes its row of W NaN whatever x is, so it is looked for beside the product. */
OQ_INLINE void pairs_bytes(const few_piece *p, vf *sums, const bool q8_0, const int rows)
{
    enum { BLOCK = 34, GROUP = 32 };
    const int64_t first = p->row * p->spec->k + p->first;
    const uint8_t *at = (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (q8_0 ? first / GROUP * BLOCK : first);
    const code_bytes codes = *(const code_bytes *)p->bytes;
    const few_dwords quarter = few_index(4, 1, 0);
    const __m512i top = _mm512_set1_epi8(0x7f);
    __mmask64 nan = 0;
    float scale[FEW_SCALES + 8];
    vf acc[FEW_ROWS];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = sums[m];
    if (!q8_0) scales_e8m0(scale, (const uint8_t *)p->planes->plane[OQ_PLANE_SCALE] + first / GROUP, p->count / GROUP);
    for (int64_t i = 0; i < p->count; i += FEW_RUN, at += q8_0 ? 4 * BLOCK : FEW_RUN) {
        const uint16_t *const x = (const uint16_t *)p->x + i;
        __m512i half[2], w[PAIR_STEPS];
        vf sum[FEW_ROWS];
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        _mm_prefetch((const char *)at + p->ahead + 64, _MM_HINT_T0);
        if (q8_0) {
            half[0] = few_gather(at + 2, BLOCK);
            half[1] = few_gather(at + 18, BLOCK);
        } else {
            const __m512i low = few_load(at), high = few_load(at + 64);
            half[0] = _mm512_shuffle_i64x2(low, high, 0x88);
            half[1] = _mm512_shuffle_i64x2(low, high, 0xdd);
            nan |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(low, top), top) |
                   _mm512_cmpeq_epi8_mask(_mm512_and_si512(high, top), top);
        }
        bf16_of_quarters(w, half[0], &codes, q8_0);
        bf16_of_quarters(w + 2, half[1], &codes, q8_0);
        OQ_UNROLL
        for (int e = 0; e < PAIR_STEPS; e++) {
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const __m512i xm = _mm512_loadu_si512(x + m * few_ld(rows, 2) + e * PAIR_LANES);
                sum[m] = _mm512_dpbf16_ps(e ? sum[m] : v_zero(), (__m512bh)xm, (__m512bh)w[e]);
            }
        }
        const __m256 scales = q8_0 ? pair_block_scales(at, BLOCK) : _mm256_loadu_ps(scale + i / GROUP);
        const vf by = few_pick(scales, quarter);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) sums[m] = nan ? v_set(oq_f32_from_bits(0x7fc00000u)) : acc[m];
}

#define PAIR_PIECES(rows)                                                                                    \
    static void pair_pieces_##rows(const few_piece *p, vf *acc, few_kind kind)                               \
    {                                                                                                        \
        if (kind == FEW_Q8_0)                                                                                \
            pairs_bytes(p, acc, true, rows);                                                                 \
        else if (kind == FEW_MXFP8)                                                                          \
            pairs_bytes(p, acc, false, rows);                                                                \
        else if (kind == FEW_Q4_K)                                                                           \
            pairs_q4_k(p, acc, rows);                                                                        \
        else if (kind == FEW_Q4_0)                                                                           \
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
    const oq_linear_spec *const spec = job->args->spec;
    const few_kind kind = few_kind_of(spec);
    code_bytes bytes;
    if (kind < FEW_CODES) bytes = code_bytes_of(kind == FEW_Q8_0);
    few_panel(job, pieces, &bytes, c, panel, nr, sizeof(uint16_t));
    for (int64_t m = 0; few_sums_group(spec) && m < job->rows; m++)
        if (few_sums(job, m)[few_sums_flag(spec)] != 0) few_odd_row(job, c, m, panel, nr);
}

#endif
