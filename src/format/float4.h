/* float4.h -- numbers of four bits and their scales, one at a time and in packed rows: e2m1, the code tables NF4 and
 * FP4, powers of two (E8M0). Packed rows hold two codes a byte, the first in the low nibble. */
#ifndef OQ_FORMAT_FLOAT4_H
#define OQ_FORMAT_FLOAT4_H

#include "format/format.h"

extern const float oq_e2m1_table[16]; /* 0 .5 1 1.5 2 3 4 6, then the same with the sign */
extern const float oq_nf4_table[16];  /* ascending, -1 .. 1 */
extern const float
    oq_fp4_table[16]; /* twelfths: 0 1/192 2/3 1 1/3 1/2 1/6 1/4, then the same with the sign; 8 is +0 */
extern const float oq_int4_table[16]; /* 0 .. 15 */

/* One e2m1 code a byte: activations. It is not the type of anything in files. */
extern const oq_dtype oq_dtype_f4_e2m1;

/* Nearest, ties to the even code; |x| > 6 and infinities saturate; the sign of zero stays; NaN is 7. */
uint8_t oq_e2m1_from_f32(float x);
/* x in [-1, 1] to the nearest entry; a tie goes to the lower value. */
uint8_t oq_nf4_from_f32(float x);
/* The same by magnitude; the sign is bit 3. */
uint8_t oq_fp4_from_f32(float x);
void oq_nf4_row_from_f32(uint8_t *codes, const float *x, int64_t n);
void oq_fp4_row_from_f32(uint8_t *codes, const float *x, int64_t n);

/* 2^(byte - 127); 255 is NaN. */
float oq_e8m0_to_f32(uint8_t byte);
/* 2^(127 - byte), the exact reciprocal, for bytes below 255. */
float oq_e8m0_inverse(uint8_t byte);

/* How a power of two is chosen for values of largest magnitude amax: the smallest X with amax / 2^X <= limit, or
 * < limit. */
typedef struct oq_e8m0_rule {
    float limit;
    bool below; /* < rather than <= */
} oq_e8m0_rule;
extern const oq_e8m0_rule oq_e8m0_e4m3_ceil; /* <= 448: nothing saturates */
extern const oq_e8m0_rule
    oq_e8m0_e2m1_floor; /* < 8: floor(log2 amax) - 2, as OCP writes it; up to a quarter saturates */
extern const oq_e8m0_rule oq_e8m0_e2m1_q725; /* <= 7.25 */
/* The rule of activations of type `act` under such a scale (oq_act_is_mx). */
oq_e8m0_rule oq_act_mx_rule(oq_act_scale scale, const oq_dtype *act);
/* The byte, within [0, 254]; 255 for an amax that is not finite. */
uint8_t oq_e8m0_choose(float amax, oq_e8m0_rule rule);

/* dst[i] = table[code first + i]. */
void oq_code4_to_f32(float *dst, const uint8_t *packed, int64_t first, int64_t count, const float *table);
/* Stores codes as numbers first, first + 1, ...; what is stored in ascending order is whole: an even code clears its
 * neighbour. */
void oq_code4_pack(uint8_t *packed, int64_t first, const uint8_t *codes, int64_t count);

#endif
