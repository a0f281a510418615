/* conv2d_list.c -- fastest first, reference last. */
#include "cpu/conv2d/conv2d.h"

const oq_conv2d_kernel *const oq_cpu_conv2d_list[] = {
#if defined(__x86_64__)
    &oq_conv2d_wbf16_amx,
    &oq_conv2d_wbf16_avx512bf16,
    &oq_conv2d_winograd_avx512,
    &oq_conv2d_avx512,
    &oq_conv2d_winograd_avx2,
    &oq_conv2d_avx2,
#elif defined(__aarch64__)
    &oq_conv2d_wbf16_bf16, &oq_conv2d_winograd_neon,
    &oq_conv2d_neon,
#endif
    &oq_conv2d_ref,
    NULL,
};
