/* test_tokenizer_refusals.c -- tokenizer files that are wrong or cut are refused with one sentence; so is a lack of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/strbuf.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define DATA OMNIQ_SOURCE_DIR "/tests/data/text/"

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

static char *read_file(oq_env *env, const char *path, size_t *n)
{
    char *bytes = NULL;
    assert_int_equal(oq_file_read(env, path, 1 << 20, &bytes, n), OQ_OK);
    return bytes;
}

/* Every beginning of the protobuf is refused or is a tokenizer; nothing is read behind it. */
static void test_cut_spiece(void **state)
{
    oq_env *env = *state;
    size_t n = 0, whole = 0;
    char *bytes = read_file(env, DATA "unigram.model", &n);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *part = malloc(cut ? cut : 1);
        oq_strbuf json;
        oq_strbuf_init(&json, env);
        memcpy(part, bytes, cut);
        const oq_status st = oq_sentencepiece_to_json(env, "cut.model", part, cut, 0, &json);
        if (st == OQ_OK)
            whole++;
        else
            assert_int_equal(st, OQ_E_FORMAT);
        oq_env_clear(env);
        oq_strbuf_deinit(&json);
        free(part);
    }
    assert_in_range(whole, 10, n / 4); /* a cut between two fields leaves a shorter model */
    oq_free(env, bytes);
}

static const struct spiece_refusal {
    const char *bytes;
    size_t n;
    oq_status status;
    const char *text;
} spiece_refusals[] = {
    {"", 0, OQ_E_FORMAT, "x.model: is not a SentencePiece model: it holds no pieces"},
    {"\x0a\x05\x0a\x01"
     "a",
     5, OQ_E_FORMAT, "x.model: is not a SentencePiece model: a field is longer than the file"},
    {"\x0a\x03\x0a\x01\xff", 5, OQ_E_FORMAT, "x.model: is not a SentencePiece model: a piece is not UTF-8"},
    {"\x0a\x08\x0a\x01"
     "a\x15\x00\x00\x80\x7f",
     10, OQ_E_FORMAT, "x.model: is not a SentencePiece model: a score is not finite"},
    {"\x0a\x03\x0a\x01"
     "a\x12\x02\x18\x02",
     9, OQ_E_UNSUPPORTED, "x.model: a SentencePiece model of type 2, only unigram models (1) are read"},
    {"\x0a\x03\x0a\x01"
     "a\x1a\x02\x28\x00",
     9, OQ_E_UNSUPPORTED, "x.model: a SentencePiece model that does not escape spaces"},
    {"\x0b", 1, OQ_E_FORMAT, "x.model: is not a SentencePiece model: a field of an unknown kind"},
    {"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 11, OQ_E_FORMAT,
     "x.model: is not a SentencePiece model: a number of more than 64 bits"},
};

static void test_spiece_refusals(void **state)
{
    oq_env *env = *state;
    for (size_t i = 0; i < OQ_COUNT(spiece_refusals); i++) {
        const struct spiece_refusal *r = &spiece_refusals[i];
        oq_strbuf json;
        oq_strbuf_init(&json, env);
        assert_int_equal(oq_sentencepiece_to_json(env, "x.model", (const uint8_t *)r->bytes, r->n, 0, &json),
                         r->status);
        assert_string_equal(oq_env_error(env), r->text);
        oq_env_clear(env);
        oq_strbuf_deinit(&json);
    }
}

#define V "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define M "\"merges\":[\"a b\"]"
static const struct refusal {
    const char *json;
    oq_status status;
    const char *text; /* what follows the path */
} refusals[] = {
    {"", OQ_E_FORMAT, ": ends at byte 0 where '{' is needed"},
    {"[]", OQ_E_FORMAT, ": '[' at byte 0 where '{' is needed"},
    {"{\"model\":{" V "," M "}", OQ_E_FORMAT, ": ends at byte 56 where ',' or '}' is needed"},
    {"{\"a\":\xff}", OQ_E_FORMAT, ": is not UTF-8 text"},
    {"{}", OQ_E_FORMAT, ": has no model, so it is not a tokenizer"},
    {"{\"model\":3}", OQ_E_FORMAT, ": has no model, so it is not a tokenizer"},
    {"{\"model\":{},\"model\":{}}", OQ_E_FORMAT, ": has two members 'model'"},
    {"{\"model\":{" V "," V "}}", OQ_E_FORMAT, ": the model has two members 'vocab'"},
    {"{\"model\":{\"type\":\"WordPiece\"," V "}}", OQ_E_UNSUPPORTED,
     ": the model 'WordPiece' is not supported"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", OQ_E_FORMAT,
     ": the Unigram model has no list of pieces"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",-1]]}}", OQ_E_FORMAT,
     ": 'unk_id' of the Unigram model is none of its 1 pieces"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}}", OQ_E_FORMAT,
     ": '\"' at byte 41 where a number is needed"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e999]]}}", OQ_E_FORMAT,
     ": '1' at byte 41 where a number is needed"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1],[\"a\",-2]]}}", OQ_E_FORMAT,
     ": piece 'a' stands twice in the vocabulary"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}",
     OQ_E_UNSUPPORTED, ": a Unigram model behind ByteLevel is not supported"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\"},\"model\":{" V "," M "}}", OQ_E_FORMAT,
     ": the pre-tokenizer Metaspace has no 'replacement'"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"},"
     "\"model\":{" V "," M "}}",
     OQ_E_UNSUPPORTED, ": the prepend_scheme 'last' of the pre-tokenizer Metaspace is not supported"},
    {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!\"},\"model\":{" V "," M "}}",
     OQ_E_FORMAT, ": 'precompiled_charsmap' is not base64"},
    {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"},\"model\":{" V "," M
     "}}",
     OQ_E_FORMAT, ": a character map of 4 bytes whose trie has 4294967295"},
    {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"},\"model\":{" V
     "," M "}}",
     OQ_E_FORMAT, ": the pattern of the normalizer Replace is empty"},
    {"{\"normalizer\":{\"type\":\"Prepend\"},\"model\":{" V "," M "}}", OQ_E_FORMAT,
     ": 'prepend' of the normalizer is null, a string is needed"},
    {"{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"x\",9]},\"model\":{" V
     "," M "}}",
     OQ_E_FORMAT, ": 'sep' of the post-processor BertProcessing names no id of the vocabulary"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", OQ_E_FORMAT,
     ": the BPE model has no vocabulary object"},
    {"{\"model\":{\"type\":\"BPE\"," V "}}", OQ_E_FORMAT, ": the BPE model has no list of merges"},
    {"{\"model\":{" V "," M ",\"dropout\":0.1}}", OQ_E_UNSUPPORTED,
     ": 'dropout' of the BPE model is not supported"},
    {"{\"model\":{" V "," M ",\"byte_fallback\":true}}", OQ_E_UNSUPPORTED,
     ": 'byte_fallback' of the BPE model is not supported"},
    {"{\"model\":{" V "," M ",\"continuing_subword_prefix\":\"##\"}}", OQ_E_UNSUPPORTED,
     ": 'continuing_subword_prefix' of the BPE model is not supported"},
    {"{\"model\":{" V "," M ",\"end_of_word_suffix\":1}}", OQ_E_FORMAT,
     ": 'end_of_word_suffix' of the BPE model is a whole number, a string is needed"},
    {"{\"model\":{" V "," M ",\"fuse_unk\":1}}", OQ_E_FORMAT,
     ": 'fuse_unk' of the BPE model is a whole number, true or false is needed"},
    {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1}," M "}}", OQ_E_FORMAT,
     ": piece 'a' stands twice in the vocabulary"},
    {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0}," M "}}", OQ_E_FORMAT,
     ": pieces 'a' and 'b' have the same id 0"},
    {"{\"model\":{\"vocab\":{\"a\":-1}," M "}}", OQ_E_FORMAT, ": piece 'a' has id -1, ids are 0 to 4194303"},
    {"{\"model\":{\"vocab\":{\"a\":4194304}," M "}}", OQ_E_FORMAT,
     ": piece 'a' has id 4194304, ids are 0 to 4194303"},
    {"{\"model\":{\"vocab\":{\"a\":99999999999999999999}," M "}}", OQ_E_FORMAT,
     ": '9' at byte 23 where a number that fits 64 bits is needed"},
    {"{\"model\":{\"vocab\":{\"a\":0.5}," M "}}", OQ_E_FORMAT,
     ": '0' at byte 23 where a number without a fraction is needed"},
    {"{\"model\":{\"vocab\":{\"a\":\"0\"}," M "}}", OQ_E_FORMAT,
     ": '\"' at byte 23 where a whole number is needed"},
    {"{\"model\":{\"vocab\":{\"\\ud800\":0}," M "}}", OQ_E_FORMAT,
     ": '\"' at byte 26 where the second half of a surrogate pair is needed"},
    {"{\"model\":{\"vocab\":{\"\\x\":0}," M "}}", OQ_E_FORMAT,
     ": 'x' at byte 21 where a known escape is needed"},
    {"{\"model\":{" V ",\"merges\":[\"a  b\"]}}", OQ_E_FORMAT,
     ": merge 0 is 'a  b', two pieces with one space are needed"},
    {"{\"model\":{" V ",\"merges\":[\"ab\"]}}", OQ_E_FORMAT,
     ": merge 0 is 'ab', two pieces with one space are needed"},
    {"{\"model\":{" V ",\"merges\":[\"a b\",\"a c\"]}}", OQ_E_FORMAT,
     ": merge 1 uses the piece 'c', which the vocabulary lacks"},
    {"{\"model\":{" V ",\"merges\":[\"a b\",\"b a\"]}}", OQ_E_FORMAT,
     ": merge 1 uses the piece 'ba', which the vocabulary lacks"},
    {"{\"model\":{" V ",\"merges\":[[\"a\",\"b\",\"b\"]]}}", OQ_E_FORMAT,
     ": ',' at byte 57 where ']' is needed"},
    {"{\"model\":{" V ",\"merges\":[3]}}", OQ_E_FORMAT, ": '3' at byte 49 where a string is needed"},
    {"{\"model\":{" V "," M "},\"normalizer\":{\"type\":\"Nmt\"}}", OQ_E_UNSUPPORTED,
     ": the normalizer 'Nmt' is not supported"},
    {"{\"model\":{" V "," M "},\"normalizer\":\"NFC\"}", OQ_E_FORMAT,
     ": the normalizer is a string, an object is needed"},
    {"{\"model\":{" V "," M "},\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", OQ_E_UNSUPPORTED,
     ": the pre-tokenizer 'Whitespace' is not supported"},
    {"{\"model\":{" V "," M
     "},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
     "{\"type\":\"Digits\"}]}}",
     OQ_E_UNSUPPORTED, ": the pre-tokenizer 'Digits' behind ByteLevel is not supported"},
    {"{\"model\":{" V "," M "},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\"}}",
     OQ_E_FORMAT, ": the pattern of the pre-tokenizer Split is neither a regex nor a string"},
    {"{\"model\":{" V "," M
     "},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Alone\",\"pattern\":{\"Regex\":\"a\"}}}",
     OQ_E_UNSUPPORTED, ": the behavior 'Alone' of the pre-tokenizer Split is not supported"},
    {"{\"model\":{" V "," M
     "},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
     "\"\\\\w+\"}}}",
     OQ_E_UNSUPPORTED, ": '\\w' in the pattern '\\w+' is not supported"},
    {"{\"model\":{" V "," M
     "},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
     "\"^a\"}}}",
     OQ_E_UNSUPPORTED, ": '^' in the pattern '^a' is not supported"},
    {"{\"model\":{" V "," M "},\"post_processor\":{\"type\":\"PairProcessing\"}}", OQ_E_UNSUPPORTED,
     ": the post-processor 'PairProcessing' is not supported"},
    {"{\"model\":{" V "," M
     "},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
     "{\"id\":\"x\"}}]}}",
     OQ_E_FORMAT,
     ": the post-processor TemplateProcessing holds an item that is neither the text nor a known token"},
    {"{\"model\":{" V "," M "},\"added_tokens\":{}}", OQ_E_FORMAT,
     ": 'added_tokens' is an object, a list is needed"},
    {"{\"model\":{" V "," M "},\"added_tokens\":[{\"id\":5}]}", OQ_E_FORMAT,
     ": the added token 0 has no content or no id"},
    {"{\"model\":{" V "," M "},\"added_tokens\":[{\"id\":5,\"content\":\"a\"}]}", OQ_E_FORMAT,
     ": the added token 'a' has id 5, the vocabulary gives it 0"},
    {"{\"model\":{" V "," M "},\"added_tokens\":[{\"id\":1,\"content\":\"c\"}]}", OQ_E_FORMAT,
     ": pieces 'b' and 'c' have the same id 1"},
    {"{\"model\":{" V "," M "},\"normalizer\":tru}", OQ_E_FORMAT, NULL},
};

static void test_refusals(void **state)
{
    oq_env *env = *state;
    int wrong = 0;
    for (size_t i = 0; i < OQ_COUNT(refusals); i++) {
        const struct refusal *r = &refusals[i];
        oq_tokenizer *t = NULL;
        const oq_status st = oq_tokenizer_parse(env, "tokenizer.json", r->json, strlen(r->json), &t);
        const char *said = strstr(oq_env_error(env), ".json");
        if (st != r->status || !said || (r->text && strcmp(said + 5, r->text) != 0))
            print_error("%s\n gives %s: %s\n", r->json, oq_status_name(st), oq_env_error(env)), wrong++;
        assert_null(t);
        oq_env_clear(env);
    }
    assert_int_equal(wrong, 0);
}

static void test_absent(void **state)
{
    oq_env *env = *state;
    oq_tokenizer *t = NULL;
    assert_int_equal(oq_tokenizer_open(env, OMNIQ_SOURCE_DIR "/src/text", &t), OQ_E_NOTFOUND);
    assert_non_null(strstr(oq_env_error(env), "src/text/tokenizer.json: cannot be opened"));
    oq_env_clear(env);
}

/* A vocabulary that does not spell every byte says so when a text needs one. */
static void test_missing_byte(void **state)
{
    oq_env *env = *state;
    oq_tokenizer *t = NULL;
    static const char json[] =
        "{\"model\":{" V "," M "},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
        "false}}";
    assert_int_equal(oq_tokenizer_parse(env, "tokenizer.json", json, strlen(json), &t), OQ_OK);
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(oq_tokenizer_encode(env, t, "abc", 3, true, &ids, &n), OQ_E_UNSUPPORTED);
    assert_string_equal(oq_env_error(env), "tokenizer: the vocabulary has no piece for byte 0x63");
    assert_null(ids);
    oq_env_clear(env);
    static const int32_t ab[] = {2, 0};
    assert_int_equal(oq_tokenizer_encode(env, t, "aba", 3, false, &ids, &n), OQ_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(ids, ab, sizeof ab);
    oq_free(env, ids);
    oq_tokenizer_close(env, t);
}

typedef struct failing {
    long left, live;
} failing;

static void *allocate(void *user, size_t bytes)
{
    failing *f = user;
    if (f->left-- <= 0) return NULL;
    f->live++;
    return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

static void release(void *user, void *ptr)
{
    failing *f = user;
    if (ptr) f->live--;
    free(ptr);
}

static oq_status open_and_encode(oq_env *env, const char *json)
{
    oq_tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    oq_status st = oq_tokenizer_parse(env, "tokenizer.json", json, strlen(json), &t);
    if (st == OQ_OK) st = oq_tokenizer_encode(env, t, "ab a<s>ba\xffx", 11, true, &ids, &n);
    oq_free(env, ids);
    oq_tokenizer_close(env, t);
    return st;
}

/* The k-th allocation fails, for every k: out of memory is said and nothing is left behind. */
static void test_no_memory(void **state)
{
    static const char json[] = "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"normalized\":true}],"
                               "\"normalizer\":{\"type\":\"NFC\"},"
                               "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                               "\"Split\",\"pattern\":{\"String\":"
                               "\"b\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_"
                               "space\":true}]},\"model\":{\"type\":"
                               "\"BPE\",\"vocab\":{\"a\":0,\"\\u0062\":1,\"ab\":2,\"<u>\":3},\"merges\":[["
                               "\"a\",\"b\"]],\"unk_token\":\"<u>\"}}";
    (void)state;
    failing f = {.left = 1000000};
    const oq_env_params params = {
        .size = sizeof params, .allocate = allocate, .release = release, .alloc_user = &f, .n_threads = 1};
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    const long before = f.live;
    bool done = false;
    for (long k = 0; !done && k < 10000; k++) {
        f.left = k;
        const oq_status st = open_and_encode(env, json);
        done = st == OQ_OK;
        if (!done && st != OQ_E_NOMEM)
            fail_msg("allocation %ld: %s: %s", k, oq_status_name(st), oq_env_error(env));
        assert_int_equal(f.live, before);
        oq_env_clear(env);
    }
    assert_true(done);
    f.left = 1000000;
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_spiece),   cmocka_unit_test(test_spiece_refusals),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_absent),
        cmocka_unit_test(test_missing_byte), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
