/* compare_variants.c -- two variants of a model in one run: the same request through the reference, then
 * through the candidate; time and peak memory of each; the last measured run's pictures are compared. */
#include "engine/compare.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_PROMPT "a cup of coffee on the table"
#define DEFAULT_SEED   "42"

typedef struct comparison {
    oq_env *env;
    oq_options *options;
    oq_compare_side side[2]; /* reference, candidate */
    int warmup, measured;
    oq_arena arena;
    oq_json *saved;  /* NULL: nothing saved */
    oq_model *again; /* the reference a second time, for --layers */
    oq_layer_errors *layers;
} comparison;

/* ---- options of one side ------------------------------------------------------------------------------- */

static const char *side_option(const comparison *c, const oq_compare_side *s, const char *name,
                               char key[static 64])
{
    snprintf(key, 64, "%s-%s", s->label, name);
    return oq_options_text(c->options, key, NULL);
}

static oq_status set_if(oq_options *to, const char *name, const char *value)
{
    return value ? oq_options_set(to, name, value) : OQ_OK;
}

/* As the tool that people know: a configuration object overrides method and ignored layers. */
static oq_status set_quantization(const comparison *c, const oq_compare_side *s)
{
    char key[64];
    oq_json *json = NULL;
    const char *config = side_option(c, s, "quantization-config-json", key);
    if (!config) {
        OQ_TRY(set_if(s->options, "quantization", side_option(c, s, "quantization", key)));
        return set_if(s->options, "ignored-layers", side_option(c, s, "ignored-layers", key));
    }
    if (config[0] != '@' && !oq_file_exists(config)) {
        OQ_TRY(oq_json_parse(c->env, config, strlen(config), key, &json));
        const bool object = oq_json_type(json) == OQ_JSON_OBJECT;
        const char *kind = oq_json_type_name(json);
        if (!object)
            oq_fail(c->env, OQ_E_ARG, "%s must be a JSON object or a file that exists, not %s", key, kind);
        oq_json_free(json);
        if (!object) return OQ_E_ARG;
    }
    return oq_options_set(s->options, "quantization-config", config);
}

/* Files in the place of a component's weights: the candidate's alone, the reference is the model's own. */
static oq_status set_files(const comparison *c, oq_compare_side *s)
{
    static const char *const names[] = {"transformer", "text-encoder", "vae"};
    char key[64];
    for (size_t i = 0; s == &c->side[1] && i < OQ_COUNT(names); i++)
        OQ_TRY(set_if(s->options, names[i], side_option(c, s, names[i], key)));
    return OQ_OK;
}

static oq_status set_attention(const comparison *c, const oq_compare_side *s)
{
    static const char *const names[] = {"attention-quantization", "attention-skip-steps",
                                        "attention-skip-layers",  "attention-sparsity",
                                        "attention-sparse-steps", "attention-sparse-skip-layers"};
    const bool reference = strcmp(s->label, "reference") == 0; /* which takes the precision alone */
    char key[64];
    for (size_t i = 0; i < (reference ? 1 : OQ_COUNT(names)); i++) {
        snprintf(key, sizeof key, "%s-%s", s->label, names[i]);
        if (!oq_options_given(c->options, key)) continue;
        char number[32];
        const char *text = number;
        if (strcmp(names[i], "attention-sparsity") == 0)
            snprintf(number, sizeof number, "%.17g", oq_options_real(c->options, key, 0));
        else
            text = oq_options_text(c->options, key, NULL);
        OQ_TRY(oq_options_set(s->options, names[i], text));
    }
    return OQ_OK;
}

static oq_status make_options(const comparison *c, oq_compare_side *s)
{
    char key[64];
    const char *model = side_option(c, s, "model", key);
    OQ_TRY(oq_options_new(c->env, "generate", &s->options));
    OQ_TRY(oq_options_copy(c->options, s->options));
    OQ_TRY(set_if(s->options, "model", model));
    if (!oq_options_given(s->options, "model"))
        return oq_fail(c->env, OQ_E_ARG, "the %s run needs a model", s->label);
    OQ_TRY(set_files(c, s));
    OQ_TRY(set_if(s->options, "load-format", side_option(c, s, "load-format", key)));
    if (!oq_options_given(s->options, "prompt")) OQ_TRY(oq_options_set(s->options, "prompt", DEFAULT_PROMPT));
    if (oq_options_int(s->options, "seed", -1) < 0) OQ_TRY(oq_options_set(s->options, "seed", DEFAULT_SEED));
    OQ_TRY(set_attention(c, s));
    return set_quantization(c, s);
}

static oq_status prepare_side(comparison *c, oq_compare_side *s, const char *label)
{
    s->label = label;
    oq_arena_init(&s->arena, c->env);
    OQ_TRY(make_options(c, s));
    OQ_TRY(oq_model_prepare(c->env, s->options, &s->model));
    OQ_TRY(oq_request_make(c->env, s->model, s->options, &s->arena, &s->request));
    OQ_TRY(oq_arena_new(&s->arena, (size_t)c->measured, sizeof *s->run_s, "run times", &s->run_s));
    return oq_arena_new(&s->arena, (size_t)c->measured, sizeof *s->peak_mb, "run peaks", &s->peak_mb);
}

static oq_status check_sizes(const comparison *c)
{
    const oq_request *a = &c->side[0].request, *b = &c->side[1].request;
    if (a->width == b->width && a->height == b->height) return OQ_OK;
    return oq_fail(c->env, OQ_E_ARG,
                   "the reference makes %" PRId64 "x%" PRId64 ", the candidate %" PRId64 "x%" PRId64
                   ": give --width and --height",
                   a->width, a->height, b->width, b->height);
}

static void close_side(oq_compare_side *s)
{
    oq_model_close(s->model);
    s->model = NULL;
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

static oq_status run_once(comparison *c, oq_compare_side *s, const oq_run_hooks *hooks, int slot)
{
    oq_media *media = NULL;
    oq_peak_memory_reset();
    const double start = oq_now_s();
    OQ_TRY(oq_generate_request(c->env, s->model, &s->request, hooks, &media));
    const double seconds = oq_now_s() - start;
    if (slot < 0) {
        oq_media_free(media);
        return OQ_OK;
    }
    s->run_s[slot] = seconds;
    s->peak_mb[slot] = (double)oq_peak_memory_bytes() / (1024.0 * 1024.0);
    s->n_runs = slot + 1;
    oq_media_free(s->media);
    s->media = media;
    return OQ_OK;
}

static oq_status run_side(comparison *c, oq_compare_side *s)
{
    const oq_run_hooks none = {0};
    oq_log(c->env, OQ_LOG_INFO, "%s: loading", s->label);
    OQ_TRY(oq_model_load(c->env, s->model));
    for (int i = 0; i < c->warmup; i++) OQ_TRY(run_once(c, s, &none, -1));
    for (int i = 0; i < c->measured; i++) OQ_TRY(run_once(c, s, &none, i));
    return OQ_OK;
}

/* One more run of the candidate with the reference loaded beside it: comparing layers would distort the time and the
 * memory of the measured ones. */
static oq_status run_layers(comparison *c)
{
    OQ_TRY(oq_model_prepare(c->env, c->side[0].options, &c->again));
    OQ_TRY(oq_model_load(c->env, c->again));
    OQ_TRY(oq_layer_errors_new(c->env, c->again, c->side[1].model, &c->layers));
    const oq_run_hooks hooks = {.observer = oq_layer_errors_observe,
                                .attention_observer = oq_layer_errors_attend,
                                .observer_user = c->layers};
    return run_once(c, &c->side[1], &hooks, -1);
}

static oq_status run_both(comparison *c)
{
    oq_model *reference = c->side[0].model;
    OQ_TRY(run_side(c, &c->side[0]));
    oq_weights_free(c->env, reference->weights); /* the candidate's peak is its own */
    reference->weights = NULL;
    OQ_TRY(run_side(c, &c->side[1]));
    return oq_options_flag(c->options, "layers") ? run_layers(c) : OQ_OK;
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

static oq_status media_pairs(comparison *c, oq_picture_pairs *pairs)
{
    const oq_media *a = c->side[0].media, *b = c->side[1].media;
    if (a->count != b->count)
        return oq_fail(c->env, OQ_E_ARG, "the reference made %d pictures, the candidate %d", a->count,
                       b->count);
    if (a->frames != b->frames)
        return oq_fail(c->env, OQ_E_ARG, "the reference made %lld frames, the candidate %lld",
                       (long long)a->frames, (long long)b->frames);
    pairs->n = (size_t)a->count * (size_t)a->frames; /* a video is compared frame by frame */
    OQ_TRY(oq_arena_new(&c->arena, pairs->n, sizeof *pairs->a, "pictures", &pairs->a));
    OQ_TRY(oq_arena_new(&c->arena, pairs->n, sizeof *pairs->b, "pictures", &pairs->b));
    const size_t frame = (size_t)a->width * (size_t)a->height * 3;
    for (size_t i = 0; i < pairs->n; i++) {
        pairs->a[i] = (oq_image){a->width, a->height, a->pixels + i * frame};
        pairs->b[i] = (oq_image){b->width, b->height, b->pixels + i * frame};
    }
    return OQ_OK;
}

static oq_status save_picture(comparison *c, oq_json *list, const oq_image *picture, const char *dir,
                              const char *format, int i)
{
    char leaf[64];
    snprintf(leaf, sizeof leaf, "%s_%d.png", format, i);
    const char *path = oq_arena_printf(&c->arena, "%s/%s", dir, leaf);
    if (!path) return oq_fail(c->env, OQ_E_NOMEM, "%s: no memory", dir);
    OQ_TRY(oq_png_write(c->env, path, picture->width, picture->height, picture->pixels, NULL, 0));
    oq_json_append(list, oq_json_new_string(path));
    return OQ_OK;
}

static oq_status save_side(comparison *c, const char *dir, const char *label, const oq_image *pictures,
                           size_t n)
{
    const char *folder = oq_arena_printf(&c->arena, "%s/%s", dir, label);
    oq_json *list = oq_json_new_array();
    oq_status st = folder ? oq_dir_make(c->env, folder) : oq_fail(c->env, OQ_E_NOMEM, "%s: no memory", dir);
    for (size_t i = 0; st == OQ_OK && i < n; i++)
        st = save_picture(c, list, &pictures[i], folder, "image", (int)i);
    oq_json_set(c->saved, label, list);
    return st;
}

static oq_status save_pairs(comparison *c, const oq_picture_pairs *pairs)
{
    const char *dir = oq_options_text(c->options, "save-output-dir", NULL);
    if (!dir) return OQ_OK;
    c->saved = oq_json_new_object();
    OQ_TRY(save_side(c, dir, "reference", pairs->a, pairs->n));
    OQ_TRY(save_side(c, dir, "candidate", pairs->b, pairs->n));
    oq_json *list = oq_json_new_array();
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < pairs->n; i++) {
        oq_image both = {0};
        st = oq_image_side_by_side(c->env, &pairs->a[i], &pairs->b[i], &both);
        if (st == OQ_OK) st = save_picture(c, list, &both, dir, "side_by_side", (int)i);
        oq_image_deinit(c->env, &both);
    }
    oq_json_set(c->saved, "side_by_side", list);
    return st;
}

/* ---- report -------------------------------------------------------------------------------------------- */

static double mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return n ? sum / n : 0;
}

static double largest(const double *x, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

static oq_json *numbers(const double *x, int n)
{
    oq_json *list = oq_json_new_array();
    for (int i = 0; i < n; i++) oq_json_append(list, oq_json_new_real(x[i]));
    return list;
}

static oq_json *generation_json(const oq_compare_side *s)
{
    oq_json *o = oq_json_new_object();
    const int last = s->n_runs - 1;
    oq_json_set(o, "generation_time_s", oq_json_new_real(s->run_s[last]));
    oq_json_set(o, "avg_generation_time_s", oq_json_new_real(mean(s->run_s, s->n_runs)));
    oq_json_set(o, "per_run_generation_time_s", numbers(s->run_s, s->n_runs));
    oq_json_set(o, "load_time_s", oq_json_new_real(s->model->load_s));
    oq_json_set(o, "peak_memory_mb", oq_json_new_real(s->peak_mb[last]));
    oq_json_set(o, "avg_peak_memory_mb", oq_json_new_real(mean(s->peak_mb, s->n_runs)));
    oq_json_set(o, "max_peak_memory_mb", oq_json_new_real(largest(s->peak_mb, s->n_runs)));
    oq_json_set(o, "per_run_peak_memory_mb", numbers(s->peak_mb, s->n_runs));
    oq_json_set(o, "weights_mb", oq_json_new_real((double)s->model->plan->weights_bytes / (1024.0 * 1024.0)));
    return o;
}

static oq_json *variant_json(const comparison *c, const oq_compare_side *s)
{
    char key[64];
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "label", oq_json_new_string(s->label));
    oq_json_set(o, "model", oq_json_new_string(oq_options_text(s->options, "model", NULL)));
    oq_json_set(o, "quantization", oq_json_new_string(side_option(c, s, "quantization", key)));
    oq_json_set(o, "quantization_config",
                oq_json_new_string(side_option(c, s, "quantization-config-json", key)));
    oq_json_set(o, "ignored_layers", oq_json_new_string(side_option(c, s, "ignored-layers", key)));
    oq_json_set(o, "diffusion_load_format",
                oq_json_new_string(oq_options_text(s->options, "load-format", "default")));
    return o;
}

static oq_json *sampling_json(const comparison *c)
{
    const oq_request *r = &c->side[0].request;
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "task", oq_json_new_string("t2i"));
    oq_json_set(o, "width", oq_json_new_int(r->width));
    oq_json_set(o, "height", oq_json_new_int(r->height));
    oq_json_set(o, "num_frames", oq_json_new_int(c->side[0].media ? c->side[0].media->frames : 1));
    oq_json_set(o, "num_inference_steps", oq_json_new_int(r->steps));
    oq_json_set(o, "guidance_scale", oq_json_new_real(r->guidance));
    oq_json_set(o, "cfg_scale", oq_json_new_real(r->guidance));
    oq_json_set(o, "guidance_scale_2", oq_json_new_null());
    oq_json_set(o, "flow_shift", oq_json_new_null());
    oq_json_set(o, "num_images_per_prompt", oq_json_new_int(r->images_per_prompt));
    oq_json_set(o, "step_execution", oq_json_new_bool(false));
    return o;
}

/* One prompt as a text, several as a list. */
static oq_json *prompts_json(const oq_request *r)
{
    if (r->n_prompts == 1) return oq_json_new_string(r->prompts[0]);
    oq_json *list = oq_json_new_array();
    for (int i = 0; i < r->n_prompts; i++) oq_json_append(list, oq_json_new_string(r->prompts[i]));
    return list;
}

static oq_json *head_json(const comparison *c)
{
    const oq_request *r = &c->side[0].request;
    oq_json *json = oq_json_new_object(), *variants = oq_json_new_object();
    oq_json_set(json, "model", oq_json_new_string(oq_options_text(c->side[0].options, "model", NULL)));
    oq_json_set(json, "prompt", prompts_json(r));
    oq_json_set(json, "negative_prompt", oq_json_new_string(r->negative));
    oq_json_set(json, "seed", oq_json_new_int((int64_t)r->seed));
    oq_json_set(json, "warmup_runs", oq_json_new_int(c->warmup));
    oq_json_set(json, "measure_runs", oq_json_new_int(c->measured));
    oq_json_set(variants, "reference", variant_json(c, &c->side[0]));
    oq_json_set(variants, "candidate", variant_json(c, &c->side[1]));
    oq_json_set(json, "variant_configs", variants);
    oq_json_set(json, "sampling_kwargs", sampling_json(c));
    oq_json_set(json, "metric_guidance", oq_metric_guidance());
    oq_json_set(json, "reference_generation", generation_json(&c->side[0]));
    oq_json_set(json, "candidate_generation", generation_json(&c->side[1]));
    return json;
}

static void print_side(const oq_compare_side *s, oq_strbuf *out)
{
    oq_strbuf_printf(out, "%s: %.2f s a run, peak %.0f MiB, weights ", s->label, mean(s->run_s, s->n_runs),
                     largest(s->peak_mb, s->n_runs));
    oq_strbuf_put_bytes(out, s->model->plan->weights_bytes);
    oq_strbuf_putc(out, '\n');
}

static oq_status make_report(comparison *c, const oq_picture_pairs *pairs, oq_report **out)
{
    oq_pairs_metrics_result result;
    oq_json *metrics = NULL;
    oq_strbuf text;
    bool passed = true;
    OQ_TRY(oq_pairs_metrics(c->env, pairs, &result, &metrics));
    oq_json *json = head_json(c);
    oq_json_set(json, "output_metrics", metrics);
    if (c->saved) oq_json_set(json, "saved_outputs", oq_json_ref(c->saved));
    if (c->layers) oq_json_set(json, "layers", oq_layer_errors_json(c->layers));
    oq_strbuf_init(&text, c->env);
    if (c->layers) oq_layer_errors_print(c->layers, &text);
    print_side(&c->side[0], &text);
    print_side(&c->side[1], &text);
    oq_pairs_print(pairs, &result, &text);
    oq_status st = oq_compare_judge(c->env, c->options, &result.worst, json, &text, &passed);
    if (st == OQ_OK) st = oq_compare_write_json(c->env, c->options, json);
    if (st == OQ_OK) return oq_report_finish(c->env, json, &text, passed, out);
    oq_json_free(json);
    oq_strbuf_deinit(&text);
    return st;
}

static oq_status run(comparison *c, oq_report **out)
{
    const char *dir = oq_options_text(c->options, "save-output-dir", NULL);
    oq_picture_pairs pairs = {0};
    OQ_TRY(prepare_side(c, &c->side[0], "reference"));
    OQ_TRY(prepare_side(c, &c->side[1], "candidate"));
    OQ_TRY(check_sizes(c));
    const bool ours = dir && !oq_file_exists(dir);
    if (dir) OQ_TRY(oq_dir_make(c->env, dir));
    oq_status st = run_both(c);
    if (st == OQ_OK) st = media_pairs(c, &pairs);
    if (st == OQ_OK) st = save_pairs(c, &pairs);
    if (st != OQ_OK && ours) oq_dir_remove(dir); /* empty or half of it */
    OQ_TRY(st);
    return make_report(c, &pairs, out);
}

oq_status oq_compare_variants(oq_env *env, oq_options *options, oq_report **out)
{
    comparison c = {.env = env,
                    .options = options,
                    .warmup = (int)oq_options_int(options, "warmup-runs", 0),
                    .measured = (int)oq_options_int(options, "measure-runs", 1)};
    oq_arena_init(&c.arena, env);
    const oq_status st = run(&c, out);
    oq_layer_errors_free(c.layers);
    oq_model_close(c.again);
    oq_json_free(c.saved);
    for (int i = 0; i < 2; i++) {
        oq_media_free(c.side[i].media);
        close_side(&c.side[i]);
        oq_options_free(c.side[i].options);
        oq_arena_deinit(&c.side[i].arena);
    }
    oq_arena_deinit(&c.arena);
    return st;
}
