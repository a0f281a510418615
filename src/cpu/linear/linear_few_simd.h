/* linear_few_simd.h -- a few rows of x times weights that rest in their format's own planes, read once from end to end:
 * rows of W meet x as they are decoded, in registers. Each engine includes this text, as linear_panel_any.h is.
 *
 * Four-bit codes are never sorted: a vector holds dwords of eight codes, a step takes the low four bits of each dword as
 * the index of a table and then shifts the dwords to the next ones. So lane d of step e is another column than e * VF + d,
 * and x is put into that order once (few_order) instead. A lane's codes lie in one group, whose scale multiplies their
 * sum. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_SIMD_H
#define OQ_CPU_LINEAR_LINEAR_FEW_SIMD_H

#include "base/size.h"
#include "cpu/linear/linear_decode_simd.h"
#include "cpu/vec/vec.h"

enum {
    FEW_ROWS = 8,       /* rows of x that meet a row of W at once */
    FEW_SPAN_ROWS = 4,  /* rows of x at most where codes do not meet x in registers: a panel serves more of them better */
    FEW_FLOATS = 6144,  /* numbers of x that stay in the first cache level */
    FEW_STEPS = 8,      /* four-bit codes in a dword */
    FEW_RUN = FEW_STEPS * VF,
    FEW_SPAN = 512,     /* columns that are decoded at once where codes do not meet x in registers */
    FEW_SCALES = FEW_FLOATS / 16,
    FEW_AHEAD = 2048    /* bytes that are fetched before they are needed */
};

/* Columns of x that some rows have in the first cache level; and from row to row there: not 4 KB. */
#define few_columns(rows) (FEW_FLOATS / (rows) / OQ_PIECE * OQ_PIECE)
#define few_ld(rows)      (few_columns(rows) + 16)

typedef enum few_kind {
    FEW_SPANS,   /* through decode_columns */
    FEW_MXFP8,
    FEW_Q8_0,
    FEW_CODES,   /* from here on x is in another order. Codes of four bits in the row's own order under a scale per group */
    FEW_OFFSETS, /* the same with an offset per group */
    FEW_Q4_0,
    FEW_Q4_K
} few_kind;

/* Groups must begin with vectors: a lane has one scale then. */
static inline few_kind few_kind_of(const oq_linear_spec *spec)
{
    const oq_format *const f = spec->scheme.weight;
    if (f == &oq_format_q8_0 && spec->k % 32 == 0) return FEW_Q8_0;
    if (f == &oq_format_mxfp8 && spec->k % 32 == 0) return FEW_MXFP8;
    if (spec->k % OQ_PIECE) return FEW_SPANS;
    if (f == &oq_format_q4_0) return FEW_Q4_0;
    if (f == &oq_format_q4_k) return FEW_Q4_K;
    if (!f->piece || f->block_k > OQ_PIECE) return FEW_SPANS;
    return f->planes & 1u << OQ_PLANE_ZERO ? FEW_OFFSETS : FEW_CODES;
}

/* Rows of x at most that are taken this way. */
static inline int64_t few_rows_of(const oq_linear_spec *spec)
{
    const few_kind kind = few_kind_of(spec);
    return kind == FEW_SPANS ? FEW_SPAN_ROWS : kind == FEW_MXFP8 ? FEW_ROWS : OQ_PANEL_FEW;
}

/* ---- the order of x -------------------------------------------------------------------------------------- */

/* The column of a run that lane d meets in step e. */
static inline int few_column(few_kind kind, int d, int e)
{
    const int byte = e / 2, high = e % 2;
    if (kind == FEW_Q4_0) return 32 * (d / 4) + 16 * high + 4 * (d % 4) + byte;
    if (kind == FEW_Q4_K) return 64 * (d / 8) + 32 * high + 4 * (d % 8) + byte;
    return FEW_STEPS * d + e;
}

static inline void few_order(few_kind kind, float *x, int64_t k)
{
    int from[FEW_RUN];
    float run[FEW_RUN];
    if (kind < FEW_CODES) return;
    for (int e = 0; e < FEW_STEPS; e++)
        for (int d = 0; d < VF; d++) from[e * VF + d] = few_column(kind, d, e);
    for (int64_t i = 0; i < k; i += FEW_RUN) {
        memcpy(run, x + i, sizeof run);
        for (int j = 0; j < FEW_RUN; j++) x[i + j] = run[from[j]];
    }
}

/* ---- vectors of dwords ----------------------------------------------------------------------------------- */

#if defined(__AVX512F__)
typedef __m512i few_dwords;
typedef __m512 few_table;
OQ_INLINE few_dwords few_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
OQ_INLINE few_dwords few_next(few_dwords v)
{
    return _mm512_srli_epi32(v, 4);
}
OQ_INLINE few_table few_table_of(const float *t)
{
    return _mm512_loadu_ps(t);
}
/* Entries by the low four bits of each dword. */
OQ_INLINE vf few_lookup(few_table t, few_dwords v)
{
    return _mm512_permutexvar_ps(v, t);
}
OQ_INLINE few_dwords few_index(int by, int times, int from) /* lane l: l / by * times + from */
{
    int32_t at[VF];
    for (int l = 0; l < VF; l++) at[l] = l / by * times + from;
    return _mm512_loadu_si512(at);
}
/* Lane l: the number at the index of lane l. */
OQ_INLINE vf few_pick(__m256 eight, few_dwords index)
{
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(eight));
}
/* Sixteen bytes each of VF / 4 blocks. */
OQ_INLINE few_dwords few_gather(const uint8_t *p, int stride)
{
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(codes16(p)), codes16(p + stride), 1);
    const __m256i high =
        _mm256_inserti128_si256(_mm256_castsi128_si256(codes16(p + 2 * stride)), codes16(p + 3 * stride), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
#else
typedef __m256i few_dwords;
typedef struct few_table {
    __m256 low, high;
} few_table;
OQ_INLINE few_dwords few_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
OQ_INLINE few_dwords few_next(few_dwords v)
{
    return _mm256_srli_epi32(v, 4);
}
OQ_INLINE few_table few_table_of(const float *t)
{
    return (few_table){_mm256_loadu_ps(t), _mm256_loadu_ps(t + 8)};
}
OQ_INLINE vf few_lookup(few_table t, few_dwords v)
{
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(v, 28)); /* its sign: the code is 8 or more */
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, v), _mm256_permutevar8x32_ps(t.high, v), upper);
}
OQ_INLINE vf few_pick(__m256 eight, few_dwords index)
{
    return _mm256_permutevar8x32_ps(eight, index);
}
OQ_INLINE few_dwords few_index(int by, int times, int from)
{
    int32_t at[VF];
    for (int l = 0; l < VF; l++) at[l] = l / by * times + from;
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
OQ_INLINE few_dwords few_gather(const uint8_t *p, int stride)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(codes16(p)), codes16(p + stride), 1);
}
#endif

/* ---- a piece of a row of W and up to four rows of x ------------------------------------------------------- */

typedef struct few_piece {
    const oq_linear_spec *spec;
    const oq_planes *planes;
    const float *x; /* column `first` of the first row, in the kind's order; few_ld(rows) from row to row */
    int64_t row, first, count; /* of W */
    int64_t ahead;             /* bytes from codes at hand to those that should be under way */
    float table[16];
} few_piece;

/* Scales (and offsets) of the piece's groups; up to eight more are read. */
typedef struct few_scales {
    float scale[FEW_SCALES + 8], offset[FEW_SCALES + 8];
} few_scales;

/* 2^(byte - 127) of bytes; byte 0 has no exponent, 255 is NaN. */
static inline void scales_e8m0(float *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)src[i] << 23, least = bits ? bits : 0x00400000u;
        dst[i] = oq_f32_from_bits(bits == 0x7f800000u ? 0x7fc00000u : least);
    }
}

static inline void scales_e4m3(float *dst, const uint8_t *src, int64_t n, float global)
{
    int64_t i = 0;
    for (; n - i >= 16; i += 16) f16x_store(dst + i, f16x_mul(e4m3_numbers(codes16(src + i)), f16x_set(global)));
    for (; i < n; i++) dst[i] = oq_e4m3_to_f32(src[i]) * global;
}

/* The offset, 256 numbers of codes, then a factor per 256 scales; the product is rounded before the sum. */
static inline void scales_nested(float *dst, const uint8_t *codes, int64_t at, int64_t n, const float *global)
{
    const float *const map = global + 1, *const by = map + 256;
    for (int64_t i = 0; i < n; i++) dst[i] = map[codes[at + i]] * by[(at + i) / 256] + global[0];
}

/* f16 or bf16. */
static inline void scales_16(float *dst, const uint16_t *src, int64_t n, const oq_dtype *type)
{
    int64_t i = 0;
    for (; n - i >= 8; i += 8) {
        const __m128i eight = codes16((const uint8_t *)(src + i));
        const __m256 wide = type == &oq_dtype_f16
                                ? _mm256_cvtph_ps(eight)
                                : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
        _mm256_storeu_ps(dst + i, wide);
    }
    type->to_f32(dst + i, src + i, (size_t)(n - i));
}

static inline void scales_by_piece(const few_piece *p, few_scales *out)
{
    const oq_linear_spec *const s = p->spec;
    const oq_format *const f = s->scheme.weight;
    oq_group_piece part;
    for (int64_t i = 0, g = 0; i < p->count; i += OQ_PIECE) {
        f->piece(f, &part, p->planes, p->row, p->first + i, OQ_PIECE, s->n, s->k);
        for (int64_t j = 0; j * f->block_k < OQ_PIECE; j++, g++) {
            out->scale[g] = part.scale[j];
            out->offset[g] = part.offset[j];
        }
    }
}

static inline void few_scales_of(const few_piece *p, few_scales *out)
{
    const oq_format *const f = p->spec->scheme.weight;
    const int64_t at = (p->row * p->spec->k + p->first) / f->block_k, n = p->count / f->block_k;
    const void *const plane = p->planes->plane[OQ_PLANE_SCALE];
    const uint8_t *const zero = p->planes->plane[OQ_PLANE_ZERO];
    const float *const global = p->planes->plane[OQ_PLANE_GLOBAL];
    if (f == &oq_format_mxfp4 || f == &oq_format_mxfp4_q725) {
        scales_e8m0(out->scale, (const uint8_t *)plane + at, n);
    } else if (f == &oq_format_nvfp4 || f == &oq_format_nvfp4_rows) {
        scales_e4m3(out->scale, (const uint8_t *)plane + at, n, global[f == &oq_format_nvfp4 ? 0 : p->row]);
    } else if (f->flat && global) {
        scales_nested(out->scale, (const uint8_t *)plane, at, n, global);
    } else if (f->flat || f->int_bits == 4) {
        if (f->scale_type)
            scales_16(out->scale, (const uint16_t *)plane + at, n, f->scale_type);
        else
            memcpy(out->scale, (const float *)plane + at, (size_t)n * sizeof(float));
        for (int64_t i = 0; zero && i < n; i++) out->offset[i] = (float)zero[at + i];
    } else {
        scales_by_piece(p, out);
    }
}

/* Codes of the row's own order. */
OQ_INLINE void codes_body(const few_piece *p, vf *acc, const int rows, const bool offsets)
{
    const int group = p->spec->scheme.weight->block_k;
    const uint8_t *const codes =
        (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (p->row * p->spec->k + p->first) / 2;
    const few_table table = few_table_of(p->table);
    const few_dwords index = few_index(group < FEW_RUN ? group / FEW_STEPS : VF, 1, 0);
    few_scales s;
    few_scales_of(p, &s);
    for (int64_t i = 0; i < p->count; i += FEW_RUN) {
        const uint8_t *const at = codes + i / 2;
        const float *const x = p->x + i;
        few_dwords v = few_load(at);
        vf sum[FEW_ROWS];
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        const vf from = offsets ? few_pick(_mm256_loadu_ps(s.offset + i / group), index) : v_zero();
        OQ_UNROLL
        for (int e = 0; e < FEW_STEPS; e++, v = few_next(v)) {
            vf w = few_lookup(table, v);
            if (offsets) w = v_sub(w, from);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load(x + m * few_ld(rows) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        const vf by = few_pick(_mm256_loadu_ps(s.scale + i / group), index);
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
        const float *const x = p->x + i;
        few_dwords v = few_gather(at + 2, BYTES);
        uint64_t halves = 0;
        vf sum[FEW_ROWS];
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        OQ_UNROLL
        for (int b = 0; b < BLOCKS; b++) halves |= (uint64_t)oq_block_u16(at + b * BYTES) << 16 * b;
        const __m256 scales = _mm256_cvtph_ps(_mm_cvtsi64_si128((long long)halves));
        OQ_UNROLL
        for (int e = 0; e < FEW_STEPS; e++, v = few_next(v)) {
            const vf w = few_lookup(table, v);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load(x + m * few_ld(rows) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        const vf by = few_pick(scales, index);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
}

OQ_INLINE __m256 eight_bytes(uint64_t bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)));
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
        const __m256 by8 = _mm256_mul_ps(_mm256_set1_ps(f16_at(at)), eight_bytes(scale));
        const __m256 less8 = _mm256_mul_ps(_mm256_set1_ps(f16_at(at + 2)), eight_bytes(min));
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        _mm_prefetch((const char *)at + p->ahead + 64, _MM_HINT_T0);
        OQ_UNROLL
        for (int j = 0; j < 4 / PAIRS; j++) {
            const float *const x = p->x + i + j * FEW_RUN;
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
                for (int m = 0; m < rows; m++) sum[m] = v_fma(w, v_load(x + m * few_ld(rows) + e * VF), sum[m]);
            }
        }
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = v_add(acc[m], odd[m]);
}

/* VF codes each. */
OQ_INLINE vf few_i8(const uint8_t *p)
{
#if defined(__AVX512F__)
    return f16x_i8(codes16(p));
#else
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
#endif
}

OQ_INLINE void q8_0_body(const few_piece *p, vf *acc, const int rows)
{
    enum { BYTES = 34, ELEMS = 32 };
    const uint8_t *at =
        (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + (p->row * p->spec->k + p->first) / ELEMS * BYTES;
    for (int64_t i = 0; i < p->count; i += ELEMS, at += BYTES) {
        const vf by = v_set(f16_at(at));
        vf sum[FEW_ROWS];
        _mm_prefetch((const char *)at + p->ahead, _MM_HINT_T0);
        OQ_UNROLL
        for (int e = 0; e < ELEMS / VF; e++) {
            const vf w = few_i8(at + 2 + e * VF);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load(p->x + i + m * few_ld(rows) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
}

/* e4m3 codes to f16 numbers 2^-8 times as large. */
#if defined(__AVX512F__)
OQ_INLINE __m512i few_halves(const uint8_t *p)
{
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16((short)0xbf80));
}
OQ_INLINE vf few_half_of(__m512i halves, int e)
{
    return _mm512_cvtph_ps(e ? _mm512_extracti64x4_epi64(halves, 1) : _mm512_castsi512_si256(halves));
}
OQ_INLINE __m256i few_nans(const uint8_t *p)
{
    const __m256i top = _mm256_set1_epi8(0x7f), v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, top), top);
}
enum { FEW_HALVES = 32 };
#else
OQ_INLINE __m256i few_halves(const uint8_t *p)
{
    const __m256i wide = _mm256_cvtepi8_epi16(codes16(p));
    return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
}
OQ_INLINE vf few_half_of(__m256i halves, int e)
{
    return _mm256_cvtph_ps(e ? _mm256_extracti128_si256(halves, 1) : _mm256_castsi256_si128(halves));
}
OQ_INLINE __m256i few_nans(const uint8_t *p)
{
    const __m256i top = _mm256_set1_epi8(0x7f), v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, top), top);
}
enum { FEW_HALVES = 16 };
#endif

/* A NaN code makes its row of W NaN whatever x is, so it is looked for beside the product. */
OQ_INLINE void mxfp8_body(const few_piece *p, vf *acc, const int rows)
{
    enum { GROUP = 32 };
    const int64_t from = p->row * p->spec->k + p->first;
    const uint8_t *const codes = (const uint8_t *)p->planes->plane[OQ_PLANE_DATA] + from;
    const uint8_t *const scale = (const uint8_t *)p->planes->plane[OQ_PLANE_SCALE] + from / GROUP;
    __m256i nan = _mm256_setzero_si256();
    for (int64_t i = 0; i < p->count; i += GROUP) {
        const vf by = v_mul(v_set(power_of(scale[i / GROUP])), v_set(256.0f));
        vf sum[FEW_ROWS];
        if (i % 64 == 0) _mm_prefetch((const char *)codes + i + p->ahead, _MM_HINT_T0);
        nan = _mm256_or_si256(nan, few_nans(codes + i));
        OQ_UNROLL
        for (int e = 0; e < GROUP / VF; e++) {
            const vf w = few_half_of(few_halves(codes + i + e * VF / FEW_HALVES * FEW_HALVES), e & 1);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const vf xm = v_load(p->x + i + m * few_ld(rows) + e * VF);
                sum[m] = e ? v_fma(w, xm, sum[m]) : v_mul(w, xm);
            }
        }
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m] = v_fma(sum[m], by, acc[m]);
    }
    if (!_mm256_testz_si256(nan, nan))
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
            for (int m = 0; m < rows; m++) acc[m] = v_fma(wj, v_load(p->x + i + j + m * few_ld(rows)), acc[m]);
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

/* ---- a panel --------------------------------------------------------------------------------------------- */

static inline void few_table_init(few_kind kind, few_piece *p)
{
    const oq_linear_spec *const s = p->spec;
    const oq_format *const f = s->scheme.weight;
    oq_group_piece part;
    for (int i = 0; i < 16; i++) p->table[i] = (float)(kind == FEW_Q4_0 ? i - 8 : i);
    if (kind != FEW_CODES && kind != FEW_OFFSETS) return;
    f->piece(f, &part, p->planes, 0, 0, OQ_PIECE, s->n, s->k);
    for (int i = 0; i < 16; i++) p->table[i] = part.table[i] - (kind == FEW_CODES ? part.offset[0] : 0.0f);
}

/* Rows [from, from + rows) of x, at most FEW_ROWS, times the columns of a panel: x in pieces that stay in the first cache
 * level while the panel's rows of W pass. */
static inline void few_batch(const oq_panel_job *job, few_piece *p, few_kind kind, float *c, int64_t panel, int64_t nr,
                             int64_t from, int64_t rows)
{
    static void (*const pieces[])(const few_piece *p, vf *acc, few_kind kind) = {
        NULL,         few_pieces_1, few_pieces_2, few_pieces_3, few_pieces_4,
        few_pieces_5, few_pieces_6, few_pieces_7, few_pieces_8};
    const int64_t k = p->spec->k, columns = oq_min_i64(nr, p->spec->n - panel * nr);
    const int64_t most = few_columns(rows);
    const float *const x = (const float *)(const void *)(job->a + (size_t)from * job->lda);
    const int64_t ldx = (int64_t)(job->lda / sizeof *x);
    const codes_of_row codes = codes_init(job);
    const int64_t row_bytes = (int64_t)codes.row_bytes, piece_bytes = row_bytes * oq_min_i64(most, k) / k;
    p->ahead = oq_ceil_div(FEW_AHEAD, piece_bytes ? piece_bytes : 1) * row_bytes; /* whole rows */
    if (most >= k) p->ahead = FEW_AHEAD;
    _Alignas(64) float near_x[FEW_FLOATS + 16 * FEW_ROWS];
    vf acc[OQ_PANEL_MAX_NR][FEW_ROWS];
    p->x = near_x;
    for (int64_t col = 0; col < columns; col++)
        for (int64_t m = 0; m < rows; m++) acc[col][m] = v_zero();
    for (p->first = 0; p->first < k; p->first += most) {
        p->count = oq_min_i64(most, k - p->first);
        for (int64_t m = 0; m < rows; m++)
            memcpy(near_x + m * few_ld(rows), x + m * ldx + p->first,
                   oq_align_up((size_t)p->count, 16) * sizeof *x);
        for (int64_t col = 0; col < columns; col++) {
            p->row = panel * nr + col;
            pieces[rows](p, acc[col], kind);
        }
    }
    for (int64_t m = 0; m < rows; m++)
        for (int64_t col = 0; col < columns; col++) c[(from + m) * nr + col] = v_sum(acc[col][m]);
}

static inline void any_few(const oq_panel_job *job, float *c, int64_t panel, int64_t nr)
{
    few_piece p = {.spec = job->args->spec, .planes = &job->planes};
    const few_kind kind = few_kind_of(p.spec);
    const int64_t batches = oq_ceil_div(job->rows, FEW_ROWS), part = oq_ceil_div(job->rows, batches);
    few_table_init(kind, &p);
    for (int64_t from = 0; from < job->rows; from += part)
        few_batch(job, &p, kind, c, panel, nr, from, oq_min_i64(part, job->rows - from));
}

#endif
