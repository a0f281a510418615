/* linear_list.c -- every kernel of y = x W^T + b on the CPU, fastest first, the reference last. */
#include "cpu/linear/linear.h"

const oq_linear_kernel *const oq_cpu_linear_list[] = {
#if defined(__x86_64__)
    &oq_linear_wi8_ai8_amx,
    &oq_linear_wbf16_abf16_amx,
    &oq_linear_wfp8_abf16_amx,
    &oq_linear_wi8_abf16_amx,
    &oq_linear_wfp8_afp8_amx,
    &oq_linear_wi8_ai8_avx512vnni,
    &oq_linear_wi8_ai8_avxvnni,
    &oq_linear_wi8_ai8_avx2,
    &oq_linear_wbf16_abf16_avx512bf16,
    &oq_linear_wfp8_abf16_avx512bf16,
    &oq_linear_wfp8_afp8_avx512bf16,
    &oq_linear_wi8_abf16_avx512bf16,
    &oq_linear_wf32_af32_avx512,
    &oq_linear_wbf16_af32_avx512,
    &oq_linear_wfp8_af32_avx512,
    &oq_linear_wfp8_afp8_avx512,
    &oq_linear_wi8_af32_avx512,
    &oq_linear_wf32_af32_avx2,
    &oq_linear_wbf16_af32_avx2,
    &oq_linear_wfp8_af32_avx2,
    &oq_linear_wfp8_afp8_avx2,
    &oq_linear_wi8_af32_avx2,
    &oq_linear_wany_abf16_avx512bf16,
    &oq_linear_wany_af32_avx512,
    &oq_linear_wany_af32_avx2,
    &oq_linear_around_avx512bf16,
    &oq_linear_around_avx512vnni,
    &oq_linear_around_avx512,
    &oq_linear_around_avxvnni,
    &oq_linear_around_avx2,
#endif
    &oq_linear_wany_aany_ref,
    NULL,
};
