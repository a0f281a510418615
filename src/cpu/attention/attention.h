/* attention.h -- the attention kernels of this backend; attention_list.c orders them. */
#ifndef OQ_CPU_ATTENTION_H
#define OQ_CPU_ATTENTION_H

#include "cpu/cpu.h"

extern const oq_attention_kernel oq_attention_online, oq_attention_ref, oq_attention_avx2, oq_attention_avx512;

/* The device's first kernel of the list for a plain spec; block_map: of those that honour one. NULL: none accepts. */
const oq_attention_kernel *oq_cpu_attention_plain(const oq_device *device, const oq_attention_spec *spec,
                                                  bool block_map);

#endif
