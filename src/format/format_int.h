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
size_t oq_int_zero_row_bytes(int bits, int64_t groups);
/* Zero point of a group of a row of plane ZERO; codes of `bits`. */
unsigned oq_int_zero(const void *plane, int bits, int64_t row, int64_t group, int64_t groups);
void oq_int_put_zero(void *plane, int bits, int64_t row, int64_t group, int64_t groups, unsigned zero);
/* Code number i of a row, whose bits there are zero. */
void oq_code_put(uint8_t *row, int64_t i, int bits, uint32_t code);

#endif
