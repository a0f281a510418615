/* command_recipe.c -- measures what each layer costs by each method, and writes the best assignment within a budget as a
 * quantization that generate and quantize take; pictures of prompts that were not searched on tell what it is worth. */
#include "engine/recipe.h"

#include "base/names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- methods ------------------------------------------------------------------------------------------- */

/* Short words for methods with options; anything else is a method's name. */
static const struct {
    const char *word, *spec;
} short_words[] = {
    {"int2", "{\"method\":\"w4a16\",\"bits\":2,\"group_size\":64}"},
    {"int3", "{\"method\":\"w4a16\",\"bits\":3,\"group_size\":64}"},
    {"int4", "{\"method\":\"w4a16\",\"bits\":4,\"group_size\":64}"},
    {"int4-g32", "{\"method\":\"w4a16\",\"bits\":4,\"group_size\":32}"},
    {"nf4", "{\"method\":\"bitsandbytes\"}"},
    {"fp8-channel", "{\"method\":\"fp8\",\"weight_strategy\":\"channel\"}"},
    {"fp8-block", "{\"method\":\"fp8\",\"weight_strategy\":\"block\"}"},
};

static oq_status check_method(oq_env *env, const char *word)
{
    const oq_method *method = oq_method_find(env, word);
    if (!method) return oq_method_unknown(env, "--methods", word);
    if (method->online && !method->missing) return OQ_OK;
    return oq_fail(env, OQ_E_ARG, "--methods: '%s' reads checkpoints, it quantizes nothing while loading",
                   method->name);
}

static oq_status read_methods(oq_recipe *r, const char *csv)
{
    char word[64];
    for (size_t i = 0; oq_csv_word(csv, i, word, sizeof word); i++) {
        if (!*word)
            return oq_fail(r->env, OQ_E_ARG,
                           "--methods '%s': word %zu is empty; want names with commas between them, as in "
                           "nvfp4,int4,int8",
                           csv, i + 1);
        if (oq_name_equal(word, "bf16")) continue;
        if (r->n_methods + 1 >= OQ_RECIPE_METHODS)
            return oq_fail(r->env, OQ_E_ARG, "--methods '%s': at most %d are compared", csv,
                           OQ_RECIPE_METHODS - 1);
        if (word[0] == '@' || word[0] == '{')
            return oq_fail(r->env, OQ_E_ARG, "--methods '%s': takes names of methods, not files or objects",
                           csv);
        const char *spec = word;
        for (size_t s = 0; s < OQ_COUNT(short_words); s++)
            if (oq_name_equal(short_words[s].word, word)) spec = short_words[s].spec;
        if (spec == word) OQ_TRY(check_method(r->env, word));
        r->method[r->n_methods] = oq_arena_strdup(&r->arena, word);
        r->spec[r->n_methods] = oq_arena_strdup(&r->arena, spec);
        if (!r->method[r->n_methods] || !r->spec[r->n_methods])
            return oq_fail(r->env, OQ_E_NOMEM, "recipe: no memory");
        r->n_methods++;
    }
    if (r->n_methods == 0) return oq_fail(r->env, OQ_E_ARG, "--methods '%s' names no method", csv);
    r->method[r->n_methods++] = "bf16";
    return OQ_OK;
}

/* "4.5bpw", "6GB", "700MiB", or bytes. */
static oq_status read_budget(const oq_recipe *r, const char *text, size_t *bytes)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},     {"B", 1},      {"KB", 1e3},      {"MB", 1e6},
                 {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};
    char *end = NULL;
    const double x = strtod(text, &end);
    while (*end == ' ') end++;
    if (end != text && x > 0 && isfinite(x) && strcmp(end, "bpw") == 0) {
        *bytes = (size_t)(x * r->weights / 8.0);
        return OQ_OK;
    }
    for (size_t i = 0; end != text && x > 0 && x < 1e15 && i < OQ_COUNT(units); i++)
        if (strcmp(end, units[i].unit) == 0) {
            *bytes = (size_t)(x * units[i].bytes);
            return OQ_OK;
        }
    return oq_fail(r->env, OQ_E_ARG,
                   "--budget '%s' is not bits a weight (4.5bpw) or a size of all layers (6GB, 700MiB)", text);
}

/* ---- the recipe as a quantization ---------------------------------------------------------------------- */

static oq_json *spec_json(oq_env *env, const oq_recipe *r, int m)
{
    oq_json *json = NULL;
    if (!r->spec[m]) return oq_json_new_null();
    if (r->spec[m][0] == '{')
        return oq_json_parse(env, r->spec[m], strlen(r->spec[m]), "recipe", &json) == OQ_OK ? json : NULL;
    json = oq_json_new_object();
    oq_json_set(json, "method", oq_json_new_string(r->spec[m]));
    return json;
}

/* Each component's most frequent method stands for the whole of it; other layers have entries of their own. */
static int common_method(const oq_recipe *r, const char *component)
{
    size_t count[OQ_RECIPE_METHODS] = {0};
    int best = r->n_methods - 1;
    for (size_t i = 0; i < r->n_layers; i++)
        if (strcmp(r->layers[i].component, component) == 0) count[r->layers[i].chosen]++;
    for (int m = 0; m < r->n_methods; m++)
        if (count[m] > count[best]) best = m;
    return best;
}

static oq_json *recipe_json(const oq_recipe *r)
{
    oq_json *o = oq_json_new_object();
    char key[512];
    for (size_t i = 0; i < r->n_layers; i++) {
        const oq_recipe_layer *l = &r->layers[i];
        const int common = common_method(r, l->component);
        if (!oq_json_get(o, l->component)) oq_json_set(o, l->component, spec_json(r->env, r, common));
        if (l->chosen == common) continue;
        snprintf(key, sizeof key, "%s.%s", l->component, l->name);
        oq_json_set(o, key, spec_json(r->env, r, l->chosen));
    }
    return o;
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* Of several prompts the last third is held out; a single one is judged under another seed. */
static oq_status split_prompts(oq_recipe *r)
{
    const size_t n_own = oq_options_count(r->options, "held-out-prompt");
    oq_request *search = &r->search.request, *held = &r->held_out.request;
    OQ_TRY(oq_request_make(r->env, r->reference, r->options, &r->arena, search));
    *held = *search;
    if (n_own) {
        const char **own = NULL;
        OQ_TRY(oq_arena_new(&r->arena, n_own, sizeof *own, "prompts", &own));
        for (size_t i = 0; i < n_own; i++) {
            own[i] = oq_arena_strdup(&r->arena, oq_options_item(r->options, "held-out-prompt", i));
            if (!own[i]) return oq_fail(r->env, OQ_E_NOMEM, "prompts: no memory");
        }
        held->prompts = own;
        held->n_prompts = (int)n_own;
    } else if (search->n_prompts > 1) {
        held->n_prompts = (search->n_prompts + 2) / 3;
        search->n_prompts -= held->n_prompts;
        held->prompts = search->prompts + search->n_prompts;
    }
    held->seed += 1000;
    return OQ_OK;
}

/* ---- candidates ---------------------------------------------------------------------------------------- */

typedef struct outcome { /* of one assignment, when it runs */
    size_t bytes;
    double error; /* of predictions */
    oq_recipe_quality quality;
} outcome;

typedef struct search {
    oq_recipe r;
    outcome uniform[OQ_RECIPE_METHODS], best;
    const oq_media *plain; /* held-out pictures */
    size_t budget;
} search;

static double decibel(double error)
{
    return error > 0 ? -10 * log10(error) : (double)INFINITY;
}

/* Predictions for `set`; with the held-out one, its pictures too. */
static oq_status run_spec(search *s, const char *spec, const oq_recipe_set *set, outcome *out)
{
    oq_model *model = NULL;
    oq_status st = oq_recipe_open(&s->r, spec, &model);
    if (st == OQ_OK) st = oq_recipe_model_error(set, model, &out->error);
    if (st == OQ_OK && set == &s->r.held_out) st = oq_recipe_judge(set, model, s->plain, &out->quality);
    oq_model_close(model);
    return st;
}

static oq_status run_chosen(search *s, const oq_recipe_set *set, outcome *out)
{
    char *spec = NULL;
    oq_json *recipe = recipe_json(&s->r);
    oq_status st = oq_json_dump(s->r.env, recipe, OQ_JSON_COMPACT, &spec);
    out->bytes = oq_recipe_bytes(&s->r);
    if (st == OQ_OK) st = run_spec(s, spec, set, out);
    oq_free(s->r.env, spec);
    oq_json_free(recipe);
    return st;
}

/* What method m's bytes are when it takes every layer that it can. */
static size_t uniform_bytes(const oq_recipe *r, int m)
{
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_layers; i++) {
        const oq_recipe_layer *l = &r->layers[i];
        bytes += l->choice[m].bytes ? l->choice[m].bytes : l->choice[r->n_methods - 1].bytes;
    }
    return bytes;
}

static oq_status run_uniforms(search *s)
{
    const double started_s = oq_now_s();
    for (int m = 0; m + 1 < s->r.n_methods; m++) {
        s->uniform[m].bytes = uniform_bytes(&s->r, m);
        OQ_TRY(run_spec(s, s->r.spec[m], &s->r.held_out, &s->uniform[m]));
        oq_report_progress(s->r.env, "one method everywhere", m + 1, s->r.n_methods - 1,
                           oq_now_s() - started_s);
    }
    return OQ_OK;
}

/* Solves with more and less trust in the single layers' figures; the one whose predictions turn out best stays. */
static oq_status find_best(search *s)
{
    static const double trusts[] = {1.0, 0.75, 0.5};
    double best_trust = -1, best_error = 0;
    for (size_t t = 0; t < OQ_COUNT(trusts); t++) {
        outcome got = {0};
        oq_recipe_set_errors(&s->r, trusts[t]);
        OQ_TRY(oq_recipe_solve(&s->r, s->budget));
        OQ_TRY(run_chosen(s, &s->r.search, &got));
        if (best_trust < 0 || got.error < best_error) best_trust = trusts[t], best_error = got.error;
    }
    oq_recipe_set_errors(&s->r, best_trust);
    OQ_TRY(oq_recipe_solve(&s->r, s->budget));
    return run_chosen(s, &s->r.held_out, &s->best);
}

/* ---- the report ---------------------------------------------------------------------------------------- */

static void put_outcome(const oq_recipe *r, const char *name, const outcome *o, oq_json *json,
                        oq_strbuf *text)
{
    const double bits = 8.0 * (double)o->bytes / r->weights;
    oq_json_set(json, "bytes", oq_json_new_int((int64_t)o->bytes));
    oq_json_set(json, "bits_per_weight", oq_json_new_real(bits));
    oq_json_set(json, "prediction_snr_db", oq_json_new_real(decibel(o->error)));
    oq_json_set(json, "psnr_db", oq_json_new_real(o->quality.mean_db));
    oq_json_set(json, "worst_psnr_db", oq_json_new_real(o->quality.worst_db));
    oq_strbuf_printf(text, "  %-20s %14.2f %15.2f %11.2f %8.2f\n", name, bits, decibel(o->error),
                     o->quality.mean_db, o->quality.worst_db);
}

static void put_uniforms(const search *s, oq_json *json, oq_strbuf *text)
{
    oq_json *list = oq_json_new_array();
    for (int m = 0; m + 1 < s->r.n_methods; m++) {
        oq_json *o = oq_json_new_object();
        oq_json_set(o, "method", oq_json_new_string(s->r.method[m]));
        put_outcome(&s->r, s->r.method[m], &s->uniform[m], o, text);
        oq_json_append(list, o);
    }
    oq_json_set(json, "uniform", list);
}

static oq_json *counts_json(const oq_recipe *r, oq_strbuf *text)
{
    oq_json *o = oq_json_new_object();
    for (int m = 0; m < r->n_methods; m++) {
        int64_t n = 0;
        for (size_t i = 0; i < r->n_layers; i++) n += r->layers[i].chosen == m;
        oq_json_set(o, r->method[m], oq_json_new_int(n));
        if (n) oq_strbuf_printf(text, "    %-18s %lld layers\n", r->method[m], (long long)n);
    }
    return o;
}

/* What the recipe was held against, and the verdict: does a method alone, within the budget, predict better there? Pictures
 * are told, not judged by: a few of them scatter by more than methods differ. */
static void put_verdict(const search *s, oq_json *json, oq_strbuf *text)
{
    const oq_request *held = &s->r.held_out.request;
    oq_json *prompts = oq_json_new_array();
    int better = -1;
    for (int i = 0; i < held->n_prompts; i++) oq_json_append(prompts, oq_json_new_string(held->prompts[i]));
    oq_json_set(json, "held_out_prompts", prompts);
    oq_json_set(json, "held_out_seed", oq_json_new_int((int64_t)held->seed));
    for (int m = 0; m + 1 < s->r.n_methods; m++)
        if (s->uniform[m].bytes <= s->budget && s->uniform[m].error < s->best.error &&
            (better < 0 || s->uniform[m].error < s->uniform[better].error))
            better = m;
    oq_json_set(json, "beats_uniform", oq_json_new_bool(better < 0));
    oq_strbuf_printf(text, "held out: %d %s, seed %llu%s\n", held->n_prompts,
                     held->n_prompts == 1 ? "prompt" : "prompts", (unsigned long long)held->seed,
                     held->prompts == s->r.search.request.prompts
                         ? " (the prompt searched on: give more prompts, or --held-out-prompt)"
                         : "");
    if (better >= 0)
        oq_strbuf_printf(text, "there %s alone, which fits the budget, predicts better\n",
                         s->r.method[better]);
}

static oq_status finish(search *s, oq_report **out)
{
    oq_recipe *r = &s->r;
    const char *output = oq_options_text(r->options, "output", NULL);
    oq_json *json = oq_json_new_object(), *recipe = recipe_json(r);
    oq_strbuf text;
    char *pretty = NULL;
    oq_strbuf_init(&text, r->env);
    oq_status st = oq_json_dump(r->env, recipe, OQ_JSON_INDENT, &pretty);
    if (st == OQ_OK && output) st = oq_file_write_all(r->env, output, pretty, strlen(pretty));
    oq_strbuf_printf(&text, "%zu layers\n  %-20s %14s %15s %11s %8s\n", r->n_layers, "", "bits a weight",
                     "predictions dB", "pictures dB", "worst");
    put_uniforms(s, json, &text);
    put_outcome(r, "this recipe", &s->best, json, &text);
    oq_json_set(json, "methods", counts_json(r, &text));
    oq_json_set(json, "budget_bytes", oq_json_new_int((int64_t)s->budget));
    oq_json_set(json, "expected_snr_db", oq_json_new_real(decibel(oq_recipe_error(r))));
    put_verdict(s, json, &text);
    oq_json_set(json, "recipe", recipe);
    if (output)
        oq_strbuf_printf(&text, "%s: written; --recipe %s takes it\n", output, output);
    else if (st == OQ_OK)
        oq_strbuf_printf(&text, "%s\n", pretty);
    oq_free(r->env, pretty);
    if (st == OQ_OK) return oq_report_finish(r->env, json, &text, true, out);
    oq_strbuf_deinit(&text);
    oq_json_free(json);
    return st;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static oq_status run_search(search *s, oq_report **out)
{
    oq_media *plain = NULL;
    oq_recipe *r = &s->r;
    OQ_TRY(split_prompts(r));
    OQ_TRY(oq_recipe_record(r, &r->search));
    OQ_TRY(oq_recipe_record(r, &r->held_out));
    OQ_TRY(oq_recipe_measure(r));
    OQ_TRY(read_budget(r, oq_options_text(r->options, "budget", "4.5bpw"), &s->budget));
    oq_recipe_set_errors(r, 1);
    OQ_TRY(oq_recipe_solve(r, s->budget)); /* a budget that is too small is refused before the pictures */
    oq_status st = oq_generate_request(r->env, r->reference, &r->held_out.request, NULL, &plain);
    s->plain = plain;
    if (st == OQ_OK) st = run_uniforms(s);
    if (st == OQ_OK) st = find_best(s);
    oq_media_free(plain);
    return st == OQ_OK ? finish(s, out) : st;
}

/* Before minutes of measuring: what is written at their end can be. */
static oq_status check_output(oq_env *env, const oq_options *options)
{
    const char *path = oq_options_text(options, "output", NULL);
    if (!path) return OQ_OK;
    if (strcmp(path, "-") == 0)
        return oq_fail(env, OQ_E_ARG, "--output -: without --output the recipe ends the report already");
    if (oq_file_exists(path) && !oq_file_is_dir(path) && !oq_file_is_special(path) &&
        !oq_options_flag(options, "force"))
        return oq_fail(env, OQ_E_ARG, "%s: exists; --force replaces it", path);
    return oq_output_probe(env, path);
}

static oq_status command_recipe(oq_env *env, oq_options *options, oq_report **out)
{
    search s = {.r = {.env = env, .options = options}};
    OQ_TRY(oq_command_no_arguments(env, options, "the model is given with --model"));
    if (!oq_options_given(options, "model"))
        return oq_fail(env, OQ_E_ARG, "recipe needs a model: --model DIR");
    if (!oq_options_given(options, "prompt") && !oq_options_given(options, "prompt-file"))
        return oq_fail(env, OQ_E_ARG, "recipe measures on prompts: give at least one with --prompt");
    if (oq_options_int(options, "seed", -1) < 0) OQ_TRY(oq_options_set(options, "seed", "42"));
    OQ_TRY(check_output(env, options));
    oq_arena_init(&s.r.arena, env);
    oq_status st =
        read_methods(&s.r, oq_options_text(options, "methods", "nvfp4,int3,int4,fp8-channel,bf16"));
    if (st == OQ_OK)
        st = read_budget(&(oq_recipe){.env = env, .weights = 8}, oq_options_text(options, "budget", "4.5bpw"),
                         &(size_t){0});
    if (st == OQ_OK) st = oq_recipe_open(&s.r, NULL, &s.r.reference);
    if (st == OQ_OK) st = run_search(&s, out);
    oq_model_close(s.r.reference);
    oq_arena_deinit(&s.r.arena);
    return st;
}

const oq_command oq_command_recipe = {
    .info = {"recipe", "-m MODEL -p TEXT -p TEXT --budget SIZE [flags]",
             "find which layer gets which method within a budget, by measuring, judged on prompts held out"},
    .run = command_recipe,
};
