/* header_members.c -- splits a safetensors header into its members without making values of them: the header of a large
 * model is 100 MB at most, as JSON values it would be gigabytes. Only the outermost object is judged here; each member is
 * parsed as JSON by its reader, one at a time. */
#include "ckpt/reader.h"

static oq_status fail_at(oq_env *env, const char *path, const oq_header_cursor *c, const char *expected)
{
    return oq_fail(env, OQ_E_FORMAT, "%s: malformed header: %s expected at byte %zu", path, expected, c->at);
}

static bool is_at(const oq_header_cursor *c, char wanted)
{
    return c->at < c->n && c->text[c->at] == wanted;
}

static void skip_space(oq_header_cursor *c)
{
    while (is_at(c, ' ') || is_at(c, '\n') || is_at(c, '\r') || is_at(c, '\t')) c->at++;
}

/* Behind the string literal that begins at `at`; 0: it does not end. */
static size_t string_end(const oq_header_cursor *c, size_t at)
{
    for (size_t i = at + 1; i < c->n; i++) {
        if (c->text[i] == '\\')
            i++;
        else if (c->text[i] == '"')
            return i + 1;
    }
    return 0;
}

/* Behind the object that begins at `at`; 0: it does not end. Whether brackets match in kind is JSON's business. */
static size_t object_end(const oq_header_cursor *c, size_t at, bool *nested)
{
    size_t depth = 0;
    *nested = false;
    while (at < c->n) {
        const char here = c->text[at];
        if (here == '"') {
            at = string_end(c, at);
            if (!at) return 0;
            continue;
        }
        if (here == '{' || here == '[') *nested |= depth++ > 0;
        at++;
        if ((here == '}' || here == ']') && --depth == 0) return at;
    }
    return 0;
}

static oq_status end_of_header(oq_env *env, const char *path, oq_header_cursor *c)
{
    c->at++;
    skip_space(c);
    return c->at == c->n ? OQ_OK : fail_at(env, path, c, "nothing more");
}

oq_status oq_header_next(oq_env *env, const char *path, oq_header_cursor *c, oq_header_member *out,
                         bool *more)
{
    const bool first = c->at == 0;
    *more = false;
    skip_space(c);
    if (first && !is_at(c, '{')) return fail_at(env, path, c, "'{'");
    if (!first && is_at(c, '}')) return end_of_header(env, path, c);
    if (!first && !is_at(c, ',')) return fail_at(env, path, c, "',' or '}'");
    c->at++;
    skip_space(c);
    if (first && is_at(c, '}')) return end_of_header(env, path, c);
    if (!is_at(c, '"')) return fail_at(env, path, c, "a name in quotes");
    out->key = c->at;
    out->key_end = string_end(c, c->at);
    if (!out->key_end) return fail_at(env, path, c, "a name that ends");
    c->at = out->key_end;
    skip_space(c);
    if (!is_at(c, ':')) return fail_at(env, path, c, "':'");
    c->at++;
    skip_space(c);
    if (!is_at(c, '{')) return fail_at(env, path, c, "an object");
    out->value = c->at;
    out->value_end = object_end(c, c->at, &out->nested);
    if (!out->value_end) return fail_at(env, path, c, "an object that ends");
    c->at = out->value_end;
    *more = true;
    return OQ_OK;
}
