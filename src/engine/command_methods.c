/* command_methods.c -- the quantization methods of this build, from their list. */
#include "engine/command.h"

#include "quant/dialect.h"

static oq_json *option_json(const oq_method_option *o)
{
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "name", oq_json_new_string(o->name));
    oq_json_set(json, "aliases", oq_json_new_string(o->aliases));
    oq_json_set(json, "choices", oq_json_new_string(o->choices));
    oq_json_set(json, "default", oq_json_new_string(o->fallback));
    oq_json_set(json, "help", oq_json_new_string(o->help));
    return json;
}

static oq_json *method_json(const oq_method *m)
{
    oq_json *json = oq_json_new_object(), *options = oq_json_new_array();
    oq_json_set(json, "name", oq_json_new_string(m->name));
    oq_json_set(json, "aliases", oq_json_new_string(m->aliases));
    oq_json_set(json, "help", oq_json_new_string(m->help));
    oq_json_set(json, "runs", oq_json_new_bool(!m->missing));
    oq_json_set(json, "missing", oq_json_new_string(m->missing));
    oq_json_set(json, "online", oq_json_new_bool(m->online));
    oq_json_set(json, "serialized", oq_json_new_bool(m->serialized));
    oq_json_set(json, "reads_checkpoints", oq_json_new_bool(oq_dialect_reads(m)));
    for (const oq_method_option *o = m->options; o && o->name; o++) oq_json_append(options, option_json(o));
    oq_json_set(json, "options", options);
    return json;
}

static void put_option(const oq_method_option *o, oq_strbuf *out)
{
    oq_strbuf_put_wrapped(out, 6, 10, "%s: %s%s%s%s%s%s", o->name, o->help ? o->help : "",
                          o->choices ? "; one of " : "", o->choices ? o->choices : "",
                          o->fallback ? " (default: " : "", o->fallback ? o->fallback : "",
                          o->fallback ? ")" : "");
}

static void put_method(const oq_method *m, bool verbose, oq_strbuf *out)
{
    const bool aliases = m->aliases && *m->aliases;
    const char *how = m->missing  ? m->missing
                      : m->online ? (oq_dialect_reads(m) ? "online and checkpoints" : "online")
                                  : "checkpoints";
    oq_strbuf_printf(out, "%s: %s%s%s\n", m->name, how, aliases ? "; also " : "", aliases ? m->aliases : "");
    oq_strbuf_put_wrapped(out, 4, 4, "%s", m->help);
    for (const oq_method_option *o = m->options; verbose && o && o->name; o++) put_option(o, out);
}

static oq_status methods(oq_env *env, oq_options *options, oq_report **out)
{
    oq_strbuf text;
    OQ_TRY(oq_command_no_arguments(env, options, NULL));
    oq_strbuf_init(&text, env);
    oq_json *json = oq_json_new_object(), *list = oq_json_new_array();
    for (size_t i = 0; oq_method_list[i]; i++) {
        oq_json_append(list, method_json(oq_method_list[i]));
        put_method(oq_method_list[i], oq_options_flag(options, "verbose"), &text);
    }
    oq_json_set(json, "methods", list);
    return oq_report_finish(env, json, &text, true, out);
}

const oq_command oq_command_methods = {
    .info = {"methods", "[-v]", "list the quantization methods; -v with their options"},
    .run = methods,
};
