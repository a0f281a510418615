/* compare_layers.c -- the error that each quantized layer adds by itself: while the candidate runs, every
 * input of such a layer also goes through the reference's layer of the same name (of an attention quantized at run time:
 * through the plain one), and the outputs are compared. SNR in dB = 10 log10(sum ref^2 / sum (ref - cand)^2) over all calls of a run, sums in double. */
#include "engine/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct layer_error {
    const char *component, *name;
    int64_t n, k;    /* of a product; 0: attention */
    const char *how; /* the weights' format, the operands' precision */
    const oq_linear *candidate, *reference;
    const oq_attention *attention;
    double signal, noise;
    int64_t rows;
} layer_error;

struct oq_layer_errors {
    oq_env *env;
    const oq_model *reference;
    layer_error *layers;
    size_t n;
    uint8_t *scratch; /* of the reference's product, grown when a larger input comes */
    size_t scratch_bytes;
    char *rows;    /* host copies of one row of each side, as stored */
    float *values; /* the same as f32 */
    int64_t max_cols;
};

static const oq_linear *find_linear(const oq_model *model, const char *component, const char *name)
{
    const oq_plan_component *c = oq_plan_find(model->plan, component);
    for (size_t i = 0; c && i < c->n_layers; i++)
        if (strcmp(c->layers[i].linear->name, name) == 0) return c->layers[i].linear;
    return NULL;
}

static oq_status add_component(oq_layer_errors *e, const oq_plan_component *c)
{
    for (size_t i = 0; i < c->n_layers; i++) {
        const oq_linear *l = c->layers[i].linear;
        const char *const how = l->spec.scheme.weight->name;
        if (!c->layers[i].choice.quantized) continue;
        const oq_linear *plain = find_linear(e->reference, c->name, l->name);
        if (!plain && l->whole) { /* a piece of what is one product there */
            l = l->whole;
            if (e->n && e->layers[e->n - 1].candidate == l) continue;
            plain = find_linear(e->reference, c->name, l->name);
        }
        if (!plain || plain->spec.n != l->spec.n || plain->spec.k != l->spec.k)
            return oq_fail(e->env, OQ_E_MISMATCH,
                           "layers: '%s.%s' of the candidate has no equal layer in the reference", c->name,
                           l->name);
        if (l->spec.n > e->max_cols) e->max_cols = l->spec.n;
        e->layers[e->n++] = (layer_error){.component = c->name,
                                          .name = l->name,
                                          .n = l->spec.n,
                                          .k = l->spec.k,
                                          .how = how,
                                          .candidate = l,
                                          .reference = plain};
    }
    for (size_t i = 0; i < c->n_attentions; i++) {
        const oq_attention *a = c->attentions[i].attention;
        const int64_t cols = a->spec.n_heads * a->spec.head_dim;
        if (!a->modes) continue;
        if (cols > e->max_cols) e->max_cols = cols;
        const bool quantized = a->modes & OQ_MODE_QUANTIZED;
        e->layers[e->n++] = (layer_error){
            .component = c->name,
            .name = a->name,
            .how = quantized ? oq_attention_precision_name(a->mode_spec[a->modes].precision) : "sparse",
            .attention = a};
    }
    return OQ_OK;
}

oq_status oq_layer_errors_new(oq_env *env, const oq_model *reference, const oq_model *candidate,
                              oq_layer_errors **out)
{
    oq_layer_errors *e = NULL;
    size_t n = 0;
    const oq_plan *plan = candidate->plan;
    *out = NULL;
    for (size_t c = 0; c < plan->n_components; c++)
        n += plan->components[c].n_layers + plan->components[c].n_attentions;
    OQ_TRY(oq_new(env, 1, sizeof *e, "layer errors", &e));
    *e = (oq_layer_errors){.env = env, .reference = reference};
    oq_status st = oq_new(env, n, sizeof *e->layers, "layer errors", &e->layers);
    for (size_t c = 0; st == OQ_OK && c < plan->n_components; c++)
        st = add_component(e, &plan->components[c]);
    if (st == OQ_OK && e->n == 0)
        st = oq_fail(env, OQ_E_ARG,
                     "layers: the candidate has no quantized layer; give --candidate-quantization or "
                     "--candidate-attention-quantization");
    if (st == OQ_OK) st = oq_new(env, (size_t)e->max_cols, 2 * sizeof(double), "layer errors", &e->rows);
    if (st == OQ_OK) st = oq_new(env, (size_t)e->max_cols, 2 * sizeof(float), "layer errors", &e->values);
    if (st != OQ_OK) {
        oq_layer_errors_free(e);
        return st;
    }
    *out = e;
    return OQ_OK;
}

void oq_layer_errors_free(oq_layer_errors *e)
{
    if (!e) return;
    if (e->scratch) e->reference->backend->buffer_free(e->env, e->reference->device, e->scratch);
    oq_free(e->env, e->layers);
    oq_free(e->env, e->rows);
    oq_free(e->env, e->values);
    oq_free(e->env, e);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static oq_status grow_scratch(oq_layer_errors *e, size_t bytes)
{
    const oq_model *m = e->reference;
    void *buffer = NULL;
    if (bytes <= e->scratch_bytes) return OQ_OK;
    OQ_TRY(m->backend->buffer_new(e->env, m->device, bytes, &buffer));
    if (e->scratch) m->backend->buffer_free(e->env, m->device, e->scratch);
    e->scratch = buffer;
    e->scratch_bytes = bytes;
    return OQ_OK;
}

/* y_ref = reference layer(x), in the scratch; the same walk first measures, then runs. */
static oq_status run_reference(oq_exec *ex, const oq_linear *l, oq_tensor x, oq_tensor y, oq_tensor *out)
{
    ex->used = 0;
    OQ_TRY(oq_tmp_typed(ex, y.dtype, y.rows, y.cols, out));
    return oq_linear_forward(ex, l, *out, x);
}

/* Adds one output row of both sides to the sums. */
static oq_status add_row(oq_layer_errors *e, layer_error *sum, oq_tensor want, oq_tensor got)
{
    const oq_model *m = e->reference;
    const size_t n = (size_t)want.cols;
    char *other = e->rows + n * sizeof(double);
    float *a = e->values, *b = e->values + n;
    OQ_TRY(m->backend->download(e->env, m->device, e->rows, want.data, n * want.dtype->bytes));
    OQ_TRY(m->backend->download(e->env, m->device, other, got.data, n * got.dtype->bytes));
    want.dtype->to_f32(a, e->rows, n);
    got.dtype->to_f32(b, other, n);
    for (size_t i = 0; i < n; i++) {
        const double s = (double)a[i], d = (double)b[i] - s;
        sum->signal += s * s;
        sum->noise += d * d;
    }
    return OQ_OK;
}

static oq_status add_rows(oq_layer_errors *e, layer_error *sum, oq_tensor want, oq_tensor got)
{
    OQ_TRY(e->reference->backend->sync(e->env, e->reference->device));
    for (int64_t r = 0; r < got.rows; r++)
        OQ_TRY(add_row(e, sum, oq_tensor_rows(want, r, 1), oq_tensor_rows(got, r, 1)));
    sum->rows += got.rows;
    return OQ_OK;
}

oq_status oq_layer_errors_attend(void *errors, const oq_attention *layer, const oq_attention_args *args)
{
    oq_layer_errors *e = errors;
    layer_error *sum = NULL;
    oq_attention_args plain = *args;
    const size_t bytes =
        (oq_tensor_bytes(oq_tensor_make(NULL, args->o.dtype, args->o.rows, args->o.cols)) + 63) / 64 * 64;
    for (size_t i = 0; i < e->n && !sum; i++)
        if (e->layers[i].attention == layer) sum = &e->layers[i];
    if (!sum) return OQ_OK;
    OQ_TRY(grow_scratch(e, bytes + layer->kernel->scratch_bytes(&layer->spec, args->q.rows, args->k.rows)));
    plain.spec = &layer->spec;
    plain.o = oq_tensor_make(e->scratch, args->o.dtype, args->o.rows, args->o.cols);
    plain.scratch = e->scratch + bytes;
    layer->kernel->run(e->reference->device, &plain);
    return add_rows(e, sum, plain.o, args->o);
}

oq_status oq_layer_errors_observe(void *errors, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    oq_layer_errors *e = errors;
    const oq_model *m = e->reference;
    oq_tensor want;
    layer_error *sum = NULL;
    for (size_t i = 0; i < e->n && !sum; i++)
        if (e->layers[i].candidate == layer) sum = &e->layers[i];
    if (!sum) return OQ_OK; /* a plain layer */
    oq_exec ex = {.env = e->env,
                  .backend = m->backend,
                  .device = m->device,
                  .ops = m->backend->ops(m->device),
                  .compute = m->plan->compute,
                  .measure = true};
    OQ_TRY(run_reference(&ex, sum->reference, x, y, &want));
    OQ_TRY(grow_scratch(e, ex.peak));
    ex.measure = false;
    ex.base = e->scratch;
    ex.size = e->scratch_bytes;
    OQ_TRY(run_reference(&ex, sum->reference, x, y, &want));
    return add_rows(e, sum, want, y);
}

/* ---- results ------------------------------------------------------------------------------------------- */

static double snr_db(const layer_error *l)
{
    if (l->noise <= 0) return INFINITY;
    return l->signal > 0 ? 10 * log10(l->signal / l->noise) : -INFINITY;
}

oq_json *oq_layer_errors_json(const oq_layer_errors *e)
{
    oq_json *list = oq_json_new_array();
    for (size_t i = 0; i < e->n; i++) {
        const layer_error *l = &e->layers[i];
        oq_json *json = oq_json_new_object();
        oq_json_set(json, "component", oq_json_new_string(l->component));
        oq_json_set(json, "name", oq_json_new_string(l->name));
        if (l->attention) {
            oq_json_set(json, "attention", oq_json_new_string(l->how));
        } else {
            oq_json_set(json, "n", oq_json_new_int(l->n));
            oq_json_set(json, "k", oq_json_new_int(l->k));
            oq_json_set(json, "weight", oq_json_new_string(l->how));
        }
        oq_json_set(json, "rows", oq_json_new_int(l->rows));
        /* A layer of which no output is used does not run: the last ones of a text encoder. */
        oq_json_set(json, "snr_db", l->rows > 0 ? oq_json_new_real(snr_db(l)) : oq_json_new_null());
        oq_json_append(list, json);
    }
    return list;
}

static void full_name(const layer_error *l, char *out, size_t size)
{
    snprintf(out, size, "%s.%s", l->component, l->name);
}

void oq_layer_errors_print(const oq_layer_errors *e, oq_strbuf *out)
{
    double worst = INFINITY;
    const layer_error *at = NULL;
    char shape[48], name[200];
    int width = (int)strlen("layer");
    for (size_t i = 0; i < e->n; i++) {
        full_name(&e->layers[i], name, sizeof name);
        if ((int)strlen(name) > width) width = (int)strlen(name);
    }
    oq_strbuf_printf(out, "%-8s  %-*s  %10s  %8s\n", "SNR dB", width, "layer", "shape", "rows");
    for (size_t i = 0; i < e->n; i++) {
        const layer_error *l = &e->layers[i];
        if (l->attention)
            snprintf(shape, sizeof shape, "%s", l->how);
        else
            snprintf(shape, sizeof shape, "%" PRId64 "x%" PRId64, l->n, l->k);
        full_name(l, name, sizeof name);
        if (l->rows == 0) {
            oq_strbuf_printf(out, "%-8s  %-*s  %10s\n", "not run", width, name, shape);
            continue;
        }
        oq_strbuf_printf(out, "%-8.2f  %-*s  %10s  %8" PRId64 "\n", snr_db(l), width, name, shape, l->rows);
        if (snr_db(l) < worst) worst = snr_db(l), at = l;
    }
    if (at) oq_strbuf_printf(out, "lowest: %.2f dB at %s.%s\n", worst, at->component, at->name);
}
