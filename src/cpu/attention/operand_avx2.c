/* operand_avx2.c -- operand_simd.h compiled for AVX2 + FMA. */
#if defined(__x86_64__)
#include "cpu/attention/operand_simd.h"

void oq_operand_avx2(const oq_operand_job *job, int64_t head, int64_t first)
{
    operand(job, head, first);
}
#endif
