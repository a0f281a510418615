/* split_pattern.c -- Oniguruma to PCRE2, one construct at a time. \s is the difference that matters:
 * Oniguruma takes Unicode's White_Space, PCRE2 adds U+180E to it. */
#include "text/split_pattern.h"

#include <string.h>

typedef struct translation {
    oq_env *env;
    const char *source, *pattern, *at;
    oq_strbuf *out;
    bool in_class;
} translation;

static oq_status refuse(const translation *t, const char *what, size_t n)
{
    return oq_fail(t->env, OQ_E_UNSUPPORTED, "%s: '%.*s' in the pattern '%s' is not supported", t->source,
                   (int)n, what, t->pattern);
}

/* t->at stands at a backslash. Letters that mean something else, or less, in PCRE2 are refused. */
static oq_status translate_escape(translation *t)
{
    const char c = t->at[1];
    if (c == '\0') return refuse(t, t->at, 1);
    if (strchr("wWbBhHdDXRKGAZQEkgoO", c)) return refuse(t, t->at, 2);
    if (c == 's')
        oq_strbuf_puts(t->out, "\\p{White_Space}");
    else if (c == 'S')
        oq_strbuf_puts(t->out, "\\P{White_Space}");
    else
        oq_strbuf_add(t->out, t->at, 2);
    t->at += 2;
    return OQ_OK;
}

static oq_status translate_in_class(translation *t)
{
    if (*t->at == '[') return refuse(t, t->at, 1);
    if (t->at[0] == '&' && t->at[1] == '&') return refuse(t, t->at, 2);
    if (*t->at == ']') t->in_class = false;
    oq_strbuf_putc(t->out, *t->at++);
    return OQ_OK;
}

static oq_status translate_outside(translation *t)
{
    if (*t->at == '^' || *t->at == '$') return refuse(t, t->at, 1);     /* of lines there, of the text here */
    if (t->at[0] == '(' && t->at[1] == '*') return refuse(t, t->at, 2); /* a verb to PCRE2 */
    const bool opens = *t->at == '[';
    oq_strbuf_putc(t->out, *t->at++);
    if (!opens) return OQ_OK;
    t->in_class = true;
    if (*t->at == '^') oq_strbuf_putc(t->out, *t->at++);
    if (*t->at == ']') return refuse(t, "[]", 2);
    return OQ_OK;
}

oq_status oq_split_pattern(oq_env *env, const char *source, const char *pattern, oq_strbuf *out)
{
    translation t = {.env = env, .source = source, .pattern = pattern, .at = pattern, .out = out};
    while (*t.at) {
        if (*t.at == '\\')
            OQ_TRY(translate_escape(&t));
        else if (t.in_class)
            OQ_TRY(translate_in_class(&t));
        else
            OQ_TRY(translate_outside(&t));
    }
    return oq_strbuf_check(out, source);
}
