/* linear.h -- the kernels that linear_list.c orders. File = symbol without oq_. */
#ifndef OQ_CPU_LINEAR_LINEAR_H
#define OQ_CPU_LINEAR_LINEAR_H

#include "cpu/cpu.h"

extern const oq_linear_kernel oq_linear_wany_aany_ref;

#endif
