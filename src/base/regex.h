/* regex.h -- regular expressions over UTF-8: a small layer over PCRE2 (only this room includes it). */
#ifndef OQ_BASE_REGEX_H
#define OQ_BASE_REGEX_H

#include "base/env.h"

typedef struct oq_regex oq_regex;

/* Unicode-aware. A malformed pattern is OQ_E_CONFIG naming the pattern and the offset. */
oq_status oq_regex_new(oq_env *env, const char *pattern, oq_regex **out);
void      oq_regex_free(oq_env *env, oq_regex *regex);
/* First match at or after `at`; 1 and [*begin, *end), 0 none, -1 the engine's limit was hit or no memory.
 * `text` must be valid UTF-8. */
int  oq_regex_find(oq_regex *regex, const char *text, size_t n, size_t at, size_t *begin, size_t *end);
/* Calls `visit` for every match from left to right until it returns false; empty matches are passed over. `text` must
 * be valid UTF-8. Unlike oq_regex_find it may run in several threads at once. OQ_E_NOMEM, or OQ_E_UNSUPPORTED with the
 * offset where the engine's limit was hit. */
oq_status oq_regex_each(oq_env *env, const oq_regex *regex, const char *text, size_t n,
                        bool (*visit)(void *user, size_t begin, size_t end), void *user);
/* As Python's re.match: 1 if the pattern matches from the beginning of `text`. */
bool oq_regex_matches_start(oq_regex *regex, const char *text);

#endif
