/* quantize_calibrate.c -- what the quantize command learns from prompts: the source's model runs them, and static scales of
 * activations come from the largest number that each layer took in. */
#include "engine/calibrate.h"
#include "engine/quantize.h"

#include "base/names.h"

#include <string.h>

/* ---- static activations -------------------------------------------------------------------------------- */

/* The largest number of the codes under a static scale; 0: the scheme has none. */
static float largest_code(const oq_scheme *s)
{
    if (s->act_scale == OQ_ACT_STATIC_NVFP4) return 6.0f * 448.0f; /* of e2m1 under a scale of e4m3 */
    if (s->act_scale != OQ_ACT_STATIC_TENSOR) return 0.0f;
    return s->act == &oq_dtype_i8 ? 127.0f : 448.0f;
}

void oq_quantize_refine(const oq_quantize *q, oq_scheme *s)
{
    if (strcmp(oq_options_text(q->options, "activation-scheme", "method"), "static") != 0) return;
    const bool nvfp4 = s->weight == &oq_format_nvfp4 && (!s->act || s->act_scale == OQ_ACT_DYNAMIC_NVFP4);
    if (nvfp4)
        s->act = &oq_dtype_f4_e2m1, s->act_scale = OQ_ACT_STATIC_NVFP4;
    else if (s->act_scale == OQ_ACT_DYNAMIC_TOKEN)
        s->act_scale = OQ_ACT_STATIC_TENSOR;
}

static size_t count_static(const oq_quantize *q)
{
    size_t n = 0;
    for (size_t i = 0; i < q->n_parts; i++)
        for (size_t l = 0; l < q->parts[i].n_layers; l++)
            n += oq_act_is_static(q->parts[i].layers[l].scheme.act_scale);
    return n;
}

/* Layers whose activations are quantized in a way that has no static kind. */
static void tell_dynamic(const oq_quantize *q)
{
    const oq_write_layer *first = NULL;
    char scheme[128];
    size_t n = 0;
    for (size_t i = 0; i < q->n_parts; i++)
        for (size_t l = 0; l < q->parts[i].n_layers; l++) {
            const oq_write_layer *layer = &q->parts[i].layers[l];
            if (!layer->scheme.act || oq_act_is_static(layer->scheme.act_scale)) continue;
            if (!n++) first = layer;
        }
    if (!first) return;
    oq_scheme_describe(&first->scheme, scheme, sizeof scheme);
    oq_log(q->env, OQ_LOG_WARN, "%zu layers have no static activations, the first is '%s' (%s)", n,
           first->name, scheme);
}

/* ---- whose input a layer takes ------------------------------------------------------------------------- */

typedef struct input { /* a layer of the source's files, and the product that multiplies by it */
    const char *name;
    const oq_calibration_layer *seen;
} input;

static oq_status list_inputs(oq_quantize *q, const oq_quantize_part *p, const oq_calibration *c, input **out,
                             size_t *n)
{
    size_t most = 0;
    for (size_t i = 0; i < p->planned->n_layers; i++) most += (size_t)p->planned->layers[i].linear->n_parts;
    *n = 0;
    OQ_TRY(oq_arena_new(&q->source.arena, most + 1, sizeof **out, "layers", out));
    for (size_t i = 0; i < p->planned->n_layers; i++) {
        const oq_linear *l = p->planned->layers[i].linear;
        const oq_calibration_layer *seen = oq_calibration_find(c, p->name, l->name);
        for (int part = 0; part < l->n_parts; part++)
            (*out)[(*n)++] = (input){oq_plan_place(p->planned, l->parts[part].name).name, seen};
    }
    return OQ_OK;
}

/* ---- scales -------------------------------------------------------------------------------------------- */

/* Of one layer of the output; its parts share their input. */
static oq_calibration_layer seen_by(const oq_spelling *s, const input *inputs, size_t n)
{
    oq_calibration_layer all = {0};
    for (int f = 0; f < s->n_from; f++)
        for (size_t j = 0; j < n; j++)
            if (inputs[j].seen && strcmp(inputs[j].name, s->from[f]) == 0) {
                all.rows += inputs[j].seen->rows;
                all.amax = inputs[j].seen->amax > all.amax ? inputs[j].seen->amax : all.amax;
            }
    return all;
}

/* Layers that the prompts do not reach, or whose input is zeros, have no scale. */
static oq_status check_reached(const oq_quantize *q, const oq_quantize_part *p, const input *inputs, size_t n)
{
    size_t count = 0, first = 0;
    for (size_t i = p->n_layers; i-- > 0;)
        if (oq_act_is_static(p->layers[i].scheme.act_scale) &&
            !(seen_by(&p->spellings[i], inputs, n).amax > 0))
            first = i, count++;
    if (!count) return OQ_OK;
    const bool ran = seen_by(&p->spellings[first], inputs, n).rows > 0;
    return oq_fail(q->env, OQ_E_UNSUPPORTED,
                   "%s: layer '%s'%s %s in the %d calibration %s, so there is no scale for its activations; "
                   "leave such layers plain with --ignored-layers",
                   p->name, p->layers[first].name, count > 1 ? " and others" : "",
                   ran ? "took in nothing but zeros" : "did not run", q->calibrated.prompts,
                   q->calibrated.prompts == 1 ? "prompt" : "prompts");
}

static oq_status set_scales(oq_quantize *q, oq_quantize_part *p, const oq_calibration *c)
{
    input *inputs = NULL;
    size_t n = 0;
    OQ_TRY(list_inputs(q, p, c, &inputs, &n));
    OQ_TRY(check_reached(q, p, inputs, n));
    for (size_t i = 0; i < p->n_layers; i++) {
        oq_write_layer *layer = &p->layers[i];
        if (!oq_act_is_static(layer->scheme.act_scale)) continue;
        const float amax = seen_by(&p->spellings[i], inputs, n).amax;
        layer->input_scale = amax / largest_code(&layer->scheme);
        if (!(layer->input_scale > 0))
            return oq_fail(q->env, OQ_E_UNSUPPORTED,
                           "%s: layer '%s' takes in at most %g, too little for a scale of its activations",
                           p->name, layer->name, (double)amax);
        p->rewrite.jobs[i].to.input_scale = layer->input_scale; /* the first jobs are the layers */
    }
    return OQ_OK;
}

/* ---- the command's part -------------------------------------------------------------------------------- */

/* Options that only a calibration heeds would be without effect. */
static oq_status refuse_request(const oq_quantize *q)
{
    size_t n = 0;
    const oq_option_info *rows = oq_option_list(&n);
    for (size_t i = 0; i < n; i++) {
        const bool runs =
            strcmp(rows[i].group, "request") == 0 || oq_csv_has("device,cpu,max-memory", rows[i].name);
        if (!runs || oq_option_find("quantize", rows[i].name) != &rows[i] ||
            !oq_options_given(q->options, rows[i].name))
            continue;
        return oq_fail(
            q->env, OQ_E_ARG,
            "'%s' is given, but nothing that is asked for is calibrated: --activation-scheme static is",
            rows[i].name);
    }
    return OQ_OK;
}

static oq_status find_model(const oq_quantize *q, oq_calibration_source *out)
{
    *out = (oq_calibration_source){.model = q->source.path};
    if (q->source.folder) return OQ_OK;
    *out = (oq_calibration_source){.component = q->parts[0].name, .file = q->source.path};
    if (q->base) {
        out->model = q->base->path;
        return OQ_OK;
    }
    return oq_fail(
        q->env, OQ_E_ARG,
        "%s: a calibration runs the whole model that this %s belongs to: name its folder with -m DIR",
        q->source.path, q->parts[0].name);
}

oq_status oq_quantize_calibrate(oq_quantize *q, bool dry)
{
    const bool asked = oq_options_given(q->options, "activation-scheme");
    oq_calibration_source source;
    oq_calibration *c = NULL;
    q->calibrated.scales = count_static(q);
    if (asked) tell_dynamic(q);
    if (!q->calibrated.scales && asked &&
        strcmp(oq_options_text(q->options, "activation-scheme", ""), "static") == 0)
        return oq_fail(
            q->env, OQ_E_CONFIG,
            "--activation-scheme static: no layer's method has static activations; fp8 per tensor or "
            "channel, int8 and nvfp4 have");
    if (!q->calibrated.scales) return refuse_request(q);
    OQ_TRY(find_model(q, &source));
    OQ_TRY(oq_calibration_open(q->env, q->options, &source, dry, &c));
    const oq_request *r = oq_calibration_request(c);
    q->calibrated.prompts = r->n_prompts;
    q->calibrated.steps = r->steps;
    q->calibrated.width = r->width;
    q->calibrated.height = r->height;
    q->calibrated.seed = r->seed;
    oq_status st = dry ? OQ_OK : oq_calibration_run(c);
    for (size_t i = 0; st == OQ_OK && !dry && i < q->n_parts; i++) st = set_scales(q, &q->parts[i], c);
    oq_calibration_close(c);
    return st;
}
