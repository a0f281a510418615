/* attention.h -- the attention kernels of this backend; attention_list.c orders them. */
#ifndef OQ_CPU_ATTENTION_H
#define OQ_CPU_ATTENTION_H

#include "cpu/cpu.h"

extern const oq_attention_kernel oq_attention_ref, oq_attention_avx2, oq_attention_avx512;

#endif
