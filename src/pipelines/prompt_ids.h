/* prompt_ids.h -- a prompt in its chat template, as token ids of a text encoder. */
#ifndef OQ_PIPELINES_PROMPT_IDS_H
#define OQ_PIPELINES_PROMPT_IDS_H

#include "base/arena.h"
#include "text/tokenizer.h"

typedef struct oq_prompt_ids {
    const oq_tokenizer *tokenizer; /* NULL: one id per byte (dummy weights only) */
    const char *before, *after;    /* the template around the prompt */
    const char *first;             /* the token that stands before all, put there where the tokenizer does not; or NULL */
    int64_t vocab_size;            /* ids must be below */
    int64_t max_tokens;            /* the rest is cut off */
    int64_t keep_last;             /* ... but so many at the end stay (what the tokenizer puts behind a text) */
    bool warn;                     /* ... with a warning: in the measuring run, so that it is said once */
    bool pad;                      /* ids are max_tokens long: pad_id behind the text's own, */
    bool pad_before;               /* ... or before them */
    int32_t pad_id;
} oq_prompt_ids;

/* The template's marks ("<|name|>", "[NAME]") must be tokens of their own, else a prompt would be spelled out wrong without
 * a word: OQ_E_FORMAT names the first that is not. */
oq_status oq_prompt_ids_check(oq_env *env, const oq_tokenizer *tokenizer, const char *before, const char *after);

/* `what` names the prompt in messages ("prompt 1"). ids live in `arena`; count: the text's own, without pads. */
oq_status oq_prompt_ids_make(oq_env *env, oq_arena *arena, const oq_prompt_ids *p, const char *prompt,
                             const char *what, int32_t **ids, int64_t *count);

/* The id of a tokenizer's `piece`; fallback: without a tokenizer, or where it has none. */
int32_t oq_prompt_ids_find(const oq_tokenizer *tokenizer, const char *piece, int32_t fallback);

#endif
