/* metadata.c -- what a picture remembers about its run, in the words of other tools ("parameters") and in
 * ours
 * ("omniq": every option, the effective request, hashes of the files), and the way back. */
#include "engine/command.h"

#include "base/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct oq_metadata {
    oq_env *env;
    const oq_model *model;
    const oq_request *request;
    oq_arena arena;
    oq_json *options;       /* as given, without what belongs to one machine or one output */
    oq_json *inputs;        /* hashes of files that options name */
    bool bare;              /* names without any folder */
    const char *model_name; /* without folders that only this machine has */
};

/* The model's options are those that it was opened with, whatever stands beside the request now. */
static oq_status collect_options(oq_metadata *m, const oq_options *options)
{
    const oq_pipeline_type *family = m->model->type;
    oq_json *all = oq_options_to_json(options);
    const oq_remembering r = {&m->arena, family, m->bare, m->inputs};
    oq_status st = oq_remembered_options(&r, m->model->given, false, m->options);
    if (st == OQ_OK) st = oq_remembered_options(&r, all, true, m->options);
    oq_json_free(all);
    if (st == OQ_OK && !(m->model_name = oq_remembered_name(&m->arena, m->model->folder->path, m->bare)))
        st = oq_fail(m->env, OQ_E_NOMEM, "metadata: no memory");
    return st;
}

oq_status oq_metadata_new(oq_env *env, const oq_model *model, const oq_options *options,
                          const oq_request *request, bool bare, oq_metadata **out)
{
    oq_metadata *m = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *m, "metadata", &m));
    *m = (oq_metadata){.env = env,
                       .model = model,
                       .request = request,
                       .options = oq_json_new_object(),
                       .inputs = oq_json_new_object(),
                       .bare = bare};
    oq_arena_init(&m->arena, env);
    const oq_status st = collect_options(m, options);
    if (st != OQ_OK) {
        oq_metadata_free(m);
        return st;
    }
    *out = m;
    return OQ_OK;
}

void oq_metadata_free(oq_metadata *m)
{
    if (!m) return;
    oq_json_free(m->options);
    oq_json_free(m->inputs);
    oq_arena_deinit(&m->arena);
    oq_free(m->env, m);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static const char *image_prompt(const oq_request *r, int index)
{
    return r->prompts[r->images_per_prompt > 0 ? index / r->images_per_prompt % r->n_prompts : 0];
}

static void put_quantization(const oq_metadata *m, oq_strbuf *out)
{
    const oq_plan *plan = m->model->plan;
    for (size_t i = 0; i < plan->n_components; i++) {
        const oq_resolved_component *r = plan->components[i].resolved;
        for (size_t j = 0; j < r->n_routes; j++) {
            if (!r->routes[j].args) continue;
            oq_strbuf_printf(out, ", Quantization %s: %s",
                             r->routes[j].prefix[0] ? r->routes[j].prefix : r->name,
                             r->routes[j].args->method->name);
        }
    }
}

static char *make_parameters(const oq_metadata *m, int index, uint64_t seed)
{
    const oq_request *r = m->request;
    oq_strbuf out;
    oq_strbuf_init(&out, m->env);
    oq_strbuf_printf(&out, "%s\n", image_prompt(r, index));
    if (r->negative && *r->negative) oq_strbuf_printf(&out, "Negative prompt: %s\n", r->negative);
    oq_strbuf_printf(&out,
                     "Steps: %d, Sampler: %s, CFG scale: %.7g, Seed: %" PRIu64 ", Size: %" PRId64 "x%" PRId64
                     ", Model: %s",
                     r->steps, m->model->type->takes & OQ_TAKES_FLOW_SHIFT ? "UniPC" : "FlowMatchEuler",
                     r->guidance, seed, r->width, r->height, oq_path_leaf(m->model_name));
    put_quantization(m, &out);
    oq_strbuf_printf(&out, ", Version: omniq %s", oq_version());
    char *text = oq_strbuf_take(&out);
    oq_strbuf_deinit(&out);
    return text;
}

/* The effective request over the options: the run repeats even where the folder's defaults change. */
static oq_json *effective_options(const oq_metadata *m, int index, uint64_t seed)
{
    const oq_request *r = m->request;
    oq_json *o = oq_json_copy(m->options), *prompts = oq_json_new_array();
    /* With a generator of its own a picture repeats alone; a shared one needs the whole batch. */
    const bool alone = !r->shared_noise;
    for (int i = 0; i < r->n_prompts; i++)
        if (!alone || r->prompts[i] == image_prompt(r, index)) {
            oq_json_append(prompts, oq_json_new_string(r->prompts[i]));
            if (alone) break;
        }
    oq_json_set(o, "prompt", prompts);
    oq_json_set(o, "seed", oq_json_new_int((int64_t)(alone ? seed : r->seed)));
    oq_json_set(o, "batch-count", oq_json_new_int(alone ? 1 : r->images_per_prompt));
    oq_json_set(o, "width", oq_json_new_int(r->width));
    oq_json_set(o, "height", oq_json_new_int(r->height));
    if (!r->sigmas) oq_json_set(o, "steps", oq_json_new_int(r->steps));
    oq_json_set(o, "guidance-scale", oq_json_new_real(r->guidance));
    if (m->model->type->takes & OQ_TAKES_FRAMES) oq_json_set(o, "num-frames", oq_json_new_int(r->frames));
    if (m->model->type->takes & OQ_TAKES_FRAMES) oq_json_set(o, "fps", oq_json_new_real(r->fps));
    if (r->negative) oq_json_set(o, "negative-prompt", oq_json_new_string(r->negative));
    return o;
}

oq_status oq_metadata_texts(const oq_metadata *m, int index, uint64_t seed, char **parameters, char **omniq)
{
    oq_json *json = oq_json_new_object();
    *parameters = *omniq = NULL;
    oq_json_set(json, "version", oq_json_new_string(oq_version()));
    oq_json_set(json, "command", oq_json_new_string("generate"));
    oq_json_set(json, "options", effective_options(m, index, seed));
    oq_json_set(json, "index", oq_json_new_int(index));
    oq_json_set(json, "files", oq_json_ref(m->model->hashes));
    if (oq_json_size(m->inputs)) oq_json_set(json, "inputs", oq_json_ref(m->inputs));
    *parameters = make_parameters(m, index, seed);
    oq_status st = *parameters ? oq_json_dump(m->env, json, OQ_JSON_SORT, omniq)
                               : oq_fail(m->env, OQ_E_NOMEM, "metadata: no memory");
    oq_json_free(json);
    if (st == OQ_OK) return OQ_OK;
    oq_free(m->env, *parameters);
    *parameters = NULL;
    return st;
}

/* ---- the way back -------------------------------------------------------------------------------------- */

/* A picture may come from anybody: it says what was made, not where results go or which files are read for it as text. */
static oq_status check_text(oq_env *env, const char *path, const oq_option_info *row, const char *text)
{
    if (!text || !oq_remembered_reads(row, text)) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "%s: its 'omniq' text names a file for '%s', where pictures hold the text", path,
                   row->name);
}

static oq_status check_remembered(oq_env *env, const char *path, const oq_json *options)
{
    for (size_t i = 0; i < oq_json_size(options); i++) {
        const char *key = NULL;
        const oq_json *value = oq_json_member(options, i, &key);
        const oq_option_info *row = oq_option_find("generate", key);
        if (!row) continue; /* setting it says so */
        if (oq_remembered_never(row->name))
            return oq_fail(env, OQ_E_FORMAT,
                           "%s: its 'omniq' text has the option '%s', which no picture remembers", path, key);
        OQ_TRY(check_text(env, path, row, oq_json_string(value)));
        const size_t n = oq_json_type(value) == OQ_JSON_ARRAY ? oq_json_size(value) : 0;
        for (size_t k = 0; k < n; k++)
            OQ_TRY(check_text(env, path, row, oq_json_string(oq_json_at(value, k))));
    }
    return OQ_OK;
}

/* Whoever gives a quantization wants it in place of the picture's, by whichever of its three names that goes. */
static oq_json *without_replaced(const oq_options *given, const oq_json *remembered)
{
    static const char *const names[] = {"quantization", "quantization-config", "recipe"};
    bool replaced = false;
    oq_json *out = oq_json_new_object();
    for (size_t i = 0; i < OQ_COUNT(names); i++) replaced = replaced || oq_options_given(given, names[i]);
    for (size_t i = 0; i < oq_json_size(remembered); i++) {
        const char *key = NULL;
        const oq_json *value = oq_json_member(remembered, i, &key);
        bool one = false;
        for (size_t k = 0; k < OQ_COUNT(names); k++) one = one || oq_name_equal(names[k], key);
        if (!one || !replaced) oq_json_set(out, key, oq_json_ref(value));
    }
    return out;
}

static oq_status restore(oq_env *env, const char *path, oq_options *options, const oq_json *remembered)
{
    oq_arena arena;
    OQ_TRY(check_remembered(env, path, remembered));
    oq_json *wanted = without_replaced(options, remembered);
    oq_arena_init(&arena, env);
    oq_status st = wanted ? oq_options_set_defaults(options, wanted, path)
                          : oq_fail(env, OQ_E_NOMEM, "%s: no memory for its options", path);
    if (st == OQ_OK) st = oq_remembered_check_files(&arena, path, wanted, options);
    oq_arena_deinit(&arena);
    oq_json_free(wanted);
    return st;
}

oq_status oq_metadata_restore(oq_env *env, const char *path, oq_options *options, oq_json **remembered)
{
    char *text = NULL;
    *remembered = NULL;
    oq_status st = oq_image_read_text(env, path, "omniq", &text);
    if (st == OQ_E_NOTFOUND && oq_file_exists(path)) /* the picture is there, its text is not */
        st = oq_fail_within(env, st, "nothing to repeat: only pictures that omniq made remember their run");
    if (st == OQ_OK) st = oq_json_parse(env, text, strlen(text), path, remembered);
    if (st == OQ_OK && !oq_json_get(*remembered, "options"))
        st = oq_fail(env, OQ_E_FORMAT, "%s: its 'omniq' text has no options", path);
    if (st == OQ_OK) st = restore(env, path, options, oq_json_get(*remembered, "options"));
    oq_free(env, text);
    if (st == OQ_OK) return OQ_OK;
    oq_json_free(*remembered);
    *remembered = NULL;
    return st;
}

/* "HEADER-DATA"; pictures of before have HEADER alone. */
static bool same_hash(const char *before, const char *now)
{
    return before && now && strncmp(before, now, strchr(before, '-') ? strlen(now) + 1 : strlen(before)) == 0;
}

static bool same_files(const oq_json *before, const oq_json *now)
{
    bool same = oq_json_size(before) == oq_json_size(now);
    for (size_t i = 0; same && i < oq_json_size(before); i++) {
        const char *key = NULL;
        const char *hash = oq_json_string(oq_json_member(before, i, &key));
        same = same_hash(hash, oq_json_string(oq_json_get(now, key)));
    }
    return same;
}

static void check_inputs(oq_env *env, const oq_json *before, const oq_json *now)
{
    for (size_t i = 0; i < oq_json_size(before); i++) {
        const char *key = NULL;
        const char *was = oq_json_string(oq_json_member(before, i, &key));
        const char *is = oq_json_string(oq_json_get(now, key));
        if (was && is && strcmp(was, is) != 0)
            oq_log(env, OQ_LOG_WARN, "%s is not the file that made the picture: the result may differ", key);
    }
}

oq_status oq_metadata_check(oq_env *env, const oq_json *remembered, const oq_model *model,
                            const oq_options *options)
{
    const oq_json *files = oq_json_get(remembered, "files"), *inputs = oq_json_get(remembered, "inputs");
    oq_metadata *now = NULL;
    if (files && !same_files(files, model->hashes))
        oq_log(env, OQ_LOG_WARN,
               "the model's files are not those that made the picture: the result may differ");
    if (!inputs) return OQ_OK;
    OQ_TRY(oq_metadata_new(env, model, options, NULL, true, &now));
    check_inputs(env, inputs, now->inputs);
    oq_metadata_free(now);
    return OQ_OK;
}
