/* generate.c -- one request over a loaded model: measure, one block of scratch, the pipeline's walk,
 * pictures. */
#include "engine/command.h"

#include "base/pool.h"
#include "base/size.h"
#include "media/video.h"

static oq_status media_new(oq_env *env, const oq_request *request, oq_media **out)
{
    oq_media *media = NULL;
    size_t pixels = 0;
    const size_t count = (size_t)request->n_prompts * (size_t)request->images_per_prompt;
    OQ_TRY(oq_new(env, 1, sizeof *media, "pictures", &media));
    *media = (oq_media){.env = env,
                        .width = request->width,
                        .height = request->height,
                        .count = (int)count,
                        .frames = request->frames > 1 ? request->frames : 1,
                        .fps = request->fps,
                        .n_steps = request->steps};
    oq_status st = OQ_OK;
    if (!oq_size_mul((size_t)request->width, (size_t)request->height * 3, &pixels) ||
        !oq_size_mul(pixels, (size_t)media->frames, &pixels))
        st = oq_fail(env, OQ_E_NOMEM, "%lld x %lld pixels do not fit in memory", (long long)request->width,
                     (long long)request->height);
    if (st == OQ_OK) st = oq_new(env, count, sizeof *media->seeds, "pictures", &media->seeds);
    if (st == OQ_OK) st = oq_new(env, count, pixels, "pictures", &media->pixels);
    if (st == OQ_OK)
        st = oq_new(env, (size_t)request->steps, sizeof(double), "step times", &media->timing.step_s);
    if (st != OQ_OK) {
        oq_media_free(media);
        return st;
    }
    for (size_t i = 0; i < count; i++)
        media->seeds[i] = request->shared_noise ? request->seed : request->seed + i;
    media->timing.pixels = media->pixels;
    *out = media;
    return OQ_OK;
}

enum {
    LEAST_REPEATS = 6
}; /* steps of a request that recording pays for: it takes as long as a few launches save */

/* Steps in which every layer does the same have the same number: what recorded steps are told apart by. */
static oq_status step_kinds(oq_env *env, const oq_model *model, const oq_request *request, uint64_t **out)
{
    OQ_TRY(oq_new(env, (size_t)request->steps, sizeof **out, "step kinds", out));
    for (int i = 0; i < request->steps; i++) (*out)[i] = oq_plan_step_kind(model->plan, i);
    return OQ_OK;
}

typedef struct looking { /* who looks at the pictures before they are done */
    oq_env *env;
    const oq_run_hooks *hooks; /* NULL: the environment alone */
    const oq_media *media;     /* of the request: its shape and seeds */
} looking;

/* An oq_preview_sink: the pixels as media, for as long as the callbacks last. */
static oq_status show_preview(void *user, const uint8_t *pixels, int step, int steps)
{
    const looking *l = user;
    oq_media media = *l->media;
    media.pixels = (uint8_t *)(uintptr_t)pixels;
    const oq_preview preview = {.media = &media, .step = step, .steps = steps};
    if (l->hooks && l->hooks->preview) l->hooks->preview(l->hooks->preview_user, &preview);
    if (l->env->params.preview) l->env->params.preview(l->env->params.preview_user, &preview);
    return oq_check_canceled(l->env);
}

static oq_status run(oq_env *env, const oq_model *model, const oq_request *request, const oq_run_hooks *hooks,
                     oq_media *media)
{
    void *scratch = NULL;
    char lacks[192];
    OQ_TRY(oq_request_measure(env, model, request, &media->scratch_bytes, NULL));
    if (!oq_request_fits(model, request, media->scratch_bytes, lacks, sizeof lacks))
        return oq_fail(env, OQ_E_NOMEM, "%s", lacks);
    uint64_t *kinds = NULL;
    if (model->backend->graph_replay && !model->plan->stream_bytes && request->steps >= LEAST_REPEATS)
        OQ_TRY(step_kinds(env, model, request, &kinds));
    oq_status st = model->backend->buffer_new(env, model->device, media->scratch_bytes, &scratch);
    if (st != OQ_OK) {
        oq_free(env, kinds);
        return st;
    }
    oq_exec ex = {.env = env,
                  .backend = model->backend,
                  .device = model->device,
                  .ops = model->backend->ops(model->device),
                  .compute = model->plan->compute,
                  .base = scratch,
                  .size = media->scratch_bytes,
                  .step_kinds = kinds};
    looking look = {.env = env, .hooks = hooks, .media = media};
    if (env->params.preview || (hooks && hooks->preview)) ex.preview = show_preview, ex.preview_user = &look;
    if (hooks) {
        ex.observer = hooks->observer;
        ex.attention_observer = hooks->attention_observer;
        ex.observer_user = hooks->observer_user;
        ex.trace = hooks->trace;
        ex.trace_user = hooks->trace_user;
    }
    oq_pool *const pool = model->backend->host_memory ? env->pool : NULL; /* who computes stays awake */
    oq_pool_hot_begin(pool);
    st = model->type->run(&ex, model->self, request, &media->timing);
    if (st == OQ_OK) st = model->backend->sync(env, model->device);
    oq_pool_hot_end(pool);
    if (kinds) model->backend->graph_clear(model->device);
    model->backend->buffer_free(env, model->device, scratch);
    oq_free(env, kinds);
    return st;
}

oq_status oq_generate_request(oq_env *env, const oq_model *model, const oq_request *request,
                              const oq_run_hooks *hooks, oq_media **out)
{
    oq_media *media = NULL;
    *out = NULL;
    OQ_TRY(media_new(env, request, &media));
    const oq_status st = run(env, model, request, hooks, media);
    if (st != OQ_OK) {
        oq_media_free(media);
        return st;
    }
    *out = media;
    return OQ_OK;
}

/* ---- the public verb ----------------------------------------------------------------------------------- */

static oq_status remember(oq_env *env, const oq_model *model, const oq_options *options,
                          const oq_request *request, oq_media *media)
{
    oq_metadata *metadata = NULL;
    if (oq_options_flag(options, "no-metadata")) return OQ_OK;
    OQ_TRY(oq_metadata_new(env, model, options, request, true, &metadata));
    oq_status st = oq_new(env, 2 * (size_t)media->count, sizeof *media->texts, "metadata", &media->texts);
    for (int i = 0; st == OQ_OK && i < media->count; i++)
        st = oq_metadata_texts(metadata, i, media->seeds[i], &media->texts[2 * i], &media->texts[2 * i + 1]);
    oq_metadata_free(metadata);
    return st;
}

static oq_status generate(oq_env *env, const oq_model *model, const oq_options *options, oq_media **out)
{
    oq_arena arena;
    oq_request request;
    oq_media *media = NULL;
    oq_arena_init(&arena, env);
    oq_status st = oq_request_make(env, model, options, &arena, &request);
    if (st == OQ_OK) st = oq_generate_request(env, model, &request, NULL, &media);
    if (st == OQ_OK) st = remember(env, model, options, &request, media);
    oq_arena_deinit(&arena);
    if (st == OQ_OK)
        *out = media;
    else
        oq_media_free(media);
    return st;
}

oq_status oq_generate(oq_env *env, const oq_model *model, const oq_options *options, oq_media **out)
{
    if (!env || !model || !options || !out)
        return oq_fail(env, OQ_E_ARG, "oq_generate needs an environment, a model, options and a result");
    oq_options *own = NULL; /* with a seed, which is random unless it is given */
    *out = NULL;
    OQ_TRY(oq_options_new(env, "generate", &own));
    oq_status st = oq_options_copy(options, own);
    if (st == OQ_OK) st = oq_seed_choose(env, own);
    if (st == OQ_OK) st = generate(env, model, own, out);
    oq_options_free(own);
    return st;
}

bool oq_model_makes_video(const oq_model *model)
{
    return model && model->type->defaults.frames > 0;
}

oq_status oq_model_check_output(oq_env *env, const oq_model *model, const char *path)
{
    const oq_video_type *type = NULL;
    if (!env || !model || !path) return oq_fail(env, OQ_E_ARG, "a model and the name of a file are needed");
    return oq_model_makes_video(model) ? oq_video_find(env, path, &type) : oq_image_check_output(env, path);
}

int oq_media_count(const oq_media *media)
{
    return media ? media->count : 0;
}

int64_t oq_media_width(const oq_media *media)
{
    return media ? media->width : 0;
}

int64_t oq_media_height(const oq_media *media)
{
    return media ? media->height : 0;
}

int64_t oq_media_frames(const oq_media *media)
{
    return media ? media->frames : 0;
}

uint64_t oq_media_seed(const oq_media *media, int index)
{
    return media && index >= 0 && index < media->count ? media->seeds[index] : 0;
}

const uint8_t *oq_media_pixels(const oq_media *media, int index)
{
    if (!media || index < 0 || index >= media->count) return NULL;
    return media->pixels +
           (size_t)index * (size_t)media->frames * (size_t)media->width * (size_t)media->height * 3;
}

double oq_media_fps(const oq_media *media)
{
    return media && media->fps > 0 ? media->fps : 0;
}

oq_status oq_media_write(oq_env *env, const oq_media *media, int index, const char *path,
                         const oq_image_text *texts, size_t n_texts)
{
    const oq_video_type *type = NULL;
    const oq_video video = {.width = media->width,
                            .height = media->height,
                            .frames = media->frames,
                            .fps = media->fps,
                            .pixels = oq_media_pixels(media, index)};
    if (oq_media_fps(media) == 0)
        return oq_image_write(env, path, media->width, media->height, video.pixels, texts, n_texts);
    OQ_TRY(oq_video_find(env, path, &type));
    return type->write(env, path, &video, texts, n_texts);
}

oq_status oq_media_save(oq_env *env, const oq_media *media, int index, const char *path)
{
    if (!oq_media_pixels(media, index))
        return oq_fail(env, OQ_E_ARG, "item %d was asked for, there are %d", index, oq_media_count(media));
    if (!path || !*path) return oq_fail(env, OQ_E_ARG, "item %d needs the name of a file", index);
    if (!media->texts) return oq_media_write(env, media, index, path, NULL, 0);
    const oq_image_text texts[] = {{"parameters", media->texts[2 * index]},
                                   {"omniq", media->texts[2 * index + 1]}};
    return oq_media_write(env, media, index, path, texts, OQ_COUNT(texts));
}

void oq_media_free(oq_media *media)
{
    if (!media) return;
    for (int i = 0; media->texts && i < 2 * media->count; i++) oq_free(media->env, media->texts[i]);
    oq_free(media->env, media->texts);
    oq_free(media->env, media->timing.step_s);
    oq_free(media->env, media->pixels);
    oq_free(media->env, media->seeds);
    oq_free(media->env, media);
}
