/* bench_model.c -- a model's own layers at its default size, and whole pictures: BF16, FP8 and INT8, or the
 * quantization that was asked for. */
#include "engine/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PROMPT "a large red ball to the left of a small blue star on a cream background"

/* Options of generate for one run of the benchmark. */
static oq_status make_options(oq_bench *b, const char *method, oq_options **out)
{
    OQ_TRY(oq_options_new(b->env, "generate", out));
    OQ_TRY(oq_options_copy(b->options, *out));
    OQ_TRY(oq_options_set(*out, "prompt", PROMPT));
    OQ_TRY(oq_options_set(*out, "seed", "42"));
    return method ? oq_options_set(*out, "quantization", method) : OQ_OK;
}

/* The methods to measure: what the flags ask for, else three. */
static const char *const *methods_of(const oq_bench *b)
{
    static const char *const all[] = {"none", "fp8", "int8", NULL};
    static const char *const asked[] = {"", NULL};
    const bool given = oq_options_given(b->options, "quantization") ||
                       oq_options_given(b->options, "component") ||
                       oq_options_given(b->options, "quantization-config");
    return given ? asked : all;
}

static const char *label_of(const oq_bench *b, const char *method)
{
    if (strcmp(method, "none") == 0) return oq_options_text(b->options, "dtype", "bf16");
    return *method ? method : oq_options_text(b->options, "quantization", "as asked");
}

/* ---- layers: every linear product of one request, summed by shape -------------------------------------- */

typedef struct layer_time {
    const oq_linear *layer; /* the first of its kind */
    int64_t rows;
    double ms[64];
    size_t n;
} layer_time;

typedef struct layer_watch {
    oq_bench *b;
    const oq_model *model;
    layer_time kinds[256];
    size_t n;
    uint8_t *scratch;
    size_t scratch_bytes;
} layer_watch;

static layer_time *find_kind(layer_watch *w, const oq_linear *layer, int64_t rows)
{
    for (size_t i = 0; i < w->n; i++) {
        const oq_linear *l = w->kinds[i].layer;
        if (l->spec.n == layer->spec.n && l->spec.k == layer->spec.k && l->kernel == layer->kernel &&
            oq_scheme_equal(&l->spec.scheme, &layer->spec.scheme) && w->kinds[i].rows == rows)
            return &w->kinds[i];
    }
    if (w->n == OQ_COUNT(w->kinds)) return NULL;
    w->kinds[w->n] = (layer_time){.layer = layer, .rows = rows};
    return &w->kinds[w->n++];
}

static oq_status grow(layer_watch *w, size_t bytes)
{
    const oq_model *m = w->model;
    void *buffer = NULL;
    if (bytes <= w->scratch_bytes) return OQ_OK;
    OQ_TRY(m->backend->buffer_new(w->b->env, m->device, bytes, &buffer));
    if (w->scratch) m->backend->buffer_free(w->b->env, m->device, w->scratch);
    w->scratch = buffer;
    w->scratch_bytes = bytes;
    return OQ_OK;
}

static oq_status run_layer(oq_exec *ex, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    oq_tensor out;
    ex->used = 0;
    OQ_TRY(oq_tmp_typed(ex, y.dtype, y.rows, y.cols, &out));
    return oq_linear_forward(ex, layer, out, x);
}

/* The layer once more on its own input, timed: what the run around it does stays out of the figure. */
static oq_status observe(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    layer_watch *w = user;
    const oq_model *m = w->model;
    layer_time *kind = find_kind(w, layer, x.rows);
    if (!kind || kind->n == OQ_COUNT(kind->ms) || layer->apart)
        return OQ_OK; /* its pieces come by themselves */
    oq_exec ex = {.env = w->b->env,
                  .backend = m->backend,
                  .device = m->device,
                  .ops = m->backend->ops(m->device),
                  .compute = m->plan->compute,
                  .measure = true};
    OQ_TRY(run_layer(&ex, layer, x, y));
    OQ_TRY(grow(w, ex.peak));
    ex.measure = false;
    ex.base = w->scratch;
    ex.size = w->scratch_bytes;
    const double start = oq_now_s();
    OQ_TRY(run_layer(&ex, layer, x, y));
    OQ_TRY(m->backend->sync(w->b->env, m->device));
    kind->ms[kind->n++] = (oq_now_s() - start) * 1e3;
    return OQ_OK;
}

static oq_status add_layers(oq_bench *b, layer_watch *w)
{
    for (size_t i = 0; i < w->n; i++) {
        layer_time *t = &w->kinds[i];
        const oq_linear_spec *s = &t->layer->spec;
        char shape[64];
        snprintf(shape, sizeof shape, "m%" PRId64 " n%" PRId64 " k%" PRId64, t->rows, s->n, s->k);
        const oq_bench_row row = {"layer", shape, s->scheme.weight->name, t->layer->kernel->name,
                                  2.0 * (double)t->rows * (double)s->n * (double)s->k};
        if (b->filter && !oq_glob_match(b->filter, t->layer->kernel->name)) continue;
        OQ_TRY(oq_bench_add(b, &row, t->ms, t->n, NULL));
    }
    return OQ_OK;
}

static oq_status watch_run(oq_bench *b, const oq_model *model, const oq_request *request)
{
    layer_watch *w = NULL;
    oq_media *media = NULL;
    OQ_TRY(oq_new(b->env, 1, sizeof *w, "bench", &w));
    w->b = b;
    w->model = model;
    const oq_run_hooks hooks = {.observer = observe, .observer_user = w};
    oq_status st = oq_generate_request(b->env, model, request, &hooks, &media);
    if (st == OQ_OK) st = add_layers(b, w);
    oq_media_free(media);
    if (w->scratch) model->backend->buffer_free(b->env, model->device, w->scratch);
    oq_free(b->env, w);
    return st;
}

/* ---- whole pictures ------------------------------------------------------------------------------------ */

static oq_status time_whole(oq_bench *b, const oq_model *model, const oq_request *request, const char *label)
{
    enum { RUNS = 3 };
    double total[RUNS], text[RUNS], denoise[RUNS], decode[RUNS], load[1] = {model->load_s * 1e3};
    char shape[64], steps[96];
    for (int i = 0; i < RUNS; i++) {
        oq_media *media = NULL;
        const double start = oq_now_s();
        OQ_TRY(oq_generate_request(b->env, model, request, NULL, &media));
        total[i] = (oq_now_s() - start) * 1e3;
        text[i] = media->timing.text_s * 1e3;
        denoise[i] = media->timing.denoise_s * 1e3;
        decode[i] = media->timing.decode_s * 1e3;
        oq_media_free(media);
    }
    snprintf(shape, sizeof shape, "%" PRId64 "x%" PRId64, request->width, request->height);
    snprintf(steps, sizeof steps, "%s %d steps", shape, request->steps);
    OQ_TRY(oq_bench_add(b, &(oq_bench_row){"load", oq_path_leaf(model->folder->path), label, "whole", 0},
                        load, 1, NULL));
    OQ_TRY(oq_bench_add(b, &(oq_bench_row){"text", shape, label, "whole", 0}, text, RUNS, NULL));
    OQ_TRY(oq_bench_add(b, &(oq_bench_row){"denoise", steps, label, "whole", 0}, denoise, RUNS, NULL));
    OQ_TRY(oq_bench_add(b, &(oq_bench_row){"decode", shape, label, "whole", 0}, decode, RUNS, NULL));
    return oq_bench_add(b, &(oq_bench_row){"generate", steps, label, "whole", 0}, total, RUNS, NULL);
}

oq_status oq_bench_open_model(oq_bench *b, const char *method, oq_arena *arena, oq_options **options,
                              oq_model **model, oq_request *request)
{
    OQ_TRY(make_options(b, *method ? method : NULL, options));
    OQ_TRY(oq_model_prepare(b->env, *options, model));
    OQ_TRY(oq_request_make(b->env, *model, *options, arena, request));
    return oq_model_load(b->env, *model);
}

static oq_status with_model(oq_bench *b, const char *method, bool layers)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    oq_request request;
    oq_arena arena;
    oq_arena_init(&arena, b->env);
    oq_status st = oq_bench_open_model(b, method, &arena, &options, &model, &request);
    if (st == OQ_OK)
        st = layers ? watch_run(b, model, &request) : time_whole(b, model, &request, label_of(b, method));
    oq_model_close(model);
    oq_options_free(options);
    oq_arena_deinit(&arena);
    return st;
}

/* A whole run is "generate int8" to the filter. */
static bool run_is_wanted(const oq_bench *b, const char *method)
{
    char name[128];
    snprintf(name, sizeof name, "generate %s", label_of(b, method));
    return !b->filter || oq_glob_match(b->filter, name);
}

static oq_status each_method(oq_bench *b, bool layers)
{
    for (const char *const *method = methods_of(b); *method; method++)
        if (layers || run_is_wanted(b, *method)) OQ_TRY(with_model(b, *method, layers));
    return OQ_OK;
}

oq_status oq_bench_layers(oq_bench *b)
{
    return each_method(b, true);
}

oq_status oq_bench_whole(oq_bench *b)
{
    return each_method(b, false);
}
