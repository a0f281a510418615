/* command_recipe.c -- measures what each layer costs by each method, and writes the best assignment within a budget as a
 * quantization that generate and quantize take; pictures of prompts that were not searched on tell what it is worth. */
#include "engine/recipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct finding {
    oq_recipe r;
    oq_recipe_outcome uniform[OQ_RECIPE_METHODS], best;
    size_t budget;
    double started_s;
} finding;

/* ---- on held-out prompts ------------------------------------------------------------------------------- */

static oq_status run_uniforms(finding *f)
{
    const double started_s = oq_now_s();
    for (int m = 0; m + 1 < f->r.n_methods; m++) {
        OQ_TRY(oq_recipe_try_uniform(&f->r, m, &f->r.held_out, &f->uniform[m]));
        oq_report_progress(f->r.env, "one method everywhere", m + 1, f->r.n_methods - 1,
                           oq_now_s() - started_s);
    }
    return OQ_OK;
}

/* ---- the report ---------------------------------------------------------------------------------------- */

static double decibel(double error)
{
    return error > 0 ? -10 * log10(error) : (double)INFINITY;
}

static void put_size(const oq_recipe *r, size_t bytes, oq_json *json)
{
    oq_json_set(json, "bytes", oq_json_new_int((int64_t)bytes));
    oq_json_set(json, "bits_per_weight", oq_json_new_real(8.0 * (double)bytes / r->weights));
}

static void put_outcome(const oq_recipe *r, const char *name, const oq_recipe_outcome *o, oq_json *json,
                        oq_strbuf *text)
{
    put_size(r, o->bytes, json);
    oq_json_set(json, "latents_snr_db", oq_json_new_real(decibel(o->error)));
    oq_json_set(json, "psnr_db", oq_json_new_real(o->mean_db));
    oq_json_set(json, "worst_psnr_db", oq_json_new_real(o->worst_db));
    oq_strbuf_printf(text, "  %-20s %14.2f %11.2f %11.2f %8.2f\n", name, 8.0 * (double)o->bytes / r->weights,
                     decibel(o->error), o->mean_db, o->worst_db);
}

static void put_uniforms(const finding *f, oq_json *json, oq_strbuf *text)
{
    oq_json *list = oq_json_new_array();
    for (int m = 0; m + 1 < f->r.n_methods; m++) {
        oq_json *o = oq_json_new_object();
        oq_json_set(o, "method", oq_json_new_string(f->r.method[m]));
        put_outcome(&f->r, f->r.method[m], &f->uniform[m], o, text);
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

/* What the recipe was held against, and the verdict: does a method alone, within the budget, give nearer pictures there? */
static void put_verdict(const finding *f, oq_json *json, oq_strbuf *text)
{
    const oq_request *held = &f->r.held_out.request;
    oq_json *prompts = oq_json_new_array();
    int better = -1;
    for (int i = 0; i < held->n_prompts; i++) oq_json_append(prompts, oq_json_new_string(held->prompts[i]));
    oq_json_set(json, "held_out_prompts", prompts);
    oq_json_set(json, "held_out_seed", oq_json_new_int((int64_t)held->seed));
    for (int m = 0; m + 1 < f->r.n_methods; m++)
        if (f->uniform[m].bytes <= f->budget && f->uniform[m].mean_db > f->best.mean_db &&
            (better < 0 || f->uniform[m].mean_db > f->uniform[better].mean_db))
            better = m;
    oq_json_set(json, "beats_uniform", oq_json_new_bool(better < 0));
    oq_strbuf_printf(text, "held out: %d %s, seed %llu%s\n", held->n_prompts,
                     held->n_prompts == 1 ? "prompt" : "prompts", (unsigned long long)held->seed,
                     held->prompts == f->r.search.request.prompts
                         ? " (the prompt searched on: give more prompts, or --held-out-prompt)"
                         : "");
    if (better >= 0)
        oq_strbuf_printf(text, "there %s alone, which fits the budget, gives nearer pictures\n",
                         f->r.method[better]);
}

static void put_effort(const finding *f, oq_json *json, oq_strbuf *text)
{
    const double s = oq_now_s() - f->started_s;
    oq_json_set(json, "seconds", oq_json_new_real(s));
    oq_strbuf_printf(text, "searched in %zu runs of %d prompts; %.1f s in all\n", oq_recipe_runs(&f->r),
                     f->r.search.request.n_prompts, s);
}

static oq_status put_recipe(const oq_recipe *r, oq_json *json, oq_strbuf *text)
{
    const char *output = oq_options_text(r->options, "output", NULL);
    oq_json *recipe = oq_recipe_json(r);
    char *pretty = NULL;
    oq_json_set(json, "recipe", recipe);
    OQ_TRY(oq_json_dump(r->env, recipe, OQ_JSON_INDENT, &pretty));
    const oq_status st = output ? oq_file_write_all(r->env, output, pretty, strlen(pretty)) : OQ_OK;
    if (output)
        oq_strbuf_printf(text, "%s: written; --recipe %s takes it\n", output, output);
    else
        oq_strbuf_printf(text, "%s\n", pretty);
    oq_free(r->env, pretty);
    return st;
}

static oq_status finish(finding *f, oq_report **out)
{
    const oq_recipe *r = &f->r;
    oq_json *json = oq_json_new_object();
    oq_strbuf text;
    oq_strbuf_init(&text, r->env);
    oq_strbuf_printf(&text, "%zu layers\n  %-20s %14s %11s %11s %8s\n", r->n_layers, "", "bits a weight",
                     "latents dB", "pictures dB", "worst");
    put_uniforms(f, json, &text);
    put_outcome(r, "this recipe", &f->best, json, &text);
    oq_json_set(json, "methods", counts_json(r, &text));
    oq_json_set(json, "budget_bytes", oq_json_new_int((int64_t)f->budget));
    oq_json_set(json, "expected_snr_db", oq_json_new_real(decibel(oq_recipe_error(r))));
    put_verdict(f, json, &text);
    put_effort(f, json, &text);
    const oq_status st = put_recipe(r, json, &text);
    if (st == OQ_OK) return oq_report_finish(r->env, json, &text, true, out);
    oq_strbuf_deinit(&text);
    oq_json_free(json);
    return st;
}

/* --dry-run: what there is to choose from, and what the search would take. */
static oq_status finish_dry(finding *f, oq_report **out)
{
    const oq_recipe *r = &f->r;
    oq_json *json = oq_json_new_object(), *list = oq_json_new_array();
    oq_strbuf text;
    oq_strbuf_init(&text, r->env);
    oq_strbuf_printf(&text, "%zu layers\n  %-20s %14s %14s\n", r->n_layers, "", "bits a weight", "bytes");
    for (int m = 0; m < r->n_methods; m++) {
        oq_json *o = oq_json_new_object();
        const size_t bytes = oq_recipe_uniform_bytes(r, m);
        oq_json_set(o, "method", oq_json_new_string(r->method[m]));
        put_size(r, bytes, o);
        oq_json_append(list, o);
        oq_strbuf_printf(&text, "  %-20s %14.2f %14zu\n", r->method[m], 8.0 * (double)bytes / r->weights,
                         bytes);
    }
    const size_t search = oq_recipe_runs(r), judge = (size_t)r->n_methods + 1;
    oq_json_set(json, "dry_run", oq_json_new_bool(true));
    oq_json_set(json, "uniform", list);
    oq_json_set(json, "budget_bytes", oq_json_new_int((int64_t)f->budget));
    oq_json_set(json, "search_runs", oq_json_new_int((int64_t)search));
    oq_json_set(json, "judging_runs", oq_json_new_int((int64_t)judge));
    oq_strbuf_printf(
        &text, "budget %zu bytes; %zu runs of %d prompts to search, %zu of %d to judge, of %d steps each\n",
        f->budget, search, r->search.request.n_prompts, judge, r->held_out.request.n_prompts,
        r->search.request.steps);
    return oq_report_finish(r->env, json, &text, true, out);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static oq_status run_search(finding *f, oq_report **out)
{
    oq_recipe *r = &f->r;
    OQ_TRY(oq_recipe_begin(r));
    OQ_TRY(oq_recipe_read_budget(r, oq_options_text(r->options, "budget", OQ_RECIPE_BUDGET), &f->budget));
    OQ_TRY(oq_recipe_solve(r, f->budget)); /* a budget that is too small is refused before anything runs */
    if (oq_options_flag(r->options, "dry-run")) return finish_dry(f, out);
    OQ_TRY(oq_recipe_look(r));
    OQ_TRY(oq_recipe_search(r, f->budget));
    OQ_TRY(run_uniforms(f));
    OQ_TRY(oq_recipe_try_chosen(r, &r->held_out, true, &f->best));
    return finish(f, out);
}

/* Before minutes of measuring: what is written at their end can be. */
static oq_status check_output(oq_env *env, const oq_options *options)
{
    const char *path = oq_options_text(options, "output", NULL);
    if (!path || oq_options_flag(options, "dry-run")) return OQ_OK;
    if (strcmp(path, "-") == 0)
        return oq_fail(env, OQ_E_ARG, "--output -: without --output the recipe ends the report already");
    if (oq_file_exists(path) && !oq_file_is_dir(path) && !oq_file_is_special(path) &&
        !oq_options_flag(options, "force"))
        return oq_fail(env, OQ_E_ARG, "%s: exists; --force replaces it", path);
    return oq_output_probe(env, path);
}

static oq_status command_recipe(oq_env *env, oq_options *options, oq_report **out)
{
    finding f = {.r = {.env = env, .options = options}, .started_s = oq_now_s()};
    OQ_TRY(oq_command_no_arguments(env, options, "the model is given with --model"));
    if (!oq_options_given(options, "model"))
        return oq_fail(env, OQ_E_ARG, "recipe needs a model: --model DIR");
    if (!oq_options_given(options, "prompt") && !oq_options_given(options, "prompt-file"))
        return oq_fail(env, OQ_E_ARG, "recipe measures on prompts: give at least one with --prompt");
    if (oq_options_int(options, "seed", -1) < 0) OQ_TRY(oq_options_set(options, "seed", "42"));
    OQ_TRY(check_output(env, options));
    OQ_TRY(oq_recipe_read_budget(&(oq_recipe){.env = env, .weights = 8},
                                 oq_options_text(options, "budget", OQ_RECIPE_BUDGET), &(size_t){0}));
    const oq_status st = run_search(&f, out);
    oq_recipe_end(&f.r);
    return st;
}

const oq_command oq_command_recipe = {
    .info = {"recipe", "-m MODEL -p TEXT -p TEXT --budget SIZE [flags]",
             "find which layer gets which method within a budget, by measuring, judged on prompts held out"},
    .run = command_recipe,
};
