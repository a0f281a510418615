/* dialect_gptq.c -- GPTQ's `qweight`, `qzeros`, `scales`, `g_idx`: zero points are stored less by one, or as they are
 * where checkpoint_format is gptq_v2 or gptq_p, whose codes (and all of 5 to 7 bits) stand in planes. GPTQModel's
 * `dynamic` changes or leaves out single layers. */
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include "base/regex.h"

#include <stdio.h>
#include <string.h>

extern const oq_method oq_method_gptq;

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_gptq;
}

/* Patterns are tried in the file's order, from the beginning of the name; "-:" leaves the layer out. */
static oq_status find_override(oq_env *env, const oq_declared *declared, const char *name,
                               const oq_json **out, bool *left_out)
{
    const oq_json *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    *out = NULL;
    *left_out = false;
    while (oq_json_next(oq_json_get(declared->options, "dynamic"), &at, &key, &value)) {
        const bool minus = strncmp(key, "-:", 2) == 0;
        oq_regex *regex = NULL;
        OQ_TRY(oq_regex_new(env, minus || strncmp(key, "+:", 2) == 0 ? key + 2 : key, &regex));
        const bool yes = oq_regex_matches_start(regex, name);
        oq_regex_free(env, regex);
        if (!yes) continue;
        *left_out = minus;
        *out = minus ? NULL : value;
        return OQ_OK;
    }
    return OQ_OK;
}

static const oq_json *option(const oq_declared *declared, const oq_json *override, const char *key)
{
    const oq_json *own = oq_json_get(override, key);
    return own ? own : oq_json_get(declared->options, key);
}

/* "meta": {"quantizer": ["gptqmodel:7.7.0"]}: its format gptq is gptq_v2 with one taken off all zero points of a word in one
 * subtraction. */
static bool is_gptqmodel(const oq_declared *declared)
{
    const oq_json *who = oq_json_get(oq_json_get(declared->options, "meta"), "quantizer");
    const size_t n = oq_json_type(who) == OQ_JSON_ARRAY ? oq_json_size(who) : 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = oq_json_string(oq_json_type(who) == OQ_JSON_ARRAY ? oq_json_at(who, i) : who);
        if (name && strncmp(name, "gptqmodel", 9) == 0) return true;
    }
    return false;
}

static bool is_between_5_and_7(int64_t bits)
{
    return bits >= 5 && bits <= 7;
}

/* GPTQModel writes all layers in planes once one of them has 5 to 7 bits, and says gptq_p: of a file that mixes them and says
 * otherwise nobody knows how the other layers stand. */
static oq_status check_mixed(oq_env *env, const oq_declared *declared)
{
    const char *format = oq_json_string(oq_json_get(declared->options, "checkpoint_format"));
    const int64_t bits = oq_json_int(oq_json_get(declared->options, "bits"), 0);
    const oq_json *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    if (format && strcmp(format, "gptq_p") == 0) return OQ_OK;
    while (oq_json_next(oq_json_get(declared->options, "dynamic"), &at, &key, &value)) {
        const int64_t own = oq_json_int(oq_json_get(value, "bits"), bits);
        if (strncmp(key, "-:", 2) == 0 || is_between_5_and_7(own) == is_between_5_and_7(bits)) continue;
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layers of %lld bits and ('dynamic' entry '%s') of %lld in one file of checkpoint_format '%s': "
            "5 to 7 bits beside others are read where it is gptq_p",
            (long long)bits, key, (long long)own, format ? format : "gptq");
    }
    return OQ_OK;
}

static oq_status read_file(oq_env *env, const oq_declare_input *in, oq_declared *out)
{
    OQ_TRY(oq_declared_read(env, in, out));
    return check_mixed(env, out);
}

static oq_packed_layout read_layout(const oq_declared *declared, const oq_json *override)
{
    const char *format = oq_json_string(oq_json_get(declared->options, "checkpoint_format"));
    const int64_t bits = oq_json_int(option(declared, override, "bits"), 0);
    const bool planes = (format && strcmp(format, "gptq_p") == 0) || is_between_5_and_7(bits);
    return (oq_packed_layout){
        .packing = planes ? OQ_PACK_PLANES : OQ_PACK_GPTQ,
        .bits = bits,
        .group = oq_json_int(option(declared, override, "group_size"), 128),
        .symmetric = oq_json_bool(option(declared, override, "sym"), true),
        .zeros_minus_one = !planes && !(format && strcmp(format, "gptq_v2") == 0),
        .zeros_borrow = is_gptqmodel(declared),
    };
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const oq_json *override = NULL;
    bool left_out = false;
    OQ_TRY(find_override(env, declared, name, &override, &left_out));
    const oq_packed_layout layout = read_layout(declared, override);
    OQ_TRY(oq_packed_locate(env, &layout, ckpt, name, n, k, out, found));
    if (!*found || !left_out) return OQ_OK;
    *found = false;
    return oq_fail(env, OQ_E_FORMAT, "layer '%s' is quantized in the file, but 'dynamic' leaves it out",
                   name);
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    const oq_json *override = NULL;
    bool left_out = false;
    oq_packed_layout layout = read_layout(declared, NULL);
    if (!oq_packed_layer_of(&layout, ckpt, t, name_length, n, k) || *name_length >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    if (find_override(ckpt->arena.env, declared, name, &override, &left_out) != OQ_OK) return false;
    layout = read_layout(declared,
                         override); /* words along the columns hold as many as the layer's own bits say */
    return oq_packed_layer_of(&layout, ckpt, t, name_length, n, k);
}

const oq_dialect oq_dialect_gptq = {
    .name = "gptq",
    .help = "GPTQ's packed integers of 2 to 8 bits, gptq, gptq_v2 and gptq_p",
    .method = &oq_method_gptq,
    .detect = detect,
    .read = read_file,
    .locate = locate,
    .layer_of = layer_of,
};
