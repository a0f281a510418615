/* request.c -- one generation with every default filled in: the flag, else omniq.json, else the family's row.
 */
#include "engine/engine.h"

#include "base/size.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OQ_PREVIEWS     4 /* where a file for them is named and their number is not */
#define MAX_PROMPT_FILE ((size_t)16 << 20)

/* The option set that decides `name`: the command's, else the model folder's, else NULL. */
static const oq_options *decider(const oq_model *model, const oq_options *options, const char *name)
{
    if (oq_options_given(options, name)) return options;
    return model->defaults && oq_options_given(model->defaults, name) ? model->defaults : NULL;
}

static int64_t int_of(const oq_model *model, const oq_options *options, const char *name, int64_t fallback)
{
    const oq_options *o = decider(model, options, name);
    return o ? oq_options_int(o, name, fallback) : fallback;
}

static double real_of(const oq_model *model, const oq_options *options, const char *name, double fallback)
{
    const oq_options *o = decider(model, options, name);
    return o ? oq_options_real(o, name, fallback) : fallback;
}

static const char *text_of(const oq_model *model, const oq_options *options, const char *name,
                           const char *fallback)
{
    const oq_options *o = decider(model, options, name);
    return o ? oq_options_text(o, name, fallback) : fallback;
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
        n += at[0] != '\n' && at[0] != '\r';
    return n;
}

/* Every line that is not empty, behind the prompts of the flags. */
static oq_status add_file_lines(oq_env *env, oq_arena *arena, const char *path, char *text,
                                const char **prompts, size_t *n)
{
    for (char *at = text; *at;) {
        char *end = at + strcspn(at, "\n");
        const bool last = *end == '\0';
        size_t length = (size_t)(end - at);
        if (length && at[length - 1] == '\r') length--;
        if (length) {
            prompts[*n] = oq_arena_strndup(arena, at, length);
            if (!prompts[(*n)++]) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for its prompts", path);
        }
        at = last ? end : end + 1;
    }
    return OQ_OK;
}

static oq_status collect_prompts(oq_env *env, const oq_options *options, oq_arena *arena, oq_request *out)
{
    const char *path = oq_options_text(options, "prompt-file", NULL);
    const size_t flags = oq_options_count(options, "prompt");
    char *text = NULL;
    size_t bytes = 0, n = 0;
    if (path) OQ_TRY(oq_file_read(env, path, MAX_PROMPT_FILE, &text, &bytes));
    if (text && strlen(text) != bytes) {
        const oq_status refused =
            oq_fail(env, OQ_E_ARG, "%s: is no text, byte %zu is zero", path, strlen(text));
        oq_free(env, text);
        return refused;
    }
    const size_t most = flags + (text ? count_lines(text) : 0) + 1;
    const char **prompts = NULL;
    oq_status st = oq_arena_new(arena, most, sizeof *prompts, "prompts", &prompts);
    for (size_t i = 0; st == OQ_OK && i < flags; i++) {
        prompts[n] = oq_arena_strdup(arena, oq_options_item(options, "prompt", i));
        if (!prompts[n++]) st = oq_fail(env, OQ_E_NOMEM, "prompts: no memory");
    }
    if (st == OQ_OK && text) st = add_file_lines(env, arena, path, text, prompts, &n);
    oq_free(env, text);
    if (st == OQ_OK && path && n == flags) st = oq_fail(env, OQ_E_ARG, "%s: holds no prompt", path);
    if (st == OQ_OK && n == 0) prompts[n++] = ""; /* plan and measure: a request without words */
    out->prompts = prompts;
    out->n_prompts = (int)n;
    return st;
}

/* Options that the family knows nothing of would be without effect. */
static oq_status check_takes(oq_env *env, const oq_model *model, const oq_options *options)
{
    static const struct {
        const char *option;
        unsigned bit;
    } rows[] = {{"num-frames", OQ_TAKES_FRAMES},           {"fps", OQ_TAKES_FRAMES},
                {"guidance-scale-2", OQ_TAKES_GUIDANCE_2}, {"flow-shift", OQ_TAKES_FLOW_SHIFT},
                {"vae-frames", OQ_TAKES_FRAMES},           {"image", OQ_TAKES_IMAGE},
                {"true-cfg-scale", OQ_TAKES_TRUE_CFG},     {"strength", OQ_TAKES_STRENGTH}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const bool one =
            strcmp(rows[i].option, "num-frames") == 0 && oq_options_int(options, "num-frames", 1) == 1;
        if (!oq_options_given(options, rows[i].option) || (model->type->takes & rows[i].bit) || one) continue;
        return oq_fail(env, OQ_E_ARG, "'%s' is given, which %s (%s) does not take", rows[i].option,
                       model->type->name, model->type->task);
    }
    return OQ_OK;
}

/* What guidance alone would use, of a family that is guided by the guidance scale. */
static oq_status check_guidance(oq_env *env, const oq_model *model, const oq_options *options,
                                const oq_request *r)
{
    static const char *const rows[] = {"negative-prompt", "guidance-scale-2", "cfg-normalization",
                                       "cfg-truncation"};
    const unsigned takes = model->type->takes;
    const double least = takes & OQ_GUIDED_ABOVE_1 ? 1 : 0;
    if (!(takes & (OQ_GUIDED_ABOVE_0 | OQ_GUIDED_ABOVE_1))) return OQ_OK;
    for (size_t i = 0; i < OQ_COUNT(rows) && !(r->guidance > least); i++) {
        const char *text = oq_options_text(options, rows[i], NULL);
        if (!oq_options_given(options, rows[i]) || (text && !*text)) continue;
        return oq_fail(env, OQ_E_ARG,
                       "a %s has no effect with guidance scale %.7g: give --guidance-scale above %g",
                       i == 0 ? "negative prompt" : rows[i], r->guidance, least);
    }
    if (r->guidance > least && (takes & OQ_GUIDED_IF_ASKED) && !r->negative &&
        oq_options_given(options, "guidance-scale"))
        oq_log(env, OQ_LOG_WARN,
               "guidance scale %.7g has no effect without a negative prompt: give --negative-prompt ' '",
               r->guidance);
    return OQ_OK;
}

static oq_status copy_image(oq_env *env, const char *path, oq_arena *arena, oq_image *out)
{
    oq_image image = {0};
    uint8_t *pixels = NULL;
    OQ_TRY(oq_image_read(env, path, &image));
    const size_t bytes = (size_t)image.width * (size_t)image.height * 3;
    const oq_status st = oq_arena_new(arena, bytes, 1, path, &pixels);
    if (st == OQ_OK) {
        memcpy(pixels, image.pixels, bytes);
        *out = (oq_image){.width = image.width, .height = image.height, .pixels = pixels};
    }
    oq_image_deinit(env, &image);
    return st;
}

static oq_status collect_images(oq_env *env, const oq_model *model, const oq_options *options,
                                oq_arena *arena, oq_request *out)
{
    const size_t n = oq_options_count(options, "image");
    const bool asked = oq_options_given(options, "prompt") || oq_options_given(options, "prompt-file");
    if (n == 0 && asked && (model->type->takes & OQ_NEEDS_IMAGE))
        return oq_fail(env, OQ_E_ARG, "%s (%s) needs a picture to begin with: --image FILE",
                       model->type->name, model->type->task);
    if (n == 0 && oq_options_given(options, "strength"))
        return oq_fail(env, OQ_E_ARG, "a strength has no effect without a picture: --image FILE");
    if (n > 1 && !(model->type->takes & OQ_TAKES_IMAGES))
        return oq_fail(env, OQ_E_ARG, "%zu images are given, %s (%s) takes one", n, model->type->name,
                       model->type->task);
    if (n == 0) return OQ_OK;
    oq_image *images = NULL;
    OQ_TRY(oq_arena_new(arena, n, sizeof *images, "pictures", &images));
    for (size_t i = 0; i < n; i++)
        OQ_TRY(copy_image(env, oq_options_item(options, "image", i), arena, &images[i]));
    out->images = images;
    out->n_images = (int)n;
    return OQ_OK;
}

/* Where no size is asked for: the first picture's, no larger in area than the family's own, cut to multiples. */
static void size_by_image(const oq_model *model, const oq_options *options, const oq_pipeline_defaults *d,
                          oq_request *r)
{
    const bool wide = oq_options_given(options, "width"), high = oq_options_given(options, "height");
    if (r->n_images == 0 || !(model->type->takes & OQ_SIZED_BY_IMAGE)) return;
    if (model->type->size_by_images) {
        int64_t width, height;
        model->type->size_by_images(model->self, r, &width, &height);
        r->width = wide ? r->width : width;
        r->height = high ? r->height : height;
        return;
    }
    if (wide || high) return;
    const double area = (double)r->width * (double)r->height,
                 own = (double)r->images[0].width * (double)r->images[0].height,
                 scale = own > area ? sqrt(area / own) : 1;
    const int64_t multiple = d->multiple_px > 0 ? d->multiple_px : 1;
    r->width = (int64_t)((double)r->images[0].width * scale) / multiple * multiple;
    r->height = (int64_t)((double)r->images[0].height * scale) / multiple * multiple;
}

static oq_status parse_sigmas(oq_env *env, const char *csv, oq_arena *arena, oq_request *out)
{
    size_t n = 1;
    for (const char *at = csv; (at = strchr(at, ',')); at++) n++;
    float *sigmas = NULL;
    OQ_TRY(oq_arena_new(arena, n, sizeof *sigmas, "--sigmas", &sigmas));
    const char *at = csv;
    for (size_t i = 0; i < n; i++) {
        char *end = NULL;
        sigmas[i] = strtof(at, &end);
        while (*end == ' ') end++;
        if (end == at || (*end != ',' && *end != '\0') || !isfinite(sigmas[i]) || sigmas[i] <= 0.0f ||
            sigmas[i] > 1.0f)
            return oq_fail(env, OQ_E_ARG, "--sigmas '%s': value %zu of %zu is not a number in (0, 1]", csv,
                           i + 1, n);
        if (i && sigmas[i] >= sigmas[i - 1])
            return oq_fail(env, OQ_E_ARG, "--sigmas '%s': value %zu of %zu does not fall", csv, i + 1, n);
        at = *end ? end + 1 : end;
    }
    out->sigmas = sigmas;
    out->n_sigmas = (int)n;
    out->steps = (int)n;
    return OQ_OK;
}

static int64_t vae_size(const oq_model *model)
{
    const oq_folder_component *vae = oq_folder_find(model->folder, "vae");
    return vae ? oq_json_int(oq_json_get(vae->config, "sample_size"), 1024) : 1024;
}

oq_status oq_request_make(oq_env *env, const oq_model *model, const oq_options *options, oq_arena *arena,
                          oq_request *out)
{
    oq_pipeline_defaults d = model->type->defaults;
    if (model->type->defaults_for) model->type->defaults_for(model->self, &d);
    const int64_t width = d.width ? d.width : vae_size(model), height = d.height ? d.height : vae_size(model);
    *out = (oq_request){
        .negative = text_of(model, options, "negative-prompt", NULL),
        .width = int_of(model, options, "width", width),
        .height = int_of(model, options, "height", height),
        .steps = (int)int_of(model, options, "steps", d.steps),
        .guidance = real_of(model, options, "guidance-scale", d.guidance),
        .seed = (uint64_t)int_of(model, options, "seed", 0),
        .images_per_prompt = (int)int_of(model, options, "batch-count", 1),
        .shared_noise = strcmp(text_of(model, options, "batch-noise", "own"), "shared") == 0,
        .max_sequence_length = (int)int_of(model, options, "max-sequence-length", d.max_sequence_length),
        .cfg_normalization = real_of(model, options, "cfg-normalization", 0.0),
        .cfg_truncation = real_of(model, options, "cfg-truncation", 1.0),
        .frames = int_of(model, options, "num-frames", d.frames ? d.frames : 1),
        .fps = real_of(model, options, "fps", d.fps),
        .guidance_2 = real_of(model, options, "guidance-scale-2", (double)NAN),
        .vae_tile = int_of(model, options, "vae-tile", 0),
        .vae_piece = (int)int_of(model, options, "vae-frames", 0),
        .flow_shift = real_of(model, options, "flow-shift", 0.0),
        .true_cfg = real_of(model, options, "true-cfg-scale", 1.0),
        .strength = real_of(model, options, "strength", 0.6),
        .previews =
            (int)int_of(model, options, "previews", oq_options_given(options, "preview") ? OQ_PREVIEWS : 0),
    };
    OQ_TRY(check_takes(env, model, options));
    OQ_TRY(collect_prompts(env, options, arena, out));
    OQ_TRY(collect_images(env, model, options, arena, out));
    size_by_image(model, options, &d, out);
    OQ_TRY(check_guidance(env, model, options, out));
    const char *sigmas = text_of(model, options, "sigmas", NULL);
    if (sigmas) OQ_TRY(parse_sigmas(env, sigmas, arena, out));
    OQ_TRY(oq_plan_check_steps(model->plan, out->steps));
    return model->type->check(env, model->self, out);
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

static size_t machine_memory(const oq_model *model)
{
    if (model->plan->limit_bytes) return model->plan->limit_bytes;
    if (model->backend->host_memory) return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    oq_device_info info = {0};
    model->backend->info(model->device, &info);
    return info.memory_bytes;
}

oq_status oq_request_measure(oq_env *env, const oq_model *model, const oq_request *request,
                             size_t *scratch_bytes, size_t *phases)
{
    oq_exec ex = {.env = env,
                  .backend = model->backend,
                  .device = model->device,
                  .ops = model->backend->ops(model->device),
                  .compute = model->plan->compute,
                  .measure = true};
    OQ_TRY(model->type->run(&ex, model->self, request, NULL));
    *scratch_bytes = ex.peak;
    if (phases) memcpy(phases, ex.peaks, sizeof ex.peaks);
    return OQ_OK;
}

bool oq_request_fits(const oq_model *model, const oq_request *request, size_t scratch_bytes, char *why,
                     size_t size)
{
    const size_t have = machine_memory(model), weights = oq_plan_device_bytes(model->plan);
    size_t need;
    if (oq_size_add(scratch_bytes, weights, &need) && (!have || need <= have)) return true;
    snprintf(why, size,
             "%lld x %lld pixels need %.2f GiB of scratch and %.2f GiB of weights, this machine has %.2f GiB",
             (long long)request->width, (long long)request->height, (double)scratch_bytes / 1073741824.0,
             (double)weights / 1073741824.0, (double)have / 1073741824.0);
    return false;
}
