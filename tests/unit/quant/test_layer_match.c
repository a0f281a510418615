/* test_layer_match.c -- which entries of ignored_layers mean which layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "quant/layer_match.h"

#include <string.h>

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

static const oq_layer_desc single = {.component = "transformer",
                                     .name = "transformer_blocks.7.img_mlp.net.0.proj",
                                     .parts =
                                         (const char *const[]){"transformer_blocks.7.img_mlp.net.0.proj"},
                                     .part_n = (const int64_t[]){64},
                                     .n_parts = 1,
                                     .n = 64,
                                     .k = 32};
static const oq_layer_desc fused = {.component = "transformer",
                                    .name = "layers.0.attention.to_qkv",
                                    .parts = (const char *const[]){"layers.0.attention.to_q",
                                                                   "layers.0.attention.to_k",
                                                                   "layers.0.attention.to_v"},
                                    .part_n = (const int64_t[]){32, 32, 32},
                                    .n_parts = 3,
                                    .n = 96,
                                    .k = 32};

/* 50, 51, 52: exact names, dotted runs, globs, expressions; fused names and parts. */
static void test_patterns(void **state)
{
    static const struct {
        const oq_layer_desc *layer;
        const char *pattern;
        uint64_t bits;
    } rows[] = {
        {&single, "transformer_blocks.7.img_mlp.net.0.proj", 1},
        {&single, "transformer.transformer_blocks.7.img_mlp.net.0.proj", 1},
        {&single, "img_mlp", 1},
        {&single, "transformer_blocks.7", 1},
        {&single, "net.0.proj", 1},
        {&single, "transformer", 1},
        {&single, "transformer_blocks.0", 0},
        {&single, "mlp", 0}, /* part of a word is no match */
        {&single, "img_mlp.net.0.pro", 0},
        {&single, "transformer_blocks", 1},
        {&single, "text_encoder.transformer_blocks.7", 0},
        {&single, "*.img_mlp.*", 1},
        {&single, "transformer_blocks.[5-8].*", 1},
        {&single, "transformer_blocks.?.txt_mlp*", 0},
        {&single, "img_mlp*", 0}, /* a glob means the whole name */
        {&single, "*img_mlp*", 1},
        {&single, "re:transformer_blocks\\.\\d+\\.img", 1},
        {&single, "re:img_mlp", 0}, /* anchored at the beginning */
        {&single, "re:.*img_mlp", 1},
        {&single, "re:transformer\\.transformer_blocks", 1},
        {&single, "", 0},
        {&single, ".", 0},
        {&fused, "layers.0.attention.to_qkv", 7},
        {&fused, "to_qkv", 7},
        {&fused, "attention", 7},
        {&fused, "to_q", 1},
        {&fused, "to_k", 2},
        {&fused, "layers.0.attention.to_v", 4},
        {&fused, "*.to_[qk]", 3},
        {&fused, "re:layers\\.0\\.attention\\.to_[qkv]$", 7},
        {&fused, "w13", 0},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        uint64_t bits = 99;
        oq_match match = OQ_MATCH_NO;
        const uint64_t all = rows[i].layer->n_parts == 1 ? 1 : 7;
        assert_int_equal(oq_layer_match(*state, rows[i].pattern, rows[i].layer, &bits, &match), OQ_OK);
        if (bits != rows[i].bits) fail_msg("'%s': %d", rows[i].pattern, (int)bits);
        assert_int_equal(match, bits == 0 ? OQ_MATCH_NO : bits == all ? OQ_MATCH_YES : OQ_MATCH_SOME_PARTS);
    }
}

static void test_malformed(void **state)
{
    uint64_t bits = 0;
    oq_match match = OQ_MATCH_YES;
    assert_int_equal(oq_layer_match(*state, "re:to_(q", &single, &bits, &match), OQ_E_CONFIG);
    assert_non_null(strstr(oq_env_error(*state), "'to_(q'"));
    assert_int_equal(match, OQ_MATCH_NO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_patterns, setup, teardown),
        cmocka_unit_test_setup_teardown(test_malformed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
