/* test_golden_folder.c -- the folders that parity tests make for themselves: weights follow the manifest, value by value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "support/golden_folder.h"
#include "support/scratch.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

static const char MANIFEST[] =
    "{\"tensors\":[{\"name\":\"a.weight\",\"shape\":[3,2],\"scale\":0.5,\"offset\":0.0},\n"
    "{\"name\":\"b.weight\",\"tied_to\":\"a.weight\"},{\"name\":\"n.weight\",\"shape\":[3],\"scale\":0.25,"
    "\"offset\":1}]}";

/* From reference values of the rule: tensor("a.weight", (3, 2), 0.5, 0), tensor("n.weight", (3,), 0.25, 1). */
static const float A[] = {0.1705169677734375f, -0.270843505859375f, 0.4033203125f,
                          0.477264404296875f,  -0.457000732421875f, -0.271636962890625f},
                   N[] = {0.96038818359375f, 1.095977783203125f, 1.2198333740234375f};

static void test_weights_follow_the_manifest(void **state)
{
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    char data[512], out[512];
    (void)state;
    snprintf(data, sizeof data, "%s", scratch_dir(OMNIQ_BINARY_DIR, "golden-data"));
    snprintf(out, sizeof out, "%s", scratch_dir(OMNIQ_BINARY_DIR, "golden-out"));
    scratch_text(data, "model_index.json", "{}");
    scratch_subdir(data, "vae");
    scratch_text(scratch_path(data, "vae"), "config.json", "{\"a\":1}");
    scratch_text(scratch_path(data, "vae"), "weights.json", MANIFEST);
    golden_folder_make(env, data, out, &oq_dtype_f32);
    oq_ckpt *ckpt = NULL;
    assert_int_equal(oq_ckpt_open(env, scratch_path(out, "vae/diffusion_pytorch_model.safetensors"), &ckpt),
                     OQ_OK);
    assert_int_equal(ckpt->n_tensors, 2);
    assert_memory_equal(oq_ckpt_find(ckpt, "a.weight")->data, A, sizeof A);
    assert_memory_equal(oq_ckpt_find(ckpt, "n.weight")->data, N, sizeof N);
    oq_ckpt_close(ckpt);
    oq_env_free(env);
}

static void test_ids_are_prompts(void **state)
{
    oq_env *env = NULL;
    oq_tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    static const int32_t known[] = {7, 9, 49406, 7, 49407}, want[] = {49406, 9, 7, 9, 49407};
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    (void)state;
    const char *dir = scratch_dir(OMNIQ_BINARY_DIR, "golden-ids");
    golden_ids_tokenizer(env, dir, known, 5, 49406, 49407);
    if (oq_tokenizer_open(env, dir, &t) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(oq_tokenizer_encode(env, t, "<9><7><9>", 9, true, &ids, &n), OQ_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(ids, want, sizeof want);
    oq_free(env, ids);
    oq_tokenizer_close(env, t);
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_follow_the_manifest),
        cmocka_unit_test(test_ids_are_prompts),
    };
    return cmocka_run_group_tests_name("golden_folder", tests, NULL, NULL);
}
