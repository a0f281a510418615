/* linear_few_codes.h -- what the two ways of multiplying a few rows of x by weights in their format's own planes share
 * (linear_few_simd.h: f32, linear_few_bf16.h: pairs of bf16): kinds of codes, their order, their scales.
 *
 * Four-bit codes are never sorted: a vector holds lanes of several codes (a dword eight, a word four), a step takes the low
 * four bits of each lane as the index of a table and then shifts the lanes to the next ones. So lane d of step e is another
 * column than that many lanes times e, and d more, and x is put into that order once instead. The codes of a dword lie in
 * one group, whose scale multiplies their sum. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_CODES_H
#define OQ_CPU_LINEAR_LINEAR_FEW_CODES_H

#include "base/size.h"
#include "cpu/linear/linear_decode_simd.h"
#include "cpu/vec/vec.h"

enum {
    FEW_ROWS = 8,       /* rows of x that meet a row of W at once */
    FEW_SPAN_ROWS = 4,  /* rows of x at most where codes do not meet x in registers: a panel serves more of them better */
    FEW_BYTES = 24576,  /* of x that stay in the first cache level */
    FEW_STEPS = 8,      /* four-bit codes in a dword */
    FEW_RUN = FEW_STEPS * VF,
    FEW_SPAN = 512,     /* columns that are decoded at once where codes do not meet x in registers */
    FEW_SCALES = FEW_BYTES / 2 / 16,
    FEW_AHEAD = 4096    /* bytes that are fetched before they are needed */
};

/* Columns of x, numbers of so many bytes, that some rows have in the first cache level; and from row to row there: not 4 KB. */
#define few_columns(rows, bytes) (FEW_BYTES / (bytes) / (rows) / OQ_PIECE * OQ_PIECE)
#define few_ld(rows, bytes)      (few_columns(rows, bytes) + 32)

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
    if (!f->piece || f->block_k == 0 || f->block_k > OQ_PIECE) return FEW_SPANS;
    return f->planes & 1u << OQ_PLANE_ZERO ? FEW_OFFSETS : FEW_CODES;
}

/* Rows of x at most that are taken this way. */
static inline int64_t few_rows_of(const oq_linear_spec *spec)
{
    const few_kind kind = few_kind_of(spec);
    return kind == FEW_SPANS ? FEW_SPAN_ROWS : kind == FEW_MXFP8 ? FEW_ROWS : OQ_PANEL_FEW;
}

/* ---- the order of x -------------------------------------------------------------------------------------- */

/* The column of a run that lane d, one of so many bytes, meets in step e. */
static inline int few_column(few_kind kind, int bytes, int d, int e)
{
    const int byte = e / 2, high = e % 2, q4_0 = 16 / bytes, q4_k = 32 / bytes; /* lanes of a run of low nibbles */
    if (kind < FEW_CODES) return 32 * (d / 8) + 8 * e + d % 8; /* bytes that become words within their quarter */
    if (kind == FEW_Q4_0) return 32 * (d / q4_0) + 16 * high + bytes * (d % q4_0) + byte;
    if (kind == FEW_Q4_K) return 64 * (d / q4_k) + 32 * high + bytes * (d % q4_k) + byte;
    return 2 * bytes * d + e;
}

/* ---- vectors of dwords ----------------------------------------------------------------------------------- */

/* Eight scales. */
#if defined(__aarch64__)
typedef vf eight;
OQ_INLINE eight eight_load(const float *p)
{
    return v_load(p);
}
OQ_INLINE eight eight_words(uint16x8_t words, const oq_dtype *type)
{
    if (type == &oq_dtype_bf16) return v_from_bf16(words);
    return (vf){f32x4_of_f16(vget_low_u16(words)), f32x4_of_f16(vget_high_u16(words))};
}
OQ_INLINE eight eight_of_16(const uint16_t *p, const oq_dtype *type) /* f16 or bf16 */
{
    return eight_words(vld1q_u16(p), type);
}
OQ_INLINE eight eight_halves(uint64_t halves) /* four of f16, and zeros */
{
    return eight_words(vcombine_u16(vcreate_u16(halves), vcreate_u16(0)), &oq_dtype_f16);
}
OQ_INLINE eight eight_bytes(uint64_t bytes, float by)
{
    const uint16x8_t words = vmovl_u8(vcreate_u8(bytes));
    return (vf){vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))), by),
                vmulq_n_f32(vcvtq_f32_u32(vmovl_high_u16(words)), by)};
}
OQ_INLINE void eight_store(float *p, eight x)
{
    v_store(p, x);
}
#else
typedef __m256 eight;
OQ_INLINE eight eight_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
OQ_INLINE eight eight_of_16(const uint16_t *p, const oq_dtype *type) /* f16 or bf16 */
{
    const __m128i words = b16_load(p);
    if (type == &oq_dtype_f16) return _mm256_cvtph_ps(words);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
OQ_INLINE eight eight_halves(uint64_t halves) /* four of f16, and zeros */
{
    return _mm256_cvtph_ps(b16_eight(halves));
}
OQ_INLINE eight eight_bytes(uint64_t bytes, float by)
{
    return _mm256_mul_ps(_mm256_set1_ps(by), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b16_eight(bytes))));
}
OQ_INLINE void eight_store(float *p, eight x)
{
    _mm256_storeu_ps(p, x);
}
#endif

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
OQ_INLINE few_dwords few_each(int log2) /* lane l: l >> log2 */
{
    return _mm512_srl_epi32(few_index(1, 1, 0), _mm_cvtsi32_si128(log2));
}
/* Lane l: the number at the index of lane l. */
OQ_INLINE vf few_pick(eight x, few_dwords index)
{
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(x));
}
/* Sixteen bytes each of VF / 4 blocks. */
OQ_INLINE few_dwords few_gather(const uint8_t *p, int stride)
{
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(codes16(p)), codes16(p + stride), 1);
    const __m256i high =
        _mm256_inserti128_si256(_mm256_castsi128_si256(codes16(p + 2 * stride)), codes16(p + 3 * stride), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
#elif defined(__aarch64__)
typedef struct few_dwords {
    uint32x4_t a, b;
} few_dwords;
typedef uint8x16x4_t few_table; /* the bytes of sixteen numbers */
OQ_INLINE few_dwords few_load(const void *p)
{
    const uint8_t *const at = p;
    return (few_dwords){vreinterpretq_u32_u8(vld1q_u8(at)), vreinterpretq_u32_u8(vld1q_u8(at + 16))};
}
OQ_INLINE few_dwords few_next(few_dwords v)
{
    return (few_dwords){vshrq_n_u32(v.a, 4), vshrq_n_u32(v.b, 4)};
}
OQ_INLINE few_table few_table_of(const float *t)
{
    return vld1q_u8_x4((const uint8_t *)t);
}
/* Where the four bytes of number `index` are. */
OQ_INLINE uint8x16_t few_places(uint32x4_t index)
{
    return vreinterpretq_u8_u32(vmlaq_u32(vdupq_n_u32(0x03020100u), index, vdupq_n_u32(0x04040404u)));
}
OQ_INLINE float32x4_t few_lookup4(few_table t, uint32x4_t v)
{
    return vreinterpretq_f32_u8(vqtbl4q_u8(t, few_places(vandq_u32(v, vdupq_n_u32(15)))));
}
OQ_INLINE vf few_lookup(few_table t, few_dwords v)
{
    return (vf){few_lookup4(t, v.a), few_lookup4(t, v.b)};
}
OQ_INLINE vf few_pick(eight x, few_dwords index)
{
    const uint8x16x2_t t = {{vreinterpretq_u8_f32(x.a), vreinterpretq_u8_f32(x.b)}};
    return (vf){vreinterpretq_f32_u8(vqtbl2q_u8(t, few_places(index.a))),
                vreinterpretq_f32_u8(vqtbl2q_u8(t, few_places(index.b)))};
}
OQ_INLINE few_dwords few_index(int by, int times, int from)
{
    uint32_t at[VF];
    for (int l = 0; l < VF; l++) at[l] = (uint32_t)(l / by * times + from);
    return few_load(at);
}
OQ_INLINE few_dwords few_each(int log2)
{
    const few_dwords index = few_index(1, 1, 0);
    const int32x4_t by = vdupq_n_s32(-log2);
    return (few_dwords){vshlq_u32(index.a, by), vshlq_u32(index.b, by)};
}
OQ_INLINE few_dwords few_gather(const uint8_t *p, int stride)
{
    return (few_dwords){vreinterpretq_u32_u8(vld1q_u8(p)), vreinterpretq_u32_u8(vld1q_u8(p + stride))};
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
OQ_INLINE vf few_pick(eight x, few_dwords index)
{
    return _mm256_permutevar8x32_ps(x, index);
}
OQ_INLINE few_dwords few_index(int by, int times, int from)
{
    int32_t at[VF];
    for (int l = 0; l < VF; l++) at[l] = l / by * times + from;
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
OQ_INLINE few_dwords few_each(int log2)
{
    return _mm256_srl_epi32(few_index(1, 1, 0), _mm_cvtsi32_si128(log2));
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
    const void *x; /* column `first` of the first row, f32 or bf16, in the kind's order; few_ld from row to row */
    int64_t row, first, count; /* of W */
    int64_t ahead;             /* bytes from codes at hand to those that should be under way */
    const void *bytes; /* tables of codes of a byte, where a kind has them */
    const float *sums; /* of x in the piece's groups, sums_ld from row to row; where offsets are taken off sums */
    int64_t sums_ld;
    float table[16];
} few_piece;

/* Scales (and offsets) of the piece's groups; up to sixteen more are read. */
typedef struct few_scales {
    float scale[FEW_SCALES + 16], offset[FEW_SCALES + 16];
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
    for (; n - i >= 8; i += 8) eight_store(dst + i, eight_of_16(src + i, type));
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
    } else if (f->flat || f->int_bits == 4 || f->int_bits == 8) {
        if (f->scale_type)
            scales_16(out->scale, (const uint16_t *)plane + at, n, f->scale_type);
        else
            memcpy(out->scale, (const float *)plane + at, (size_t)n * sizeof(float));
        for (int64_t i = 0; zero && i < n; i++) out->offset[i] = (float)zero[at + i];
    } else {
        scales_by_piece(p, out);
    }
}

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

/* ---- sums of x in groups of columns ------------------------------------------------------------------------ */

/* Under an offset, codes times x are a sum that is too large by the offset times the sum of x. Columns of a group; 0: no
 * sums are needed. */
static inline int few_sums_group(const oq_linear_spec *spec)
{
    const few_kind kind = few_kind_of(spec);
    return kind == FEW_OFFSETS ? spec->scheme.weight->block_k : kind == FEW_Q4_K ? 32 : 0;
}

/* Behind a row's sums stands whether one of them is no number. */
static inline int64_t few_sums_flag(const oq_linear_spec *spec)
{
    return (int64_t)oq_align_up((size_t)(spec->k / few_sums_group(spec)), 16);
}

static inline int64_t few_sums_ld(const oq_linear_spec *spec)
{
    return few_sums_group(spec) ? few_sums_flag(spec) + 16 : 0;
}

/* Of row `row` of the job, behind its rows in the scratch. */
static inline float *few_sums(const oq_panel_job *job, int64_t row)
{
    return (float *)(void *)(job->a + (size_t)job->rows * job->lda) + row * few_sums_ld(job->args->spec);
}

/* ---- a panel --------------------------------------------------------------------------------------------- */

/* acc[rows] += a piece of a row of W times so many rows of x. */
typedef void (*few_pieces_fn)(const few_piece *p, vf *acc, few_kind kind);

/* Rows [from, from + rows) of x, at most FEW_ROWS, times the columns of a panel: x, of numbers of so many bytes, in pieces
 * that stay in the first cache level while the panel's rows of W pass. */
static inline void few_batch(const oq_panel_job *job, few_piece *p, few_pieces_fn pieces, float *c, int64_t panel,
                             int64_t nr, int64_t from, int64_t rows, size_t number)
{
    const few_kind kind = few_kind_of(p->spec);
    const int64_t k = p->spec->k, columns = oq_min_i64(nr, p->spec->n - panel * nr);
    const int64_t parts = oq_ceil_div(k, few_columns(rows, (int64_t)number));
    const int64_t most = oq_ceil_div(oq_ceil_div(k, parts), OQ_PIECE) * OQ_PIECE;
    const codes_of_row codes = codes_init(job);
    const int64_t row_bytes = (int64_t)codes.row_bytes, piece_bytes = row_bytes * oq_min_i64(most, k) / k;
    p->ahead = oq_ceil_div(FEW_AHEAD, piece_bytes ? piece_bytes : 1) * row_bytes; /* whole rows */
    if (most >= k) p->ahead = FEW_AHEAD;
    _Alignas(64) char near_x[FEW_BYTES + 32 * FEW_ROWS * sizeof(float)];
    vf acc[OQ_PANEL_MAX_NR][FEW_ROWS];
    p->x = near_x;
    for (int64_t col = 0; col < columns; col++)
        for (int64_t m = 0; m < rows; m++) acc[col][m] = v_zero();
    for (p->first = 0; p->first < k; p->first += most) {
        p->count = oq_min_i64(most, k - p->first);
        for (int64_t m = 0; m < rows; m++)
            memcpy(near_x + (size_t)(m * few_ld(rows, (int64_t)number)) * number,
                   job->a + (size_t)(from + m) * job->lda + (size_t)p->first * number,
                   oq_align_up((size_t)p->count, 16) * number);
        if (p->sums_ld) p->sums = few_sums(job, from) + p->first / few_sums_group(p->spec);
        for (int64_t col = 0; col < columns; col++) {
            p->row = panel * nr + col;
            pieces(p, acc[col], kind);
        }
    }
    for (int64_t m = 0; m < rows; m++)
        for (int64_t col = 0; col < columns; col++) c[(from + m) * nr + col] = v_sum(acc[col][m]);
}

/* All rows of x; pieces[rows] is for so many. */
static inline void few_panel(const oq_panel_job *job, const few_pieces_fn *pieces, const void *bytes, float *c,
                             int64_t panel, int64_t nr, size_t number)
{
    few_piece p = {.spec = job->args->spec, .planes = &job->planes, .bytes = bytes};
    if (number == sizeof(uint16_t)) p.sums_ld = few_sums_ld(p.spec);
    const int64_t batches = oq_ceil_div(job->rows, FEW_ROWS), part = oq_ceil_div(job->rows, batches);
    few_table_init(few_kind_of(p.spec), &p);
    for (int64_t from = 0; from < job->rows; from += part) {
        const int64_t rows = oq_min_i64(part, job->rows - from);
        few_batch(job, &p, pieces[rows], c, panel, nr, from, rows, number);
    }
}

#endif
