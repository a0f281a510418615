/* linear_around_avx2.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(avx2, OQ_CPU_AVX2)
