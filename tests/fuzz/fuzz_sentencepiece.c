/* fuzz_sentencepiece.c -- any protobuf of a SentencePiece model. The last 32 bytes of the input are a text for the
 * tokenizer that it becomes. Properties: what is accepted opens as a tokenizer.json or is refused with a sentence, and
 * every id has a piece. */
#include "fuzz/fuzz.h"

#include "base/strbuf.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    const size_t text_n = n < 64 ? 0 : 32;
    oq_strbuf json;
    oq_strbuf_init(&json, env);
    oq_status st = oq_sentencepiece_to_json(env, "in", data, n - text_n, 3, &json);
    fuzz_check_status(env, st);
    oq_tokenizer *t = NULL;
    if (st == OQ_OK) {
        st = oq_tokenizer_parse(env, "in", json.text, json.size, &t);
        fuzz_check_status(env, st);
    }
    oq_strbuf_deinit(&json);
    if (!t) return 0;
    int32_t *ids = NULL;
    size_t count = 0;
    st = oq_tokenizer_encode(env, t, (const char *)data + n - text_n, text_n, true, &ids, &count);
    fuzz_check_status(env, st);
    for (size_t i = 0; i < count; i++) FUZZ_CHECK(oq_tokenizer_piece(t, ids[i]) != NULL);
    oq_free(env, ids);
    oq_tokenizer_close(env, t);
    return 0;
}
