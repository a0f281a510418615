/* test_model_folder.c -- whole models: model_index.json, component configurations, quantization metadata, and
 * "org/name" in the Hugging Face cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    oq_env *env;
    const char *dir;
} bench;

static int setup(void **state)
{
    static bench b;
    static char dir[1024];
    if (oq_env_new(NULL, &b.env) != OQ_OK) return -1;
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "folder"));
    b.dir = dir;
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    oq_env_free(b->env);
    return 0;
}

static void refused(bench *b, const char *model, oq_status status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void refused(bench *b, const char *model, oq_status status, const char *fmt, ...)
{
    oq_folder *folder = NULL;
    char expected[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(expected, sizeof expected, fmt, args);
    va_end(args);
    oq_env_clear(b->env);
    assert_int_equal(oq_folder_open(b->env, model, &folder), status);
    assert_null(folder);
    assert_string_equal(oq_env_error(b->env), expected);
    oq_env_clear(b->env);
}

static void test_toybox(void **state)
{
    bench *b = *state;
    oq_folder *f = NULL;
    assert_int_equal(oq_folder_open(b->env, "models/toybox/", &f), OQ_OK);
    assert_string_equal(f->path, "models/toybox");
    assert_string_equal(f->class_name, "ZImagePipeline");
    assert_int_equal(f->n_components, 5);
    assert_int_equal(oq_json_int(oq_json_get(f->defaults, "steps"), 0), 8);
    const oq_folder_component *t = oq_folder_find(f, "transformer");
    assert_string_equal(t->library, "diffusers");
    assert_string_equal(t->class_name, "ZImageTransformer2DModel");
    assert_string_equal(t->path, "models/toybox/transformer");
    assert_int_equal(oq_json_int(oq_json_get(t->config, "n_layers"), 0), 12);
    assert_null(t->quant);
    assert_null(t->quant_source);
    assert_non_null(oq_json_get(oq_folder_find(f, "scheduler")->config, "num_train_timesteps"));
    assert_null(oq_folder_find(f, "tokenizer")->config);
    assert_null(oq_folder_find(f, "unet"));
    oq_folder_close(f);
}

#define MODEL(components) "{\"_class_name\":\"P\",\"_diffusers_version\":\"0.1\"" components "}"

/* Components that are switched off, and the pipeline's own values between them. */
static void test_other_members(void **state)
{
    bench *b = *state;
    oq_folder *f = NULL;
    scratch_text(b->dir, "model_index.json",
                 MODEL(",\"boundary_ratio\":0.875,\"sizes\":[1,2],\"names\":[\"a\",\"b\",\"c\"],"
                       "\"safety_checker\":[null,null],\"vae\":[\"diffusers\",\"AutoencoderKL\"]"));
    assert_int_equal(oq_folder_open(b->env, b->dir, &f), OQ_OK);
    assert_int_equal(f->n_components, 2);
    assert_null(oq_folder_find(f, "safety_checker")->class_name);
    assert_null(oq_folder_find(f, "vae")->config); /* its folder is not there: whoever needs it says so */
    assert_null(f->defaults);
    oq_folder_close(f);
}

static void test_quantization_metadata(void **state)
{
    bench *b = *state;
    oq_folder *f = NULL;
    scratch_text(b->dir, "model_index.json",
                 MODEL(",\"transformer\":[\"diffusers\",\"T\"],\"text_encoder\":[\"transformers\",\"E\"],"
                       "\"vae\":[\"diffusers\",\"V\"]"));
    scratch_subdir(b->dir, "transformer");
    scratch_text(b->dir, "transformer/config.json", "{\"quantization_config\":{\"quant_method\":\"fp8\"}}");
    scratch_text(b->dir, "transformer/hf_quant_config.json", "{\"producer\":{\"name\":\"modelopt\"}}");
    scratch_subdir(b->dir, "text_encoder");
    scratch_text(b->dir, "text_encoder/config.json", "{\"quantization_config\":null}");
    scratch_text(b->dir, "text_encoder/hf_quant_config.json", "{\"producer\":{\"name\":\"modelopt\"}}");
    assert_int_equal(oq_folder_open(b->env, b->dir, &f), OQ_OK);
    const oq_folder_component *t = oq_folder_find(f, "transformer"), *e = oq_folder_find(f, "text_encoder");
    assert_string_equal(oq_json_string(oq_json_get(t->quant, "quant_method")), "fp8");
    assert_string_equal(oq_path_leaf(t->quant_source), "config.json");
    assert_non_null(oq_json_get(e->quant, "producer"));
    assert_string_equal(oq_path_leaf(e->quant_source), "hf_quant_config.json");
    assert_null(oq_folder_find(f, "vae")->quant);
    oq_folder_close(f);

    scratch_text(b->dir, "transformer/config.json", "{\"quantization_config\":\"fp8\"}");
    refused(b, b->dir, OQ_E_CONFIG,
            "%s/transformer/config.json: quantization_config is a string, not an object", b->dir);
    scratch_text(b->dir, "transformer/config.json", "{}");
    scratch_text(b->dir, "transformer/hf_quant_config.json", "[]");
    refused(b, b->dir, OQ_E_FORMAT, "%s/transformer/hf_quant_config.json: is a list, not an object", b->dir);
    scratch_text(b->dir, "transformer/config.json", "{\"dim\": 1, \"dim\": 2}");
    refused(b, b->dir, OQ_E_FORMAT, "%s/transformer/config.json: duplicate key \"dim\" at line 1, column 16",
            b->dir);
}

static void test_malformed_index(void **state)
{
    bench *b = *state;
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "badfolder"));
    refused(b, dir, OQ_E_NOTFOUND, "%s: has no model_index.json", dir);
    scratch_text(dir, "config.json", "{}");
    refused(b, dir, OQ_E_NOTFOUND, "%s: has no model_index.json: it is one component's folder, not a model's",
            dir);
    scratch_text(dir, "model_index.json", "[]");
    refused(b, dir, OQ_E_FORMAT, "%s/model_index.json: is a list, not an object", dir);
    scratch_text(dir, "model_index.json", "{\"vae\":[\"diffusers\",\"AutoencoderKL\"]}");
    refused(b, dir, OQ_E_FORMAT, "%s/model_index.json: has no _class_name (the pipeline's class)", dir);
    scratch_text(dir, "model_index.json", MODEL(""));
    refused(b, dir, OQ_E_FORMAT, "%s/model_index.json: names no component", dir);
    scratch_text(dir, "model_index.json", MODEL(",\"../../etc\":[\"diffusers\",\"AutoencoderKL\"]"));
    refused(b, dir, OQ_E_FORMAT,
            "%s/model_index.json: component name '../../etc' is not the name of a folder", dir);
    scratch_text(dir, "model_index.json", MODEL(",\"vae\":[\"diffusers\",\"V\"]"));
    scratch_text(dir, "omniq.json", "7");
    refused(b, dir, OQ_E_FORMAT, "%s/omniq.json: is a whole number, not an object", dir);
}

static void test_not_a_model(void **state)
{
    bench *b = *state;
    refused(b, "", OQ_E_NOTFOUND, "model '': there is no such file or folder");
    refused(b, "no/such/folder", OQ_E_NOTFOUND, "no/such/folder: there is no such file or folder");
    refused(b, "models/toybox/omniq.json", OQ_E_ARG,
            "models/toybox/omniq.json: is a file; a model is a folder with a model_index.json (a file goes "
            "beside one: -m "
            "DIR --transformer FILE)");
}

/* ---- the cache ----------------------------------------------------------------------------------------- */

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static void put_snapshot(const char *hub, const char *commit)
{
    char path[256];
    snprintf(path, sizeof path, "models--org--Name-1.0/snapshots/%s", commit);
    scratch_subdir(hub, path);
    snprintf(path, sizeof path, "models--org--Name-1.0/snapshots/%s/model_index.json", commit);
    scratch_text(hub, path, MODEL(",\"vae\":[\"diffusers\",\"V\"]"));
}

static void opens_snapshot(bench *b, const char *hub, const char *commit)
{
    char path[2048];
    oq_folder *f = NULL;
    if (oq_folder_open(b->env, "org/Name-1.0", &f) != OQ_OK) fail_msg("%s", oq_env_error(b->env));
    snprintf(path, sizeof path, "%s/models--org--Name-1.0/snapshots/%s", hub, commit);
    assert_string_equal(f->path, path);
    oq_folder_close(f);
}

static void test_cache(void **state)
{
    bench *b = *state;
    char root[1024], hub[1100];
    snprintf(root, sizeof root, "%s", scratch_dir(OMNIQ_BINARY_DIR, "cache"));
    snprintf(hub, sizeof hub, "%s/hub", root);
    scratch_subdir(root, "hub");
    setenv("HF_HUB_CACHE", hub, 1);
    refused(b, "org/Name-1.0", OQ_E_NOTFOUND,
            "model 'org/Name-1.0' is neither a folder nor in the Hugging Face cache %s: run 'hf download "
            "org/Name-1.0', or "
            "name the folder that holds its model_index.json",
            hub);
    scratch_subdir(hub, "models--org--Name-1.0");
    scratch_subdir(hub, "models--org--Name-1.0/snapshots");
    refused(b, "org/Name-1.0", OQ_E_NOTFOUND,
            "model 'org/Name-1.0' has 0 snapshots in %s/models--org--Name-1.0/snapshots and no refs/main: "
            "name the folder of "
            "one of them",
            hub);
    put_snapshot(hub, "aaaaaaaa");
    opens_snapshot(b, hub, "aaaaaaaa");
    put_snapshot(hub, COMMIT);
    refused(b, "org/Name-1.0", OQ_E_NOTFOUND,
            "model 'org/Name-1.0' has 2 snapshots in %s/models--org--Name-1.0/snapshots and no refs/main: "
            "name the folder of "
            "one of them",
            hub);
    scratch_subdir(hub, "models--org--Name-1.0/refs");
    scratch_text(hub, "models--org--Name-1.0/refs/main", COMMIT);
    opens_snapshot(b, hub, COMMIT);
    scratch_text(hub, "models--org--Name-1.0/refs/main", "bbbbbbbb\n");
    refused(b, "org/Name-1.0", OQ_E_NOTFOUND,
            "model 'org/Name-1.0': refs/main names snapshot bbbbbbbb, which is not in "
            "%s/models--org--Name-1.0/snapshots: run "
            "'hf download org/Name-1.0'",
            hub);
    scratch_text(hub, "models--org--Name-1.0/refs/main", "../../../etc");
    refused(b, "org/Name-1.0", OQ_E_NOTFOUND,
            "model 'org/Name-1.0' has 2 snapshots in %s/models--org--Name-1.0/snapshots and no refs/main: "
            "name the folder of "
            "one of them",
            hub);
    scratch_text(hub, "models--org--Name-1.0/refs/main", COMMIT);
    unsetenv("HF_HUB_CACHE");
    setenv("HF_HOME", root, 1);
    opens_snapshot(b, hub, COMMIT);
    unsetenv("HF_HOME");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_toybox),
        cmocka_unit_test(test_other_members),
        cmocka_unit_test(test_quantization_metadata),
        cmocka_unit_test(test_malformed_index),
        cmocka_unit_test(test_not_a_model),
        cmocka_unit_test(test_cache),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
