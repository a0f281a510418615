/* linear_store_neon.c -- linear_store_simd.h compiled for NEON. */
#include "cpu/linear/linear_store_simd.h"

void oq_panel_store_neon(const oq_panel_job *job, const void *c, const void *second, int64_t panel,
                         int64_t row, int64_t count)
{
    store_panel(job, c, second, panel, row, count);
}
