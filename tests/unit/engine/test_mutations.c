/* test_mutations.c -- every layout spoilt in one place, in every way that a file can be: plan, inspect and generate agree;
 * what they take gives the picture of the unspoilt file, what they refuse is refused with one sentence. Nothing else is
 * right: there is no table of expected outcomes to get wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/env_setup.h"
#include "support/mutant.h"
#include "support/mutation_judge.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    mutation_judge judge;
    char folder[1024]; /* the spoilt one */
    bool integers;     /* in groups */
} bench;

static int setup(void **state)
{
    static bench b;
    void *env = NULL;
    if (env_setup(&env) != 0) return -1;
    b.judge.env = env;
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    void *env = ((bench *)*state)->judge.env;
    return env_teardown(&env);
}

/* ---- one spoilt folder ----------------------------------------------------------------------------------- */

static void judge(bench *b, const mutant *m, const char *what, bool may_differ)
{
    if (!mutation_due(&b->judge)) return;
    mutant_write(m, b->folder);
    mutation_verdict(&b->judge, b->folder, what, may_differ);
}

/* ---- spoilt tensors ------------------------------------------------------------------------------------- */

/* Layers that stand for others: a part of a fused product, one of another width. */
static const char *const layers[] = {"layers.0.attention.to_k", "layers.1.feed_forward.w2"};

static bool of_layer(const mutant_tensor *t, const char *layer)
{
    const size_t n = strlen(layer);
    return strncmp(t->name, layer, n) == 0 && t->name[n] == '.';
}

/* Values like others, which nothing tells from right ones: codes, zero points, scales that are codes themselves; scales of
 * integers in groups are negative in files of producers; the table of nothing that is used. */
static bool all_values_go(const bench *b, const mutant_tensor *t, const char *what, const mutant *m,
                          const char *layer)
{
    size_t largest = 0;
    const bool negative = strcmp(what, "negative") == 0;
    if (strcmp(what, "zeros") && strcmp(what, "all bits set") && !negative) return false;
    for (size_t i = 0; i < m->n_tensors; i++)
        if (of_layer(&m->tensors[i], layer) && m->tensors[i].bytes > largest) largest = m->tensors[i].bytes;
    if (t->bytes == largest || strstr(t->name, "zero")) return true;
    if (negative) return b->integers;
    return strstr(t->name, ".absmax") && strcmp(t->type, "U8") == 0;
}

static void spoil_tensors(bench *b, const mutant *whole)
{
    char what[300];
    for (size_t l = 0; l < OQ_COUNT(layers); l++)
        for (size_t i = 0; i < whole->n_tensors; i++) {
            if (!of_layer(&whole->tensors[i], layers[l])) continue;
            for (const mutant_spoil *s = mutant_spoils; s->what; s++) {
                mutant m;
                if (all_values_go(b, &whole->tensors[i], s->what, whole, layers[l])) continue;
                mutant_copy(&m, whole);
                snprintf(what, sizeof what, "%s %s", whole->tensors[i].name, s->what);
                if (s->spoil(&m.tensors[i])) judge(b, &m, what, false);
                mutant_free(&m);
            }
        }
}

/* ---- ways to spoil a file -------------------------------------------------------------------------------- */

static void add_scalar(mutant *m, const char *layer, const char *suffix, float value)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", layer, suffix);
    if (!mutant_find(m, name)) mutant_add(m, name, "F32", NULL, 0, &value, sizeof value);
}

static void spoil_with_strangers(bench *b, const mutant *whole)
{
    static const char *const suffixes[] = {
        ".weight_scale",  ".scale_weight", ".weight_scale_inv",   ".weight_scale_2",
        ".input_scale",   ".scale_input",  ".pre_quant_scale",    ".qzeros",
        ".scales",        ".g_idx",        ".weight.absmax",      ".weight_zero_point",
        ".weight_shape",  ".SCB",          ".weight._scale",      ".smooth_factor",
        ".weight_offset", ".comfy_quant",  ".weight_global_scale"};
    char what[300];
    for (size_t i = 0; i < OQ_COUNT(suffixes); i++) {
        mutant m;
        mutant_copy(&m, whole);
        const size_t before = m.n_tensors;
        add_scalar(&m, layers[0], suffixes[i], 2.0f);
        snprintf(what, sizeof what, "%s%s added", layers[0], suffixes[i]);
        /* a scale of the activations is one more thing that files may have */
        if (m.n_tensors > before) judge(b, &m, what, strstr(suffixes[i], "input") != NULL);
        mutant_free(&m);
    }
}

/* One layer as the plain model has it, with and without what stood beside its codes. */
static void spoil_with_plain(bench *b, const mutant *whole, const mutant *plain)
{
    for (size_t l = 0; l < OQ_COUNT(layers); l++)
        for (int keep = 0; keep < 2; keep++) {
            mutant m;
            char name[256], what[300];
            snprintf(name, sizeof name, "%s.weight", layers[l]);
            const mutant_tensor *t = mutant_find(plain, name);
            assert_non_null(t);
            mutant_copy(&m, whole);
            for (size_t i = 0; i < m.n_tensors; i++) {
                if (!of_layer(&m.tensors[i], layers[l])) continue;
                const char *end = m.tensors[i].name + strlen(layers[l]);
                if (strcmp(end, ".bias") == 0) continue;
                if (!keep || strcmp(end, ".weight") == 0) mutant_drop(&m.tensors[i]);
            }
            mutant_add(&m, name, t->type, t->dim, t->n_dims, t->data, t->bytes);
            snprintf(what, sizeof what, "%s plain%s", layers[l], keep ? ", its scales still there" : "");
            judge(b, &m, what, !keep);
            mutant_free(&m);
        }
}

/* ---- ways to spoil what is said about it ------------------------------------------------------------------ */

static void set_quant(mutant *m, oq_json *quant)
{
    oq_json *config = oq_json_new_object();
    for (size_t i = 0; i < oq_json_size(m->config); i++) {
        const char *key;
        const oq_json *value = oq_json_member(m->config, i, &key);
        if (strcmp(key, "quantization_config") != 0) oq_json_set(config, key, oq_json_copy(value));
    }
    if (quant) oq_json_set(config, "quantization_config", quant);
    oq_json_free(m->config);
    m->config = config;
}

static const char *const strangers[] = {
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}",
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}",
    "{\"quant_method\":\"int8\"}",
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"desc_act\":false,\"sym\":true}",
    "{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":64,\"desc_act\":false,\"sym\":true}",
    "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"zero_point\":true,\"version\":\"gemm\"}",
    "{\"quant_method\":\"auto-round\",\"bits\":4,\"group_size\":32,\"sym\":true,\"packing_format\":"
    "\"auto_round:auto_gptq\"}",
    "{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\"}",
    "{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}",
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\"}",
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"group_size\":16}",
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MXFP8\"}",
    "{\"quant_method\":\"quanto\",\"weights_dtype\":\"int8\"}",
    "{\"quant_method\":\"quanto\",\"weights_dtype\":\"int4\"}",
    "{\"quant_method\":\"quanto\",\"weights_dtype\":\"float8\"}",
    "{\"quant_method\":\"torchao\",\"quant_type\":{\"default\":{\"_type\":\"Int8WeightOnlyConfig\",\"_data\":"
    "{},"
    "\"_version\":1}}}",
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{\"group_0\":{"
    "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\","
    "\"symmetric\":true}}},\"ignore\":[]}",
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"group_0\":{"
    "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\","
    "\"symmetric\":true}}},\"ignore\":[]}",
    "{\"quant_method\":\"quark\",\"quant_algo\":\"fp8\"}",
    "{\"quant_method\":\"svdquant\"}",
    "{\"quant_method\":\"gguf\"}",
    "{\"quant_method\":\"nonsense\"}",
    "{}",
};

static void spoil_with_declarations(bench *b, const mutant *whole)
{
    char what[300];
    for (size_t i = 0; i <= OQ_COUNT(strangers); i++) {
        mutant m;
        oq_json *quant = NULL;
        mutant_copy(&m, whole);
        if (i < OQ_COUNT(strangers))
            assert_int_equal(oq_json_parse(b->judge.env, strangers[i], strlen(strangers[i]), "t", &quant),
                             OQ_OK);
        set_quant(&m, quant);
        snprintf(what, sizeof what, "declared as %s", i < OQ_COUNT(strangers) ? strangers[i] : "nothing");
        judge(b, &m, what, true);
        mutant_free(&m);
    }
}

enum { MOST_PLACES = 48 };

static void spoil_declaration(bench *b, const mutant *whole)
{
    const oq_json *quant = oq_json_get(whole->config, "quantization_config");
    const size_t n = mutant_json_places(quant);
    for (size_t i = 0; i < n; i += n / MOST_PLACES + 1) /* lists of layers go on and on */
        for (int left_out = 0; left_out < 2; left_out++) {
            char place[256] = "", what[300];
            mutant m;
            oq_json *changed = mutant_json(quant, i, left_out, place, sizeof place);
            if (!changed) continue;
            mutant_copy(&m, whole);
            set_quant(&m, changed);
            snprintf(what, sizeof what, "declaration: %s %s", place, left_out ? "left out" : "changed");
            judge(b, &m, what, true);
            mutant_free(&m);
        }
}

/* Texts of the header that are JSON themselves. */
static void spoil_header(bench *b, const mutant *whole)
{
    for (size_t k = 0; k < oq_json_size(whole->metadata); k++) {
        const char *key;
        const char *text = oq_json_string(oq_json_member(whole->metadata, k, &key));
        oq_json *tree = NULL;
        const bool other = strchr(key, '.') && strncmp(key, layers[0], strlen(layers[0])) != 0;
        if (!text || text[0] != '{' || other ||
            oq_json_parse(b->judge.env, text, strlen(text), "t", &tree) != OQ_OK)
            continue;
        const size_t n = mutant_json_places(tree);
        for (size_t i = 0; i < n; i += n / MOST_PLACES + 1)
            for (int left_out = 0; left_out < 2; left_out++) {
                char place[256] = "", what[400], *dumped = NULL;
                mutant m;
                oq_json *changed = mutant_json(tree, i, left_out, place, sizeof place);
                if (!changed) continue;
                mutant_copy(&m, whole);
                assert_int_equal(oq_json_dump(b->judge.env, changed, OQ_JSON_COMPACT, &dumped), OQ_OK);
                oq_json_set(m.metadata, key, oq_json_new_string(dumped));
                snprintf(what, sizeof what, "header's %s: %s %s", key, place,
                         left_out ? "left out" : "changed");
                judge(b, &m, what, true);
                oq_free(b->judge.env, dumped);
                oq_json_free(changed);
                mutant_free(&m);
            }
        oq_json_free(tree);
    }
    mutant m;
    mutant_copy(&m, whole);
    oq_json_free(m.metadata);
    m.metadata = NULL;
    judge(b, &m, "without the header's metadata", false);
    mutant_free(&m);
}

/* ---- every layout ---------------------------------------------------------------------------------------- */

#define FP8(strategy)    "{\"method\": \"fp8\", \"weight_strategy\": \"" strategy "\"}"
#define W4(bits, g, sym) "{\"method\":\"w4a16\",\"bits\":" bits ",\"group_size\":" g ",\"sym\":" sym "}"

static const char *const rows[][2] = {
    {"fp8", "compressed-tensors"},
    {FP8("channel"), "compressed-tensors"},
    {FP8("block"), "compressed-tensors"},
    {"int8", "compressed-tensors"},
    {"mxfp8", "compressed-tensors"},
    {"mxfp4", "compressed-tensors"},
    {"nvfp4", "compressed-tensors"},
    {W4("4", "32", "true"), "compressed-tensors"},
    {W4("4", "64", "false"), "compressed-tensors"},
    {W4("3", "64", "true"), "compressed-tensors"},
    {"bitsandbytes", "bitsandbytes"},
    {FP8("channel"), "modelopt"},
    {FP8("block"), "modelopt"},
    {"mxfp8", "modelopt"},
    {"nvfp4", "modelopt"},
    {"fp8", "comfy"},
    {"mxfp8", "comfy"},
    {"nvfp4", "comfy"},
    {W4("4", "32", "true"), "auto-round"},
    {W4("4", "64", "false"), "auto-round"},
    {W4("3", "64", "true"), "auto-round"},
    {W4("4", "64", "false"), "auto-round-awq"},
    {W4("8", "64", "true"), "auto-round"},
    {"mxfp8", "auto-round"},
    {"mxfp4", "auto-round"},
    {"fp8", "fp8"},
    {FP8("channel"), "fp8"},
    {FP8("block"), "fp8"},
    {"int8", "int8"},
    {"int8", "torchao"},
    {FP8("channel"), "torchao"},
    {W4("4", "32", "true"), "torchao"},
    {W4("8", "64", "false"), "torchao"},
    {"mxfp8", "torchao"},
    {"mxfp4", "torchao"},
    {"nvfp4", "torchao"},
    {"int8", "quanto"},
    {FP8("channel"), "quanto"},
};

static void test_layouts(void **state)
{
    bench *b = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "mutations")), out[1024], name[256];
    const char *only = getenv("MUTATIONS_ONLY");
    mutant plain, whole;
    snprintf(b->folder, sizeof b->folder, "%s/spoilt", root);
    snprintf(out, sizeof out, "%s/whole", root);
    scratch_subdir(root, "spoilt");
    assert_int_equal(mutation_picture(b->judge.env, NULL, &b->judge.plain), OQ_OK);
    mutant_read(&plain, b->judge.env, TRANSFORMER);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        snprintf(name, sizeof name, "%s as %s", rows[i][0], rows[i][1]);
        if (only && !strstr(name, only)) continue;
        b->judge.layout = name;
        done(b->judge.env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", rows[i][0], "layout", rows[i][1], "output", out, "force",
                                   "true", NULL},
             NULL);
        mutant_read(&whole, b->judge.env, out);
        assert_int_equal(mutation_picture(b->judge.env, out, &b->judge.whole), OQ_OK);
        b->integers = strstr(rows[i][0], "w4a16") != NULL;
        b->judge.turn = 0;
        judge(b, &whole, "nothing changed", false);
        b->judge.turn = i;
        spoil_tensors(b, &whole);
        spoil_with_strangers(b, &whole);
        spoil_with_plain(b, &whole, &plain);
        spoil_with_declarations(b, &whole);
        spoil_declaration(b, &whole);
        spoil_header(b, &whole);
        free(b->judge.whole.pixels);
        mutant_free(&whole);
    }
    print_message("%zu spoilt files, %zu of them taken, %zu wrongly\n", b->judge.n, b->judge.n_taken,
                  b->judge.n_wrong);
    mutant_free(&plain);
    free(b->judge.plain.pixels);
    free(root);
    assert_int_equal(b->judge.n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layouts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
