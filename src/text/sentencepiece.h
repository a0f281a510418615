/* sentencepiece.h -- tokenizers that come in other files, written as the tokenizer.json that they stand for. */
#ifndef OQ_TEXT_SENTENCEPIECE_H
#define OQ_TEXT_SENTENCEPIECE_H

#include "base/json.h"
#include "base/strbuf.h"

/* A SentencePiece model (protobuf: spiece.model) of the unigram type, as the T5 family reads it: the text's white
 * space is folded, a word begins with U+2581, the end token stands behind the text, and n_extra tokens <extra_id_…>
 * follow the pieces. `source` names the file in errors. */
oq_status oq_sentencepiece_to_json(oq_env *env, const char *source, const uint8_t *bytes, size_t n, int n_extra,
                                   oq_strbuf *out);

/* vocab.json and merges.txt of CLIP or Qwen2 (told apart by the vocabulary); config: the parsed tokenizer_config.json
 * for its added tokens, or NULL. */
oq_status oq_vocab_merges_to_json(oq_env *env, const char *source, const char *vocab, const char *merges,
                                  const oq_json *config, oq_strbuf *out);

#endif
