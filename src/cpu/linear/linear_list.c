/* linear_list.c -- every kernel of y = x W^T + b on the CPU, fastest first, the reference last. */
#include "cpu/linear/linear.h"

const oq_linear_kernel *const oq_cpu_linear_list[] = {
    &oq_linear_wany_aany_ref,
    NULL,
};
