/* z_image.h -- what the two files of the Z-Image family share. */
#ifndef OQ_PIPELINES_Z_IMAGE_H
#define OQ_PIPELINES_Z_IMAGE_H

#include "modules/dit_zimage/dit_zimage.h"
#include "modules/te_qwen3/te_qwen3.h"
#include "modules/vae_kl/vae_kl.h"
#include "pipelines/pipeline.h"
#include "sched/flow_euler.h"
#include "text/tokenizer.h"

/* Qwen's chat template around a prompt, with the assistant's turn begun. */
#define Z_IMAGE_BEFORE "<|im_start|>user\n"
#define Z_IMAGE_AFTER  "<|im_end|>\n<|im_start|>assistant\n"

typedef struct z_image {
    const oq_te_qwen3 *encoder;
    const oq_dit_zimage *dit;
    const oq_vae_kl *vae;
    oq_flow_euler schedule;
    oq_tokenizer *tokenizer; /* NULL: one token per byte (dummy weights) */
} z_image;

oq_status z_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out);

#endif
