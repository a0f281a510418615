/* test_resolve.c -- requests meet checkpoints: what is adopted, refined, refused; and the decision for each layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/float4.h"
#include "quant/resolve.h"

#include "support/memory_ckpt.h"

#include <stdio.h>
#include <string.h>

enum { D = 128 };

static const char *const components[] = {"transformer", "text_encoder", "vae"};
static uint8_t codes[2 * D * D];
static uint16_t plain[2 * D * D];
static float scales[2 * D];

typedef struct world { /* a model of three components and what was decided about it */
    oq_env *env;
    memory_ckpt ckpt[3];
    oq_json *quant[3];
    oq_resolve_input in[3];
    oq_quant_config *config;
    oq_resolved *resolved;
    char names[16][96];
    const char *name_list[16];
    size_t n_names;
} world;

static const oq_layer_desc layers[] = {
    {"transformer", "layers.0.attention.to_qkv",
     (const char *const[]){"layers.0.attention.to_q", "layers.0.attention.to_k", "layers.0.attention.to_v"},
     (const int64_t[]){D, D, D}, 3, 3 * D, D, NULL, false},
    {"transformer", "layers.0.attention.to_out.0", (const char *const[]){"layers.0.attention.to_out.0"},
     (const int64_t[]){D}, 1, D, D, NULL, false},
    {"transformer", "layers.0.feed_forward.w13",
     (const char *const[]){"layers.0.feed_forward.w1", "layers.0.feed_forward.w3"},
     (const int64_t[]){2 * D, 2 * D}, 2, 4 * D, D, NULL, false},
    {"transformer", "layers.1.feed_forward.w2", (const char *const[]){"layers.1.feed_forward.w2"},
     (const int64_t[]){D}, 1, D, D, NULL, false},
    {"transformer", "t_embedder", (const char *const[]){"t_embedder"}, (const int64_t[]){D}, 1, D, D,
     "embedder", false},
    {"text_encoder", "layers.0.mlp.down_proj", (const char *const[]){"layers.0.mlp.down_proj"},
     (const int64_t[]){D}, 1, D, D, NULL, false},
};
enum { QKV, OUT, W13, W2, EMBEDDER, DOWN };

static int setup(void **state)
{
    static world w;
    memset(&w, 0, sizeof w);
    if (oq_env_new(NULL, &w.env) != OQ_OK) return -1;
    for (int i = 0; i < 2 * D; i++) scales[i] = (float)(i + 1) / 32;
    memset(codes, 0x38, sizeof codes);
    for (int i = 0; i < 3; i++) {
        memory_ckpt_init(&w.ckpt[i]);
        w.in[i] = (oq_resolve_input){.name = components[i],
                                     .class_name = i == 2 ? "AutoencoderKL" : "Net",
                                     .quantizable = i != 2,
                                     .encoder = i == 1,
                                     .ckpt = &w.ckpt[i].ckpt};
    }
    for (size_t i = 0; i < OQ_COUNT(layers); i++) {
        for (int j = 0; j < layers[i].n_parts; j++) {
            static char names[32][96];
            static size_t n;
            char *name = names[n++ % 32];
            snprintf(name, 96, "%s.weight", layers[i].parts[j]);
            memory_ckpt_add(&w.ckpt[i == DOWN], name, &oq_dtype_bf16, plain, layers[i].part_n[j], D);
        }
        snprintf(w.names[i], sizeof w.names[i], "%s.%s", layers[i].component, layers[i].name);
        w.name_list[i] = w.names[i];
        w.n_names++;
    }
    *state = &w;
    return 0;
}

static void clear(world *w)
{
    oq_quant_config_free(w->config);
    oq_resolved_free(w->resolved);
    w->config = NULL;
    w->resolved = NULL;
    oq_env_clear(w->env);
}

static int teardown(void **state)
{
    world *w = *state;
    clear(w);
    for (int i = 0; i < 3; i++) oq_json_free(w->quant[i]);
    oq_env_free(w->env);
    return 0;
}

/* The metadata of component i; NULL: none. */
static void declare(world *w, int i, const char *json)
{
    oq_json_free(w->quant[i]);
    w->quant[i] = NULL;
    if (json) assert_int_equal(oq_json_parse(w->env, json, strlen(json), "t", &w->quant[i]), OQ_OK);
    w->in[i].quant = w->quant[i];
    w->in[i].quant_source = json ? "net/config.json" : NULL;
}

/* Weight and scale of one part as a quantized file has them; scale_rows 0: a single number. */
static void quantize(world *w, const char *part, int64_t n, int64_t scale_rows, const oq_dtype *type)
{
    static char names[64][96];
    static size_t used;
    char *weight = names[used++ % 64], *scale = names[used++ % 64];
    snprintf(weight, 96, "%s.weight", part);
    snprintf(scale, 96, "%s.weight_scale", part);
    memory_ckpt_add(&w->ckpt[0], weight, type, codes, n, D);
    memory_ckpt_add(&w->ckpt[0], scale, &oq_dtype_f32, scales, scale_rows ? scale_rows : -1, -1);
}

/* All layers of the transformer but the embedder, per row. */
static void quantize_all(world *w, const oq_dtype *type)
{
    for (int i = 0; i < EMBEDDER; i++)
        for (int j = 0; j < layers[i].n_parts; j++)
            quantize(w, layers[i].parts[j], layers[i].part_n[j], layers[i].part_n[j], type);
}

static oq_status resolve(world *w, const char *request)
{
    clear(w);
    if (request) assert_int_equal(oq_quant_config_parse(w->env, request, components, 3, &w->config), OQ_OK);
    return oq_resolve(w->env, w->config, w->in, 3, &w->resolved);
}

static oq_status choose(world *w, int i, oq_layer_choice *out)
{
    const int c = i == DOWN;
    return oq_resolve_layer(w->env, w->resolved, &w->resolved->components[c], &layers[i], w->in[c].ckpt, NULL,
                            NULL, out);
}

/* Resolves and goes through all layers, as the plan does; stops at the first error. */
static oq_status plan(world *w, const char *request, oq_layer_choice *choices)
{
    oq_layer_choice local[OQ_COUNT(layers)];
    if (!choices) choices = local;
    OQ_TRY(resolve(w, request));
    for (size_t i = 0; i < OQ_COUNT(layers); i++) OQ_TRY(choose(w, (int)i, &choices[i]));
    return oq_resolve_finish(w->env, w->resolved, w->name_list, w->n_names);
}

static void accept(world *w, const char *request, oq_layer_choice *choices)
{
    if (plan(w, request, choices) != OQ_OK) fail_msg("%s: %s", request ? request : "-", oq_env_error(w->env));
}

static void check_refusal(world *w, const char *request, oq_status st, oq_status status, const char *words)
{
    if (st != status)
        fail_msg("%s: %s instead of %s: %s", request ? request : "-", oq_status_name(st),
                 oq_status_name(status), oq_env_error(w->env));
    char copy[256];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = NULL, *word = strtok_r(copy, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        if (!strstr(oq_env_error(w->env), word))
            fail_msg("'%s' does not hold '%s'", oq_env_error(w->env), word);
}

static void refuse(world *w, const char *request, oq_status status, const char *words)
{
    check_refusal(w, request, resolve(w, request), status, words);
    assert_null(w->resolved);
}

static void refuse_plan(world *w, const char *request, oq_status status, const char *words)
{
    check_refusal(w, request, plan(w, request, NULL), status, words);
}

static const oq_resolved_component *component(const world *w, int i)
{
    return &w->resolved->components[i];
}

static const oq_json *option(const world *w, int i, const char *key)
{
    return oq_json_get(component(w, i)->routes[0].args->options, key);
}

static void expect_layer(const oq_layer_choice *c, const oq_format *format, const char *reason)
{
    if (c->scheme.weight != format || strcmp(c->reason, reason) != 0)
        fail_msg("%s '%s' instead of %s '%s'", c->scheme.weight ? c->scheme.weight->name : "plain", c->reason,
                 format ? format->name : "plain", reason);
    assert_int_equal(c->quantized, format != NULL);
}

/* ---- plain checkpoints --------------------------------------------------------------------------------- */

static void test_no_request(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    accept(w, NULL, c);
    for (int i = 0; i < 3; i++) assert_int_equal(component(w, i)->source, OQ_SOURCE_NONE);
    assert_string_equal(component(w, 0)->from, "default");
    expect_layer(&c[QKV], NULL, "no method for this component");
    expect_layer(&c[EMBEDDER], NULL, "embedder");
    accept(w, "none", c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_NONE);
    assert_string_equal(component(w, 0)->from, "flag");
}

/* 3, 29: a global request covers what can be quantized; the VAE stays plain without a word. */
static void test_global(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    accept(w, "fp8", c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_ONLINE);
    assert_int_equal(component(w, 1)->source, OQ_SOURCE_ONLINE);
    assert_int_equal(component(w, 2)->source, OQ_SOURCE_NONE);
    assert_false(component(w, 0)->named);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_tensor, "fp8");
    expect_layer(&c[DOWN], &oq_format_fp8_e4m3_tensor, "fp8");
    assert_false(c[QKV].serialized);
    accept(w, "{\"method\": \"int8\"}", c);
    assert_false(component(w, 0)->routes[0].args->serialized);
    expect_layer(&c[W2], &oq_format_int8_channel, "int8");
    assert_ptr_equal(c[W2].scheme.act, &oq_dtype_i8);
    assert_int_equal(w->resolved->n_warnings, 0);
}

/* 49: what the network keeps plain stays plain under every online method. */
static void test_keep(void **state)
{
    world *w = *state;
    static const char *const requests[] = {"none", "fp8", "int8",
                                           "{\"method\": \"fp8\", \"ignored_layers\": [\"t_embedder\"]}"};
    for (size_t i = 0; i < OQ_COUNT(requests); i++) {
        oq_layer_choice c[OQ_COUNT(layers)];
        accept(w, requests[i], c);
        expect_layer(&c[EMBEDDER], NULL, "embedder");
    }
}

/* 11, 35, 36, 37 in their effect on layers. */
static void test_components(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    accept(w, "{\"transformer\": {\"method\": \"fp8\"}, \"vae\": null}", c);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_tensor, "fp8");
    expect_layer(&c[DOWN], NULL, "no method for this component");
    assert_true(component(w, 0)->named);
    accept(w, "{\"text_encoder\": {\"method\": \"int8\"}}", c);
    expect_layer(&c[QKV], NULL, "no method for this component");
    expect_layer(&c[DOWN], &oq_format_int8_channel, "int8");
    accept(w, "{\"transformer\": null, \"default\": \"fp8\"}", c);
    expect_layer(&c[QKV], NULL, "no method for this component");
    expect_layer(&c[DOWN], &oq_format_fp8_e4m3_tensor, "fp8");
    accept(w,
           "{\"transformer\": {\"method\": \"fp8\"}, \"transformer.layers.0.feed_forward\": {\"method\": "
           "\"int8\"}, "
           "\"transformer.layers.1\": null}",
           c);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_tensor, "fp8");
    expect_layer(&c[W13], &oq_format_int8_channel, "int8");
    expect_layer(&c[W2], NULL, "asked to stay unquantized");
    accept(w, "{\"transformer.layers.1\": {\"method\": \"fp8\"}}", c);
    expect_layer(&c[QKV], NULL, "no method for this layer");
    expect_layer(&c[W2], &oq_format_fp8_e4m3_tensor, "fp8");
}

static void test_component_errors(void **state)
{
    world *w = *state;
    refuse(w, "{\"transfomer\": {\"method\": \"fp8\"}}", OQ_E_CONFIG,
           "'transfomer'|did you mean 'transformer'|transformer, text_encoder, vae");
    refuse(w, "{\"transformer_2\": {\"method\": \"fp8\"}, \"vae\": null}", OQ_E_CONFIG, "'transformer_2'");
    refuse(w, "{\"audio_tower\": null}", OQ_E_CONFIG, "'audio_tower'|it has transformer");
    refuse(w, "{\"vae\": {\"method\": \"fp8\"}}", OQ_E_CONFIG, "'fp8'|'vae'|AutoencoderKL|never quantized");
    refuse(w, "{\"transformer\": \"fp8\", \"vae.decoder\": \"fp8\"}", OQ_E_CONFIG,
           "'vae.decoder'|never quantized");
    refuse(w, "{\"transformer\": {\"method\": \"fp9\"}}", OQ_E_CONFIG,
           "'transformer'|'fp9'|did you mean 'fp8'");
    refuse(w, "not_a_method", OQ_E_CONFIG, "quantization_config: unknown quantization method 'not_a_method'");
    refuse(w, "{\"method\": \"fp8\", \"bits\": 8}", OQ_E_CONFIG,
           "quantization_config: method 'fp8' has no option 'bits'");
    refuse(w, "{\"quant_method\": \"int8\"}", OQ_E_MISMATCH,
           "'transformer'|quantized beforehand with 'int8'|plain|under 'method'");
    refuse(w, "{\"method\": \"fp8\", \"is_checkpoint_fp8_serialized\": true}", OQ_E_MISMATCH, "'fp8'|plain");
}

/* 38: a method that cannot quantize plain weights says so. */
static void test_serialized_only(void **state)
{
    world *w = *state;
    static const char *const serialized[] = {"quark", "ascend", "comfy_nvfp4", "compressed-tensors",
                                             "svdquant"};
    for (size_t i = 0; i < OQ_COUNT(serialized); i++)
        refuse(w, serialized[i], OQ_E_MISMATCH, "reads checkpoints that were quantized beforehand|plain");
    refuse(w, "gptq", OQ_E_MISMATCH, "'gptq' reads checkpoints that were quantized beforehand|plain");
    refuse(w, "{\"method\": \"auto-round\", \"bits\": 4, \"group_size\": 128}", OQ_E_MISMATCH,
           "'inc' reads checkpoints that were quantized beforehand|plain");
}

/* What the options of the 4-bit methods mean for a layer, and those that do not run yet. */
static void test_four_bits(void **state)
{
    static const struct {
        const char *request, *scheme;
    } rows[] = {
        {"mxfp8", "w: mxfp8 a: fp8_e4m3 dynamic_mx32"},
        {"mxfp4", "w: mxfp4 a: fp4_e2m1 dynamic_mx32"},
        {"{\"method\": \"mxfp4\", \"mxfp4_scale_alg\": 2}", "w: mxfp4_q725 a: fp4_e2m1 dynamic_mx32_q725"},
        {"{\"method\": \"mxfp4\", \"w4a8_fallback_layers\": [\"layers.0.other\"]}",
         "w: mxfp4 a: fp4_e2m1 dynamic_mx32"},
        {"{\"method\": \"mxfp4\", \"w4a8_fallback_layers\": [\"layers.1.feed_forward.w2\"]}",
         "w: mxfp4 a: fp8_e4m3 dynamic_mx32"},
        {"mxfp4_dualscale", "w: mxfp4_dual a: fp4_e2m1 dynamic_mx32_dual"},
        {"nvfp4", "w: nvfp4 a: none"},
        {"{\"method\": \"nvfp4\", \"activations\": \"dynamic\"}", "w: nvfp4 a: fp4_e2m1 dynamic_nvfp4"},
        {"w4a16", "w: int4_g128 a: none"},
        {"{\"method\": \"int4\", \"bits\": 3, \"group_size\": 64, \"sym\": false}", "w: int3z_g64 a: none"},
        {"bnb", "w: nf4_b64_nested a: none"},
        {"{\"method\": \"bnb\", \"compress_statistics\": false}", "w: nf4_b64 a: none"},
        {"{\"method\": \"bnb\", \"quant_type\": \"fp4\"}", "w: fp4_b64_nested a: none"},
        {"{\"method\": \"bnb\", \"quant_type\": \"FP4\", \"bnb_4bit_use_double_quant\": false}",
         "w: fp4_b64 a: none"},
    };
    world *w = *state;
    oq_layer_choice c;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char text[96];
        assert_int_equal(resolve(w, rows[i].request), OQ_OK);
        assert_int_equal(choose(w, W2, &c), OQ_OK);
        oq_scheme_describe(&c.scheme, text, sizeof text);
        assert_string_equal(text, rows[i].scheme);
    }
    accept(w, "{\"method\": \"mxfp4\", \"w4a8_fallback_layers\": [\"layers.1.feed_forward.w2\"]}", NULL);
    refuse_plan(w, "{\"method\": \"mxfp4\", \"w4a8_fallback_layers\": [\"layers.9.feed_forward.w2\"]}",
                OQ_E_CONFIG,
                "'mxfp4'|w4a8_fallback_layers|'layers.9.feed_forward.w2', which is no "
                "layer|'layers.1.feed_forward.w2'");
    assert_int_equal(resolve(w, "{\"method\": \"mxfp4\", \"w4a8_fallback_steps\": [2, 0]}"), OQ_OK);
    assert_int_equal(choose(w, W2, &c), OQ_OK);
    assert_true(c.steps && oq_json_size(c.steps) == 2 && c.at_steps.weight == c.scheme.weight);
    assert_ptr_equal(c.at_steps.act, &oq_dtype_f8_e4m3);
    assert_ptr_equal(c.scheme.act, &oq_dtype_f4_e2m1);
    assert_int_equal(resolve(w, "{\"method\": \"bnb\", \"llm_int8_threshold\": 6.0}"), OQ_OK);
    check_refusal(w, "", choose(w, W2, &c), OQ_E_UNSUPPORTED,
                  "'layers.1.feed_forward.w2'|'llm_int8_threshold'|'bitsandbytes'|not in this build yet");
}

/* 47, 48: a global request for a producer's layout speaks of the transformer; fp8 reaches encoders; so does a named one. */
static void test_encoders(void **state)
{
    world *w = *state;
    refuse(w, "svdquant", OQ_E_MISMATCH, "'transformer'|'svdquant'|plain");
    assert_int_equal(resolve(w, "fp8"), OQ_OK);
    assert_int_equal(component(w, 1)->n_routes, 1);
    refuse(w, "{\"text_encoder\": {\"method\": \"svdquant\"}}", OQ_E_MISMATCH,
           "'text_encoder'|'svdquant'|plain");
    assert_int_equal(resolve(w, "{\"text_encoder\": {\"method\": \"gguf\"}}"), OQ_OK);
    assert_int_equal(component(w, 1)->n_routes, 1);
}

/* ---- ignored names ------------------------------------------------------------------------------------- */

/* 50, 51, 52, 54: parts of one product go together. */
static void test_ignored(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    accept(w,
           "{\"method\": \"fp8\", \"ignored_layers\": [\"layers.0.attention.to_out.0\", \"feed_forward\"]}",
           c);
    expect_layer(&c[OUT], NULL, "ignored by 'layers.0.attention.to_out.0'");
    expect_layer(&c[W13], NULL, "ignored by 'feed_forward'");
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_tensor, "fp8");
    assert_int_equal(component(w, 0)->routes[0].ignored[1].matches, 2);
    assert_true(component(w, 0)->routes[0].ignored[1].user);

    accept(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"to_q\", \"to_k\", \"layers.0.attention.to_v\"]}",
           c);
    expect_layer(&c[QKV], NULL, "ignored by 'to_q'");
    refuse_plan(w,
                "{\"method\": \"fp8\", \"ignored_layers\": [\"layers.0.attention.to_q\", "
                "\"layers.0.attention.to_k\"]}",
                OQ_E_MISMATCH, "'layers.0.attention.to_v' is not|is ignored by|'layers.0.attention.to_qkv'");
    refuse_plan(w, "{\"method\": \"int8\", \"ignored_layers\": [\"w1\"]}", OQ_E_MISMATCH,
                "'layers.0.feed_forward.w1' is ignored by 'w1'|'layers.0.feed_forward.w3' is not");
    /* 54 */
    accept(w,
           "{\"method\": \"mxfp4_dualscale\", \"ignored_layers\": [\"attention.to_q\", \"attention.to_k\", "
           "\"attention.to_v\"]}",
           c);
    expect_layer(&c[QKV], NULL, "ignored by 'attention.to_q'");
    refuse_plan(
        w, "{\"method\": \"mxfp4_dualscale\", \"ignored_layers\": [\"attention.to_q\", \"attention.to_k\"]}",
        OQ_E_MISMATCH, "'layers.0.attention.to_v' is not|'layers.0.attention.to_qkv'");
    refuse_plan(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"re:(\"]}", OQ_E_CONFIG,
                "regular expression|'('");
}

/* Entries that match nothing are errors that name a neighbour; matches add up over the components of one request. */
static void test_unmatched(void **state)
{
    world *w = *state;
    accept(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"down_proj\", \"w2\"]}", NULL);
    refuse_plan(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"to_out1\"]}", OQ_E_CONFIG,
                "'to_out1' matches no layer|nearest is 'to_out'|'transformer.layers.0.attention.to_out.0'");
    refuse_plan(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"to_qq\"]}", OQ_E_CONFIG,
                "nearest is 'to_q' as in 'transformer.layers.0.attention.to_q'");
    refuse_plan(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"atention.to_qkv\"]}", OQ_E_CONFIG,
                "nearest is 'attention.to_qkv'");
    refuse_plan(
        w, "{\"method\": \"fp8\", \"ignored_layers\": [\"*.nothing\"]}", OQ_E_CONFIG,
        "'*.nothing' matches no layer; layers are named like 'transformer.layers.0.attention.to_qkv'");
    refuse_plan(w, "{\"transformer\": {\"method\": \"fp8\", \"ignored_layers\": [\"down_proj\"]}}",
                OQ_E_CONFIG, "'down_proj' matches no layer");
    refuse_plan(w, "{\"transformer\": \"int8\", \"transformer.layers.7\": \"fp8\"}", OQ_E_CONFIG,
                "quantization_config names 'transformer.layers.7', which begins no layer's name|nearest is "
                "'transformer.layers.0'");
    refuse_plan(w, "{\"transformer\": \"int8\", \"transformer.layers.0.attention.to_q\": null}", OQ_E_CONFIG,
                "'transformer.layers.0.attention.to_q', which begins no layer's name|attention.to_qkv'");
}

static void test_no_effect(void **state)
{
    world *w = *state;
    refuse_plan(w, "{\"transformer\": {\"method\": \"fp8\", \"ignored_layers\": [\"layers\"]}}", OQ_E_CONFIG,
                "'transformer'|'fp8' quantizes none of its 5 layers");
    refuse_plan(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"layers\"]}", OQ_E_CONFIG,
                "'fp8' quantizes none of the");
    accept(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"text_encoder.layers\"]}",
           NULL); /* the other one is */
}

static oq_place thinker(void *user, const char *name)
{
    static char text[4][128];
    static size_t n;
    char *out = text[n++ % 4];
    (void)user;
    snprintf(out, sizeof text[0], "thinker.%s", strncmp(name, "language_model.", 15) == 0 ? name + 15 : name);
    return (oq_place){.name = out};
}

/* 53: names are mapped before entries are matched, whichever of the two spellings an entry uses. */
static void test_mapped_names(void **state)
{
    world *w = *state;
    const oq_layer_desc desc = {"transformer",
                                "language_model.model.layers.0.mlp",
                                (const char *const[]){"language_model.model.layers.0.mlp"},
                                (const int64_t[]){D},
                                1,
                                D,
                                D,
                                NULL,
                                false};
    static const struct {
        const char *entry;
        bool ignored;
    } rows[] = {{"thinker.model.layers", true},
                {"language_model.model.layers", true},
                {"talker.model.layers", false},
                {"re:thinker\\.model", true}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char request[160];
        oq_layer_choice c;
        snprintf(request, sizeof request, "{\"method\": \"fp8\", \"ignored_layers\": [\"%s\"]}",
                 rows[i].entry);
        if (strchr(rows[i].entry, '\\'))
            snprintf(request, sizeof request, "{method: fp8, ignored_layers: ['%s']}", rows[i].entry);
        assert_int_equal(resolve(w, request), OQ_OK);
        assert_int_equal(
            oq_resolve_layer(w->env, w->resolved, component(w, 0), &desc, NULL, thinker, NULL, &c), OQ_OK);
        assert_int_equal(c.quantized, !rows[i].ignored);
    }
}

/* ---- quantized checkpoints ----------------------------------------------------------------------------- */

/* 28, 39, 40: nothing asked, the checkpoint decides. */
static void test_adopted(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0,
            "{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", \"modules_to_not_convert\": "
            "[\"w2\"]}");
    quantize_all(w, &oq_dtype_f8_e4m3);
    memory_ckpt_remove(&w->ckpt[0], "layers.1.feed_forward.w2.weight_scale");
    memory_ckpt_add(&w->ckpt[0], "layers.1.feed_forward.w2.weight", &oq_dtype_bf16, plain, D, D);
    accept(w, NULL, c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_SERIALIZED);
    assert_string_equal(component(w, 0)->from, "checkpoint");
    assert_string_equal(component(w, 0)->dialect->name, "fp8");
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_int_equal(component(w, 1)->source, OQ_SOURCE_NONE);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_channel, "fp8");
    assert_true(c[QKV].serialized);
    assert_string_equal(c[QKV].part[2].plane[OQ_PLANE_SCALE].tensor->name,
                        "layers.0.attention.to_v.weight_scale");
    expect_layer(&c[W2], NULL, "ignored by 'w2'");
    expect_layer(&c[EMBEDDER], NULL, "embedder");
    assert_int_equal(w->resolved->n_warnings, 0);

    declare(w, 0, "\"fp8\""); /* a bare name; w2 is then plain without being listed */
    accept(w, NULL, c);
    expect_layer(&c[W2], NULL, "plain in the file");
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(strstr(w->resolved->warnings[0], "1 layers are plain in the file although 'fp8'"));
    assert_non_null(strstr(w->resolved->warnings[0], "'layers.1.feed_forward.w2'"));

    declare(w, 0, "{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"w2\", \"lm_head\"]}");
    accept(w, NULL, c);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(
        strstr(w->resolved->warnings[0], "the checkpoint ignores 'lm_head', which matches no layer"));

    declare(w, 0, "{\"quant_method\": \"mxfp8\", \"is_checkpoint_mxfp8_serialized\": true}");
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "mxfp8");
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_string_equal(component(w, 0)->dialect->name, "mx");
    refuse_plan(w, NULL, OQ_E_FORMAT,
                "scale 'layers.0.attention.to_q.weight_scale' has 128 values of F32|of U8");
}

static void test_int8_adopted(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0, "{\"quant_method\": \"int8\"}");
    quantize_all(w, &oq_dtype_i8);
    accept(w, NULL, c);
    assert_true(component(w, 0)->routes[0].args->serialized);
    expect_layer(&c[W13], &oq_format_int8_channel, "int8");
    declare(w, 0, NULL); /* the tensors alone say it too */
    accept(w, NULL, c);
    assert_string_equal(component(w, 0)->from, "checkpoint");
    expect_layer(&c[W13], &oq_format_int8_channel, "int8");
    accept(w, "{\"method\": \"int8\"}", c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_SERIALIZED);
    assert_int_equal(component(w, 1)->source, OQ_SOURCE_ONLINE);
    refuse(w, "fp8", OQ_E_MISMATCH, "'transformer'|asks for 'fp8'|the tensors of 'memory' are 'int8'");
}

/* 21, 42 and their kind: both sides are named. */
static void test_conflicts(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}");
    refuse(w, "fp8", OQ_E_MISMATCH, "'transformer'|asks for 'fp8'|'net/config.json' declares 'modelopt_fp4'");
    declare(w, 0, "{\"quant_method\": \"mxfp8\"}");
    refuse(w, "fp8", OQ_E_MISMATCH, "asks for 'fp8'|'mxfp8'");
    refuse(w, "none", OQ_E_MISMATCH, "asks for 'none'|'mxfp8'");
    refuse(w, "{\"transformer\": null, \"vae\": null}", OQ_E_MISMATCH, "asks for 'none'|'mxfp8'");
    refuse(w, "{\"transformer.layers.0\": {\"method\": \"fp8\"}}", OQ_E_MISMATCH, "asks for 'fp8'|'mxfp8'");
    declare(w, 0, "{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\"}");
    refuse(w, "{\"method\": \"fp8\", \"activation_scheme\": \"dynamic\"}", OQ_E_MISMATCH,
           "sets activation_scheme to \"dynamic\"|'net/config.json' declares \"static\"");
    declare(w, 0, "{\"quant_method\": \"sdnq\"}");
    refuse(w, NULL, OQ_E_UNSUPPORTED,
           "'net/config.json' declares quantization method 'sdnq'|not in this build yet");
    declare(w, 0, "{\"quant_method\": \"fp8\", \"colour\": \"red\"}");
    refuse(w, NULL, OQ_E_CONFIG, "net/config.json: method 'fp8' has no option 'colour'");
    declare(w, 0, NULL);
    declare(w, 2, "{\"quant_method\": \"fp8\"}");
    refuse(w, NULL, OQ_E_UNSUPPORTED, "'vae'|'net/config.json'|AutoencoderKL is read plain");
}

/* 22, 45: a block that names no method cannot be read, whatever was asked. */
static void test_unreadable(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"foo\": \"bar\"}");
    refuse(w, NULL, OQ_E_FORMAT, "'transformer'|'net/config.json' names no quant_method|foo");
    declare(w, 0, "{\"method\": \"mxfp8\"}");
    refuse(w, NULL, OQ_E_FORMAT, "'net/config.json' names no quant_method|method");
    refuse(w, "mxfp8", OQ_E_FORMAT, "'net/config.json' names no quant_method");
    declare(w, 0, "{}");
    refuse(w, NULL, OQ_E_FORMAT, "its keys are: none");
    declare(w, 0, "[1]");
    refuse(w, NULL, OQ_E_FORMAT, "'net/config.json' must be a mapping, not a list");
    declare(w, 0, "{\"quant_method\": 3}");
    refuse(w, NULL, OQ_E_FORMAT, "names no quant_method");
}

/* 41, 43, 44, 46: agreement; what the file says replaces what the request only assumed. */
static void test_refined(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"mxfp8\", \"is_checkpoint_mxfp8_serialized\": true}");
    assert_int_equal(resolve(w, "mxfp8"), OQ_OK);
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_string_equal(component(w, 0)->from, "flag");
    assert_int_equal(resolve(w, "{\"quant_method\": \"mxfp8\"}"),
                     OQ_OK); /* the file's own block, given again */
    assert_int_equal(component(w, 1)->source, OQ_SOURCE_NONE);

    declare(w, 0, "{\"quant_method\": \"mxfp8\", \"ignored_layers\": [\"w2\", \"to_qkv\"]}");
    assert_int_equal(resolve(w, "{\"quant_method\": \"mxfp8\", \"ignored_layers\": [\"to_qkv\", \"w2\"]}"),
                     OQ_OK);
    assert_int_equal(w->resolved->n_warnings, 0);
    assert_int_equal(component(w, 0)->routes[0].n_ignored, 2);

    assert_int_equal(resolve(w, "{\"method\": \"mxfp8\", \"ignored_layers\": [\"other\"]}"), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].ignored[0].text, "w2");
    assert_false(component(w, 0)->routes[0].ignored[0].user);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(
        strstr(w->resolved->warnings[0], "'transformer': ignored_layers of the request are replaced"));

    declare(w, 0,
            "{\"quant_method\": \"auto-round\", \"bits\": 8, \"group_size\": 32, \"data_type\": \"mx_fp\"}");
    assert_int_equal(resolve(w, "{\"method\": \"inc\", \"bits\": 8, \"group_size\": 32}"), OQ_OK);
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_string_equal(oq_json_string(option(w, 0, "data_type")), "mx_fp");
    assert_int_equal(resolve(w, "auto_round"),
                     OQ_OK); /* the name alone is enough where the file knows the rest */
    refuse(w, "{\"method\": \"inc\", \"bits\": 4}", OQ_E_MISMATCH, "sets weight_bits to 4|declares 8");
}

/* The request decides how to run, the file what it holds; either may ask for smoothing scales. */
static void test_sides(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"mxfp4\", \"mxfp4_scale_alg\": 2, \"w4a8_fallback_steps\": [1]}");
    assert_int_equal(resolve(w, "{\"transformer\": {\"method\": \"mxfp4\", \"w4a8_fallback_steps\": [], "
                                "\"require_smooth_scale\": true}}"),
                     OQ_OK);
    assert_int_equal(oq_json_int(option(w, 0, "mxfp4_scale_alg"), 9), 0);
    assert_int_equal(oq_json_size(option(w, 0, "w4a8_fallback_steps")), 0);
    assert_true(oq_json_bool(option(w, 0, "require_smooth_scale"), false));
    declare(w, 0, "{\"quant_method\": \"mxfp4\", \"require_smooth_scale\": true}");
    assert_int_equal(resolve(w, "{\"method\": \"mxfp4\", \"require_smooth_scale\": false}"), OQ_OK);
    assert_true(oq_json_bool(option(w, 0, "require_smooth_scale"), false));
    declare(w, 0, "{\"quant_method\": \"mxfp4\", \"require_smooth_scale\": \"yes\"}");
    refuse(w, "mxfp4", OQ_E_CONFIG, "net/config.json|require_smooth_scale");
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    assert_int_equal(resolve(w, "{\"method\": \"fp8\", \"weight_strategy\": \"block\"}"), OQ_OK);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(strstr(w->resolved->warnings[0], "weight_strategy has no effect"));
}

/* A file may only name a method to apply while loading. */
static void test_declared_online(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0,
            "{\"quant_method\": \"fp8\", \"is_checkpoint_fp8_serialized\": false, \"weight_strategy\": "
            "\"channel\"}");
    accept(w, NULL, c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_ONLINE);
    assert_string_equal(component(w, 0)->from, "checkpoint");
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_channel, "fp8");
    accept(w, "{\"transformer\": {\"method\": \"fp8\", \"weight_strategy\": \"block\"}}", c);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_block128, "fp8");
}

/* 24, 25 and the adoption rules between fp8 and ModelOpt's FP8. */
static void test_modelopt(void **state)
{
    world *w = *state;
    declare(w, 0,
            "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"FP8\", "
            "\"exclude_modules\": []}}");
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt");
    assert_int_equal(resolve(w, "fp8"), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt");
    refuse(w, "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", OQ_E_MISMATCH,
           "options of method 'fp8'|'modelopt'");
    assert_int_equal(resolve(w, "modelopt"), OQ_OK);
    declare(w, 0,
            "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": "
            "{\"a\": {}}}");
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt_mixed");
    declare(w, 0, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}");
    static const char *const agree[] = {"modelopt", "modelopt_fp4", "nvfp4", "FP4"};
    for (size_t i = 0; i < OQ_COUNT(agree); i++) {
        assert_int_equal(resolve(w, agree[i]), OQ_OK);
        assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt_fp4");
        assert_int_equal(component(w, 1)->source, OQ_SOURCE_NONE);
    }
    refuse_plan(w, NULL, OQ_E_MISMATCH,
                "'modelopt_fp4' is declared|none of its 5 layers is quantized in the file");
}

/* Per-tensor scales of fused parts become a scale per row; parts must be of one kind. */
/* Must the parts of a layer be multiplied one by one? */
static void expect_apart(world *w, int layer, bool wanted)
{
    bool apart = !wanted;
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_int_equal(oq_resolve_apart(w->env, w->resolved, component(w, 0), &layers[layer], w->in[0].ckpt,
                                      NULL, NULL, &apart),
                     OQ_OK);
    assert_int_equal(apart, wanted);
}

static void test_fused(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    quantize_all(w, &oq_dtype_f8_e4m3);
    quantize(w, "layers.0.attention.to_q", D, 0, &oq_dtype_f8_e4m3);
    quantize(w, "layers.0.feed_forward.w1", 2 * D, 0, &oq_dtype_f8_e4m3);
    quantize(w, "layers.0.feed_forward.w3", 2 * D, 0, &oq_dtype_f8_e4m3);
    quantize(w, "layers.1.feed_forward.w2", D, 0, &oq_dtype_f8_e4m3);
    accept(w, NULL, c);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_channel, "fp8");
    assert_ptr_equal(c[QKV].part[0].format, &oq_format_fp8_e4m3_tensor);
    expect_layer(&c[W13], &oq_format_fp8_e4m3_channel, "fp8");
    expect_layer(&c[W2], &oq_format_fp8_e4m3_tensor, "fp8");

    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w1.input_scale", &oq_dtype_f32, scales, -1, -1);
    expect_apart(w, W13, true); /* treatments of activations that differ: two products */
    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w3.input_scale", &oq_dtype_f32, scales, -1, -1);
    accept(w, NULL, c);
    assert_int_equal(c[W13].scheme.act_scale, OQ_ACT_STATIC_TENSOR);
    assert_string_equal(c[W13].part[1].plane[OQ_PLANE_INPUT_SCALE].tensor->name,
                        "layers.0.feed_forward.w3.input_scale");
    expect_apart(w, W13, false);

    memory_ckpt_remove(&w->ckpt[0], "layers.0.attention.to_k.weight_scale");
    memory_ckpt_add(&w->ckpt[0], "layers.0.attention.to_k.weight", &oq_dtype_bf16, plain, D, D);
    expect_apart(w, QKV, true); /* one part is plain */
    quantize(w, "layers.0.attention.to_k", D, 0, &oq_dtype_f8_e4m3);
    memory_ckpt_remove(&w->ckpt[0], "layers.0.attention.to_k.weight_scale");
    memory_ckpt_add(&w->ckpt[0], "layers.0.attention.to_k.weight_scale_inv", &oq_dtype_f32, scales, 1, 1);
    accept(w, NULL, c); /* one number is one scale, whatever its name */
}

static void test_fused_blocks(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0, "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}");
    static char names[2][96];
    for (int i = 0; i < 2; i++) {
        snprintf(names[i], 96, "%s.weight_scale_inv", layers[W13].parts[i]);
        quantize(w, layers[W13].parts[i], 2 * D, 1, &oq_dtype_f8_e4m3);
    }
    memory_ckpt_remove(&w->ckpt[0], "layers.0.feed_forward.w1.weight_scale");
    memory_ckpt_remove(&w->ckpt[0], "layers.0.feed_forward.w3.weight_scale");
    for (int i = 0; i < 2; i++) memory_ckpt_add(&w->ckpt[0], names[i], &oq_dtype_f32, scales, 2, 1);
    accept(w, NULL, c);
    expect_layer(&c[W13], &oq_format_fp8_e4m3_block128, "fp8");
    assert_int_equal(c[W13].scheme.act_scale, OQ_ACT_DYNAMIC_GROUP);

    oq_layer_desc ragged = layers[W13]; /* 192 rows: a block would reach from w1 into w3 */
    ragged.part_n = (const int64_t[]){192, 192};
    ragged.n = 384;
    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w1.weight", &oq_dtype_f8_e4m3, codes, 192, D);
    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w3.weight", &oq_dtype_f8_e4m3, codes, 192, D);
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_int_equal(
        oq_resolve_layer(w->env, w->resolved, component(w, 0), &ragged, w->in[0].ckpt, NULL, NULL, c), OQ_OK);
    expect_layer(c, &oq_format_fp8_e4m3_group128, "fp8");
    assert_int_equal(c->scheme.act_scale, OQ_ACT_DYNAMIC_GROUP);
    float rows[192];
    const oq_plane_source *scale = &c->part[1].plane[OQ_PLANE_SCALE];
    scale->fix(rows, scale->tensor, 192, D);
    assert_true(rows[0] <= scales[0] && rows[127] >= scales[0]);
    assert_true(rows[128] >= scales[1] && rows[191] <= scales[1]);
}

/* What is ignored or asked to stay plain must be plain in the file; what a network keeps may be quantized there. */
static void test_file_against_wishes(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    quantize_all(w, &oq_dtype_f8_e4m3);
    declare(w, 0, "{\"quant_method\": \"fp8\", \"ignored_layers\": [\"w2\"]}");
    refuse_plan(w, NULL, OQ_E_MISMATCH,
                "'layers.1.feed_forward.w2' is ignored by 'w2'|'layers.1.feed_forward.w2.weight' is F8_E4M3");
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    refuse_plan(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"w2\"]}", OQ_E_MISMATCH,
                "is ignored by 'w2'");
    refuse_plan(w, "{\"transformer\": \"fp8\", \"transformer.layers.1\": null}", OQ_E_MISMATCH,
                "'layers.1.feed_forward.w2' is asked to stay unquantized");
    quantize(w, "t_embedder", D, 0, &oq_dtype_f8_e4m3);
    accept(w, NULL, c);
    expect_layer(&c[EMBEDDER], &oq_format_fp8_e4m3_tensor, "fp8");
}

/* A checkpoint that says it is quantized and is not. */
static void test_declared_without_effect(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    refuse_plan(w, NULL, OQ_E_MISMATCH,
                "'transformer'|'fp8' is declared, but none of its 5 layers is quantized");
}

/* Made-up weights are plain: a declared method is applied while loading. */
static void test_dummy(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    w->in[0].ckpt = w->in[1].ckpt = NULL;
    declare(w, 0,
            "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"ignored_layers\": [\"w2\"]}");
    accept(w, NULL, c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_ONLINE);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_tensor, "fp8");
    expect_layer(&c[W2], NULL, "ignored by 'w2'");
    assert_non_null(
        strstr(w->resolved->warnings[0], "'net/config.json' declares 'fp8'; its weights are made up"));
    declare(w, 0, NULL);
    accept(w, "int8", c);
    expect_layer(&c[QKV], &oq_format_int8_channel, "int8");
    accept(w, NULL, c);
    expect_layer(&c[QKV], NULL, "no method for this component");
}

/* A producer's algorithm is what the made-up layers get; static scales, which only a file has, become dynamic. */
static void test_dummy_of_producers(void **state)
{
    world *w = *state;
    static const struct {
        const char *algo;
        const oq_format *weight;
        const oq_dtype *act;
        oq_act_scale scale;
    } rows[] = {
        {"FP8", &oq_format_fp8_e4m3_tensor, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
        {"FP8_PER_CHANNEL_PER_TOKEN", &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
        {"fp8_pb_wo", &oq_format_fp8_e4m3_block128, NULL, OQ_ACT_NONE},
        {"NVFP4", &oq_format_nvfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_NVFP4},
        {"W4A16_NVFP4", &oq_format_nvfp4, NULL, OQ_ACT_NONE},
        {"W4A16_AWQ", &oq_format_int4_g128, NULL, OQ_ACT_NONE},
        {"MXFP8", &oq_format_mxfp8, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX},
    };
    w->in[0].ckpt = w->in[1].ckpt = NULL;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_layer_choice c[OQ_COUNT(layers)];
        char text[160];
        snprintf(text, sizeof text,
                 "{\"quant_method\": \"modelopt\", \"quant_algo\": \"%s\", \"ignore\": [\"*w2\"]}",
                 rows[i].algo);
        declare(w, 0, text);
        accept(w, NULL, c);
        assert_ptr_equal(c[QKV].scheme.weight, rows[i].weight);
        assert_ptr_equal(c[QKV].scheme.act, rows[i].act);
        assert_int_equal(c[QKV].scheme.act_scale, rows[i].scale);
        expect_layer(&c[W2], NULL, "ignored by '*w2'");
    }
    declare(w, 0, "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32}");
    refuse(w, NULL, OQ_E_UNSUPPORTED,
           "'net/config.json' declares 'gptq', whose layers dummy loading does not make up");
    declare(w, 0, NULL);
}

/* ---- the value ----------------------------------------------------------------------------------------- */

/* 5, 16: resolving does not change the request, so one request serves many models. */
static void test_request_untouched(void **state)
{
    world *w = *state;
    assert_int_equal(resolve(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"w2\"]}"), OQ_OK);
    oq_json *before = oq_quant_config_to_json(w->config);
    oq_resolved *again = NULL;
    declare(w, 0, "{\"quant_method\": \"fp8\", \"ignored_layers\": [\"to_qkv\"]}");
    assert_int_equal(oq_resolve(w->env, w->config, w->in, 3, &again), OQ_OK);
    oq_json *after = oq_quant_config_to_json(w->config);
    assert_true(oq_json_equal(before, after));
    oq_json_free(before);
    oq_json_free(after);
    oq_resolved_free(again);
}

/* The print lives on after the request is gone and says all of it. */
static void test_print(void **state)
{
    world *w = *state;
    accept(w, "{\"transformer\": {\"method\": \"fp8\", \"ignored_layers\": [\"w2\"]}, \"vae\": null}", NULL);
    oq_quant_config_free(w->config);
    w->config = NULL;
    oq_json *json = oq_resolved_to_json(w->resolved);
    char *text = NULL;
    assert_int_equal(oq_json_dump(w->env, json, OQ_JSON_COMPACT, &text), OQ_OK);
    assert_string_equal(text, "{\"components\": [{\"name\": \"transformer\", \"class\": \"Net\", \"source\": "
                              "\"online\", \"from\": \"flag\", "
                              "\"dialect\": null, \"declared_in\": null, \"routes\": [{\"prefix\": "
                              "\"transformer\", \"method\": \"fp8\", "
                              "\"options\": {\"ignored_layers\": [\"w2\"], \"activation_scheme\": "
                              "\"dynamic\", \"weight_strategy\": \"tensor\"}, "
                              "\"ignored\": [{\"entry\": \"w2\", \"from\": \"request\", \"matches\": 1}]}]}, "
                              "{\"name\": \"text_encoder\", \"class\": \"Net\", \"source\": \"none\", "
                              "\"from\": \"default\", \"dialect\": null, "
                              "\"declared_in\": null, \"routes\": []}, "
                              "{\"name\": \"vae\", \"class\": \"AutoencoderKL\", \"source\": \"none\", "
                              "\"from\": \"default\", \"dialect\": null, "
                              "\"declared_in\": null, \"routes\": []}], \"warnings\": []}");
    oq_free(w->env, text);
    oq_json_free(json);
}

static const char *choose_some(void *user, const char *name, int64_t n, int64_t k)
{
    (void)user, (void)n, (void)k;
    return strstr(name, "attention") ? "fp8" : strstr(name, "w2") ? "none" : "int8";
}

/* A method of the calling program goes the whole way. */
static void test_registered(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    const oq_custom_method custom = {sizeof custom, "mine", choose_some, NULL};
    assert_int_equal(oq_method_register(w->env, &custom), OQ_OK);
    accept(w, "{\"method\": \"Mine\", \"ignored_layers\": [\"down_proj\"]}", c);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_tensor, "mine");
    expect_layer(&c[W13], &oq_format_int8_channel, "mine");
    expect_layer(&c[W2], NULL, "left plain by 'mine'");
    expect_layer(&c[DOWN], NULL, "ignored by 'down_proj'");
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    refuse(w, "mine", OQ_E_MISMATCH, "asks for 'mine'|declares 'fp8'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_request, setup, teardown),
        cmocka_unit_test_setup_teardown(test_global, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keep, setup, teardown),
        cmocka_unit_test_setup_teardown(test_components, setup, teardown),
        cmocka_unit_test_setup_teardown(test_component_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_serialized_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_four_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_encoders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ignored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unmatched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_effect, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mapped_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_adopted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_int8_adopted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_conflicts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreadable, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refined, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sides, setup, teardown),
        cmocka_unit_test_setup_teardown(test_declared_online, setup, teardown),
        cmocka_unit_test_setup_teardown(test_modelopt, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fused_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_against_wishes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_declared_without_effect, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dummy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dummy_of_producers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_request_untouched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_print, setup, teardown),
        cmocka_unit_test_setup_teardown(test_registered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
