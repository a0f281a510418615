/* selector.c -- reads sets of step and layer numbers. */
#include "config/selector.h"

#include <stdlib.h>
#include <string.h>

/* ---- the set ------------------------------------------------------------------------------------------- */

static int by_first(const void *a, const void *b)
{
    const oq_selector_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorts and joins ranges that overlap or touch. */
static void normalize(oq_selector *s)
{
    if (s->n_ranges == 0) return;
    qsort(s->ranges, s->n_ranges, sizeof *s->ranges, by_first);
    size_t n = 1;
    for (size_t i = 1; i < s->n_ranges; i++) {
        oq_selector_range *last = &s->ranges[n - 1];
        const oq_selector_range r = s->ranges[i];
        if (r.first > last->last && r.first - 1 > last->last)
            s->ranges[n++] = r;
        else if (r.last > last->last)
            last->last = r.last;
    }
    s->n_ranges = n;
}

bool oq_selector_has(const oq_selector *selector, int64_t i)
{
    size_t low = 0, high = selector->n_ranges;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (selector->ranges[mid].last < i)
            low = mid + 1;
        else
            high = mid;
    }
    return low < selector->n_ranges && selector->ranges[low].first <= i;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

typedef struct word {
    const char *text;
    size_t n;
} word;

static word trim(const char *text, size_t n)
{
    while (n && strchr(" \t\r\n", *text)) text++, n--;
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    return (word){text, n};
}

/* Decimal digits alone, at most INT64_MAX. */
static bool read_number(word w, int64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < w.n; i++) {
        if (w.text[i] < '0' || w.text[i] > '9') return false;
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, w.text[i] - '0', out))
            return false;
    }
    return w.n > 0;
}

static oq_status read_word(oq_env *env, const char *what, word w, oq_selector_range *out)
{
    const char *dash = memchr(w.text, '-', w.n);
    const int shown = w.n < 64 ? (int)w.n : 64;
    if (!dash) {
        if (!read_number(w, &out->first))
            return oq_fail(env, OQ_E_CONFIG, "%s: '%.*s' is not a number from 0 up", what, shown, w.text);
        out->last = out->first;
        return OQ_OK;
    }
    const size_t before = (size_t)(dash - w.text);
    if (!read_number(trim(w.text, before), &out->first) ||
        !read_number(trim(dash + 1, w.n - before - 1), &out->last))
        return oq_fail(env, OQ_E_CONFIG, "%s: '%.*s' is not a range like 4-6", what, shown, w.text);
    if (out->last < out->first)
        return oq_fail(env, OQ_E_CONFIG, "%s: range '%.*s' runs backwards", what, shown, w.text);
    return OQ_OK;
}

oq_status oq_selector_parse(oq_env *env, oq_arena *arena, const char *what, const char *text,
                            oq_selector *out)
{
    *out = (oq_selector){0};
    const word all = trim(text, strlen(text));
    if (all.n == 0) return OQ_OK;
    size_t commas = 1;
    for (size_t i = 0; i < all.n; i++) commas += all.text[i] == ',';
    OQ_TRY(oq_arena_new(arena, commas, sizeof *out->ranges, what, &out->ranges));
    out->given = true;
    for (size_t at = 0; at <= all.n;) {
        const char *comma = at < all.n ? memchr(all.text + at, ',', all.n - at) : NULL;
        const size_t end = comma ? (size_t)(comma - all.text) : all.n;
        const word w = trim(all.text + at, end - at);
        if (w.n) OQ_TRY(read_word(env, what, w, &out->ranges[out->n_ranges++]));
        at = end + 1;
    }
    normalize(out);
    return OQ_OK;
}

/* ---- lists --------------------------------------------------------------------------------------------- */

static oq_status read_list(oq_env *env, oq_arena *arena, const char *what, const oq_json *list,
                           oq_selector *out)
{
    out->given = true;
    OQ_TRY(oq_arena_new(arena, oq_json_size(list), sizeof *out->ranges, what, &out->ranges));
    for (size_t i = 0; i < oq_json_size(list); i++) {
        const oq_json *item = oq_json_at(list, i);
        const oq_json_kind kind = oq_json_type(item);
        if (kind != OQ_JSON_INT && kind != OQ_JSON_BOOL)
            return oq_fail(env, OQ_E_CONFIG, "%s: entry %zu must be a whole number, not %s", what, i,
                           oq_json_type_name(item));
        const int64_t value = kind == OQ_JSON_BOOL ? oq_json_bool(item, false) : oq_json_int(item, 0);
        if (value < 0)
            return oq_fail(env, OQ_E_CONFIG, "%s: entry %zu is %lld, it must be 0 or more", what, i,
                           (long long)value);
        out->ranges[out->n_ranges++] = (oq_selector_range){value, value};
    }
    normalize(out);
    return OQ_OK;
}

oq_status oq_selector_from_json(oq_env *env, oq_arena *arena, const char *what, const oq_json *json,
                                oq_selector *out)
{
    *out = (oq_selector){0};
    switch (oq_json_type(json)) {
    case OQ_JSON_NULL:
        return OQ_OK;
    case OQ_JSON_STRING:
        return oq_selector_parse(env, arena, what, oq_json_string(json), out);
    case OQ_JSON_ARRAY:
        return read_list(env, arena, what, json, out);
    default:
        break;
    }
    return oq_fail(env, OQ_E_CONFIG, "%s must be a text like '0,1,4-6' or a list of whole numbers, not %s",
                   what, oq_json_type_name(json));
}
