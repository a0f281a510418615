/* attention_policy.c -- reads and judges the options of runtime attention quantization. */
#include "quant/attention_policy.h"

#include "base/names.h"
#include "config/quant_attention.h"

#include <inttypes.h>
#include <string.h>

#define DEFAULT_SPARSITY 0.8 /* of the sparse backend when none is given, as upstream's */

bool oq_attention_policy_active(const oq_attention_policy *policy)
{
    return policy->precision != OQ_ATTENTION_PLAIN || policy->sparsity > 0;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* None, "auto" and "float" are the operands' own precision. */
static bool is_plain(const char *text)
{
    static const char *const plain[] = {"auto", "float", "none", "plain"};
    for (size_t i = 0; i < OQ_COUNT(plain); i++)
        if (oq_name_equal(plain[i], text)) return true;
    return false;
}

static oq_status read_precision(oq_env *env, const oq_json *json, oq_attention_policy *out)
{
    if (oq_json_type(json) == OQ_JSON_NULL) return OQ_OK;
    const char *text = oq_json_string(json);
    if (!text)
        return oq_fail(env, OQ_E_CONFIG, "attention: dtype must be a precision's name, not %s",
                       oq_json_type_name(json));
    if (is_plain(text)) return OQ_OK;
    for (int p = OQ_ATTENTION_FP8; p < OQ_N_ATTENTION_PRECISIONS; p++)
        if (oq_name_equal(oq_attention_precision_name((oq_attention_precision)p), text)) {
            out->precision = (oq_attention_precision)p;
            return OQ_OK;
        }
    return oq_fail(env, OQ_E_CONFIG, "attention: dtype '%s' is not one of fp8, mxfp8, mxfp4 (or auto, float)",
                   text);
}

static oq_status read_sparsity(oq_env *env, const oq_json *json, oq_attention_policy *out)
{
    out->sparsity = oq_json_real(json, -1);
    if (out->sparsity >= 0 && out->sparsity < 1) return OQ_OK;
    return oq_fail(env, OQ_E_CONFIG, "attention: sparsity must be a number from 0 to below 1");
}

static oq_status read_backend(oq_env *env, const oq_json *backend, bool has_sparsity,
                              oq_attention_policy *out)
{
    static const char *const dense[] = {"dense", "FLASH_ATTN", "TORCH_SDPA"}, *const sparse[] = {
                                                                                  "sparse",
                                                                                  "RAINFUSION_ATTN"};
    const char *text = oq_json_string(backend);
    if (oq_json_type(backend) == OQ_JSON_NULL) return OQ_OK;
    for (size_t i = 0; text && i < OQ_COUNT(dense); i++)
        if (oq_name_equal(dense[i], text)) {
            if (out->sparsity > 0)
                return oq_fail(env, OQ_E_CONFIG, "attention: backend '%s' is dense, but sparsity is %g", text,
                               out->sparsity);
            return OQ_OK;
        }
    for (size_t i = 0; text && i < OQ_COUNT(sparse); i++)
        if (oq_name_equal(sparse[i], text)) {
            if (!has_sparsity) out->sparsity = DEFAULT_SPARSITY;
            return OQ_OK;
        }
    return oq_fail(
        env, OQ_E_CONFIG,
        "attention: backend '%s' is not known here; dense (FLASH_ATTN) and sparse (RAINFUSION_ATTN) are",
        text ? text : oq_json_type_name(backend));
}

static oq_status read_step(oq_env *env, const oq_json *options, const char *name, int64_t *out)
{
    const oq_json *json = oq_json_get(options, name);
    if (!json || oq_json_type(json) == OQ_JSON_NULL) return OQ_OK;
    if (!oq_json_is_int(json) || oq_json_int(json, -1) < 0)
        return oq_fail(env, OQ_E_CONFIG, "attention: %s must be a step's number from 0 up", name);
    *out = oq_json_int(json, 0);
    return OQ_OK;
}

/* Where attention stays plain, skips of an entry that names no precision itself are without effect. (The component's own entry may
 * leave it plain while the skips of all are for the precision of all.) */
static oq_status check_plain(oq_env *env, const oq_quant_config *config, const char *component,
                             const oq_json *merged)
{
    static const char *const names[] = {"skip_steps", "skip_layers"};
    const char *is = oq_json_string(oq_json_get(merged, "dtype"));
    for (size_t i = 0; i < config->n_attention; i++) {
        const oq_attention_entry *e = &config->attention[i];
        const char *dtype = oq_json_string(oq_json_get(e->options, "dtype"));
        if ((e->component && strcmp(e->component, component) != 0) || (dtype && !is_plain(dtype))) continue;
        for (size_t j = 0; j < OQ_COUNT(names); j++)
            if (oq_json_type(oq_json_get(e->options, names[j])) != OQ_JSON_NULL)
                return oq_fail(env, OQ_E_CONFIG, "attention: %s is without effect, because %s%s%s", names[j],
                               is ? "dtype '" : "no dtype is given", is ? is : "",
                               is ? "' leaves attention as it is" : "");
    }
    return OQ_OK;
}

/* Options without what they refine would be without effect. */
static oq_status check_effect(oq_env *env, const oq_json *options, const oq_attention_policy *p)
{
    static const struct {
        const char *name;
        bool sparse;
    } refine[] = {{"skip_steps", false},
                  {"skip_layers", false},
                  {"start_step", true},
                  {"end_step", true},
                  {"sparse_skip_layers", true}};
    for (size_t i = 0; i < OQ_COUNT(refine); i++) {
        const oq_json *json = oq_json_get(options, refine[i].name);
        if (!json || oq_json_type(json) == OQ_JSON_NULL) continue;
        if (refine[i].sparse ? p->sparsity > 0 : oq_json_get(options, "dtype") != NULL) continue;
        return oq_fail(env, OQ_E_CONFIG, "attention: %s is without effect, because no %s is given",
                       refine[i].name, refine[i].sparse ? "sparsity" : "dtype");
    }
    if (p->end_step < p->start_step)
        return oq_fail(env, OQ_E_CONFIG, "attention: end_step %" PRId64 " lies before start_step %" PRId64,
                       p->end_step, p->start_step);
    return OQ_OK;
}

static oq_status read_options(oq_env *env, oq_arena *arena, const oq_json *o, oq_attention_policy *out)
{
    const oq_json *sparsity = oq_json_get(o, "sparsity"), *dtype = oq_json_get(o, "dtype");
    const bool has_sparsity = sparsity && oq_json_type(sparsity) != OQ_JSON_NULL;
    if (dtype) OQ_TRY(read_precision(env, dtype, out));
    if (has_sparsity) OQ_TRY(read_sparsity(env, sparsity, out));
    if (oq_json_get(o, "backend")) OQ_TRY(read_backend(env, oq_json_get(o, "backend"), has_sparsity, out));
    OQ_TRY(oq_selector_from_json(env, arena, "attention: skip_steps", oq_json_get(o, "skip_steps"),
                                 &out->skip_steps));
    OQ_TRY(oq_selector_from_json(env, arena, "attention: skip_layers", oq_json_get(o, "skip_layers"),
                                 &out->skip_layers));
    OQ_TRY(oq_selector_from_json(env, arena, "attention: sparse_skip_layers",
                                 oq_json_get(o, "sparse_skip_layers"), &out->sparse_skip_layers));
    OQ_TRY(read_step(env, o, "start_step", &out->start_step));
    OQ_TRY(read_step(env, o, "end_step", &out->end_step));
    return check_effect(env, o, out);
}

oq_status oq_attention_policy_read(oq_env *env, oq_arena *arena, const oq_quant_config *config,
                                   const char *component, oq_attention_policy *out)
{
    oq_json *options = NULL;
    *out = (oq_attention_policy){.end_step = INT64_MAX};
    OQ_TRY(oq_quant_attention_of(env, config, component, &options));
    oq_status st = options ? read_options(env, arena, options, out) : OQ_OK;
    if (st == OQ_OK && options && out->precision == OQ_ATTENTION_PLAIN)
        st = check_plain(env, config, component, options);
    oq_json_free(options);
    return st;
}

/* ---- judging ------------------------------------------------------------------------------------------- */

oq_status oq_attention_policy_check_names(oq_env *env, const oq_quant_config *config,
                                          const char *const *eligible, size_t n)
{
    for (size_t i = 0; config && i < config->n_attention; i++) {
        const char *name = config->attention[i].component;
        bool found = name == NULL && n > 0;
        for (size_t j = 0; name && j < n; j++) found |= strcmp(name, eligible[j]) == 0;
        if (!found)
            return oq_fail(env, OQ_E_CONFIG,
                           "attention: component '%s' takes no attention quantization, which is for %s%s",
                           name ? name : "of any name", n ? eligible[0] : "diffusion transformers",
                           n > 1 ? " and its like" : "");
    }
    return OQ_OK;
}

static int64_t largest(const oq_selector *s)
{
    return s->n_ranges ? s->ranges[s->n_ranges - 1].last : -1;
}

oq_status oq_attention_policy_check_steps(oq_env *env, const oq_attention_policy *p, const char *component,
                                          int64_t steps)
{
    const bool quantized = p->precision != OQ_ATTENTION_PLAIN, sparse = p->sparsity > 0;
    const int64_t end = p->end_step == INT64_MAX ? p->start_step : p->end_step;
    const char *name = NULL;
    int64_t step = 0;
    if (quantized && largest(&p->skip_steps) >= steps) name = "skip_steps", step = largest(&p->skip_steps);
    if (sparse && end >= steps) name = p->start_step >= steps ? "start_step" : "end_step", step = end;
    if (!name) return OQ_OK;
    return oq_fail(env, OQ_E_CONFIG,
                   "attention of '%s': %s selects step %" PRId64 ", this run has steps 0 to %" PRId64,
                   component, name, step, steps - 1);
}

int64_t oq_attention_layer_index(const char *name)
{
    while (*name) {
        const size_t word = strcspn(name, ".");
        if (word > 0 && word < 10 && strspn(name, "0123456789") == word) {
            int64_t index = 0;
            for (size_t i = 0; i < word; i++) index = index * 10 + (name[i] - '0');
            return index;
        }
        name += word;
        name += *name == '.';
    }
    return -1;
}
