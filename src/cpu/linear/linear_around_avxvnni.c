/* linear_around_avxvnni.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(avxvnni, OQ_CPU_AVX2 | OQ_CPU_AVXVNNI)
