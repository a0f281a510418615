/* test_quantize_component.c -- which component of which model `quantize` has before it: text encoders without the layers that
 * no run needs, and a lone one of two transformers that are alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/strbuf.h"

#include "support/env_setup.h"
#include "support/golden_folder.h"
#include "support/scratch.h"
#include "support/toybox_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a pruned text encoder ----------------------------------------------------------------------------- */

enum { LAYERS_THAT_RUN = 2, PRODUCTS_OF_A_LAYER = 7 };

static bool is_pruned(const char *name)
{
    return strncmp(name, "layers.2.", 9) == 0 || strcmp(name, "norm.weight") == 0;
}

/* The text encoder without its last layer and norm, which Z-Image does not run. */
static void write_pruned(oq_env *env, const char *dir)
{
    oq_ckpt *ckpt = NULL;
    oq_strbuf header, data;
    size_t left = 0;
    oq_strbuf_init(&header, env);
    oq_strbuf_init(&data, env);
    assert_int_equal(oq_ckpt_open(env, MODEL "/text_encoder/model.safetensors", &ckpt), OQ_OK);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        if (is_pruned(t->name)) {
            left++;
            continue;
        }
        oq_strbuf_printf(&header, "%c\"%s\": {\"dtype\": \"%s\", \"shape\": [", header.size ? ',' : '{',
                         t->name, t->type_name);
        for (int d = 0; d < t->n_dims; d++)
            oq_strbuf_printf(&header, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
        oq_strbuf_printf(&header, "], \"data_offsets\": [%zu, %zu]}", data.size, data.size + t->bytes);
        oq_strbuf_add(&data, t->data, t->bytes);
    }
    oq_strbuf_puts(&header, "}");
    assert_int_equal(left, 12);
    scratch_safetensors(dir, "model.safetensors", oq_strbuf_text(&header), data.text, data.size);
    oq_strbuf_deinit(&header);
    oq_strbuf_deinit(&data);
    oq_ckpt_close(ckpt);
}

static void link_here(const char *dir, const char *name)
{
    char from[512], to[512];
    snprintf(from, sizeof from, MODEL "/%s", name);
    snprintf(to, sizeof to, "%s/%s", dir, name);
    assert_int_equal(symlink(from, to), 0);
}

static void make_pruned(oq_env *env, const char *dir)
{
    char encoder[512];
    static const char *const others[] = {"model_index.json", "scheduler", "tokenizer",
                                         "transformer",      "vae",       "text_encoder/config.json"};
    snprintf(encoder, sizeof encoder, "%s/text_encoder", dir);
    scratch_subdir(dir, "text_encoder");
    for (size_t i = 0; i < OQ_COUNT(others); i++) link_here(dir, others[i]);
    write_pruned(env, encoder);
}

static int64_t quantized_layers(const oq_json *report, const char *component)
{
    const oq_json *c = oq_json_get(oq_json_get(report, "components"), component);
    return oq_json_int(oq_json_get(c, "quantized_layers"), -1);
}

/* What is there is written, and the pictures are those of the whole encoder written so. */
static void test_a_pruned_text_encoder(void **state)
{
    oq_env *env = *state;
    char *pruned = strdup(scratch_dir(OMNIQ_BINARY_DIR, "pruned")), lone[512];
    char *out = strdup(scratch_dir(OMNIQ_BINARY_DIR, "pruned-out"));
    char *whole = strdup(scratch_dir(OMNIQ_BINARY_DIR, "pruned-whole"));
    oq_json *report = NULL;
    make_pruned(env, pruned);
    done(env, "quantize", pruned,
         (const char *const[]){"quantization", "int8", "output", out, "force", "true", NULL}, &report);
    assert_int_equal(quantized_layers(report, "text_encoder"), LAYERS_THAT_RUN * PRODUCTS_OF_A_LAYER);
    oq_json_free(report);
    done(env, "quantize", MODEL,
         (const char *const[]){"quantization", "int8", "output", whole, "force", "true", NULL}, &report);
    assert_int_equal(quantized_layers(report, "text_encoder"), (LAYERS_THAT_RUN + 1) * PRODUCTS_OF_A_LAYER);
    oq_json_free(report);
    picture a = draw(env, out, NULL, NULL), b = draw(env, whole, NULL, NULL);
    assert_memory_equal(a.pixels, b.pixels, a.n);
    free(a.pixels), free(b.pixels);

    /* the lone file: the model folder says what no run needs */
    snprintf(lone, sizeof lone, "%s/text_encoder/model.safetensors", pruned);
    const char *const alone[] = {"quantization", "int8", "dry-run", "true", "model", pruned, NULL};
    done(env, "quantize", lone, alone, &report);
    assert_int_equal(quantized_layers(report, "text_encoder"), LAYERS_THAT_RUN * PRODUCTS_OF_A_LAYER);
    oq_json_free(report);
    refused(env, lone, (const char *const[]){"quantization", "int8", "dry-run", "true", NULL}, OQ_E_FORMAT,
            "needs a tensor 'layers.2.self_attn.q_proj.weight'");
    free(pruned), free(out), free(whole);
}

/* ---- one of two transformers --------------------------------------------------------------------------- */

#define EXPERTS "quantization", "{\"transformer\":\"int8\",\"transformer_2\":\"int8\"}"
#define SECOND  "quantization", "{\"transformer_2\":\"int8\"}"
#define SMALL                                                                                                \
    "activation-scheme", "static", "prompt", "<71><1712>", "steps", "4", "width", "64", "height", "48",      \
        "num-frames", "5", "seed", "3", "force", "true"

static const oq_json *layers_of(const oq_json *report, const char *component)
{
    return oq_json_get(oq_json_get(oq_json_get(report, "components"), component), "layers");
}

/* Layers with the same scale; all: every one of them. */
static size_t same_scales(const oq_json *a, const oq_json *b)
{
    size_t same = 0;
    assert_true(oq_json_size(a) > 0 && oq_json_size(a) == oq_json_size(b));
    for (size_t i = 0; i < oq_json_size(a); i++) {
        const double x = oq_json_real(oq_json_get(oq_json_at(a, i), "input_scale"), -1);
        assert_true(x > 0);
        same += x == oq_json_real(oq_json_get(oq_json_at(b, i), "input_scale"), -2);
    }
    return same;
}

/* The second expert by itself has the scales that it has beside the first, which are not the first's. */
static void test_a_lone_second_transformer(void **state)
{
    static const int32_t ids[] = {1, 71, 1712};
    oq_env *env = *state;
    char *folder = strdup(scratch_dir(OMNIQ_BINARY_DIR, "experts")), second[512], copy[600], odd[600];
    char *out = strdup(scratch_dir(OMNIQ_BINARY_DIR, "experts-out"));
    oq_json *both = NULL, *alone = NULL;
    golden_folder_make(env, OMNIQ_SOURCE_DIR "/tests/data/golden/wan2.2/t2v-a14b", folder, &oq_dtype_f32);
    golden_ids_tokenizer(env, scratch_path(folder, "tokenizer"), ids, OQ_COUNT(ids), -1, 1);
    done(env, "quantize", folder, (const char *const[]){EXPERTS, SMALL, "output", out, NULL}, &both);
    snprintf(second, sizeof second, "%s/transformer_2", folder);
    done(env, "quantize", second, (const char *const[]){SECOND, SMALL, "output", out, "model", folder, NULL},
         &alone);
    const oq_json *scales = layers_of(alone, "transformer_2");
    assert_int_equal(same_scales(scales, layers_of(both, "transformer_2")), oq_json_size(scales));
    assert_true(same_scales(scales, layers_of(both, "transformer")) < oq_json_size(scales));
    oq_json_free(alone);
    oq_json_free(both);

    /* elsewhere the folder's name tells; another name does not */
    char *elsewhere = strdup(scratch_dir(OMNIQ_BINARY_DIR, "experts-elsewhere"));
    scratch_subdir(elsewhere, "transformer_2");
    snprintf(copy, sizeof copy, "%s/transformer_2/low.safetensors", elsewhere);
    snprintf(odd, sizeof odd, "%s/low.safetensors", elsewhere);
    char weights[600];
    snprintf(weights, sizeof weights, "%s/diffusion_pytorch_model.safetensors", second);
    assert_int_equal(link(weights, copy), 0);
    assert_int_equal(link(weights, odd), 0);
    done(env, "quantize", copy,
         (const char *const[]){SECOND, SMALL, "dry-run", "true", "model", folder, NULL}, &alone);
    assert_non_null(layers_of(alone, "transformer_2"));
    oq_json_free(alone);
    refused(env, odd,
            (const char *const[]){"quantization", "int8", "activation-scheme", "static", "prompt", "<71>",
                                  "dry-run", "true", "model", folder, NULL},
            OQ_E_ARG, "may be transformer or transformer_2 of");
    free(folder), free(out), free(elsewhere);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pruned_text_encoder),
        cmocka_unit_test(test_a_lone_second_transformer),
    };
    return cmocka_run_group_tests_name("quantize: which component", tests, env_setup, env_teardown);
}
