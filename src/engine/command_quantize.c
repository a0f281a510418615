/* command_quantize.c -- weights into a producer's layout: planned, written under a temporary name, reopened and checked
 * value by value, put in place. */
#include "engine/quantize.h"

#include "base/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ------------------------------------------------------------------------------------------- */

/* config.json of the output: the source's with its quantization replaced. */
static oq_status write_config(oq_quantize *q, const oq_quantize_part *p, const char *folder)
{
    oq_env *env = q->env;
    oq_json *config = oq_json_new_object();
    const oq_json *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    char *text = NULL, *path = oq_path_join(env, folder, "config.json");
    bool ok = path != NULL;
    while (ok && oq_json_next(p->config, &at, &key, &value))
        if (strcmp(key, "quantization_config") != 0) ok = oq_json_set(config, key, oq_json_copy(value));
    if (ok && p->quant) ok = oq_json_set(config, "quantization_config", oq_json_ref(p->quant));
    oq_status st = ok ? oq_json_dump(env, config, OQ_JSON_INDENT, &text)
                      : oq_fail(env, OQ_E_NOMEM, "%s: no memory for config.json", folder);
    if (st == OQ_OK) st = oq_file_write_all(env, path, text, strlen(text));
    oq_free(env, text);
    oq_free(env, path);
    oq_json_free(config);
    return st;
}

static oq_status write_part(oq_quantize *q, oq_quantize_part *p, const char *folder, bool is_file)
{
    OQ_TRY(oq_rewrite_write(&p->rewrite, folder, p->metadata));
    if (is_file) return OQ_OK;
    OQ_TRY(write_config(q, p, folder));
    return oq_output_copy_files(q->env, p->part->component->path, folder,
                                "config.json,hf_quant_config.json,quantization_config.json");
}

static bool is_written(const oq_quantize *q, const char *component)
{
    for (size_t i = 0; i < q->n_parts; i++)
        if (strcmp(q->parts[i].name, component) == 0) return true;
    return false;
}

/* Components without a network here (schedulers, tokenizers, strangers) come along as they are. */
static oq_status copy_others(oq_quantize *q, const char *to)
{
    const oq_folder *folder = q->source.folder;
    OQ_TRY(oq_output_copy_files(q->env, folder->path, to, ""));
    for (size_t i = 0; i < folder->n_components; i++) {
        const oq_folder_component *c = &folder->components[i];
        if (is_written(q, c->name) || !oq_file_is_dir(c->path)) continue;
        char *path = oq_path_join(q->env, to, c->name);
        if (!path) return oq_fail(q->env, OQ_E_NOMEM, "%s: no memory", to);
        const oq_status st = oq_dir_copy_files(q->env, c->path, path);
        oq_free(q->env, path);
        OQ_TRY(st);
    }
    return OQ_OK;
}

static oq_status write_all(oq_quantize *q, const oq_output_place *place)
{
    if (!q->source.folder) return write_part(q, &q->parts[0], place->staged, place->is_file);
    for (size_t i = 0; i < q->n_parts; i++) {
        char *path = oq_path_join(q->env, place->staged, q->parts[i].name);
        if (!path) return oq_fail(q->env, OQ_E_NOMEM, "%s: no memory", place->path);
        const oq_status st = write_part(q, &q->parts[i], path, false);
        oq_free(q->env, path);
        OQ_TRY(st);
    }
    return copy_others(q, place->staged);
}

/* ---- checking ------------------------------------------------------------------------------------------ */

typedef struct checking {
    oq_env *env;
    const oq_quantize_part *p;
    const oq_inspect_part *written;
    oq_status *status;
    const oq_inspect_layer **layers; /* per job; NULL: not encoded */
    uint64_t *hash;
} checking;

static void check_job(void *user, int64_t i, int worker)
{
    const checking *c = user;
    (void)worker;
    if (!c->layers[i]) return;
    c->status[i] = oq_rewrite_layer_hash(c->env, c->layers[i], &c->hash[i]);
    oq_inspect_layer_forget(c->written->ckpt, c->layers[i]);
}

static oq_status find_written(const checking *c, size_t i)
{
    const oq_rewrite_job *job = &c->p->rewrite.jobs[i];
    if (!job->to.scheme.weight) return OQ_OK;
    for (size_t l = 0; l < c->written->n_layers && !c->layers[i]; l++)
        if (strcmp(c->written->layers[l].name, job->name) == 0) c->layers[i] = &c->written->layers[l];
    if (c->layers[i]) return OQ_OK;
    return oq_fail(c->env, OQ_E_FORMAT,
                   "%s: layer '%s' was written, but is not found when the output is read", c->p->name,
                   job->name);
}

/* A layout may leave activations to its reader, who then has the last word about them. */
static void tell_activations(const checking *c)
{
    const oq_rewrite_job *first = NULL;
    oq_scheme read = {0};
    size_t n = 0;
    for (size_t i = 0; i < c->p->rewrite.n_jobs; i++) {
        if (!c->layers[i]) continue;
        const oq_part_source *s = &c->layers[i]->source;
        const oq_scheme *to = &c->p->rewrite.jobs[i].to.scheme;
        if (s->act == to->act && s->act_scale == to->act_scale) continue;
        if (oq_act_is_static(to->act_scale)) continue; /* an error of its own */
        if (!n++)
            first = &c->p->rewrite.jobs[i],
            read = (oq_scheme){.weight = s->format, .act = s->act, .act_scale = s->act_scale};
    }
    if (!n) return;
    char wanted[128], got[128];
    oq_scheme_describe(&first->to.scheme, wanted, sizeof wanted);
    oq_scheme_describe(&read, got, sizeof got);
    oq_log(c->env, OQ_LOG_WARN,
           "%s: files of layout '%s' are run as %s, not as %s (%zu layers, the first is '%s')", c->p->name,
           c->p->layout->name, got, wanted, n, first->name);
}

/* A static scale that is read is the one that was measured: a layout of divisors has rounded it twice. */
static oq_status check_input_scale(const checking *c, size_t i)
{
    const oq_write_layer *to = &c->p->rewrite.jobs[i].to;
    const oq_part_source *s = &c->layers[i]->source;
    float read = 0;
    if (!oq_act_is_static(to->scheme.act_scale)) return OQ_OK;
    if (s->act == to->scheme.act && s->act_scale == to->scheme.act_scale &&
        s->plane[OQ_PLANE_INPUT_SCALE].tensor)
        oq_plane_read(&s->plane[OQ_PLANE_INPUT_SCALE], &read, sizeof read, to->n, to->k);
    if (fabsf(read - to->input_scale) <= 0x1p-22f * to->input_scale) return OQ_OK;
    return oq_fail(
        c->env, OQ_E_FORMAT,
        "%s: layer '%s' was written with a static activation scale of %.9g and reads back with %.9g",
        c->p->name, to->name, (double)to->input_scale, (double)read);
}

static oq_status check_factors(const checking *c, size_t i)
{
    const oq_write_layer *to = &c->p->rewrite.jobs[i].to;
    const oq_plane_source *s = &c->layers[i]->source.plane[OQ_PLANE_SMOOTH];
    float *read = NULL;
    if (!to->scheme.smooth) return OQ_OK;
    OQ_TRY(oq_new(c->env, (size_t)to->k, sizeof *read, "check", &read));
    if (s->tensor) oq_plane_read(s, read, (size_t)to->k * sizeof *read, to->n, to->k);
    const bool same = memcmp(read, to->smooth, (size_t)to->k * sizeof *read) == 0;
    oq_free(c->env, read);
    if (same) return OQ_OK;
    return oq_fail(c->env, OQ_E_FORMAT, "%s: layer '%s' reads back with other factors of its input",
                   c->p->name, to->name);
}

static oq_status compare_hashes(const checking *c)
{
    tell_activations(c);
    for (size_t i = 0; i < c->p->rewrite.n_jobs; i++) {
        const oq_rewrite_job *job = &c->p->rewrite.jobs[i];
        if (!c->layers[i]) continue;
        if (c->status[i] != OQ_OK || c->hash[i] != job->hash)
            return oq_fail(c->env, OQ_E_FORMAT,
                           "%s: layer '%s' reads back as other values than were encoded (%s as %s)",
                           c->p->name, job->name, c->p->layout->name, c->layers[i]->source.format->name);
        OQ_TRY(check_input_scale(c, i));
        OQ_TRY(check_factors(c, i));
    }
    return OQ_OK;
}

static oq_status check_part(oq_quantize *q, const oq_quantize_part *p, const oq_inspect_part *written)
{
    oq_env *env = q->env;
    const size_t n = p->rewrite.n_jobs;
    checking c = {.env = env, .p = p, .written = written};
    oq_status st = oq_new(env, n + 1, sizeof *c.status, "check", &c.status);
    if (st == OQ_OK) st = oq_new(env, n + 1, sizeof *c.layers, "check", &c.layers);
    if (st == OQ_OK) st = oq_new(env, n + 1, sizeof *c.hash, "check", &c.hash);
    for (size_t i = 0; st == OQ_OK && i < n; i++) st = find_written(&c, i);
    if (st == OQ_OK) {
        oq_pool_run(env->pool, (int64_t)n, check_job, &c);
        st = compare_hashes(&c);
    }
    oq_free(env, c.hash);
    oq_free(env, (void *)c.layers);
    oq_free(env, c.status);
    return st;
}

static oq_status first_problem(const oq_inspect *written)
{
    for (size_t i = 0; i < oq_json_size(written->problems); i++) {
        const oq_json *problem = oq_json_at(written->problems, i);
        if (strcmp(oq_json_string(oq_json_get(problem, "severity")), "error") == 0)
            return oq_fail(written->env, OQ_E_FORMAT, "the output does not read back: %s",
                           oq_json_string(oq_json_get(problem, "message")));
    }
    return OQ_OK;
}

/* The output as any user would open it; every layer's values are those that were encoded, to the bit. */
static oq_status check_all(oq_quantize *q, const oq_output_place *place)
{
    oq_inspect written;
    char *file = place->is_file ? oq_path_join(q->env, place->staged, oq_path_leaf(place->path)) : NULL;
    oq_status st = oq_inspect_open(q->env, file ? file : place->staged, NULL, &written);
    for (size_t i = 0; st == OQ_OK && i < written.n_parts; i++)
        if (written.parts[i].ckpt) st = oq_inspect_quant(&written, &written.parts[i]);
    if (st == OQ_OK) st = first_problem(&written);
    for (size_t i = 0; st == OQ_OK && i < q->n_parts; i++)
        for (size_t j = 0; st == OQ_OK && j < written.n_parts; j++)
            if (!written.parts[j].name || strcmp(written.parts[j].name, q->parts[i].name) == 0)
                st = check_part(q, &q->parts[i], &written.parts[j]);
    oq_inspect_deinit(&written);
    oq_free(q->env, file);
    return st;
}

/* ---- the report ---------------------------------------------------------------------------------------- */

static double bits_per_weight(const oq_rewrite_job *job)
{
    size_t bytes = 0;
    for (int i = 0; i < job->n_out; i++) bytes += job->out[i]->bytes;
    return 8.0 * (double)bytes / ((double)job->n * (double)job->k);
}

static int compare_snr(const void *a, const void *b)
{
    const double x = oq_rewrite_snr_db(*(oq_rewrite_job *const *)a);
    const double y = oq_rewrite_snr_db(*(oq_rewrite_job *const *)b);
    return x < y ? -1 : x > y;
}

static const char *const rounding_words[] = {
    [OQ_COMPENSATED] = "compensated",
    [OQ_NEAREST_NO_INPUTS] = "to nearest: the prompts do not reach it",
    [OQ_NEAREST_NOT_FINITE] = "to nearest: its inputs are too large for sums of their products",
    [OQ_NEAREST_INDEFINITE] = "to nearest: no damping makes its inputs' products invertible",
};

static oq_json *rounding_json(const oq_compensation_result *r)
{
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "how", oq_json_new_string(rounding_words[r->how]));
    if (r->how != OQ_COMPENSATED) return o;
    oq_json_set(o, "damping", oq_json_new_real(r->damping));
    oq_json_set(o, "nearest_rows", oq_json_new_int(r->nearest_rows));
    if (r->noise > 0) oq_json_set(o, "output_snr_db", oq_json_new_real(10 * log10(r->signal / r->noise)));
    if (r->nearest_noise > 0)
        oq_json_set(o, "nearest_output_snr_db", oq_json_new_real(10 * log10(r->signal / r->nearest_noise)));
    return o;
}

static oq_json *layer_json(const oq_rewrite_job *job, bool dry)
{
    oq_json *o = oq_json_new_object();
    char scheme[128];
    oq_scheme_describe(&job->to.scheme, scheme, sizeof scheme);
    oq_json_set(o, "name", oq_json_new_string(job->name));
    oq_json_set(o, "n", oq_json_new_int(job->n));
    oq_json_set(o, "k", oq_json_new_int(job->k));
    oq_json_set(o, "format", oq_json_new_string(job->to.scheme.weight->name));
    oq_json_set(o, "scheme", oq_json_new_string(scheme));
    oq_json_set(o, "bits_per_weight", oq_json_new_real(bits_per_weight(job)));
    if (!dry) oq_json_set(o, "snr_db", oq_json_new_real(oq_rewrite_snr_db(job)));
    if (!dry && oq_act_is_static(job->to.scheme.act_scale))
        oq_json_set(o, "input_scale", oq_json_new_real((double)job->to.input_scale));
    if (!dry && job->compensate) oq_json_set(o, "rounding", rounding_json(&job->compensation));
    return o;
}

/* How near layers' outputs stay on the prompts, in the mean of their decibels; who was rounded to nearest after all. */
static void put_rounding(const oq_quantize *q, const oq_quantize_part *p, oq_strbuf *text)
{
    double compensated = 0, nearest = 0;
    size_t n = 0, left = 0;
    const oq_rewrite_job *first = NULL;
    for (size_t i = 0; i < p->rewrite.n_jobs; i++) {
        const oq_rewrite_job *job = &p->rewrite.jobs[i];
        const oq_compensation_result *r = &job->compensation;
        if (!job->compensate) continue;
        if (r->how != OQ_COMPENSATED) {
            if (!left++) first = job;
        } else if (r->noise > 0 && r->nearest_noise > 0) {
            compensated += 10 * log10(r->signal / r->noise);
            nearest += 10 * log10(r->signal / r->nearest_noise);
            n++;
        }
    }
    if (n)
        oq_strbuf_printf(
            text, "  outputs of %zu compensated layers on the prompts: %.1f dB, rounded to nearest %.1f dB\n",
            n, compensated / (double)n, nearest / (double)n);
    if (left)
        oq_log(q->env, OQ_LOG_WARN, "%s: %zu layers were rounded to nearest, the first is '%s': %s", p->name,
               left, first->name, rounding_words[first->compensation.how]);
}

static void put_layers(const oq_quantize *q, const oq_rewrite_job **jobs, size_t n, bool dry, oq_strbuf *text)
{
    const bool all = oq_options_flag(q->options, "verbose");
    const size_t shown = all || n < 3 ? n : 3;
    if (!dry && n && !all) oq_strbuf_printf(text, "  worst layers by signal to noise of their weights:\n");
    for (size_t i = 0; i < shown && (all || !dry); i++) {
        oq_strbuf_printf(text, "  %-48s %-22s %6.2f bits", jobs[i]->name, jobs[i]->to.scheme.weight->name,
                         bits_per_weight(jobs[i]));
        if (!dry) oq_strbuf_printf(text, " %6.1f dB", oq_rewrite_snr_db(jobs[i]));
        if (!dry && oq_act_is_static(jobs[i]->to.scheme.act_scale))
            oq_strbuf_printf(text, "  activations / %.4g", (double)jobs[i]->to.input_scale);
        oq_strbuf_putc(text, '\n');
    }
}

static oq_status report_part(const oq_quantize *q, const oq_quantize_part *p, bool dry, oq_json *out,
                             oq_strbuf *text)
{
    const oq_rewrite_job **jobs = NULL;
    oq_json *o = oq_json_new_object(), *layers = oq_json_new_array();
    double signal = 0, noise = 0, weights = 0;
    size_t bytes = 0, n = 0;
    OQ_TRY(oq_new(q->env, p->rewrite.n_jobs + 1, sizeof *jobs, "report", &jobs));
    for (size_t i = 0; i < p->rewrite.n_jobs; i++) {
        const oq_rewrite_job *job = &p->rewrite.jobs[i];
        if (!job->to.scheme.weight) continue;
        jobs[n++] = job;
        signal += job->signal, noise += job->noise;
        weights += (double)job->n * (double)job->k;
        for (int t = 0; t < job->n_out; t++) bytes += job->out[t]->bytes;
        oq_json_append(layers, layer_json(job, dry));
    }
    if (n) qsort(jobs, n, sizeof *jobs, compare_snr);
    const double bits = n ? 8.0 * (double)bytes / weights : 0;
    const double snr = noise > 0 ? 10 * log10(signal / noise) : INFINITY;
    oq_json_set(o, "layout", oq_json_new_string(p->layout ? p->layout->name : NULL));
    oq_json_set(o, "quantized_layers", oq_json_new_int((int64_t)n));
    oq_json_set(o, "plain_layers", oq_json_new_int((int64_t)p->n_plain));
    oq_json_set(o, "bits_per_weight", oq_json_new_real(bits));
    if (!dry && n) oq_json_set(o, "snr_db", oq_json_new_real(snr));
    oq_json_set(o, "bytes", oq_json_new_int((int64_t)p->rewrite.bytes));
    oq_json_set(o, "source_bytes", oq_json_new_int((int64_t)p->part->ckpt->bytes));
    oq_json_set(o, "layers", layers);
    oq_json_set(out, p->name, o);
    oq_strbuf_printf(text, "%s: %zu layers%s%s, %zu plain; ", p->name, n, p->layout ? " as " : "",
                     p->layout ? p->layout->name : "", p->n_plain);
    oq_strbuf_put_bytes(text, p->part->ckpt->bytes);
    oq_strbuf_puts(text, " -> ");
    oq_strbuf_put_bytes(text, p->rewrite.bytes);
    if (n) oq_strbuf_printf(text, ", %.2f bits a weight", bits);
    if (!dry && n) oq_strbuf_printf(text, ", %.1f dB", snr);
    oq_strbuf_putc(text, '\n');
    put_layers(q, jobs, n, dry, text);
    if (!dry) put_rounding(q, p, text);
    oq_free(q->env, (void *)jobs);
    return OQ_OK;
}

static void put_calibration(const oq_quantize *q, bool dry, oq_json *json, oq_strbuf *text)
{
    if (!q->calibrated.prompts) return;
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "prompts", oq_json_new_int(q->calibrated.prompts));
    oq_json_set(o, "steps", oq_json_new_int(q->calibrated.steps));
    oq_json_set(o, "width", oq_json_new_int(q->calibrated.width));
    oq_json_set(o, "height", oq_json_new_int(q->calibrated.height));
    oq_json_set(o, "seed", oq_json_new_int((int64_t)q->calibrated.seed));
    oq_json_set(o, "static_scales", oq_json_new_int((int64_t)q->calibrated.scales));
    oq_json_set(o, "smoothed_layers", oq_json_new_int((int64_t)q->calibrated.smoothed));
    oq_json_set(o, "compensated_layers", oq_json_new_int((int64_t)q->calibrated.compensated));
    oq_json_set(o, "compensation_runs", oq_json_new_int(q->calibrated.turns));
    oq_json_set(json, "calibration", o);
    oq_strbuf_printf(text, "calibration%s: %d %s, %d steps, %lld x %lld, seed %llu", dry ? " (not run)" : "",
                     q->calibrated.prompts, q->calibrated.prompts == 1 ? "prompt" : "prompts",
                     q->calibrated.steps, (long long)q->calibrated.width, (long long)q->calibrated.height,
                     (unsigned long long)q->calibrated.seed);
    if (q->calibrated.scales) oq_strbuf_printf(text, "; %zu static activation scales", q->calibrated.scales);
    if (q->calibrated.smoothed) oq_strbuf_printf(text, "; %zu smoothed layers", q->calibrated.smoothed);
    if (q->calibrated.compensated)
        oq_strbuf_printf(text, "; rounding of %zu layers", q->calibrated.compensated);
    if (q->calibrated.turns > 1) oq_strbuf_printf(text, ", in %d runs", q->calibrated.turns);
    oq_strbuf_putc(text, '\n');
}

static oq_status report(const oq_quantize *q, const char *output, bool dry, oq_report **out)
{
    oq_json *json = oq_json_new_object(), *components = oq_json_new_object();
    oq_strbuf text;
    oq_strbuf_init(&text, q->env);
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < q->n_parts; i++)
        st = report_part(q, &q->parts[i], dry, components, &text);
    oq_json_set(json, "output", oq_json_new_string(dry ? NULL : output));
    oq_json_set(json, "verified", oq_json_new_bool(!dry));
    oq_json_set(json, "components", components);
    put_calibration(q, dry, json, &text);
    if (dry)
        oq_strbuf_puts(&text, "dry run: nothing is written\n");
    else
        oq_strbuf_printf(&text, "%s: written, read back, every layer as encoded\n", output);
    if (st == OQ_OK) return oq_report_finish(q->env, json, &text, true, out);
    oq_strbuf_deinit(&text);
    oq_json_free(json);
    return st;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static oq_status quantize(oq_quantize *q, const char *path, oq_report **out)
{
    const bool dry = oq_options_flag(q->options, "dry-run");
    const char *output = oq_options_text(q->options, "output", NULL);
    oq_output_place place = {0};
    OQ_TRY(oq_quantize_layers(q));
    if (dry) {
        OQ_TRY(oq_quantize_calibrate(q, true));
        return report(q, output, true, out);
    }
    if (!output) return oq_fail(q->env, OQ_E_ARG, "quantize needs a place for its output: --output PATH");
    OQ_TRY(oq_output_begin(q->env, path, output, oq_options_flag(q->options, "force"),
                           q->source.folder != NULL, &place));
    oq_status st = oq_quantize_calibrate(q, false);
    if (st == OQ_OK) st = write_all(q, &place);
    if (st == OQ_OK) st = check_all(q, &place);
    if (st == OQ_OK) st = report(q, output, false, out);
    if (st == OQ_OK) st = oq_output_commit(q->env, &place);
    oq_output_abort(q->env, &place);
    return st;
}

static oq_status command_quantize(oq_env *env, oq_options *options, oq_report **out)
{
    oq_quantize q;
    const size_t n = oq_options_n_arguments(options);
    if (n != 1)
        return oq_fail(
            env, OQ_E_ARG,
            "quantize needs one source (a model, a component's folder or a weight file), %zu are given", n);
    const char *path = oq_options_argument(options, 0);
    oq_status st = oq_quantize_open(env, options, path, &q);
    if (st == OQ_OK) st = quantize(&q, path, out);
    oq_quantize_deinit(&q);
    return st;
}

const oq_command oq_command_quantize = {
    .info = {"quantize", "SOURCE --quantization SPEC --output PATH [flags]",
             "write weights in a producer's quantized layout, read them back, tell each layer's loss"},
    .run = command_quantize,
};
