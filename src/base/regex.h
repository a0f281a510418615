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
/* As Python's re.match: 1 if the pattern matches from the beginning of `text`. */
bool oq_regex_matches_start(oq_regex *regex, const char *text);

#endif
