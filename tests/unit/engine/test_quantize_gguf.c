/* test_quantize_gguf.c -- GGUF files as they are written: every type back to plain weights that are the format's own encode
 * and decode, run, in the names of the source and of the first release, and taken on into other layouts. */
#include "support/env_setup.h"
#include "support/scratch.h"
#include "support/toybox_run.h"

#include "format/format.h"
#include "format/gguf_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *type;
    double db; /* the least PSNR beside the plain picture; 0: none is drawn */
    bool same; /* and it is the one that loading gives */
} rows[] = {
    {"Q8_0", 40, true},  {"Q4_K", 24, true},  {"NVFP4", 18, true},  {"Q2_K", 10, false},  {"Q6_K", 0, false},
    {"Q5_K", 0, false},  {"Q3_K", 0, false},  {"Q8_K", 0, false},   {"Q5_1", 0, false},   {"Q5_0", 0, false},
    {"Q4_1", 0, false},  {"Q4_0", 0, false},  {"IQ4_NL", 0, false}, {"IQ4_XS", 0, false}, {"MXFP4", 0, false},
    {"TQ2_0", 0, false}, {"TQ1_0", 0, false},
};

/* Only the two refiners' layers, which is enough of each type; the rest of the file is plain. */
static void spec_of(const char *type, bool whole, char out[256])
{
    snprintf(out, 256, "{\"method\": \"gguf\", \"type\": \"%s\"%s}", type,
             whole ? "" : ", \"ignored_layers\": [\"layers\"]");
}

static void expect_picture(oq_env *env, size_t i, const char *spec, const char *file, const picture *plain)
{
    const picture got = draw(env, MODEL, "transformer", file);
    const double db = psnr(plain, &got);
    if (!(db >= rows[i].db && db < 90)) fail_msg("%s: %.1f dB", rows[i].type, db);
    if (rows[i].same) {
        char wish[512];
        snprintf(wish, sizeof wish, "{\"transformer\": %s}", spec);
        const picture online = draw(env, MODEL, "quantization", wish);
        if (memcmp(online.pixels, got.pixels, got.n) != 0)
            fail_msg("%s: another picture than while loading", rows[i].type);
        free(online.pixels);
    }
    free(got.pixels);
}

static void test_types(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-gguf-types")), out[512], back[512], spec[256];
    const picture plain = draw(env, MODEL, NULL, NULL);
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(back, sizeof back, "%s/back", root);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        oq_json *json = NULL;
        spec_of(rows[i].type, rows[i].db > 0, spec);
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", spec, "output", out, "force", "true", NULL}, &json);
        oq_json *layers = of_transformer(json, "layers");
        bool asked = false;
        for (size_t l = 0; l < oq_json_size(layers); l++)
            asked |= oq_format_find(oq_json_string(oq_json_get(oq_json_at(layers, l), "format"))) ==
                     oq_gguf_type_by_name(rows[i].type)->format;
        assert_true(asked); /* rows of 192 take the next smaller block, those of 512 the type */
        expect_plain_again(env, out, back, layers);
        if (rows[i].db > 0) expect_picture(env, i, spec, out, &plain);
        oq_json_free(layers);
        oq_json_free(json);
    }
    free(plain.pixels);
    free(root);
}

/* One GGUF file; q, k and v as one where the first release holds them so: the same picture. */
static void test_gguf_file(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-gguf")), source[512], original[512],
         again[512];
    static const char q8[] = "{\"method\": \"gguf\", \"type\": \"Q8_0\"}";
    oq_json *report = NULL;
    oq_ckpt *ckpt = NULL;
    snprintf(source, sizeof source, "%s/source.gguf", root);
    snprintf(original, sizeof original, "%s/original.gguf", root);
    snprintf(again, sizeof again, "%s/again.safetensors", root);
    done(env, "quantize", TRANSFORMER, (const char *const[]){"quantization", q8, "output", source, NULL},
         NULL);
    done(env, "quantize", TRANSFORMER,
         (const char *const[]){"quantization", q8, "output", original, "names", "original", NULL}, &report);
    oq_json *layers = of_transformer(report, "layers");
    assert_int_equal(oq_json_size(layers), 70); /* 14 blocks, q, k and v as one */
    oq_json_free(layers);
    oq_json_free(report);
    assert_int_equal(oq_ckpt_open(env, original, &ckpt), OQ_OK);
    assert_string_equal(ckpt->container, "gguf");
    assert_string_equal(oq_json_string(oq_ckpt_metadata(ckpt, "general.architecture")), "lumina2");
    assert_int_equal(oq_json_int(oq_ckpt_metadata(ckpt, "general.file_type"), -1), 7);
    assert_int_equal(oq_ckpt_find(ckpt, "layers.0.attention.qkv.weight")->dim[0], 3 * 192);
    assert_ptr_equal(oq_ckpt_find(ckpt, "layers.0.attention_norm1.weight")->dtype, &oq_dtype_f32);
    assert_null(oq_ckpt_find(ckpt, "layers.0.attention.to_q.weight"));
    oq_ckpt_close(ckpt);
    const picture a = draw(env, MODEL, "transformer", source), b = draw(env, MODEL, "transformer", original);
    assert_memory_equal(a.pixels, b.pixels, a.n);
    /* From there into another layout, in safetensors. */
    done(env, "quantize", original,
         (const char *const[]){"quantization", "int8", "output", again, "model", MODEL, NULL}, NULL);
    const picture c = draw(env, MODEL, "transformer", again);
    assert_true(psnr(&a, &c) > 30);
    free(a.pixels);
    free(b.pixels);
    free(c.pixels);
    free(root);
}

static void test_gguf_plain_types(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-gguf-plain")), path[512];
    snprintf(path, sizeof path, "%s/bf16.gguf", root);
    done(env, "quantize", TRANSFORMER,
         (const char *const[]){"quantization", "{\"method\": \"gguf\", \"type\": \"BF16\"}", "output", path,
                               NULL},
         NULL);
    const picture plain = draw(env, MODEL, NULL, NULL), got = draw(env, MODEL, "transformer", path);
    assert_memory_equal(plain.pixels, got.pixels, got.n);
    free(plain.pixels);
    free(got.pixels);
    free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_types, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_gguf_file, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_gguf_plain_types, env_setup, env_teardown),
    };
    return cmocka_run_group_tests_name("quantize gguf", tests, NULL, NULL);
}
