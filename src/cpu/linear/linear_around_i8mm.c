/* linear_around_i8mm.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(i8mm, OQ_CPU_NEON | OQ_CPU_DOTPROD | OQ_CPU_I8MM)
