/* wan_run.c -- Wan: prompts, noise, denoising by one or two experts, decoding piece by piece. One item is one video; items
 * run one after the other. A text's keys and values are made once for the expert that is at work: when the second takes
 * over, its own go where the first's were. In measure mode the same walk takes one step of each expert and touches no
 * values. Nothing is allocated between the first step and the last. */
#include "pipelines/wan.h"

#include "pipelines/latents.h"
#include "pipelines/prompt_clean.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/run_parts.h"
#include "pipelines/tiles.h"

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

typedef struct encoding {
    const oq_te_t5 *encoder;
    oq_te_t5_args args;
    oq_tensor states;
} encoding;

static oq_status encode_again(oq_exec *ex, void *user)
{
    encoding *e = user;
    if (!ex->trace) e->args.trace = NULL;
    return oq_te_t5_forward(ex, e->encoder, &e->args, e->states);
}

/* The prompt's own tokens alone: padding is masked in the original and its states are zeros. */
static oq_status encode_text(w_run *r, const char *text, const char *side, int64_t index, oq_tensor *out)
{
    const oq_prompt_ids rule = {.tokenizer = r->w->tokenizer,
                                .before = "",
                                .after = "",
                                .vocab_size = r->w->encoder->vocab_size,
                                .max_tokens = r->req->max_sequence_length,
                                .keep_last = 1,
                                .warn = r->ex->measure};
    char what[64], key[48], ids_key[64], *clean = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    if (side[0] == 'p')
        snprintf(what, sizeof what, "prompt %lld", (long long)index + 1);
    else
        snprintf(what, sizeof what, "the negative prompt");
    OQ_TRY(oq_prompt_clean(r->ex->env, &r->arena, text, &clean));
    if (!r->w->tokenizer && !*clean) clean = " "; /* bytes for tokens: at least one */
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, clean, what, &ids, &n));
    snprintf(key, sizeof key, "text.%s.%lld", side, (long long)index);
    snprintf(ids_key, sizeof ids_key, "%s.ids", key);
    OQ_TRY(oq_trace_host(r->ex, ids_key, &oq_dtype_i32, ids, &n, 1));
    OQ_TRY(oq_tmp(r->ex, n, r->w->encoder->hidden_size, out));
    encoding e = {.encoder = r->w->encoder, .args = {.ids = ids, .n = n}, .states = *out};
    e.args.trace = r->ex->trace ? key : NULL;
    OQ_TRY(oq_run_checked(r->ex, encode_again, &e, e.states, "text_encoder", what));
    return r->ex->trace ? oq_trace_put(r->ex, e.states, NULL, 0, "%s.embeds", key) : OQ_OK;
}

/* Prompt i; behind the prompts the negative one. */
static oq_status make_text(void *user, int64_t i)
{
    w_run *r = user;
    const oq_request *req = r->req;
    const bool negative = i == req->n_prompts;
    const char *text = !negative ? req->prompts[i] : req->negative ? req->negative : "";
    return encode_text(r, text, negative ? "neg" : "pos", negative ? 0 : i, &r->texts[i]);
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
    OQ_TRY(oq_image_resize(ex->env, &r->req->images[0], r->req->width, r->req->height, &resized));
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

static oq_status denoise_step(void *user, int64_t index)
{
    w_run *r = user;
    const int step = (int)index;
    OQ_TRY(activate(r, expert_of(r, step)));
    for (int64_t i = 0; i < (r->ex->measure ? 1 : r->n_items); i++) OQ_TRY(denoise_item(r, step, i));
    return OQ_OK;
}

/* One step of each expert for the sizes. */
static oq_status measure_experts(w_run *r)
{
    for (int e = 0; e < 2 && r->w->experts[e]; e++) {
        OQ_TRY(activate(r, e));
        OQ_TRY(predict(r, 0, 0));
    }
    return OQ_OK;
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

typedef struct decoding {
    w_run *r;
    int64_t item, n_pixels; /* of one frame */
    int64_t piece;          /* latent frames at a time */
    oq_tensor z;            /* [pixels, z] */
    float *rows;            /* host values: latents, or frames of a piece */
    void *packed;           /* the same in the compute type */
    float *planes;          /* [3, frames, n_pixels] for the trace; NULL without one */
    float *features;        /* [pixels, features] of an item in tiles */
    float *blended;         /* [frames, n_pixels, 3] of an item in tiles */
    int64_t tile;           /* latents; 0: the whole */
    double started_s;
} decoding;

static oq_status start_decoding(w_run *r, decoding *d)
{
    *d = (decoding){.r = r, .n_pixels = r->req->width * r->req->height, .started_s = oq_now_s()};
    oq_phase_begin(r->ex, OQ_PHASE_DECODE);
    d->piece = r->req->vae_piece > 0 ? r->req->vae_piece : 1;
    if (d->piece > r->frames) d->piece = r->frames;
    d->tile = oq_tile_latents(r->req->vae_tile, oq_vae_wan_scale(r->w->vae));
    if (d->tile >= r->h && d->tile >= r->w_px) d->tile = 0;
    if (d->tile == 0) OQ_TRY(oq_tmp(r->ex, r->pixels, r->z, &d->z));
    if (r->ex->measure) return OQ_OK;
    const int64_t frames = oq_vae_wan_time_scale(r->w->vae) * d->piece, most = 3 * d->n_pixels * frames;
    const size_t n = (size_t)(r->elems > most ? r->elems : most);
    OQ_TRY(oq_arena_new(&r->arena, n, sizeof(float), "frames", &d->rows));
    if (!r->ex->trace || d->tile) return OQ_OK;
    return oq_arena_new(&r->arena, (size_t)(3 * d->n_pixels * r->req->frames), sizeof(float), "frames",
                        &d->planes);
}

static void keep_planes(const decoding *d, int64_t first, int64_t n)
{
    const int64_t all = d->r->req->frames * d->n_pixels;
    for (int64_t i = 0; i < n * d->n_pixels; i++)
        for (int64_t c = 0; c < 3; c++) d->planes[c * all + first * d->n_pixels + i] = d->rows[i * 3 + c];
}

/* An oq_vae_wan_sink. */
static oq_status take_frames(oq_exec *ex, void *user, oq_tensor frames, int64_t first, int64_t n)
{
    decoding *d = user;
    const w_run *r = d->r;
    const int64_t count = 3 * n * d->n_pixels, at = (d->item * r->req->frames + first) * 3 * d->n_pixels;
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_download(ex, d->rows, frames));
    if (!oq_values_finite(d->rows, count))
        return oq_fail(ex->env, OQ_E_NUMERIC, "decoding frames %lld to %lld of %lld: non-finite values",
                       (long long)first + 1, (long long)(first + n), (long long)r->req->frames);
    if (d->planes) keep_planes(d, first, n);
    oq_pixels_from_values(ex->compute, r->out->pixels + at, d->rows, count);
    oq_run_tell(ex, "decode", d->item * r->req->frames + first + n, r->n_items * r->req->frames,
                d->started_s);
    return OQ_OK;
}

/* An oq_tile_decode. */
static oq_status decode_tile(oq_exec *ex, void *user, oq_tensor z, int64_t h, int64_t w, bool whole,
                             oq_tile_take take, void *take_user)
{
    const decoding *d = user;
    const oq_vae_wan_args args = {.frames = d->r->frames, .h = h, .w = w, .piece = d->piece};
    (void)whole; /* one tile goes the direct way, frame by frame */
    return oq_vae_wan_decode_tail(ex, d->r->w->vae, &args, z, take, take_user);
}

/* The decoder's head sees whole frames; its features go to host memory. */
static oq_status make_features(w_run *r, decoding *d)
{
    const oq_mark mark = oq_mark_get(r->ex);
    const int64_t C = oq_vae_wan_features(r->w->vae);
    const oq_vae_wan_args args = {.frames = r->frames, .h = r->h, .w = r->w_px, .piece = d->piece};
    oq_tensor z, features;
    OQ_TRY(oq_tmp(r->ex, r->pixels, r->z, &z));
    OQ_TRY(oq_tmp(r->ex, r->pixels, C, &features));
    OQ_TRY(oq_upload(r->ex, z, d->rows));
    OQ_TRY(oq_vae_wan_decode_head(r->ex, r->w->vae, &args, z, features));
    if (!r->ex->measure && !d->features)
        OQ_TRY(oq_arena_new(&r->arena, (size_t)(r->pixels * C), sizeof(float), "features", &d->features));
    OQ_TRY(oq_download(r->ex, d->features, features));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

/* All frames of each tile, blended in host memory. */
static oq_status decode_in_tiles(w_run *r, decoding *d)
{
    const int64_t scale = oq_vae_wan_scale(r->w->vae), n = 3 * d->n_pixels * r->req->frames;
    const oq_tiling tiling = {.frames = r->frames,
                              .h = r->h,
                              .w = r->w_px,
                              .channels = oq_vae_wan_features(r->w->vae),
                              .scale = scale,
                              .tile = d->tile,
                              .most_frames = oq_vae_wan_time_scale(r->w->vae) * d->piece,
                              .decode = decode_tile,
                              .user = d};
    OQ_TRY(make_features(r, d));
    if (r->ex->measure) return oq_decode_tiles(r->ex, &r->arena, &tiling, NULL, NULL);
    if (!d->blended) OQ_TRY(oq_arena_new(&r->arena, (size_t)n, sizeof(float), "frames", &d->blended));
    memset(d->blended, 0, (size_t)n * sizeof *d->blended);
    OQ_TRY(oq_decode_tiles(r->ex, &r->arena, &tiling, d->features, d->blended));
    if (!oq_values_finite(d->blended, n))
        return oq_fail(r->ex->env, OQ_E_NUMERIC, "decoding video %lld of %lld: non-finite values",
                       (long long)d->item + 1, (long long)r->n_items);
    oq_pixels_from_values(&oq_dtype_f32, r->out->pixels + d->item * n, d->blended, n);
    return OQ_OK;
}

static oq_status trace_decoded(const decoding *d)
{
    const oq_request *req = d->r->req;
    char key[OQ_RUN_PREFIX_MAX], buffer[OQ_RUN_PREFIX_MAX];
    if (!d->planes) return OQ_OK;
    snprintf(key, sizeof key, "%.40s.out", oq_run_prefix(d->r->ex, "vae", d->item, buffer));
    return oq_trace_host(d->r->ex, key, &oq_dtype_f32, d->planes,
                         (int64_t[]){1, 3, req->frames, req->height, req->width}, 5);
}

static oq_status decode_item(w_run *r, decoding *d)
{
    oq_exec *ex = r->ex;
    char buffer[OQ_RUN_PREFIX_MAX], key[OQ_RUN_PREFIX_MAX];
    const oq_vae_wan_args args = {.frames = r->frames,
                                  .h = r->h,
                                  .w = r->w_px,
                                  .piece = d->piece,
                                  .trace = oq_run_prefix(ex, "vae", d->item, buffer)};
    if (!ex->measure) {
        float *latents = r->latents + d->item * r->elems;
        put_first_frame(r, latents);
        oq_latents_rescale(ex->compute, latents, r->pixels, r->z, true, r->w->vae->mean, r->w->vae->std);
        if (args.trace) {
            snprintf(key, sizeof key, "%.40s.in", args.trace);
            OQ_TRY(trace_latents(r, key, latents, 1));
        }
        oq_values_transpose(d->rows, latents, r->z, r->pixels);
    }
    if (d->tile) return decode_in_tiles(r, d);
    OQ_TRY(oq_upload(ex, d->z, d->rows));
    OQ_TRY(oq_vae_wan_decode(ex, r->w->vae, &args, d->z, take_frames, d));
    return trace_decoded(d);
}

static oq_status decode(w_run *r)
{
    decoding d;
    const oq_request *req = r->req;
    const int64_t n = r->ex->measure ? 1 : r->n_items;
    const oq_dtype *type = r->ex->compute;
    r->ex->compute = &oq_dtype_f32;
    oq_status st = start_decoding(r, &d);
    oq_run_tell(r->ex, "decode", 0, r->n_items * req->frames, d.started_s);
    for (; st == OQ_OK && d.item < n; d.item++) st = decode_item(r, &d);
    r->ex->compute = type;
    if (st != OQ_OK || r->ex->measure) return st;
    OQ_TRY(oq_trace_host(r->ex, "image", &oq_dtype_u8, r->out->pixels,
                         (int64_t[]){n, req->frames, req->height, req->width, 3}, 5));
    r->out->decode_s = oq_now_s() - d.started_s;
    return OQ_OK;
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
