/* added_tokens.h -- tokens that are cut out of a text verbatim before anything else sees it: "<|im_start|>".
 */
#ifndef OQ_TEXT_ADDED_TOKENS_H
#define OQ_TEXT_ADDED_TOKENS_H

#include "text/normalizer.h"
#include "text/vocab.h"

typedef struct oq_token_trie oq_token_trie;

typedef struct oq_added_tokens { /* zero finds nothing; read-only after parsing */
    oq_token_trie *raw;          /* of tokens found in the text as it came */
    oq_token_trie *normalized;   /* of tokens found after normalization */
} oq_added_tokens;

/* Adds those to `vocab` that it lacks. An id that differs from the vocabulary's: OQ_E_FORMAT. */
oq_status oq_added_tokens_parse(oq_env *env, const oq_tokenizer_file *file, const oq_normalizer *normalizer,
                                oq_vocab *vocab, oq_added_tokens *out);
void oq_added_tokens_deinit(oq_env *env, oq_added_tokens *tokens);

typedef struct oq_token_span {
    size_t begin, end;
    int32_t id; /* -1: plain text */
} oq_token_span;
/* The next part of text at *at (0 at first): plain text, then the token behind it. False at the end. `trie`
 * may be NULL: all is plain. */
typedef struct oq_token_walk {
    const oq_token_trie *trie;
    const char *text;
    size_t n, done, search; /* handed out; where to look on */
    oq_token_span waiting;  /* a token found behind plain text */
    bool has_waiting;
} oq_token_walk;
bool oq_token_walk_next(oq_token_walk *walk, oq_token_span *out);

#endif
