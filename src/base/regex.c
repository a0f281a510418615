/* regex.c -- PCRE2 with UTF and Unicode properties; a match limit keeps hostile patterns from hanging. */
#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

struct oq_regex {
    pcre2_code *code;
    pcre2_match_context *context;
    pcre2_match_data *data;
};

oq_status oq_regex_new(oq_env *env, const char *pattern, oq_regex **out)
{
    *out = NULL;
    int error = 0;
    PCRE2_SIZE offset = 0;
    oq_regex *r = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *r, "regular expression", &r));
    r->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                            &offset, NULL);
    if (!r->code) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(error, text, sizeof text);
        oq_free(env, r);
        return oq_fail(env, OQ_E_CONFIG, "regular expression '%s': %s at offset %zu", pattern,
                       (const char *)text, (size_t)offset);
    }
    r->context = pcre2_match_context_create(NULL);
    r->data = pcre2_match_data_create_from_pattern(r->code, NULL);
    if (!r->context || !r->data) {
        oq_regex_free(env, r);
        return oq_fail(env, OQ_E_NOMEM, "regular expression '%s': no memory", pattern);
    }
    pcre2_set_match_limit(r->context, 1000000);
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it the interpreter does the same */
    *out = r;
    return OQ_OK;
}

void oq_regex_free(oq_env *env, oq_regex *regex)
{
    if (!regex) return;
    pcre2_match_data_free(regex->data);
    pcre2_match_context_free(regex->context);
    pcre2_code_free(regex->code);
    oq_free(env, regex);
}

int oq_regex_find(oq_regex *regex, const char *text, size_t n, size_t at, size_t *begin, size_t *end)
{
    const int rc =
        pcre2_match(regex->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, regex->data, regex->context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) return -1;
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(regex->data);
    *begin = v[0];
    *end = v[1];
    return 1;
}

/* The interpreter needs no stack of the compiled kind, so it can finish what that gave up. */
static int match_at(const oq_regex *regex, const char *text, size_t n, size_t at, pcre2_match_data *data,
                    pcre2_match_context *context)
{
    const PCRE2_SPTR s = (PCRE2_SPTR)text;
    const int rc = pcre2_match(regex->code, s, n, at, PCRE2_NO_UTF_CHECK, data, context);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    return pcre2_match(regex->code, s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
}

/* Where to look after a match: behind it, or at the next character after an empty one. */
static size_t after_match(const PCRE2_SIZE *match, const char *text, size_t n)
{
    size_t at = match[1];
    if (match[1] > match[0]) return at;
    for (at++; at < n && ((unsigned char)text[at] & 0xc0) == 0x80;) at++;
    return at;
}

oq_status oq_regex_each(oq_env *env, const oq_regex *regex, const char *text, size_t n,
                        bool (*visit)(void *user, size_t begin, size_t end), void *user)
{
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex->code, NULL);
    oq_status st = OQ_OK;
    if (!context || !data) st = oq_fail(env, OQ_E_NOMEM, "regular expression: no memory for its matches");
    /* A long run may be walked back once per alternative, which is linear; more than that is not. */
    if (context) pcre2_set_match_limit(context, n < 100000000 ? 1000000 + 8 * (uint32_t)n : UINT32_MAX);
    for (size_t at = 0; st == OQ_OK && at < n;) {
        const int rc = match_at(regex, text, n, at, data, context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) {
            st = oq_fail(env, rc == PCRE2_ERROR_NOMEMORY ? OQ_E_NOMEM : OQ_E_UNSUPPORTED,
                         "regular expression: gave up at byte %zu of a text of %zu", at, n);
            break;
        }
        const PCRE2_SIZE *match = pcre2_get_ovector_pointer(data);
        if (match[1] > match[0] && !visit(user, match[0], match[1])) break;
        at = after_match(match, text, n);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    return st;
}

bool oq_regex_matches_start(oq_regex *regex, const char *text)
{
    const int rc = pcre2_match(regex->code, (PCRE2_SPTR)text, strlen(text), 0, PCRE2_ANCHORED, regex->data,
                               regex->context);
    return rc >= 0;
}
