/* model_attention_avx512bf16.c -- attention_amx.c over the model of its tile instructions, and its weights by themselves. */
#define OQ_AMX_MODEL     1
#define oq_attention_amx oq_attention_amx_model
#include "cpu/attention/attention_amx.c"

#if defined(__x86_64__)
#include "kernels/kcheck.h"

void kc_attention_weights(const float *s, uint16_t *p)
{
    float pairs[TILE_ROWS * TILE_COLS / 2];
    const square of = {.s = s, .p = pairs};
    soften_rows(v_set(1.0f), &of, 0, TILE_ROWS, UINT32_MAX);
    for (int i = 0; i < TILE_ROWS * TILE_COLS; i++) { /* a pair: of a column and of the one 16 further on */
        const int row = i / TILE_COLS, col = i % TILE_COLS;
        memcpy(p + i, (const uint16_t *)(const void *)(pairs + row * 16 + col % 16) + col / 16, sizeof *p);
    }
}
#endif
