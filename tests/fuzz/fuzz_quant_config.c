/* fuzz_quant_config.c -- a request, a NUL, and a checkpoint's metadata. Properties: what a request
 * prints reads back as the same; resolving and choosing end in a decision or one sentence; the decision prints. */
#include "fuzz/fuzz.h"

#include "quant/resolve.h"

static const char *const components[] = {"transformer", "text_encoder", "vae"};

static void check_print(oq_env *env, const oq_quant_config *config)
{
    oq_quant_config *again = NULL;
    oq_json *json = oq_quant_config_to_json(config);
    FUZZ_CHECK(oq_quant_config_from_json(env, json, components, 3, &again) == OQ_OK);
    oq_json *second = oq_quant_config_to_json(again);
    FUZZ_CHECK(oq_json_equal(json, second));
    FUZZ_CHECK(config->form == again->form && config->n_entries == again->n_entries);
    for (size_t i = 0; i < config->n_entries; i++)
        FUZZ_CHECK(oq_quant_config_route(config, config->entries[i].component) == &config->entries[i].spec);
    oq_json_free(json);
    oq_json_free(second);
    oq_quant_config_free(again);
}

static oq_status choose_layers(oq_env *env, oq_resolved *resolved)
{
    static const char *const parts[] = {"layers.0.attention.to_q", "layers.0.attention.to_k",
                                        "layers.0.attention.to_v"};
    static const int64_t part_n[] = {32, 32, 32};
    static const char *const names[] = {"transformer.layers.0.attention.to_qkv", "transformer.layers.0.w2",
                                        "text_encoder.layers.0.w2"};
    for (size_t i = 0; i < 2; i++) {
        const oq_layer_desc fused = {
            components[i], "layers.0.attention.to_qkv", parts, part_n, 3, 96, 32, NULL, false};
        const oq_layer_desc single = {
            components[i], "layers.0.w2", (const char *const[]){"layers.0.w2"}, part_n, 1, 32, 32,
            NULL,          false};
        oq_layer_choice choice;
        OQ_TRY(oq_resolve_layer(env, resolved, &resolved->components[i], &fused, NULL, NULL, NULL, &choice));
        OQ_TRY(oq_resolve_layer(env, resolved, &resolved->components[i], &single, NULL, NULL, NULL, &choice));
        FUZZ_CHECK(choice.reason && choice.quantized == (choice.scheme.weight != NULL));
    }
    return oq_resolve_finish(env, resolved, names, 3);
}

static void check_resolved(oq_env *env, const oq_quant_config *config, const oq_json *quant)
{
    static const oq_ckpt empty = {.path = "empty"};
    oq_resolve_input in[3] = {0};
    oq_resolved *resolved = NULL;
    for (size_t i = 0; i < 3; i++)
        in[i] = (oq_resolve_input){
            .name = components[i], .class_name = "Net", .quantizable = i < 2, .encoder = i == 1};
    in[0].quant = quant;
    in[0].quant_source = "config.json";
    in[0].ckpt = quant ? &empty : NULL;
    oq_env_clear(env);
    oq_status st = oq_resolve(env, config, in, 3, &resolved);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (resolved != NULL));
    if (st == OQ_OK) st = choose_layers(env, resolved);
    fuzz_check_status(env, st);
    if (resolved) {
        oq_json *json = oq_resolved_to_json(resolved);
        FUZZ_CHECK(oq_json_size(oq_json_get(json, "components")) == 3);
        oq_json_free(json);
    }
    oq_resolved_free(resolved);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    oq_quant_config *config = NULL;
    oq_json *quant = NULL;
    char *text = oq_alloc(env, n + 1);
    if (n) memcpy(text, data, n);
    const size_t first = strlen(text);
    const char *request = text + strspn(text, " \t\r\n");
    if (*request != '@') { /* no files here */
        fuzz_check_status(env, oq_quant_config_parse(env, request, components, 3, &config));
        if (config) check_print(env, config);
    }
    oq_env_clear(env);
    if (first < n) oq_json_parse(env, text + first + 1, n - first - 1, "metadata", &quant);
    if (config || quant) check_resolved(env, config, quant);
    oq_json_free(quant);
    oq_quant_config_free(config);
    oq_free(env, text);
    return 0;
}
