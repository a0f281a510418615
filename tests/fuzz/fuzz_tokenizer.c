/* fuzz_tokenizer.c -- any tokenizer.json and any text. The input up to its first byte 0 is a tokenizer, what follows a
 * text for it; without a byte 0 it is a text for toybox's tokenizer. Properties: every id has a piece; toybox's pieces
 * put together are the repaired text in normal form C. */
#include "fuzz/fuzz.h"

#include "base/strbuf.h"
#include "base/unicode.h"
#include "text/text_model.h"
#include "text/tokenizer.h"

static void check_own(oq_env *env, const char *json, size_t json_n, const char *text, size_t n)
{
    oq_tokenizer *t = NULL;
    oq_status st = oq_tokenizer_parse(env, "in", json, json_n, &t);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (t != NULL));
    if (!t) return;
    int32_t *ids = NULL;
    size_t count = 0;
    st = oq_tokenizer_encode(env, t, text, n, true, &ids, &count);
    fuzz_check_status(env, st);
    for (size_t i = 0; i < count; i++) {
        FUZZ_CHECK(oq_tokenizer_piece(t, ids[i]) != NULL);
        FUZZ_CHECK((size_t)ids[i] < oq_tokenizer_size(t));
    }
    oq_free(env, ids);
    oq_tokenizer_close(env, t);
}

/* Bytes that a piece spells: characters of the byte alphabet give one each; special tokens stand for themselves. */
static void put_piece(oq_strbuf *out, const char *piece, bool special)
{
    static char spelling[256][3];
    if (!spelling[1][0])
        for (int b = 0; b < 256; b++) oq_byte_spelling((unsigned char)b, spelling[b]);
    if (special) {
        oq_strbuf_puts(out, piece);
        return;
    }
    while (*piece) {
        int b = 0;
        while (b < 256 && strncmp(piece, spelling[b], strlen(spelling[b])) != 0) b++;
        FUZZ_CHECK(b < 256);
        oq_strbuf_putc(out, (char)b);
        piece += strlen(spelling[b]);
    }
}

/* Normal form of the parts between special tokens, which are cut out before normalization. */
static void put_normal(oq_env *env, oq_strbuf *out, const char *text, size_t n)
{
    static const char *const special[] = {"<|im_end|>", "<|endoftext|>", "<|im_start|>"};
    size_t cut = n, length = 0;
    for (size_t i = 0; i < OQ_COUNT(special); i++) {
        const char *at = n ? memmem(text, cut, special[i], strlen(special[i])) : NULL;
        if (at) cut = (size_t)(at - text), length = strlen(special[i]);
    }
    char *normal = NULL;
    size_t normal_n = 0;
    FUZZ_CHECK(oq_utf8_nfc(env, text, cut, &normal, &normal_n) == OQ_OK);
    oq_strbuf_add(out, normal, normal_n);
    oq_free(env, normal);
    oq_strbuf_add(out, text + cut, length);
    if (cut + length < n) put_normal(env, out, text + cut + length, n - cut - length);
}

static void check_toybox(oq_env *env, const char *text, size_t n)
{
    static oq_tokenizer *t;
    if (!t) FUZZ_CHECK(oq_tokenizer_open(env, OMNIQ_SOURCE_DIR "/models/toybox/tokenizer", &t) == OQ_OK);
    int32_t *ids = NULL;
    size_t count = 0, repaired_n = 0;
    char *repaired = oq_utf8_repair(env, text, n, &repaired_n);
    oq_strbuf want, got;
    oq_strbuf_init(&want, env);
    oq_strbuf_init(&got, env);
    put_normal(env, &want, repaired, repaired_n);
    FUZZ_CHECK(oq_tokenizer_encode(env, t, text, n, false, &ids, &count) == OQ_OK);
    for (size_t i = 0; i < count; i++) put_piece(&got, oq_tokenizer_piece(t, ids[i]), ids[i] >= 4096);
    FUZZ_CHECK(got.size == want.size);
    FUZZ_CHECK(got.size == 0 || memcmp(got.text, want.text, got.size) == 0);
    oq_strbuf_deinit(&got);
    oq_strbuf_deinit(&want);
    oq_free(env, ids);
    oq_free(env, repaired);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    const char *text = (const char *)data;
    const char *zero = n ? memchr(text, 0, n) : NULL;
    if (zero)
        check_own(env, text, (size_t)(zero - text), zero + 1, n - (size_t)(zero - text) - 1);
    else
        check_toybox(env, text, n);
    return 0;
}
