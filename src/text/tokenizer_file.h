/* tokenizer_file.h -- a tokenizer.json taken apart: a small tree, and the two large values as text. */
#ifndef OQ_TEXT_TOKENIZER_FILE_H
#define OQ_TEXT_TOKENIZER_FILE_H

#include "base/json.h"

typedef struct oq_tokenizer_file { /* zero is empty; deinit in any state */
    char *path, *text;
    size_t n;
    oq_json *tree;     /* the whole file, with null in place of model.vocab and model.merges */
    const char *vocab; /* within text; NULL: absent */
    const char *merges;
    size_t n_vocab, n_merges;
} oq_tokenizer_file;

/* `path`: a tokenizer.json, a SentencePiece model (*.model), or a folder that holds one of them, or vocab.json and
 * merges.txt of CLIP or Qwen2; the last two are turned into the tokenizer.json that they stand for. */
oq_status oq_tokenizer_file_open(oq_env *env, const char *path, oq_tokenizer_file *out);
/* The same from a copy of `text`; `name` stands for the path in errors. */
oq_status oq_tokenizer_file_parse(oq_env *env, const char *name, const char *text, size_t n,
                                  oq_tokenizer_file *out);
void oq_tokenizer_file_deinit(oq_env *env, oq_tokenizer_file *file);

/* Fields of a component, for the parsers of this room. `where`: "normalizer" and so on, for errors. */
oq_status oq_component_flag(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                            const char *where, const char *key, bool fallback, bool *out);
const char *oq_component_type(const oq_json *component); /* "?" if it has none */
oq_status oq_component_unsupported(oq_env *env, const oq_tokenizer_file *file, const char *where,
                                   const char *type);
/* A component is null (not there) or an object; *is_there tells. */
oq_status oq_component_check(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                             const char *where, bool *is_there);

#endif
