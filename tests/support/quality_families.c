/* quality_families.c -- runtime attention quantization and recipes on every family: errors of layers and pictures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/quality_families.h"
#include "support/quality_rows.h"

#include "engine/compare.h"
#include "parity/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PICTURE "picture.png" /* in the folder of a family that begins with one */

enum { MOST_PICTURES = QUALITY_PROMPTS };

const quality_family quality_families[] = {
    {"toybox (Z-Image)", NULL, "z-image", "256", "256", NULL, "8", "0,7", "0,11", QUALITY_PROMPTS, false,
     false},
    {"FLUX.1, small", "flux1", "flux1", "64", "64", NULL, "4", "0,3", "0", 2, false, false},
    {"FLUX.2-klein, small", "flux2-klein", "flux2-klein", "64", "64", NULL, "4", "0,3", "0", 2, false, false},
    {"FLUX.2-dev, small", "flux2-dev", "flux2-dev", "64", "64", NULL, "4", "0,3", "0", 2, false, false},
    {"Qwen-Image, small", "qwen-image", "qwen-image", "64", "64", NULL, "4", "0,3", "0", 2, false, false},
    {"Qwen-Image-Edit, small", "qwen-image-edit", "qwen-image-edit", "64", "64", NULL, "4", "0,3", "0", 2,
     false, true},
    {"Qwen-Image-Edit-Plus, small", "qwen-image-edit-plus", "qwen-image-edit-plus", "64", "64", NULL, "4",
     "0,3", "0", 2, false, true},
    {"Wan 2.2 T2V-A14B, small", "wan2.2/t2v-a14b", "wan", "64", "48", "5", "4", "0,3", "0", 2, true, false},
    {"Wan 2.2 TI2V-5B, small", "wan2.2/ti2v-5b", "wan", "64", "64", "5", "4", "0,3", "0", 2, false, false},
    {0},
};

const char *quality_family_folder(oq_env *env, const quality_family *f, char folder[static 500])
{
    char data[512], use[64];
    family_fixture fixture = {.env = env};
    snprintf(folder, 500, "%s", OMNIQ_SOURCE_DIR "/models/toybox");
    if (!f->data) return folder;
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", f->data);
    snprintf(use, sizeof use, "families-%s", f->data);
    for (char *at = use; *at; at++)
        if (*at == '/') *at = '-';
    snprintf(folder, 500, "%s", scratch_dir(OMNIQ_BINARY_DIR, use));
    golden_folder_make(env, data, folder, &oq_dtype_f32);
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s/golden.safetensors", f->data);
    assert_int_equal(oq_ckpt_open(env, data, &fixture.golden), OQ_OK);
    family_ids_tokenizer(&fixture, folder);
    oq_ckpt_close(fixture.golden);
    if (f->begins_with_image) {
        oq_image picture = golden_picture("image", 96, 80);
        assert_int_equal(oq_png_write(env, scratch_path(folder, PICTURE), 96, 80, picture.pixels, NULL, 0),
                         OQ_OK);
        free(picture.pixels);
    }
    return folder;
}

static void set(oq_env *env, oq_options *o, const char *name, const char *value)
{
    if (value && oq_options_set(o, name, value) != OQ_OK) fail_msg("%s: %s", name, oq_env_error(env));
}

oq_model *quality_family_open(oq_env *env, oq_options *options)
{
    oq_model *model = NULL;
    if (oq_model_open(env, options, &model) != OQ_OK) fail_msg("%s", oq_env_error(env));
    family_small_pictures(model);
    return model;
}

oq_options *quality_family_options(oq_env *env, const quality_family *f, const char *folder,
                                   const char *quantization, int i)
{
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    set(env, o, "model", folder);
    set(env, o, "dtype", "fp32");
    set(env, o, "width", f->width);
    set(env, o, "height", f->height);
    set(env, o, "num-frames", f->frames);
    set(env, o, "steps", f->steps);
    set(env, o, "seed", quality_seeds[i]);
    set(env, o, "prompt", f->data ? "" : quality_prompts[i]);
    set(env, o, "image", f->begins_with_image ? scratch_path(folder, PICTURE) : NULL);
    set(env, o, "quantization", quantization);
    return o;
}

/* ---- one setting --------------------------------------------------------------------------------------- */

typedef struct setting {
    const char *name, *dtype, *skip_steps, *skip_layers, *sparsity; /* attention; NULL: absent */
    const char *method, *recipe; /* of the transformers' weights; NULL: plain */
} setting;

typedef struct result {
    quality_psnr psnr;
    double least_db, mean_db; /* SNR of the layers that are quantized */
    quality_size size;
} result;

static oq_options *options_of(oq_env *env, const quality_family *f, const char *folder, const setting *s,
                              int i)
{
    char both[160];
    snprintf(both, sizeof both, "{\"transformer\":{\"method\":\"%s\"}%s%s%s}", s->method,
             f->second ? ",\"transformer_2\":{\"method\":\"" : "", f->second ? s->method : "",
             f->second ? "\"}" : "");
    oq_options *o = quality_family_options(env, f, folder, s->method ? both : NULL, i);
    set(env, o, "recipe", s->recipe);
    set(env, o, "attention-quantization", s->dtype);
    set(env, o, "attention-skip-steps", s->skip_steps);
    set(env, o, "attention-skip-layers", s->skip_layers);
    set(env, o, "attention-sparsity", s->sparsity);
    return o;
}

static void layers_of(const oq_layer_errors *errors, result *out)
{
    oq_json *list = oq_layer_errors_json(errors);
    int n = 0;
    out->least_db = INFINITY;
    for (size_t i = 0; i < oq_json_size(list); i++) {
        const double db = oq_json_real(oq_json_get(oq_json_at(list, i), "snr_db"), NAN);
        if (!isfinite(db)) continue; /* a layer that no step ran quantized */
        out->least_db = fmin(out->least_db, db);
        out->mean_db += db, n++;
    }
    out->mean_db /= n ? n : 1;
    oq_json_free(list);
}

/* Of all transformers in a BF16 run. */
static quality_size size_of(oq_env *env, const quality_family *f, const char *folder, const setting *s)
{
    double bytes = 0, weights = 0, all = 0;
    oq_model *model = NULL;
    oq_options *o = options_of(env, f, folder, s, 0);
    set(env, o, "dtype", "bf16");
    if (oq_model_prepare(env, o, &model) != OQ_OK)
        fail_msg("%s, %s: %s", f->name, s->name, oq_env_error(env));
    for (size_t c = 0; c < model->plan->n_components; c++) {
        const oq_plan_component *p = &model->plan->components[c];
        if (strncmp(p->name, "transformer", 11) != 0) continue;
        all += (double)p->bytes;
        for (size_t i = 0; i < p->n_layers; i++) {
            const oq_linear_spec *spec = &p->layers[i].linear->spec;
            if (p->layers[i].linear->keep) continue;
            for (int plane = 0; plane < OQ_N_PLANES; plane++)
                bytes += (double)oq_scheme_plane_bytes(&spec->scheme, (oq_plane)plane, spec->n, spec->k);
            weights += (double)spec->n * (double)spec->k;
        }
    }
    oq_model_close(model);
    oq_options_free(o);
    return (quality_size){.bits = 8 * bytes / weights, .mb = all / 1e6};
}

static void pictures(oq_env *env, const quality_family *f, const char *folder, const setting *s,
                     const oq_model *plain, oq_media **media, result *out)
{
    oq_model *model = NULL;
    oq_layer_errors *errors = NULL;
    oq_arena arena;
    oq_arena_init(&arena, env);
    for (int i = 0; i < f->n_pictures; i++) {
        oq_options *o = options_of(env, f, folder, s, i);
        oq_request request;
        if (!model) model = quality_family_open(env, o);
        if (plain && !errors) assert_int_equal(oq_layer_errors_new(env, plain, model, &errors), OQ_OK);
        const oq_run_hooks hooks = {.observer = oq_layer_errors_observe,
                                    .attention_observer = oq_layer_errors_attend,
                                    .observer_user = errors};
        if (oq_request_make(env, model, o, &arena, &request) != OQ_OK ||
            oq_generate_request(env, model, &request, errors ? &hooks : NULL, &media[i]) != OQ_OK)
            fail_msg("%s, %s: %s", f->name, s->name, oq_env_error(env));
        oq_options_free(o);
    }
    if (errors) layers_of(errors, out);
    out->size = size_of(env, f, folder, s);
    oq_layer_errors_free(errors);
    oq_arena_deinit(&arena);
    oq_model_close(model);
}

/* All settings of one family, against its plain pictures. */
static void run_settings(oq_env *env, const quality_family *f, const setting *settings, size_t n,
                         result *results)
{
    char folder[500];
    oq_media *plain[MOST_PICTURES] = {0}, *media[MOST_PICTURES] = {0};
    result none;
    quality_family_folder(env, f, folder);
    oq_options *o = quality_family_options(env, f, folder, NULL, 0);
    oq_model *model = quality_family_open(env, o);
    pictures(env, f, folder, &(setting){.name = "plain"}, NULL, plain, &none);
    for (size_t i = 0; i < n; i++) {
        results[i] = (result){0};
        pictures(env, f, folder, &settings[i], model, media, &results[i]);
        results[i].psnr = quality_compare(plain, media, f->n_pictures);
        quality_free(media, f->n_pictures);
        fprintf(stderr, "%s, %s: %.1f dB\n", f->name, settings[i].name, results[i].psnr.mean_db);
    }
    quality_free(plain, f->n_pictures);
    oq_model_close(model);
    oq_options_free(o);
}

/* ---- tables -------------------------------------------------------------------------------------------- */

static void put_attention(const char *family, const setting *s, const result *r, oq_strbuf *out)
{
    oq_strbuf_printf(out, "| %s | %s | %.1f | %.1f | %.1f | %.1f |\n", family, s->name, r->least_db,
                     r->mean_db, r->psnr.mean_db, r->psnr.worst_db);
}

/* Rows that a table holds already. */
static bool copy_rows(const char *known, const char *family, oq_strbuf *out)
{
    char start[100];
    const int n = snprintf(start, sizeof start, "\n| %s |", family);
    bool any = false;
    for (const char *at = known ? strstr(known, start) : NULL; at && strncmp(at, start, (size_t)n) == 0;
         at = strchr(at + 1, '\n')) {
        oq_strbuf_add(out, at + 1, strcspn(at + 1, "\n") + 1);
        any = true;
    }
    return any;
}

static void put_settings(oq_env *env, const char *known, const quality_family *f, const setting *settings,
                         size_t n, oq_strbuf *out)
{
    result results[8];
    assert_true(n <= OQ_COUNT(results));
    if (copy_rows(known, f->name, out)) return;
    run_settings(env, f, settings, n, results);
    for (size_t i = 0; i < n; i++) put_attention(f->name, &settings[i], &results[i], out);
}

/* Blocks are chosen from 4096 tokens on. */
static void put_sparse(oq_env *env, const char *known, oq_strbuf *out)
{
    static const quality_family large[] = {
        {"toybox, 1024x1024, 2 steps", NULL, "z-image", "1024", "1024", NULL, "2", NULL, NULL, 1, false,
         false},
        {"FLUX.1, small, 1024x1024, 2 steps", "flux1", "flux1", "1024", "1024", NULL, "2", NULL, NULL, 1,
         false, false},
    };
    static const setting settings[] = {
        {"sparsity 0.3", NULL, NULL, NULL, "0.3", NULL, NULL},
        {"sparsity 0.5", NULL, NULL, NULL, "0.5", NULL, NULL},
        {"sparsity 0.7", NULL, NULL, NULL, "0.7", NULL, NULL},
        {"fp8, sparsity 0.5", "fp8", NULL, NULL, "0.5", NULL, NULL},
    };
    for (size_t i = 0; i < OQ_COUNT(large); i++)
        put_settings(env, known, &large[i], settings, OQ_COUNT(settings), out);
}

void quality_attention_table(oq_env *env, const char *known, oq_strbuf *out)
{
    oq_strbuf_puts(out, "| model | attention | least SNR of a layer | mean | PSNR mean | worst |\n"
                        "|---|---|---|---|---|---|\n");
    for (const quality_family *f = quality_families; f->name; f++) {
        const setting settings[] = {
            {"fp8", "fp8", NULL, NULL, NULL, NULL, NULL},
            {"fp8, first step plain", "fp8", "0", NULL, NULL, NULL, NULL},
            {"mxfp8", "mxfp8", NULL, NULL, NULL, NULL, NULL},
            {"mxfp4", "mxfp4", NULL, NULL, NULL, NULL, NULL},
            {"mxfp4, first step plain", "mxfp4", "0", NULL, NULL, NULL, NULL},
            {"mxfp4, outer steps and layers plain", "mxfp4", f->ends_steps, f->ends_layers, NULL, NULL, NULL},
            {"fp8, and int8 weights", "fp8", NULL, NULL, NULL, "int8", NULL},
        };
        put_settings(env, known, f, settings, OQ_COUNT(settings), out);
    }
    put_sparse(env, known, out);
}

void quality_recipe_table(oq_env *env, const char *known, oq_strbuf *out)
{
    static const setting settings[] = {
        {"`int8`", NULL, NULL, NULL, NULL, "int8", NULL},
        {"`--recipe careful8`", NULL, NULL, NULL, NULL, NULL, "careful8"},
        {"`nvfp4`", NULL, NULL, NULL, NULL, "nvfp4", NULL},
        {"`--recipe careful4`", NULL, NULL, NULL, NULL, NULL, "careful4"},
    };
    oq_strbuf_puts(out,
                   "| model | transformer | bits a weight | MB | least SNR of a layer | PSNR mean | worst |\n"
                   "|---|---|---|---|---|---|---|\n");
    for (const quality_family *f = quality_families; f->name; f++) {
        result results[OQ_COUNT(settings)];
        if (copy_rows(known, f->name, out)) continue;
        run_settings(env, f, settings, OQ_COUNT(settings), results);
        for (size_t i = 0; i < OQ_COUNT(settings); i++)
            oq_strbuf_printf(out, "| %s | %s | %.2f | %.2f | %.1f | %.1f | %.1f |\n", f->name,
                             settings[i].name, results[i].size.bits, results[i].size.mb, results[i].least_db,
                             results[i].psnr.mean_db, results[i].psnr.worst_db);
    }
}
