/* dit_flux1.h -- the FLUX.1 transformer (dev, schnell): blocks of two streams, then blocks of one. See MODEL.md. */
#ifndef OQ_MODULES_DIT_FLUX1_H
#define OQ_MODULES_DIT_FLUX1_H

#include "modules/dit_parts.h"
#include "nn/module.h"

/* AHEAD: steps whose modulations are made by one product, since reading its weights (6.4 GB published) is all it costs */
enum { OQ_DIT_FLUX1_PATCH = 2, OQ_DIT_FLUX1_AXES = 3, OQ_DIT_FLUX1_AHEAD = 8 };

typedef struct oq_dit_flux1_single {
    oq_linear mod, qkv, mlp, out; /* out of [attention | gelu(mlp)] */
    oq_vector norm_q, norm_k;
    oq_attention attention;
} oq_dit_flux1_single;

typedef struct oq_dit_flux1 {
    int64_t in_channels, out_channels, n_double, n_single, n_heads, head_dim, text_dim, pooled_dim;
    int64_t axes_dims[OQ_DIT_FLUX1_AXES];
    bool has_guidance;
    oq_dit_shape shape;
    oq_dit_mlp time, guidance, pooled;
    oq_linear x_embedder, context_embedder, final_mod, proj_out;
    oq_dit_double *doubles;       /* [n_double] */
    oq_dit_flux1_single *singles; /* [n_single] */
} oq_dit_flux1;

/* What the steps of a run share. */
typedef struct oq_dit_flux1_condition {
    int64_t rows, columns;   /* tokens of the picture */
    int64_t n_image, n_text;
    oq_tensor text;          /* [n_text, dim], embedded */
    oq_tensor pooled;        /* [1, dim], embedded */
    oq_tensor cos, sin;      /* F32 [n_text + n_image, head_dim / 2], text first */
    oq_tensor ahead;         /* [steps made at once, all modulations]: of the double blocks' text and picture (6D each), of
                                the single ones (3D), of the last norm (2D) */
    oq_tensor now;           /* [1, all]: those of the running step, in a place that is the same in every step */
} oq_dit_flux1_condition;

/* Takes the condition's tensors from scratch; they live as long as the caller's mark. rows, columns: picture tokens. */
oq_status oq_dit_flux1_condition_new(oq_exec *ex, const oq_dit_flux1 *s, int64_t n_text, int64_t rows, int64_t columns,
                                     int64_t n_steps, oq_dit_flux1_condition *out);
/* Fills it. text: [n_text, text_dim]; pooled: [1, pooled_dim]. trace: key prefix or NULL. */
oq_status oq_dit_flux1_condition_run(oq_exec *ex, const oq_dit_flux1 *s, oq_tensor text, oq_tensor pooled,
                                     const oq_dit_flux1_condition *c, const char *trace);

typedef struct oq_dit_flux1_moment { /* which of a run's steps; one after the other, from the first */
    const float *t; /* [n_steps]: timestep / 1000, rounded to the compute type, as guidance is */
    int64_t step, n_steps;
    float guidance; /* not read without a guidance embedder */
} oq_dit_flux1_moment;

/* x: [n_image, in_channels] packed latents; y: [n_image, out_channels]. trace: key prefix or NULL. */
oq_status oq_dit_flux1_forward(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_flux1_condition *c, oq_tensor x,
                               const oq_dit_flux1_moment *when, oq_tensor y, const char *trace);

extern const oq_module_type oq_module_dit_flux1;

#endif
