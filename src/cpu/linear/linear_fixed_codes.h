/* linear_fixed_codes.h -- weights in their format's own planes as whole numbers, 256 columns (a unit) at a time, for byte
 * products with x in fixed point: a number is (code - middle) * scale - less. Each format gives how its codes come to
 * bytes and what its scales are; FIXED_KINDS lists them.
 *
 * A unit is four vectors of 64 codes. The four codes of a dword are summed by the product, so the sixteen that stand in one
 * lane of the four vectors must lie in one group: codes are moved as dwords within their quarters (16 bytes) until they
 * do, and x is put into the order that comes of it (fixed_column). */
#ifndef OQ_CPU_LINEAR_LINEAR_FIXED_CODES_H
#define OQ_CPU_LINEAR_LINEAR_FIXED_CODES_H

#include "base/size.h"
#include "cpu/linear/linear_fixed_vec.h"

enum { FIXED_UNIT = 256, FIXED_VECTORS = FX_VECTORS, FIXED_LANES = FX_LANES };

/* Where the codes of a unit stand. */
typedef enum fixed_order {
    FIXED_ROWS,   /* two a byte in the row's own order */
    FIXED_BLOCKS, /* blocks of 32: sixteen low nibbles, then sixteen high ones */
    FIXED_BYTES,  /* one a byte */
    FIXED_K4,     /* 32 low nibbles, then 32 high ones */
    FIXED_K2      /* 128 columns in two bits of 32 bytes, again 128 */
} fixed_order;

/* Kind, what gives a unit, order, bytes of a unit, largest code, middle, whether something is taken off beside it. Those whose
 * scales have a plane come first. */
#define FIXED_KINDS(X)                                                                                                 \
    X(INT4, int4_unit, FIXED_ROWS, 128, 15, 8, false)                                                                  \
    X(INT4Z, int4_unit, FIXED_ROWS, 128, 15, 0, true)                                                                  \
    X(E2M1, e2m1_unit, FIXED_ROWS, 128, 24, 12, false)                                                                 \
    X(INT8, int8_unit, FIXED_BYTES, 256, 255, 128, false)                                                              \
    X(INT8Z, int8_unit, FIXED_BYTES, 256, 255, 0, true)                                                                \
    X(Q4_0, q4_0_unit, FIXED_BLOCKS, 8 * 18, 15, 8, false)                                                             \
    X(Q4_1, q4_1_unit, FIXED_BLOCKS, 8 * 20, 15, 0, true)                                                              \
    X(Q5_0, q5_0_unit, FIXED_BLOCKS, 8 * 22, 31, 16, false)                                                            \
    X(Q5_1, q5_1_unit, FIXED_BLOCKS, 8 * 24, 31, 0, true)                                                              \
    X(Q8_0, q8_0_unit, FIXED_BYTES, 8 * 34, 255, 128, false)                                                           \
    X(IQ4_NL, iq4_nl_unit, FIXED_BLOCKS, 8 * 18, 255, 128, false)                                                      \
    X(IQ4_XS, iq4_xs_unit, FIXED_BLOCKS, 136, 255, 128, false)                                                         \
    X(Q2_K, q2_k_unit, FIXED_K2, 84, 3, 0, true)                                                                       \
    X(Q3_K, q3_k_unit, FIXED_K2, 110, 7, 4, false)                                                                     \
    X(Q4_K, q4_k_unit, FIXED_K4, 144, 15, 0, true)                                                                     \
    X(Q5_K, q5_k_unit, FIXED_K4, 176, 31, 0, true)                                                                     \
    X(Q6_K, q6_k_unit, FIXED_BYTES, 210, 63, 32, false)

typedef enum fixed_kind {
    FIXED_NONE,
#define FIXED_ENUM(kind, unit, order, bytes, most, middle, less) FIXED_##kind,
    FIXED_KINDS(FIXED_ENUM)
#undef FIXED_ENUM
        FIXED_N_KINDS
} fixed_kind;

typedef struct fixed_traits {
    fixed_order order;
    int bytes, most, middle; /* of a unit; of codes */
    bool less, plane; /* something is taken off; scales have a plane */
} fixed_traits;

OQ_INLINE fixed_traits fixed_traits_of(fixed_kind kind)
{
    switch (kind) {
#define FIXED_CASE(name, unit, order, bytes, most, middle, less)                                                   \
    case FIXED_##name:                                                                                       \
        return (fixed_traits){order, bytes, most, FX_SIGNED && most > 127 ? middle - 128 * !(less) : middle, less,    \
                              FIXED_##name <= FIXED_INT8Z};
        FIXED_KINDS(FIXED_CASE)
#undef FIXED_CASE
    default:
        return (fixed_traits){0};
    }
}

static inline fixed_kind fixed_format_kind(const oq_format *f)
{
    const bool zeros = f->planes & 1u << OQ_PLANE_ZERO;
    const struct {
        const oq_format *format;
        fixed_kind kind;
    } kinds[] = {{&oq_format_q4_0, FIXED_Q4_0},       {&oq_format_q4_1, FIXED_Q4_1},
                 {&oq_format_q5_0, FIXED_Q5_0},       {&oq_format_q5_1, FIXED_Q5_1},
                 {&oq_format_q8_0, FIXED_Q8_0},       {&oq_format_q2_k, FIXED_Q2_K},
                 {&oq_format_q3_k, FIXED_Q3_K},       {&oq_format_q4_k, FIXED_Q4_K},
                 {&oq_format_q5_k, FIXED_Q5_K},       {&oq_format_q6_k, FIXED_Q6_K},
                 {&oq_format_iq4_nl, FIXED_IQ4_NL},   {&oq_format_iq4_xs, FIXED_IQ4_XS},
                 {&oq_format_mxfp4, FIXED_E2M1},      {&oq_format_nvfp4, FIXED_E2M1},
                 {&oq_format_mxfp4_q725, FIXED_E2M1}, {&oq_format_nvfp4_rows, FIXED_E2M1}};
    if (f->int_bits == 4 && f->piece) return zeros ? FIXED_INT4Z : FIXED_INT4;
    if (f->int_bits == 8) return zeros ? FIXED_INT8Z : FIXED_INT8;
    for (size_t i = 0; i < OQ_COUNT(kinds); i++)
        if (kinds[i].format == f) return kinds[i].kind;
    return FIXED_NONE;
}

/* Units begin with groups and with rows. */
static inline fixed_kind fixed_kind_of(const oq_linear_spec *spec)
{
    const fixed_kind kind = spec->scheme.act || spec->k % FIXED_UNIT ? FIXED_NONE : fixed_format_kind(spec->scheme.weight);
    return fixed_traits_of(kind).most > FX_MOST ? FIXED_NONE : kind;
}

/* Columns under one scale. */
static inline int fixed_group(fixed_kind kind, const oq_format *f)
{
    return fixed_traits_of(kind).plane ? f->block_k : kind == FIXED_Q2_K || kind == FIXED_Q3_K || kind == FIXED_Q6_K ? 16 : 32;
}

/* The column that byte i of lane l of vector v holds. */
static inline int fixed_column(fixed_order order, int v, int l, int i)
{
    const int quarter = l / 4,
              j = l % 4; /* of pairs of vectors: what dword of the two; of all: what vector */
    switch (order) {
    case FIXED_ROWS:
        return 128 * (j / 2) + 32 * quarter + 16 * (j % 2) + 8 * (v / 2) + 2 * i + v % 2;
    case FIXED_BLOCKS:
        return 128 * (j / 2) + 32 * quarter + 16 * (v % 2) + 8 * (j % 2) + 4 * (v / 2) + i;
    case FIXED_K4:
        return 128 * (j / 2) + 64 * (quarter / 2) + 32 * (j % 2) + 16 * (quarter % 2) + 4 * v + i;
    case FIXED_K2:
        return 128 * (quarter / 2) + 32 * j + 16 * (quarter % 2) + 4 * v + i;
    default:
        return 64 * j + 16 * quarter + 4 * v + i;
    }
}

/* In each quarter dword d of vector v becomes dword v of vector d. */
OQ_INLINE void fx_turn(fx w[FIXED_VECTORS])
{
    const fx a = fx_even(w[0], w[1]), b = fx_odd(w[0], w[1]), c = fx_even(w[2], w[3]), d = fx_odd(w[2], w[3]);
    w[0] = fx_even(a, c);
    w[1] = fx_even(b, d);
    w[2] = fx_odd(a, c);
    w[3] = fx_odd(b, d);
}

/* ---- units ------------------------------------------------------------------------------------------------- */

typedef struct fixed_unit {
    fx w[FIXED_VECTORS];
    f16x scale, less; /* of lanes */
} fixed_unit;

typedef struct fixed_at {
    const few_scales *scales; /* of the piece, where they have a plane */
    int64_t group;            /* the unit's first one */
    fx index;                 /* the group of each lane in its unit */
    fx table;
} fixed_at;

OQ_INLINE void fixed_plane_scales(fixed_unit *u, const fixed_at *at, bool less)
{
    u->scale = fx_spread(f16x_load(at->scales->scale + at->group), at->index);
    if (less) u->less = f16x_mul(u->scale, fx_spread(f16x_load(at->scales->offset + at->group), at->index));
}

OQ_INLINE void fixed_nibbles(fixed_unit *u, fx first, fx second)
{
    const fx a = fx_even(first, second), b = fx_odd(first, second);
    u->w[0] = fx_low(a), u->w[1] = fx_high(a), u->w[2] = fx_low(b), u->w[3] = fx_high(b);
}

OQ_INLINE void fixed_looked_up(fixed_unit *u, const fixed_at *at)
{
    OQ_UNROLL
    for (int v = 0; v < FIXED_VECTORS; v++) u->w[v] = fx_lookup(at->table, u->w[v]);
}

OQ_INLINE void int4_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    fixed_nibbles(u, fx_load(p), fx_load(p + 64));
    fixed_plane_scales(u, at, less);
}

/* Twice the numbers, so half the scale. */
OQ_INLINE void e2m1_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    int4_unit(u, p, at, less);
    fixed_looked_up(u, at);
    u->scale = f16x_mul(u->scale, f16x_set(0.5f));
}

OQ_INLINE void int8_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    OQ_UNROLL
    for (int v = 0; v < FIXED_VECTORS; v++) u->w[v] = FX_SIGNED ? fx_flip(fx_load(p + 64 * v)) : fx_load(p + 64 * v);
    fx_turn(u->w);
    fixed_plane_scales(u, at, less);
    if (FX_SIGNED && less) u->less = f16x_sub(u->less, f16x_mul(u->scale, f16x_set(128.0f)));
}

/* The f16 numbers that begin blocks of 32 of so many bytes, to the lanes of their blocks. */
OQ_INLINE f16x fixed_block_scales(const uint8_t *p, int stride, const fixed_at *at)
{
    uint64_t halves[2] = {0, 0};
    OQ_UNROLL
    for (int b = 0; b < 8; b++) halves[b / 4] |= (uint64_t)oq_block_u16(p + b * stride) << 16 * (b % 4);
    return fx_spread8(fx_eight_halves(halves[0], halves[1]), at->index);
}

OQ_INLINE void fixed_blocks(fixed_unit *u, const uint8_t *p, const fixed_at *at, int stride, int head)
{
    fixed_nibbles(u, fx_gather(p + head, stride), fx_gather(p + 4 * stride + head, stride));
    u->scale = fixed_block_scales(p, stride, at);
}

/* Fifth bits of the 32 codes of a block, after so many bytes of it: those of low nibbles first. */
OQ_INLINE void fixed_fifth(fixed_unit *u, const uint8_t *p, int stride, int head)
{
    static const uint8_t low[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint8_t high[] = {2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
    static const uint8_t bits[] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const fx first = fx_gather(p + head, stride), second = fx_gather(p + 4 * stride + head, stride);
    const fx each = fx_quarters(bits), bit = fx_set(16);
    const fx a = fx_where(fx_lookup(first, fx_quarters(low)), each, bit);
    const fx b = fx_where(fx_lookup(first, fx_quarters(high)), each, bit);
    const fx c = fx_where(fx_lookup(second, fx_quarters(low)), each, bit);
    const fx d = fx_where(fx_lookup(second, fx_quarters(high)), each, bit);
    u->w[0] = fx_or_some(u->w[0], fx_even(a, c), bit);
    u->w[1] = fx_or_some(u->w[1], fx_even(b, d), bit);
    u->w[2] = fx_or_some(u->w[2], fx_odd(a, c), bit);
    u->w[3] = fx_or_some(u->w[3], fx_odd(b, d), bit);
}

OQ_INLINE void q4_0_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    fixed_blocks(u, p, at, 18, 2);
}

OQ_INLINE void q4_1_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    fixed_blocks(u, p, at, 20, 4);
    u->less = f16x_sub(f16x_set(0.0f), fixed_block_scales(p + 2, 20, at));
}

OQ_INLINE void q5_0_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    fixed_blocks(u, p, at, 22, 6);
    fixed_fifth(u, p, 22, 2);
}

OQ_INLINE void q5_1_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    fixed_blocks(u, p, at, 24, 8);
    fixed_fifth(u, p, 24, 4);
    u->less = f16x_sub(f16x_set(0.0f), fixed_block_scales(p + 2, 24, at));
}

OQ_INLINE void iq4_nl_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    q4_0_unit(u, p, at, less);
    fixed_looked_up(u, at);
}

OQ_INLINE void q8_0_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    OQ_UNROLL
    for (int v = 0; v < FIXED_VECTORS; v++) {
        const fx codes = fx_halves(p + 68 * v + 2, 34);
        u->w[v] = FX_SIGNED ? codes : fx_flip(codes);
    }
    fx_turn(u->w);
    u->scale = fixed_block_scales(p, 34, at);
}

/* Scales of sixteen bytes each, signed, times d. */
OQ_INLINE f16x fixed_bytes(b16 bytes, float d, const fixed_at *at)
{
    return fx_spread(f16x_mul(f16x_i8(bytes), f16x_set(d)), at->index);
}

/* Eight runs of four bits, and of two, to the low ends of bytes. */
OQ_INLINE uint64_t fixed_eight_fours(uint32_t word)
{
    uint64_t x = word;
    x = (x | x << 16) & 0x0000ffff0000ffffu;
    x = (x | x << 8) & 0x00ff00ff00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}
OQ_INLINE uint64_t fixed_eight_twos(uint16_t word)
{
    uint64_t x = word;
    x = (x | x << 24) & 0x000000ff000000ffu;
    x = (x | x << 12) & 0x000f000f000f000fu;
    return (x | x << 6) & 0x0303030303030303u;
}

OQ_INLINE void iq4_xs_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    const uint64_t codes = fixed_eight_fours(oq_block_u32(p + 4)) | fixed_eight_twos(oq_block_u16(p + 2)) << 4;
    fixed_nibbles(u, fx_load(p + 8), fx_load(p + 72));
    fixed_looked_up(u, at);
    u->scale = fixed_bytes(b16_sub(b16_eight(codes), b16_set(32)), f16_at(p), at);
}

OQ_INLINE void fixed_two_bits(fixed_unit *u, fx v)
{
    const fx three = fx_set(3);
    u->w[0] = fx_and(v, three);
    u->w[1] = fx_and(fx_down(v, 2), three);
    u->w[2] = fx_and(fx_down(v, 4), three);
    u->w[3] = fx_and(fx_down(v, 6), three);
}

OQ_INLINE void q2_k_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    const b16 both = b16_load(p);
    fixed_two_bits(u, fx_load(p + 16));
    fx_turn(u->w);
    u->scale = fixed_bytes(low_nibbles(both), f16_at(p + 80), at);
    u->less = fixed_bytes(high_nibbles(both), f16_at(p + 82), at);
}

OQ_INLINE void q3_k_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    const fx third = fx_twice(p, 4), four = fx_set(4);
    const uint32_t a = oq_block_u32(p + 96), b = oq_block_u32(p + 100), c = oq_block_u32(p + 104);
    const uint32_t low = 0x0f0f0f0fu, high = 0x30303030u;
    const uint32_t scales[] = {(a & low) | (c << 4 & high), (b & low) | (c << 2 & high), (a >> 4 & low) | (c & high),
                               (b >> 4 & low) | (c >> 2 & high)};
    fixed_two_bits(u, fx_load(p + 32));
    u->w[0] = fx_or_some(u->w[0], fx_up(third, 2), four);
    u->w[1] = fx_or_some(u->w[1], fx_up(third, 1), four);
    u->w[2] = fx_or_some(u->w[2], third, four);
    u->w[3] = fx_or_some(u->w[3], fx_down(third, 1), four);
    fx_turn(u->w);
    u->scale = fixed_bytes(b16_sub(b16_load(scales), b16_set(32)), f16_at(p + 108), at);
}

OQ_INLINE void fixed_k_scales(fixed_unit *u, const uint8_t *p, const fixed_at *at)
{
    uint64_t scale, min;
    k_scales(p + 4, &scale, &min);
    u->scale = fx_spread8(eight_bytes(scale, f16_at(p)), at->index);
    u->less = fx_spread8(eight_bytes(min, f16_at(p + 2)), at->index);
}

OQ_INLINE void q4_k_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    const fx first = fx_load(p + 16), second = fx_load(p + 80);
    u->w[0] = fx_low(first), u->w[1] = fx_high(first), u->w[2] = fx_low(second), u->w[3] = fx_high(second);
    fx_turn(u->w);
    fixed_k_scales(u, p, at);
}

OQ_INLINE void q5_k_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    const fx first = fx_load(p + 48), second = fx_load(p + 112), fifth = fx_twice(p + 16, 2),
             bit = fx_set(16);
    u->w[0] = fx_or_some(fx_low(first), fx_up(fifth, 4), bit);
    u->w[1] = fx_or_some(fx_high(first), fx_up(fifth, 3), bit);
    u->w[2] = fx_or_some(fx_low(second), fifth, bit);
    u->w[3] = fx_or_some(fx_high(second), fx_down(fifth, 1), bit);
    fx_turn(u->w);
    fixed_k_scales(u, p, at);
}

OQ_INLINE void q6_k_unit(fixed_unit *u, const uint8_t *p, const fixed_at *at, bool less)
{
    (void)less;
    const fx two = fx_set(0x30);
    OQ_UNROLL
    for (int h = 0; h < 2; h++) {
        const fx low = fx_load(p + 64 * h), high = fx_twice(p + 128 + 32 * h, 2);
        u->w[2 * h] = fx_or_some(fx_low(low), fx_up(high, 4), two);
        u->w[2 * h + 1] = fx_or_some(fx_high(low), high, two);
    }
    fx_turn(u->w);
    u->scale = fixed_bytes(b16_load(p + 192), f16_at(p + 208), at);
}

OQ_INLINE void fixed_unit_of(fixed_unit *u, const uint8_t *p, const fixed_at *at, fixed_kind kind)
{
    switch (kind) {
#define FIXED_CASE(name, unit, order, bytes, most, middle, less)                                                   \
    case FIXED_##name:                                                                                       \
        unit(u, p, at, less);                                                                                \
        break;
        FIXED_KINDS(FIXED_CASE)
#undef FIXED_CASE
    default:
        break;
    }
}

#endif
