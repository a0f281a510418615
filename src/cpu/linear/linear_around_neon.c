/* linear_around_neon.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(neon, OQ_CPU_NEON)
