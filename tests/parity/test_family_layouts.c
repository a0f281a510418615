/* test_family_layouts.c -- transformers of every family as single quantized files in the spelling of their first release, as
 * ModelOpt, ComfyUI and Black Forest Labs write them: made by `quantize --names original` from the small folders. Each gives
 * the picture that its method should, whatever prefix stands before its names and wherever its words about itself stand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "engine/engine.h"
#include "support/golden_folder.h"
#include "support/scratch.h"
#include "support/toybox_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct family {
    const char *name; /* below tests/data/golden */
    bool original;    /* its first release has names of its own */
    const char *prompt;
    const char *frames; /* NULL: of pictures */
} family;

static const family families[] = {{"flux1", true, "a red circle on a white background", NULL},
                                  {"flux2-klein", true, "a teal ring in the top left corner", NULL},
                                  {"qwen-image", false, "a red circle on a white background", NULL},
                                  {"wan2.2/t2v-a14b", true, "<71><1712>", "5"},
                                  {"wan2.2/ti2v-5b", true, "<71><1712>", "5"}};

typedef struct layout {
    const char *name, *method;
    bool same;          /* loading quantizes fused products alike: the pictures are equal */
    const char *prefix; /* one of those in use */
} layout;

static const layout layouts[] = {
    {"modelopt", "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", true, "model.diffusion_model."},
    {"modelopt", "{\"method\": \"fp8\", \"weight_strategy\": \"block\"}", false, "transformer."},
    {"modelopt", "\"nvfp4\"", false, "net."},
    {"modelopt", "\"mxfp8\"", true, "diffusion_model."},
    {"comfy", "\"fp8\"", false, "model."},
    {"comfy", "\"nvfp4\"", false, "diffusion_model."},
    {"comfy", "\"mxfp8\"", true, "model.diffusion_model."},
};

typedef struct world {
    oq_env *env;
    const family *f;
    char folder[512], file[600], other[600], dir[512];
} world;

typedef struct result {
    char *layers; /* the plan's, as text */
    oq_media *media;
} result;

static void drop(result *r)
{
    free(r->layers);
    oq_media_free(r->media);
}

static char *layers_of(oq_env *env, const oq_model *model)
{
    char *text = NULL, *copy;
    oq_json *json = oq_plan_to_json(model->plan);
    const oq_json *c = oq_json_get(oq_json_get(json, "components"), "transformer");
    assert_int_equal(oq_json_dump(env, oq_json_get(c, "layers"), OQ_JSON_COMPACT, &text), OQ_OK);
    assert_non_null(copy = strdup(text));
    oq_free(env, text);
    oq_json_free(json);
    return copy;
}

static oq_options *options_for(const world *w, const char *file, const char *quantization)
{
    oq_options *o = NULL;
    const char *const rows[][2] = {{"model", w->folder},
                                   {"prompt", w->f->prompt},
                                   {"seed", "3"},
                                   {"width", "64"},
                                   {"height", "64"},
                                   {"steps", "2"},
                                   {"num-frames", w->f->frames},
                                   {"transformer", file},
                                   {"quantization", quantization}};
    assert_int_equal(oq_options_new(w->env, "generate", &o), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (rows[i][1]) assert_int_equal(oq_options_set(o, rows[i][0], rows[i][1]), OQ_OK);
    return o;
}

static result run(const world *w, const char *file, const char *quantization)
{
    result out = {0};
    oq_model *model = NULL;
    oq_options *o = options_for(w, file, quantization);
    if (oq_model_open(w->env, o, &model) != OQ_OK || oq_generate(w->env, model, o, &out.media) != OQ_OK)
        fail_msg("%s: %s: %s", w->f->name, file ? file : "online", oq_env_error(w->env));
    out.layers = layers_of(w->env, model);
    oq_model_close(model);
    oq_options_free(o);
    return out;
}

static double distance(const result *a, const result *b)
{
    const size_t n =
        (size_t)(oq_media_width(a->media) * oq_media_height(a->media) * oq_media_frames(a->media)) * 3;
    const uint8_t *x = oq_media_pixels(a->media, 0), *y = oq_media_pixels(b->media, 0);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum > 0 ? 10 * log10(255.0 * 255.0 * (double)n / sum) : (double)INFINITY;
}

/* ---- files ------------------------------------------------------------------------------------------------ */

static void make_folder(world *w)
{
    static const int32_t ids[] = {1, 71, 1712};
    char data[512];
    snprintf(w->folder, sizeof w->folder, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-layouts-folder"));
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", w->f->name);
    golden_folder_make(w->env, data, w->folder, &oq_dtype_bf16);
    if (w->f->frames)
        golden_ids_tokenizer(w->env, scratch_path(w->folder, "tokenizer"), ids, OQ_COUNT(ids), -1, 1);
    snprintf(w->dir, sizeof w->dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-layouts"));
    snprintf(w->file, sizeof w->file, "%s", scratch_path(w->dir, "file.safetensors"));
    snprintf(w->other, sizeof w->other, "%s", scratch_path(w->dir, "other.safetensors"));
}

static void write_layout(world *w, const layout *l)
{
    char source[600];
    snprintf(source, sizeof source, "%s/transformer", w->folder);
    done(w->env, "quantize", source,
         (const char *const[]){"quantization", l->method, "layout", l->name, "names",
                               w->f->original ? "original" : "source", "output", w->file, "force", "true",
                               NULL},
         NULL);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The file's markers in ComfyUI's other spelling: one entry of the header for all layers. */
static oq_json *words_of(const oq_json *header, const char *data, oq_env *env)
{
    oq_json *all = oq_json_new_object(), *layers = oq_json_new_object(), *word = NULL;
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(header, &at, &key, &value)) {
        if (!ends_with(key, ".comfy_quant")) continue;
        const oq_json *offsets = oq_json_get(value, "data_offsets");
        const int64_t from = oq_json_int(oq_json_at(offsets, 0), 0),
                      to = oq_json_int(oq_json_at(offsets, 1), 0);
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)(strlen(key) - strlen(".comfy_quant")), key);
        assert_int_equal(oq_json_parse(env, data + from, (size_t)(to - from), "marker", &word), OQ_OK);
        assert_true(oq_json_set(layers, name, word));
    }
    assert_true(oq_json_set(all, "layers", layers));
    return all;
}

typedef enum words { WORDS_AS_WRITTEN, WORDS_IN_HEADER, NO_WORDS } words;

/* A tensor of the header and its bytes, moved behind those in `data`. */
static oq_json *move(const oq_json *value, const char *from, oq_strbuf *data)
{
    oq_json *out = oq_json_new_object(), *offsets = oq_json_new_array();
    const oq_json *old = oq_json_get(value, "data_offsets");
    const int64_t first = oq_json_int(oq_json_at(old, 0), 0), end = oq_json_int(oq_json_at(old, 1), 0);
    assert_true(oq_json_append(offsets, oq_json_new_int((int64_t)data->size)));
    oq_strbuf_add(data, from + first, (size_t)(end - first));
    assert_true(oq_json_append(offsets, oq_json_new_int((int64_t)data->size)));
    assert_true(oq_json_set(out, "dtype", oq_json_ref(oq_json_get(value, "dtype"))));
    assert_true(oq_json_set(out, "shape", oq_json_ref(oq_json_get(value, "shape"))));
    assert_true(oq_json_set(out, "data_offsets", offsets));
    return out;
}

/* w->file with a prefix before each name, as w->other. */
static void respell(world *w, const char *prefix, words how)
{
    char *bytes = NULL, *text = NULL, name[512];
    size_t n = 0;
    uint64_t length;
    oq_json *header = NULL, *out = oq_json_new_object();
    oq_strbuf data;
    oq_strbuf_init(&data, w->env);
    assert_int_equal(oq_file_read(w->env, w->file, 1 << 26, &bytes, &n), OQ_OK);
    memcpy(&length, bytes, sizeof length);
    const char *from = bytes + 8 + length, *key = NULL;
    assert_int_equal(oq_json_parse(w->env, bytes + 8, (size_t)length, "header", &header), OQ_OK);
    void *at = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(header, &at, &key, &value)) {
        const bool own = strcmp(key, "__metadata__") == 0;
        if (how != WORDS_AS_WRITTEN && (own || ends_with(key, ".comfy_quant"))) continue;
        snprintf(name, sizeof name, "%s%s", own ? "" : prefix, key);
        assert_true(oq_json_set(out, name, own ? oq_json_ref(value) : move(value, from, &data)));
    }
    if (how == WORDS_IN_HEADER) {
        oq_json *meta = oq_json_new_object(), *all = words_of(header, from, w->env);
        assert_int_equal(oq_json_dump(w->env, all, OQ_JSON_COMPACT, &text), OQ_OK);
        assert_true(oq_json_set(meta, "_quantization_metadata", oq_json_new_string(text)));
        assert_true(oq_json_set(out, "__metadata__", meta));
        oq_json_free(all);
        oq_free(w->env, text);
    }
    assert_int_equal(oq_json_dump(w->env, out, OQ_JSON_COMPACT, &text), OQ_OK);
    scratch_safetensors(w->dir, "other.safetensors", text, data.text, data.size);
    oq_free(w->env, text);
    oq_strbuf_deinit(&data);
    oq_json_free(out);
    oq_json_free(header);
    oq_free(w->env, bytes);
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

static void expect_same(const world *w, const layout *l, const result *want, const char *quantization,
                        const char *how)
{
    result got = run(w, w->other, quantization);
    if (strcmp(got.layers, want->layers) != 0)
        fail_msg("%s, %s %s: %s: another plan: %s", w->f->name, l->name, l->method, how, got.layers);
    if (distance(&got, want) < (double)INFINITY)
        fail_msg("%s, %s %s: %s: another picture", w->f->name, l->name, l->method, how);
    drop(&got);
}

static void expect_refused(const world *w, const char *text)
{
    oq_model *model = NULL;
    oq_options *o = options_for(w, w->other, NULL);
    assert_int_equal(oq_model_open(w->env, o, &model), OQ_E_FORMAT);
    if (!strstr(oq_env_error(w->env), text)) fail_msg("'%s' is not in '%s'", text, oq_env_error(w->env));
    oq_env_clear(w->env);
    oq_options_free(o);
}

static void check_layout(world *w, const layout *l)
{
    char wish[128];
    snprintf(wish, sizeof wish, "{\"transformer\": %s}", l->method);
    write_layout(w, l);
    result online = run(w, NULL, wish), file = run(w, w->file, NULL);
    const double db = distance(&file, &online);
    printf("%-16s %-9s %-50s %.1f dB beside loading\n", w->f->name, l->name, l->method, db);
    assert_true(l->same ? isinf(db) : db > 20);
    respell(w, l->prefix, WORDS_AS_WRITTEN);
    expect_same(w, l, &file, NULL, l->prefix);
    if (strcmp(l->name, "comfy") == 0) {
        respell(w, "", WORDS_IN_HEADER);
        expect_same(w, l, &file, NULL, "words in the header");
    }
    if (strcmp(l->name, "comfy") == 0 && strstr(l->method, "nvfp4")) {
        respell(w, l->prefix, NO_WORDS);
        expect_refused(w, "fit the spellings 'modelopt' and 'comfy'");
        expect_same(w, l, &file, "{\"transformer\": \"bfl_nvfp4\"}", "no words, but a wish");
    }
    drop(&online);
    drop(&file);
}

#ifdef OMNIQ_SANITIZED
enum { STEP = 3 };
#else
enum { STEP = 1 };
#endif

static void check_family(const family *f)
{
    world w = {.f = f};
    assert_int_equal(oq_env_new(NULL, &w.env), OQ_OK);
    make_folder(&w);
    for (size_t i = 0; i < OQ_COUNT(layouts); i += STEP) check_layout(&w, &layouts[i]);
    oq_env_free(w.env);
}

static void test_flux1(void **state)
{
    (void)state;
    check_family(&families[0]);
}
static void test_flux2(void **state)
{
    (void)state;
    check_family(&families[1]);
}
static void test_qwen_image(void **state)
{
    (void)state;
    check_family(&families[2]);
}
static void test_wan_experts(void **state)
{
    (void)state;
    check_family(&families[3]);
}
static void test_wan_5b(void **state)
{
    (void)state;
    check_family(&families[4]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flux1), cmocka_unit_test(test_flux2),
                                       cmocka_unit_test(test_qwen_image), cmocka_unit_test(test_wan_experts),
                                       cmocka_unit_test(test_wan_5b)};
    return cmocka_run_group_tests_name("layouts of families", tests, NULL, NULL);
}
