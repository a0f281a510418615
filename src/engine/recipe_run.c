/* recipe_run.c -- what a search runs: the plain model, whose predictions are kept; other models on the plain run's inputs;
 * pictures of held-out prompts. */
#include "engine/recipe.h"

#include "compare/metrics.h"

#include <math.h>
#include <string.h>

static oq_status open_as(const oq_recipe *r, const char *spec, bool load, oq_model **out)
{
    oq_options *o = NULL;
    OQ_TRY(oq_options_new(r->env, "generate", &o));
    oq_status st = oq_options_copy(r->options, o);
    if (st == OQ_OK && spec) st = oq_options_set(o, "quantization", spec);
    oq_progress_within(r->env, true);
    if (st == OQ_OK) st = load ? oq_model_open(r->env, o, out) : oq_model_prepare(r->env, o, out);
    oq_progress_within(r->env, false);
    oq_options_free(o);
    return st;
}

oq_status oq_recipe_open(const oq_recipe *r, const char *spec, oq_model **out)
{
    return open_as(r, spec, true, out);
}

oq_status oq_recipe_prepare(const oq_recipe *r, const char *spec, oq_model **out)
{
    return open_as(r, spec, false, out);
}

const oq_plan_layer *oq_recipe_find(const oq_model *model, const char *component, const char *name)
{
    const oq_plan_component *c = oq_plan_find(model->plan, component);
    for (size_t i = 0; c && i < c->n_layers; i++)
        if (strcmp(c->layers[i].linear->name, name) == 0) return &c->layers[i];
    return NULL;
}

/* ---- forwards ------------------------------------------------------------------------------------------ */

/* The denoiser whose prediction this layer gives: networks declare the layer that runs last behind all others. NULL: none. */
static const char *predicts(const oq_model *model, const oq_linear *layer)
{
    for (size_t i = 0; i < model->type->n_components; i++) {
        const oq_pipeline_component *c = &model->type->components[i];
        const oq_plan_component *planned =
            c->quantizable && !c->encoder ? oq_plan_find(model->plan, c->name) : NULL;
        if (planned && planned->n_layers && planned->layers[planned->n_layers - 1].linear == layer)
            return c->name;
    }
    return NULL;
}

/* Squares of b, and of what b differs from a by. */
static void add_squares(const oq_dtype *dtype, const uint8_t *a, const uint8_t *b, size_t n, double *signal,
                        double *noise)
{
    float x[64], y[64];
    for (size_t i = 0; i < n; i += OQ_COUNT(x)) {
        const size_t some = n - i < OQ_COUNT(x) ? n - i : OQ_COUNT(x);
        dtype->to_f32(x, a + i * dtype->bytes, some);
        dtype->to_f32(y, b + i * dtype->bytes, some);
        for (size_t j = 0; j < some; j++) {
            const double d = (double)x[j] - (double)y[j];
            *signal += (double)y[j] * (double)y[j];
            *noise += d * d;
        }
    }
}

typedef struct recording {
    oq_recipe *r;
    oq_recipe_set *set;
    size_t capacity;
} recording;

static oq_status keep_forward(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    recording *k = user;
    oq_recipe *r = k->r;
    const char *component = predicts(r->reference, layer);
    (void)x;
    if (!component) return OQ_OK;
    if (k->set->n_forwards == k->capacity)
        return oq_fail(r->env, OQ_E_UNSUPPORTED, "recipe: %s takes more than %zu forwards for %d steps",
                       r->reference->type->class_name, k->capacity, k->set->request.steps);
    oq_recipe_forward *f = &k->set->forwards[k->set->n_forwards++];
    const size_t n = (size_t)(y.rows * y.cols);
    double none = 0;
    f->component = component;
    OQ_TRY(oq_arena_new(&r->arena, n, y.dtype->bytes, "predictions", &f->y));
    OQ_TRY(oq_rows_download(r->reference, y, f->y));
    add_squares(y.dtype, f->y, f->y, n, &f->signal, &none);
    return OQ_OK;
}

/* "step.3.latents" of the trace: all items behind a step. */
static bool ends_step(const char *key, const oq_dtype *dtype)
{
    const char *last = strrchr(key, '.');
    return strncmp(key, "step.", 5) == 0 && strcmp(last, ".latents") == 0 && dtype == &oq_dtype_f32;
}

static size_t count_elements(const int64_t *shape, int n_dims)
{
    size_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= (size_t)shape[i];
    return n;
}

static oq_status keep_latents(void *user, const char *key, const oq_dtype *dtype, const void *data,
                              const int64_t *shape, int n_dims)
{
    const recording *k = user;
    oq_recipe_set *set = k->set;
    if (!ends_step(key, dtype)) return OQ_OK;
    const size_t n = count_elements(shape, n_dims);
    if (!set->n_steps) OQ_TRY(oq_arena_new(&k->r->arena, n, sizeof(float), "latents", &set->latents));
    if (set->n_steps && n != set->n_latents)
        return oq_fail(k->r->env, OQ_E_UNSUPPORTED, "recipe: '%s' has %zu values, the step before %zu", key,
                       n, set->n_latents);
    memcpy(set->latents, data, n * sizeof(float));
    set->n_latents = n;
    set->n_steps++;
    return OQ_OK;
}

int oq_recipe_items(const oq_recipe_set *set)
{
    return set->request.n_prompts * set->request.images_per_prompt;
}

oq_status oq_recipe_record(oq_recipe *r, oq_recipe_set *set)
{
    recording k = {.r = r, .set = set};
    k.capacity = (size_t)set->request.steps * (size_t)oq_recipe_items(set) * 2; /* at most, with guidance */
    OQ_TRY(oq_arena_new(&r->arena, k.capacity, sizeof *set->forwards, "predictions", &set->forwards));
    const oq_run_hooks hooks = {
        .observer = keep_forward, .trace = keep_latents, .observer_user = &k, .trace_user = &k};
    OQ_TRY(oq_generate_request(r->env, r->reference, &set->request, &hooks, &set->plain));
    if (set->n_forwards == 0 || set->n_steps == 0)
        return oq_fail(r->env, OQ_E_UNSUPPORTED, "recipe: %s runs no transformer whose output is a layer's",
                       r->reference->type->class_name);
    return OQ_OK;
}

void oq_recipe_set_free(oq_recipe_set *set)
{
    oq_media_free(set->plain);
    set->plain = NULL;
}

oq_status oq_recipe_end_forward(const oq_recipe_set *set, const oq_model *model, const oq_linear *layer,
                                oq_tensor y, size_t *at, bool *ended, double *error)
{
    const char *component = predicts(model, layer);
    uint8_t *got = NULL;
    double signal = 0, noise = 0;
    *ended = component != NULL;
    if (!component) return OQ_OK;
    if (*at >= set->n_forwards || strcmp(set->forwards[*at].component, component) != 0)
        return oq_fail(model->env, OQ_E_MISMATCH, "recipe: forward %zu is of '%s', the plain run's was not",
                       *at + 1, component);
    const oq_recipe_forward *f = &set->forwards[(*at)++];
    const size_t n = (size_t)(y.rows * y.cols);
    OQ_TRY(oq_new(model->env, n, y.dtype->bytes, "predictions", &got));
    oq_status st = oq_rows_download(model, y, got);
    if (st == OQ_OK) add_squares(y.dtype, got, f->y, n, &signal, &noise);
    if (st == OQ_OK) st = oq_rows_upload(model, y, f->y);
    oq_free(model->env, got);
    *error = f->signal > 0 ? noise / f->signal : 0;
    return st;
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

typedef struct whole { /* a run whose latents are compared */
    const oq_recipe_set *set;
    const oq_model *model;
    oq_layer_observer observer;
    void *user; /* the observer's */
    size_t step;
    double *errors;
    bool ends; /* behind the last step */
} whole;

static oq_status observe(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    whole *w = user;
    return w->observer(w->user, layer, x, y);
}

static oq_status compare_latents(void *user, const char *key, const oq_dtype *dtype, const void *data,
                                 const int64_t *shape, int n_dims)
{
    whole *w = user;
    const oq_recipe_set *set = w->set;
    if (!ends_step(key, dtype)) return OQ_OK;
    if (count_elements(shape, n_dims) != set->n_latents)
        return oq_fail(w->model->env, OQ_E_MISMATCH, "recipe: '%s' has another shape in the plain run", key);
    if (++w->step < set->n_steps) return OQ_OK;
    const size_t items = (size_t)oq_recipe_items(set), each = set->n_latents / items;
    for (size_t i = 0; i < items; i++) {
        double signal = 0, noise = 0;
        add_squares(dtype, (const uint8_t *)data + i * each * sizeof(float),
                    (const uint8_t *)(set->latents + i * each), each, &signal, &noise);
        w->errors[i] = signal > 0 ? noise / signal : 0;
    }
    return w->ends ? OQ_E_CANCELED : OQ_OK;
}

oq_status oq_recipe_run_whole(const oq_recipe_set *set, const oq_model *model, oq_layer_observer observer,
                              void *user, double *errors, oq_media **media)
{
    whole w = {
        .set = set, .model = model, .observer = observer, .user = user, .errors = errors, .ends = !media};
    oq_media *made = NULL;
    const oq_run_hooks hooks = {.observer = observer ? observe : NULL,
                                .observer_user = &w,
                                .trace = compare_latents,
                                .trace_user = &w};
    oq_progress_within(model->env, true);
    const oq_status st = oq_generate_request(model->env, model, &set->request, &hooks, &made);
    oq_progress_within(model->env, false);
    if (media) *media = made;
    return st == OQ_E_CANCELED ? oq_check_canceled(model->env) : st;
}

/* ---- a whole model ------------------------------------------------------------------------------------- */

static void judge(const oq_media *plain, const oq_media *media, oq_recipe_outcome *out)
{
    const size_t bytes = (size_t)media->frames * (size_t)media->width * (size_t)media->height * 3;
    out->mean_db = 0;
    out->worst_db = INFINITY;
    for (int i = 0; i < media->count; i++) {
        oq_metrics m;
        oq_metrics_u8(oq_media_pixels(plain, i), oq_media_pixels(media, i), bytes, &m);
        out->mean_db += m.psnr_db / media->count;
        out->worst_db = fmin(out->worst_db, m.psnr_db);
    }
}

oq_status oq_recipe_try(const oq_recipe *r, const oq_recipe_set *set, const char *spec, bool pictures,
                        oq_recipe_outcome *out)
{
    const size_t items = (size_t)oq_recipe_items(set);
    oq_model *model = NULL;
    oq_media *media = NULL;
    double *errors = NULL, sum = 0;
    OQ_TRY(oq_new(r->env, items, sizeof *errors, "errors", &errors));
    oq_status st = oq_recipe_open(r, spec, &model);
    if (st == OQ_OK) st = oq_recipe_run_whole(set, model, NULL, NULL, errors, pictures ? &media : NULL);
    for (size_t i = 0; st == OQ_OK && i < items; i++) sum += log(errors[i]);
    out->error = exp(sum / (double)items);
    if (st == OQ_OK && pictures) judge(set->plain, media, out);
    oq_media_free(media);
    oq_model_close(model);
    oq_free(r->env, errors);
    return st;
}
