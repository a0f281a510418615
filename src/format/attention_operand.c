/* attention_operand.c -- the scalar truth of quantized attention operands. */
#include "format/attention_operand.h"

#include "format/float8.h"

#include <math.h>

const char *oq_attention_precision_name(oq_attention_precision p)
{
    static const char *const names[OQ_N_ATTENTION_PRECISIONS] = {"plain", "fp8", "mxfp8", "mxfp4"};
    return names[p];
}

oq_attention_block oq_attention_block_of(oq_attention_precision p, oq_attention_side side)
{
    const bool v = side == OQ_SIDE_V;
    if (p == OQ_ATTENTION_FP8)
        return (oq_attention_block){side == OQ_SIDE_Q ? 128 : 256, 128, false, oq_e8m0_e4m3_ceil};
    const bool e2m1 = p == OQ_ATTENTION_MXFP4;
    return (oq_attention_block){v ? 32 : 1, v ? 1 : 32, e2m1, e2m1 ? oq_e8m0_e2m1_floor : oq_e8m0_e4m3_ceil};
}

bool oq_attention_dim_ok(int64_t head_dim)
{
    return head_dim >= 16 && head_dim <= OQ_ATTENTION_MAX_DIM && (head_dim & (head_dim - 1)) == 0;
}

/* ---- rotation ------------------------------------------------------------------------------------------ */

/* Bit i is draw i of torch.randint(0, 2, ...) at seed 425500; test_attention_operand draws them again. */
static const uint32_t sign_bits[OQ_ATTENTION_MAX_DIM / 32] = {
    0x0f2f19a7u, 0x7ba01823u, 0xe422526eu, 0xa656e9dfu, 0x0ce1306eu, 0xecf5a7cdu, 0xbe57782du, 0x1a7a879fu,
};

float oq_attention_sign(int64_t i)
{
    return sign_bits[i / 32] >> (i % 32) & 1 ? 1.0f : -1.0f;
}

void oq_attention_rotate_row(float *x, int64_t head_dim)
{
    const float unit = 1.0f / sqrtf((float)head_dim);
    for (int64_t i = 0; i < head_dim; i++) x[i] *= oq_attention_sign(i) * unit;
    for (int64_t h = 1; h < head_dim; h *= 2)
        for (int64_t i = 0; i < head_dim; i += 2 * h)
            for (int64_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

typedef struct area { /* one block of one head */
    float *x;
    int64_t ld, rows, cols;
    const uint8_t *hidden; /* of its rows */
} area;

static bool is_hidden(const area *a, int64_t row)
{
    return a->hidden && a->hidden[row];
}

/* Largest magnitude; infinity if any value is not finite. */
static float largest(const area *a)
{
    float max = 0;
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t j = 0; j < a->cols && !is_hidden(a, i); j++) {
            const float m = fabsf(a->x[i * a->ld + j]);
            if (!isfinite(m)) return INFINITY;
            if (m > max) max = m;
        }
    return max;
}

static void quantize_area(const area *a, const oq_attention_block *block)
{
    const uint8_t byte = oq_e8m0_choose(largest(a), block->rule);
    const float scale = oq_e8m0_to_f32(byte), inverse = byte == 255 ? NAN : oq_e8m0_inverse(byte);
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t j = 0; j < a->cols; j++) {
            float *x = &a->x[i * a->ld + j];
            if (is_hidden(a, i)) {
                *x = 0;
            } else {
                const float y = *x * inverse;
                *x = scale *
                     (block->e2m1 ? oq_e2m1_table[oq_e2m1_from_f32(y)] : oq_e4m3_to_f32(oq_e4m3_from_f32(y)));
            }
        }
}

void oq_attention_quantize(oq_attention_precision p, oq_attention_side side, float *x, int64_t rows,
                           int64_t ld, int64_t head_dim, const uint8_t *hidden)
{
    if (p == OQ_ATTENTION_PLAIN) return;
    const oq_attention_block block = oq_attention_block_of(p, side);
    for (int64_t i = 0; i < rows && side != OQ_SIDE_V; i++) oq_attention_rotate_row(x + i * ld, head_dim);
    for (int64_t i = 0; i < rows; i += block.rows)
        for (int64_t j = 0; j < head_dim; j += block.cols) {
            const area a = {.x = x + i * ld + j,
                            .ld = ld,
                            .rows = rows - i < block.rows ? rows - i : block.rows,
                            .cols = head_dim - j < block.cols ? head_dim - j : block.cols,
                            .hidden = hidden ? hidden + i : NULL};
            quantize_area(&a, &block);
        }
}
