/* test_resolve.c -- requests: which components and layers they reach, what is ignored, what is decided; and the value itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/resolve_world.h"

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
                OQ_E_CONFIG,
                "'down_proj' means layers like 'text_encoder.|the request that it stands in does not");
    refuse_plan(w, "{\"transformer\": \"int8\", \"transformer.layers.7\": \"fp8\"}", OQ_E_CONFIG,
                "quantization_config names 'transformer.layers.7', which begins no layer's name|nearest is "
                "'transformer.layers.0'");
    refuse_plan(w, "{\"transformer\": \"int8\", \"transformer.layers.0.attention.to_q\": null}", OQ_E_CONFIG,
                "'transformer.layers.0.attention.to_q', which begins no layer's name|attention.to_qkv'");
}

/* An entry of a component's own request must match there; --ignored-layers' in any component. A long one is not cut. */
static void test_unmatched_component(void **state)
{
    world *w = *state;
    char entry[1200], request[1300];
    refuse_plan(w,
                "{\"transformer\": {\"method\": \"fp8\", \"ignored_layers\": [\"w2\"]}, \"text_encoder\": "
                "{\"method\": \"fp8\", \"ignored_layers\": [\"w2\"]}}",
                OQ_E_CONFIG,
                "ignored_layers entry 'w2' means layers like 'transformer.layers.1.feed_forward.w2'");
    ask(w, "{\"transformer\": \"fp8\", \"text_encoder\": \"fp8\"}");
    assert_int_equal(oq_quant_config_add_ignored(w->env, w->config, "w2"), OQ_OK);
    assert_int_equal(plan_config(w, NULL), OQ_OK);

    snprintf(entry, sizeof entry, "re:(%0900d|layers.1.feed_forward.w2)", 0);
    snprintf(request, sizeof request, "{\"method\": \"fp8\", \"ignored_layers\": \"to_qkv, %s\"}", entry);
    accept(w, request, NULL);
    assert_string_equal(component(w, 0)->routes[0].ignored[1].text, entry);
    assert_int_equal(component(w, 0)->routes[0].ignored[1].matches, 1);
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
        cmocka_unit_test_setup_teardown(test_unmatched_component, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unmatched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_effect, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mapped_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_request_untouched, setup, teardown),
        cmocka_unit_test_setup_teardown(test_print, setup, teardown),
        cmocka_unit_test_setup_teardown(test_registered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
