/* operand.h -- Q, K and V of a quantized attention: the values of format/attention_operand.h as bf16,
 * which holds each of them exactly (four significant bits under a power of two). */
#ifndef OQ_CPU_OPERAND_H
#define OQ_CPU_OPERAND_H

#include "cpu/cpu.h"

enum { OQ_OPERAND_ROWS = 256 }; /* of one task: whole blocks of every precision */

typedef struct oq_operand_job {
    oq_attention_precision precision;
    oq_attention_side side;
    oq_tensor x, y;        /* [rows, n_heads * head_dim]; y is BF16 */
    int64_t head_dim;
    const uint8_t *seen;   /* [rows], 0: nobody sees the row; NULL: all seen. K and V alone */
} oq_operand_job;

/* Rows [first, first + OQ_OPERAND_ROWS) of one head, the same bits in every version. */
typedef void (*oq_operand_fn)(const oq_operand_job *job, int64_t head, int64_t first);
void oq_operand_ref(const oq_operand_job *job, int64_t head, int64_t first);
void oq_operand_avx2(const oq_operand_job *job, int64_t head, int64_t first);
void oq_operand_avx512(const oq_operand_job *job, int64_t head, int64_t first);
void oq_operand_neon(const oq_operand_job *job, int64_t head, int64_t first);
oq_operand_fn oq_operand_find(uint64_t features);

#endif
