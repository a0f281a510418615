/* test_tokenizer.c -- ids equal the Hugging Face tokenizers' on hard strings and on small tokenizers that use
 * every component; any bytes are accepted; one tokenizer serves many threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA   OMNIQ_SOURCE_DIR "/tests/data/text/"
#define TOYBOX OMNIQ_SOURCE_DIR "/models/toybox/tokenizer"

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

static void check_ids(oq_env *env, const oq_tokenizer *t, const char *name, const char *text,
                      const oq_json *want)
{
    int32_t *ids = NULL;
    size_t n = 0;
    const oq_status st = oq_tokenizer_encode(env, t, text, strlen(text), true, &ids, &n);
    if (st != OQ_OK) fail_msg("%s: '%s': %s", name, text, oq_env_error(env));
    bool same = n == oq_json_size(want);
    for (size_t i = 0; same && i < n; i++) same = ids[i] == oq_json_int(oq_json_at(want, i), -1);
    if (!same) {
        char *wanted = NULL;
        oq_json_dump(env, want, OQ_JSON_COMPACT, &wanted);
        fprintf(stderr, "got ");
        for (size_t i = 0; i < n; i++) fprintf(stderr, "%d, ", ids[i]);
        fail_msg("%s: '%s' wants %s", name, text, wanted);
    }
    oq_free(env, ids);
}

static void check_hard_strings(oq_env *env, const char *path, const char *column)
{
    oq_tokenizer *t = NULL;
    oq_json *data = NULL;
    if (oq_tokenizer_open(env, path, &t) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(oq_json_parse_file(env, DATA "hard.json", 1 << 20, &data), OQ_OK);
    const oq_json *strings = oq_json_get(data, "strings");
    assert_true(oq_json_size(strings) >= 180);
    for (size_t i = 0; i < oq_json_size(strings); i++) {
        const oq_json *entry = oq_json_at(strings, i);
        check_ids(env, t, column, oq_json_string(oq_json_get(entry, "text")), oq_json_get(entry, column));
    }
    oq_json_free(data);
    oq_tokenizer_close(env, t);
}

static void test_toybox(void **state)
{
    check_hard_strings(*state, TOYBOX, "toybox");
}

/* Published vocabularies do not ship with omniq: a folder made by make_tokenizers.py holds them. */
static void published(const char *name, char path[1024])
{
    const char *folder = getenv("OMNIQ_TOKENIZERS");
    snprintf(path, 1024, "%s/%s", folder ? folder : ".", name);
    if (folder && (oq_file_exists(path) || oq_file_is_dir(path))) return;
    print_message("skipped: set OMNIQ_TOKENIZERS to a folder with %s to run it\n", name);
    skip();
}

static void check_published(oq_env *env, const char *name, const char *column, size_t size, const char *piece,
                            int32_t id)
{
    char path[1024];
    published(name, path);
    const double begin = oq_now_s();
    oq_tokenizer *t = NULL;
    if (oq_tokenizer_open(env, path, &t) != OQ_OK) fail_msg("%s", oq_env_error(env));
    print_message("opened in %.0f ms, %zu ids\n", 1e3 * (oq_now_s() - begin), oq_tokenizer_size(t));
    assert_int_equal(oq_tokenizer_size(t), size);
    assert_int_equal(oq_tokenizer_find(t, piece), id);
    oq_tokenizer_close(env, t);
    check_hard_strings(env, path, column);
}

static void test_qwen3(void **state)
{
    check_published(*state, "qwen3-tokenizer.json", "qwen3", 151669, "<|im_start|>", 151644);
}

static void test_t5(void **state)
{
    check_published(*state, "t5-tokenizer.json", "t5", 32100, "<extra_id_0>", 32099);
}

static void test_spiece(void **state)
{
    check_published(*state, "spiece.model", "t5", 32100, "<extra_id_0>", 32099);
}

static void test_clip(void **state)
{
    check_published(*state, "clip", "clip", 49408, "<|endoftext|>", 49407);
}

/* Tokenizers that differ from a common byte vocabulary in one component each; opened from memory. */
static oq_status open_text(oq_env *env, const char *json, size_t n, oq_tokenizer **out)
{
    return oq_tokenizer_parse(env, "tokenizer.json", json, n, out);
}

static void open_variant(oq_env *env, const oq_json *data, const oq_json *variant, oq_tokenizer **out)
{
    oq_json *tokenizer = oq_json_copy(oq_json_get(variant, "tokenizer"));
    oq_json *model = oq_json_copy(oq_json_get(tokenizer, "model"));
    static const char *const shared[] = {"vocab", "merges"};
    for (size_t i = 0; i < OQ_COUNT(shared); i++)
        if (oq_json_string(oq_json_get(model, shared[i])))
            oq_json_set(model, shared[i], oq_json_copy(oq_json_get(data, shared[i])));
    oq_json_set(tokenizer, "model", model);
    char *text = NULL;
    assert_int_equal(oq_json_dump(env, tokenizer, OQ_JSON_COMPACT, &text), OQ_OK);
    if (open_text(env, text, strlen(text), out) != OQ_OK) fail_msg("%s", oq_env_error(env));
    oq_free(env, text);
    oq_json_free(tokenizer);
}

static void check_variants(oq_env *env, const char *path)
{
    oq_json *data = NULL;
    assert_int_equal(oq_json_parse_file(env, path, 1 << 20, &data), OQ_OK);
    const oq_json *variants = oq_json_get(data, "variants"), *texts = oq_json_get(data, "texts");
    assert_true(oq_json_size(variants) >= 20 && oq_json_size(texts) >= 30);
    for (size_t i = 0; i < oq_json_size(variants); i++) {
        const oq_json *variant = oq_json_at(variants, i), *ids = oq_json_get(variant, "ids");
        oq_tokenizer *t = NULL;
        open_variant(env, data, variant, &t);
        assert_int_equal(oq_json_size(ids), oq_json_size(texts));
        for (size_t k = 0; k < oq_json_size(texts); k++)
            check_ids(env, t, oq_json_string(oq_json_get(variant, "name")),
                      oq_json_string(oq_json_at(texts, k)), oq_json_at(ids, k));
        oq_tokenizer_close(env, t);
    }
    oq_json_free(data);
}

static void check_bytes(oq_env *env, const oq_tokenizer *t, const char *text, size_t n, const int32_t *want,
                        size_t count)
{
    int32_t *ids = NULL;
    size_t got = 0;
    assert_int_equal(oq_tokenizer_encode(env, t, text, n, false, &ids, &got), OQ_OK);
    assert_int_equal(got, count);
    assert_memory_equal(ids, want, count * sizeof *want);
    oq_free(env, ids);
}

static void test_variants(void **state)
{
    check_variants(*state, DATA "variants.json");
}

static void test_unigram(void **state)
{
    check_variants(*state, DATA "unigram.json");
}

/* The protobuf of the same pieces gives the ids of the tokenizer.json; it has 100 extra tokens behind them. */
static void test_small_spiece(void **state)
{
    oq_env *env = *state;
    oq_json *data = NULL;
    oq_tokenizer *t = NULL;
    assert_int_equal(oq_json_parse_file(env, DATA "unigram.json", 1 << 20, &data), OQ_OK);
    if (oq_tokenizer_open(env, DATA "unigram.model", &t) != OQ_OK) fail_msg("%s", oq_env_error(env));
    const oq_json *variant = oq_json_at(oq_json_get(data, "variants"), 0),
                  *texts = oq_json_get(data, "texts");
    assert_string_equal(oq_json_string(oq_json_get(variant, "name")), "t5");
    for (size_t k = 0; k < oq_json_size(texts); k++)
        check_ids(env, t, "unigram.model", oq_json_string(oq_json_at(texts, k)),
                  oq_json_at(oq_json_get(variant, "ids"), k));
    assert_int_equal(oq_tokenizer_size(t), oq_json_size(oq_json_get(data, "vocab")) + 100);
    oq_tokenizer_close(env, t);
    oq_json_free(data);
}

/* vocab.json and merges.txt: CLIP by its vocabulary, Qwen2 by its class, others refused. */
static void test_vocab_merges(void **state)
{
    oq_env *env = *state;
    static const char clip[] =
        "{\"<|startoftext|>\":0, \"<|endoftext|>\":1, \"a\":2,\"b\":3,\"a</w>\":4,\"b</w>\":5,\"ab</w>\":6}";
    static const char qwen[] = "{\"a\":0,\"b\":1,\"ab\":2}";
    static const char config[] = "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"added_tokens_decoder\":{\"3\":{"
                                 "\"content\":\"<x>\",\"special\":true}}}";
    static const int32_t clip_ids[] = {6, 4, 5}, qwen_ids[] = {2, 3, 0};
    oq_json *tree = NULL;
    assert_int_equal(oq_json_parse(env, config, strlen(config), "config", &tree), OQ_OK);
    for (int i = 0; i < 2; i++) {
        oq_tokenizer *t = NULL;
        oq_strbuf json;
        oq_strbuf_init(&json, env);
        assert_int_equal(oq_vocab_merges_to_json(env, "x", i ? qwen : clip,
                                                 i ? "a b\n" : "#version: 0.2\r\na b</w>\r\n",
                                                 i ? tree : NULL, &json),
                         OQ_OK);
        if (oq_tokenizer_parse(env, "x", json.text, json.size, &t) != OQ_OK)
            fail_msg("%s", oq_env_error(env));
        if (i == 0)
            check_bytes(env, t, "AB a  b", 7, clip_ids, OQ_COUNT(clip_ids));
        else
            check_bytes(env, t, "ab<x>a", 6, qwen_ids, OQ_COUNT(qwen_ids));
        oq_tokenizer_close(env, t);
        oq_strbuf_deinit(&json);
    }
    oq_json_free(tree);
    oq_strbuf json;
    oq_strbuf_init(&json, env);
    assert_int_equal(oq_vocab_merges_to_json(env, "x", qwen, "", NULL, &json), OQ_E_UNSUPPORTED);
    assert_string_equal(oq_env_error(env),
                        "x: vocab.json and merges.txt of neither CLIP nor Qwen2: a tokenizer.json is needed");
    oq_env_clear(env);
    oq_strbuf_deinit(&json);
}

static void test_any_bytes(void **state)
{
    oq_env *env = *state;
    oq_tokenizer *t = NULL;
    assert_int_equal(oq_tokenizer_open(env, TOYBOX "/tokenizer.json", &t), OQ_OK);
    static const int32_t nul[] = {77, 1369, 188, 1681, 557, 220, 189, 190, 221, 2423};
    check_bytes(env, t, "null\0byte \1\2\x7f control", 21, nul, OQ_COUNT(nul));
    static const int32_t repaired[] = {64,  388, 171, 123, 121, 65, 271,
                                       171, 123, 121, 171, 123, 121}; /* "a red\ufffdball\ufffd\ufffd" */
    check_bytes(env, t,
                "a red\xff"
                "ball\xe2\x82\xc0",
                13, repaired, OQ_COUNT(repaired));
    uint32_t seed = 1;
    for (int i = 0; i < 2000; i++) {
        char text[64];
        for (size_t k = 0; k < sizeof text; k++)
            text[k] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
        int32_t *ids = NULL;
        size_t n = 0;
        assert_int_equal(oq_tokenizer_encode(env, t, text, (size_t)i % 65, true, &ids, &n), OQ_OK);
        for (size_t k = 0; k < n; k++) assert_non_null(oq_tokenizer_piece(t, ids[k]));
        oq_free(env, ids);
    }
    oq_tokenizer_close(env, t);
}

static void test_lookup(void **state)
{
    oq_env *env = *state;
    oq_tokenizer *t = NULL;
    assert_int_equal(oq_tokenizer_open(env, TOYBOX, &t), OQ_OK);
    assert_int_equal(oq_tokenizer_size(t), 4099);
    assert_int_equal(oq_tokenizer_find(t, "<|im_end|>"), 4096);
    assert_int_equal(oq_tokenizer_find(t, "no such piece"), -1);
    assert_string_equal(oq_tokenizer_piece(t, 220), "\xc4\xa0");
    assert_null(oq_tokenizer_piece(t, -1));
    assert_null(oq_tokenizer_piece(t, 4099));
    oq_tokenizer_close(env, t);
    oq_tokenizer_close(env, NULL);
}

/* One piece of a megabyte and ten thousand words cost no more than their length times a logarithm. */
static void test_long_texts(void **state)
{
    oq_env *env = *state;
    oq_tokenizer *t = NULL;
    assert_int_equal(oq_tokenizer_open(env, TOYBOX, &t), OQ_OK);
    oq_strbuf text;
    oq_strbuf_init(&text, env);
    for (int i = 0; i < 10000; i++) oq_strbuf_puts(&text, i % 2 ? "large " : "ball ");
    for (int i = 0; i < 1000000; i++) oq_strbuf_putc(&text, 'a');
    for (int i = 0; i < 1000000; i++) oq_strbuf_putc(&text, ' ');
    assert_int_equal(oq_strbuf_check(&text, "text"), OQ_OK);
    int32_t *ids = NULL;
    size_t n = 0;
    const double begin = oq_now_s();
    assert_int_equal(oq_tokenizer_encode(env, t, text.text, text.size, false, &ids, &n), OQ_OK);
    assert_true(n > 10000);
    assert_true(oq_now_s() - begin < 60); /* quadratic merging takes hours */
    oq_free(env, ids);
    oq_strbuf_deinit(&text);
    char *huge = calloc(1, OQ_TEXT_MAX_BYTES + 1);
    assert_non_null(huge);
    assert_int_equal(oq_tokenizer_encode(env, t, huge, OQ_TEXT_MAX_BYTES + 1, false, &ids, &n), OQ_E_ARG);
    assert_string_equal(oq_env_error(env), "a text of 16777217 bytes, at most 16777216 are tokenized");
    oq_env_clear(env);
    free(huge);
    oq_tokenizer_close(env, t);
}

/* ---- threads ------------------------------------------------------------------------------------------- */

typedef struct encoder {
    const oq_tokenizer *tokenizer;
    int32_t *ids;
    size_t n;
    oq_env *env;
    bool failed;
} encoder;

static void *encode_often(void *user)
{
    static const char text[] = "<|im_start|>a large red ball's cafe\xcc\x81 12 \xe4\xb8\x96\n\n  x<|im_end|>";
    encoder *e = user;
    for (int i = 0; i < 200; i++) {
        oq_free(e->env, e->ids);
        if (oq_tokenizer_encode(e->env, e->tokenizer, text, strlen(text), true, &e->ids, &e->n) != OQ_OK)
            e->failed = true;
    }
    return NULL;
}

/* One tokenizer serves several threads, each with its own env. */
static void test_threads(void **state)
{
    oq_env *env = *state;
    oq_tokenizer *t = NULL;
    encoder encoders[4] = {0};
    pthread_t threads[4];
    assert_int_equal(oq_tokenizer_open(env, TOYBOX, &t), OQ_OK);
    for (int i = 0; i < 4; i++) {
        encoders[i].tokenizer = t;
        assert_int_equal(oq_env_new(NULL, &encoders[i].env), OQ_OK);
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &encoders[i]), 0);
    }
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 4; i++) {
        assert_false(encoders[i].failed);
        assert_int_equal(encoders[i].n, encoders[0].n);
        assert_memory_equal(encoders[i].ids, encoders[0].ids, encoders[0].n * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++) {
        oq_free(encoders[i].env, encoders[i].ids);
        oq_env_free(encoders[i].env);
    }
    oq_tokenizer_close(env, t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_toybox),       cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_t5),           cmocka_unit_test(test_spiece),
        cmocka_unit_test(test_clip),         cmocka_unit_test(test_unigram),
        cmocka_unit_test(test_small_spiece), cmocka_unit_test(test_vocab_merges),
        cmocka_unit_test(test_variants),     cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_lookup),       cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
