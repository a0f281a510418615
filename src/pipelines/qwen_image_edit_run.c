/* qwen_image_edit_run.c -- one request of Qwen-Image-Edit: pictures through the vision tower to states among the text, and
 * through the autoencoder to tokens behind those of the picture that is made; then Qwen-Image's walk. */
#include "pipelines/qwen_image_edit.h"

#include "pipelines/latents.h"
#include "pipelines/prompt_ids.h"

#include <stdio.h>
#include <string.h>

typedef struct seen {      /* a picture as the text encoder sees it */
    int64_t rows, columns; /* of states */
    oq_tensor states;
} seen;

typedef struct edit_run {
    qwen_image_walk walk; /* first */
    const qwen_image_edit *e;
    oq_image planned; /* where none is given: of the request's size, without pixels */
    const oq_image *images;
    int n_images;
    seen seen[QWEN_IMAGE_MAX_GIVEN];
} edit_run;

/* ---- pictures to the text encoder ---------------------------------------------------------------------- */

typedef struct tower_call {
    const oq_vision_qwen25 *tower;
    oq_vision_qwen25_picture picture;
    oq_tensor y;
    const char *trace;
} tower_call;

static oq_status tower_again(oq_exec *ex, void *user)
{
    const tower_call *c = user;
    return oq_vision_qwen25_forward(ex, c->tower, &c->picture, c->y, ex->trace ? c->trace : NULL);
}

/* The patches of a picture that has the size of its area already. */
static oq_status show(oq_exec *ex, oq_arena *arena, edit_run *run, const oq_image *fitted, int index)
{
    const qwen_image_edit *e = run->e;
    const oq_vision_patches *p = &e->patches;
    const oq_vision_qwen25 *tower = &e->seer->vision;
    char key[32], what[32], patches_key[48];
    int64_t width = 0, height = 0;
    float *patches = NULL;
    if (!oq_vision_patches_size(p, fitted->width, fitted->height, &width, &height))
        return oq_fail(ex->env, OQ_E_ARG, "picture %d: one side is too short beside the other", index + 1);
    seen *s = &run->seen[index];
    s->rows = height / p->patch / p->merge;
    s->columns = width / p->patch / p->merge;
    snprintf(key, sizeof key, "vision.%d", index);
    snprintf(what, sizeof what, "picture %d", index + 1);
    snprintf(patches_key, sizeof patches_key, "%s.patches", key);
    OQ_TRY(oq_tmp(ex, s->rows * s->columns, tower->out_hidden_size, &s->states));
    if (!ex->measure) OQ_TRY(oq_vision_patches_make(ex->env, arena, p, fitted, width, height, &patches));
    const int64_t shape[] = {s->rows * s->columns * p->merge * p->merge, oq_vision_qwen25_patch(tower)};
    OQ_TRY(oq_trace_host(ex, patches_key, &oq_dtype_f32, patches, shape, 2));
    tower_call call = {
        .tower = tower,
        .picture = {.rows = height / p->patch, .columns = width / p->patch, .patches = patches},
        .y = s->states,
        .trace = key};
    return oq_run_checked(ex, tower_again, &call, s->states, "text_encoder", what);
}

/* ---- pictures to the transformer ----------------------------------------------------------------------- */

/* Means in the autoencoder's statistics, rounded where a model in the compute type rounds, packed to tokens. */
static oq_status pack(oq_exec *ex, const oq_vae_wan *vae, const oq_dit_qwen_image_grid *grid, float *means,
                      int index, float *tokens)
{
    const oq_dtype *type = ex->compute;
    const int64_t h = grid->rows * OQ_PACKED_PATCH, w = grid->columns * OQ_PACKED_PATCH;
    char key[32];
    for (int64_t i = 0; i < vae->z_dim * h * w; i++) {
        const int64_t c = i / (h * w);
        const float centred = oq_value_round(type, means[i] - oq_value_round(type, vae->mean[c]));
        means[i] = oq_value_round(type, centred / oq_value_round(type, vae->std[c]));
    }
    snprintf(key, sizeof key, "input.%d.latents", index);
    OQ_TRY(oq_trace_host(ex, key, &oq_dtype_f32, means, (int64_t[]){1, vae->z_dim, h, w}, 4));
    oq_packed_repack(grid->rows, grid->columns, OQ_PACKED_PATCH * OQ_PACKED_PATCH * vae->z_dim, means, tokens,
                     true);
    return OQ_OK;
}

static oq_status encode(oq_exec *ex, oq_arena *arena, edit_run *run, const oq_image *fitted, int index,
                        float *tokens)
{
    const oq_vae_wan *vae = run->e->base.vae;
    const oq_image_vae image = oq_image_vae_wan(vae);
    float *moments = NULL;
    char key[32];
    snprintf(key, sizeof key, "input.%d", index);
    OQ_TRY(oq_image_encode(ex, arena, &image, fitted, fitted->width, fitted->height, key, &moments));
    if (ex->measure) return OQ_OK;
    return pack(ex, vae, &run->walk.grids[1 + index], moments, index, tokens);
}

/* ---- both ---------------------------------------------------------------------------------------------- */

/* The picture at an area; without pixels while measuring. */
static oq_status fit(oq_exec *ex, const oq_image *image, int64_t area, oq_image *out)
{
    int64_t width, height;
    qwen_image_edit_fit(area, image, &width, &height);
    *out = (oq_image){.width = width, .height = height};
    return ex->measure ? OQ_OK : oq_image_resize(ex->env, image, OQ_LANCZOS, width, height, out);
}

static oq_status take_picture(oq_exec *ex, oq_arena *arena, edit_run *run, int index, float *tokens)
{
    const qwen_image_edit *e = run->e;
    const oq_image *image = &run->images[index];
    oq_image fitted = {0}, shown = {0};
    oq_status st = fit(ex, image, e->area, &fitted);
    if (st == OQ_OK && e->shown_area) st = fit(ex, image, e->shown_area, &shown);
    oq_phase_begin(ex, OQ_PHASE_TEXT);
    if (st == OQ_OK) st = show(ex, arena, run, e->shown_area ? &shown : &fitted, index);
    if (st == OQ_OK) st = encode(ex, arena, run, &fitted, index, tokens);
    oq_image_deinit(ex->env, &shown);
    oq_image_deinit(ex->env, &fitted);
    return st;
}

static oq_status take_pictures(oq_exec *ex, oq_arena *arena, edit_run *run)
{
    const qwen_image_edit *e = run->e;
    const int64_t token_px = OQ_PACKED_PATCH * oq_vae_wan_scale(e->base.vae),
                  width = OQ_PACKED_PATCH * OQ_PACKED_PATCH * e->base.vae->z_dim;
    int64_t tokens = 0;
    run->walk.n_grids = 1 + run->n_images;
    for (int i = 0; i < run->n_images; i++) {
        int64_t w, h;
        qwen_image_edit_fit(e->area, &run->images[i], &w, &h);
        run->walk.grids[1 + i] = (oq_dit_qwen_image_grid){.rows = h / token_px, .columns = w / token_px};
        tokens += h / token_px * (w / token_px);
    }
    if (!ex->measure)
        OQ_TRY(oq_arena_new(arena, (size_t)(tokens * width), sizeof(float), "pictures", &run->walk.given));
    float *at = run->walk.given;
    for (int i = 0; i < run->n_images; i++) {
        OQ_TRY(take_picture(ex, arena, run, i, at));
        if (at) at += run->walk.grids[1 + i].rows * run->walk.grids[1 + i].columns * width;
    }
    return OQ_OK;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

typedef struct id_list {
    int32_t *ids;
    int64_t n;
} id_list;

/* The words before picture `index`, or (index n_images) the prompt, which alone is cut. Tokens of the template stand between
 * them, so that each is a text by itself to the tokenizer. */
static oq_status make_words(oq_packed_run *r, int index, const char *text, const oq_run_words *w,
                            id_list *out)
{
    const edit_run *run = r->self;
    const qwen_image *q = &run->e->base;
    const bool prompt = index == run->n_images;
    char words[1024] = "";
    if (!prompt) {
        snprintf(words, sizeof words, "%s", index ? "" : QWEN_IMAGE_EDIT_BEFORE);
        if (run->e->several)
            snprintf(words + strlen(words), sizeof words - strlen(words), "Picture %d: ", index + 1);
    }
    const oq_prompt_ids rule = {.tokenizer = q->tokenizer,
                                .before = words,
                                .after = prompt ? QWEN_IMAGE_AFTER : "",
                                .vocab_size = q->encoder->vocab_size,
                                .max_tokens = (prompt ? r->req->max_sequence_length : (int)sizeof words) +
                                              QWEN_IMAGE_EDIT_AFTER_TOKENS,
                                .keep_last = QWEN_IMAGE_EDIT_AFTER_TOKENS,
                                .warn = r->ex->measure};
    return oq_prompt_ids_make(r->ex->env, &r->arena, &rule, prompt ? text : "", w->what, &out->ids, &out->n);
}

static void put(int32_t **at, int32_t id, int64_t n)
{
    while (n-- > 0) *(*at)++ = id;
}

/* Ids of the words, with a token for each state of a picture between them. */
static void join(const edit_run *run, const id_list *words, oq_te_qwen3_insert *inserts, int32_t *ids)
{
    const oq_tokenizer *t = run->e->base.tokenizer;
    const int32_t start = oq_prompt_ids_find(t, "<|vision_start|>", 0),
                  end = oq_prompt_ids_find(t, "<|vision_end|>", 0),
                  pad = oq_prompt_ids_find(t, QWEN_IMAGE_EDIT_PAD, 0);
    int32_t *at = ids;
    for (int i = 0; i <= run->n_images; i++) {
        memcpy(at, words[i].ids, (size_t)words[i].n * sizeof *at);
        at += words[i].n;
        if (i == run->n_images) break;
        put(&at, start, 1);
        inserts[i] = (oq_te_qwen3_insert){.first = at - ids, .rows = run->seen[i].states};
        put(&at, pad, run->seen[i].rows * run->seen[i].columns);
        put(&at, end, 1);
    }
}

/* Each token of a text is one further on all axes. States of a picture lie in their rows and columns, all of one frame; what
 * follows begins behind the longer side. */
static void fill_positions(const edit_run *run, const oq_te_qwen3_args *args, int32_t *positions)
{
    int64_t at = 0, next = 0;
    for (int i = 0; i <= run->n_images; i++) {
        const int64_t end = i < run->n_images ? args->inserts[i].first : args->n;
        for (; at < end; at++, next++)
            for (int64_t axis = 0; axis < 3; axis++) positions[axis * args->n + at] = (int32_t)next;
        if (i == run->n_images) break;
        const seen *s = &run->seen[i];
        for (int64_t k = 0; k < s->rows * s->columns; k++, at++) {
            positions[at] = (int32_t)next;
            positions[args->n + at] = (int32_t)(next + k / s->columns);
            positions[2 * args->n + at] = (int32_t)(next + k % s->columns);
        }
        next += s->rows > s->columns ? s->rows : s->columns;
    }
}

static oq_status make_text(oq_packed_run *r, const char *text, const oq_run_words *w, oq_te_qwen3_args *args)
{
    const edit_run *run = r->self;
    id_list words[QWEN_IMAGE_MAX_GIVEN + 1];
    oq_te_qwen3_insert *inserts = NULL;
    int32_t *ids = NULL, *positions = NULL;
    char key[64];
    for (int i = 0; i <= run->n_images; i++) {
        OQ_TRY(make_words(r, i, text, w, &words[i]));
        args->n += words[i].n;
        if (i < run->n_images) args->n += run->seen[i].rows * run->seen[i].columns + 2;
    }
    OQ_TRY(oq_arena_new(&r->arena, (size_t)run->n_images, sizeof *inserts, "pictures", &inserts));
    OQ_TRY(oq_arena_new(&r->arena, (size_t)args->n, sizeof *ids, "token ids", &ids));
    OQ_TRY(oq_arena_new(&r->arena, (size_t)(3 * args->n), sizeof *positions, "positions", &positions));
    join(run, words, inserts, ids);
    args->ids = ids;
    args->inserts = inserts;
    args->n_inserts = run->n_images;
    fill_positions(run, args, positions);
    args->positions = positions;
    snprintf(key, sizeof key, "text.%s.positions", w->side);
    return oq_trace_host(r->ex, key, &oq_dtype_i32, positions, (int64_t[]){3, args->n}, 2);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

typedef struct whole {
    oq_exec *ex;
    oq_arena arena;
    edit_run run;
    const oq_request *request;
    oq_output *out;
} whole;

static oq_status walk(void *user)
{
    whole *w = user;
    OQ_TRY(take_pictures(w->ex, &w->arena, &w->run));
    return qwen_image_walk_run(w->ex, &w->arena, &w->run.walk, w->request, w->out);
}

oq_status qwen_image_edit_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    const qwen_image_edit *e = self;
    whole w = {.ex = ex, .request = request, .out = out};
    edit_run *run = &w.run;
    if (request->n_images == 0 && !ex->measure)
        return oq_fail(ex->env, OQ_E_ARG, "Qwen-Image-Edit%s needs a picture to begin with",
                       e->several ? "-Plus" : "");
    run->walk = (qwen_image_walk){.q = &e->base, .text = make_text, .dropped = QWEN_IMAGE_EDIT_DROPPED};
    run->e = e;
    run->planned = (oq_image){.width = request->width, .height = request->height};
    run->images = request->n_images ? request->images : &run->planned;
    run->n_images = request->n_images ? request->n_images : 1;
    return oq_run_walk(ex, &w.arena, walk, &w);
}
