/* recipe_measure.c -- what each layer costs by each method. One run per method tells what all layers would add to their
 * outputs; then layers are exchanged one at a time in the plain model, which tells how much of a layer's noise is left at the
 * end: in whole runs, or, where those are too many, a different layer in every forward and its prediction for the end. */
#include "engine/recipe.h"

#include <math.h>
#include <string.h>

/* Forwards in which a layer's noise is looked at, and in which it is exchanged. */
enum { NOISE_FORWARDS = 6, REACH_FORWARDS = OQ_RECIPE_FORWARDS };

static size_t weight_bytes(const oq_plan_layer *layer)
{
    const oq_linear_spec *s = &layer->linear->spec;
    size_t bytes = 0;
    for (int p = 0; p < OQ_N_PLANES; p++) bytes += oq_scheme_plane_bytes(&s->scheme, (oq_plane)p, s->n, s->k);
    return bytes;
}

static bool is_denoiser(const oq_model *model, const char *component)
{
    for (size_t i = 0; i < model->type->n_components; i++)
        if (strcmp(model->type->components[i].name, component) == 0)
            return !model->type->components[i].encoder;
    return false;
}

/* Layers that some method may quantize; BF16 is always possible. */
static oq_status list_layers(oq_recipe *r)
{
    const oq_plan *plan = r->reference->plan;
    size_t n = 0;
    for (size_t c = 0; c < plan->n_components; c++) n += plan->components[c].n_layers;
    OQ_TRY(oq_arena_new(&r->arena, n + 1, sizeof *r->layers, "layers", &r->layers));
    for (size_t c = 0; c < plan->n_components; c++)
        for (size_t i = 0; i < plan->components[c].n_layers; i++) {
            const oq_linear *l = plan->components[c].layers[i].linear;
            if (l->keep || plan->components[c].layers[i].choice.quantized) continue;
            if (!oq_recipe_has_component(r, plan->components[c].name)) continue;
            oq_recipe_layer *layer = &r->layers[r->n_layers++];
            *layer = (oq_recipe_layer){.component = plan->components[c].name,
                                       .name = l->name,
                                       .every_step = is_denoiser(r->reference, plan->components[c].name),
                                       .n = l->spec.n,
                                       .k = l->spec.k,
                                       .reach_of = -1};
            layer->choice[r->n_methods - 1].bytes = (size_t)(2 * l->spec.n * l->spec.k);
        }
    return OQ_OK;
}

/* ---- other layers on the plain model's inputs ---------------------------------------------------------- */

typedef struct exchange {
    oq_recipe *r;
    const oq_model *candidate;
    int method;
    const oq_linear **plains, **others; /* per layer of the recipe; NULL: left plain */
    uint8_t *scratch;
    size_t scratch_bytes;
    uint8_t *rows; /* host copies of a row of each side, as they are and as f32 */
    float *values;
    size_t at;          /* forward that runs */
    double *noise;      /* per layer, of one run; NULL: layers are exchanged */
    size_t stride;      /* every how many forwards noise is looked at */
    const int *active;  /* per forward: the layer exchanged in it; -1: none */
    int always;         /* the layer exchanged in all of them, or in the encoder before; -1: none */
    size_t enough;      /* forwards after which the run stops */
    double layer_noise; /* of the exchanged layer: in this forward, or in all of the encoder's */
    double *ratio; /* per unit: error over layer_noise; 0: none. Units are forwards, or items of whole runs */
    double *ratios; /* [layers, units]: the same of all runs */
} exchange;

static oq_status grow_scratch(exchange *e, size_t bytes)
{
    const oq_model *m = e->candidate;
    void *more = NULL;
    if (bytes <= e->scratch_bytes) return OQ_OK;
    OQ_TRY(m->backend->buffer_new(e->r->env, m->device, bytes, &more));
    if (e->scratch) m->backend->buffer_free(e->r->env, m->device, e->scratch);
    e->scratch = more;
    e->scratch_bytes = bytes;
    return OQ_OK;
}

/* The other layer's output for x, in scratch: measured, then run. */
static oq_status run_other(exchange *e, const oq_linear *other, oq_tensor x, oq_tensor like, oq_tensor *y)
{
    const oq_model *m = e->candidate;
    oq_exec ex = {.env = e->r->env,
                  .backend = m->backend,
                  .device = m->device,
                  .ops = m->backend->ops(m->device),
                  .compute = m->plan->compute,
                  .measure = true};
    for (int pass = 0; pass < 2; pass++) {
        ex.used = 0;
        OQ_TRY(oq_tmp_typed(&ex, like.dtype, like.rows, like.cols, y));
        OQ_TRY(oq_linear_forward(&ex, other, *y, x));
        if (pass) break;
        OQ_TRY(grow_scratch(e, ex.peak));
        ex.measure = false;
        ex.base = e->scratch;
        ex.size = e->scratch_bytes;
    }
    return m->backend->sync(e->r->env, m->device);
}

/* Squares of what the other layer's output differs by; `put`: it takes y's place. */
static oq_status compare_output(exchange *e, size_t i, oq_tensor x, oq_tensor y, bool put, double *noise)
{
    const oq_model *m = e->candidate;
    const size_t n = (size_t)y.cols, bytes = n * y.dtype->bytes;
    oq_tensor other;
    OQ_TRY(run_other(e, e->others[i], x, y, &other));
    float *a = e->values, *b = a + n;
    for (int64_t row = 0; row < y.rows; row++) {
        const oq_tensor p = oq_tensor_rows(y, row, 1), q = oq_tensor_rows(other, row, 1);
        OQ_TRY(m->backend->download(e->r->env, m->device, e->rows, p.data, bytes));
        OQ_TRY(m->backend->download(e->r->env, m->device, e->rows + bytes, q.data, bytes));
        if (put) OQ_TRY(m->backend->upload(e->r->env, m->device, p.data, e->rows + bytes, bytes));
        p.dtype->to_f32(a, e->rows, n);
        q.dtype->to_f32(b, e->rows + bytes, n);
        for (size_t c = 0; c < n; c++)
            *noise += ((double)a[c] - (double)b[c]) * ((double)a[c] - (double)b[c]);
    }
    return OQ_OK;
}

/* Layers of the candidate beside the plain ones, and rows for the widest. */
static oq_status pair_layers(exchange *e)
{
    oq_recipe *r = e->r;
    int64_t widest = 1;
    OQ_TRY(oq_arena_new(&r->arena, r->n_layers, sizeof(oq_linear *), "layers", &e->plains));
    OQ_TRY(oq_arena_new(&r->arena, r->n_layers, sizeof(oq_linear *), "layers", &e->others));
    for (size_t i = 0; i < r->n_layers; i++) {
        oq_recipe_layer *l = &r->layers[i];
        const oq_plan_layer *plain = oq_recipe_find(r->reference, l->component, l->name),
                            *other = oq_recipe_find(e->candidate, l->component, l->name);
        if (!plain || !other || !other->choice.quantized) continue;
        e->plains[i] = plain->linear;
        e->others[i] = other->linear;
        if (l->n > widest) widest = l->n;
    }
    OQ_TRY(oq_arena_new(&r->arena, (size_t)widest, 2 * sizeof(float), "layers", &e->rows));
    return oq_arena_new(&r->arena, (size_t)widest, 2 * sizeof(float), "layers", &e->values);
}

static oq_status exchange_new(oq_recipe *r, const oq_model *candidate, int method, exchange *e)
{
    *e = (exchange){
        .r = r, .candidate = candidate, .method = method, .always = -1, .enough = r->search.n_forwards};
    return pair_layers(e);
}

static void exchange_free(exchange *e)
{
    if (e->scratch) e->candidate->backend->buffer_free(e->r->env, e->candidate->device, e->scratch);
    e->scratch = NULL;
}

static oq_status end_forward(exchange *e, const oq_linear *layer, oq_tensor y, double *error, bool *ended)
{
    OQ_TRY(oq_recipe_end_forward(&e->r->search, e->r->reference, layer, y, &e->at, ended, error));
    return e->at >= e->enough ? OQ_E_CANCELED : OQ_OK;
}

static size_t layer_of(const exchange *e, const oq_linear *layer)
{
    size_t i = 0;
    while (i < e->r->n_layers && e->plains[i] != layer) i++;
    return i;
}

/* ---- noise --------------------------------------------------------------------------------------------- */

static oq_status look(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    exchange *e = user;
    const size_t i = layer_of(e, layer);
    bool ended;
    double error;
    if (i < e->r->n_layers && (!e->r->layers[i].every_step || e->at % e->stride == 0))
        OQ_TRY(compare_output(e, i, x, y, false, &e->noise[i]));
    return end_forward(e, layer, y, &error, &ended);
}

static oq_status observe(const oq_recipe *r, oq_layer_observer observer, exchange *e)
{
    oq_progress_within(r->env, true);
    const oq_status st = oq_observe(r->reference, &r->search.request, observer, e);
    oq_progress_within(r->env, false);
    return st;
}

/* Noise of a layer in one forward: in some of its denoiser's; an encoder's, whose work all forwards share, in the run. */
static oq_status measure_noise(oq_recipe *r, const oq_model *candidate, int m)
{
    exchange e;
    OQ_TRY(exchange_new(r, candidate, m, &e));
    OQ_TRY(oq_arena_new(&r->arena, r->n_layers, sizeof *e.noise, "layers", &e.noise));
    e.stride = (r->search.n_forwards + NOISE_FORWARDS - 1) / NOISE_FORWARDS;
    e.enough = (r->search.n_forwards - 1) / e.stride * e.stride + 1;
    const oq_status st = observe(r, look, &e);
    for (size_t i = 0; st == OQ_OK && i < r->n_layers; i++) {
        size_t seen = 0;
        for (size_t f = 0; f < r->search.n_forwards; f += e.stride)
            seen += strcmp(r->search.forwards[f].component, r->layers[i].component) == 0;
        r->layers[i].choice[m].noise = e.noise[i] / (double)(r->layers[i].every_step && seen ? seen : 1);
    }
    exchange_free(&e);
    return st;
}

/* ---- reach in whole runs ------------------------------------------------------------------------------- */

static size_t count_units(const oq_recipe *r)
{
    return r->by_forward ? r->search.n_forwards : (size_t)oq_recipe_items(&r->search);
}

static size_t forwards_of(const oq_recipe *r, const oq_recipe_layer *l)
{
    size_t n = 0;
    for (size_t f = 0; f < r->search.n_forwards; f++)
        n += strcmp(r->search.forwards[f].component, l->component) == 0;
    return l->every_step && n ? n : 1;
}

static oq_status replace_always(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    exchange *e = user;
    if (layer != e->plains[e->always]) return OQ_OK;
    return compare_output(e, (size_t)e->always, x, y, true, &e->layer_noise);
}

/* Each layer by this method from the first step to the last. */
static oq_status exchange_whole(exchange *e)
{
    oq_recipe *r = e->r;
    const size_t units = count_units(r);
    const double started_s = oq_now_s();
    for (size_t i = 0; i < r->n_layers; i++) {
        if (r->layers[i].reach_of != e->method) continue;
        e->always = (int)i;
        e->layer_noise = 0;
        OQ_TRY(oq_recipe_run_whole(&r->search, r->reference, replace_always, e, e->ratio, NULL));
        const double noise = e->layer_noise / (double)forwards_of(r, &r->layers[i]);
        for (size_t u = 0; noise > 0 && u < units; u++) e->ratios[i * units + u] = e->ratio[u] / noise;
        oq_report_progress(r->env, "measure", (int64_t)i + 1, (int64_t)r->n_layers, oq_now_s() - started_s);
    }
    return OQ_OK;
}

/* ---- reach in single forwards -------------------------------------------------------------------------- */

static oq_status replace(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    exchange *e = user;
    const size_t i = layer_of(e, layer), f = e->at;
    bool ended = false;
    double error = 0;
    const int active = e->always >= 0 ? e->always : f < e->r->search.n_forwards ? e->active[f] : -1;
    if (i < e->r->n_layers && (int)i == active) OQ_TRY(compare_output(e, i, x, y, true, &e->layer_noise));
    const oq_status st = end_forward(e, layer, y, &error, &ended);
    if (!ended) return st;
    if (active >= 0 && e->layer_noise > 0) e->ratio[f] = error / e->layer_noise;
    if (e->always < 0) e->layer_noise = 0;
    return st;
}

/* One run; its ratios are handed out to the layers. */
static oq_status exchange_once(exchange *e, const int *active, int always)
{
    oq_recipe *r = e->r;
    e->active = active;
    e->always = always;
    e->at = 0;
    e->layer_noise = 0;
    memset(e->ratio, 0, r->search.n_forwards * sizeof *e->ratio);
    OQ_TRY(observe(r, replace, e));
    for (size_t f = 0; f < r->search.n_forwards; f++) {
        const int layer = always >= 0 ? always : active[f];
        if (layer >= 0) e->ratios[(size_t)layer * r->search.n_forwards + f] = e->ratio[f];
    }
    return OQ_OK;
}

/* Puts `layer` into `want` forwards of its denoiser that are still free, spread over them; runs[] of n_forwards entries. */
static void place(const oq_recipe *r, size_t layer, size_t turn, int *runs, size_t n_runs)
{
    const size_t F = r->search.n_forwards;
    size_t own = 0;
    for (size_t f = 0; f < F; f++)
        own += strcmp(r->search.forwards[f].component, r->layers[layer].component) == 0;
    for (size_t t = 0; t < REACH_FORWARDS && own; t++) {
        size_t wanted = (turn + t * own / REACH_FORWARDS) % own, f = 0;
        for (size_t seen = 0;; f++) /* the wanted one among its own */
            if (strcmp(r->search.forwards[f].component, r->layers[layer].component) == 0 && seen++ == wanted)
                break;
        for (size_t run = 0; run < n_runs; run++)
            if (runs[run * F + f] < 0) {
                runs[run * F + f] = (int)layer;
                break;
            }
    }
}

static size_t count_of(const oq_recipe *r, int m, bool every_step)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_layers; i++)
        n += r->layers[i].reach_of == m && r->layers[i].every_step == every_step;
    return n;
}

/* The denoisers' layers, a different one in each forward of a run. */
static oq_status exchange_in_turn(exchange *e)
{
    oq_recipe *r = e->r;
    const size_t F = r->search.n_forwards, n = count_of(r, e->method, true), most = n * REACH_FORWARDS;
    const double started_s = oq_now_s();
    int *runs = NULL;
    size_t turn = 0;
    if (n == 0) return OQ_OK;
    OQ_TRY(oq_arena_new(&r->arena, most * F, sizeof *runs, "layers", &runs));
    for (size_t i = 0; i < most * F; i++) runs[i] = -1;
    for (size_t i = 0; i < r->n_layers; i++)
        if (r->layers[i].reach_of == e->method && r->layers[i].every_step) place(r, i, turn++, runs, most);
    for (size_t run = 0; run < most; run++) {
        bool any = false;
        for (size_t f = 0; f < F; f++) any |= runs[run * F + f] >= 0;
        if (!any) break;
        OQ_TRY(exchange_once(e, runs + run * F, -1));
        oq_report_progress(r->env, "measure", (int64_t)run + 1, (int64_t)((most + F - 1) / F),
                           oq_now_s() - started_s);
    }
    return OQ_OK;
}

/* Encoders' layers: one a run, which stops after the first few forwards. */
static oq_status exchange_encoders(exchange *e)
{
    oq_recipe *r = e->r;
    const size_t items = (size_t)r->search.request.n_prompts * (size_t)r->search.request.images_per_prompt;
    const size_t enough = REACH_FORWARDS * items;
    const size_t n = count_of(r, e->method, false);
    const double started_s = oq_now_s();
    int64_t done = 0;
    if (enough < r->search.n_forwards) e->enough = enough;
    for (size_t i = 0; i < r->n_layers; i++) {
        if (r->layers[i].reach_of != e->method || r->layers[i].every_step) continue;
        OQ_TRY(exchange_once(e, NULL, (int)i));
        oq_report_progress(r->env, "measure encoders", ++done, (int64_t)n, oq_now_s() - started_s);
    }
    e->enough = r->search.n_forwards;
    return OQ_OK;
}

static oq_status measure_reach(oq_recipe *r, const oq_model *candidate, int m, double *ratios)
{
    exchange e;
    OQ_TRY(exchange_new(r, candidate, m, &e));
    e.ratios = ratios;
    oq_status st = oq_arena_new(&r->arena, count_units(r), sizeof *e.ratio, "layers", &e.ratio);
    if (st == OQ_OK && !r->by_forward) st = exchange_whole(&e);
    if (st == OQ_OK && r->by_forward) st = exchange_in_turn(&e);
    if (st == OQ_OK && r->by_forward) st = exchange_encoders(&e);
    exchange_free(&e);
    return st;
}

/* The noisiest method tells best how far a layer's noise reaches. */
static void choose_reach(oq_recipe *r)
{
    for (size_t i = 0; i < r->n_layers; i++) {
        oq_recipe_layer *l = &r->layers[i];
        for (int m = 0; m + 1 < r->n_methods; m++)
            if (l->choice[m].bytes && (l->reach_of < 0 || l->choice[m].noise > l->choice[l->reach_of].noise))
                l->reach_of = m;
    }
}

/* Mean logarithm of the ratios of a unit, over the layers that were exchanged in it alone; 0: none were. */
static double mean_of_unit(const oq_recipe *r, const double *ratios, size_t u)
{
    const size_t units = count_units(r);
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < r->n_layers; i++)
        if ((!r->by_forward || r->layers[i].every_step) && ratios[i * units + u] > 0)
            sum += log(ratios[i * units + u]), n++;
    return n ? sum / (double)n : 0;
}

/* A layer's reach in the mean of all units: forwards and prompts differ, and a layer may have been exchanged in a few of them,
 * so what a unit has in common with the others of its kind is taken off first. */
static oq_status finish_reach(oq_recipe *r, const double *ratios)
{
    const size_t units = count_units(r);
    double *common = NULL, all = 0;
    OQ_TRY(oq_arena_new(&r->arena, units, sizeof *common, "layers", &common));
    for (size_t u = 0; u < units; u++)
        common[u] = mean_of_unit(r, ratios, u), all += common[u] / (double)units;
    for (size_t i = 0; i < r->n_layers; i++) {
        double sum = 0;
        size_t n = 0;
        for (size_t u = 0; u < units; u++)
            if (ratios[i * units + u] > 0) sum += log(ratios[i * units + u]) - common[u] + all, n++;
        r->layers[i].reach = n ? exp(sum / (double)n) : 0;
    }
    return OQ_OK;
}

/* ---- the list ------------------------------------------------------------------------------------------ */

/* Bytes of each layer by a method, from a plan. */
static oq_status list_method(oq_recipe *r, int m)
{
    const char *spec = NULL;
    oq_model *planned = NULL;
    OQ_TRY(oq_recipe_uniform(r, m, &spec));
    OQ_TRY(oq_recipe_prepare(r, spec, &planned));
    for (size_t i = 0; i < r->n_layers; i++) {
        const oq_plan_layer *l = oq_recipe_find(planned, r->layers[i].component, r->layers[i].name);
        if (l && l->choice.quantized) r->layers[i].choice[m].bytes = weight_bytes(l);
    }
    oq_model_close(planned);
    return OQ_OK;
}

/* Layers that no method takes are not the recipe's business. */
static void drop_untouched(oq_recipe *r)
{
    size_t kept = 0;
    r->weights = 0;
    for (size_t i = 0; i < r->n_layers; i++) {
        bool any = false;
        for (int m = 0; m + 1 < r->n_methods; m++) any |= r->layers[i].choice[m].bytes != 0;
        if (!any) continue;
        r->weights += (double)r->layers[i].n * (double)r->layers[i].k;
        r->layers[kept++] = r->layers[i];
    }
    r->n_layers = kept;
}

oq_status oq_recipe_list(oq_recipe *r)
{
    OQ_TRY(list_layers(r));
    for (int m = 0; m + 1 < r->n_methods; m++) OQ_TRY(list_method(r, m));
    drop_untouched(r);
    if (r->n_layers) return OQ_OK;
    return oq_fail(r->env, OQ_E_CONFIG, "recipe: these methods quantize no layer of this model");
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

oq_status oq_recipe_measure(oq_recipe *r)
{
    double *ratios = NULL;
    OQ_TRY(oq_arena_new(&r->arena, r->n_layers * count_units(r), sizeof *ratios, "layers", &ratios));
    for (int pass = 0; pass < 2; pass++) {
        for (int m = 0; m + 1 < r->n_methods; m++) {
            oq_model *candidate = NULL;
            const char *spec = NULL;
            if (pass && !count_of(r, m, true) && !count_of(r, m, false)) continue;
            OQ_TRY(oq_recipe_uniform(r, m, &spec));
            oq_status st = oq_recipe_open(r, spec, &candidate);
            if (st == OQ_OK)
                st = pass ? measure_reach(r, candidate, m, ratios) : measure_noise(r, candidate, m);
            oq_model_close(candidate);
            OQ_TRY(st);
        }
        if (!pass) choose_reach(r);
    }
    return finish_reach(r, ratios);
}
