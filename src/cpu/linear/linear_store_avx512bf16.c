/* linear_store_avx512bf16.c -- linear_store_simd.h with the instruction that rounds to bf16, for engines whose products take
 * subnormal numbers as zero anyway. */
#if defined(__x86_64__)
#define STORE_PAIRS 1
#include "cpu/linear/linear_store_simd.h"

void oq_panel_store_avx512bf16(const oq_panel_job *job, const void *c, const void *second, int64_t panel,
                               int64_t row, int64_t count)
{
    if (is_plain(job))
        store_plain(job, c, panel, row, count);
    else
        store_panel(job, c, second, panel, row, count);
}
#endif
