/* linear_few_simd.h -- a few rows of x times weights that rest in their format's own planes, read once from end to end:
 * rows of W meet x as they are decoded, in f32 and in registers. Each engine includes this text, as linear_panel_any.h is. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_SIMD_H
#define OQ_CPU_LINEAR_LINEAR_FEW_SIMD_H

#include "cpu/linear/linear_few_codes.h"

/* x in the order of its kind. */
static inline void few_order(few_kind kind, float *x, int64_t k)
{
    int from[FEW_RUN];
    float run[FEW_RUN];
    if (kind < FEW_CODES) return;
    for (int e = 0; e < FEW_STEPS; e++)
        for (int d = 0; d < VF; d++) from[e * VF + d] = few_column(kind, 4, d, e);
    for (int64_t i = 0; i < k; i += FEW_RUN) {
        memcpy(run, x + i, sizeof run);
        for (int j = 0; j < FEW_RUN; j++) x[i + j] = run[from[j]];
    }
}

/* Codes of the row's own order. */
OQ_INLINE void codes_body(const few_piece *p, vf *acc, const int rows, const bool offsets)
{
    const int group = p->spec->scheme.weight->block_k;
    const uint8_t *const codes =
        (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (p->row * p->spec->k + p->first) / 2;
    const few_table table = few_table_of(p->table);
    const int shift = __builtin_ctz((unsigned)group); /* every group is a power of two */
    const few_dwords index = few_each(group < FEW_RUN ? shift - 3 : 4); /* a lane has eight codes */
    few_scales s;
    few_scales_of(p, &s);
    for (int64_t i = 0; i < p->count; i += FEW_RUN) {
        const uint8_t *const at = codes + i / 2;
        const float *const x = (const float *)p->x + i;
        few_dwords v = few_load(at);
        vf sum[FEW_ROWS];
        oq_fetch((const char *)at + p->ahead);
        const vf from = offsets ? few_pick(eight_load(s.offset + (i >> shift)), index) : v_zero();
        OQ_UNROLL
        for (int e = 0; e < FEW_STEPS; e++, v = few_next(v)) {
            vf w = few_lookup(table, v);
            if (offsets) w = v_sub(w, from);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load(x + m * few_ld(rows, 4) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        const vf by = few_pick(eight_load(s.scale + (i >> shift)), index);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
}

OQ_INLINE void q4_0_body(const few_piece *p, vf *acc, const int rows)
{
    enum { BYTES = 18, BLOCKS = VF / 4 };
    const uint8_t *at =
        (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (p->row * p->spec->k + p->first) / 32 * BYTES;
    const few_table table = few_table_of(p->table);
    const few_dwords index = few_index(4, 1, 0);
    for (int64_t i = 0; i < p->count; i += FEW_RUN, at += BLOCKS * BYTES) {
        const float *const x = (const float *)p->x + i;
        few_dwords v = few_gather(at + 2, BYTES);
        uint64_t halves = 0;
        vf sum[FEW_ROWS];
        oq_fetch((const char *)at + p->ahead);
        OQ_UNROLL
        for (int b = 0; b < BLOCKS; b++) halves |= (uint64_t)oq_block_u16(at + b * BYTES) << 16 * b;
        const eight scales = eight_halves(halves);
        OQ_UNROLL
        for (int e = 0; e < FEW_STEPS; e++, v = few_next(v)) {
            const vf w = few_lookup(table, v);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load(x + m * few_ld(rows, 4) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        const vf by = few_pick(scales, index);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
}

/* A block has eight sub-blocks of 32; a vector of codes has the low ones of one or two of them, and the high ones of the
 * next. */
OQ_INLINE void q4_k_body(const few_piece *p, vf *acc, const int rows)
{
    enum { BYTES = 144, ELEMS = 256, PAIRS = VF / 8 };
    const uint8_t *at =
        (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (p->row * p->spec->k + p->first) / ELEMS * BYTES;
    const few_table table = few_table_of(p->table);
    vf odd[FEW_ROWS];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) odd[m] = v_zero();
    for (int64_t i = 0; i < p->count; i += ELEMS, at += BYTES) {
        uint64_t scale, min;
        k_scales(at + 4, &scale, &min);
        const eight by8 = eight_bytes(scale, f16_at(at));
        const eight less8 = eight_bytes(min, f16_at(at + 2));
        oq_fetch((const char *)at + p->ahead);
        oq_fetch((const char *)at + p->ahead + 64);
        OQ_UNROLL
        for (int j = 0; j < 4 / PAIRS; j++) {
            const float *const x = (const float *)p->x + i + j * FEW_RUN;
            few_dwords v = few_load(at + 16 + 4 * VF * j);
            vf by[2], less[2];
            OQ_UNROLL
            for (int h = 0; h < 2; h++) {
                const few_dwords index = few_index(8, 2, 2 * PAIRS * j + h);
                by[h] = few_pick(by8, index);
                less[h] = v_neg(few_pick(less8, index));
            }
            OQ_UNROLL
            for (int e = 0; e < FEW_STEPS; e++, v = few_next(v)) {
                const vf w = v_fma(few_lookup(table, v), by[e % 2], less[e % 2]);
                vf *const sum = e % 2 ? odd : acc;
                OQ_UNROLL
                for (int m = 0; m < rows; m++) sum[m] = v_fma(w, v_load(x + m * few_ld(rows, 4) + e * VF), sum[m]);
            }
        }
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = v_add(acc[m], odd[m]);
}

OQ_INLINE void q8_0_body(const few_piece *p, vf *acc, const int rows)
{
    enum { BYTES = 34, ELEMS = 32 };
    const uint8_t *at =
        (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (p->row * p->spec->k + p->first) / ELEMS * BYTES;
    for (int64_t i = 0; i < p->count; i += ELEMS, at += BYTES) {
        const vf by = v_set(f16_at(at));
        vf sum[FEW_ROWS];
        oq_fetch((const char *)at + p->ahead);
        OQ_UNROLL
        for (int e = 0; e < ELEMS / VF; e++) {
            const vf w = v_load_i8(at + 2 + e * VF);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load((const float *)p->x + i + m * few_ld(rows, 4) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
}

/* The vectors of sixteen numbers; which codes are NaN. */
OQ_INLINE vf few_part(f16x x, int i)
{
#if defined(__AVX512F__)
    (void)i;
    return x;
#elif defined(__aarch64__)
    return (vf){x.v[2 * i], x.v[2 * i + 1]};
#else
    return i ? x.high : x.low;
#endif
}
OQ_INLINE b16 few_nans(const uint8_t *p)
{
    const b16 top = b16_set(0x7f);
    return b16_equal(b16_and(codes16(p), top), top);
}

/* A NaN code makes its row of W NaN whatever x is, so it is looked for beside the product. */
OQ_INLINE void mxfp8_body(const few_piece *p, vf *acc, const int rows)
{
    enum { GROUP = 32 };
    const int64_t from = p->row * p->spec->k + p->first;
    const uint8_t *const codes = (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + from;
    const uint8_t *const scale = (const uint8_t *)p->planes->plane[OQ_PLANE_SCALE] + from / GROUP;
    b16 nan = b16_set(0);
    for (int64_t i = 0; i < p->count; i += GROUP) {
        const vf by = v_mul(v_set(power_of(scale[i / GROUP])), v_set(256.0f));
        vf sum[FEW_ROWS];
        if (i % 64 == 0) oq_fetch((const char *)codes + i + p->ahead);
        nan = b16_or(nan, b16_or(few_nans(codes + i), few_nans(codes + i + 16)));
        OQ_UNROLL
        for (int e = 0; e < GROUP / VF; e++) {
            const vf w = few_part(f16x_halves(h16_of_e4m3(codes16(codes + i + e * VF / 16 * 16))), e & 1);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load((const float *)p->x + i + m * few_ld(rows, 4) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
    if (b16_any(nan))
        for (int m = 0; m < rows; m++) acc[m] = v_set(oq_f32_from_bits(0x7fc00000u));
}

OQ_INLINE void spans_body(const few_piece *p, vf *acc, const int rows)
{
    for (int64_t i = 0; i < p->count; i += FEW_SPAN) {
        const int64_t n = oq_min_i64(FEW_SPAN, p->count - i);
        float w[FEW_SPAN + 16];
        decode_columns(p->spec, p->planes, w, p->row, p->first + i, n);
        for (int64_t j = n; j % 16; j++) w[j] = 0.0f;
        for (int64_t j = 0; j < n; j += VF) {
            const vf wj = v_load(w + j);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) acc[m] = v_fma(wj, v_load((const float *)p->x + i + j + m * few_ld(rows, 4)), acc[m]);
        }
    }
}

OQ_INLINE void few_body(const few_piece *p, vf *acc, few_kind kind, const int rows)
{
    vf a[FEW_ROWS];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) a[m] = acc[m];
    switch (kind) {
    case FEW_SPANS:
        spans_body(p, a, rows);
        break;
    case FEW_MXFP8:
        mxfp8_body(p, a, rows);
        break;
    case FEW_Q8_0:
        q8_0_body(p, a, rows);
        break;
    case FEW_CODES:
        codes_body(p, a, rows, false);
        break;
    case FEW_OFFSETS:
        codes_body(p, a, rows, true);
        break;
    case FEW_Q4_0:
        q4_0_body(p, a, rows);
        break;
    case FEW_Q4_K:
        q4_k_body(p, a, rows);
        break;
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = a[m];
}

#define FEW_PIECES(rows)                                                                                     \
    static void few_pieces_##rows(const few_piece *p, vf *acc, few_kind kind)                                \
    {                                                                                                        \
        few_body(p, acc, kind, rows);                                                                        \
    }
FEW_PIECES(1)
FEW_PIECES(2)
FEW_PIECES(3)
FEW_PIECES(4)
FEW_PIECES(5)
FEW_PIECES(6)
FEW_PIECES(7)
FEW_PIECES(8)

static inline void any_few(const oq_panel_job *job, float *c, int64_t panel, int64_t nr)
{
    static const few_pieces_fn pieces[] = {NULL,         few_pieces_1, few_pieces_2, few_pieces_3, few_pieces_4,
                                           few_pieces_5, few_pieces_6, few_pieces_7, few_pieces_8};
    few_panel(job, pieces, NULL, c, panel, nr, sizeof(float));
}

#endif
