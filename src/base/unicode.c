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

oq_status oq_utf8_nfc(oq_env *env, const char *text, size_t n, char **out, size_t *out_n)
{
    utf8proc_uint8_t *result = NULL;
    const utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &result,
                                               UTF8PROC_STABLE | UTF8PROC_COMPOSE);
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
