/* norm.h -- the norms of oq_ops, one symbol per instruction set; ops_init.c chooses. */
#ifndef OQ_CPU_NORM_H
#define OQ_CPU_NORM_H

#include "cpu/cpu.h"

void oq_rms_norm_ref(oq_device *d, const oq_norm_args *a);
void oq_layer_norm_ref(oq_device *d, const oq_norm_args *a);
void oq_group_norm_ref(oq_device *d, const oq_norm_args *a);
void oq_group_moments_ref(oq_device *d, oq_tensor x, int64_t group, double *moments);

typedef struct oq_moments { /* of n values: mean, sum of squares about it */
    double n, mean, squares;
} oq_moments;

/* Group g of an image out of those of its pieces. */
oq_moments oq_moments_join(const oq_norm_args *a, int64_t g);

/* Puts the fast versions over what the table holds. */
void oq_norm_init_avx2(oq_ops *ops);
void oq_norm_init_avx512(oq_ops *ops);
void oq_norm_init_neon(oq_ops *ops);

/* Rows [first, end) through the steps of `a`, on this thread: for products that do them on the way. */
void oq_rows_walk_avx2(const oq_rows_args *a, int64_t first, int64_t end);
void oq_rows_walk_avx512(const oq_rows_args *a, int64_t first, int64_t end);
void oq_rows_walk_neon(const oq_rows_args *a, int64_t first, int64_t end);

#endif
