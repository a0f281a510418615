/* format_int.h -- integer formats in groups from within: for who chooses codes or scales otherwise than by the nearest
 * number. */
#ifndef OQ_FORMAT_FORMAT_INT_H
#define OQ_FORMAT_FORMAT_INT_H

#include "format/format.h"

typedef struct oq_int_grid { /* the numbers of one group: (code - zero) * scale */
    float scale; /* 0: all numbers are 0; NaN: the group held one that is not finite */
    float zero;  /* whole, within the codes; half of them where the format has no plane for it */
    float inverse; /* of the scale, as encode multiplies by it */
} oq_int_grid;

/* The grid that encode chooses for x[count]; f->int_bits is set. */
oq_int_grid oq_int_fit(const oq_format *f, const float *x, int64_t count);
/* A grid whose scale was changed: the scale as the format holds it, and its inverse. f32 scales stay as they are. */
void oq_int_hold(const oq_format *f, oq_int_grid *g);
/* Scale number i of plane SCALE. */
void oq_int_put_scale(const oq_format *f, void *plane, int64_t i, float scale);
/* codes[count] of the nearest numbers of the grid, one a byte. */
void oq_int_codes(const oq_format *f, const oq_int_grid *g, uint8_t *codes, const float *x, int64_t count);
/* The number of a code. */
static inline float oq_int_value(const oq_int_grid *g, uint8_t code)
{
    return ((float)code - g->zero) * g->scale;
}
/* Bits of a zero point at rest: a row's stand in a stream, as codes do; those of codes of 4 bits take a byte, as kernels read
 * them in vectors. */
static inline int oq_int_zero_bits(int bits)
{
    return bits < 4 ? bits : 8;
}
/* No code of 2, 4 or 8 bits lies in two bytes; others may. */
static inline uint32_t oq_int_code(const uint8_t *row, int64_t i, int bits)
{
    const int64_t bit = i * bits;
    const int shift = (int)(bit & 7);
    uint32_t word = row[bit >> 3];
    if (shift + bits > 8) word |= (uint32_t)row[(bit >> 3) + 1] << 8;
    return word >> shift & ((1u << bits) - 1);
}

static inline size_t oq_int_zero_row_bytes(int bits, int64_t groups)
{
    const size_t zero_bits = (size_t)oq_int_zero_bits(bits), whole = (size_t)groups / 8,
                 rest = (size_t)groups % 8;
    return whole * zero_bits +
           (rest * zero_bits + 7) / 8; /* no product is larger than the bytes themselves */
}

/* Zero point of a group of a row of plane ZERO; codes of `bits`. Here, because the plugin for CUDA has no other part of this
 * room. */
static inline unsigned oq_int_zero(const void *plane, int bits, int64_t row, int64_t group, int64_t groups)
{
    const uint8_t *const at = (const uint8_t *)plane + (size_t)row * oq_int_zero_row_bytes(bits, groups);
    return oq_int_code(at, group, oq_int_zero_bits(bits));
}
void oq_int_put_zero(void *plane, int bits, int64_t row, int64_t group, int64_t groups, unsigned zero);
/* Code number i of a row, whose bits there are zero. */
void oq_code_put(uint8_t *row, int64_t i, int bits, uint32_t code);

#endif
