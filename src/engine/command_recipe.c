/* command_recipe.c -- measures what each layer costs by each method, end to end, and writes the best assignment within a
 * budget as a quantization that generate and quantize take. One layer at a time is exchanged while the plain model runs;
 * the error is that of the final latents. */
#include "engine/recipe.h"

#include "base/names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- methods ------------------------------------------------------------------------------------------- */

/* Short words for methods with options; anything else is a quantization as it stands. */
static const struct {
    const char *word, *spec;
} short_words[] = {
    {"int2", "{\"method\":\"w4a16\",\"bits\":2,\"group_size\":64}"},
    {"int3", "{\"method\":\"w4a16\",\"bits\":3,\"group_size\":64}"},
    {"int4", "{\"method\":\"w4a16\",\"bits\":4,\"group_size\":64}"},
    {"int4-g32", "{\"method\":\"w4a16\",\"bits\":4,\"group_size\":32}"},
    {"nf4", "{\"method\":\"bitsandbytes\"}"},
    {"fp8-channel", "{\"method\":\"fp8\",\"weight_strategy\":\"channel\"}"},
    {"fp8-block", "{\"method\":\"fp8\",\"weight_strategy\":\"block\"}"},
};

static oq_status read_methods(oq_recipe *r, const char *csv)
{
    char word[64];
    for (size_t i = 0; oq_csv_word(csv, i, word, sizeof word); i++) {
        if (oq_name_equal(word, "bf16")) continue;
        if (r->n_methods + 1 >= OQ_RECIPE_METHODS)
            return oq_fail(r->env, OQ_E_ARG, "--methods '%s': at most %d are compared", csv,
                           OQ_RECIPE_METHODS - 1);
        const char *spec = word;
        for (size_t s = 0; s < OQ_COUNT(short_words); s++)
            if (oq_name_equal(short_words[s].word, word)) spec = short_words[s].spec;
        r->method[r->n_methods] = oq_arena_strdup(&r->arena, word);
        r->spec[r->n_methods] = oq_arena_strdup(&r->arena, spec);
        if (!r->method[r->n_methods] || !r->spec[r->n_methods])
            return oq_fail(r->env, OQ_E_NOMEM, "recipe: no memory");
        r->n_methods++;
    }
    if (r->n_methods == 0) return oq_fail(r->env, OQ_E_ARG, "--methods '%s' names no method", csv);
    r->method[r->n_methods++] = "bf16";
    return OQ_OK;
}

/* "4.5bpw", "6GB", "700MiB", or bytes. */
static oq_status read_budget(const oq_recipe *r, const char *text, size_t *bytes)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},     {"B", 1},      {"KB", 1e3},      {"MB", 1e6},
                 {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};
    char *end = NULL;
    const double x = strtod(text, &end);
    while (*end == ' ') end++;
    if (end != text && x > 0 && isfinite(x) && strcmp(end, "bpw") == 0) {
        *bytes = (size_t)(x * r->weights / 8.0);
        return OQ_OK;
    }
    for (size_t i = 0; end != text && x > 0 && x < 1e15 && i < OQ_COUNT(units); i++)
        if (strcmp(end, units[i].unit) == 0) {
            *bytes = (size_t)(x * units[i].bytes);
            return OQ_OK;
        }
    return oq_fail(r->env, OQ_E_ARG,
                   "--budget '%s' is not bits a weight (4.5bpw) or a size of all layers (6GB, 700MiB)", text);
}

/* ---- models -------------------------------------------------------------------------------------------- */

static oq_status open_model(oq_env *env, const oq_options *options, const char *spec, oq_model **out)
{
    oq_options *o = NULL;
    OQ_TRY(oq_options_new(env, "generate", &o));
    oq_status st = oq_options_copy(options, o);
    if (st == OQ_OK && spec) st = oq_options_set(o, "quantization", spec);
    if (st == OQ_OK) st = oq_model_prepare(env, o, out);
    if (st == OQ_OK) st = oq_model_load(env, *out);
    oq_options_free(o);
    return st;
}

typedef struct latents { /* what a run hands to the decoder */
    oq_env *env;
    float *values;
    size_t n, capacity;
    bool failed;
} latents;

static oq_status keep_latents(void *user, const char *key, const oq_dtype *dtype, const void *data,
                              const int64_t *shape, int n_dims)
{
    latents *l = user;
    size_t n = 1;
    if (strcmp(key, "vae.in") != 0) return OQ_OK;
    for (int i = 0; i < n_dims; i++) n *= (size_t)shape[i];
    if (l->n + n > l->capacity) {
        float *more = NULL;
        OQ_TRY(oq_new(l->env, 2 * (l->n + n), sizeof *more, "latents", &more));
        if (l->n) memcpy(more, l->values, l->n * sizeof *more);
        oq_free(l->env, l->values);
        l->values = more;
        l->capacity = 2 * (l->n + n);
    }
    dtype->to_f32(l->values + l->n, data, n);
    l->n += n;
    return OQ_OK;
}

/* ---- other layers on a run's inputs -------------------------------------------------------------------- */

typedef struct exchange {
    oq_env *env;
    const oq_model *candidate;
    const oq_linear *plain, *other; /* of the running model; what takes its place */
    oq_recipe *recipe;              /* nothing is exchanged: `noise` of method `m` is summed for all layers */
    const oq_linear **plains, **others; /* per layer of the recipe; NULL: left plain */
    double *noise;
    uint8_t *scratch;
    size_t scratch_bytes;
    float *rows; /* host copies of a row of each side */
} exchange;

static oq_status grow_scratch(exchange *e, size_t bytes)
{
    const oq_model *m = e->candidate;
    void *more = NULL;
    if (bytes <= e->scratch_bytes) return OQ_OK;
    OQ_TRY(m->backend->buffer_new(e->env, m->device, bytes, &more));
    if (e->scratch) m->backend->buffer_free(e->env, m->device, e->scratch);
    e->scratch = more;
    e->scratch_bytes = bytes;
    return OQ_OK;
}

/* The other layer's output for x: into *y, or into scratch where y has no rows. */
static oq_status run_other(exchange *e, const oq_linear *other, oq_tensor x, oq_tensor like, bool in_place,
                           oq_tensor *y)
{
    const oq_model *m = e->candidate;
    oq_exec ex = {.env = e->env,
                  .backend = m->backend,
                  .device = m->device,
                  .ops = m->backend->ops(m->device),
                  .compute = m->plan->compute,
                  .measure = true};
    for (int pass = 0; pass < 2; pass++) { /* measured, then run */
        *y = like;
        ex.used = 0;
        if (!in_place) OQ_TRY(oq_tmp_typed(&ex, like.dtype, like.rows, like.cols, y));
        OQ_TRY(oq_linear_forward(&ex, other, *y, x));
        if (pass) break;
        OQ_TRY(grow_scratch(e, ex.peak));
        ex.measure = false;
        ex.base = e->scratch;
        ex.size = e->scratch_bytes;
    }
    return OQ_OK;
}

/* The plain layer has given y; the other one gives it again. */
static oq_status exchange_output(exchange *e, oq_tensor x, oq_tensor y)
{
    oq_tensor out;
    return run_other(e, e->other, x, y, true, &out);
}

static oq_status add_noise(exchange *e, size_t i, oq_tensor x, oq_tensor y)
{
    const oq_model *m = e->candidate;
    oq_tensor other;
    OQ_TRY(run_other(e, e->others[i], x, y, false, &other));
    OQ_TRY(m->backend->sync(e->env, m->device));
    float *a = e->rows, *b = a + y.cols, *raw = b + y.cols;
    for (int64_t r = 0; r < y.rows; r++) {
        const oq_tensor p = oq_tensor_rows(y, r, 1), q = oq_tensor_rows(other, r, 1);
        const size_t n = (size_t)y.cols;
        OQ_TRY(m->backend->download(e->env, m->device, raw, p.data, n * p.dtype->bytes));
        p.dtype->to_f32(a, raw, n);
        OQ_TRY(m->backend->download(e->env, m->device, raw, q.data, n * q.dtype->bytes));
        q.dtype->to_f32(b, raw, n);
        for (size_t c = 0; c < n; c++)
            e->noise[i] += ((double)a[c] - (double)b[c]) * ((double)a[c] - (double)b[c]);
    }
    return OQ_OK;
}

static oq_status observe(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    exchange *e = user;
    if (!e->noise) return layer == e->plain ? exchange_output(e, x, y) : OQ_OK;
    for (size_t i = 0; i < e->recipe->n_layers; i++)
        if (e->plains[i] == layer && e->others[i]) return add_noise(e, i, x, y);
    return OQ_OK;
}

static oq_status run_latents(oq_env *env, const oq_model *model, const oq_request *request, exchange *e,
                             latents *out)
{
    oq_media *media = NULL;
    oq_run_hooks hooks = {.trace = keep_latents, .trace_user = out};
    if (e) hooks.observer = observe, hooks.observer_user = e;
    out->env = env;
    out->n = 0;
    const oq_status st = oq_generate_request(env, model, request, &hooks, &media);
    oq_media_free(media);
    if (st == OQ_OK && out->n == 0)
        return oq_fail(env, OQ_E_UNSUPPORTED, "recipe: %s tells nothing of its latents",
                       model->type->class_name);
    return st;
}

static double distance(const latents *a, const latents *b)
{
    double sum = 0;
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        const double d = (double)a->values[i] - (double)b->values[i];
        sum += d * d;
    }
    return sum;
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

static const oq_plan_layer *find_layer(const oq_model *model, const oq_recipe_layer *l)
{
    const oq_plan_component *c = oq_plan_find(model->plan, l->component);
    for (size_t i = 0; c && i < c->n_layers; i++)
        if (strcmp(c->layers[i].linear->name, l->name) == 0) return &c->layers[i];
    return NULL;
}

static size_t weight_bytes(const oq_plan_layer *layer)
{
    const oq_linear_spec *s = &layer->linear->spec;
    size_t bytes = 0;
    for (int p = 0; p < OQ_N_PLANES; p++) bytes += oq_scheme_plane_bytes(&s->scheme, (oq_plane)p, s->n, s->k);
    return bytes;
}

/* Layers that some method quantizes; BF16 is always possible. */
static oq_status list_layers(oq_recipe *r, const oq_model *reference)
{
    size_t n = 0;
    for (size_t c = 0; c < reference->plan->n_components; c++) n += reference->plan->components[c].n_layers;
    OQ_TRY(oq_arena_new(&r->arena, n + 1, sizeof *r->layers, "layers", &r->layers));
    for (size_t c = 0; c < reference->plan->n_components; c++)
        for (size_t i = 0; i < reference->plan->components[c].n_layers; i++) {
            const oq_plan_layer *planned = &reference->plan->components[c].layers[i];
            const oq_linear *l = planned->linear;
            if (l->keep || planned->choice.quantized) continue;
            oq_recipe_layer *layer = &r->layers[r->n_layers++];
            *layer = (oq_recipe_layer){.component = reference->plan->components[c].name,
                                       .name = l->name,
                                       .n = l->spec.n,
                                       .k = l->spec.k};
            layer->choice[r->n_methods - 1].bytes = (size_t)(2 * l->spec.n * l->spec.k);
        }
    return OQ_OK;
}

/* One run for all layers: what each of them would add to its output by this method. */
static oq_status measure_noise(oq_recipe *r, const oq_model *reference, const oq_request *request,
                               const oq_model *candidate, int m)
{
    exchange e = {.env = r->env, .candidate = candidate, .recipe = r};
    latents unused = {0};
    int64_t widest = 1;
    oq_status st = oq_arena_new(&r->arena, r->n_layers + 1, sizeof(oq_linear *), "layers", &e.plains);
    if (st == OQ_OK) st = oq_arena_new(&r->arena, r->n_layers + 1, sizeof(oq_linear *), "layers", &e.others);
    if (st == OQ_OK) st = oq_arena_new(&r->arena, r->n_layers + 1, sizeof *e.noise, "layers", &e.noise);
    for (size_t i = 0; st == OQ_OK && i < r->n_layers; i++) {
        const oq_plan_layer *plain = find_layer(reference, &r->layers[i]),
                            *other = find_layer(candidate, &r->layers[i]);
        if (!plain || !other || !other->choice.quantized) continue;
        e.plains[i] = plain->linear;
        e.others[i] = other->linear;
        r->layers[i].choice[m].bytes = weight_bytes(other);
        if (r->layers[i].n > widest) widest = r->layers[i].n;
    }
    if (st == OQ_OK) st = oq_new(r->env, (size_t)widest, 3 * sizeof(float), "layers", &e.rows);
    if (st == OQ_OK) st = run_latents(r->env, reference, request, &e, &unused);
    for (size_t i = 0; st == OQ_OK && i < r->n_layers; i++) r->layers[i].choice[m].noise = e.noise[i];
    if (e.scratch) candidate->backend->buffer_free(r->env, candidate->device, e.scratch);
    oq_free(r->env, e.rows);
    oq_free(r->env, unused.values);
    return st;
}

/* How much of a layer's noise reaches the latents, by exchanging it alone: latent error over output noise, which turns the
 * noise by any method into its error. */
static oq_status measure_reach(oq_recipe *r, const oq_model *reference, const oq_request *request,
                               const oq_model *candidate, int m, const latents *want)
{
    exchange e = {.env = r->env, .candidate = candidate};
    latents got = {0};
    oq_status st = OQ_OK;
    const double started_s = oq_now_s();
    for (size_t i = 0; st == OQ_OK && i < r->n_layers; i++) {
        oq_recipe_layer *l = &r->layers[i];
        if (l->reach_of != m) continue;
        e.plain = find_layer(reference, l)->linear;
        e.other = find_layer(candidate, l)->linear;
        st = run_latents(r->env, reference, request, &e, &got);
        if (l->choice[m].noise > 0) l->reach = distance(want, &got) / l->choice[m].noise;
        oq_report_progress(r->env, "measure", (int64_t)i + 1, (int64_t)r->n_layers, oq_now_s() - started_s);
    }
    if (e.scratch) candidate->backend->buffer_free(r->env, candidate->device, e.scratch);
    oq_free(r->env, got.values);
    return st;
}

/* The noisiest method tells best how far a layer's noise reaches. */
static void choose_reach(oq_recipe *r)
{
    for (size_t i = 0; i < r->n_layers; i++) {
        oq_recipe_layer *l = &r->layers[i];
        l->reach_of = -1;
        for (int m = 0; m + 1 < r->n_methods; m++)
            if (l->choice[m].bytes && (l->reach_of < 0 || l->choice[m].noise > l->choice[l->reach_of].noise))
                l->reach_of = m;
    }
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

typedef struct uniform { /* one method everywhere, to compare with */
    size_t bytes;
    double error; /* measured, all layers at once */
} uniform;

static oq_status measure_all(oq_recipe *r, const oq_options *options, const oq_model *reference,
                             const oq_request *request, latents *want, uniform *uniforms)
{
    OQ_TRY(list_layers(r, reference));
    OQ_TRY(run_latents(r->env, reference, request, NULL, want));
    for (int pass = 0; pass < 2; pass++) {
        for (int m = 0; m + 1 < r->n_methods; m++) {
            oq_model *candidate = NULL;
            latents got = {0};
            oq_status st = open_model(r->env, options, r->spec[m], &candidate);
            if (st == OQ_OK && pass) st = measure_reach(r, reference, request, candidate, m, want);
            if (st == OQ_OK && !pass) st = measure_noise(r, reference, request, candidate, m);
            if (st == OQ_OK && !pass) st = run_latents(r->env, candidate, request, NULL, &got);
            if (st == OQ_OK && !pass) uniforms[m].error = distance(want, &got);
            oq_free(r->env, got.values);
            oq_model_close(candidate);
            OQ_TRY(st);
        }
        if (!pass) choose_reach(r);
    }
    drop_untouched(r);
    if (!r->n_layers)
        return oq_fail(r->env, OQ_E_CONFIG, "recipe: these methods quantize no layer of this model");
    for (int m = 0; m + 1 < r->n_methods; m++)
        for (size_t i = 0; i < r->n_layers; i++) {
            const oq_recipe_layer *l = &r->layers[i];
            uniforms[m].bytes += l->choice[m].bytes ? l->choice[m].bytes : l->choice[r->n_methods - 1].bytes;
        }
    return OQ_OK;
}

/* ---- the recipe as a quantization ---------------------------------------------------------------------- */

static oq_json *spec_json(oq_env *env, const oq_recipe *r, int m)
{
    oq_json *json = NULL;
    if (!r->spec[m]) return oq_json_new_null();
    if (r->spec[m][0] == '{')
        return oq_json_parse(env, r->spec[m], strlen(r->spec[m]), "recipe", &json) == OQ_OK ? json : NULL;
    json = oq_json_new_object();
    oq_json_set(json, "method", oq_json_new_string(r->spec[m]));
    return json;
}

/* Each component's most frequent method stands for the whole of it; other layers have entries of their own. */
static int common_method(const oq_recipe *r, const char *component)
{
    size_t count[OQ_RECIPE_METHODS] = {0};
    int best = r->n_methods - 1;
    for (size_t i = 0; i < r->n_layers; i++)
        if (strcmp(r->layers[i].component, component) == 0) count[r->layers[i].chosen]++;
    for (int m = 0; m < r->n_methods; m++)
        if (count[m] > count[best]) best = m;
    return best;
}

static oq_json *recipe_json(const oq_recipe *r)
{
    oq_json *o = oq_json_new_object();
    char key[512];
    for (size_t i = 0; i < r->n_layers; i++) {
        const oq_recipe_layer *l = &r->layers[i];
        const int common = common_method(r, l->component);
        if (!oq_json_get(o, l->component)) oq_json_set(o, l->component, spec_json(r->env, r, common));
        if (l->chosen == common) continue;
        snprintf(key, sizeof key, "%s.%s", l->component, l->name);
        oq_json_set(o, key, spec_json(r->env, r, l->chosen));
    }
    return o;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static oq_status verify(oq_recipe *r, const oq_options *options, const oq_request *request, const char *text,
                        const latents *want, double *error)
{
    oq_model *model = NULL;
    latents got = {0};
    oq_status st = open_model(r->env, options, text, &model);
    if (st == OQ_OK) st = run_latents(r->env, model, request, NULL, &got);
    if (st == OQ_OK) *error = distance(want, &got);
    oq_free(r->env, got.values);
    oq_model_close(model);
    return st;
}

static double decibel(const latents *want, double error)
{
    double signal = 0;
    for (size_t i = 0; i < want->n; i++) signal += (double)want->values[i] * (double)want->values[i];
    return error > 0 ? 10 * log10(signal / error) : INFINITY;
}

/* Errors of all choices. A layer's reach is measured on few pictures: `trust` 1 takes it as it is, 0 the mean of all. */
static void set_errors(oq_recipe *r, double trust)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < r->n_layers; i++)
        if (r->layers[i].reach > 0) sum += log(r->layers[i].reach), n++;
    const double mean = n ? sum / (double)n : 0;
    for (size_t i = 0; i < r->n_layers; i++) {
        oq_recipe_layer *l = &r->layers[i];
        const double own = l->reach > 0 ? log(l->reach) : mean;
        for (int m = 0; m + 1 < r->n_methods; m++)
            l->choice[m].error = l->choice[m].noise * exp(trust * own + (1 - trust) * mean);
    }
}

/* Solves with more and less trust in the single layers' figures; the one that turns out best when it runs stays. */
static oq_status solve_and_run(oq_recipe *r, const oq_options *options, const oq_request *request,
                               size_t budget, const latents *want, double *error)
{
    static const double trusts[] = {1.0, 0.75, 0.5};
    double best_trust = -1;
    for (size_t t = 0; t < OQ_COUNT(trusts); t++) {
        char *spec = NULL;
        double got = 0;
        set_errors(r, trusts[t]);
        OQ_TRY(oq_recipe_solve(r, budget));
        oq_json *recipe = recipe_json(r);
        oq_status st = oq_json_dump(r->env, recipe, OQ_JSON_COMPACT, &spec);
        if (st == OQ_OK) st = verify(r, options, request, spec, want, &got);
        oq_free(r->env, spec);
        oq_json_free(recipe);
        OQ_TRY(st);
        if (best_trust < 0 || got < *error) best_trust = trusts[t], *error = got;
    }
    set_errors(r, best_trust);
    return oq_recipe_solve(r, budget);
}

static void put_uniforms(const oq_recipe *r, const uniform *uniforms, const latents *want, oq_json *json,
                         oq_strbuf *text)
{
    oq_json *list = oq_json_new_array();
    for (int m = 0; m + 1 < r->n_methods; m++) {
        oq_json *o = oq_json_new_object();
        const double bits = 8.0 * (double)uniforms[m].bytes / r->weights,
                     db = decibel(want, uniforms[m].error);
        oq_json_set(o, "method", oq_json_new_string(r->method[m]));
        oq_json_set(o, "bytes", oq_json_new_int((int64_t)uniforms[m].bytes));
        oq_json_set(o, "bits_per_weight", oq_json_new_real(bits));
        oq_json_set(o, "latent_snr_db", oq_json_new_real(db));
        oq_json_append(list, o);
        oq_strbuf_printf(text, "  %-24s %6.2f bits a weight %8.2f dB\n", r->method[m], bits, db);
    }
    oq_json_set(json, "uniform", list);
}

static oq_json *counts_json(const oq_recipe *r, oq_strbuf *text)
{
    oq_json *o = oq_json_new_object();
    for (int m = 0; m < r->n_methods; m++) {
        int64_t n = 0;
        for (size_t i = 0; i < r->n_layers; i++) n += r->layers[i].chosen == m;
        oq_json_set(o, r->method[m], oq_json_new_int(n));
        if (n) oq_strbuf_printf(text, "    %-22s %lld layers\n", r->method[m], (long long)n);
    }
    return o;
}

static oq_status finish(oq_recipe *r, const oq_options *options, const latents *want, double error,
                        const uniform *uniforms, size_t budget, oq_report **out)
{
    const char *output = oq_options_text(options, "output", NULL);
    oq_json *json = oq_json_new_object(), *recipe = recipe_json(r);
    oq_strbuf text;
    char *pretty = NULL;
    oq_strbuf_init(&text, r->env);
    oq_status st = oq_json_dump(r->env, recipe, OQ_JSON_INDENT, &pretty);
    if (st == OQ_OK && output) st = oq_file_write_all(r->env, output, pretty, strlen(pretty));
    oq_strbuf_printf(&text, "%zu layers; error of the latents against BF16:\n", r->n_layers);
    put_uniforms(r, uniforms, want, json, &text);
    const double bits = 8.0 * (double)oq_recipe_bytes(r) / r->weights, db = decibel(want, error);
    oq_strbuf_printf(&text, "  %-24s %6.2f bits a weight %8.2f dB (predicted %.2f)\n", "this recipe", bits,
                     db, decibel(want, oq_recipe_error(r)));
    oq_json_set(json, "methods", counts_json(r, &text));
    oq_json_set(json, "budget_bytes", oq_json_new_int((int64_t)budget));
    oq_json_set(json, "bytes", oq_json_new_int((int64_t)oq_recipe_bytes(r)));
    oq_json_set(json, "bits_per_weight", oq_json_new_real(bits));
    oq_json_set(json, "latent_snr_db", oq_json_new_real(db));
    oq_json_set(json, "predicted_snr_db", oq_json_new_real(decibel(want, oq_recipe_error(r))));
    oq_json_set(json, "recipe", recipe);
    if (output)
        oq_strbuf_printf(&text, "%s: written; --recipe %s takes it\n", output, output);
    else if (st == OQ_OK)
        oq_strbuf_printf(&text, "%s\n", pretty);
    oq_free(r->env, pretty);
    if (st == OQ_OK) return oq_report_finish(r->env, json, &text, true, out);
    oq_strbuf_deinit(&text);
    oq_json_free(json);
    return st;
}

static oq_status search(oq_recipe *r, const oq_options *options, const oq_model *reference, oq_report **out)
{
    uniform uniforms[OQ_RECIPE_METHODS] = {{0}};
    latents want = {0};
    oq_request request;
    size_t budget = 0;
    double error = 0;
    oq_status st = oq_request_make(r->env, reference, options, &r->arena, &request);
    if (st == OQ_OK) st = measure_all(r, options, reference, &request, &want, uniforms);
    if (st == OQ_OK) st = read_budget(r, oq_options_text(options, "budget", "4.5bpw"), &budget);
    if (st == OQ_OK) st = solve_and_run(r, options, &request, budget, &want, &error);
    if (st == OQ_OK) st = finish(r, options, &want, error, uniforms, budget, out);
    oq_free(r->env, want.values);
    return st;
}

static oq_status command_recipe(oq_env *env, oq_options *options, oq_report **out)
{
    oq_recipe r = {.env = env};
    oq_model *reference = NULL;
    OQ_TRY(oq_command_no_arguments(env, options, "the model is given with --model"));
    if (!oq_options_given(options, "model"))
        return oq_fail(env, OQ_E_ARG, "recipe needs a model: --model DIR");
    if (!oq_options_given(options, "prompt"))
        return oq_fail(env, OQ_E_ARG, "recipe measures on prompts: give at least one with --prompt");
    if (oq_options_int(options, "seed", -1) < 0) OQ_TRY(oq_options_set(options, "seed", "42"));
    oq_arena_init(&r.arena, env);
    oq_status st = read_methods(&r, oq_options_text(options, "methods", "nvfp4,int3,int4,fp8-channel,bf16"));
    if (st == OQ_OK)
        st = read_budget(&(oq_recipe){.env = env, .weights = 8}, oq_options_text(options, "budget", "4.5bpw"),
                         &(size_t){0});
    if (st == OQ_OK) st = open_model(env, options, NULL, &reference);
    if (st == OQ_OK) st = search(&r, options, reference, out);
    oq_model_close(reference);
    oq_arena_deinit(&r.arena);
    return st;
}

const oq_command oq_command_recipe = {
    .info = {"recipe", "-m MODEL -p TEXT --budget SIZE [flags]",
             "find which layer gets which method within a budget, by measuring each layer end to end"},
    .run = command_recipe,
};
