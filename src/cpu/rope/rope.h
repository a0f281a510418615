/* rope.h -- rotary position embedding, one symbol per instruction set; ops_init.c chooses. */
#ifndef OQ_CPU_ROPE_H
#define OQ_CPU_ROPE_H

#include "cpu/cpu.h"

void oq_rope_ref(oq_device *d, const oq_rope_args *a);

#endif
