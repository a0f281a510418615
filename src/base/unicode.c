/* unicode.c -- UTF-8 checks and repair by hand (they must agree with Python's replacement rule), NFC by
 * utf8proc. */
#include "base/unicode.h"

#include "base/strbuf.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Length of the valid sequence at s (n bytes left). If invalid, 0 and *skip the maximal ill-formed prefix. */
static size_t decode_length(const unsigned char *s, size_t n, size_t *skip)
{
    const unsigned char c = s[0];
    *skip = 1;
    if (c < 0x80) return 1;
    if (c < 0xc2 || c > 0xf4) return 0;
    const size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    unsigned char low = 0x80,
                  high = 0xbf; /* bounds of the second byte: no overlongs, surrogates or > U+10FFFF */
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    for (size_t i = 1; i < need; i++) {
        if (i >= n || s[i] < low || s[i] > high) {
            *skip = i;
            return 0;
        }
        low = 0x80, high = 0xbf;
    }
    return need;
}

bool oq_utf8_valid(const char *text, size_t n)
{
    size_t skip;
    for (size_t i = 0; i < n;) {
        const size_t length = decode_length((const unsigned char *)text + i, n - i, &skip);
        if (length == 0) return false;
        i += length;
    }
    return true;
}

char *oq_utf8_repair(oq_env *env, const char *text, size_t n, size_t *out_n)
{
    oq_strbuf buf;
    oq_strbuf_init(&buf, env);
    for (size_t i = 0; i < n;) {
        size_t skip;
        const size_t length = decode_length((const unsigned char *)text + i, n - i, &skip);
        if (length)
            oq_strbuf_add(&buf, text + i, length);
        else
            oq_strbuf_add(&buf, "\xef\xbf\xbd", 3);
        i += length ? length : skip;
    }
    *out_n = buf.size;
    char *repaired = oq_strbuf_take(&buf);
    oq_strbuf_deinit(&buf);
    return repaired;
}

static oq_status normal_form(oq_env *env, const char *text, size_t n, utf8proc_option_t form, char **out,
                             size_t *out_n)
{
    utf8proc_uint8_t *result = NULL;
    const utf8proc_ssize_t size =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &result, UTF8PROC_STABLE | form);
    if (size < 0)
        return oq_fail(env, OQ_E_NOMEM, "normalising a text of %zu bytes: %s", n, utf8proc_errmsg(size));
    char *copy = oq_alloc_raw(env, (size_t)size + 1);
    if (copy) memcpy(copy, result, (size_t)size), copy[size] = '\0';
    free(result);
    if (!copy) return oq_fail(env, OQ_E_NOMEM, "normalising a text: no memory for %zu bytes", (size_t)size);
    *out = copy;
    *out_n = (size_t)size;
    return OQ_OK;
}

oq_status oq_utf8_nfc(oq_env *env, const char *text, size_t n, char **out, size_t *out_n)
{
    return normal_form(env, text, n, UTF8PROC_COMPOSE, out, out_n);
}

oq_status oq_utf8_nfd(oq_env *env, const char *text, size_t n, char **out, size_t *out_n)
{
    return normal_form(env, text, n, UTF8PROC_DECOMPOSE, out, out_n);
}

oq_status oq_utf8_nfkc(oq_env *env, const char *text, size_t n, char **out, size_t *out_n)
{
    return normal_form(env, text, n, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, out, out_n);
}

oq_status oq_utf8_nfkd(oq_env *env, const char *text, size_t n, char **out, size_t *out_n)
{
    return normal_form(env, text, n, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, out, out_n);
}

oq_status oq_utf8_lower(oq_env *env, const char *text, size_t n, char **out, size_t *out_n)
{
    oq_strbuf buf;
    oq_strbuf_init(&buf, env);
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t code = -1;
        utf8proc_uint8_t bytes[4];
        const size_t length = oq_utf8_length(text + i);
        utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)length, &code);
        if (code == 0x130) /* the one capital whose small form is two characters: i and a dot above */
            oq_strbuf_puts(&buf, "i\xcc\x87");
        else
            oq_strbuf_add(&buf, bytes, (size_t)utf8proc_encode_char(utf8proc_tolower(code), bytes));
        i += length;
    }
    const oq_status st = oq_strbuf_check(&buf, "text in lower case");
    *out_n = buf.size;
    *out = st == OQ_OK ? oq_strbuf_take(&buf) : NULL;
    oq_strbuf_deinit(&buf);
    return st == OQ_OK && !*out ? oq_fail(env, OQ_E_NOMEM, "text in lower case: no memory") : st;
}

size_t oq_utf8_length(const char *text)
{
    const unsigned char first = (unsigned char)text[0];
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

size_t oq_utf8_grapheme(const char *text, size_t n)
{
    utf8proc_int32_t state = 0, before = -1, code = -1;
    size_t at = 0;
    while (at < n) {
        const size_t length = oq_utf8_length(text + at);
        utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &code);
        if (at && utf8proc_grapheme_break_stateful(before, code, &state)) break;
        before = code;
        at += length;
    }
    return at;
}

static utf8proc_int32_t code_point(const char *character, size_t n)
{
    utf8proc_int32_t code = -1;
    utf8proc_iterate((const utf8proc_uint8_t *)character, (utf8proc_ssize_t)n, &code);
    return code;
}

bool oq_utf8_is_space(const char *character, size_t n)
{
    const utf8proc_int32_t c = code_point(character, n);
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    const utf8proc_category_t category = utf8proc_category(c);
    return c == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

bool oq_utf8_is_word(const char *character, size_t n)
{
    switch (utf8proc_category(code_point(character, n))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}
