/* command_models.c -- the model families and networks of this build, from their lists. */
#include "engine/command.h"

static oq_json *recipes_json(const oq_pipeline_type *p)
{
    oq_json *list = oq_json_new_array();
    for (const oq_pipeline_recipe *r = p->recipes; r && r->name; r++) {
        oq_json *json = oq_json_new_object();
        oq_json_set(json, "name", oq_json_new_string(r->name));
        oq_json_set(json, "quantization", oq_json_new_string(r->spec));
        oq_json_set(json, "evidence", oq_json_new_string(r->evidence));
        oq_json_append(list, json);
    }
    return list;
}

static oq_json *family_json(const oq_pipeline_type *p)
{
    oq_json *json = oq_json_new_object(), *components = oq_json_new_array(), *d = oq_json_new_object();
    oq_json_set(json, "name", oq_json_new_string(p->name));
    oq_json_set(json, "class", oq_json_new_string(p->class_name));
    oq_json_set(json, "task", oq_json_new_string(p->task));
    oq_json_set(json, "help", oq_json_new_string(p->help));
    for (size_t i = 0; i < p->n_components; i++) {
        oq_json *c = oq_json_new_object();
        oq_json_set(c, "name", oq_json_new_string(p->components[i].name));
        oq_json_set(c, "quantizable", oq_json_new_bool(p->components[i].quantizable));
        oq_json_append(components, c);
    }
    oq_json_set(json, "components", components);
    oq_json_set(json, "recipes", recipes_json(p));
    oq_json_set(d, "width", oq_json_new_int(p->defaults.width));
    oq_json_set(d, "height", oq_json_new_int(p->defaults.height));
    oq_json_set(d, "steps", oq_json_new_int(p->defaults.steps));
    oq_json_set(d, "guidance_scale", oq_json_new_real(p->defaults.guidance));
    oq_json_set(d, "max_sequence_length", oq_json_new_int(p->defaults.max_sequence_length));
    oq_json_set(d, "multiple_px", oq_json_new_int(p->defaults.multiple_px));
    oq_json_set(json, "defaults", d);
    return json;
}

static void put_recipes(const oq_pipeline_type *p, bool verbose, oq_strbuf *out)
{
    if (!p->recipes) return;
    if (verbose) {
        oq_strbuf_puts(out, "    recipes:\n");
        for (const oq_pipeline_recipe *r = p->recipes; r->name; r++) {
            oq_strbuf_printf(out, "      %s = %s\n", r->name, r->spec);
            oq_strbuf_put_wrapped(out, 8, 8, "%s", r->evidence);
        }
        return;
    }
    oq_strbuf_puts(out, "    recipes:");
    for (const oq_pipeline_recipe *r = p->recipes; r->name; r++) oq_strbuf_printf(out, " %s", r->name);
    oq_strbuf_putc(out, '\n');
}

static void put_components(const oq_pipeline_type *p, bool quantizable, oq_strbuf *out)
{
    for (size_t i = 0; i < p->n_components; i++)
        if (p->components[i].quantizable == quantizable) oq_strbuf_printf(out, " %s", p->components[i].name);
}

static void put_family(const oq_pipeline_type *p, bool verbose, oq_strbuf *out)
{
    oq_strbuf_printf(out, "%s: %s, %s\n", p->name, p->class_name, p->task);
    oq_strbuf_put_wrapped(out, 4, 4, "%s", p->help);
    oq_strbuf_puts(out, "    quantizable:");
    put_components(p, true, out);
    oq_strbuf_puts(out, "; plain:");
    put_components(p, false, out);
    oq_strbuf_putc(out, '\n');
    put_recipes(p, verbose, out);
}

static oq_json *modules_json(void)
{
    oq_json *list = oq_json_new_array();
    for (size_t i = 0; oq_module_list[i]; i++) {
        oq_json *json = oq_json_new_object(), *names = oq_json_new_array();
        oq_json_set(json, "name", oq_json_new_string(oq_module_list[i]->name));
        for (const char *const *c = oq_module_list[i]->class_names; *c; c++)
            oq_json_append(names, oq_json_new_string(*c));
        oq_json_set(json, "classes", names);
        oq_json_append(list, json);
    }
    return list;
}

static oq_status models(oq_env *env, oq_options *options, oq_report **out)
{
    oq_strbuf text;
    OQ_TRY(oq_command_no_arguments(env, options, NULL));
    oq_strbuf_init(&text, env);
    oq_json *json = oq_json_new_object(), *families = oq_json_new_array();
    for (size_t i = 0; oq_pipeline_list[i]; i++) {
        oq_json_append(families, family_json(oq_pipeline_list[i]));
        put_family(oq_pipeline_list[i], oq_options_flag(options, "verbose"), &text);
    }
    oq_json_set(json, "families", families);
    oq_json_set(json, "networks", modules_json());
    return oq_report_finish(env, json, &text, true, out);
}

const oq_command oq_command_models = {
    .info = {"models", "[-v]", "list the model families; -v with what backs their recipes"},
    .run = models,
};
