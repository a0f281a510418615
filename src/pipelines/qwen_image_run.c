/* qwen_image_run.c -- the Qwen-Image families' parts of the walk (packed_run.c): prompts without the template's beginning,
 * guidance that keeps each token's length, decoding by the autoencoder of videos; and the texts of Qwen-Image itself. */
#include "pipelines/qwen_image.h"

#include "pipelines/decode_wan.h"
#include "pipelines/latents.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/text_states.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* The text in its template. */
static oq_status plain_text(oq_packed_run *r, const char *text, const oq_run_words *w, oq_te_qwen3_args *args)
{
    const qwen_image *q = ((const qwen_image_walk *)r->self)->q;
    const oq_prompt_ids rule = {.tokenizer = q->tokenizer,
                                .before = QWEN_IMAGE_BEFORE,
                                .after = QWEN_IMAGE_AFTER,
                                .vocab_size = q->encoder->vocab_size,
                                .max_tokens = QWEN_IMAGE_DROPPED + r->req->max_sequence_length,
                                .warn = r->ex->measure};
    int32_t *ids = NULL;
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, w->what, &ids, &args->n));
    args->ids = ids;
    return OQ_OK;
}

static oq_status make_text(oq_packed_run *r, const char *text, const oq_run_words *w, oq_te_qwen3_args *args)
{
    const qwen_image_walk *walk = r->self;
    char key[64];
    OQ_TRY(walk->text(r, text, w, args));
    if (args->n <= walk->dropped)
        return oq_fail(r->ex->env, OQ_E_FORMAT,
                       "%s: %lld tokens with its template, which alone should have %lld", w->what,
                       (long long)args->n, (long long)walk->dropped);
    snprintf(key, sizeof key, "text.%s.ids", w->side);
    return oq_trace_host(r->ex, key, &oq_dtype_i32, args->ids, &args->n, 1);
}

static oq_status condition(oq_packed_run *r, const char *text, int64_t index, int64_t item)
{
    qwen_image_walk *walk = r->self;
    const qwen_image *q = walk->q;
    const oq_run_words w = oq_run_describe(r->req->n_prompts, index);
    oq_dit_qwen_image_condition *out = &walk->conditions[index];
    char key[48], prefix[OQ_RUN_PREFIX_MAX];
    snprintf(key, sizeof key, "text.%s", w.side);
    oq_te_qwen3_args args = {
        .n_layers = q->encoder->n_layers, .final_norm = true, .trace = r->ex->trace ? key : NULL};
    oq_tensor states;
    OQ_TRY(make_text(r, text, &w, &args));
    const int64_t used = args.n - walk->dropped;
    OQ_TRY(oq_dit_qwen_image_condition_new(r->ex, q->dit, used, walk->grids, walk->n_grids, out));
    const oq_mark mark = oq_mark_get(r->ex);
    OQ_TRY(oq_tmp(r->ex, args.n, q->encoder->hidden_size, &states));
    OQ_TRY(oq_text_states_qwen3(r->ex, q->encoder, &args, states, w.what));
    const oq_tensor embeds = oq_tensor_rows(states, walk->dropped, used);
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, embeds, NULL, 0, "%s.embeds", key));
    OQ_TRY(oq_dit_qwen_image_condition_run(r->ex, q->dit, embeds, out,
                                           oq_run_prefix(r->ex, "dit0", item, prefix)));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

static oq_status forward(oq_packed_run *r, int64_t index, int step, oq_tensor x, oq_tensor y,
                         const char *trace)
{
    const qwen_image_walk *walk = r->self;
    return oq_dit_qwen_image_forward(r->ex, walk->q->dit, &walk->conditions[index], x, r->times.model_t[step],
                                     y, trace);
}

static void unscale(const oq_packed_run *r, float *packed)
{
    const qwen_image_walk *walk = r->self;
    oq_latents_rescale(r->ex->compute, packed, r->tokens, r->width, false, walk->mean, walk->std);
}

static oq_status decode(oq_packed_run *r, float *planes)
{
    const oq_wan_decoding d = {.vae = ((const qwen_image_walk *)r->self)->q->vae,
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

oq_status qwen_image_walk_run(oq_exec *ex, oq_arena *arena, qwen_image_walk *walk, const oq_request *request,
                              oq_output *out)
{
    enum { CELL = OQ_PACKED_PATCH * OQ_PACKED_PATCH };
    const qwen_image *q = walk->q;
    const int64_t width = CELL * q->vae->z_dim, token_px = OQ_PACKED_PATCH * oq_vae_wan_scale(q->vae);
    const oq_image_vae image = oq_image_vae_wan(q->vae);
    oq_packed_family family = {.channels = q->vae->z_dim,
                               .scale = oq_vae_wan_scale(q->vae),
                               .schedule = &q->schedule,
                               .mu = (double)NAN,
                               .image = walk->begins_with_image ? &image : NULL,
                               .extra_tokens = walk->given,
                               .guided = request->guidance > 1 && request->negative,
                               .guidance = request->guidance,
                               .keeps_length = true,
                               .condition = condition,
                               .forward = forward,
                               .unscale = unscale,
                               .decode = decode};
    walk->grids[0] =
        (oq_dit_qwen_image_grid){.rows = request->height / token_px, .columns = request->width / token_px};
    if (walk->n_grids == 0) walk->n_grids = 1;
    for (int i = 1; i < walk->n_grids; i++) family.extra += walk->grids[i].rows * walk->grids[i].columns;
    OQ_TRY(oq_arena_new(arena, (size_t)request->n_prompts + 1, sizeof *walk->conditions, "prompts",
                        &walk->conditions));
    OQ_TRY(oq_arena_new(arena, (size_t)width, sizeof(float), "statistics", &walk->mean));
    OQ_TRY(oq_arena_new(arena, (size_t)width, sizeof(float), "statistics", &walk->std));
    for (int64_t i = 0; i < width; i++)
        walk->mean[i] = q->vae->mean[i / CELL], walk->std[i] = q->vae->std[i / CELL];
    return oq_packed_walk(ex, &family, walk, request, out);
}

oq_status qwen_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    qwen_image_walk walk = {.q = self,
                            .text = plain_text,
                            .dropped = QWEN_IMAGE_DROPPED,
                            .begins_with_image = request->n_images > 0};
    oq_arena arena;
    oq_arena_init(&arena, ex->env);
    const oq_status st = qwen_image_walk_run(ex, &arena, &walk, request, out);
    oq_arena_deinit(&arena);
    return st;
}
