/* quant_request.c -- the quantization flags of a command as one configuration value. */
#include "engine/engine.h"

#include "base/names.h"
#include "config/quant_attention.h"

#include <inttypes.h>
#include <stdio.h>
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

/* ---- recipes ------------------------------------------------------------------------------------------- */

static oq_status unknown_recipe(oq_env *env, const oq_pipeline_type *family, const char *name)
{
    const char *names[16];
    size_t n = 0;
    if (!family)
        return oq_fail(
            env, OQ_E_NOTFOUND,
            "--recipe '%s': there is no such file, and no model folder tells the family whose recipe "
            "it could be",
            name);
    oq_strbuf known;
    oq_strbuf_init(&known, env);
    for (const oq_pipeline_recipe *r = family->recipes; r && r->name && n < OQ_COUNT(names); r++) {
        oq_strbuf_printf(&known, "%s%s", n ? ", " : "", r->name);
        names[n++] = r->name;
    }
    const int nearest = oq_name_nearest(name, names, n);
    const char *text = n ? oq_strbuf_text(&known) : "none";
    const oq_status st =
        nearest >= 0 ? oq_fail(env, OQ_E_NOTFOUND,
                               "--recipe '%s' is no file and no recipe of %s (%s); the nearest is '%s'", name,
                               family->name, text, names[nearest])
                     : oq_fail(env, OQ_E_NOTFOUND, "--recipe '%s' is no file and no recipe of %s (%s)", name,
                               family->name, text);
    oq_strbuf_deinit(&known);
    return st;
}

/* A name of the family's list, or a file of 'omniq recipe'. What lies in this folder by chance does not hide a name: such
 * a file is written with its folder, ./NAME. */
static oq_status parse_recipe(oq_env *env, const char *name, const oq_pipeline_type *family,
                              const char *const *components, size_t n, oq_quant_config **out)
{
    for (const oq_pipeline_recipe *r = family ? family->recipes : NULL; r && r->name; r++)
        if (oq_name_equal(r->name, name)) return oq_quant_config_parse(env, r->spec, components, n, out);
    if (oq_file_is_dir(name))
        return oq_fail(env, OQ_E_ARG, "--recipe '%s' is a folder; a file of 'omniq recipe' is needed", name);
    if (oq_file_exists(name)) return parse_config_flag(env, name, components, n, out);
    return unknown_recipe(env, family, name);
}

static oq_status parse_flags(oq_env *env, const oq_options *options, const oq_pipeline_type *family,
                             const char *const *components, size_t n, oq_quant_config **out)
{
    const char *name = oq_options_text(options, "quantization", NULL);
    const char *config = oq_options_text(options, "quantization-config", NULL);
    const char *recipe = oq_options_text(options, "recipe", NULL);
    if (recipe && (name || config))
        return oq_fail(env, OQ_E_CONFIG, "--recipe and --%s are both given; a recipe is a whole quantization",
                       name ? "quantization" : "quantization-config");
    if (recipe) return parse_recipe(env, recipe, family, components, n, out);
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

/* ---- attention ----------------------------------------------------------------------------------------- */

static bool put_text(const oq_options *options, oq_json *out, const char *flag, const char *name)
{
    const char *text = oq_options_text(options, flag, NULL);
    return !text || oq_json_set(out, name, oq_json_new_string(text));
}

/* "4-12", "4-", "4": the first and the last step whose attention is sparse. */
static oq_status put_steps(oq_env *env, const oq_options *options, oq_json *out)
{
    static const char flag[] = "attention-sparse-steps";
    const char *text = oq_options_text(options, flag, NULL);
    if (!text) return OQ_OK;
    int64_t step[2] = {0, 0};
    int used = 0;
    char dash = 0;
    const int n = sscanf(text, "%9" SCNd64 "%n%c%9" SCNd64 "%n", &step[0], &used, &dash, &step[1], &used);
    const bool open = n == 2 && dash == '-' && text[used + 1] == '\0', one = n == 1 && text[used] == '\0';
    if (!(one || open || (n == 3 && dash == '-' && text[used] == '\0')) || text[0] < '0' || text[0] > '9')
        return oq_fail(env, OQ_E_CONFIG, "--%s '%s' is not a range of steps like 4-12, 4- or 4", flag, text);
    bool ok = oq_json_set(out, "start_step", oq_json_new_int(step[0]));
    if (!open) ok = oq_json_set(out, "end_step", oq_json_new_int(one ? step[0] : step[1])) && ok;
    return ok ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "--%s: no memory", flag);
}

static oq_status read_attention(oq_env *env, const oq_options *options, oq_json *out)
{
    bool ok = put_text(options, out, "attention-quantization", "dtype") &&
              put_text(options, out, "attention-skip-steps", "skip_steps") &&
              put_text(options, out, "attention-skip-layers", "skip_layers") &&
              put_text(options, out, "attention-sparse-skip-layers", "sparse_skip_layers");
    if (ok && oq_options_given(options, "attention-sparsity"))
        ok =
            oq_json_set(out, "sparsity", oq_json_new_real(oq_options_real(options, "attention-sparsity", 0)));
    if (!ok) return oq_fail(env, OQ_E_NOMEM, "--attention-quantization: no memory");
    return put_steps(env, options, out);
}

/* Flags are said over every transformer and over the configuration's own words. */
static oq_status add_attention(oq_env *env, const oq_options *options, oq_quant_config **config)
{
    oq_json *out = oq_json_new_object();
    if (!out) return oq_fail(env, OQ_E_NOMEM, "--attention-quantization: no memory");
    oq_status st = read_attention(env, options, out);
    if (st == OQ_OK && oq_json_size(out) > 0 && !*config)
        st = oq_quant_config_from_json(env, NULL, NULL, 0, config); /* no wish about weights */
    if (st == OQ_OK && oq_json_size(out) > 0) st = oq_quant_attention_override(env, *config, out);
    oq_json_free(out);
    return st;
}

oq_status oq_quant_request(oq_env *env, const oq_options *options, const oq_pipeline_type *family,
                           const char *const *components, size_t n, oq_quant_config **out)
{
    oq_quant_config *config = NULL;
    const char *ignored = oq_options_text(options, "ignored-layers", NULL);
    oq_status st = parse_flags(env, options, family, components, n, &config);
    if (st == OQ_OK) st = add_components(env, options, components, n, &config);
    if (st == OQ_OK && ignored) st = add_ignored(env, ignored, config);
    if (st == OQ_OK) st = add_attention(env, options, &config);
    if (st != OQ_OK) {
        oq_quant_config_free(config);
        config = NULL;
    } else if (config) {
        config->from = "flag";
    }
    *out = config;
    return st;
}
