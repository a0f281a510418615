/* calibrate.c -- runs prompts on a plain model and keeps what is asked for of each layer's input. */
#include "engine/calibrate.h"

#include "base/pool.h"
#include "base/size.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows that are in host memory as f32 at a time. Their products are summed by themselves before they are added to the rest, so
 * that few of the many additions meet a large sum. */
enum { CHUNK = 256 };

typedef struct known { /* a product, or a part that is multiplied by itself */
    const oq_linear *linear;
    oq_calibration_layer *layer;
} known;

struct oq_calibration {
    oq_env *env;
    oq_arena arena;
    oq_model *model;
    oq_request request;
    oq_calibration_layer *layers;
    size_t n_layers;
    known *known; /* by address */
    size_t n_known;
    bool products; /* of the run that goes on: products are summed, else magnitudes taken */
    int64_t widest;
    uint8_t *stored; /* [CHUNK, widest] as the model has them, at most 4 bytes each */
    float *values;   /* [CHUNK, widest] */
    float *sums;     /* [threads, widest] */
};

/* ---- layers -------------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    const known *x = a, *y = b;
    return x->linear < y->linear ? -1 : x->linear > y->linear;
}

static void know(oq_calibration *c, const oq_linear *linear, oq_calibration_layer *layer)
{
    c->known[c->n_known++] = (known){linear, layer};
}

static oq_status list_layers(oq_calibration *c)
{
    const oq_plan *plan = c->model->plan;
    size_t n = 0, most = 0;
    for (size_t i = 0; i < plan->n_components; i++)
        for (size_t l = 0; l < plan->components[i].n_layers; l++)
            n++, most += 1 + (size_t)plan->components[i].layers[l].linear->n_parts;
    OQ_TRY(oq_arena_new(&c->arena, n + 1, sizeof *c->layers, "calibration", &c->layers));
    OQ_TRY(oq_arena_new(&c->arena, most + 1, sizeof *c->known, "calibration", &c->known));
    for (size_t i = 0; i < plan->n_components; i++)
        for (size_t l = 0; l < plan->components[i].n_layers; l++) {
            const oq_linear *linear = plan->components[i].layers[l].linear;
            oq_calibration_layer *layer = &c->layers[c->n_layers++];
            *layer = (oq_calibration_layer){
                .component = plan->components[i].name, .linear = linear, .k = linear->spec.k};
            OQ_TRY(
                oq_arena_new(&c->arena, (size_t)layer->k, sizeof(float), "calibration", &layer->column_amax));
            if (layer->k > c->widest) c->widest = layer->k;
            know(c, linear, layer);
            for (int p = 0; linear->apart && p < linear->n_parts; p++) know(c, &linear->apart[p], layer);
        }
    qsort(c->known, c->n_known, sizeof *c->known, by_address);
    return OQ_OK;
}

oq_calibration_layer *oq_calibration_find(const oq_calibration *c, const char *component, const char *part)
{
    for (size_t i = 0; i < c->n_layers; i++) {
        const oq_linear *l = c->layers[i].linear;
        if (strcmp(c->layers[i].component, component) != 0) continue;
        if (strcmp(l->name, part) == 0) return &c->layers[i];
        for (int p = 0; p < l->n_parts; p++)
            if (strcmp(l->parts[p].name, part) == 0) return &c->layers[i];
    }
    return NULL;
}

/* ---- one chunk of rows --------------------------------------------------------------------------------- */

enum { COLUMNS = 256 }; /* of one task */

typedef struct chunk {
    const float *x; /* [rows, k] */
    int64_t rows, k;
    oq_calibration_layer *layer;
    float *sums;
    int64_t stride; /* of sums */
} chunk;

/* Not a number stays: no comparison with it is true the other way round. */
static void take_magnitudes(void *user, int64_t task, int worker)
{
    const chunk *c = user;
    const int64_t from = task * COLUMNS, to = oq_min_i64(from + COLUMNS, c->k);
    float *most = c->layer->column_amax;
    (void)worker;
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t i = from; i < to; i++) {
            const float a = fabsf(c->x[r * c->k + i]);
            most[i] = a <= most[i] || most[i] != most[i] ? most[i] : a;
        }
}

/* Row i of the products, from the diagonal on. */
static void add_products(void *user, int64_t i, int worker)
{
    const chunk *c = user;
    float *sum = c->sums + worker * c->stride, *to = c->layer->products + i * c->k;
    memset(sum + i, 0, (size_t)(c->k - i) * sizeof *sum);
    for (int64_t r = 0; r < c->rows; r++) {
        const float *x = c->x + r * c->k, own = x[i];
        for (int64_t j = i; j < c->k; j++) sum[j] += own * x[j];
    }
    for (int64_t j = i; j < c->k; j++) to[j] += sum[j];
}

static oq_status look_at_rows(oq_calibration *c, oq_calibration_layer *layer, oq_tensor x)
{
    OQ_TRY(oq_rows_download(c->model, x, c->stored));
    x.dtype->to_f32(c->values, c->stored, (size_t)(x.rows * x.cols));
    chunk job = {.x = c->values, .rows = x.rows, .k = layer->k, .layer = layer, .sums = c->sums};
    job.stride = c->widest;
    if (c->products)
        oq_pool_run(c->env->pool, layer->k, add_products, &job);
    else
        oq_pool_run(c->env->pool, oq_ceil_div(layer->k, COLUMNS), take_magnitudes, &job);
    return OQ_OK;
}

static oq_status look(void *user, const oq_linear *linear, oq_tensor x, oq_tensor y)
{
    oq_calibration *c = user;
    const known key = {.linear = linear};
    const known *found = bsearch(&key, c->known, c->n_known, sizeof *c->known, by_address);
    (void)y;
    if (!found || (c->products && !found->layer->products)) return OQ_OK;
    if (x.cols != found->layer->k || x.dtype->bytes > sizeof(float))
        return oq_fail(c->env, OQ_E_ARG, "calibration: layer '%s' has %lld columns, x has %lld of %s",
                       linear->name, (long long)found->layer->k, (long long)x.cols, x.dtype->name);
    for (int64_t r = 0; r < x.rows; r += CHUNK)
        OQ_TRY(look_at_rows(c, found->layer, oq_tensor_rows(x, r, oq_min_i64(CHUNK, x.rows - r))));
    *(c->products ? &found->layer->product_rows : &found->layer->rows) += x.rows;
    return OQ_OK;
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

static oq_status buffers(oq_calibration *c)
{
    const size_t widest = (size_t)c->widest, threads = (size_t)oq_pool_threads(c->env->pool);
    if (c->values) return OQ_OK;
    OQ_TRY(oq_arena_new(&c->arena, CHUNK * widest, sizeof(float), "calibration", &c->stored));
    OQ_TRY(oq_arena_new(&c->arena, threads * widest, sizeof(float), "calibration", &c->sums));
    return oq_arena_new(&c->arena, CHUNK * widest, sizeof(float), "calibration", &c->values);
}

static oq_status run(oq_calibration *c, bool products)
{
    c->products = products;
    OQ_TRY(buffers(c));
    return oq_observe(c->model, &c->request, look, c);
}

oq_status oq_calibration_run(oq_calibration *c)
{
    OQ_TRY(run(c, false));
    for (size_t i = 0; i < c->n_layers; i++) {
        oq_calibration_layer *l = &c->layers[i];
        for (int64_t j = 0; j < l->k; j++) {
            if (!(l->column_amax[j] <= FLT_MAX))
                return oq_fail(
                    c->env, OQ_E_NUMERIC,
                    "calibration: column %lld of the input of %s layer '%s' is not finite for these prompts",
                    (long long)j, l->component, l->linear->name);
            l->amax = fmaxf(l->amax, l->column_amax[j]);
        }
    }
    return OQ_OK;
}

static size_t product_bytes(const oq_calibration_layer *l)
{
    size_t bytes = 0;
    return oq_size_mul((size_t)l->k, (size_t)l->k, &bytes) && oq_size_mul(bytes, sizeof(float), &bytes)
               ? bytes
               : SIZE_MAX;
}

size_t oq_calibration_fit(oq_calibration_layer *const *layers, size_t n, size_t bytes)
{
    size_t fit = 0, sum = 0;
    for (; fit < n; fit++) {
        bool counted = false;
        for (size_t i = 0; i < fit; i++) counted |= layers[i] == layers[fit];
        if (!counted && !oq_size_add(sum, product_bytes(layers[fit]), &sum)) break;
        if (sum > bytes) break;
    }
    return fit || !n ? fit : 1;
}

static void free_products(oq_calibration *c)
{
    for (size_t i = 0; i < c->n_layers; i++) {
        oq_free(c->env, c->layers[i].products);
        c->layers[i].products = NULL;
        c->layers[i].product_rows = 0;
    }
}

static void mirror(void *user, int64_t i, int worker)
{
    const oq_calibration_layer *l = user;
    (void)worker;
    for (int64_t j = 0; j < i; j++) l->products[i * l->k + j] = l->products[j * l->k + i];
}

oq_status oq_calibration_products(oq_calibration *c, oq_calibration_layer *const *layers, size_t n)
{
    free_products(c);
    for (size_t i = 0; i < n; i++)
        if (!layers[i]->products)
            OQ_TRY(
                oq_new(c->env, 1, product_bytes(layers[i]), layers[i]->linear->name, &layers[i]->products));
    OQ_TRY(run(c, true));
    for (size_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].products) oq_pool_run(c->env->pool, c->layers[i].k, mirror, &c->layers[i]);
    return OQ_OK;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

/* "text_encoder" -> "text-encoder", an option of generate. */
static oq_status set_component(oq_env *env, oq_options *o, const char *component, const char *file)
{
    char name[64];
    size_t i = 0;
    for (; component[i] && i + 1 < sizeof name; i++) name[i] = component[i] == '_' ? '-' : component[i];
    name[i] = '\0';
    if (!oq_option_find("generate", name))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "%s: no model runs with another %s, so there is nothing to calibrate it by", file,
                       component);
    return oq_options_set(o, name, file);
}

static oq_status open_model(oq_calibration *c, const oq_options *options, const oq_calibration_source *source,
                            bool dry)
{
    static const char *const groups[] = {"request", "run"};
    oq_options *o = NULL;
    OQ_TRY(oq_options_new(c->env, "generate", &o));
    oq_status st = oq_options_set(o, "model", source->model);
    const char *variant = oq_options_text(options, "variant", NULL);
    for (size_t i = 0; st == OQ_OK && i < OQ_COUNT(groups); i++)
        st = oq_options_copy_group(options, o, groups[i]);
    if (st == OQ_OK && variant) st = oq_options_set(o, "variant", variant);
    if (st == OQ_OK && source->component) st = set_component(c->env, o, source->component, source->file);
    if (st == OQ_OK && oq_options_int(o, "seed", -1) < 0) st = oq_options_set(o, "seed", "42");
    if (st == OQ_OK) st = (dry ? oq_model_prepare : oq_model_open)(c->env, o, &c->model);
    if (st == OQ_OK && c->model->lacks[0]) st = oq_fail(c->env, OQ_E_NOMEM, "%s", c->model->lacks);
    if (st == OQ_OK) st = oq_request_make(c->env, c->model, o, &c->arena, &c->request);
    oq_options_free(o);
    return st;
}

oq_status oq_calibration_open(oq_env *env, const oq_options *options, const oq_calibration_source *source,
                              bool dry, oq_calibration **out)
{
    oq_calibration *c = NULL;
    *out = NULL;
    if (!oq_options_given(options, "prompt") && !oq_options_given(options, "prompt-file"))
        return oq_fail(env, OQ_E_ARG,
                       "calibration runs the model on prompts: give some with --prompt or --prompt-file");
    OQ_TRY(oq_new(env, 1, sizeof *c, "calibration", &c));
    c->env = env;
    oq_arena_init(&c->arena, env);
    oq_status st = open_model(c, options, source, dry);
    if (st == OQ_OK) st = list_layers(c);
    if (st == OQ_OK)
        *out = c;
    else
        oq_calibration_close(c);
    return st;
}

const oq_request *oq_calibration_request(const oq_calibration *c)
{
    return &c->request;
}

void oq_calibration_close(oq_calibration *c)
{
    if (!c) return;
    free_products(c);
    oq_model_close(c->model);
    oq_arena_deinit(&c->arena);
    oq_free(c->env, c);
}
