/* qwen_image_run.c -- Qwen-Image's parts of the walk (packed_run.c): prompts without the template's beginning, guidance that keeps
 * each token's length, decoding by the autoencoder of videos. */
#include "pipelines/qwen_image.h"

#include "pipelines/decode_wan.h"
#include "pipelines/latents.h"
#include "pipelines/packed_run.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/text_states.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct q_run {
    const qwen_image *q;
    oq_dit_qwen_image_condition *conditions; /* [n_prompts], then the negative prompt's */
    float *mean, *std;                       /* of a token's values */
} q_run;

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* ids of the text in its template, of which the first DROPPED have no part in what follows. */
static oq_status make_ids(oq_packed_run *r, const char *text, const oq_run_words *w, int32_t **ids,
                          int64_t *n)
{
    const qwen_image *q = ((q_run *)r->self)->q;
    const oq_prompt_ids rule = {.tokenizer = q->tokenizer,
                                .before = QWEN_IMAGE_BEFORE,
                                .after = QWEN_IMAGE_AFTER,
                                .vocab_size = q->encoder->vocab_size,
                                .max_tokens = QWEN_IMAGE_DROPPED + r->req->max_sequence_length,
                                .warn = r->ex->measure};
    char key[64];
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, w->what, ids, n));
    if (*n <= QWEN_IMAGE_DROPPED)
        return oq_fail(r->ex->env, OQ_E_FORMAT,
                       "%s: %lld tokens with its template, which alone should have %d", w->what,
                       (long long)*n, (int)QWEN_IMAGE_DROPPED);
    snprintf(key, sizeof key, "text.%s.ids", w->side);
    return oq_trace_host(r->ex, key, &oq_dtype_i32, *ids, n, 1);
}

static oq_status condition(oq_packed_run *r, const char *text, int64_t index, int64_t item)
{
    q_run *run = r->self;
    const qwen_image *q = run->q;
    const oq_run_words w = oq_run_describe(r->req->n_prompts, index);
    oq_dit_qwen_image_condition *out = &run->conditions[index];
    char key[48], prefix[OQ_RUN_PREFIX_MAX];
    int32_t *ids = NULL;
    int64_t n = 0;
    oq_tensor states;
    OQ_TRY(make_ids(r, text, &w, &ids, &n));
    const int64_t used = n - QWEN_IMAGE_DROPPED;
    OQ_TRY(oq_dit_qwen_image_condition_new(r->ex, q->dit, used, r->rows, r->columns, out));
    const oq_mark mark = oq_mark_get(r->ex);
    snprintf(key, sizeof key, "text.%s", w.side);
    const oq_te_qwen3_args args = {.ids = ids,
                                   .n = n,
                                   .n_layers = q->encoder->n_layers,
                                   .final_norm = true,
                                   .trace = r->ex->trace ? key : NULL};
    OQ_TRY(oq_tmp(r->ex, n, q->encoder->hidden_size, &states));
    OQ_TRY(oq_text_states_qwen3(r->ex, q->encoder, &args, states, w.what));
    const oq_tensor embeds = oq_tensor_rows(states, QWEN_IMAGE_DROPPED, used);
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, embeds, NULL, 0, "%s.embeds", key));
    OQ_TRY(oq_dit_qwen_image_condition_run(r->ex, q->dit, embeds, out,
                                           oq_run_prefix(r->ex, "dit0", item, prefix)));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

static oq_status forward(oq_packed_run *r, int64_t index, int step, oq_tensor x, oq_tensor y,
                         const char *trace)
{
    const q_run *run = r->self;
    return oq_dit_qwen_image_forward(r->ex, run->q->dit, &run->conditions[index], x, r->times.model_t[step],
                                     y, trace);
}

static void unscale(const oq_packed_run *r, float *packed)
{
    const q_run *run = r->self;
    oq_latents_rescale(r->ex->compute, packed, r->tokens, r->width, false, run->mean, run->std);
}

static oq_status decode(oq_packed_run *r, float *planes)
{
    const oq_wan_decoding d = {.vae = ((q_run *)r->self)->q->vae,
                               .request = r->req,
                               .n_items = r->n_items,
                               .frames = 1,
                               .h = r->rows * OQ_PACKED_PATCH,
                               .w = r->columns * OQ_PACKED_PATCH,
                               .planes = planes,
                               .out = r->out};
    return oq_decode_wan(r->ex, &r->arena, &d);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static oq_status walk(oq_exec *ex, oq_arena *arena, q_run *run, const oq_request *request, oq_output *out)
{
    enum { CELL = OQ_PACKED_PATCH * OQ_PACKED_PATCH };
    const qwen_image *q = run->q;
    const oq_image_vae image = oq_image_vae_wan(q->vae);
    const oq_packed_family family = {.channels = q->vae->z_dim,
                                     .scale = oq_vae_wan_scale(q->vae),
                                     .schedule = &q->schedule,
                                     .mu = (double)NAN,
                                     .image = request->n_images > 0 ? &image : NULL,
                                     .guided = request->guidance > 1 && request->negative,
                                     .guidance = request->guidance,
                                     .keeps_length = true,
                                     .condition = condition,
                                     .forward = forward,
                                     .unscale = unscale,
                                     .decode = decode};
    OQ_TRY(oq_arena_new(arena, (size_t)request->n_prompts + 1, sizeof *run->conditions, "prompts",
                        &run->conditions));
    OQ_TRY(oq_arena_new(arena, (size_t)(CELL * q->vae->z_dim), sizeof(float), "statistics", &run->mean));
    OQ_TRY(oq_arena_new(arena, (size_t)(CELL * q->vae->z_dim), sizeof(float), "statistics", &run->std));
    for (int64_t i = 0; i < CELL * q->vae->z_dim; i++)
        run->mean[i] = q->vae->mean[i / CELL], run->std[i] = q->vae->std[i / CELL];
    return oq_packed_walk(ex, &family, run, request, out);
}

oq_status qwen_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    q_run run = {.q = self};
    oq_arena arena;
    oq_arena_init(&arena, ex->env);
    const oq_status st = walk(ex, &arena, &run, request, out);
    oq_arena_deinit(&arena);
    return st;
}
