/* test_verify.c -- --verify-against: what each layout holds stands at its format's promise beside the plain weights; a layer
 * that was spoilt is an error that names it and the cause. */
#include "support/env_setup.h"
#include "support/scratch.h"
#include "support/toybox_run.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEW           "\"ignored_layers\": [\"layers\"]"
#define W4            "{\"method\": \"w4a16\", \"group_size\": 32, " FEW "}"
#define W4Z           "{\"method\": \"w4a16\", \"group_size\": 64, \"sym\": false, " FEW "}"
#define FEWER(method) "{\"method\": \"" method "\", " FEW "}"

static const struct {
    const char *quantization, *layout, *file;
} held[] = {
    {FEWER("nvfp4"), "compressed-tensors", "a.safetensors"},
    {FEWER("nvfp4"), "modelopt", "a.safetensors"},
    {FEWER("nvfp4"), "comfy", "a.safetensors"},
    {FEWER("nvfp4"), "torchao", "a.safetensors"},
    {FEWER("mxfp8"), "comfy", "a.safetensors"},
    {FEWER("mxfp4"), "auto-round", "folder"},
    {W4, "auto-round", "folder"},
    {W4Z, "auto-round-awq", "folder"},
    {FEWER("bitsandbytes"), "bitsandbytes", "folder"},
    {FEWER("int8"), "quanto", "folder"},
    {FEWER("fp8"), "comfy", "a.safetensors"},
    {FEWER("gguf"), "gguf", "a.gguf"},
};

/* Through the file's names, and as the plan of the whole model sees it. */
static void test_layouts_keep_their_promise(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "verify")), out[512];
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        oq_json *report = NULL, *plan = NULL;
        snprintf(out, sizeof out, "%s/%s", root, held[i].file);
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", held[i].quantization, "layout", held[i].layout, "output",
                                   out, "force", "true", NULL},
             NULL);
        done(env, "inspect", out, (const char *const[]){"verify-against", MODEL, NULL}, &report);
        const oq_json *layers = oq_json_get(oq_json_get(report, "verify"), "layers");
        assert_int_equal(oq_json_size(layers), 14);
        for (size_t l = 0; l < oq_json_size(layers); l++) {
            const double got = oq_json_real(oq_json_get(oq_json_at(layers, l), "snr_db"), 0);
            const double promised = oq_json_real(oq_json_get(oq_json_at(layers, l), "promised_db"), 0);
            if (!(fabs(got - promised) < 0.05 && got > 15)) {
                print_error("%s: %.2f dB of %.2f\n", held[i].layout, got, promised);
                fail();
            }
        }
        done(env, "plan", NULL,
             (const char *const[]){"model", MODEL, "transformer", out, "verify-against", MODEL, NULL}, &plan);
        assert_int_equal(oq_json_size(oq_json_get(oq_json_get(plan, "verify"), "layers")), 14);
        oq_json_free(report);
        oq_json_free(plan);
    }
    free(root);
}

/* ---- spoilt files ---------------------------------------------------------------------------------------- */

static void spoil_nibbles(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(p[i] << 4 | p[i] >> 4);
}

static void spoil_inverse(uint8_t *p, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i += 4) {
        float x;
        memcpy(&x, p + i, sizeof x);
        x = 1.0f / x;
        memcpy(p + i, &x, sizeof x);
    }
}

static void spoil_half(uint8_t *p, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i += 4) {
        float x;
        memcpy(&x, p + i, sizeof x);
        x *= 0.25f;
        memcpy(p + i, &x, sizeof x);
    }
}

static void spoil_order(uint8_t *p, size_t n) /* tiles of 512 rows x 12 scales written as if they were rows */
{
    uint8_t *copy = malloc(n);
    assert_non_null(copy);
    memcpy(copy, p, n);
    for (size_t r = 0; r < 512; r++)
        for (size_t g = 0; g < 12; g++)
            p[(r / 128 * 3 + g / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + g % 4] = copy[r * 12 + g];
    free(copy);
}

static void spoil_zeros(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(p[i] + 1);
}

static void spoil_all(uint8_t *p, size_t n)
{
    uint32_t s = 7;
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)((s = s * 1664525u + 1013904223u) >> 24) & 0x77;
}

static void spoil_halves(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        const uint8_t first = p[i];
        p[i] = p[n / 2 + i];
        p[n / 2 + i] = first;
    }
}

#define W1 "context_refiner.0.feed_forward.w1" /* [512, 192] */
static const struct {
    const char *quantization, *layout, *tensor;
    void (*spoil)(uint8_t *p, size_t n);
    const char *text;
} spoilt[] = {
    {FEWER("nvfp4"), "modelopt", W1 ".weight", spoil_nibbles, "the two codes of each byte are swapped (20."},
    {FEWER("nvfp4"), "modelopt", W1 ".weight_scale", spoil_order,
     "its scales stand in tiles of 128 x 4, but are taken for rows"},
    {FEWER("nvfp4"), "modelopt", W1 ".weight_scale_2", spoil_inverse,
     "its scale of the tensor is the inverse"},
    {FEWER("nvfp4"), "modelopt", W1 ".weight_scale_2", spoil_half, "its scales are too small"},
    {FEWER("nvfp4"), "modelopt", W1 ".weight", spoil_all, "its values have nothing to do with the base's"},
    {FEWER("int8"), "compressed-tensors", W1 ".weight_scale", spoil_inverse, "its scales are the inverse"},
    {FEWER("fp8"), "compressed-tensors", W1 ".weight", spoil_halves,
     "the two halves of its rows are exchanged"},
    {W4Z, "torchao", W1 "._weight_zero_point", spoil_zeros, "its zero points are one too large"},
};

static void spoil_file(oq_env *env, const char *path, const char *tensor, void (*spoil)(uint8_t *p, size_t n))
{
    oq_ckpt *ckpt = NULL;
    assert_int_equal(oq_ckpt_open(env, path, &ckpt), OQ_OK);
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, tensor);
    assert_non_null(t);
    const long at = (long)(t->data - ckpt->files[0].map.data);
    const size_t n = t->bytes;
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    memcpy(bytes, t->data, n);
    oq_ckpt_close(ckpt);
    spoil(bytes, n);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    free(bytes);
}

static void expect_error(oq_env *env, const char *command, const char *argument, const char *const *pairs,
                         const char *text)
{
    const oq_status st = toybox_command(env, command, argument, pairs, NULL);
    if (st != OQ_E_MISMATCH || !strstr(oq_env_error(env), text) || !strstr(oq_env_error(env), W1))
        fail_msg("%s: %s, not %s", oq_status_name(st), oq_env_error(env), text);
    oq_env_clear(env);
}

static void test_spoilt_layers_are_named(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "verify-spoilt")), out[512];
    snprintf(out, sizeof out, "%s/a.safetensors", root);
    for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++) {
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", spoilt[i].quantization, "layout", spoilt[i].layout,
                                   "output", out, "force", "true", NULL},
             NULL);
        spoil_file(env, out, spoilt[i].tensor, spoilt[i].spoil);
        expect_error(env, "inspect", out, (const char *const[]){"verify-against", TRANSFORMER, NULL},
                     spoilt[i].text);
        expect_error(env, "plan", NULL,
                     (const char *const[]){"model", MODEL, "transformer", out, "verify-against", MODEL, NULL},
                     spoilt[i].text);
    }
    free(root);
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    assert_int_equal(toybox_command(env, "plan", NULL,
                                    (const char *const[]){"model", MODEL, "verify-against", MODEL, NULL},
                                    NULL),
                     OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "the model's files hold no quantized layer"));
    oq_env_clear(env);
    assert_int_equal(
        toybox_command(env, "plan", NULL,
                       (const char *const[]){"model", MODEL, "verify-against", "no/such/model", NULL}, NULL),
        OQ_E_NOTFOUND);
    oq_env_clear(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layouts_keep_their_promise, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_spoilt_layers_are_named, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, env_setup, env_teardown),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
