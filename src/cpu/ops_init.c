/* ops_init.c -- fills the table of operations: the references first, then what this machine's instructions
 * allow. */
#include "cpu/elementwise/elementwise.h"
#include "cpu/norm/norm.h"
#include "cpu/rope/rope.h"

void oq_cpu_ops_init_ref(oq_ops *out)
{
    *out = (oq_ops){
        .rms_norm = oq_rms_norm_ref,
        .layer_norm = oq_layer_norm_ref,
        .group_norm = oq_group_norm_ref,
        .group_moments = oq_group_moments_ref,
        .rope = oq_rope_ref,
        .unary = oq_unary_ref,
        .glu = oq_glu_ref,
        .modulate = oq_modulate_ref,
        .add_gated = oq_add_gated_ref,
        .axpby = oq_axpby_ref,
        .copy = oq_copy_ref,
        .embed = oq_embed_ref,
        .permute = oq_permute_ref,
        .upsample2x = oq_upsample2x_ref,
        .all_finite = oq_all_finite_ref,
    };
}

void oq_cpu_ops_init(uint64_t features, oq_ops *out)
{
    oq_cpu_ops_init_ref(out);
#if defined(__x86_64__)
    if (features & OQ_CPU_AVX2) {
        oq_elementwise_init_avx2(out);
        oq_norm_init_avx2(out);
        oq_rope_init_avx2(out);
    }
    if (features & OQ_CPU_AVX512) {
        oq_elementwise_init_avx512(out);
        oq_norm_init_avx512(out);
        oq_rope_init_avx512(out);
    }
#elif defined(__aarch64__)
    if (features & OQ_CPU_NEON) {
        oq_elementwise_init_neon(out);
        oq_norm_init_neon(out);
        oq_rope_init_neon(out);
    }
#else
    (void)features;
#endif
}

void oq_cpu_device_init(uint64_t features, oq_device *device)
{
    device->features = features;
    device->rows_walk = NULL;
    oq_cpu_ops_init(features, &device->ops);
#if defined(__x86_64__)
    if (features & OQ_CPU_AVX2) device->rows_walk = oq_rows_walk_avx2;
    if (features & OQ_CPU_AVX512) device->rows_walk = oq_rows_walk_avx512;
#elif defined(__aarch64__)
    if (features & OQ_CPU_NEON) device->rows_walk = oq_rows_walk_neon;
#endif
}
