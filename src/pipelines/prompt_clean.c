/* prompt_clean.c -- a prompt as Wan's original cleans it. */
#include "pipelines/prompt_clean.h"

#include "base/strbuf.h"
#include "base/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- entities ------------------------------------------------------------------------------------------ */

static const struct entity {
    const char *name, *text;
} ENTITIES[] = {{"amp", "&"},
                {"lt", "<"},
                {"gt", ">"},
                {"quot", "\""},
                {"apos", "'"},
                {"nbsp", "\xc2\xa0"},
                {"copy", "\xc2\xa9"},
                {"reg", "\xc2\xae"},
                {"deg", "\xc2\xb0"},
                {"middot", "\xc2\xb7"},
                {"laquo", "\xc2\xab"},
                {"raquo", "\xc2\xbb"},
                {"times", "\xc3\x97"},
                {"eacute", "\xc3\xa9"},
                {"uuml", "\xc3\xbc"},
                {"auml", "\xc3\xa4"},
                {"ouml", "\xc3\xb6"},
                {"szlig", "\xc3\x9f"},
                {"ndash", "\xe2\x80\x93"},
                {"mdash", "\xe2\x80\x94"},
                {"lsquo", "\xe2\x80\x98"},
                {"rsquo", "\xe2\x80\x99"},
                {"ldquo", "\xe2\x80\x9c"},
                {"rdquo", "\xe2\x80\x9d"},
                {"bull", "\xe2\x80\xa2"},
                {"hellip", "\xe2\x80\xa6"},
                {"euro", "\xe2\x82\xac"},
                {"trade", "\xe2\x84\xa2"}};

static void put_codepoint(oq_strbuf *out, unsigned long c)
{
    char bytes[4];
    size_t n;
    if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
    if (c < 0x80) {
        bytes[0] = (char)c, n = 1;
    } else if (c < 0x800) {
        bytes[0] = (char)(0xc0 | c >> 6), n = 2;
    } else if (c < 0x10000) {
        bytes[0] = (char)(0xe0 | c >> 12), n = 3;
    } else {
        bytes[0] = (char)(0xf0 | c >> 18), n = 4;
    }
    for (size_t i = 1; i < n; i++) bytes[i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 0x3f));
    oq_strbuf_add(out, bytes, n);
}

/* The entity at `at` ("&amp;", "&#233;", "&#xe9;"): its length, or 0. */
static size_t put_entity(oq_strbuf *out, const char *at)
{
    const char *end = strchr(at, ';');
    if (!end || end == at + 1 || end - at > 32) return 0;
    if (at[1] == '#') {
        const bool hex = at[2] == 'x' || at[2] == 'X';
        const char *digits = at + 2 + hex;
        char *stop = NULL;
        if (strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789") != (size_t)(end - digits) ||
            end == digits)
            return 0;
        put_codepoint(out, strtoul(digits, &stop, hex ? 16 : 10));
        return (size_t)(end - at) + 1;
    }
    const size_t n = (size_t)(end - at) - 1;
    for (size_t i = 0; i < OQ_COUNT(ENTITIES); i++)
        if (strlen(ENTITIES[i].name) == n && strncmp(ENTITIES[i].name, at + 1, n) == 0) {
            oq_strbuf_puts(out, ENTITIES[i].text);
            return n + 2;
        }
    return 0;
}

static void unescape(oq_strbuf *out, const char *text)
{
    for (const char *at = text; *at;) {
        const size_t n = *at == '&' ? put_entity(out, at) : 0;
        if (n == 0) oq_strbuf_putc(out, *at);
        at += n ? n : 1;
    }
}

/* ---- characters ---------------------------------------------------------------------------------------- */

static unsigned long codepoint_of(const char *at, size_t n)
{
    const unsigned char *b = (const unsigned char *)at;
    if (n == 1) return b[0];
    unsigned long c = b[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (b[i] & 0x3f);
    return c;
}

static void put_fixed(oq_strbuf *out, const char *at, size_t n)
{
    static const char *const ligatures[] = {"ff", "fi", "fl", "ffi", "ffl", "st", "st"}; /* from U+FB00 */
    const unsigned long c = codepoint_of(at, n);
    if ((c >= 0x2018 && c <= 0x201b) || c == 0x02bc)
        oq_strbuf_putc(out, '\'');
    else if (c >= 0x201c && c <= 0x201f)
        oq_strbuf_putc(out, '"');
    else if (c >= 0xfb00 && c <= 0xfb06)
        oq_strbuf_puts(out, ligatures[c - 0xfb00]);
    else if (c >= 0xff01 && c <= 0xff5e)
        oq_strbuf_putc(out, (char)(c - 0xff01 + 0x21));
    else if (c == 0x3000)
        oq_strbuf_putc(out, ' ');
    else if (c == 0xfeff || c == 0x7f || (c < 0x20 && !oq_utf8_is_space(at, n)))
        return; /* control characters and byte order marks */
    else
        oq_strbuf_add(out, at, n);
}

static void fix(oq_strbuf *out, const char *text)
{
    for (const char *at = text; *at;) {
        const size_t n = oq_utf8_length(at);
        put_fixed(out, at, n);
        at += n;
    }
}

/* Runs of white space become one space, those at the ends none. */
static void collapse(oq_strbuf *out, const char *text)
{
    bool waiting = false;
    for (const char *at = text; *at;) {
        const size_t n = oq_utf8_length(at);
        if (oq_utf8_is_space(at, n)) {
            waiting = out->size > 0;
        } else {
            if (waiting) oq_strbuf_putc(out, ' ');
            waiting = false;
            oq_strbuf_add(out, at, n);
        }
        at += n;
    }
}

/* ---- in order ------------------------------------------------------------------------------------------ */

typedef void (*pass)(oq_strbuf *out, const char *text);

static oq_status clean(oq_env *env, char **text)
{
    static const pass passes[] = {fix, unescape, unescape, collapse};
    for (size_t i = 0; i < OQ_COUNT(passes); i++) {
        oq_strbuf out;
        oq_strbuf_init(&out, env);
        passes[i](&out, *text);
        oq_free(env, *text);
        *text = oq_strbuf_take(&out);
        oq_strbuf_deinit(&out);
        if (!*text) *text = oq_strdup(env, "");
        if (!*text) return oq_fail(env, OQ_E_NOMEM, "prompt: no memory");
        if (i > 0) continue;
        char *composed = NULL;
        size_t n = 0;
        OQ_TRY(oq_utf8_nfc(env, *text, strlen(*text), &composed, &n));
        oq_free(env, *text);
        *text = composed;
    }
    return OQ_OK;
}

oq_status oq_prompt_clean(oq_env *env, oq_arena *arena, const char *text, char **out)
{
    size_t n = 0;
    char *work = oq_utf8_repair(env, text, strlen(text), &n);
    if (!work) return oq_fail(env, OQ_E_NOMEM, "prompt: no memory");
    oq_status st = clean(env, &work);
    if (st == OQ_OK && !(*out = oq_arena_strdup(arena, work)))
        st = oq_fail(env, OQ_E_NOMEM, "prompt: no memory");
    oq_free(env, work);
    return st;
}
