/* linear_around_bf16.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(bf16, OQ_CPU_NEON | OQ_CPU_DOTPROD | OQ_CPU_I8MM | OQ_CPU_BF16)
