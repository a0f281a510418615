/* dit_flux2.h -- the FLUX.2 transformer (klein, dev): blocks of two streams, then fused blocks of one; modulations are
 * shared by all blocks of a kind. See MODEL.md. */
#ifndef OQ_MODULES_DIT_FLUX2_H
#define OQ_MODULES_DIT_FLUX2_H

#include "modules/dit_parts.h"
#include "nn/module.h"

enum { OQ_DIT_FLUX2_PATCH = 2, OQ_DIT_FLUX2_AXES = 4 };

typedef struct oq_dit_flux2_single {
    oq_linear in, out; /* in: q | k | v | gate | value; out of [attention | silu(gate) * value] */
    oq_vector norm_q, norm_k;
    oq_attention attention;
} oq_dit_flux2_single;

typedef struct oq_dit_flux2 {
    int64_t in_channels, out_channels, n_double, n_single, n_heads, head_dim, text_dim;
    int64_t axes_dims[OQ_DIT_FLUX2_AXES];
    double rope_theta, mlp_ratio, eps;
    bool has_guidance;
    oq_dit_shape shape;
    oq_dit_mlp time, guidance;
    oq_linear image_mod, text_mod, single_mod, x_embedder, context_embedder, final_mod, proj_out;
    oq_dit_double *doubles;       /* [n_double] */
    oq_dit_flux2_single *singles; /* [n_single] */
} oq_dit_flux2;

typedef struct oq_dit_flux2_grid { /* picture tokens in row-major order at frame t */
    int64_t t, rows, columns;
} oq_dit_flux2_grid;

/* What the steps of a run share. */
typedef struct oq_dit_flux2_condition {
    int64_t n_image, n_text;   /* picture tokens of all grids; text tokens, pads included */
    oq_tensor text;            /* [n_text, dim], embedded */
    oq_tensor cos, sin;        /* F32 [n_text + n_image, head_dim / 2], text first */
} oq_dit_flux2_condition;

/* Takes the condition's tensors from scratch; they live as long as the caller's mark. grids[0] is the picture that is
 * made, those behind it are references. */
oq_status oq_dit_flux2_condition_new(oq_exec *ex, const oq_dit_flux2 *s, int64_t n_text, const oq_dit_flux2_grid *grids,
                                     int n_grids, oq_dit_flux2_condition *out);
/* Fills it. text: [n_text, text_dim]. trace: key prefix or NULL. */
oq_status oq_dit_flux2_condition_run(oq_exec *ex, const oq_dit_flux2 *s, oq_tensor text, const oq_dit_flux2_grid *grids,
                                     int n_grids, const oq_dit_flux2_condition *c, const char *trace);

/* x: [n_image, in_channels] packed latents, references behind the picture; y: [y.rows, out_channels], the first y.rows
 * tokens' output. t: timestep / 1000 and guidance, which are rounded to the compute type. trace: key prefix or NULL. */
oq_status oq_dit_flux2_forward(oq_exec *ex, const oq_dit_flux2 *s, const oq_dit_flux2_condition *c, oq_tensor x, float t,
                               float guidance, oq_tensor y, const char *trace);

extern const oq_module_type oq_module_dit_flux2;

#endif
