/* conv2d_list.c -- fastest first, reference last. */
#include "cpu/conv2d/conv2d.h"

const oq_conv2d_kernel *const oq_cpu_conv2d_list[] = {
    &oq_conv2d_ref,
    NULL,
};
