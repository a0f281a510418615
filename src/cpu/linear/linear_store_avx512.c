/* linear_store_avx512.c -- linear_store_simd.h compiled for AVX-512. */
#if defined(__x86_64__)
#include "cpu/linear/linear_store_simd.h"

void oq_panel_store_avx512(const oq_panel_job *job, const void *c, const void *second, int64_t panel,
                           int64_t row, int64_t count)
{
    store_panel(job, c, second, panel, row, count);
}
#endif
