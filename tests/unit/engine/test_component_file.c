/* test_component_file.c -- single weight files in the place of a component's: every prefix and both spellings give one
 * layer table and one picture; quantized fused products are taken apart where they must be; the wrong file is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/strbuf.h"
#include "ckpt/ckpt.h"
#include "format/float8.h"

#include "support/env_setup.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

typedef struct writer { /* header and data of a safetensors file in the making */
    oq_strbuf header, data;
} writer;

static void begin(writer *w, oq_env *env)
{
    oq_strbuf_init(&w->header, env);
    oq_strbuf_init(&w->data, env);
    oq_strbuf_puts(&w->header, "{");
}

static void put_header(writer *w, const char *name, const char *type, const int64_t *dim, int n_dims,
                       size_t bytes)
{
    oq_strbuf_printf(&w->header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [", w->header.size > 1 ? ", " : "",
                     name, type);
    for (int i = 0; i < n_dims; i++) oq_strbuf_printf(&w->header, "%s%lld", i ? ", " : "", (long long)dim[i]);
    oq_strbuf_printf(&w->header, "], \"data_offsets\": [%zu, %zu]}", w->data.size, w->data.size + bytes);
}

static const char *finish(writer *w, const char *dir, const char *leaf)
{
    oq_strbuf_puts(&w->header, "}");
    scratch_safetensors(dir, leaf, oq_strbuf_text(&w->header), w->data.text, w->data.size);
    oq_strbuf_deinit(&w->header);
    oq_strbuf_deinit(&w->data);
    return scratch_path(dir, leaf);
}

/* ---- respelling the demo transformer ------------------------------------------------------------------- */

static const struct {
    const char *ours, *theirs;
} pairs[] = {{".attention.to_out.0.", ".attention.out."},
             {".attention.norm_q.", ".attention.q_norm."},
             {".attention.norm_k.", ".attention.k_norm."},
             {"all_x_embedder.2-1.", "x_embedder."},
             {"all_final_layer.2-1.", "final_layer."}};

static void original_name(const char *name, char *out, size_t n)
{
    snprintf(out, n, "%s", name);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *at = strstr(name, pairs[i].ours);
        if (!at) continue;
        snprintf(out, n, "%.*s%s%s", (int)(at - name), name, pairs[i].theirs, at + strlen(pairs[i].ours));
    }
}

/* One scale of the whole fused weight, as e4m3: what a producer that sees qkv as one layer writes. */
static void put_fp8(writer *w, const char *layer, const oq_ckpt_tensor *const *part, int n_parts)
{
    char name[512];
    float amax = 0;
    const int64_t k = part[0]->dim[1];
    int64_t n = 0;
    for (int p = 0; p < n_parts; p++) n += part[p]->dim[0];
    float *x = malloc((size_t)(n * k) * sizeof *x), *at = x;
    uint8_t *codes = malloc((size_t)(n * k));
    for (int p = 0; p < n_parts; at += part[p++]->elems)
        part[p]->dtype->to_f32(at, part[p]->data, (size_t)part[p]->elems);
    for (int64_t i = 0; i < n * k; i++) amax = x[i] > amax ? x[i] : -x[i] > amax ? -x[i] : amax;
    const float scale = amax / OQ_E4M3_MAX;
    for (int64_t i = 0; i < n * k; i++) codes[i] = oq_e4m3_from_f32(x[i] / scale);
    snprintf(name, sizeof name, "%s.weight", layer);
    put_header(w, name, "F8_E4M3", (const int64_t[]){n, k}, 2, (size_t)(n * k));
    oq_strbuf_add(&w->data, codes, (size_t)(n * k));
    snprintf(name, sizeof name, "%s.weight_scale", layer);
    put_header(w, name, "F32", NULL, 0, sizeof scale);
    oq_strbuf_add(&w->data, &scale, sizeof scale);
    free(codes);
    free(x);
}

static void put_qkv(writer *w, const oq_ckpt *ckpt, const oq_ckpt_tensor *q, const char *prefix, bool fp8)
{
    char name[512], layer[256];
    const oq_ckpt_tensor *part[3] = {q};
    const int stem = (int)(strstr(q->name, "to_q.") - q->name);
    for (int i = 1; i < 3; i++) {
        snprintf(name, sizeof name, "%.*sto_%c.weight", stem, q->name, i == 1 ? 'k' : 'v');
        part[i] = oq_ckpt_find(ckpt, name);
        assert_non_null(part[i]);
    }
    snprintf(layer, sizeof layer, "%s%.*sqkv", prefix, stem, q->name);
    if (fp8) {
        put_fp8(w, layer, part, 3);
        return;
    }
    snprintf(name, sizeof name, "%s.weight", layer);
    put_header(w, name, q->type_name, (const int64_t[]){3 * q->dim[0], q->dim[1]}, 2, 3 * q->bytes);
    for (int i = 0; i < 3; i++) oq_strbuf_add(&w->data, part[i]->data, part[i]->bytes);
}

typedef struct spelling {
    const char *prefix;
    bool original, fp8, with_vae;
} spelling;

static const char *write_transformer(oq_env *env, const char *dir, const char *leaf, const spelling *s)
{
    char name[256], prefixed[512];
    oq_ckpt *ckpt = NULL, *vae = NULL;
    writer w;
    assert_int_equal(oq_ckpt_open_folder(env, MODEL "/transformer", NULL, &ckpt), OQ_OK);
    begin(&w, env);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        const bool q = strstr(t->name, ".attention.to_q.") != NULL;
        if (s->original && q) put_qkv(&w, ckpt, t, s->prefix, s->fp8);
        if (s->original && (q || strstr(t->name, ".attention.to_k.") || strstr(t->name, ".attention.to_v.")))
            continue;
        snprintf(name, sizeof name, "%s", t->name);
        if (s->original) original_name(t->name, name, sizeof name);
        snprintf(prefixed, sizeof prefixed, "%s%s", s->prefix, name);
        put_header(&w, prefixed, t->type_name, t->dim, t->n_dims, t->bytes);
        oq_strbuf_add(&w.data, t->data, t->bytes);
    }
    if (s->with_vae) assert_int_equal(oq_ckpt_open_folder(env, MODEL "/vae", NULL, &vae), OQ_OK);
    for (size_t i = 0; vae && i < vae->n_tensors; i++) {
        snprintf(prefixed, sizeof prefixed, "vae.%s", vae->tensors[i].name);
        put_header(&w, prefixed, vae->tensors[i].type_name, vae->tensors[i].dim, vae->tensors[i].n_dims,
                   vae->tensors[i].bytes);
        oq_strbuf_add(&w.data, vae->tensors[i].data, vae->tensors[i].bytes);
    }
    oq_ckpt_close(vae);
    oq_ckpt_close(ckpt);
    return finish(&w, dir, leaf);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static oq_options *options_for(oq_env *env, const char *command, const char *option, const char *path)
{
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, command, &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "model", MODEL), OQ_OK);
    assert_int_equal(oq_options_set(o, "prompt", "a red ball"), OQ_OK);
    assert_int_equal(oq_options_set(o, "seed", "3"), OQ_OK);
    assert_int_equal(oq_options_set(o, "width", "64"), OQ_OK);
    assert_int_equal(oq_options_set(o, "height", "64"), OQ_OK);
    assert_int_equal(oq_options_set(o, "steps", "2"), OQ_OK);
    if (option) assert_int_equal(oq_options_set(o, option, path), OQ_OK);
    return o;
}

typedef struct outcome {
    char *plan;
    uint8_t *pixels;
    size_t bytes;
} outcome;

static outcome run(oq_env *env, const char *option, const char *path)
{
    outcome out = {0};
    oq_model *model = NULL;
    oq_report *report = NULL;
    oq_media *media = NULL;
    oq_options *o = options_for(env, "generate", option, path);
    const oq_status st = oq_model_open(env, o, &model);
    if (st != OQ_OK) print_error("%s\n", oq_env_error(env));
    assert_int_equal(st, OQ_OK);
    assert_int_equal(oq_model_plan(env, model, &report), OQ_OK);
    out.plan = strdup(oq_report_json(report));
    oq_report_free(report);
    assert_int_equal(oq_generate(env, model, o, &media), OQ_OK);
    out.bytes = (size_t)oq_media_width(media) * (size_t)oq_media_height(media) * 3;
    out.pixels = malloc(out.bytes);
    memcpy(out.pixels, oq_media_pixels(media, 0), out.bytes);
    oq_media_free(media);
    oq_model_close(model);
    oq_options_free(o);
    return out;
}

static void drop(outcome *o)
{
    free(o->plan);
    free(o->pixels);
}

static void refused(oq_env *env, const char *option, const char *path, oq_status status, const char *text)
{
    oq_model *model = NULL;
    oq_options *o = options_for(env, "generate", option, path);
    assert_int_equal(oq_model_open(env, o, &model), status);
    if (!strstr(oq_env_error(env), text)) print_error("%s\n", oq_env_error(env));
    assert_non_null(strstr(oq_env_error(env), text));
    oq_env_clear(env);
    oq_options_free(o);
}

/* Prefixes of full checkpoints, Comfy, Cosmos, and none, both spellings: the plan and the picture are the folder's. */
static void test_spellings(void **state)
{
    static const spelling rows[] = {
        {"", false, false, false},
        {"model.", false, false, false},
        {"transformer.", false, false, false},
        {"diffusion_model.", true, false, false},
        {"net.", true, false, false},
        {"", true, false, false},
        {"model.diffusion_model.", true, false, true},
    };
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "component-file")); /* the ring of texts is short */
    outcome folder = run(env, NULL, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *path = write_transformer(env, dir, "any-name.safetensors", &rows[i]);
        outcome file = run(env, "transformer", path);
        assert_string_equal(file.plan, folder.plan);
        assert_memory_equal(file.pixels, folder.pixels, folder.bytes);
        drop(&file);
    }
    drop(&folder);
    free(dir);
}

/* A fused weight under one scale is one layer of the file and one product here: nothing is quantized again. */
static void test_fused_fp8(void **state)
{
    oq_env *env = *state;
    const char *dir = scratch_dir(OMNIQ_BINARY_DIR, "component-file-fp8");
    const spelling s = {"", true, true, false};
    const char *path = write_transformer(env, dir, "fused.safetensors", &s);
    outcome fp8 = run(env, "transformer", path), plain = run(env, NULL, NULL);
    assert_non_null(strstr(fp8.plan, "fp8_e4m3_tensor"));
    double sum = 0;
    for (size_t i = 0; i < plain.bytes; i++) {
        const double d = (double)fp8.pixels[i] - (double)plain.pixels[i];
        sum += d * d;
    }
    assert_true(sum > 0);
    assert_true(sum / (double)plain.bytes < 65.0); /* 30 dB */
    drop(&fp8);
    drop(&plain);
}

static void test_whole_checkpoint_gives_the_vae_too(void **state)
{
    oq_env *env = *state;
    const char *dir = scratch_dir(OMNIQ_BINARY_DIR, "component-file-all");
    const spelling s = {"model.diffusion_model.", true, false, true};
    const char *path = write_transformer(env, dir, "all.safetensors", &s);
    outcome file = run(env, "vae", path), folder = run(env, NULL, NULL);
    assert_memory_equal(file.pixels, folder.pixels, folder.bytes);
    drop(&file);
    drop(&folder);
}

static void test_folders_and_wrong_files(void **state)
{
    oq_env *env = *state;
    outcome folder = run(env, "transformer", MODEL "/transformer"), plain = run(env, NULL, NULL);
    assert_memory_equal(folder.pixels, plain.pixels, plain.bytes);
    drop(&folder);
    drop(&plain);
    refused(env, "transformer", MODEL "/text_encoder/model.safetensors", OQ_E_MISMATCH,
            "this is a text encoder (Qwen3), the model needs a transformer (Z-Image)");
    refused(env, "text-encoder", MODEL "/transformer/diffusion_pytorch_model.safetensors.index.json",
            OQ_E_MISMATCH, "this is a transformer (Z-Image), the model needs a text encoder (Qwen3)");
    refused(env, "vae", MODEL "/text_encoder", OQ_E_MISMATCH,
            "this is a text encoder (Qwen3), the model needs an autoencoder (AutoencoderKL)");
    refused(env, "transformer", "no/such.safetensors", OQ_E_NOTFOUND,
            "no/such.safetensors: there is no such file or folder");
    refused(env, "text-encoder-2", MODEL "/text_encoder", OQ_E_ARG,
            "' is given as text_encoder_2, which ZImagePipeline does not have");
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "component-file-none"));
    scratch_safetensors(dir, "stranger.safetensors",
                        "{\"conv.weight\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}",
                        "\0\0\0\0", 4);
    refused(env, "transformer", scratch_path(dir, "stranger.safetensors"), OQ_E_MISMATCH,
            "its 1 tensors (the first is 'conv.weight') are no network that this build knows");
    scratch_safetensors(dir, "flux.safetensors",
                        "{\"net.double_blocks.0.img_attn.qkv.weight\": {\"dtype\": \"F32\", \"shape\": [1], "
                        "\"data_offsets\": [0, 4]}, \"net.vector_in.in_layer.weight\": {\"dtype\": \"F32\", "
                        "\"shape\": [1], \"data_offsets\": [4, 8]}}",
                        "\0\0\0\0\0\0\0\0", 8);
    refused(env, "transformer", scratch_path(dir, "flux.safetensors"), OQ_E_MISMATCH,
            "this is a transformer (FLUX.1), the model needs a transformer (Z-Image)");
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_spellings, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_fused_fp8, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_whole_checkpoint_gives_the_vae_too, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_folders_and_wrong_files, env_setup, env_teardown),
    };
    return cmocka_run_group_tests_name("component_file", tests, NULL, NULL);
}
