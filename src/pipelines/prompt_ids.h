/* prompt_ids.h -- a prompt in its chat template, as token ids of a text encoder. */
#ifndef OQ_PIPELINES_PROMPT_IDS_H
#define OQ_PIPELINES_PROMPT_IDS_H

#include "base/arena.h"
#include "text/tokenizer.h"

typedef struct oq_prompt_ids {
    const oq_tokenizer *tokenizer; /* NULL: one id per byte (dummy weights only) */
    const char *before, *after;    /* the template around the prompt */
    int64_t vocab_size;            /* ids must be below */
    int64_t max_tokens;            /* the rest is cut off, with a warning */
} oq_prompt_ids;

/* `what` names the prompt in messages ("prompt 1"). ids live in `arena`. */
oq_status oq_prompt_ids_make(oq_env *env, oq_arena *arena, const oq_prompt_ids *p, const char *prompt,
                             const char *what, int32_t **ids, int64_t *count);

#endif
