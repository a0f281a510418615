/* test_shard_index.c -- sharded checkpoints and component folders: the index and the files must agree, and
 * each way in which they do not has its sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "support/scratch.h"

#include <stdio.h>
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
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "shards"));
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

#define ONE   "model-00001-of-00002.safetensors"
#define TWO   "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"

/* A file that holds one U8 tensor of one element. */
static void put_tensor(const char *dir, const char *file, const char *tensor, unsigned char value)
{
    char header[256];
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
             tensor);
    scratch_safetensors(dir, file, header, &value, 1);
}

static void put_two_shards(const char *dir)
{
    put_tensor(dir, ONE, "a", 1);
    put_tensor(dir, TWO, "b", 2);
    scratch_text(dir, INDEX,
                 "{\"metadata\":{\"total_size\":2},\"weight_map\":{\"b\":\"" TWO "\",\"a\":\"" ONE "\"}}");
}

static void refused_folder(bench *b, const char *folder, const char *variant, oq_status status,
                           const char *text)
{
    oq_ckpt *ckpt = NULL;
    oq_env_clear(b->env);
    assert_int_equal(oq_ckpt_open_folder(b->env, folder, variant, &ckpt), status);
    assert_null(ckpt);
    assert_memory_equal(oq_env_error(b->env), folder, strlen(folder));
    assert_string_equal(oq_env_error(b->env) + strlen(folder), text);
    oq_env_clear(b->env);
}

/* The index is written with this text, then opening it fails so. */
static void refused_index(bench *b, const char *text, oq_status status, const char *message)
{
    char tail[1024];
    scratch_text(b->dir, INDEX, text);
    snprintf(tail, sizeof tail, "/" INDEX ": %s", message);
    refused_folder(b, b->dir, NULL, status, tail);
}

static void holds(bench *b, const char *folder, const char *variant, const char *tensor, int value)
{
    oq_ckpt *ckpt = NULL;
    if (oq_ckpt_open_folder(b->env, folder, variant, &ckpt) != OQ_OK) fail_msg("%s", oq_env_error(b->env));
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, tensor);
    assert_non_null(t);
    assert_int_equal(*t->data, value);
    oq_ckpt_close(ckpt);
}

static void test_two_shards(void **state)
{
    bench *b = *state;
    put_two_shards(b->dir);
    oq_ckpt *ckpt = NULL;
    assert_int_equal(oq_ckpt_open_folder(b->env, b->dir, NULL, &ckpt), OQ_OK);
    assert_int_equal(ckpt->n_files, 2);
    assert_int_equal(ckpt->n_tensors, 2);
    assert_string_equal(ckpt->path, b->dir);
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, "b");
    assert_int_equal(*t->data, 2);
    assert_string_equal(oq_path_leaf(ckpt->files[t->file].path), TWO);
    oq_ckpt_close(ckpt);
    assert_int_equal(oq_ckpt_open(b->env, scratch_path(b->dir, INDEX), &ckpt), OQ_OK);
    assert_string_equal(ckpt->path, b->dir);
    oq_ckpt_close(ckpt);
}

/* sglang#32279: a shard that is not there was silently left out. */
static void test_missing_shards(void **state)
{
    bench *b = *state;
    put_two_shards(b->dir);
    refused_index(b,
                  "{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"x-1.safetensors\",\"c\":\"x-2.safetensors\","
                  "\"d\":\"x-1.safetensors\"}}",
                  OQ_E_NOTFOUND, "2 of 3 files are missing: x-1.safetensors, x-2.safetensors");
}

/* vllm-omni#2517, mlx-vlm#1827, CoSER#3: an index of other files. */
static void test_stale_index(void **state)
{
    bench *b = *state;
    put_two_shards(b->dir);
    refused_index(b, "{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" TWO "\",\"c\":\"" TWO "\"}}", OQ_E_FORMAT,
                  "tensor 'c' is missing in " TWO ": the index does not belong to these files");
    refused_index(b, "{\"weight_map\":{\"a\":\"" ONE "\",\"c\":\"" TWO "\"}}", OQ_E_FORMAT,
                  "does not name tensor 'b' of " TWO ": the index does not belong to these files");
    refused_index(b, "{\"weight_map\":{\"a\":\"" TWO "\",\"b\":\"" ONE "\"}}", OQ_E_FORMAT,
                  "tensor 'a' should be in " TWO ", but is in " ONE
                  ": the index does not belong to these files");
    refused_index(b, "{\"metadata\":{\"total_size\":3},\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" TWO "\"}}",
                  OQ_E_FORMAT,
                  "says 3 bytes of tensors, its files hold 2: the index does not belong to these files");
}

static void test_tensor_in_two_shards(void **state)
{
    bench *b = *state;
    put_two_shards(b->dir);
    put_tensor(b->dir, TWO, "a", 2);
    refused_folder(b, b->dir, NULL, OQ_E_FORMAT, ": tensor 'a' is in two files, " ONE " and " TWO);
}

/* stable-diffusion.cpp follows such names: nothing outside the folder is ever opened. */
static void test_escaping_names(void **state)
{
    bench *b = *state;
    static const char *const names[] = {
        "../x.safetensors", "/etc/passwd", "a/../../x", "", ".", "a//b", "a/", "..", "..\\\\x", "./x"};
    put_two_shards(b->dir);
    for (size_t i = 0; i < OQ_COUNT(names); i++) {
        char text[256], message[256];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        snprintf(message, sizeof message,
                 "the file of tensor 'a' is '%s', which is not a name inside its folder",
                 strcmp(names[i], "..\\\\x") == 0 ? "..\\x" : names[i]);
        refused_index(b, text, OQ_E_FORMAT, message);
    }
}

static void test_malformed_index(void **state)
{
    bench *b = *state;
    put_two_shards(b->dir);
    static const char none[] = "is JSON text, but no index of weight files: it has no weight_map (an object "
                               "from tensor names to file names)";
    refused_index(b, "{\"metadata\":{}}", OQ_E_FORMAT, none);
    refused_index(b, "{\"weight_map\":[]}", OQ_E_FORMAT, none);
    refused_index(b, "{\"weight_map\":{}}", OQ_E_FORMAT, none);
    refused_index(b, "{\"weight_map\":{\"a\":1}}", OQ_E_FORMAT,
                  "the file of tensor 'a' is a whole number, not a string");
    refused_index(b, "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", OQ_E_FORMAT,
                  "duplicate key \"a\" at line 1, column 26");
    refused_index(b, "{\"weight_map\":{\"a\":", OQ_E_FORMAT,
                  "not valid JSON at line 1, column 19: unexpected token near end of file");
}

/* A shard that is no safetensors file, a shard that was cut, and files swapped with each other. */
static void test_damaged_shards(void **state)
{
    bench *b = *state;
    put_two_shards(b->dir);
    scratch_text(b->dir, TWO, "{\"weight_map\":{\"a\":\"" ONE "\"}}");
    refused_folder(b, b->dir, NULL, OQ_E_FORMAT, "/" TWO ": is JSON text, not a safetensors file");
    scratch_safetensors(b->dir, TWO, "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", "b",
                        1);
    refused_folder(b, b->dir, NULL, OQ_E_FORMAT,
                   "/" TWO ": the file ends 1 bytes early (1 of 2 bytes of data): download it again");
    put_tensor(b->dir, ONE, "b", 1);
    put_tensor(b->dir, TWO, "a", 1);
    refused_folder(b, b->dir, NULL, OQ_E_FORMAT,
                   "/" INDEX ": tensor 'a' should be in " ONE ", but is in " TWO
                   ": the index does not belong to these files");
}

/* sglang#35107: two splits of one model side by side. The index decides, whatever else lies there. */
static void test_index_decides(void **state)
{
    bench *b = *state;
    put_two_shards(b->dir);
    put_tensor(b->dir, "model-00001-of-00003.safetensors", "a", 7);
    put_tensor(b->dir, "model-00002-of-00003.safetensors", "b", 7);
    put_tensor(b->dir, "model.safetensors", "a", 8);
    holds(b, b->dir, NULL, "a", 1);
    holds(b, b->dir, NULL, "b", 2);
}

/* accelerate#2946, diffusers#9253: variants and their shards in both spellings, chosen by name. */
static void test_variants(void **state)
{
    bench *b = *state;
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "variants"));
    refused_folder(b, dir, NULL, OQ_E_NOTFOUND,
                   ": holds no weights (diffusion_pytorch_model.safetensors or model.safetensors)");
    put_tensor(dir, "model.fp16.safetensors", "w", 16);
    holds(b, dir, "fp16", "w", 16);
    refused_folder(b, dir, NULL, OQ_E_NOTFOUND,
                   ": holds weights of variant 'fp16' alone: ask for it by --variant fp16");
    refused_folder(b, dir, "bf16", OQ_E_NOTFOUND,
                   ": holds no weights of variant 'bf16', but of variant 'fp16'");
    put_tensor(dir, "model.safetensors", "w", 32);
    holds(b, dir, NULL, "w", 32);
    holds(b, dir, "", "w", 32);
    holds(b, dir, "fp16", "w", 16);
    holds(b, dir, "bf16", "w",
          32); /* as diffusers does: components without the variant use their plain weights */
    put_tensor(dir, "diffusion_pytorch_model.fp16-00001-of-00001.safetensors", "w", 17);
    scratch_text(dir, "diffusion_pytorch_model.safetensors.index.fp16.json",
                 "{\"weight_map\":{\"w\":\"diffusion_pytorch_model.fp16-00001-of-00001.safetensors\"}}");
    holds(b, dir, "fp16", "w", 17);
    put_tensor(dir, "diffusion_pytorch_model-00001-of-00001.fp8.safetensors", "w", 8);
    scratch_text(dir, "diffusion_pytorch_model.fp8.safetensors.index.json",
                 "{\"weight_map\":{\"w\":\"diffusion_pytorch_model-00001-of-00001.fp8.safetensors\"}}");
    holds(b, dir, "fp8", "w", 8);
    holds(b, dir, "../model", "w", 32);
}

/* Folders that hold something, but not what is read. */
static void test_other_files(void **state)
{
    bench *b = *state;
    static const struct {
        const char *file;
        oq_status status;
        const char *text;
    } rows[] = {
        {"model-00001-of-00002.safetensors", OQ_E_NOTFOUND,
         ": holds shards ('model-00001-of-00002.safetensors') without their index "
         "(*.safetensors.index.json)"},
        {"flux.safetensors", OQ_E_NOTFOUND,
         ": holds 'flux.safetensors', but neither diffusion_pytorch_model.safetensors nor model.safetensors"},
        {"flux.pt", OQ_E_NOTFOUND,
         ": holds 'flux.pt', but neither diffusion_pytorch_model.bin nor pytorch_model.bin: name the file "
         "itself"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char dir[1024];
        snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "otherfiles"));
        put_tensor(dir, rows[i].file, "w", 1);
        refused_folder(b, dir, NULL, rows[i].status, rows[i].text);
    }
    refused_folder(b, "no/such/folder", NULL, OQ_E_NOTFOUND, ": cannot be listed: No such file or directory");
}

static void test_toybox(void **state)
{
    bench *b = *state;
    static const struct {
        const char *component;
        size_t tensors;
        int files;
    } rows[] = {{"transformer", 223, 2}, {"text_encoder", 35, 1}, {"vae", 184, 1}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_ckpt *ckpt = NULL;
        const char *folder = scratch_path(OMNIQ_SOURCE_DIR "/models/toybox", rows[i].component);
        assert_int_equal(oq_ckpt_open_folder(b->env, folder, NULL, &ckpt), OQ_OK);
        assert_int_equal(ckpt->n_tensors, rows[i].tensors);
        assert_int_equal(ckpt->n_files, rows[i].files);
        for (size_t t = 0; t < ckpt->n_tensors; t++) assert_ptr_equal(ckpt->tensors[t].dtype, &oq_dtype_bf16);
        oq_ckpt_close(ckpt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_shards),     cmocka_unit_test(test_missing_shards),
        cmocka_unit_test(test_stale_index),    cmocka_unit_test(test_tensor_in_two_shards),
        cmocka_unit_test(test_escaping_names), cmocka_unit_test(test_malformed_index),
        cmocka_unit_test(test_damaged_shards), cmocka_unit_test(test_index_decides),
        cmocka_unit_test(test_variants),       cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_toybox),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
