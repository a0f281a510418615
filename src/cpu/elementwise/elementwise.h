/* elementwise.h -- the operations of oq_ops that are neither norm nor rope, one symbol per instruction set.
 */
#ifndef OQ_CPU_ELEMENTWISE_H
#define OQ_CPU_ELEMENTWISE_H

#include "cpu/cpu.h"

void oq_unary_ref(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor x);
void oq_glu_ref(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor a, oq_tensor b);
void oq_modulate_ref(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift, float one);
void oq_add_gated_ref(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor gate, oq_tensor r);
void oq_axpby_ref(oq_device *d, oq_tensor y, float a, oq_tensor x, float b);
void oq_copy_ref(oq_device *d, oq_tensor y, oq_tensor x);
void oq_embed_ref(oq_device *d, oq_tensor y, oq_tensor table, const int32_t *ids);
void oq_permute_ref(oq_device *d, oq_tensor y, oq_tensor x, const int64_t dim[6], const int64_t ys[6],
                    const int64_t xs[6]);
void oq_upsample2x_ref(oq_device *d, oq_tensor y, oq_tensor x, int64_t batch, int64_t h, int64_t w);
int oq_all_finite_ref(oq_device *d, oq_tensor x);

/* Puts the fast versions over what the table holds. */
void oq_elementwise_init_avx2(oq_ops *ops);
void oq_elementwise_init_avx512(oq_ops *ops);
void oq_elementwise_init_neon(oq_ops *ops);

#endif
