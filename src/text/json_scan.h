/* json_scan.h -- JSON read value by value, without a tree: vocabularies and merges hold hundreds of thousands
 * of values. Strict within the values it is asked for; the text must be valid UTF-8. */
#ifndef OQ_TEXT_JSON_SCAN_H
#define OQ_TEXT_JSON_SCAN_H

#include "base/strbuf.h"

typedef struct oq_json_scan {
    oq_env *env;
    const char *source; /* names the text in errors */
    const char *text;
    size_t n, at;
    oq_strbuf scratch; /* strings with escapes */
} oq_json_scan;

void oq_json_scan_init(oq_json_scan *scan, oq_env *env, const char *source, const char *text, size_t n);
void oq_json_scan_deinit(oq_json_scan *scan);

char oq_json_scan_peek(oq_json_scan *scan); /* next byte that is no space; 0 at the end */
/* Consumes `c` or fails, telling the byte and what is there. */
oq_status oq_json_scan_expect(oq_json_scan *scan, char c);
/* After an element: *more tells whether ',' followed (consumed) or `close` did (consumed). */
oq_status oq_json_scan_more(oq_json_scan *scan, char close, bool *more);
/* After an opening bracket: consumes `close` if it follows at once. */
bool oq_json_scan_empty(oq_json_scan *scan, char close);
/* The string's bytes, unescaped: valid until the next string is read; not terminated, may hold NUL. */
oq_status oq_json_scan_string(oq_json_scan *scan, const char **out, size_t *n);
oq_status oq_json_scan_int(oq_json_scan *scan, int64_t *out);
oq_status oq_json_scan_real(oq_json_scan *scan, double *out); /* a finite number of either kind */
/* Passes over one value of any kind and tells where it stood; only brackets and strings are checked. */
oq_status oq_json_scan_skip(oq_json_scan *scan, size_t *begin, size_t *end);

#endif
