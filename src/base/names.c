/* names.c -- normalised comparison, edit distance, globs, dotted names, comma separated words. */
#include "base/names.h"

#include <string.h>

static unsigned char fold(char c)
{
    if (c >= 'A' && c <= 'Z') return (unsigned char)(c - 'A' + 'a');
    return c == '-' ? '_' : (unsigned char)c;
}

bool oq_name_equal(const char *a, const char *b)
{
    while (*a && fold(*a) == fold(*b)) a++, b++;
    return fold(*a) == fold(*b);
}

bool oq_name_ends(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

enum { MAX_EDIT = 64 };

/* Levenshtein distance of the folded names; names longer than MAX_EDIT are never near. */
static size_t distance(const char *a, const char *b)
{
    const size_t n = strlen(a), m = strlen(b);
    if (n >= MAX_EDIT || m >= MAX_EDIT) return MAX_EDIT;
    size_t row[MAX_EDIT + 1];
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const size_t replace = diagonal + (fold(a[i - 1]) != fold(b[j - 1]));
            diagonal = row[j];
            const size_t edge = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = replace < edge ? replace : edge;
        }
    }
    return row[m];
}

int oq_name_nearest(const char *name, const char *const *candidates, size_t n)
{
    int best = -1;
    size_t best_distance = MAX_EDIT;
    for (size_t i = 0; i < n; i++) {
        const size_t d = distance(name, candidates[i]);
        if (d < best_distance) best = (int)i, best_distance = d;
    }
    const size_t length = strlen(name);
    return best >= 0 && best_distance * 2 <= (length > 4 ? length : 4) ? best : -1;
}

/* Matches one '[...]' at *p against c; advances *p behind it. An unclosed bracket stands for itself. */
static bool match_set(const char **p, char c)
{
    const char *s = *p + 1;
    const bool negated = *s == '!' || *s == '^';
    if (negated) s++;
    bool hit = false;
    const char *first = s;
    while (*s && (*s != ']' || s == first)) {
        if (s[1] == '-' && s[2] && s[2] != ']') {
            hit |= (unsigned char)s[0] <= (unsigned char)c && (unsigned char)c <= (unsigned char)s[2];
            s += 3;
        } else {
            hit |= *s++ == c;
        }
    }
    if (*s != ']') {
        *p += 1;
        return c == '[';
    }
    *p = s + 1;
    return hit != negated;
}

bool oq_glob_match(const char *pattern, const char *text)
{
    const char *star = NULL, *retry = NULL;
    while (*text) {
        const char *p = pattern;
        bool one = false;
        if (*p == '*') {
            star = ++pattern;
            retry = text;
            continue;
        }
        if (*p == '?')
            one = true, p++;
        else if (*p == '[')
            one = match_set(&p, *text);
        else if (*p && *p == *text)
            one = true, p++;
        if (one) {
            pattern = p;
            text++;
        } else if (star) {
            pattern = star;
            text = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

bool oq_dotted_run(const char *run, const char *name)
{
    const size_t n = strlen(run);
    if (n == 0) return false;
    for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
        if (strncmp(at, run, n) == 0 && (at[n] == '\0' || at[n] == '.')) return true;
    return false;
}

bool oq_dotted_prefix(const char *prefix, const char *name)
{
    const size_t n = strlen(prefix);
    return n == 0 || (strncmp(prefix, name, n) == 0 && (name[n] == '\0' || name[n] == '.'));
}

const char *oq_csv_next(const char *csv, const char **word, size_t *n)
{
    while (*csv == ' ') csv++;
    const char *end = strchr(csv, ',');
    if (!end) end = csv + strlen(csv);
    *word = csv;
    *n = (size_t)(end - csv);
    while (*n && csv[*n - 1] == ' ') --*n;
    return *end ? end + 1 : NULL;
}

bool oq_csv_word(const char *csv, size_t i, char *out, size_t size)
{
    const char *word = NULL;
    size_t n = 0;
    if (!csv || !*csv) return false;
    for (const char *at = csv; at;) {
        at = oq_csv_next(at, &word, &n);
        if (i-- > 0) continue;
        if (n >= size) n = size - 1;
        memcpy(out, word, n);
        out[n] = '\0';
        return true;
    }
    return false;
}

bool oq_csv_has(const char *csv, const char *wanted)
{
    char word[256];
    for (size_t i = 0; oq_csv_word(csv, i, word, sizeof word); i++)
        if (strcmp(word, wanted) == 0) return true;
    return false;
}
