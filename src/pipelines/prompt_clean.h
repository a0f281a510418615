/* prompt_clean.h -- what Wan's original does with a prompt before its tokenizer sees it. */
#ifndef OQ_PIPELINES_PROMPT_CLEAN_H
#define OQ_PIPELINES_PROMPT_CLEAN_H

#include "base/arena.h"

/* Straight quotes, plain ligatures and full-width letters, composed characters, no control characters (of ftfy's fixes
 * those that concern well-formed text), entities of HTML twice (numbers and the common names), then white space at the ends
 * gone and each run of it one space. *out lives in `arena`. Bytes that are not UTF-8 become U+FFFD. */
oq_status oq_prompt_clean(oq_env *env, oq_arena *arena, const char *text, char **out);

#endif
