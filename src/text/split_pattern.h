/* split_pattern.h -- the regular expressions of tokenizer.json, in PCRE2's words. */
#ifndef OQ_TEXT_SPLIT_PATTERN_H
#define OQ_TEXT_SPLIT_PATTERN_H

#include "base/strbuf.h"

/* The files are written for Oniguruma. Appends the same pattern for PCRE2; what the two read differently and
 * no known tokenizer uses is OQ_E_UNSUPPORTED, naming the construct. `source` names the file in errors. */
oq_status oq_split_pattern(oq_env *env, const char *source, const char *pattern, oq_strbuf *out);

#endif
