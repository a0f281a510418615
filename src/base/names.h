/* names.h -- how the house compares names: one normaliser, nearest name for messages, globs, csv. */
#ifndef OQ_BASE_NAMES_H
#define OQ_BASE_NAMES_H

#include "base/env.h"

bool oq_name_equal(const char *a, const char *b); /* ASCII case-blind, '-' equals '_' */
bool oq_name_ends(const char *name, const char *ending); /* to the letter; a name may be its ending */
/* Index of the candidate with the least edit distance to `name`, or -1 if none is near (more than half changed). */
int  oq_name_nearest(const char *name, const char *const *candidates, size_t n);
/* fnmatch-like over the whole text: '*', '?', '[a-z]', '[!a]'; '*' also crosses dots. */
bool oq_glob_match(const char *pattern, const char *text);
/* `run` equals a contiguous run of whole dotted components of `name`: "attn.to_q" in "blocks.0.attn.to_q". */
bool oq_dotted_run(const char *run, const char *name);
/* `name` is `prefix` or begins with prefix + '.'; the empty prefix matches everything. */
bool oq_dotted_prefix(const char *prefix, const char *name);
/* Is `word` one of the comma separated words of `csv`? Spaces around words are ignored. */
bool oq_csv_has(const char *csv, const char *word);
/* The i-th word of `csv` copied into `out` (terminated, cut at n); false when there is none. */
bool oq_csv_word(const char *csv, size_t i, char *out, size_t n);
/* The word that begins at `csv`, of any length: its begin and bytes (not terminated). Where the next one begins; NULL: that
 * was the last. */
const char *oq_csv_next(const char *csv, const char **word, size_t *n);

#endif
