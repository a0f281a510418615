/* attention_operand.h -- what runtime attention quantization does to Q, K and V: rotation, blocks, codes. The scalar
 * truth for every backend; a quantized attention is the plain one over the values that come out of here. */
#ifndef OQ_FORMAT_ATTENTION_OPERAND_H
#define OQ_FORMAT_ATTENTION_OPERAND_H

#include "format/float4.h"

typedef enum oq_attention_precision {
    OQ_ATTENTION_PLAIN, /* operands as they are */
    OQ_ATTENTION_FP8,   /* e4m3 under one power of two per block: Q 128 rows, K and V 256 rows, by 128 columns */
    OQ_ATTENTION_MXFP8, /* e4m3 under one per 32 values: along the columns of Q and K, along the rows of V */
    OQ_ATTENTION_MXFP4, /* e2m1 likewise */
    OQ_N_ATTENTION_PRECISIONS
} oq_attention_precision;

/* "plain", "fp8", "mxfp8", "mxfp4" */
const char *oq_attention_precision_name(oq_attention_precision p);

typedef enum oq_attention_side { OQ_SIDE_Q, OQ_SIDE_K, OQ_SIDE_V } oq_attention_side;

typedef struct oq_attention_block { /* values that share a scale, within one head */
    int64_t rows, cols;
    bool e2m1;         /* else e4m3 */
    oq_e8m0_rule rule; /* scale = 2^X by this rule */
} oq_attention_block;
oq_attention_block oq_attention_block_of(oq_attention_precision p, oq_attention_side side);

enum { OQ_ATTENTION_MAX_DIM = 256 };
/* Can heads of this width be quantized? A power of two, 16 to 256: the rotation is a Hadamard matrix. */
bool oq_attention_dim_ok(int64_t head_dim);

/* Row i of Q or K becomes x . diag(signs) . H_d / sqrt(d), H by Sylvester; the signs are torch's CPU generator at seed
 * 425500. Both sides get the same, so q . k stays. Sums of pairs, distance 1 first. */
float oq_attention_sign(int64_t i); /* +1 or -1, i in [0, 256) */
void oq_attention_rotate_row(float *x, int64_t head_dim);

/* Q, K or V of one head, [rows, head_dim] at distance ld, in place: rotated (not V), then each value replaced by
 * code * scale. hidden: [rows], 1 where nobody sees the row: it counts for no scale and becomes zero; NULL: none. A block
 * with a value that is not finite becomes NaN. */
void oq_attention_quantize(oq_attention_precision p, oq_attention_side side, float *x, int64_t rows,
                           int64_t ld, int64_t head_dim, const uint8_t *hidden);

#endif
