/* wan_run.c -- Wan: prompts, noise, denoising by one or two experts, decoding piece by piece. One item is one video; items
 * run one after the other. A text's keys and values are made once for the expert that is at work: when the second takes
 * over, its own go where the first's were. In measure mode the same walk takes one step of each expert and touches no
 * values. Nothing is allocated between the first step and the last. */
#include "pipelines/wan.h"

#include "pipelines/decode_wan.h"
#include "pipelines/latents.h"
#include "pipelines/prompt_clean.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/run_parts.h"
#include "pipelines/text_states.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct w_run {
    oq_exec *ex;
    const wan *w;
    const oq_request *req;
    oq_output *out;
    oq_arena arena;          /* host memory of this request */
    int64_t frames, h, w_px; /* of the latents */
    int64_t pixels, z;       /* frames * h * w; latent channels */
    int64_t elems;           /* z * pixels */
    int64_t in_channels;     /* of the transformers */
    int64_t n_items, n_texts;
    bool guided, image;
    oq_unipc schedule;
    oq_tensor *texts; /* [n_texts]: states of the prompts, then the negative prompt's */
    oq_dit_wan_grid grid;
    oq_dit_wan_condition *conditions; /* [n_texts], of the expert at work */
    int expert;                       /* at work; -1: none yet */
    oq_mark expert_mark;
    float *latents;     /* [n_items, elems] */
    float *predictions; /* [2, elems]: an item's, its negative prompt's */
    float *condition;   /* [in_channels - z, pixels], or [z, h w] of the first frame; NULL: none */
    float *corrected;   /* [elems], for the trace; NULL without one */
    void *staging;      /* [max(in_channels, 2 z), pixels] of the compute type */
    float *sigmas, *timesteps;
    oq_unipc_state *states; /* [n_items] */
    oq_tensor x, y;         /* [in_channels, pixels], [2 z, pixels] */
} w_run;

/* ---- set-up -------------------------------------------------------------------------------------------- */

static oq_status new_state(w_run *r, oq_unipc_state *state)
{
    *state = (oq_unipc_state){.elems = r->elems};
    for (int i = 0; i < 3; i++)
        OQ_TRY(oq_arena_new(&r->arena, (size_t)r->elems, sizeof(float), "samples", &state->clean[i]));
    return oq_arena_new(&r->arena, (size_t)r->elems, sizeof(float), "samples", &state->last);
}

static oq_status new_host_memory(w_run *r)
{
    const size_t elems = (size_t)r->elems;
    const int64_t most = r->in_channels > 2 * r->z ? r->in_channels : 2 * r->z;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)r->n_items * elems, sizeof(float), "latents", &r->latents));
    OQ_TRY(oq_arena_new(&r->arena, 2 * elems, sizeof(float), "predictions", &r->predictions));
    OQ_TRY(
        oq_arena_new(&r->arena, (size_t)(most * r->pixels), r->ex->compute->bytes, "latents", &r->staging));
    OQ_TRY(oq_arena_new(&r->arena, (size_t)r->n_items, sizeof *r->states, "samples", &r->states));
    for (int64_t i = 0; i < r->n_items; i++) OQ_TRY(new_state(r, &r->states[i]));
    if (!r->ex->trace) return OQ_OK;
    return oq_arena_new(&r->arena, elems, sizeof(float), "samples", &r->corrected);
}

static oq_status start(w_run *r)
{
    const oq_request *req = r->req;
    const oq_vae_wan *vae = r->w->vae;
    const size_t steps = (size_t)req->steps;
    r->frames = oq_vae_wan_latent_frames(vae, req->frames);
    r->h = req->height / oq_vae_wan_scale(vae);
    r->w_px = req->width / oq_vae_wan_scale(vae);
    r->pixels = r->frames * r->h * r->w_px;
    r->z = vae->z_dim;
    r->elems = r->z * r->pixels;
    r->in_channels = r->w->experts[0]->in_channels;
    r->n_items = (int64_t)req->n_prompts * req->images_per_prompt;
    r->guided = req->guidance > 1;
    r->n_texts = req->n_prompts + (r->guided ? 1 : 0);
    r->image = wan_has_image(r->w, req);
    r->expert = -1;
    r->schedule = r->w->schedule;
    if (req->flow_shift > 0) r->schedule.flow_shift = req->flow_shift;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)r->n_texts, sizeof *r->texts, "prompts", &r->texts));
    OQ_TRY(oq_arena_new(&r->arena, (size_t)r->n_texts, sizeof *r->conditions, "prompts", &r->conditions));
    OQ_TRY(oq_arena_new(&r->arena, steps + 1, sizeof(float), "sigmas", &r->sigmas));
    OQ_TRY(oq_arena_new(&r->arena, steps, sizeof(float), "timesteps", &r->timesteps));
    return r->ex->measure ? OQ_OK : new_host_memory(r);
}

static oq_status make_schedule(w_run *r)
{
    const int n = r->req->steps;
    oq_unipc_sigmas(&r->schedule, n, r->req->sigmas, r->sigmas, r->timesteps);
    OQ_TRY(oq_trace_host(r->ex, "sigmas", &oq_dtype_f32, r->sigmas, (int64_t[]){n + 1}, 1));
    return oq_trace_host(r->ex, "timesteps", &oq_dtype_f32, r->timesteps, (int64_t[]){n}, 1);
}

static oq_status trace_latents(w_run *r, const char *key, const float *values, int64_t n)
{
    return oq_trace_host(r->ex, key, &oq_dtype_f32, values, (int64_t[]){n, r->z, r->frames, r->h, r->w_px},
                         5);
}

static oq_status make_noise(w_run *r)
{
    if (r->ex->measure) return OQ_OK;
    oq_latents_noise(r->req->seed, r->req->shared_noise, r->n_items, r->elems, r->latents);
    return trace_latents(r, "noise", r->latents, r->n_items);
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* The prompt's own tokens alone: padding is masked in the original and its states are zeros. */
static oq_status encode_text(w_run *r, const char *text, int64_t index)
{
    const oq_run_words w = oq_run_describe(r->req->n_prompts, index);
    const oq_prompt_ids rule = {.tokenizer = r->w->tokenizer,
                                .before = "",
                                .after = "",
                                .vocab_size = r->w->encoder->vocab_size,
                                .max_tokens = r->req->max_sequence_length,
                                .keep_last = 1,
                                .warn = r->ex->measure};
    oq_tensor *out = &r->texts[index];
    char key[48], ids_key[64], *clean = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    OQ_TRY(oq_prompt_clean(r->ex->env, &r->arena, text, &clean));
    if (!r->w->tokenizer && !*clean) clean = " "; /* bytes for tokens: at least one */
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, clean, w.what, &ids, &n));
    snprintf(key, sizeof key, "text.%s", w.side);
    snprintf(ids_key, sizeof ids_key, "%s.ids", key);
    OQ_TRY(oq_trace_host(r->ex, ids_key, &oq_dtype_i32, ids, &n, 1));
    OQ_TRY(oq_tmp(r->ex, n, r->w->encoder->hidden_size, out));
    const oq_te_t5_args args = {.ids = ids, .n = n, .trace = r->ex->trace ? key : NULL};
    OQ_TRY(oq_text_states_t5(r->ex, r->w->encoder, &args, *out, "text_encoder", w.what));
    return r->ex->trace ? oq_trace_put(r->ex, *out, NULL, 0, "%s.embeds", key) : OQ_OK;
}

/* Prompt i; behind the prompts the negative one. */
static oq_status make_text(void *user, int64_t i)
{
    w_run *r = user;
    const oq_request *req = r->req;
    return encode_text(r, i < req->n_prompts ? req->prompts[i] : req->negative ? req->negative : "", i);
}

static oq_status encode_texts(w_run *r)
{
    const oq_run_phase phase = {.name = "text",
                                .end = r->n_texts,
                                .step = make_text,
                                .user = r,
                                .seconds = r->out ? &r->out->text_s : NULL};
    oq_phase_begin(r->ex, OQ_PHASE_TEXT);
    return oq_run_phase_walk(r->ex, &phase);
}

/* Every text's keys and values as the expert sees them. */
static oq_status activate(w_run *r, int expert)
{
    const oq_dit_wan *dit = r->w->experts[expert];
    const int64_t padded = r->req->max_sequence_length;
    if (r->expert == expert) return OQ_OK;
    oq_mark_reset(r->ex, r->expert_mark);
    for (int64_t i = 0; i < r->n_texts; i++)
        OQ_TRY(oq_dit_wan_condition_new(r->ex, dit, r->texts[i].rows, padded, &r->conditions[i]));
    for (int64_t i = 0; i < r->n_texts; i++)
        OQ_TRY(oq_dit_wan_condition_run(r->ex, dit, r->texts[i], padded, &r->conditions[i]));
    r->expert = expert;
    return OQ_OK;
}

/* ---- the picture that a video begins with -------------------------------------------------------------- */

/* Rows of pixels in [-1, 1], the picture first, then zeros. */
static oq_status upload_picture(w_run *r, oq_tensor x)
{
    oq_exec *ex = r->ex;
    const int64_t n = r->req->width * r->req->height * 3;
    oq_image resized = {0};
    float *values = NULL;
    if (ex->measure || r->req->n_images == 0) return OQ_OK;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)(x.rows * x.cols), sizeof *values, "picture", &values));
    OQ_TRY(oq_image_resize(ex->env, &r->req->images[0], OQ_LANCZOS, r->req->width, r->req->height, &resized));
    for (int64_t i = 0; i < n; i++) values[i] = 2.0f * ((float)resized.pixels[i] / 255.0f) - 1.0f;
    oq_image_deinit(ex->env, &resized);
    return oq_upload(ex, x, values);
}

/* moments: [n, 2 z] -> condition[z, n] = (mean - mean of latents) / std */
static oq_status take_condition(w_run *r, oq_tensor moments, float *condition)
{
    oq_exec *ex = r->ex;
    const int64_t n = moments.rows, width = moments.cols;
    const oq_vae_wan *vae = r->w->vae;
    float *values = NULL;
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)(n * width), sizeof *values, "condition", &values));
    OQ_TRY(oq_download(ex, values, moments));
    for (int64_t c = 0; c < r->z; c++)
        for (int64_t i = 0; i < n; i++)
            condition[c * n + i] = (values[i * width + c] - vae->mean[c]) * (1.0f / vae->std[c]);
    return oq_values_finite(condition, r->z * n)
               ? OQ_OK
               : oq_fail(ex->env, OQ_E_NUMERIC, "encoding the picture: non-finite values");
}

/* The autoencoder is float32 in every run. */
static oq_status encode_video(w_run *r, const oq_vae_wan_args *args, oq_tensor x, oq_tensor moments)
{
    const oq_dtype *type = r->ex->compute;
    r->ex->compute = &oq_dtype_f32;
    const oq_status st = oq_vae_wan_encode(r->ex, r->w->vae, args, x, moments);
    r->ex->compute = type;
    return st;
}

/* The A14B sees the whole video with its first frame filled in, under a mask; the 5B the first latent frame alone. */
static oq_status make_condition(w_run *r)
{
    oq_exec *ex = r->ex;
    if (!r->image) return OQ_OK;
    const oq_mark mark = oq_mark_get(ex);
    const bool whole = r->w->image_channels;
    const int64_t frames = whole ? r->req->frames : 1, latent_frames = whole ? r->frames : 1;
    const int64_t n = latent_frames * r->h * r->w_px, masks = whole ? WAN_MASK_CHANNELS : 0;
    const oq_vae_wan_args args = {.frames = frames, .h = r->req->height, .w = r->req->width, .piece = 1};
    oq_tensor x, moments;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, frames * r->req->height * r->req->width, 3, &x));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n, 2 * r->z, &moments));
    if (!ex->measure)
        OQ_TRY(
            oq_arena_new(&r->arena, (size_t)((r->z + masks) * n), sizeof(float), "condition", &r->condition));
    OQ_TRY(upload_picture(r, x));
    OQ_TRY(encode_video(r, &args, x, moments));
    OQ_TRY(take_condition(r, moments, r->condition ? r->condition + masks * n : NULL));
    oq_mark_reset(ex, mark);
    if (ex->measure) return OQ_OK;
    for (int64_t m = 0; m < masks; m++) /* ones in the first latent frame */
        for (int64_t i = 0; i < r->h * r->w_px; i++) r->condition[m * n + i] = 1.0f;
    const int64_t shape[5] = {1, r->z + masks, latent_frames, r->h, r->w_px};
    return oq_trace_host(ex, "condition", &oq_dtype_f32, r->condition, shape, 5);
}

/* The 5B's first frame stays the picture: before each prediction and after the last step. */
static void put_first_frame(const w_run *r, float *latents)
{
    const int64_t frame = r->h * r->w_px;
    if (!r->image || r->w->image_channels) return;
    for (int64_t c = 0; c < r->z; c++)
        memcpy(latents + c * r->pixels, r->condition + c * frame, (size_t)frame * sizeof *latents);
}

/* ---- denoising ----------------------------------------------------------------------------------------- */

typedef struct row_call {
    w_run *r;
    int step;
    int64_t item;
    bool negative;
} row_call;

static int expert_of(const w_run *r, int step)
{
    return r->w->experts[1] && (double)r->timesteps[step] < r->w->boundary ? 1 : 0;
}

static oq_status forward_row(oq_exec *ex, void *user)
{
    const row_call *call = user;
    w_run *r = call->r;
    const float t = r->timesteps[call->step];
    const int64_t first = r->grid.rows * r->grid.columns;
    const bool clean_frame = r->image && !r->w->image_channels;
    const oq_dit_wan_time all[] = {{t, r->grid.n}}, split[] = {{0, first}, {t, r->grid.n - first}};
    const oq_dit_wan_condition *c =
        &r->conditions[call->negative ? r->req->n_prompts : call->item / r->req->images_per_prompt];
    char buffer[OQ_RUN_PREFIX_MAX];
    const bool traced = call->step == 0 && !call->negative;
    const bool two = clean_frame && r->grid.n > first;
    return oq_dit_wan_forward(ex, r->w->experts[r->expert], &r->grid, c, r->x, clean_frame ? split : all,
                              two ? 2 : 1, oq_tensor_rows(r->y, call->negative ? r->z : 0, r->z),
                              traced ? oq_run_prefix(ex, "dit0", call->item, buffer) : NULL);
}

/* Latents and what goes with them, rounded, to the device. */
static oq_status upload_input(w_run *r, int64_t item)
{
    const oq_dtype *type = r->ex->compute;
    float *latents = r->latents + item * r->elems;
    if (r->ex->measure) return OQ_OK;
    if (r->image && !r->w->image_channels) { /* the state itself keeps its own first frame */
        memcpy(r->predictions, latents, (size_t)r->elems * sizeof *latents);
        put_first_frame(r, r->predictions);
        latents = r->predictions;
    }
    oq_values_round(type, r->staging, latents, r->elems);
    if (r->w->image_channels)
        oq_values_round(type, (char *)r->staging + (size_t)r->elems * type->bytes, r->condition,
                        (r->in_channels - r->z) * r->pixels);
    return oq_upload(r->ex, r->x, r->staging);
}

static oq_status check_row(w_run *r, const row_call *call)
{
    const int64_t row = (call->negative ? r->n_items : 0) + call->item;
    const float *values = r->predictions + (call->negative ? r->elems : 0);
    char key[64], what[64];
    snprintf(key, sizeof key, "step.%d.model_out.%lld", call->step, (long long)row);
    OQ_TRY(trace_latents(r, key, values, 1));
    if (oq_values_finite(values, r->elems)) return OQ_OK;
    row_call again = *call;
    snprintf(what, sizeof what, "step %d of %d", call->step + 1, r->req->steps);
    return oq_run_not_finite(r->ex, forward_row, &again, r->expert ? "transformer_2" : "transformer", what);
}

static oq_status predict(w_run *r, int step, int64_t item)
{
    oq_exec *ex = r->ex;
    const int rows = r->guided ? 2 : 1;
    OQ_TRY(upload_input(r, item));
    for (int i = 0; i < rows; i++) {
        row_call call = {r, step, item, i == 1};
        OQ_TRY(forward_row(ex, &call));
    }
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_download(ex, r->staging, oq_tensor_rows(r->y, 0, rows * r->z)));
    oq_values_widen(ex->compute, r->predictions, r->staging, rows * r->elems);
    for (int i = 0; i < rows; i++) {
        const row_call call = {r, step, item, i == 1};
        OQ_TRY(check_row(r, &call));
    }
    return OQ_OK;
}

static oq_status trace_step(w_run *r, int step, int64_t item)
{
    static const char *const names[] = {"pred", "x0", "corrected", "latents"};
    const float *const values[] = {r->predictions, r->states[item].clean[0], r->corrected,
                                   r->latents + item * r->elems};
    char key[64];
    if (!r->ex->trace || item > 0) return OQ_OK;
    for (size_t i = 0; i < OQ_COUNT(names); i++) {
        snprintf(key, sizeof key, "step.%d.%s", step, names[i]);
        OQ_TRY(trace_latents(r, key, values[i], 1));
    }
    return OQ_OK;
}

static oq_status denoise_item(w_run *r, int step, int64_t item)
{
    const oq_dtype *type = r->ex->compute;
    const double second = isnan(r->req->guidance_2) ? r->req->guidance : r->req->guidance_2;
    float *latents = r->latents + item * r->elems;
    OQ_TRY(oq_check_canceled(r->ex->env));
    r->ex->step = step + 1;
    OQ_TRY(predict(r, step, item));
    if (r->ex->measure) return OQ_OK;
    if (r->guided)
        oq_latents_guide_plain(type, r->predictions, r->predictions + r->elems, r->elems,
                               r->expert ? second : r->req->guidance);
    oq_unipc_step(&r->schedule, &r->states[item], r->req->steps, r->sigmas, type, r->predictions, latents,
                  r->corrected);
    if (!oq_values_finite(latents, r->elems))
        return oq_fail(r->ex->env, OQ_E_NUMERIC,
                       "step %d of %d: the guided prediction left the range of float32", step + 1,
                       r->req->steps);
    return trace_step(r, step, item);
}

static oq_status decode(w_run *r);

/* What the step's prediction aims at. */
static void aim(const void *run, int index, float *latents)
{
    const w_run *r = run;
    (void)index; /* each state keeps it */
    for (int64_t i = 0; i < r->n_items; i++)
        memcpy(latents + i * r->elems, r->states[i].clean[0], (size_t)r->elems * sizeof *latents);
}

static oq_status decode_copy(const void *run, float *latents, oq_output *out)
{
    w_run copy = *(const w_run *)run;
    copy.latents = latents;
    copy.out = out;
    oq_arena_init(&copy.arena, copy.ex->env);
    const oq_status st = decode(&copy);
    oq_arena_deinit(&copy.arena);
    return st;
}

static oq_status preview(w_run *r, int index)
{
    const oq_run_look look = {.index = index,
                              .step = index + 1,
                              .steps = r->req->steps,
                              .elems = r->n_items * r->elems,
                              .aim = aim,
                              .decode = decode_copy,
                              .run = r};
    return oq_run_look_at(r->ex, r->req, &look);
}

static oq_status denoise_step(void *user, int64_t index)
{
    w_run *r = user;
    const int step = (int)index;
    OQ_TRY(activate(r, expert_of(r, step)));
    for (int64_t i = 0; i < r->n_items; i++) OQ_TRY(denoise_item(r, step, i));
    return preview(r, step);
}

/* One step of each expert for the sizes. */
static oq_status measure_experts(w_run *r)
{
    for (int e = 0; e < 2 && r->w->experts[e]; e++) {
        OQ_TRY(activate(r, e));
        OQ_TRY(predict(r, 0, 0));
    }
    return preview(r, 0);
}

static oq_status denoise(w_run *r)
{
    const oq_run_phase phase = {.name = "denoise",
                                .end = r->req->steps,
                                .step = denoise_step,
                                .user = r,
                                .seconds = r->out ? &r->out->denoise_s : NULL,
                                .each_s = r->out ? r->out->step_s : NULL};
    oq_phase_begin(r->ex, OQ_PHASE_DENOISE);
    OQ_TRY(oq_tmp(r->ex, r->in_channels, r->pixels, &r->x));
    OQ_TRY(oq_tmp(r->ex, 2 * r->z, r->pixels, &r->y));
    OQ_TRY(oq_dit_wan_grid_new(r->ex, r->w->experts[0], r->frames, r->h, r->w_px, &r->grid));
    r->expert_mark = oq_mark_get(r->ex);
    return r->ex->measure ? measure_experts(r) : oq_run_phase_walk(r->ex, &phase);
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

/* In float32, whatever the run's type is. */
static oq_status decode(w_run *r)
{
    const oq_vae_wan *vae = r->w->vae;
    const oq_dtype *type = r->ex->compute;
    const oq_wan_decoding d = {.vae = vae,
                               .request = r->req,
                               .video = true,
                               .n_items = r->n_items,
                               .frames = r->frames,
                               .h = r->h,
                               .w = r->w_px,
                               .planes = r->latents,
                               .out = r->out};
    for (int64_t i = 0; !r->ex->measure && i < r->n_items; i++) {
        float *latents = r->latents + i * r->elems;
        put_first_frame(r, latents);
        oq_latents_rescale(&oq_dtype_f32, latents, r->pixels, r->z, true, vae->mean, vae->std);
    }
    r->ex->compute = &oq_dtype_f32;
    const oq_status st = oq_decode_wan(r->ex, &r->arena, &d);
    r->ex->compute = type;
    return st;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static oq_status walk(void *user)
{
    w_run *r = user;
    OQ_TRY(start(r));
    OQ_TRY(make_schedule(r));
    const oq_mark mark = oq_mark_get(r->ex);
    OQ_TRY(make_condition(r));
    OQ_TRY(encode_texts(r));
    OQ_TRY(make_noise(r));
    OQ_TRY(denoise(r));
    oq_mark_reset(r->ex, mark); /* texts and conditions are spent */
    return decode(r);
}

oq_status wan_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    w_run r = {.ex = ex, .w = self, .req = request, .out = out};
    return oq_run_walk(ex, &r.arena, walk, &r);
}
