/* attention.h -- the attention kernels of this backend; attention_list.c orders them. */
#ifndef OQ_CPU_ATTENTION_H
#define OQ_CPU_ATTENTION_H

#include "cpu/cpu.h"

#include "cpu/elementwise/elem.h"

extern const oq_attention_kernel oq_attention_online, oq_attention_ref, oq_attention_avx2, oq_attention_avx512,
    oq_attention_avx512bf16, oq_attention_amx, oq_attention_neon, oq_attention_bf16;

/* May pairs of q, k and v be multiplied as they are? */
static inline bool oq_attention_all_bf16(const oq_attention_args *a)
{
    return oq_elem_is_bf16(&a->q) && oq_elem_is_bf16(&a->k) && oq_elem_is_bf16(&a->v);
}

/* The device's first kernel of the list for a plain spec; block_map: of those that honour one. NULL: none accepts. */
const oq_attention_kernel *oq_cpu_attention_plain(const oq_device *device, const oq_attention_spec *spec,
                                                  bool block_map);

#endif
