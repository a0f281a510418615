/* json_scan.c -- a pull reader over bytes in memory. It does no recursion, so no nesting can exhaust the
 * stack. */
#include "text/json_scan.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void oq_json_scan_init(oq_json_scan *scan, oq_env *env, const char *source, const char *text, size_t n)
{
    *scan = (oq_json_scan){.env = env, .source = source, .text = text, .n = n};
    oq_strbuf_init(&scan->scratch, env);
}

void oq_json_scan_deinit(oq_json_scan *scan)
{
    oq_strbuf_deinit(&scan->scratch);
}

static oq_status fail_at(const oq_json_scan *s, const char *what)
{
    if (s->at >= s->n)
        return oq_fail(s->env, OQ_E_FORMAT, "%s: ends at byte %zu where %s is needed", s->source, s->n, what);
    return oq_fail(s->env, OQ_E_FORMAT, "%s: '%c' at byte %zu where %s is needed", s->source, s->text[s->at],
                   s->at, what);
}

char oq_json_scan_peek(oq_json_scan *s)
{
    while (s->at < s->n) {
        const char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
        s->at++;
    }
    return 0;
}

oq_status oq_json_scan_expect(oq_json_scan *s, char c)
{
    const char what[] = {'\'', c, '\'', '\0'};
    if (oq_json_scan_peek(s) != c) return fail_at(s, what);
    s->at++;
    return OQ_OK;
}

oq_status oq_json_scan_more(oq_json_scan *s, char close, bool *more)
{
    const char what[] = {'\'', ',', '\'', ' ', 'o', 'r', ' ', '\'', close, '\'', '\0'};
    const char c = oq_json_scan_peek(s);
    if (c != ',' && c != close) return fail_at(s, what);
    s->at++;
    *more = c == ',';
    return OQ_OK;
}

bool oq_json_scan_empty(oq_json_scan *s, char close)
{
    if (oq_json_scan_peek(s) != close) return false;
    s->at++;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits behind "\u" at `at`; -1 if they are not there. */
static int32_t code_unit(const oq_json_scan *s, size_t at)
{
    int32_t unit = 0;
    if (s->n < 4 || at > s->n - 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        const int digit = hex_digit(s->text[i]);
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

static void put_utf8(oq_strbuf *buf, int32_t c)
{
    if (c < 0x80) {
        oq_strbuf_putc(buf, (char)c);
    } else if (c < 0x800) {
        oq_strbuf_putc(buf, (char)(0xc0 | c >> 6));
        oq_strbuf_putc(buf, (char)(0x80 | (c & 0x3f)));
    } else {
        if (c < 0x10000) {
            oq_strbuf_putc(buf, (char)(0xe0 | c >> 12));
        } else {
            oq_strbuf_putc(buf, (char)(0xf0 | c >> 18));
            oq_strbuf_putc(buf, (char)(0x80 | (c >> 12 & 0x3f)));
        }
        oq_strbuf_putc(buf, (char)(0x80 | (c >> 6 & 0x3f)));
        oq_strbuf_putc(buf, (char)(0x80 | (c & 0x3f)));
    }
}

/* "\uXXXX" or a surrogate pair of them; s->at stands behind the 'u'. */
static oq_status put_unicode_escape(oq_json_scan *s)
{
    int32_t c = code_unit(s, s->at);
    if (c < 0) return fail_at(s, "four hexadecimal digits");
    s->at += 4;
    if (c >= 0xd800 && c < 0xdc00) {
        const bool pair = s->n - s->at >= 6 && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u';
        const int32_t low = pair ? code_unit(s, s->at + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff) return fail_at(s, "the second half of a surrogate pair");
        s->at += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xdc00 && c <= 0xdfff) {
        return fail_at(s, "a code point before the second half of a surrogate pair");
    }
    put_utf8(&s->scratch, c);
    return OQ_OK;
}

static oq_status put_escape(oq_json_scan *s)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char c = s->at < s->n ? s->text[s->at] : 0;
    const char *known = c ? strchr(names, c) : NULL;
    if (c == 'u') {
        s->at++;
        return put_unicode_escape(s);
    }
    if (!known) return fail_at(s, "a known escape");
    oq_strbuf_putc(&s->scratch, values[known - names]);
    s->at++;
    return OQ_OK;
}

oq_status oq_json_scan_string(oq_json_scan *s, const char **out, size_t *n)
{
    if (oq_json_scan_peek(s) != '"') return fail_at(s, "a string");
    size_t begin = ++s->at;
    bool escaped = false;
    oq_strbuf_clear(&s->scratch);
    for (;; s->at++) {
        if (s->at >= s->n) return fail_at(s, "the end of a string");
        const unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') break;
        if (c < 0x20) return fail_at(s, "an escape instead of a control byte");
        if (c != '\\') continue;
        oq_strbuf_add(&s->scratch, s->text + begin, s->at - begin);
        s->at++;
        OQ_TRY(put_escape(s));
        escaped = true;
        begin = s->at--; /* the loop steps on */
    }
    *out = s->text + begin;
    *n = s->at++ - begin;
    if (!escaped) return OQ_OK;
    oq_strbuf_add(&s->scratch, *out, *n);
    *out = oq_strbuf_text(&s->scratch);
    *n = s->scratch.size;
    return oq_strbuf_check(&s->scratch, s->source);
}

oq_status oq_json_scan_int(oq_json_scan *s, int64_t *out)
{
    const char first = oq_json_scan_peek(s);
    const bool negative = first == '-';
    size_t at = s->at + negative;
    int64_t value = 0;
    if (at >= s->n || s->text[at] < '0' || s->text[at] > '9') return fail_at(s, "a whole number");
    if (s->text[at] == '0' && at + 1 < s->n && s->text[at + 1] >= '0' && s->text[at + 1] <= '9')
        return fail_at(s, "a number without a leading zero");
    for (; at < s->n && s->text[at] >= '0' && s->text[at] <= '9'; at++) {
        if (value > (INT64_MAX - 9) / 10) return fail_at(s, "a number that fits 64 bits");
        value = value * 10 + (s->text[at] - '0');
    }
    if (at < s->n && (s->text[at] == '.' || s->text[at] == 'e' || s->text[at] == 'E'))
        return fail_at(s, "a number without a fraction");
    s->at = at;
    *out = negative ? -value : value;
    return OQ_OK;
}

oq_status oq_json_scan_real(oq_json_scan *s, double *out)
{
    char word[64];
    const char first = oq_json_scan_peek(s);
    size_t n = 0;
    while (s->at + n < s->n && s->text[s->at + n] && strchr("+-.0123456789eE", s->text[s->at + n])) n++;
    if (n == 0 || n >= sizeof word || (first != '-' && (first < '0' || first > '9')))
        return fail_at(s, "a number");
    memcpy(word, s->text + s->at, n);
    word[n] = '\0';
    char *end = NULL, *point = strchr(word, '.');
    if (point) *point = localeconv()->decimal_point[0]; /* the host program's, which strtod reads */
    *out = strtod(word, &end);
    if (*end || !isfinite(*out)) return fail_at(s, "a number");
    s->at += n;
    return OQ_OK;
}

/* s->at stands at the opening quote; moves behind the closing one. */
static oq_status skip_string(oq_json_scan *s)
{
    for (s->at++; s->at < s->n && s->text[s->at] != '"'; s->at++)
        if (s->text[s->at] == '\\') s->at++;
    if (s->at >= s->n) {
        s->at = s->n;
        return fail_at(s, "the end of a string");
    }
    s->at++;
    return OQ_OK;
}

static bool ends_scalar(char c)
{
    return c == ',' || c == ']' || c == '}' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

oq_status oq_json_scan_skip(oq_json_scan *s, size_t *begin, size_t *end)
{
    const char first = oq_json_scan_peek(s);
    *begin = s->at;
    if (!first || ends_scalar(first) || first == ':') return fail_at(s, "a value");
    if (first == '"') {
        OQ_TRY(skip_string(s));
    } else if (first != '{' && first != '[') {
        while (s->at < s->n && !ends_scalar(s->text[s->at])) s->at++;
    } else {
        for (size_t depth = 0;;) {
            const char c = s->at < s->n ? s->text[s->at] : 0;
            if (s->at >= s->n) return fail_at(s, "a closing bracket");
            if (c == '"') {
                OQ_TRY(skip_string(s));
                continue;
            }
            s->at++;
            if (c == '{' || c == '[')
                depth++;
            else if ((c == '}' || c == ']') && --depth == 0)
                break;
        }
    }
    *end = s->at;
    return OQ_OK;
}
