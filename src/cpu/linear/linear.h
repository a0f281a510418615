/* linear.h -- the kernels that linear_list.c orders. File = symbol without oq_. */
#ifndef OQ_CPU_LINEAR_LINEAR_H
#define OQ_CPU_LINEAR_LINEAR_H

#include "cpu/cpu.h"

extern const oq_linear_kernel oq_linear_wany_aany_ref;
/* The canonical planes in what oq_linear_wany_aany_ref packed. */
oq_planes oq_linear_planes(const oq_linear_spec *spec, const void *packed);

/* defined where the compiler targets the processor that their suffix belongs to */
extern const oq_linear_kernel oq_linear_wf32_af32_avx512;
extern const oq_linear_kernel oq_linear_wbf16_af32_avx512;
extern const oq_linear_kernel oq_linear_wfp8_af32_avx512;
extern const oq_linear_kernel oq_linear_wfp8_afp8_avx512;
extern const oq_linear_kernel oq_linear_wi8_af32_avx512;
extern const oq_linear_kernel oq_linear_wf32_af32_avx2;
extern const oq_linear_kernel oq_linear_wbf16_af32_avx2;
extern const oq_linear_kernel oq_linear_wfp8_af32_avx2;
extern const oq_linear_kernel oq_linear_wfp8_afp8_avx2;
extern const oq_linear_kernel oq_linear_wi8_af32_avx2;
extern const oq_linear_kernel oq_linear_wany_abf16_avx512bf16;
extern const oq_linear_kernel oq_linear_wany_ai16_avx512vnni, oq_linear_wany_ai16_avxvnni, oq_linear_wany_ai16_avx2,
    oq_linear_wany_ai16_dotprod;
extern const oq_linear_kernel oq_linear_wcode_ai16_avx512vnni;
extern const oq_linear_kernel oq_linear_wany_af32_avx512;
extern const oq_linear_kernel oq_linear_wany_af32_avx2;
extern const oq_linear_kernel oq_linear_wbf16_abf16_avx512bf16;
extern const oq_linear_kernel oq_linear_wfp8_abf16_avx512bf16;
extern const oq_linear_kernel oq_linear_wi8_abf16_avx512bf16;
extern const oq_linear_kernel oq_linear_wfp8_afp8_avx512bf16;
extern const oq_linear_kernel oq_linear_wbf16_abf16_amx;
extern const oq_linear_kernel oq_linear_wfp8_abf16_amx;
extern const oq_linear_kernel oq_linear_wi8_abf16_amx;
extern const oq_linear_kernel oq_linear_wfp8_afp8_amx;
extern const oq_linear_kernel oq_linear_wi8_ai8_amx;
extern const oq_linear_kernel oq_linear_wany_abf16_amx;
extern const oq_linear_kernel oq_linear_wi8_ai8_avx512vnni;
extern const oq_linear_kernel oq_linear_wi8_ai8_avxvnni;
extern const oq_linear_kernel oq_linear_wi8_ai8_avx2;
extern const oq_linear_kernel oq_linear_wf32_af32_neon, oq_linear_wbf16_af32_neon, oq_linear_wfp8_af32_neon,
    oq_linear_wfp8_afp8_neon, oq_linear_wi8_af32_neon, oq_linear_wany_af32_neon;
extern const oq_linear_kernel oq_linear_wi8_ai8_neon, oq_linear_wi8_ai8_dotprod, oq_linear_wi8_ai8_i8mm;
extern const oq_linear_kernel oq_linear_wbf16_abf16_bf16, oq_linear_wfp8_abf16_bf16, oq_linear_wfp8_afp8_bf16,
    oq_linear_wi8_abf16_bf16, oq_linear_wany_abf16_bf16;

/* Products with what their layers do around them: linear_around.h. */
extern const oq_linear_kernel oq_linear_around_avx512bf16, oq_linear_around_avx512vnni, oq_linear_around_avx512,
    oq_linear_around_avxvnni, oq_linear_around_avx2, oq_linear_around_bf16, oq_linear_around_i8mm,
    oq_linear_around_dotprod, oq_linear_around_neon;

#endif
