/* command_generate.c -- model and prompt to pictures: everything that can be refused is refused before the
 * weights are read, then the work, then the files. */
#include "engine/command.h"
#include "media/ending.h"
#include "media/video.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    oq_env *env;
    oq_options *options;
    oq_json *remembered; /* --from */
    oq_model *model;
    oq_arena arena;
    oq_request request;
    oq_metadata *metadata;      /* NULL: --no-metadata */
    const oq_video_type *video; /* NULL: pictures */
    oq_trace *trace;
    oq_media *media; /* of the batch that was made last */
    int first;       /* its first picture */
    int n_saved;
    uint64_t *seeds; /* of all pictures, in the arena */
    oq_output times; /* of all batches; no pixels */
    oq_strbuf shown; /* --show */
    char **paths;    /* one per picture, in the arena */
    char **previews; /* likewise, of what it is like so far; NULL: nobody looks */
    int n_images;
    double start_s, save_s;
} run;

/* ---- before the work ----------------------------------------------------------------------------------- */

/* What no model of any kind could write is refused before one is opened. */
static oq_status check_names(oq_env *env, const oq_options *o)
{
    const char *output = oq_options_text(o, "output", NULL), *trace = oq_options_text(o, "trace", NULL);
    const char *preview = oq_options_text(o, "preview", NULL);
    if (output && !*output) return oq_fail(env, OQ_E_ARG, "an output needs a file's name, not ''");
    if (preview && !*preview) return oq_fail(env, OQ_E_ARG, "a preview needs a file's name, not ''");
    if (output && !oq_file_is_dir(output)) OQ_TRY(oq_ending_check(env, output));
    if (preview) OQ_TRY(oq_ending_check(env, preview));
    if (trace && !oq_ending_among(oq_ending_of(trace), ".safetensors"))
        return oq_fail(env, OQ_E_ARG, "trace '%s': tensors are written as .safetensors, the name says %s%s%s",
                       trace, *oq_ending_of(trace) ? "'" : "nothing", oq_ending_of(trace),
                       *oq_ending_of(trace) ? "'" : "");
    return OQ_OK;
}

static oq_status check_streams(oq_env *env, const oq_options *o)
{
    const bool to_stdout = strcmp(oq_options_text(o, "output", ""), "-") == 0;
    if (to_stdout && oq_options_flag(o, "json"))
        return oq_fail(env, OQ_E_ARG, "output '-' and json both write to standard output");
    if (oq_options_flag(o, "show") && (to_stdout || oq_options_flag(o, "json")))
        return oq_fail(env, OQ_E_ARG, "show and %s both write to standard output",
                       to_stdout ? "output '-'" : "json");
    if (oq_options_given(o, "trace-keys") && !oq_options_given(o, "trace"))
        return oq_fail(env, OQ_E_ARG, "trace-keys selects what trace writes: give --trace FILE.safetensors");
    return OQ_OK;
}

static bool is_video(const run *r)
{
    return oq_model_makes_video(r->model);
}

/* name.png, or name_1.png, name_2.png, ... */
static char *image_path(run *r, const char *base, int index)
{
    const char *ending = oq_ending_of(base);
    if (r->n_images == 1) return oq_arena_strdup(&r->arena, base);
    const int stem = (int)(strlen(base) - strlen(ending));
    return oq_arena_printf(&r->arena, "%.*s_%d%s", stem, base, index + 1, ending);
}

/* One path per picture, each of them one that can be written; `video` NULL: pictures. */
static oq_status name_files(run *r, const char *base, const oq_video_type **video, char ***out)
{
    *video = NULL;
    OQ_TRY(is_video(r) ? oq_video_find(r->env, base, video) : oq_image_check_output(r->env, base));
    OQ_TRY(oq_arena_new(&r->arena, (size_t)r->n_images, sizeof **out, "names of files", out));
    for (int i = 0; i < r->n_images; i++) {
        char *const path = image_path(r, base, i);
        if (!path) return oq_fail(r->env, OQ_E_NOMEM, "names of files: no memory");
        if (*video && !*(*video)->endings && oq_file_exists(path))
            return oq_fail(r->env, OQ_E_ARG,
                           "output '%s': there is such a file already, the frames need a folder", path);
        OQ_TRY(oq_output_probe(r->env, path));
        (*out)[i] = path;
    }
    return OQ_OK;
}

static oq_status name_previews(run *r)
{
    const oq_video_type *video = NULL;
    const char *base = oq_options_text(r->options, "preview", NULL);
    if (!base && oq_options_int(r->options, "previews", 0) > 0)
        return oq_fail(r->env, OQ_E_ARG, "previews have to go somewhere: --preview FILE");
    if (!base) return OQ_OK;
    if (strcmp(base, "-") == 0)
        return oq_fail(r->env, OQ_E_ARG, "preview: a file is needed, not standard output");
    if (r->request.previews == 0)
        return oq_fail(r->env, OQ_E_ARG, "preview '%s' has no effect with previews 0", base);
    OQ_TRY(name_files(r, base, &video, &r->previews));
    if (video && !*video->endings) /* which would have to be emptied for the next one */
        return oq_fail(r->env, OQ_E_ARG, "preview '%s': one file is needed, not a folder of frames", base);
    if (strcmp(r->previews[0], r->paths[0]) == 0)
        return oq_fail(r->env, OQ_E_ARG, "preview '%s' would stand where the result belongs", r->paths[0]);
    if (r->request.steps < 2)
        oq_log(r->env, OQ_LOG_WARN, "no preview is made: one step ends with the result");
    return OQ_OK;
}

static oq_status name_outputs(run *r)
{
    const char *given = oq_options_text(r->options, "output", NULL);
    const char *base = given;
    if (!given || oq_file_is_dir(given))
        base = oq_arena_printf(&r->arena, "%s%somniq-%" PRIu64 "%s", given ? given : "",
                               given && given[strlen(given) - 1] != '/' ? "/" : "", r->request.seed,
                               is_video(r) ? oq_video_ending() : ".png");
    if (!base) return oq_fail(r->env, OQ_E_NOMEM, "output: no memory");
    if (strcmp(base, "-") == 0 && r->n_images > 1)
        return oq_fail(r->env, OQ_E_ARG, "output '-' takes one picture, this request makes %d", r->n_images);
    return name_files(r, base, &r->video, &r->paths);
}

/* -v: where each default came from. */
static void explain_defaults(const run *r)
{
    static const char *const names[] = {"width", "height", "steps", "guidance-scale"};
    const oq_request *q = &r->request;
    const double values[] = {(double)q->width, (double)q->height, q->steps, q->guidance};
    for (size_t i = 0; i < OQ_COUNT(names); i++) {
        const bool flag = oq_options_given(r->options, names[i]);
        const bool folder = r->model->defaults && oq_options_given(r->model->defaults, names[i]);
        oq_log(r->env, OQ_LOG_INFO, "%s %.7g, from %s", names[i], values[i],
               flag     ? "the flag"
               : folder ? "the model's omniq.json"
                        : "the family's defaults");
    }
}

static oq_status check_needs(oq_env *env, const oq_options *o)
{
    if (!oq_options_given(o, "model")) return oq_fail(env, OQ_E_ARG, "generate needs a model: --model DIR");
    if (!oq_options_given(o, "prompt") && !oq_options_given(o, "prompt-file"))
        return oq_fail(env, OQ_E_ARG, "generate needs a prompt: --prompt TEXT");
    return OQ_OK;
}

static oq_status prepare(run *r)
{
    const char *from = oq_options_text(r->options, "from", NULL);
    const char *trace = oq_options_text(r->options, "trace", NULL);
    OQ_TRY(oq_command_no_arguments(r->env, r->options, "a prompt is given with --prompt"));
    OQ_TRY(check_streams(r->env, r->options));
    OQ_TRY(check_names(r->env, r->options));
    if (from) OQ_TRY(oq_metadata_restore(r->env, from, r->options, &r->remembered));
    OQ_TRY(check_needs(r->env, r->options));
    OQ_TRY(oq_seed_choose(r->env, r->options));
    OQ_TRY(oq_model_prepare(r->env, r->options, &r->model));
    OQ_TRY(oq_request_make(r->env, r->model, r->options, &r->arena, &r->request));
    explain_defaults(r);
    r->n_images = r->request.n_prompts * r->request.images_per_prompt;
    OQ_TRY(name_outputs(r));
    OQ_TRY(name_previews(r));
    if (trace) {
        OQ_TRY(oq_output_probe(r->env, trace));
        OQ_TRY(oq_trace_new(r->env, oq_options_text(r->options, "trace-keys", NULL), &r->trace));
    }
    if (r->remembered) OQ_TRY(oq_metadata_check(r->env, r->remembered, r->model, r->options));
    if (oq_options_flag(r->options, "no-metadata")) return OQ_OK;
    return oq_metadata_new(r->env, r->model, r->options, &r->request, false, &r->metadata);
}

/* ---- the work and its files ---------------------------------------------------------------------------- */

/* i: within the batch. */
static oq_status save_image(run *r, int i)
{
    char *parameters = NULL, *omniq = NULL;
    const oq_media *m = r->media;
    const int index = r->first + i;
    if (r->metadata) OQ_TRY(oq_metadata_texts(r->metadata, index, m->seeds[i], &parameters, &omniq));
    const oq_image_text texts[] = {{"parameters", parameters}, {"omniq", omniq}};
    const size_t n_texts = r->metadata ? OQ_COUNT(texts) : 0;
    const oq_status st = oq_media_write(r->env, m, i, r->paths[index], texts, n_texts);
    oq_free(r->env, parameters);
    oq_free(r->env, omniq);
    return st;
}

static oq_status save(run *r)
{
    const double start = oq_now_s();
    for (int i = 0; i < r->media->count; i++) {
        OQ_TRY(save_image(r, i));
        r->seeds[r->first + i] = r->media->seeds[i];
        r->n_saved++;
        oq_report_progress(r->env, "save", i + 1, r->media->count, oq_now_s() - start);
    }
    if (r->trace) OQ_TRY(oq_trace_write(r->trace, oq_options_text(r->options, "trace", NULL)));
    r->save_s += oq_now_s() - start;
    return OQ_OK;
}

static oq_status show(run *r)
{
    const char *columns = getenv("COLUMNS");
    const int width = columns && atoi(columns) > 0 ? atoi(columns) : 80;
    for (int i = 0; i < r->media->count; i++) {
        char *picture = NULL;
        OQ_TRY(oq_image_show(r->env, oq_terminal_detect(), r->media->width, r->media->height,
                             oq_media_pixels(r->media, i), width < 80 ? width : 80, &picture));
        oq_strbuf_puts(&r->shown, picture);
        oq_strbuf_putc(&r->shown, '\n');
        oq_free(r->env, picture);
    }
    return OQ_OK;
}

static void add_times(run *r)
{
    const oq_output *t = &r->media->timing;
    r->times.text_s += t->text_s;
    r->times.denoise_s += t->denoise_s;
    r->times.decode_s += t->decode_s;
    for (int i = 0; t->step_s && i < r->media->n_steps; i++) r->times.step_s[i] += t->step_s[i];
}

/* A place that was writable before may be full now: the picture itself is worth going on for. */
static void save_preview(void *user, const oq_preview *preview)
{
    const run *r = user;
    oq_env *quiet = NULL; /* whose errors are no end of the run */
    if (oq_env_new(&(oq_env_params){.size = sizeof(oq_env_params), .n_threads = 1}, &quiet) != OQ_OK) return;
    for (int i = 0; i < oq_media_count(preview->media); i++)
        if (oq_media_write(quiet, preview->media, i, r->previews[r->first + i], NULL, 0) != OQ_OK) {
            oq_log(r->env, OQ_LOG_WARN, "a preview is left out: %s", oq_env_error(quiet));
            oq_env_clear(quiet);
        }
    oq_env_free(quiet);
}

static oq_status make_batch(run *r, const oq_run_hooks *hooks, const oq_request *batch)
{
    oq_media_free(r->media);
    r->media = NULL;
    OQ_TRY(oq_generate_request(r->env, r->model, batch, hooks, &r->media));
    add_times(r);
    OQ_TRY(save(r));
    return oq_options_flag(r->options, "show") ? show(r) : OQ_OK;
}

/* Prompt by prompt what is done stands on the disk, whatever becomes of the rest, and memory holds one prompt's pictures. One
 * batch it is where pictures hang together: a generator that they share, a trace, weights that stream for all at once. */
static bool prompt_by_prompt(const run *r)
{
    return !r->request.shared_noise && !r->trace && !r->model->plan->stream_bytes;
}

static oq_status work(run *r)
{
    oq_run_hooks hooks = {0};
    const oq_request *all = &r->request;
    if (r->previews) hooks.preview = save_preview, hooks.preview_user = r;
    if (r->trace) hooks.trace = oq_trace_sink_put, hooks.trace_user = r->trace;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)r->n_images, sizeof *r->seeds, "seeds", &r->seeds));
    OQ_TRY(oq_arena_new(&r->arena, (size_t)all->steps, sizeof(double), "step times", &r->times.step_s));
    OQ_TRY(oq_model_load(r->env, r->model));
    if (!prompt_by_prompt(r)) return make_batch(r, &hooks, all);
    for (int i = 0; i < all->n_prompts; i++) {
        oq_request batch = *all;
        r->first = i * all->images_per_prompt;
        batch.prompts = &all->prompts[i];
        batch.n_prompts = 1;
        batch.seed = all->seed + (uint64_t)r->first;
        OQ_TRY(make_batch(r, &hooks, &batch));
    }
    return OQ_OK;
}

/* ---- the report ---------------------------------------------------------------------------------------- */

static const char *prompt_of(const run *r, int image)
{
    return r->request.prompts[image / r->request.images_per_prompt];
}

static oq_json *outputs_json(const run *r)
{
    oq_json *list = oq_json_new_array();
    for (int i = 0; i < r->n_images; i++) {
        oq_json *o = oq_json_new_object();
        oq_json_set(o, "path", oq_json_new_string(r->paths[i]));
        oq_json_set(o, "index", oq_json_new_int(i));
        if (r->request.n_prompts > 1) oq_json_set(o, "prompt", oq_json_new_string(prompt_of(r, i)));
        oq_json_set(o, "seed", oq_json_new_int((int64_t)r->seeds[i]));
        oq_json_set(o, "width", oq_json_new_int(r->media->width));
        oq_json_set(o, "height", oq_json_new_int(r->media->height));
        if (r->video) oq_json_set(o, "frames", oq_json_new_int(r->media->frames));
        if (r->video) oq_json_set(o, "fps", oq_json_new_real(r->media->fps));
        oq_json_append(list, o);
    }
    return list;
}

static oq_json *timing_json(const run *r, double total_s)
{
    const oq_output *t = &r->times;
    oq_json *o = oq_json_new_object(), *steps = oq_json_new_array();
    for (int i = 0; t->step_s && i < r->media->n_steps; i++)
        oq_json_append(steps, oq_json_new_real(t->step_s[i]));
    oq_json_set(o, "load_s", oq_json_new_real(r->model->load_s));
    oq_json_set(o, "text_s", oq_json_new_real(t->text_s));
    oq_json_set(o, "denoise_s", oq_json_new_real(t->denoise_s));
    oq_json_set(o, "step_s", steps);
    oq_json_set(o, "decode_s", oq_json_new_real(t->decode_s));
    oq_json_set(o, "save_s", oq_json_new_real(r->save_s));
    oq_json_set(o, "total_s", oq_json_new_real(total_s));
    return o;
}

static oq_json *plan_json(const oq_plan *plan)
{
    int64_t quantized = 0, plain = 0;
    oq_json *o = oq_json_new_object(), *by_scheme = oq_json_new_object();
    for (size_t c = 0; c < plan->n_components; c++)
        for (size_t i = 0; i < plan->components[c].n_layers; i++) {
            const oq_plan_layer *layer = &plan->components[c].layers[i];
            const oq_scheme *s = &layer->linear->spec.scheme;
            char name[128], from[32];
            oq_act_describe_from(from, sizeof from, s->act_min_rows);
            if (s->act)
                snprintf(name, sizeof name, "%s/%s %s%s", s->weight->name, s->act->label,
                         oq_act_scale_name(s->act_scale), from);
            else
                snprintf(name, sizeof name, "%s", s->weight->name);
            *(layer->choice.quantized ? &quantized : &plain) += 1;
            oq_json_set(by_scheme, name, oq_json_new_int(oq_json_int(oq_json_get(by_scheme, name), 0) + 1));
        }
    oq_json_set(o, "quantized_layers", oq_json_new_int(quantized));
    oq_json_set(o, "plain_layers", oq_json_new_int(plain));
    oq_json_set(o, "by_scheme", by_scheme);
    return o;
}

static oq_json *report_json(const run *r, double total_s)
{
    oq_json *o = oq_json_new_object(), *memory = oq_json_new_object();
    oq_json_set(memory, "weights_bytes", oq_json_new_int((int64_t)r->model->plan->weights_bytes));
    if (r->model->plan->stream_bytes)
        oq_json_set(memory, "stream_bytes", oq_json_new_int((int64_t)r->model->plan->stream_bytes));
    oq_json_set(memory, "scratch_bytes", oq_json_new_int((int64_t)r->media->scratch_bytes));
    oq_json_set(memory, "peak_rss_bytes", oq_json_new_int((int64_t)oq_peak_rss_bytes()));
    oq_json_set(o, "outputs", outputs_json(r));
    oq_json_set(o, "timing", timing_json(r, total_s));
    oq_json_set(o, "memory", memory);
    oq_json_set(o, "plan", plan_json(r->model->plan));
    return o;
}

/* Enough of it to know it by: whole characters of its first line. */
static void put_prompt(oq_strbuf *out, const char *prompt)
{
    enum { MOST = 60 };
    size_t n = strcspn(prompt, "\r\n");
    const bool cut = n > MOST || prompt[n];
    if (n > MOST)
        for (n = MOST; n > 0 && ((unsigned char)prompt[n] & 0xc0) == 0x80;) n--;
    oq_strbuf_printf(out, ", \"%.*s%s\"", (int)n, prompt, cut ? "..." : "");
}

static void report_text(const run *r, double total_s, oq_strbuf *out)
{
    const oq_output *t = &r->times;
    for (int i = 0; i < r->n_images; i++) {
        oq_strbuf_printf(out, "%s: %" PRId64 "x%" PRId64, r->paths[i], r->media->width, r->media->height);
        if (r->video)
            oq_strbuf_printf(out, ", %" PRId64 " frames at %.7g a second", r->media->frames, r->media->fps);
        oq_strbuf_printf(out, ", seed %" PRIu64, r->seeds[i]);
        if (r->request.n_prompts > 1) put_prompt(out, prompt_of(r, i));
        oq_strbuf_putc(out, '\n');
    }
    oq_strbuf_printf(out,
                     "load %.2f s, text %.2f s, %d step%s %.2f s, decode %.2f s, save %.2f s; total %.2f s\n",
                     r->model->load_s, t->text_s, r->media->n_steps, r->media->n_steps == 1 ? "" : "s",
                     t->denoise_s, t->decode_s, r->save_s, total_s);
    oq_strbuf_puts(out, "memory: weights ");
    oq_strbuf_put_bytes(out, r->model->plan->weights_bytes);
    if (r->model->plan->stream_bytes) {
        oq_strbuf_puts(out, " (");
        oq_strbuf_put_bytes(out, r->model->plan->stream_bytes);
        oq_strbuf_puts(out, " streamed from host memory)");
    }
    oq_strbuf_puts(out, ", scratch ");
    oq_strbuf_put_bytes(out, r->media->scratch_bytes);
    oq_strbuf_puts(out, ", peak of the process ");
    oq_strbuf_put_bytes(out, oq_peak_rss_bytes());
    oq_strbuf_putc(out, '\n');
}

static oq_status report(run *r, oq_report **out)
{
    const double total_s = oq_now_s() - r->start_s;
    oq_strbuf text = r->shown;
    oq_strbuf_init(&r->shown, r->env); /* the report's now */
    report_text(r, total_s, &text);
    return oq_report_finish(r->env, report_json(r, total_s), &text, true, out);
}

static oq_status generate(oq_env *env, oq_options *options, oq_report **out)
{
    run r = {.env = env, .options = options, .start_s = oq_now_s()};
    oq_arena_init(&r.arena, env);
    oq_strbuf_init(&r.shown, env);
    oq_status st = prepare(&r);
    if (st == OQ_OK) st = work(&r);
    if (st != OQ_OK && r.n_saved)
        oq_log(env, OQ_LOG_WARN, "%d of %d pictures are done and saved, to %s", r.n_saved, r.n_images,
               r.paths[r.n_saved - 1]);
    if (st == OQ_OK) st = report(&r, out);
    oq_strbuf_deinit(&r.shown);
    oq_media_free(r.media);
    oq_trace_free(r.trace);
    oq_metadata_free(r.metadata);
    oq_json_free(r.remembered);
    oq_arena_deinit(&r.arena);
    oq_model_close(r.model);
    return st;
}

const oq_command oq_command_generate = {
    .info = {"generate", "-m MODEL -p TEXT [flags]", "make pictures or videos from a model and prompts"},
    .run = generate,
};
