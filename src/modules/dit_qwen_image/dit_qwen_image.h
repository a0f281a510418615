/* dit_qwen_image.h -- the Qwen-Image transformer: two streams, text and picture, that attend to each other in every
 * block. See MODEL.md. */
#ifndef OQ_MODULES_DIT_QWEN_IMAGE_H
#define OQ_MODULES_DIT_QWEN_IMAGE_H

#include "modules/dit_parts.h"
#include "nn/module.h"

enum { OQ_DIT_QWEN_IMAGE_PATCH = 2, OQ_DIT_QWEN_IMAGE_AXES = 3 };

typedef struct oq_dit_qwen_image {
    int64_t in_channels, out_channels, n_layers, n_heads, head_dim, text_dim, dim;
    int64_t axes_dims[OQ_DIT_QWEN_IMAGE_AXES];
    bool zero_cond_t; /* tokens of pictures that are given are modulated as at timestep 0 */
    oq_dit_shape shape;
    oq_vector txt_norm;
    oq_linear img_in, txt_in, t1, t2, final_mod, proj_out;
    oq_dit_double *blocks; /* [n_layers] */
} oq_dit_qwen_image;

typedef struct oq_dit_qwen_image_grid { /* tokens of a picture, row by row */
    int64_t rows, columns;
} oq_dit_qwen_image_grid;

/* What the steps of a run share: the embedded text and the rotary tables. */
typedef struct oq_dit_qwen_image_condition {
    const oq_dit_qwen_image_grid *grids; /* the caller's: of the picture that is made, then of those that are given */
    int n_grids;
    int64_t n_image, n_text;   /* picture tokens of all grids */
    oq_tensor text;            /* [n_text, dim] */
    oq_tensor cos, sin;        /* F32 [n_text + n_image, head_dim / 2], text first */
} oq_dit_qwen_image_condition;

/* Takes the condition's tensors from scratch; they live as long as the caller's mark. */
oq_status oq_dit_qwen_image_condition_new(oq_exec *ex, const oq_dit_qwen_image *s, int64_t n_text,
                                          const oq_dit_qwen_image_grid *grids, int n_grids,
                                          oq_dit_qwen_image_condition *out);
/* Fills it. text: [n_text, text_dim]. trace: key prefix or NULL. */
oq_status oq_dit_qwen_image_condition_run(oq_exec *ex, const oq_dit_qwen_image *s, oq_tensor text,
                                          const oq_dit_qwen_image_condition *c, const char *trace);

/* x: [n_image, in_channels] packed latents of all grids; y: [tokens of the first grid, patch^2 * out_channels]; t: timestep /
 * 1000, already rounded as the caller's type demands. trace: key prefix or NULL. */
oq_status oq_dit_qwen_image_forward(oq_exec *ex, const oq_dit_qwen_image *s, const oq_dit_qwen_image_condition *c,
                                    oq_tensor x, float t, oq_tensor y, const char *trace);

extern const oq_module_type oq_module_dit_qwen_image;

#endif
