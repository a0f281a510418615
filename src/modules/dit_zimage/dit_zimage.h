/* dit_zimage.h -- the Z-Image transformer: one picture and one caption through refiners and joint layers.
 * See MODEL.md. */
#ifndef OQ_MODULES_DIT_ZIMAGE_H
#define OQ_MODULES_DIT_ZIMAGE_H

#include "nn/module.h"

enum { OQ_DIT_ZIMAGE_PATCH = 2, OQ_DIT_ZIMAGE_AXES = 3 };

typedef struct oq_dit_zimage_block {
    oq_vector attention_norm1, attention_norm2, ffn_norm1, ffn_norm2, norm_q, norm_k;
    oq_linear qkv, out, w13, w2;
    oq_linear modulation; /* kernel-less in the context refiner: has_modulation false */
    bool has_modulation;
    oq_attention attention;
} oq_dit_zimage_block;

typedef struct oq_dit_zimage {
    int64_t dim, n_layers, n_refiners, n_heads, n_kv_heads, head_dim, ffn_dim, in_channels, caption_dim;
    int64_t patch_dim, t_dim; /* elements of one patch; width of the timestep embedding */
    int64_t axes_dims[OQ_DIT_ZIMAGE_AXES];
    double eps, rope_theta, t_scale;
    bool qk_norm;
    oq_vector x_pad, cap_pad, cap_norm;
    oq_linear x_embedder, cap_embedder, t_mlp0, t_mlp2, final_modulation, final_linear;
    oq_dit_zimage_block *noise_refiner, *context_refiner, *layers;
} oq_dit_zimage;

/* What does not change from step to step: a refined caption and the rotary tables of caption and picture. */
typedef struct oq_dit_zimage_condition {
    int64_t h, w;                                                 /* latent size */
    int64_t n_image, n_image_padded, n_caption, n_caption_padded; /* tokens */
    oq_tensor context;                                            /* [n_caption_padded, dim] */
    oq_tensor cos, sin; /* F32 [n_image_padded + n_caption_padded, head_dim/2], image first */
} oq_dit_zimage_condition;

/* Takes the condition's tensors from scratch; they live as long as the caller's mark. */
oq_status oq_dit_zimage_condition_new(oq_exec *ex, const oq_dit_zimage *s, int64_t n_caption, int64_t h,
                                      int64_t w, oq_dit_zimage_condition *out);
/* Fills it. caption: [n_caption, caption_dim]. trace: key prefix or NULL. */
oq_status oq_dit_zimage_condition_run(oq_exec *ex, const oq_dit_zimage *s, oq_tensor caption,
                                      const oq_dit_zimage_condition *c, const char *trace);

/* What follows from the timesteps alone: one product of all steps for each layer, before the first step. */
typedef struct oq_dit_zimage_steps {
    int64_t n;
    oq_tensor t;           /* [n, t_dim]: embeddings */
    oq_tensor modulation;  /* [modulated blocks * n, 4 dim], block after block: 1 + scale, tanh(gate) of attention and FFN */
    oq_tensor final_scale; /* [n, dim]: 1 + scale */
    oq_tensor now, final_now; /* [modulated blocks, 4 dim], [1, dim]: of the step that runs */
    oq_tensor ones;        /* [1, dim]: 1 + scale is rounded like an operation of its own */
} oq_dit_zimage_steps;

/* As the condition's: the tensors from scratch, then their values. t: [n] progress in [0, 1], 1 - sigma. trace: prefixes of
 * all who begin with the first step; n_trace 0: none. */
oq_status oq_dit_zimage_steps_new(oq_exec *ex, const oq_dit_zimage *s, int64_t n, oq_dit_zimage_steps *out);
oq_status oq_dit_zimage_steps_run(oq_exec *ex, const oq_dit_zimage *s, const float *t, const oq_dit_zimage_steps *steps,
                                  const char *const *trace, int64_t n_trace);

/* x, y: [in_channels, h * w] of the compute type; step: one of `steps`. trace: key prefix or NULL. */
oq_status oq_dit_zimage_forward(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_condition *c,
                                const oq_dit_zimage_steps *steps, int64_t step, oq_tensor x, oq_tensor y,
                                const char *trace);

extern const oq_module_type oq_module_dit_zimage;

#endif
