/* rope.h -- rotary position embedding, one symbol per instruction set; ops_init.c chooses. */
#ifndef OQ_CPU_ROPE_H
#define OQ_CPU_ROPE_H

#include "cpu/cpu.h"

void oq_rope_ref(oq_device *d, const oq_rope_args *a);

/* Puts the fast versions over what the table holds. */
void oq_rope_init_avx2(oq_ops *ops);
void oq_rope_init_avx512(oq_ops *ops);
void oq_rope_init_neon(oq_ops *ops);

#endif
