/* test_quantize_gptq.c -- rounding that makes up for its errors, through the command: every integer layout is written, read back
 * and run; outputs on the prompts are nearer than by rounding to nearest; any memory for sums gives the same file; layers that the
 * prompts do not reach are told; what has nothing to compensate is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"

#include "support/env_setup.h"
#include "support/scratch.h"
#include "support/toybox_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS                                                                                              \
    "prompt", "a small blue star on a white background", "prompt", "a large striped green heart", "steps",   \
        "3", "width", "128", "height", "128"
#define INT4 "{\"method\": \"w4a16\", \"bits\": 4, \"group_size\": 64}"

static const struct {
    const char *spec, *layout, *format, *desc_act;
    double db; /* the least PSNR beside the plain picture */
} rows[] = {
    {INT4, "compressed-tensors", "int4_g64", NULL, 14},
    {INT4, "auto-round", "int4_g64", "false", 14},
    {"{\"method\": \"w4a16\", \"group_size\": 32, \"sym\": false}", "auto-round-awq", "int4z_g32", NULL, 14},
    {"{\"method\": \"w4a16\", \"bits\": 3, \"group_size\": 32}", "compressed-tensors", "int3_g32", NULL, 10},
    {"{\"method\": \"w4a16\", \"group_size\": 32}", "torchao", "int4_g32", NULL, 14},
    {INT4, "gptq", "int4_g64", "true", 14},
    {INT4, "gptq", "int4_g64", "static_groups", 14},
    {INT4, "gptq", "int4_g64", "false", 14},
    {"{\"method\": \"w4a16\", \"group_size\": 32, \"sym\": false}", "gptq", "int4z_g32", "true", 14},
};

static void expect_rounding(const oq_json *layers, const char *format)
{
    assert_int_equal(oq_json_size(layers), 98);
    for (size_t i = 0; i < oq_json_size(layers); i++) {
        const oq_json *l = oq_json_at(layers, i), *r = oq_json_get(l, "rounding");
        assert_string_equal(oq_json_string(oq_json_get(l, "format")), format);
        assert_string_equal(oq_json_string(oq_json_get(r, "how")), "compensated");
        assert_true(oq_json_real(oq_json_get(r, "output_snr_db"), 0) >
                    oq_json_real(oq_json_get(r, "nearest_output_snr_db"), 1e9));
    }
}

/* The groups of columns in the file, and what its configuration says of them: a desc_act file's stand in another order than its
 * columns, though each group has as many. */
static void expect_order(oq_env *env, const char *out, bool desc_act)
{
    oq_ckpt *c = NULL;
    oq_json *config = NULL;
    size_t n = 0, moved = 0;
    char *path = oq_path_join(env, out, "config.json");
    assert_int_equal(oq_ckpt_open_folder(env, out, NULL, &c), OQ_OK);
    for (size_t i = 0; i < c->n_tensors; i++) {
        const oq_ckpt_tensor *t = &c->tensors[i];
        if (!strstr(t->name, ".g_idx")) continue;
        bool sequential = true;
        for (int64_t k = 1; k < t->elems; k++)
            sequential &= ((const int32_t *)t->data)[k - 1] <= ((const int32_t *)t->data)[k];
        n++;
        moved += !sequential;
    }
    assert_int_equal(n, 98);
    assert_true(desc_act ? moved > 90 : moved == 0); /* a layer of one group has no other order */
    assert_int_equal(oq_json_parse_file(env, path, (size_t)1 << 20, &config), OQ_OK);
    assert_int_equal(
        oq_json_bool(oq_json_get(oq_json_get(config, "quantization_config"), "desc_act"), !desc_act),
        desc_act);
    oq_json_free(config);
    oq_free(env, path);
    oq_ckpt_close(c);
}

static void test_layouts(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gptq-layouts")), out[512];
    const picture plain = draw(env, MODEL, NULL, NULL);
    snprintf(out, sizeof out, "%s/out", root);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_json *json = NULL;
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"model", MODEL, "quantization", rows[i].spec, "gptq", "true", "layout",
                                   rows[i].layout, "output", out, "force", "true", PROMPTS,
                                   rows[i].desc_act ? "desc-act" : NULL, rows[i].desc_act, NULL},
             &json);
        oq_json *layers = of_transformer(json, "layers");
        expect_rounding(layers, rows[i].format);
        assert_int_equal(oq_json_int(oq_json_get(oq_json_get(json, "calibration"), "compensated_layers"), 0),
                         98);
        assert_true(oq_json_bool(oq_json_get(json, "verified"), false));
        if (strcmp(rows[i].layout, "gptq") == 0)
            expect_order(env, out, strcmp(rows[i].desc_act, "true") == 0);
        const picture got = draw(env, MODEL, "transformer", out);
        const double db = psnr(&plain, &got);
        print_message("%s in %s, desc_act %s: %.1f dB\n", rows[i].spec, rows[i].layout,
                      rows[i].desc_act ? rows[i].desc_act : "not given", db);
        if (!(db >= rows[i].db && db < 90)) fail_msg("%s in %s: %.1f dB", rows[i].spec, rows[i].layout, db);
        free(got.pixels);
        oq_json_free(layers);
        oq_json_free(json);
        /* Weights that were moved on purpose are still those of the model. */
        done(env, "inspect", out, (const char *const[]){"verify-against", TRANSFORMER, NULL}, &json);
        oq_json_free(json);
    }
    free(plain.pixels);
    free(root);
}

/* One run or many, the same bytes; none of them those of rounding to nearest. */
static void test_memory(void **state)
{
    static const char *const options[] = {"gptq-memory", "gptq-memory", "quiet"};
    static const char *const values[] = {"1GiB", "300K", "true"};
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gptq-memory")), out[3][512], *bytes[3];
    size_t n[3];
    int64_t runs[3];
    for (int i = 0; i < 3; i++) {
        oq_json *json = NULL;
        snprintf(out[i], sizeof out[i], "%s/%d.safetensors", root, i);
        const char *const with[] = {"model",    MODEL,     "quantization",        INT4,   "output", out[i],
                                    options[i], values[i], i < 2 ? "gptq" : NULL, "true", PROMPTS,  NULL};
        done(env, "quantize", TRANSFORMER, with, &json);
        runs[i] = oq_json_int(oq_json_get(oq_json_get(json, "calibration"), "compensation_runs"), 0);
        assert_int_equal(oq_file_read(env, out[i], (size_t)1 << 30, &bytes[i], &n[i]), OQ_OK);
        oq_json_free(json);
    }
    assert_int_equal(runs[0], 1);
    assert_true(runs[1] > 10);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    assert_true(n[0] != n[2] || memcmp(bytes[0], bytes[2], n[0]) != 0);
    for (int i = 0; i < 3; i++) oq_free(env, bytes[i]);
    free(root);
}

/* The text encoder's last block runs for no prompt: it is rounded to nearest, and that is said. A whole model of several
 * components; beside it layers with static activations, which take a run of their own. */
static void test_whole_model(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gptq-model")), out[512];
    oq_json *json = NULL;
    int told = 0;
    snprintf(out, sizeof out, "%s/out", root);
    done(env, "quantize", MODEL,
         (const char *const[]){"quantization",
                               "{\"text_encoder\": " INT4 ", \"transformer\": {\"method\": \"fp8\", "
                               "\"activation_scheme\": \"static\"}, \"transformer.layers.0\": " INT4 "}",
                               "gptq", "true", "output", out, PROMPTS, NULL},
         &json);
    const oq_json *c = oq_json_get(json, "components");
    const oq_json *layers = oq_json_get(oq_json_get(c, "text_encoder"), "layers");
    for (size_t i = 0; i < oq_json_size(layers); i++) {
        const char *how = oq_json_string(oq_json_get(oq_json_get(oq_json_at(layers, i), "rounding"), "how"));
        const bool last =
            strncmp(oq_json_string(oq_json_get(oq_json_at(layers, i), "name")), "layers.2.", 9) == 0;
        assert_string_equal(how, last ? "to nearest: the prompts do not reach it" : "compensated");
        told += last;
    }
    assert_int_equal(told, 7);
    const oq_json *by = oq_json_get(json, "calibration");
    assert_int_equal(oq_json_int(oq_json_get(by, "compensated_layers"), 0), 21 + 7);
    assert_int_equal(oq_json_int(oq_json_get(by, "static_scales"), 0), 91);
    const picture plain = draw(env, MODEL, NULL, NULL), got = draw(env, out, NULL, NULL);
    assert_true(psnr(&plain, &got) > 14);
    free(plain.pixels);
    free(got.pixels);
    oq_json_free(json);
    free(root);
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gptq-refusals")), out[512];
    snprintf(out, sizeof out, "%s/out", root);
    for (int dry = 0; dry < 2; dry++) {
        const char *last = dry ? "dry-run" : NULL;
        refused(env, MODEL,
                (const char *const[]){"output", out, "quantization", "int8", "gptq", "true", PROMPTS, last,
                                      "true", NULL},
                OQ_E_CONFIG, "--gptq rounds layers of integers in groups (method w4a16), and there are none");
        refused(
            env, MODEL,
            (const char *const[]){"output", out, "quantization", INT4, "gptq", "true", last, "true", NULL},
            OQ_E_ARG, "give some with --prompt or --prompt-file");
        refused(env, MODEL,
                (const char *const[]){"output", out, "quantization", INT4, "gptq-damping", "0.1", last,
                                      "true", NULL},
                OQ_E_ARG, "'gptq-damping' is given without --gptq");
        refused(env, MODEL,
                (const char *const[]){"output", out, "quantization", INT4, "desc-act", "true", last, "true",
                                      NULL},
                OQ_E_ARG, "'desc-act' is given without --gptq");
        refused(env, MODEL,
                (const char *const[]){"output", out, "quantization", INT4, "gptq", "true", "desc-act", "true",
                                      "layout", "compressed-tensors", PROMPTS, last, "true", NULL},
                OQ_E_MISMATCH, "reordered; it holds FP8");
        refused(env, MODEL,
                (const char *const[]){"output", out, "quantization", INT4, "gptq", "true", "gptq-memory",
                                      "much", PROMPTS, last, "true", NULL},
                OQ_E_ARG, "--gptq-memory 'much': want a size such as");
        refused(env, TRANSFORMER,
                (const char *const[]){"output", out, "quantization", INT4, "gptq", "true", PROMPTS, last,
                                      "true", NULL},
                OQ_E_ARG, "name its folder with -m DIR");
    }
    assert_false(oq_file_exists(out));
    free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layouts, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_memory, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_whole_model, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, env_setup, env_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
