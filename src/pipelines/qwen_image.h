/* qwen_image.h -- what the two files of the Qwen-Image family share. */
#ifndef OQ_PIPELINES_QWEN_IMAGE_H
#define OQ_PIPELINES_QWEN_IMAGE_H

#include "modules/dit_qwen_image/dit_qwen_image.h"
#include "modules/te_qwen3/te_qwen3.h"
#include "modules/vae_wan/vae_wan.h"
#include "pipelines/pipeline.h"
#include "sched/flow_euler.h"
#include "text/tokenizer.h"

/* The template around a prompt; states of its first tokens are not used. */
#define QWEN_IMAGE_BEFORE                                                                                    \
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, " \
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
#define QWEN_IMAGE_AFTER "<|im_end|>\n<|im_start|>assistant\n"
enum { QWEN_IMAGE_DROPPED = 34, QWEN_IMAGE_MAX_TOKENS = 1024 };

typedef struct qwen_image {
    const oq_te_qwen3 *encoder;
    const oq_dit_qwen_image *dit;
    const oq_vae_wan *vae;
    oq_flow_euler schedule;
    oq_tokenizer *tokenizer; /* NULL: one token per byte (dummy weights) */
} qwen_image;

oq_status qwen_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out);

#endif
