/* test_quant_config.c -- every form of quantization_config that is read, and every one that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "config/quant_config.h"

#include "support/scratch.h"

#include <stdio.h>
#include <string.h>

static const char *const components[] = {"transformer", "text_encoder", "vae"};

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

static oq_quant_config *parse(oq_env *env, const char *text)
{
    oq_quant_config *config = NULL;
    const oq_status st = oq_quant_config_parse(env, text, components, OQ_COUNT(components), &config);
    if (st != OQ_OK) fail_msg("%s: %s", text, oq_env_error(env));
    return config;
}

/* `text` is refused with `status`, and the sentence holds each word of `words` (separated by '|'). */
static void refuse(oq_env *env, const char *text, oq_status status, const char *words)
{
    oq_quant_config *config = NULL;
    const oq_status st = oq_quant_config_parse(env, text, components, OQ_COUNT(components), &config);
    if (st != status) fail_msg("%s: %s, %s", text, oq_status_name(st), oq_env_error(env));
    assert_null(config);
    char copy[512];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = NULL, *word = strtok_r(copy, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        if (!strstr(oq_env_error(env), word)) fail_msg("'%s' does not hold '%s'", oq_env_error(env), word);
    oq_env_clear(env);
}

static void expect_single(oq_env *env, const char *text, const char *method, bool serialized)
{
    oq_quant_config *config = parse(env, text);
    assert_int_equal(config->form, OQ_QUANT_SINGLE);
    assert_string_equal(config->single.method, method);
    assert_int_equal(config->single.serialized_form, serialized);
    oq_quant_config_free(config);
}

/* 1, 2: nothing, and the word none in any case; the word is a wish, null is not. */
static void test_none(void **state)
{
    static const struct {
        const char *text;
        bool wish;
    } rows[] = {{"null", false},
                {"~", false},
                {"none", true},
                {"NONE", true},
                {"\"None\"", true},
                {"{\"method\": \"none\"}", true},
                {"{\"quantization_config\": null}", false}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_quant_config *config = parse(*state, rows[i].text);
        assert_int_equal(config->form, OQ_QUANT_NONE);
        const oq_quant_spec *spec = oq_quant_config_route(config, "transformer");
        assert_int_equal(spec != NULL, rows[i].wish);
        if (spec) assert_null(spec->method);
        oq_quant_config_free(config);
    }
    oq_quant_config *config = NULL;
    assert_int_equal(oq_quant_config_from_json(*state, NULL, NULL, 0, &config), OQ_OK);
    assert_int_equal(config->form, OQ_QUANT_NONE);
    oq_quant_config_free(config);
    refuse(*state, "{\"method\": \"none\", \"bits\": 4}", OQ_E_CONFIG, "'none' takes no options");
}

/* 3, 4, 8 and both kinds of mapping: `method` is a wish, `quant_method` a checkpoint's metadata. */
static void test_single(void **state)
{
    expect_single(*state, "fp8", "fp8", false);
    expect_single(*state, "FP8", "FP8", false);
    expect_single(*state, "  auto-round\n", "auto-round", false);
    expect_single(*state, "\"fp8\"", "fp8", false);
    expect_single(*state, "{\"method\": \"fp8\"}", "fp8", false);
    expect_single(*state, "{\"quant_method\": \"int8\"}", "int8", true);
    expect_single(*state, "{\"method\": \"fp8\", \"quant_method\": \"FP8\"}", "fp8", true);
    expect_single(*state, "{method: fp8, ignored_layers: [img_mlp]}", "fp8", false);
    expect_single(*state, "method: fp8\nignored_layers:\n  - img_mlp\n", "fp8", false);
    expect_single(*state, "{\"quantization\": \"fp8\"}", "fp8", false);
    expect_single(*state, "diffusion_quantization_config:\n  quant_method: int8\n", "int8", true);

    oq_quant_config *config = parse(*state, "{\"method\": \"fp8\", \"activation_scheme\": \"static\"}");
    assert_int_equal(oq_json_size(config->single.options), 1);
    assert_string_equal(oq_json_string(oq_json_get(config->single.options, "activation_scheme")), "static");
    assert_string_equal(config->from, "flag");
    oq_quant_config_free(config);
}

/* 6, 9, 10, 14, 15, 17, 23 and their relatives. */
static void test_refused(void **state)
{
    oq_env *env = *state;
    refuse(env, "", OQ_E_CONFIG, "empty");
    refuse(env, "123", OQ_E_CONFIG, "quantization_config|a whole number");
    refuse(env, "[\"fp8\"]", OQ_E_CONFIG, "a list");
    refuse(env, "true", OQ_E_CONFIG, "a boolean");
    refuse(env, "{\"activation_scheme\": \"static\"}", OQ_E_CONFIG, "no 'method'|'activation_scheme'");
    refuse(env, "{\"transfromer\": \"fp8\"}", OQ_E_CONFIG, "'transfromer'|did you mean 'transformer'?");
    refuse(env, "{}", OQ_E_CONFIG, "empty|no 'method'");
    refuse(env, "{\"transformer\": {\"ignored_layers\": []}, \"vae\": null}", OQ_E_CONFIG,
           "'transformer'|no 'method'");
    refuse(env, "{\"transformer\": 42, \"vae\": null}", OQ_E_CONFIG,
           "no 'method'|'transformer'|a whole number");
    refuse(env, "{\"method\": \"fp8\", \"quant_method\": \"int8\"}", OQ_E_CONFIG, "two methods|'fp8'|'int8'");
    refuse(env, "{\"method\": \"fp8\", \"METHOD\": \"int8\"}", OQ_E_CONFIG, "two spellings|'fp8'|'int8'");
    refuse(env, "{\"quant_method\": \"fp8\", \"quant-method\": \"int8\"}", OQ_E_CONFIG,
           "two methods|two spellings");
    refuse(env, "{\"foo\": \"bar\"}", OQ_E_CONFIG, "no 'method'|'foo'");
    refuse(env, "{\"method\": 8}", OQ_E_CONFIG, "'method'|a whole number");
    refuse(env, "{\"method\": \"\"}", OQ_E_CONFIG, "'method'|empty");
    refuse(env, "{\"transformer\": {\"method\": null}, \"vae\": null}", OQ_E_CONFIG, "'transformer'|null");
    refuse(env, "{\"quantization\": \"fp8\", \"quantization_config\": \"fp8\"}", OQ_E_CONFIG,
           "twice|'quantization'|'quantization_config'");
    refuse(env, "{\"quantization\": \"fp8\", \"lora_scale\": 1}", OQ_E_CONFIG, "'lora_scale'|'quantization'");
    refuse(env, "{\"method\": \"fp8\"", OQ_E_CONFIG, "quantization_config|not valid JSON");
    refuse(env, "{method: fp8", OQ_E_CONFIG, "quantization_config|not valid YAML");
    refuse(env, "@no/such/file.json", OQ_E_NOTFOUND, "no/such/file.json");
}

/* 5, 16, 27: a built value stays what it is, the caller's JSON is not touched, and the print parses back. */
static void test_round_trip(void **state)
{
    static const char *const texts[] = {
        "null",
        "none",
        "fp8",
        "{\"method\": \"fp8\", \"ignored_layers\": [\"a\", \"re:b\"]}",
        "{\"quant_method\": \"int8\"}",
        "{transformer: {method: fp8, ignored_layers: [x]}, vae: null, default: int8}",
        "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"FP8\"}}"};
    for (size_t i = 0; i < OQ_COUNT(texts); i++) {
        oq_quant_config *first = parse(*state, texts[i]), *second = NULL;
        oq_json *json = oq_quant_config_to_json(first), *before = oq_json_copy(json);
        assert_int_equal(oq_quant_config_from_json(*state, json, NULL, 0, &second), OQ_OK);
        assert_true(oq_json_equal(json, before));
        oq_json *again = oq_quant_config_to_json(second);
        assert_true(oq_json_equal(json, again));
        assert_int_equal(first->form, second->form);
        assert_string_equal(second->from, "config");
        oq_json_free(json);
        oq_json_free(before);
        oq_json_free(again);
        oq_quant_config_free(first);
        oq_quant_config_free(second);
    }
}

/* 11, 12, 13: maps of components. */
static void test_components(void **state)
{
    static const char *const maps[] = {"{\"transformer\": {\"method\": \"fp8\"}, \"vae\": null}",
                                       "{\"transformer\": \"fp8\", \"vae\": null}",
                                       "transformer: fp8\nvae: ~\n",
                                       "{\"transformer\": \"fp8\", \"vae\": \"none\"}"};
    for (size_t i = 0; i < OQ_COUNT(maps); i++) {
        oq_quant_config *config = parse(*state, maps[i]);
        assert_int_equal(config->form, OQ_QUANT_COMPONENTS);
        assert_int_equal(config->n_entries, 2);
        assert_string_equal(oq_quant_config_route(config, "transformer.layers.0")->method, "fp8");
        assert_null(oq_quant_config_route(config, "vae")->method);
        assert_null(oq_quant_config_route(config, "text_encoder"));
        oq_quant_config_free(config);
    }
    oq_quant_config *config = parse(*state, "{\"transformer\": \"fp8\"}");
    assert_int_equal(config->form, OQ_QUANT_COMPONENTS);
    oq_quant_config_free(config);
    refuse(*state, "{\"tower\": \"fp8\"}", OQ_E_CONFIG, "no 'method'|'tower'|not a component");
    assert_int_equal(oq_quant_config_parse(*state, "{\"transformer\": \"fp8\"}", NULL, 0, &config),
                     OQ_E_CONFIG);
    assert_non_null(strstr(oq_env_error(*state), "'transformer'"));
}

/* 32 to 37: the longest prefix at a dot wins, null is a decision of its own, default fills the rest. */
static void test_routing(void **state)
{
    oq_quant_config *config = parse(
        *state,
        "{\"language_model\": {\"method\": \"fp8\"}, \"language_model.model\": {\"method\": \"int8\"}}");
    assert_string_equal(oq_quant_config_route(config, "language_model.model.layers.0")->method, "int8");
    assert_string_equal(oq_quant_config_route(config, "language_model.lm_head")->method, "fp8");
    assert_string_equal(oq_quant_config_route(config, "language_model")->method, "fp8");
    assert_null(oq_quant_config_route(config, "audio_tower.layers.0"));
    assert_null(oq_quant_config_route(config, ""));
    oq_quant_config_free(config);

    config =
        parse(*state,
              "{\"transformer\": {\"method\": \"int8\"}, \"vae\": null, \"default\": {\"method\": \"fp8\"}}");
    assert_string_equal(oq_quant_config_route(config, "transformer.blocks.0")->method, "int8");
    assert_string_equal(oq_quant_config_route(config, "transformer_2.blocks.0")->method,
                        "fp8"); /* no dot between */
    assert_null(oq_quant_config_route(config, "vae.decoder")->method);
    assert_string_equal(oq_quant_config_route(config, "text_encoder")->method, "fp8");
    assert_int_equal(config->n_entries, 2);
    oq_quant_config_free(config);

    config = parse(*state, "{\"\": {\"method\": \"fp8\"}, \"vae\": null}");
    assert_string_equal(oq_quant_config_route(config, "anything")->method, "fp8");
    assert_string_equal(oq_quant_config_route(config, "")->method, "fp8");
    assert_null(oq_quant_config_route(config, "vae")->method);
    oq_quant_config_free(config);
}

/* 24: ModelOpt's own metadata names its producer instead of a method. */
static void test_modelopt_metadata(void **state)
{
    oq_quant_config *config = parse(
        *state, "{\"producer\": {\"name\": \"ModelOpt\"}, \"quantization\": {\"quant_algo\": \"FP8\"}}");
    assert_int_equal(config->form, OQ_QUANT_SINGLE);
    assert_string_equal(config->single.method, "modelopt");
    assert_true(config->single.serialized_form);
    assert_non_null(oq_json_get(config->single.options, "quantization"));
    oq_quant_config_free(config);
}

static void test_files(void **state)
{
    char dir[512], at[1024];
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "quant_config"));
    scratch_text(dir, "a.json", "\n{\"method\": \"fp8\"}\n");
    scratch_text(dir, "b.yaml", "# a comment\ntransformer:\n  method: int8\nvae: null\n");
    scratch_text(dir, "c.txt", "fp8\n");
    scratch_text(dir, "d.json", "{\"method\": \"fp8\", \"method\": \"int8\"}");
    scratch_text(dir, "e.json", "\"@c.txt\"");
    snprintf(at, sizeof at, "@%s", scratch_path(dir, "a.json"));
    expect_single(*state, at, "fp8", false);
    snprintf(at, sizeof at, "@%s", scratch_path(dir, "c.txt"));
    expect_single(*state, at, "fp8", false);
    snprintf(at, sizeof at, "@%s", scratch_path(dir, "e.json")); /* a file does not lead to another */
    expect_single(*state, at, "@c.txt", false);
    snprintf(at, sizeof at, "@%s", scratch_path(dir, "b.yaml"));
    oq_quant_config *config = parse(*state, at);
    assert_int_equal(config->form, OQ_QUANT_COMPONENTS);
    oq_quant_config_free(config);
    snprintf(at, sizeof at, "@%s", scratch_path(dir, "d.json"));
    refuse(*state, at, OQ_E_CONFIG, "d.json|method");
}

/* --component and --ignored-layers beside --quantization. */
static void test_additions(void **state)
{
    oq_env *env = *state;
    oq_quant_config *config = parse(env, "fp8");
    assert_int_equal(oq_quant_config_add_component(env, config, "vae", "none"), OQ_OK);
    assert_int_equal(oq_quant_config_add_component(env, config, "text_encoder", "{\"method\": \"int8\"}"),
                     OQ_OK);
    assert_int_equal(oq_quant_config_add_ignored(env, config, "img_mlp, to_out"), OQ_OK);
    assert_string_equal(oq_quant_config_route(config, "transformer")->method, "fp8");
    assert_null(oq_quant_config_route(config, "vae")->method);
    const oq_quant_spec *text = oq_quant_config_route(config, "text_encoder");
    assert_string_equal(text->method, "int8");
    assert_string_equal(oq_json_string(oq_json_at(oq_json_get(text->options, "ignored_layers"), 1)),
                        "to_out");
    assert_int_equal(oq_quant_config_add_component(env, config, "vae", "fp8"), OQ_E_CONFIG);
    assert_non_null(strstr(oq_env_error(env), "'vae' is given twice"));
    oq_env_clear(env);
    assert_int_equal(oq_quant_config_add_component(env, config, "x", "{\"a\": \"fp8\", \"b\": null}"),
                     OQ_E_CONFIG);
    assert_non_null(strstr(oq_env_error(env), "'x' is a map of components itself"));
    oq_env_clear(env);
    oq_quant_config_free(config);

    config = parse(env, "{\"method\": \"int8\", \"modules_to_not_convert\": [\"a\"]}");
    assert_int_equal(oq_quant_config_add_ignored(env, config, "b"), OQ_OK);
    assert_int_equal(oq_json_size(oq_json_get(config->single.options, "modules_to_not_convert")), 2);
    oq_quant_config_free(config);

    config = parse(env, "{method: int8, ignored_layers: 'a, c'}"); /* words of a text stay, too */
    assert_int_equal(oq_quant_config_add_ignored(env, config, "b"), OQ_OK);
    const oq_json *list = oq_json_get(config->single.options, "ignored_layers");
    assert_int_equal(oq_json_size(list), 3);
    assert_string_equal(oq_json_string(oq_json_at(list, 1)), "c");
    assert_int_equal(oq_json_size(config->common_ignored), 1);
    oq_quant_config_free(config);

    config = parse(env, "{method: int8, ignored_layers: 5}"); /* the method says what is wrong with it */
    assert_int_equal(oq_quant_config_add_ignored(env, config, "b"), OQ_OK);
    assert_int_equal(oq_json_type(oq_json_get(config->single.options, "ignored_layers")), OQ_JSON_INT);
    oq_quant_config_free(config);

    char entry[2048];
    memset(entry, 'a', sizeof entry);
    entry[sizeof entry - 1] = '\0';
    config = parse(env, "fp8");
    assert_int_equal(oq_quant_config_add_ignored(env, config, entry), OQ_OK);
    list = oq_json_get(config->single.options, "ignored_layers");
    assert_string_equal(oq_json_string(oq_json_at(list, 0)), entry);
    oq_quant_config_free(config);

    config = parse(env, "none");
    assert_int_equal(oq_quant_config_add_ignored(env, config, "a"), OQ_E_CONFIG);
    assert_non_null(strstr(oq_env_error(env), "without a quantization method"));
    oq_quant_config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_single, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_components, setup, teardown),
        cmocka_unit_test_setup_teardown(test_routing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_modelopt_metadata, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_additions, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
