/* tokenizer.h -- text to ids, from a model's own tokenizer files. */
#ifndef OQ_TEXT_TOKENIZER_H
#define OQ_TEXT_TOKENIZER_H

#include "base/env.h"

typedef struct oq_tokenizer oq_tokenizer;

enum { OQ_TEXT_MAX_BYTES = 16 << 20 }; /* of one text */

/* `path`: tokenizer.json, a SentencePiece model, or a folder that holds either, or vocab.json and merges.txt of
 * CLIP or Qwen2. Unknown components are OQ_E_UNSUPPORTED by name;
 * truncation and padding of the file are the callers' business and ignored. Read-only and shareable between
 * threads afterwards. */
oq_status oq_tokenizer_open(oq_env *env, const char *path, oq_tokenizer **out);
/* The same from the bytes of a tokenizer.json; `name` stands for the path in errors. */
oq_status oq_tokenizer_parse(oq_env *env, const char *name, const char *text, size_t n, oq_tokenizer **out);
void oq_tokenizer_close(oq_env *env, oq_tokenizer *tokenizer);

/* Any bytes: invalid UTF-8 is repaired with U+FFFD first. Special tokens in the text are recognised. ids are
 * the caller's (oq_free). No post-processing template is applied beyond what tokenizer.json's own adds when
 * add_special is true. Nothing is truncated; more than OQ_TEXT_MAX_BYTES is OQ_E_ARG. */
oq_status oq_tokenizer_encode(oq_env *env, const oq_tokenizer *t, const char *text, size_t n,
                              bool add_special, int32_t **ids, size_t *count);
/* The vocabulary's spelling of an id ("Ġball"); NULL: no such id. */
const char *oq_tokenizer_piece(const oq_tokenizer *t, int32_t id);
int32_t oq_tokenizer_find(const oq_tokenizer *t, const char *piece); /* -1: none */
size_t oq_tokenizer_size(const oq_tokenizer *t); /* the largest id + 1, added tokens included */

#endif
