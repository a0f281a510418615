/* flux2.c -- what FLUX.2-klein and FLUX.2-dev share: how their parts must fit together, which requests they take, and their
 * parts of the walk (packed_run.c): three hidden states of the text encoder side by side, pads included, a schedule by
 * picture size and steps, references behind the picture's tokens, latents in the statistics of the autoencoder. */
#include "pipelines/flux2.h"

#include "pipelines/image_latents.h"
#include "pipelines/latents.h"
#include "pipelines/packed_run.h"
#include "pipelines/pipeline_parts.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/text_states.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_REFERENCES = 16, MAX_AREA = 1024 * 1024 };
enum { MIN_SIDE = 64, MAX_RATIO = 8, FRAMES_APART = 10 }; /* of references */

/* ---- what it is made of -------------------------------------------------------------------------------- */

static oq_status check_fit(oq_env *env, const oq_flux2 *f)
{
    const int64_t patch = OQ_PACKED_PATCH * OQ_PACKED_PATCH;
    if (OQ_FLUX2_TAPS * f->encoder->hidden_size != f->dit->text_dim)
        return oq_fail(env, OQ_E_FORMAT,
                       "%d states of the text encoder's hidden size %lld, the transformer takes %lld",
                       (int)OQ_FLUX2_TAPS, (long long)f->encoder->hidden_size, (long long)f->dit->text_dim);
    if (f->vae->latent_channels * patch != f->dit->in_channels || f->dit->in_channels != f->dit->out_channels)
        return oq_fail(env, OQ_E_FORMAT,
                       "the autoencoder has %lld latent channels, the transformer takes %lld and gives %lld",
                       (long long)f->vae->latent_channels, (long long)(f->dit->in_channels / patch),
                       (long long)(f->dit->out_channels / patch));
    if (f->vae->in_channels != 3 || f->vae->out_channels != 3 || !f->vae->has_statistics)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "the autoencoder is no AutoencoderKLFlux2 of pictures with 3 channels");
    if (f->dit->has_guidance != f->words->embeds_guidance)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "a transformer %s 'guidance_embeds' belongs to FLUX.2-%s, this folder's pipeline is %s",
            f->dit->has_guidance ? "with" : "without", f->dit->has_guidance ? "dev" : "klein",
            f->words->family);
    return OQ_OK;
}

static int64_t tap(const oq_te_qwen3 *encoder, int64_t i)
{
    return encoder->n_layers * (i + 1) / 4;
}

void oq_flux2_trim_encoder(const oq_json *model_index, void *self)
{
    oq_te_qwen3 *encoder = self;
    (void)model_index;
    encoder->n_run = tap(encoder, OQ_FLUX2_TAPS - 1);
    encoder->norm_unused = true;
}

oq_status oq_flux2_init(oq_env *env, const oq_pipeline_setup *setup, const oq_flux2_words *words, oq_flux2 *f)
{
    f->words = words;
    f->encoder = setup->modules[0];
    f->dit = setup->modules[1];
    f->vae = setup->modules[2];
    for (int64_t i = 0; i < OQ_FLUX2_TAPS; i++) /* a quarter, half and three quarters of the layers */
        f->taps[i] = tap(f->encoder, i);
    OQ_TRY(oq_setup_check_scheduler(env, setup, words->family, "FlowMatchEulerDiscreteScheduler"));
    OQ_TRY(check_fit(env, f));
    OQ_TRY(oq_flow_euler_parse(env, setup->scheduler, &f->schedule));
    return oq_setup_tokenizer(env, setup, "tokenizer", words->before, words->after, &f->tokenizer);
}

void oq_flux2_deinit(oq_env *env, void *self)
{
    oq_flux2 *f = self;
    oq_tokenizer_close(env, f->tokenizer);
    f->tokenizer = NULL;
}

static oq_status check_references(oq_env *env, const oq_request *r)
{
    if (r->n_images > MAX_REFERENCES)
        return oq_fail(env, OQ_E_ARG, "%d references, at most %d are taken", r->n_images,
                       (int)MAX_REFERENCES);
    for (int i = 0; i < r->n_images; i++) {
        const int64_t w = r->images[i].width, h = r->images[i].height;
        if (w < MIN_SIDE || h < MIN_SIDE)
            return oq_fail(env, OQ_E_ARG, "reference %d has %lld x %lld pixels, each side needs at least %d",
                           i + 1, (long long)w, (long long)h, (int)MIN_SIDE);
        if (w > MAX_RATIO * h || h > MAX_RATIO * w)
            return oq_fail(env, OQ_E_ARG,
                           "reference %d has %lld x %lld pixels: no side may be more than %d times the other",
                           i + 1, (long long)w, (long long)h, (int)MAX_RATIO);
    }
    return OQ_OK;
}

oq_status oq_flux2_check(oq_env *env, const oq_flux2 *f, const oq_request *request)
{
    const oq_sides sides = {.multiple = OQ_PACKED_PATCH * oq_vae_kl_scale(f->vae),
                            .bytes_per_px = 2 * 2 * 2 * f->vae->decoder_channels[0]};
    OQ_TRY(oq_request_check_sides(env, request, &sides));
    OQ_TRY(oq_request_check_schedule(env, request));
    OQ_TRY(oq_request_check_guidance(env, request));
    OQ_TRY(oq_request_check_plain_guidance(env, request, f->words->family));
    OQ_TRY(check_references(env, request));
    const int64_t positions = f->encoder->max_positions,
                  most = positions < OQ_FLUX2_MAX_TOKENS ? positions : OQ_FLUX2_MAX_TOKENS;
    return oq_request_check_texts(env, request, most);
}

/* ---- its parts of the walk ----------------------------------------------------------------------------- */

typedef struct flux2_run {
    const oq_flux2 *f;
    oq_dit_flux2_condition *conditions;          /* [n_prompts], then the negative prompt's */
    oq_dit_flux2_grid grids[1 + MAX_REFERENCES]; /* of the picture, then of the references */
    int n_grids;
    float *mean, *std; /* of a token's values */
    float *references; /* [extra, width], tokens of all references */
    int64_t extra;
} flux2_run;

/* A copy of the prompt without what stands for a picture in the encoder's own templates. */
static oq_status leave_out(oq_packed_run *r, const char *text, const char *mark, const char **out)
{
    char *copy = oq_arena_strdup(&r->arena, text), *to = copy;
    if (!copy) return oq_fail(r->ex->env, OQ_E_NOMEM, "prompt: no memory");
    while (*text) {
        if (strncmp(text, mark, strlen(mark)) == 0)
            text += strlen(mark);
        else
            *to++ = *text++;
    }
    *to = '\0';
    *out = copy;
    return OQ_OK;
}

/* embeds: [max_sequence_length, 3 hidden]. Pads are seen by the transformer; those behind a prompt see its tokens. */
static oq_status encode(oq_packed_run *r, const char *text, const oq_run_words *w, oq_tensor embeds)
{
    const oq_flux2 *f = ((flux2_run *)r->self)->f;
    const oq_prompt_ids rule = {.tokenizer = f->tokenizer,
                                .before = f->words->before,
                                .after = f->words->after,
                                .first = f->words->first,
                                .vocab_size = f->encoder->vocab_size,
                                .max_tokens = embeds.rows,
                                .warn = r->ex->measure,
                                .pad = true,
                                .pad_before = f->pads_before,
                                .pad_id = oq_prompt_ids_find(f->tokenizer, f->words->pad, 0)};
    const oq_mark mark = oq_mark_get(r->ex);
    char key[48], ids_key[64];
    int32_t *ids = NULL;
    int64_t n = 0;
    oq_tensor state;
    snprintf(key, sizeof key, "text.%s", w->side);
    snprintf(ids_key, sizeof ids_key, "%s.ids", key);
    if (f->words->left_out) OQ_TRY(leave_out(r, text, f->words->left_out, &text));
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, w->what, &ids, &n));
    OQ_TRY(oq_trace_host(r->ex, ids_key, &oq_dtype_i32, ids, &embeds.rows, 1));
    const oq_te_qwen3_args args = {.ids = ids,
                                   .n = embeds.rows,
                                   .n_layers = f->taps[OQ_FLUX2_TAPS - 1],
                                   .n_valid = n,
                                   .n_before = f->pads_before ? embeds.rows - n : 0,
                                   .taps = f->taps,
                                   .n_taps = OQ_FLUX2_TAPS,
                                   .tapped = embeds,
                                   .trace = r->ex->trace ? key : NULL};
    OQ_TRY(oq_tmp(r->ex, embeds.rows, f->encoder->hidden_size, &state));
    OQ_TRY(oq_text_states_qwen3(r->ex, f->encoder, &args, state, w->what));
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, embeds, NULL, 0, "%s.embeds", key));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

static oq_status condition(oq_packed_run *r, const char *text, int64_t index, int64_t item)
{
    flux2_run *run = r->self;
    const oq_flux2 *f = run->f;
    const oq_run_words w = oq_run_describe(r->req->n_prompts, index);
    oq_dit_flux2_condition *c = &run->conditions[index];
    char prefix[OQ_RUN_PREFIX_MAX];
    oq_tensor embeds;
    OQ_TRY(
        oq_dit_flux2_condition_new(r->ex, f->dit, r->req->max_sequence_length, run->grids, run->n_grids, c));
    const oq_mark mark = oq_mark_get(r->ex);
    OQ_TRY(oq_tmp(r->ex, r->req->max_sequence_length, f->dit->text_dim, &embeds));
    OQ_TRY(encode(r, text, &w, embeds));
    OQ_TRY(oq_dit_flux2_condition_run(r->ex, f->dit, embeds, run->grids, run->n_grids, c,
                                      oq_run_prefix(r->ex, "dit0", item, prefix)));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

static oq_status forward(oq_packed_run *r, int64_t index, int step, oq_tensor x, oq_tensor y,
                         const char *trace)
{
    const flux2_run *run = r->self;
    return oq_dit_flux2_forward(r->ex, run->f->dit, &run->conditions[index], x, r->times.model_t[step],
                                (float)r->req->guidance, y, trace);
}

/* value * std + mean of each of a token's values, rounded as a model in the compute type does */
static void unscale(const oq_packed_run *r, float *packed)
{
    const flux2_run *run = r->self;
    const oq_dtype *type = r->ex->compute;
    for (int64_t i = 0; i < r->elems; i++) {
        const float scaled = oq_value_round(type, packed[i] * run->std[i % r->width]);
        packed[i] = oq_value_round(type, scaled + run->mean[i % r->width]);
    }
}

/* ---- references ---------------------------------------------------------------------------------------- */

/* A reference keeps its size, down to at most a square of 1024, cut to whole tokens. */
static void reference_size(const oq_image *image, int64_t cell, int64_t *width, int64_t *height)
{
    *width = image->width;
    *height = image->height;
    if (image->width * image->height > MAX_AREA) {
        const double scale = sqrt((double)MAX_AREA / ((double)image->width * (double)image->height));
        *width = (int64_t)((double)image->width * scale);
        *height = (int64_t)((double)image->height * scale);
    }
    *width = *width / cell * cell;
    *height = *height / cell * cell;
}

/* The picture resized where it is too large, then cut out of the middle. */
static oq_status fit_reference(oq_env *env, const oq_image *image, int64_t cell, oq_image *out)
{
    int64_t width, height;
    oq_image smaller = {0};
    reference_size(image, cell, &width, &height);
    if (image->width * image->height <= MAX_AREA) return oq_image_fit(env, image, width, height, true, out);
    const double scale = sqrt((double)MAX_AREA / ((double)image->width * (double)image->height));
    OQ_TRY(oq_image_resize(env, image, OQ_LANCZOS, (int64_t)((double)image->width * scale),
                           (int64_t)((double)image->height * scale), &smaller));
    const oq_status st = oq_image_fit(env, &smaller, width, height, true, out);
    oq_image_deinit(env, &smaller);
    return st;
}

/* Means in the autoencoder's statistics, packed to tokens. */
static oq_status pack_reference(oq_exec *ex, oq_arena *arena, const flux2_run *run,
                                const oq_dit_flux2_grid *grid, float *means, int index, float *tokens)
{
    const int64_t width = run->f->dit->in_channels, n = grid->rows * grid->columns;
    char key[32];
    oq_packed_repack(grid->rows, grid->columns, width, means, tokens, true);
    for (int64_t i = 0; i < n * width; i++) {
        const float centred = oq_value_round(ex->compute, tokens[i] - run->mean[i % width]);
        tokens[i] = oq_value_round(ex->compute, centred / run->std[i % width]);
    }
    if (!ex->trace) return OQ_OK;
    float *planes = NULL;
    OQ_TRY(oq_arena_new(arena, (size_t)(n * width), sizeof *planes, "references", &planes));
    oq_values_transpose(planes, tokens, n, width);
    snprintf(key, sizeof key, "input.%d.latents", index);
    return oq_trace_host(ex, key, &oq_dtype_f32, planes, (int64_t[]){1, width, grid->rows, grid->columns}, 4);
}

static oq_status encode_reference(oq_exec *ex, oq_arena *arena, flux2_run *run, const oq_request *request,
                                  int index, float *tokens)
{
    const oq_flux2 *f = run->f;
    const int64_t cell = OQ_PACKED_PATCH * oq_vae_kl_scale(f->vae);
    const oq_dit_flux2_grid *grid = &run->grids[1 + index];
    const oq_image_vae vae = oq_image_vae_kl(f->vae, request->vae_tile);
    float *moments = NULL;
    oq_image fitted = {0};
    char key[32];
    snprintf(key, sizeof key, "input.%d", index);
    if (!ex->measure) OQ_TRY(fit_reference(ex->env, &request->images[index], cell, &fitted));
    oq_status st =
        oq_image_encode(ex, arena, &vae, &fitted, grid->columns * cell, grid->rows * cell, key, &moments);
    oq_image_deinit(ex->env, &fitted);
    if (st == OQ_OK && !ex->measure) st = pack_reference(ex, arena, run, grid, moments, index, tokens);
    return st;
}

static oq_status encode_references(oq_exec *ex, oq_arena *arena, flux2_run *run, const oq_request *request)
{
    const int64_t cell = OQ_PACKED_PATCH * oq_vae_kl_scale(run->f->vae), token = run->f->dit->in_channels;
    run->grids[0] = (oq_dit_flux2_grid){.rows = request->height / cell, .columns = request->width / cell};
    run->n_grids = 1;
    for (int i = 0; i < request->n_images; i++) {
        int64_t width, height;
        reference_size(&request->images[i], cell, &width, &height);
        run->grids[run->n_grids++] =
            (oq_dit_flux2_grid){.t = FRAMES_APART * (i + 1), .rows = height / cell, .columns = width / cell};
        run->extra += width / cell * (height / cell);
    }
    if (!ex->measure && run->extra)
        OQ_TRY(
            oq_arena_new(arena, (size_t)(run->extra * token), sizeof(float), "references", &run->references));
    float *at = run->references;
    for (int i = 0; i < request->n_images; i++) {
        OQ_TRY(encode_reference(ex, arena, run, request, i, at));
        if (at) at += run->grids[1 + i].rows * run->grids[1 + i].columns * token;
    }
    return OQ_OK;
}

static oq_status walk(oq_exec *ex, oq_arena *arena, flux2_run *state, const oq_request *request, bool guided,
                      oq_output *out)
{
    const oq_flux2 *f = state->f;
    const int64_t cell = OQ_PACKED_PATCH * oq_vae_kl_scale(f->vae), width = f->dit->in_channels;
    OQ_TRY(oq_arena_new(arena, (size_t)request->n_prompts + 1, sizeof *state->conditions, "prompts",
                        &state->conditions));
    OQ_TRY(oq_arena_new(arena, (size_t)width, sizeof(float), "statistics", &state->mean));
    OQ_TRY(oq_arena_new(arena, (size_t)width, sizeof(float), "statistics", &state->std));
    OQ_TRY(oq_vae_kl_statistics(ex, f->vae, state->mean, state->std));
    OQ_TRY(encode_references(ex, arena, state, request));
    const oq_packed_family family = {
        .vae = f->vae,
        .channels = f->vae->latent_channels,
        .scale = oq_vae_kl_scale(f->vae),
        .schedule = &f->schedule,
        .noise_by_token = true,
        .mu = oq_flow_euler_empirical_mu(request->height / cell * (request->width / cell), request->steps),
        .extra = state->extra,
        .extra_tokens = state->references,
        .guided = guided,
        .guidance = request->guidance,
        .condition = condition,
        .forward = forward,
        .unscale = unscale};
    return oq_packed_walk(ex, &family, state, request, out);
}

oq_status oq_flux2_run(oq_exec *ex, const oq_flux2 *f, const oq_request *request, bool guided, oq_output *out)
{
    flux2_run state = {.f = f};
    oq_arena arena;
    oq_arena_init(&arena, ex->env);
    const oq_status st = walk(ex, &arena, &state, request, guided, out);
    oq_arena_deinit(&arena);
    return st;
}
