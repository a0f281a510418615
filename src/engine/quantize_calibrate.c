/* quantize_calibrate.c -- what the quantize command learns from prompts: the source's model runs them. Static scales of
 * activations come from the largest number that each layer took in. */
#include "engine/quantize.h"

#include "base/names.h"

#include <math.h>
#include <string.h>

/* ---- static activations -------------------------------------------------------------------------------- */

/* The largest number of the codes under a static scale; 0: the scheme has none. */
static float largest_code(const oq_scheme *s)
{
    if (s->act_scale == OQ_ACT_STATIC_NVFP4) return 6.0f * 448.0f; /* of e2m1 under a scale of e4m3 */
    if (s->act_scale != OQ_ACT_STATIC_TENSOR) return 0.0f;
    return s->act == &oq_dtype_i8 ? 127.0f : 448.0f;
}

static bool is_int8(const oq_scheme *s)
{
    return s->weight == &oq_format_int8_channel && s->act == &oq_dtype_i8 && oq_scheme_is_bare(s);
}

/* Smoothed layers have static activations: no layout holds the one without the other. */
void oq_quantize_refine(const oq_quantize *q, oq_scheme *s)
{
    if (oq_options_flag(q->options, "smoothquant") && is_int8(s)) {
        s->smooth = true;
        s->act_scale = OQ_ACT_STATIC_TENSOR;
    }
    if (oq_quantize_compensates(q, s)) s->order = oq_quantize_column_order(q) == OQ_COLUMNS_REGROUPED;
    if (strcmp(oq_options_text(q->options, "activation-scheme", "method"), "static") != 0) return;
    const bool nvfp4 = s->weight == &oq_format_nvfp4 && (!s->act || s->act_scale == OQ_ACT_DYNAMIC_NVFP4);
    if (nvfp4)
        s->act = &oq_dtype_f4_e2m1, s->act_scale = OQ_ACT_STATIC_NVFP4;
    else if (s->act_scale == OQ_ACT_DYNAMIC_TOKEN)
        s->act_scale = OQ_ACT_STATIC_TENSOR;
}

static void count_layers(oq_quantize *q)
{
    for (size_t i = 0; i < q->n_parts; i++)
        for (size_t l = 0; l < q->parts[i].n_layers; l++) {
            const oq_scheme *s = &q->parts[i].layers[l].scheme;
            q->calibrated.scales += oq_act_is_static(s->act_scale);
            q->calibrated.smoothed += s->smooth;
            q->calibrated.compensated += oq_quantize_compensates(q, s);
        }
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
    oq_calibration_layer *seen;
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
        oq_calibration_layer *seen = oq_calibration_find(c, p->name, l->name);
        for (int part = 0; part < l->n_parts; part++)
            (*out)[(*n)++] = (input){oq_plan_place(p->planned, l->parts[part].name).name, seen};
    }
    return OQ_OK;
}

/* Of one layer of the output: its parts share their input, as the product that they are parts of has one. NULL: none of it was
 * in the model that ran. */
static oq_calibration_layer *seen_by(const oq_spelling *s, const input *inputs, size_t n)
{
    for (int f = 0; f < s->n_from; f++)
        for (size_t j = 0; j < n; j++)
            if (inputs[j].seen && strcmp(inputs[j].name, s->from[f]) == 0) return inputs[j].seen;
    return NULL;
}

static oq_status find_inputs(oq_quantize *q, oq_quantize_part *p, const oq_calibration *c)
{
    input *inputs = NULL;
    size_t n = 0;
    OQ_TRY(list_inputs(q, p, c, &inputs, &n));
    OQ_TRY(oq_arena_new(&q->source.arena, p->n_layers + 1, sizeof *p->seen, "layers", &p->seen));
    for (size_t i = 0; i < p->n_layers; i++) p->seen[i] = seen_by(&p->spellings[i], inputs, n);
    return OQ_OK;
}

/* ---- scales -------------------------------------------------------------------------------------------- */

/* Layers that the prompts do not reach, or whose input is zeros, have no scale. */
static oq_status check_reached(const oq_quantize *q, const oq_quantize_part *p)
{
    size_t count = 0, first = 0;
    for (size_t i = p->n_layers; i-- > 0;)
        if (oq_act_is_static(p->layers[i].scheme.act_scale) && !(p->seen[i] && p->seen[i]->amax > 0))
            first = i, count++;
    if (!count) return OQ_OK;
    const bool ran = p->seen[first] && p->seen[first]->rows > 0;
    return oq_fail(q->env, OQ_E_UNSUPPORTED,
                   "%s: layer '%s'%s %s in the %d calibration %s, so there is no scale for its activations; "
                   "leave such layers plain with --ignored-layers",
                   p->name, p->layers[first].name, count > 1 ? " and others" : "",
                   ran ? "took in nothing but zeros" : "did not run", q->calibrated.prompts,
                   q->calibrated.prompts == 1 ? "prompt" : "prompts");
}

/* The largest number that the layer multiplies, behind its factors. */
static float largest_input(const oq_write_layer *layer, const oq_calibration_layer *seen)
{
    float amax = 0;
    if (!layer->smooth) return seen->amax;
    for (int64_t c = 0; c < layer->k; c++) amax = fmaxf(amax, seen->column_amax[c] * layer->smooth[c]);
    return amax;
}

static oq_status set_scales(oq_quantize *q, oq_quantize_part *p)
{
    for (size_t i = 0; i < p->n_layers; i++) {
        oq_write_layer *layer = &p->layers[i];
        if (!oq_act_is_static(layer->scheme.act_scale)) continue;
        const float amax = largest_input(layer, p->seen[i]);
        layer->input_scale = amax / largest_code(&layer->scheme);
        if (!(layer->input_scale > 0))
            return oq_fail(q->env, OQ_E_UNSUPPORTED,
                           "%s: layer '%s' takes in at most %g, too little for a scale of its activations",
                           p->name, layer->name, (double)amax);
        p->rewrite.jobs[i].to = *layer; /* the first jobs are the layers */
    }
    return OQ_OK;
}

static oq_status learn(oq_quantize *q, oq_quantize_part *p)
{
    OQ_TRY(check_reached(q, p));
    if (q->calibrated.smoothed) OQ_TRY(oq_quantize_smooth(q, p));
    return set_scales(q, p);
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
        return oq_fail(q->env, OQ_E_ARG,
                       "'%s' is given, but nothing that is asked for is calibrated: --activation-scheme "
                       "static, --smoothquant and --gptq are",
                       rows[i].name);
    }
    return OQ_OK;
}

static oq_status find_model(const oq_quantize *q, oq_calibration_source *out)
{
    *out = (oq_calibration_source){.model = q->source.path};
    if (q->source.folder) return OQ_OK;
    *out = (oq_calibration_source){.component = q->parts[0].name, .file = q->source.path};
    if (q->parts[0].or_name)
        return oq_fail(
            q->env, OQ_E_ARG,
            "%s: may be %s or %s of %s, and a calibration has to know which: let it lie in a folder of that "
            "name",
            q->source.path, q->parts[0].name, q->parts[0].or_name, q->base->path);
    if (q->base) {
        out->model = q->base->path;
        return OQ_OK;
    }
    return oq_fail(
        q->env, OQ_E_ARG,
        "%s: a calibration runs the whole model that this %s belongs to: name its folder with -m DIR",
        q->source.path, q->parts[0].name);
}

static oq_status check_companion(const oq_quantize *q, const char *option, const char *of)
{
    if (oq_options_flag(q->options, of) || !oq_options_given(q->options, option)) return OQ_OK;
    return oq_fail(q->env, OQ_E_ARG, "'%s' is given without --%s", option, of);
}

static oq_status check_wishes(const oq_quantize *q)
{
    const bool smooth = oq_options_flag(q->options, "smoothquant");
    if (strcmp(oq_options_text(q->options, "activation-scheme", "method"), "static") == 0) {
        tell_dynamic(q);
        if (!q->calibrated.scales)
            return oq_fail(
                q->env, OQ_E_CONFIG,
                "--activation-scheme static: no layer's method has static activations; fp8 per tensor or "
                "channel, int8 and nvfp4 have");
    }
    if (smooth && !q->calibrated.smoothed)
        return oq_fail(q->env, OQ_E_CONFIG,
                       "--smoothquant smooths layers of method int8, and there are none");
    if (oq_options_flag(q->options, "gptq") && !q->calibrated.compensated)
        return oq_fail(q->env, OQ_E_CONFIG,
                       "--gptq rounds layers of integers in groups (method w4a16), and there are none");
    OQ_TRY(check_companion(q, "smoothquant-alpha", "smoothquant"));
    OQ_TRY(check_companion(q, "gptq-damping", "gptq"));
    OQ_TRY(check_companion(q, "gptq-memory", "gptq"));
    OQ_TRY(check_companion(q, "desc-act", "gptq"));
    return q->calibrated.scales || q->calibrated.compensated ? OQ_OK : refuse_request(q);
}

static void note_request(oq_quantize *q, const oq_request *r)
{
    q->calibrated.prompts = r->n_prompts;
    q->calibrated.steps = r->steps;
    q->calibrated.width = r->width;
    q->calibrated.height = r->height;
    q->calibrated.seed = r->seed;
}

oq_status oq_quantize_calibrate(oq_quantize *q, bool dry)
{
    oq_calibration_source source;
    size_t limit = 0;
    count_layers(q);
    OQ_TRY(check_wishes(q));
    if (!q->calibrated.scales && !q->calibrated.compensated) return OQ_OK;
    OQ_TRY(oq_quantize_product_limit(q, &limit));
    OQ_TRY(find_model(q, &source));
    OQ_TRY(oq_calibration_open(q->env, q->options, &source, dry, &q->calibration));
    note_request(q, oq_calibration_request(q->calibration));
    if (dry) return OQ_OK;
    for (size_t i = 0; i < q->n_parts; i++) OQ_TRY(find_inputs(q, &q->parts[i], q->calibration));
    if (q->calibrated.scales) OQ_TRY(oq_calibration_run(q->calibration));
    for (size_t i = 0; q->calibrated.scales && i < q->n_parts; i++) OQ_TRY(learn(q, &q->parts[i]));
    if (q->calibrated.compensated) return oq_quantize_take_turns(q, limit);
    oq_calibration_close(q->calibration); /* its model takes memory */
    q->calibration = NULL;
    return OQ_OK;
}
