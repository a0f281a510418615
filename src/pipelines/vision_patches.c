/* vision_patches.c -- configuration, sizes and values of pictures for a vision tower. */
#include "pipelines/vision_patches.h"

#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "modules/model_config.h"

#include <math.h>
#include <string.h>

#define WHAT "the image processor"

enum { MAX_CONFIG = 1 << 20, CHANNELS = 3, MOST_RATIO = 200 };

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_vision_patches, member)
#define IGNORED(key)                                                                                         \
    {                                                                                                        \
        key, OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL                                                              \
    }
static const oq_model_field fields[] = {
    {"patch_size", OQ_FIELD_INT, FIELD(patch), 1, 256, 14, NULL},
    {"temporal_patch_size", OQ_FIELD_INT, FIELD(frames), 1, 16, 2, NULL},
    {"merge_size", OQ_FIELD_INT, FIELD(merge), 1, 16, 2, NULL},
    {"min_pixels", OQ_FIELD_INT, FIELD(least_pixels), 0, 1 << 30, 0, NULL},
    {"max_pixels", OQ_FIELD_INT, FIELD(most_pixels), 0, 1 << 30, 0, NULL},
    {"rescale_factor", OQ_FIELD_REAL, FIELD(rescale), 0, 1, 1.0 / 255, NULL},
    {"size", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"image_mean", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"image_std", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"image_processor_type", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"resample", OQ_FIELD_FIXED, 0, 0, 0, 0, "3"}, /* Pillow's number of BICUBIC */
    {"do_resize", OQ_FIELD_FIXED, 0, 0, 0, 0, "true"},
    {"do_rescale", OQ_FIELD_FIXED, 0, 0, 0, 0, "true"},
    {"do_normalize", OQ_FIELD_FIXED, 0, 0, 0, 0, "true"},
    IGNORED("do_convert_rgb"), /* pictures are RGB here */
    IGNORED("processor_class"),
    IGNORED("data_format"),
    IGNORED("default_to_square"),
};

static oq_status read_triple(oq_env *env, const oq_json *config, const char *key, const float published[3],
                             float out[3])
{
    const oq_json *list = oq_json_get(config, key);
    for (size_t i = 0; i < CHANNELS; i++) {
        const double x = list ? oq_json_real(oq_json_at(list, i), (double)NAN) : (double)published[i];
        out[i] = (float)x;
        if (!isfinite(x) || (list && oq_json_size(list) != CHANNELS))
            return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": '%s' must be three finite numbers",
                           key);
    }
    return OQ_OK;
}

static oq_status check_type(oq_env *env, const oq_json *config)
{
    static const char *const known = "Qwen2VLImageProcessor"; /* and its variants: …Fast, …Pil */
    const char *type = oq_json_string(oq_json_get(config, "image_processor_type"));
    if (!type || strncmp(type, known, strlen(known)) == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "config.json of " WHAT ": 'image_processor_type' is '%s', only %s is supported", type,
                   known);
}

/* "min_pixels" and "max_pixels" go before "size". */
static oq_status read_pixels(oq_env *env, const oq_json *config, oq_vision_patches *p)
{
    const oq_json *size = oq_json_get(config, "size");
    const int64_t side = p->patch * p->merge;
    if (p->least_pixels == 0) p->least_pixels = oq_json_int(oq_json_get(size, "shortest_edge"), 56 * 56);
    if (p->most_pixels == 0) p->most_pixels = oq_json_int(oq_json_get(size, "longest_edge"), 28 * 28 * 1280);
    if (p->least_pixels >= 1 && p->least_pixels <= p->most_pixels && p->most_pixels >= side * side &&
        p->most_pixels <= 1 << 30)
        return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "config.json of " WHAT ": pictures of %lld to %lld pixels in states of %lld",
                   (long long)p->least_pixels, (long long)p->most_pixels, (long long)(side * side));
}

static oq_status describe(oq_env *env, const oq_json *config, oq_vision_patches *p)
{
    static const float mean[CHANNELS] = {0.48145466f, 0.4578275f, 0.40821073f},
                       std[CHANNELS] = {0.26862954f, 0.26130258f, 0.27577711f};
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), p));
    OQ_TRY(check_type(env, config));
    OQ_TRY(read_pixels(env, config, p));
    OQ_TRY(read_triple(env, config, "image_mean", mean, p->mean));
    OQ_TRY(read_triple(env, config, "image_std", std, p->std));
    for (int i = 0; i < CHANNELS; i++)
        if (!(p->std[i] > 0))
            return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": 'image_std' must be above 0");
    return OQ_OK;
}

/* transformers 4 writes a file of its own, transformers 5 a member of the processor's. */
static oq_status open_config(oq_env *env, const char *folder, oq_json **file, const oq_json **config)
{
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json"};
    oq_status st = OQ_OK;
    for (size_t i = 0; i < OQ_COUNT(names) && !*file && st == OQ_OK; i++) {
        oq_strbuf path;
        oq_strbuf_init(&path, env);
        oq_strbuf_printf(&path, "%s/processor/%s", folder, names[i]);
        st = oq_strbuf_check(&path, "image processor's path");
        if (st == OQ_OK && oq_file_exists(oq_strbuf_text(&path))) {
            st = oq_json_parse_file(env, oq_strbuf_text(&path), MAX_CONFIG, file);
            *config = i ? oq_json_get(*file, "image_processor") : *file;
        }
        oq_strbuf_deinit(&path);
    }
    return st;
}

oq_status oq_vision_patches_read(oq_env *env, const char *folder, bool dummy, oq_vision_patches *out)
{
    oq_json *file = NULL;
    const oq_json *config = NULL;
    *out = (oq_vision_patches){0};
    oq_status st = open_config(env, folder, &file, &config);
    if (st == OQ_OK && !config && dummy) {
        st = oq_json_parse(env, "{}", 2, WHAT, &file);
        config = file;
    }
    if (st == OQ_OK && !config)
        st = oq_fail(env, OQ_E_NOTFOUND, "%s/processor/preprocessor_config.json is missing", folder);
    if (st == OQ_OK) st = describe(env, config, out);
    oq_json_free(file);
    return st;
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

bool oq_vision_patches_size(const oq_vision_patches *p, int64_t width, int64_t height, int64_t *to_width,
                            int64_t *to_height)
{
    const int64_t side = p->patch * p->merge;
    const double h = (double)height, w = (double)width, unit = (double)side;
    double rows = rint(h / unit), columns = rint(w / unit);
    if (width > MOST_RATIO * height || height > MOST_RATIO * width) return false;
    const double pixels = rows * unit * (columns * unit);
    if (pixels > (double)p->most_pixels) {
        const double shrink = sqrt(h * w / (double)p->most_pixels);
        rows = fmax(1, floor(h / shrink / unit));
        columns = fmax(1, floor(w / shrink / unit));
    } else if (pixels < (double)p->least_pixels) {
        const double grow = sqrt((double)p->least_pixels / (h * w));
        rows = ceil(h * grow / unit);
        columns = ceil(w * grow / unit);
    }
    *to_width = (int64_t)columns * side;
    *to_height = (int64_t)rows * side;
    return rows >= 1 && columns >= 1;
}

/* A value as float32 arithmetic has it. */
static float normalized(const oq_vision_patches *p, uint8_t byte, int64_t channel)
{
    const float x = (float)((double)byte * p->rescale);
    return (x - p->mean[channel]) / p->std[channel];
}

/* One patch [channels, frames, patch, patch] of which the corner is at pixel (y, x); all frames are the picture. */
static void fill_patch(const oq_vision_patches *p, const oq_image *image, int64_t y, int64_t x, float *out)
{
    const int64_t plane = p->patch * p->patch;
    for (int64_t c = 0; c < CHANNELS; c++) {
        float *first = out + c * p->frames * plane;
        for (int64_t i = 0; i < plane; i++) {
            const int64_t at = (y + i / p->patch) * image->width + x + i % p->patch;
            first[i] = normalized(p, image->pixels[at * CHANNELS + c], c);
        }
        for (int64_t f = 1; f < p->frames; f++)
            memcpy(first + f * plane, first, (size_t)plane * sizeof *first);
    }
}

oq_status oq_vision_patches_make(oq_env *env, oq_arena *arena, const oq_vision_patches *p,
                                 const oq_image *image, int64_t width, int64_t height, float **patches)
{
    const int64_t size = CHANNELS * p->frames * p->patch * p->patch, merged = p->merge * p->merge,
                  n = width / p->patch * (height / p->patch), columns = width / p->patch / p->merge;
    oq_image resized = {0};
    OQ_TRY(oq_arena_new(arena, (size_t)(n * size), sizeof **patches, "patches", patches));
    OQ_TRY(oq_image_resize(env, image, OQ_BICUBIC, width, height, &resized));
    for (int64_t i = 0; i < n; i++) {
        const int64_t state = i / merged, inside = i % merged;
        const int64_t row = state / columns * p->merge + inside / p->merge,
                      column = state % columns * p->merge + inside % p->merge;
        fill_patch(p, &resized, row * p->patch, column * p->patch, *patches + i * size);
    }
    oq_image_deinit(env, &resized);
    return OQ_OK;
}
