/* operand_neon.c -- operand_simd.h compiled for NEON. */
#include "cpu/attention/operand_simd.h"

void oq_operand_neon(const oq_operand_job *job, int64_t head, int64_t first)
{
    operand(job, head, first);
}
