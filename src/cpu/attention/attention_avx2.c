/* attention_avx2.c -- attention_simd.h compiled for AVX2 + FMA. */
#if defined(__x86_64__)
#include "cpu/attention/attention_simd.h"

const oq_attention_kernel oq_attention_avx2 = {
    .name = "attention_avx2",
    .need = OQ_CPU_AVX2,
    .accepts = accepts,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
#endif
