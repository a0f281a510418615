/* attention_blocks.h -- which blocks of keys a block of queries sees in block-sparse attention. */
#ifndef OQ_CPU_ATTENTION_BLOCKS_H
#define OQ_CPU_ATTENTION_BLOCKS_H

#include "cpu/cpu.h"

/* Bytes of the map and of what choosing needs besides, for n rows of Q and of K. */
size_t oq_attention_blocks_map_bytes(const oq_attention_spec *spec, int64_t n);
size_t oq_attention_blocks_scratch_bytes(const oq_attention_spec *spec, int64_t n);

/* Fills map [n_heads, blocks, blocks]. Rows that the mask hides take no part in the means; a block of keys without a
 * seen row is never chosen before one that has some. */
void oq_attention_blocks_choose(oq_pool *pool, const oq_attention_args *args, uint8_t *map, void *scratch);

/* How many of n blocks each block of queries sees: ceil((1 - sparsity) n), at least one. */
int64_t oq_attention_blocks_kept(double sparsity, int64_t n);

#endif
