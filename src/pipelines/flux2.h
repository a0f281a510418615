/* flux2.h -- what the families of FLUX.2 share (flux2.c). Each gives its words; the rest is the same. */
#ifndef OQ_PIPELINES_FLUX2_H
#define OQ_PIPELINES_FLUX2_H

#include "modules/dit_flux2/dit_flux2.h"
#include "modules/te_qwen3/te_qwen3.h"
#include "modules/vae_kl/vae_kl.h"
#include "pipelines/pipeline.h"
#include "sched/flow_euler.h"
#include "text/tokenizer.h"

enum { OQ_FLUX2_TAPS = 3, OQ_FLUX2_MAX_TOKENS = 512 };

typedef struct oq_flux2_words { /* by which the families differ */
    const char *family;         /* "FLUX.2-klein", for messages */
    const char *before, *after; /* the chat template around a prompt */
    const char *first, *pad;    /* tokens: in front of all (NULL: none), and of padding */
    const char *left_out;       /* taken out of prompts, NULL: nothing */
    bool embeds_guidance;       /* the transformer takes the scale */
} oq_flux2_words;

typedef struct oq_flux2 {
    const oq_flux2_words *words;
    const oq_te_qwen3 *encoder;
    const oq_dit_flux2 *dit;
    const oq_vae_kl *vae;
    oq_flow_euler schedule;
    oq_tokenizer *tokenizer; /* NULL: one token per byte (dummy weights) */
    bool pads_before;        /* pads stand in front of a prompt and see nothing */
    int64_t taps[OQ_FLUX2_TAPS];
} oq_flux2;

oq_status oq_flux2_init(oq_env *env, const oq_pipeline_setup *setup, const oq_flux2_words *words, oq_flux2 *f);
/* The trim of its text encoder: nothing behind the last tap is run. */
void oq_flux2_trim_encoder(const oq_json *model_index, void *self);
void oq_flux2_deinit(oq_env *env, void *self);
oq_status oq_flux2_check(oq_env *env, const oq_flux2 *f, const oq_request *request);
/* guided: a second forward against the negative prompt. */
oq_status oq_flux2_run(oq_exec *ex, const oq_flux2 *f, const oq_request *request, bool guided, oq_output *out);

#endif
