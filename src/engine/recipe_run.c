/* recipe_run.c -- what a search runs: the plain model, whose predictions are kept; other models on the plain run's inputs;
 * pictures of held-out prompts. */
#include "engine/recipe.h"

#include "compare/metrics.h"

#include <math.h>
#include <string.h>

oq_status oq_recipe_open(const oq_recipe *r, const char *spec, oq_model **out)
{
    oq_options *o = NULL;
    OQ_TRY(oq_options_new(r->env, "generate", &o));
    oq_status st = oq_options_copy(r->options, o);
    if (st == OQ_OK && spec) st = oq_options_set(o, "quantization", spec);
    if (st == OQ_OK) st = oq_model_open(r->env, o, out);
    oq_options_free(o);
    return st;
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

oq_status oq_recipe_record(oq_recipe *r, oq_recipe_set *set)
{
    const oq_request *req = &set->request;
    recording k = {.r = r, .set = set};
    k.capacity = (size_t)req->steps * (size_t)req->n_prompts * (size_t)req->images_per_prompt *
                 2; /* at most, with guidance */
    OQ_TRY(oq_arena_new(&r->arena, k.capacity, sizeof *set->forwards, "predictions", &set->forwards));
    OQ_TRY(oq_observe(r->reference, &set->request, keep_forward, &k));
    if (set->n_forwards == 0)
        return oq_fail(r->env, OQ_E_UNSUPPORTED, "recipe: %s runs no transformer whose output is a layer's",
                       r->reference->type->class_name);
    return OQ_OK;
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

/* ---- a whole model ------------------------------------------------------------------------------------- */

typedef struct summing {
    const oq_recipe_set *set;
    const oq_model *model;
    size_t at;
    double sum;
} summing;

static oq_status add_forward(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    summing *s = user;
    bool ended = false;
    double error = 0;
    (void)x;
    OQ_TRY(oq_recipe_end_forward(s->set, s->model, layer, y, &s->at, &ended, &error));
    s->sum += error;
    return s->at == s->set->n_forwards ? OQ_E_CANCELED : OQ_OK;
}

oq_status oq_recipe_model_error(const oq_recipe_set *set, const oq_model *model, double *error)
{
    summing s = {.set = set, .model = model};
    OQ_TRY(oq_observe(model, &set->request, add_forward, &s));
    *error = s.sum / (double)set->n_forwards;
    return OQ_OK;
}

oq_status oq_recipe_judge(const oq_recipe_set *set, const oq_model *model, const oq_media *plain,
                          oq_recipe_quality *out)
{
    oq_media *media = NULL;
    OQ_TRY(oq_generate_request(model->env, model, &set->request, NULL, &media));
    const size_t bytes = (size_t)media->frames * (size_t)media->width * (size_t)media->height * 3;
    *out = (oq_recipe_quality){.worst_db = INFINITY};
    for (int i = 0; i < media->count; i++) {
        oq_metrics m;
        oq_metrics_u8(oq_media_pixels(plain, i), oq_media_pixels(media, i), bytes, &m);
        out->mean_db += m.psnr_db / media->count;
        out->worst_db = fmin(out->worst_db, m.psnr_db);
    }
    oq_media_free(media);
    return OQ_OK;
}
