/* linear_around_avx512vnni.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(avx512vnni, OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI)
