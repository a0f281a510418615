/* linear_around_avx512bf16.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(avx512bf16, OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI | OQ_CPU_AVX512BF16)
