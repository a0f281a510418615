/* linear_around_dotprod.c -- what a layer does around its product, around the kernels of this level. */
#include "cpu/linear/linear_around.h"

OQ_AROUND_KERNEL(dotprod, OQ_CPU_NEON | OQ_CPU_DOTPROD)
