/* operand_ref.c -- the scalar version: format/ does the arithmetic. Also the choice among the versions. */
#include "cpu/attention/operand.h"

#include "base/size.h"
#include "cpu/elementwise/elem.h"

void oq_operand_ref(const oq_operand_job *job, int64_t head, int64_t first)
{
    const int64_t d = job->head_dim, n = oq_min_i64(OQ_OPERAND_ROWS, job->x.rows - first);
    float x[OQ_OPERAND_ROWS * OQ_ATTENTION_MAX_DIM];
    uint8_t hidden[OQ_OPERAND_ROWS] = {0};
    for (int64_t i = 0; i < n; i++) {
        hidden[i] = job->seen && !job->seen[first + i];
        for (int64_t c = 0; c < d; c++) x[i * d + c] = oq_elem_get(&job->x, first + i, head * d + c);
    }
    oq_attention_quantize(job->precision, job->side, x, n, d, d, hidden);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < d; c++) oq_elem_put(&job->y, first + i, head * d + c, x[i * d + c]);
}

oq_operand_fn oq_operand_find(uint64_t features)
{
#if defined(__x86_64__)
    if (features & OQ_CPU_AVX512) return oq_operand_avx512;
    if (features & OQ_CPU_AVX2) return oq_operand_avx2;
#elif defined(__aarch64__)
    if (features & OQ_CPU_NEON) return oq_operand_neon;
#endif
    (void)features;
    return oq_operand_ref;
}
