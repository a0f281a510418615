/* quant_request.c -- the quantization flags of a command as one configuration value. */
#include "engine/engine.h"

#include "base/names.h"

#include <string.h>

/* --quantization-config takes a file without '@'. */
static oq_status parse_config_flag(oq_env *env, const char *text, const char *const *components, size_t n,
                                   oq_quant_config **out)
{
    if (text[0] == '@' || !oq_file_exists(text)) return oq_quant_config_parse(env, text, components, n, out);
    oq_strbuf at;
    oq_strbuf_init(&at, env);
    oq_strbuf_printf(&at, "@%s", text);
    oq_status st = oq_strbuf_check(&at, "--quantization-config");
    if (st == OQ_OK) st = oq_quant_config_parse(env, oq_strbuf_text(&at), components, n, out);
    oq_strbuf_deinit(&at);
    return st;
}

static oq_status both_given(oq_env *env, oq_quant_config *a, oq_quant_config *b)
{
    oq_json *x = oq_quant_config_to_json(a), *y = oq_quant_config_to_json(b);
    const bool equal = oq_json_equal(x, y);
    oq_json_free(x);
    oq_json_free(y);
    if (equal) return OQ_OK;
    return oq_fail(env, OQ_E_CONFIG, "--quantization and --quantization-config are both given and differ");
}

static oq_status parse_flags(oq_env *env, const oq_options *options, const char *const *components, size_t n,
                             oq_quant_config **out)
{
    const char *name = oq_options_text(options, "quantization", NULL);
    const char *config = oq_options_text(options, "quantization-config", NULL);
    oq_quant_config *first = NULL, *second = NULL;
    oq_status st = name ? oq_quant_config_parse(env, name, components, n, &first) : OQ_OK;
    if (st == OQ_OK && config) st = parse_config_flag(env, config, components, n, &second);
    if (st == OQ_OK && name && config) st = both_given(env, first, second);
    if (st == OQ_OK && second) {
        *out = second;
        second = NULL;
    } else if (st == OQ_OK) {
        *out = first;
        first = NULL;
    }
    oq_quant_config_free(first);
    oq_quant_config_free(second);
    return st;
}

static oq_status add_components(oq_env *env, const oq_options *options, const char *const *components,
                                size_t n, oq_quant_config **config)
{
    const size_t count = oq_options_count(options, "component");
    for (size_t i = 0; i < count; i++) {
        const char *item = oq_options_item(options, "component", i), *equals = strchr(item, '=');
        if (!equals || equals == item)
            return oq_fail(env, OQ_E_CONFIG,
                           "--component '%s' is not KEY=SPEC, for example text_encoder=int8", item);
        if (!*config)
            OQ_TRY(oq_quant_config_from_json(env, NULL, components, n, config)); /* no wish for others */
        char *key = oq_strdup(env, item);
        if (!key) return oq_fail(env, OQ_E_NOMEM, "--component: no memory");
        key[equals - item] = '\0';
        const oq_status st = oq_quant_config_add_component(env, *config, key, equals + 1);
        oq_free(env, key);
        OQ_TRY(st);
    }
    return OQ_OK;
}

/* The flag applies to every method of the wish. */
static oq_status add_ignored(oq_env *env, const char *csv, oq_quant_config *config)
{
    if (!config || config->form == OQ_QUANT_NONE)
        return oq_fail(env, OQ_E_CONFIG, "--ignored-layers '%s' needs a quantization to exempt layers from",
                       csv);
    return oq_quant_config_add_ignored(env, config, csv);
}

oq_status oq_quant_request(oq_env *env, const oq_options *options, const char *const *components, size_t n,
                           oq_quant_config **out)
{
    oq_quant_config *config = NULL;
    const char *ignored = oq_options_text(options, "ignored-layers", NULL);
    oq_status st = parse_flags(env, options, components, n, &config);
    if (st == OQ_OK) st = add_components(env, options, components, n, &config);
    if (st == OQ_OK && ignored) st = add_ignored(env, ignored, config);
    if (st != OQ_OK) {
        oq_quant_config_free(config);
        config = NULL;
    } else if (config) {
        config->from = "flag";
    }
    *out = config;
    return st;
}
