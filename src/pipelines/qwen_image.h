/* qwen_image.h -- what the families of Qwen-Image share: their parts, and the walk (qwen_image_run.c) to which each gives its
 * texts. */
#ifndef OQ_PIPELINES_QWEN_IMAGE_H
#define OQ_PIPELINES_QWEN_IMAGE_H

#include "modules/dit_qwen_image/dit_qwen_image.h"
#include "modules/te_qwen3/te_qwen3.h"
#include "modules/vae_wan/vae_wan.h"
#include "pipelines/packed_run.h"
#include "pipelines/pipeline.h"
#include "sched/flow_euler.h"
#include "text/tokenizer.h"

/* The template around a prompt; states of its first tokens are not used. */
#define QWEN_IMAGE_BEFORE                                                                                    \
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, " \
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
#define QWEN_IMAGE_AFTER "<|im_end|>\n<|im_start|>assistant\n"
enum { QWEN_IMAGE_DROPPED = 34, QWEN_IMAGE_MAX_TOKENS = 1024, QWEN_IMAGE_MAX_GIVEN = 16 };

typedef struct qwen_image {
    const oq_te_qwen3 *encoder;
    const oq_dit_qwen_image *dit;
    const oq_vae_wan *vae;
    oq_flow_euler schedule;
    oq_tokenizer *tokenizer; /* NULL: one token per byte (dummy weights) */
} qwen_image;

/* Parts (text encoder, transformer, autoencoder in this order), whether they fit together, schedule and tokenizer. */
oq_status qwen_image_init(oq_env *env, const oq_pipeline_setup *setup, const char *before, const char *after,
                          qwen_image *q);
void qwen_image_deinit(oq_env *env, void *self);
/* Sides, schedule, guidance, texts. */
oq_status qwen_image_check(oq_env *env, const qwen_image *q, const oq_request *request);

typedef struct qwen_image_walk { /* one request */
    const qwen_image *q;
    /* The ids of a text, and what else of `args` a family has; states of the first `dropped` have no part in what follows. */
    oq_status (*text)(oq_packed_run *r, const char *text, const oq_run_words *w, oq_te_qwen3_args *args);
    int64_t dropped;
    bool begins_with_image;
    oq_dit_qwen_image_grid grids[1 + QWEN_IMAGE_MAX_GIVEN]; /* of the picture that is made, then of those that are given */
    int n_grids;
    float *given; /* host, tokens of the latter; NULL while measuring */
    oq_dit_qwen_image_condition *conditions; /* [n_prompts], then the negative prompt's */
    float *mean, *std;                       /* of a token's values */
} qwen_image_walk;

oq_status qwen_image_walk_run(oq_exec *ex, oq_arena *arena, qwen_image_walk *walk, const oq_request *request,
                              oq_output *out);

oq_status qwen_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out);

#endif
