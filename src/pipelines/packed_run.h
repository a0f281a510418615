/* packed_run.h -- the walk of families whose transformer takes latents as packed tokens (FLUX.1, FLUX.2, Qwen-Image): noise,
 * denoising with flow Euler and true guidance, decoding. A family gives the
 * parts that differ. One item is one picture; items run one after the other through the networks, so prompts of
 * different length need no masks. In measure mode the same walk takes one step and touches no values. Nothing is
 * allocated between the first step and the last. */
#ifndef OQ_PIPELINES_PACKED_RUN_H
#define OQ_PIPELINES_PACKED_RUN_H

#include "base/arena.h"
#include "modules/vae_kl/vae_kl.h"
#include "pipelines/image_latents.h"
#include "pipelines/pipeline.h"
#include "pipelines/run_parts.h"
#include "sched/flow_euler.h"

typedef struct oq_packed_run oq_packed_run;

typedef struct oq_packed_family {
    const oq_vae_kl *vae;     /* NULL: `decode` has another */
    int64_t channels, scale;  /* of latents; pixels of a latent's side */
    const oq_flow_euler *schedule;
    /* Noise is drawn as planes of latents and packed (FLUX.1), or as planes of a token's values (FLUX.2). */
    bool noise_by_token;
    double mu;                /* of the schedule; NAN: linear in the tokens */
    const oq_image_vae *image; /* denoising begins with the request's first picture, noised; NULL: with noise */
    int64_t extra;            /* tokens behind each item's own that only the transformer sees: */
    const float *extra_tokens; /* [extra, width]; NULL while measuring */
    bool guided;              /* a second forward with the negative prompt */
    double guidance;          /* of it: neg + guidance * (pos - neg) */
    bool keeps_length;        /* ... and each token as long as in pos */
    /* Text to condition `index` ([n_prompts]: the negative prompt); item: the first picture that uses it. Tensors that
     * live as long as the run come from scratch; the rest is taken under a mark. */
    oq_status (*condition)(oq_packed_run *r, const char *text, int64_t index, int64_t item);
    /* y [tokens, width] = the prediction for x [tokens + extra, width] at r->times.model_t[step]. */
    oq_status (*forward)(oq_packed_run *r, int64_t condition, int step, oq_tensor x, oq_tensor y, const char *trace);
    /* One item's packed latents to what the autoencoder decodes, in place. */
    void (*unscale)(const oq_packed_run *r, float *packed);
    /* Planes [n_items, channels, 2 rows, 2 columns] (NULL while measuring) to r->out; NULL: `vae` does. */
    oq_status (*decode)(oq_packed_run *r, float *planes);
} oq_packed_family;

struct oq_packed_run {
    oq_exec *ex;
    const oq_packed_family *family;
    const oq_request *req;
    oq_output *out;
    void *self;              /* the family's own state of this run */
    oq_arena arena;          /* host memory of this request */
    int64_t rows, columns;   /* tokens of a picture */
    int64_t tokens, width;   /* of one item's packed latents */
    int64_t elems;           /* tokens * width */
    int64_t n_items, n_rows; /* pictures; model outputs of a guided step */
    int first_step;          /* of those that run: steps before it are left out (image to image) */
    float *moments;          /* of the picture that the request begins with, [2 C, 4 tokens]; NULL: none */
    float *latents;          /* [n_items, elems] */
    float *predictions;      /* [n_rows, elems] */
    void *staging;           /* [n_rows, elems] of the compute type */
    oq_run_times times;
    oq_tensor x, y;          /* [n_items * (tokens + extra), width], [n_rows * tokens, width] */
};

enum { OQ_PACKED_PATCH = 2 }; /* a token is 2x2 latents, value (channel, dy, dx) */

/* Planes [C, 2 rows, 2 columns] <-> tokens [rows * columns, 4 C]. */
void oq_packed_repack(int64_t rows, int64_t columns, int64_t width, float *planes, float *packed, bool pack);

/* The whole walk. */
oq_status oq_packed_walk(oq_exec *ex, const oq_packed_family *family, void *self, const oq_request *request,
                         oq_output *out);

#endif
