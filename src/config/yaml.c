/* yaml.c -- YAML text to a JSON value through libfyaml (only this room includes it). YAML 1.2 core schema:
 * plain scalars become null, booleans, numbers or strings; quoted ones stay strings. Limits: 64 levels, 65536
 * values after aliases are expanded, one document, no merge keys, no tags but the core's. */
#include "config/quant_config.h"

#include "base/unicode.h"

#include <errno.h>
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_VALUES = 65536 };

typedef struct reader {
    oq_env *env;
    const char *source;
    struct fy_document *document;
    int n_values;
} reader;

static oq_status convert(reader *r, struct fy_node *node, int depth, oq_json **out);

/* 1-based line of a node for messages; 0 where libfyaml does not tell. */
static int line_of(struct fy_node *node)
{
    struct fy_token *token = node ? fy_node_get_scalar_token(node) : NULL;
    const struct fy_mark *mark = token ? fy_token_start_mark(token) : NULL;
    return mark ? mark->line + 1 : 0;
}

/* The anchor's node by its name alone: fy_node_resolve_alias would read the name as a path, and print. */
static struct fy_node *resolve_alias(const reader *r, struct fy_node *alias)
{
    struct fy_token *name = fy_node_get_scalar_token(alias);
    struct fy_anchor *anchor = name ? fy_document_lookup_anchor_by_token(r->document, name) : NULL;
    return anchor ? fy_anchor_node(anchor) : NULL;
}

static bool word_is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0) return true;
    return false;
}

/* Digits of `base` from `s` to the end, at least one. */
static bool all_digits(const char *s, const char *digits)
{
    return *s && strspn(s, digits) == strlen(s);
}

static oq_json *integer(const char *text)
{
    const char *digits = text + (*text == '-' || *text == '+');
    int base = 0;
    if (all_digits(digits, "0123456789"))
        base = 10;
    else if (digits == text && strncmp(text, "0x", 2) == 0 && all_digits(text + 2, "0123456789abcdefABCDEF"))
        base = 16;
    else if (digits == text && strncmp(text, "0o", 2) == 0 && all_digits(text + 2, "01234567"))
        base = 8;
    if (base == 0) return NULL;
    errno = 0;
    const long long value = strtoll(base == 8 ? text + 2 : text, NULL, base);
    return errno ? NULL : oq_json_new_int(value);
}

static oq_json *real(const char *text)
{
    static const char *const inf[] = {".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", NULL};
    static const char *const minus_inf[] = {"-.inf", "-.Inf", "-.INF", NULL};
    static const char *const nan[] = {".nan", ".NaN", ".NAN", NULL};
    if (word_is_one_of(text, inf)) return oq_json_new_real((double)__builtin_inff());
    if (word_is_one_of(text, minus_inf)) return oq_json_new_real(-(double)__builtin_inff());
    if (word_is_one_of(text, nan)) return oq_json_new_real((double)__builtin_nanf(""));
    if (!strpbrk(text, "0123456789") || strspn(text, "0123456789+-.eE") != strlen(text)) return NULL;
    char *end = NULL;
    const double value = strtod(text, &end);
    return *end ? NULL : oq_json_new_real(value);
}

/* What a plain scalar means in the core schema. */
static oq_json *plain_value(const char *text)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const trues[] = {"true", "True", "TRUE", NULL};
    static const char *const falses[] = {"false", "False", "FALSE", NULL};
    if (word_is_one_of(text, nulls)) return oq_json_new_null();
    if (word_is_one_of(text, trues)) return oq_json_new_bool(true);
    if (word_is_one_of(text, falses)) return oq_json_new_bool(false);
    oq_json *number = integer(text);
    if (!number) number = real(text);
    return number ? number : oq_json_new_string(text);
}

/* The tag's last word ("str"), "" without a tag, NULL for a tag that is not the core's. */
static const char *core_tag(struct fy_node *node, char *word, size_t size)
{
    static const char prefix[] = "tag:yaml.org,2002:";
    size_t n = 0;
    const char *tag = fy_node_get_tag(node, &n);
    word[0] = '\0';
    if (!tag || n == 0 || (n == 1 && *tag == '!')) return word;
    if (n <= sizeof prefix - 1 || n - (sizeof prefix - 1) >= size ||
        memcmp(tag, prefix, sizeof prefix - 1) != 0)
        return NULL;
    n -= sizeof prefix - 1;
    memcpy(word, tag + sizeof prefix - 1, n);
    word[n] = '\0';
    return word;
}

static oq_status convert_scalar(reader *r, struct fy_node *node, const char *tag, oq_json **out)
{
    size_t n = 0;
    const char *text = fy_node_get_scalar(node, &n);
    char *copy = oq_alloc(r->env, n + 1);
    if (!copy) return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for a scalar of %zu bytes", r->source, n);
    if (n) memcpy(copy, text, n);
    oq_status st = OQ_OK;
    const bool plain = fy_node_get_style(node) == FYNS_PLAIN || fy_node_get_style(node) == FYNS_ANY;
    if (n && memchr(copy, '\0', n))
        st = oq_fail(r->env, OQ_E_FORMAT, "%s: line %d holds a NUL in a string", r->source, line_of(node));
    else
        *out = strcmp(tag, "str") == 0 || !plain ? oq_json_new_string(copy) : plain_value(copy);
    oq_free(r->env, copy);
    if (st == OQ_OK && !*out) st = oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for a value", r->source);
    return st;
}

static oq_status convert_sequence(reader *r, struct fy_node *node, int depth, oq_json *array)
{
    void *at = NULL;
    for (struct fy_node *item; (item = fy_node_sequence_iterate(node, &at));) {
        oq_json *value = NULL;
        OQ_TRY(convert(r, item, depth + 1, &value));
        if (!oq_json_append(array, value))
            return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for a list", r->source);
    }
    return OQ_OK;
}

static oq_status read_key(reader *r, struct fy_node *node, char **out)
{
    if (node && fy_node_is_alias(node)) node = resolve_alias(r, node);
    size_t n = 0;
    const char *text = node && fy_node_is_scalar(node) ? fy_node_get_scalar(node, &n) : NULL;
    if (!text || memchr(text, '\0', n) || (n && text[0] == '\x01'))
        return oq_fail(r->env, OQ_E_FORMAT, "%s: a key of a mapping is not a plain text", r->source);
    if (n == 2 && memcmp(text, "<<", 2) == 0)
        return oq_fail(r->env, OQ_E_FORMAT, "%s: line %d uses a merge key '<<', which is not read", r->source,
                       line_of(node));
    *out = oq_alloc(r->env, n + 1);
    if (!*out) return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for a key of %zu bytes", r->source, n);
    memcpy(*out, text, n);
    return OQ_OK;
}

static oq_status convert_pair(reader *r, struct fy_node_pair *pair, int depth, oq_json *object)
{
    char *key = NULL;
    oq_json *value = NULL;
    OQ_TRY(read_key(r, fy_node_pair_key(pair), &key));
    oq_status st;
    if (oq_json_get(object, key))
        st = oq_fail(r->env, OQ_E_FORMAT, "%s: key '%s' stands twice in one mapping", r->source, key);
    else
        st = convert(r, fy_node_pair_value(pair), depth + 1, &value);
    if (st == OQ_OK && !oq_json_set(object, key, value))
        st = oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for key '%s'", r->source, key);
    oq_free(r->env, key);
    return st;
}

static oq_status convert_mapping(reader *r, struct fy_node *node, int depth, oq_json *object)
{
    void *at = NULL;
    for (struct fy_node_pair *pair; (pair = fy_node_mapping_iterate(node, &at));)
        OQ_TRY(convert_pair(r, pair, depth, object));
    return OQ_OK;
}

static oq_status convert(reader *r, struct fy_node *node, int depth, oq_json **out)
{
    *out = NULL;
    for (int hops = 0; node && fy_node_is_alias(node); hops++) {
        struct fy_node *target = hops < MAX_DEPTH ? resolve_alias(r, node) : NULL;
        if (!target)
            return oq_fail(r->env, OQ_E_FORMAT, "%s: line %d names an anchor that does not exist", r->source,
                           line_of(node));
        node = target;
    }
    if (++r->n_values > MAX_VALUES)
        return oq_fail(r->env, OQ_E_FORMAT, "%s: more than %d values after expanding aliases", r->source,
                       MAX_VALUES);
    if (!node) {
        *out = oq_json_new_null();
        return *out ? OQ_OK : oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for a value", r->source);
    }
    char word[16];
    const char *tag = core_tag(node, word, sizeof word);
    if (!tag)
        return oq_fail(r->env, OQ_E_FORMAT, "%s: line %d carries a tag that is not read", r->source,
                       line_of(node));
    if (fy_node_is_scalar(node)) return convert_scalar(r, node, tag, out);

    if (depth >= MAX_DEPTH)
        return oq_fail(r->env, OQ_E_FORMAT, "%s: YAML nested more than %d deep", r->source, MAX_DEPTH);
    const bool mapping = fy_node_is_mapping(node);
    *out = mapping ? oq_json_new_object() : oq_json_new_array();
    if (!*out) return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for a value", r->source);
    const oq_status st =
        mapping ? convert_mapping(r, node, depth, *out) : convert_sequence(r, node, depth, *out);
    if (st != OQ_OK) {
        oq_json_free(*out);
        *out = NULL;
    }
    return st;
}

/* libfyaml's first complaint, without its own decoration. */
static oq_status fail_parse(oq_env *env, struct fy_diag *diag, const char *source)
{
    void *at = NULL;
    const struct fy_diag_error *error = fy_diag_errors_iterate(diag, &at);
    if (!error || !error->msg) return oq_fail(env, OQ_E_FORMAT, "%s: not valid YAML", source);
    return oq_fail(env, OQ_E_FORMAT, "%s: not valid YAML at line %d, column %d: %s", source, error->line,
                   error->column, error->msg);
}

/* libfyaml's printer: the library itself never prints. */
static void print_nothing(struct fy_diag *diag, void *user, const char *text, size_t n)
{
    (void)diag, (void)user, (void)text, (void)n;
}

static oq_status parse_documents(reader *r, struct fy_parser *parser, struct fy_diag *diag, oq_json **out)
{
    struct fy_document *document = fy_parse_load_document(parser);
    if (!document) {
        if (fy_diag_got_error(diag)) return fail_parse(r->env, diag, r->source);
        return oq_fail(r->env, OQ_E_FORMAT, "%s: holds no value", r->source);
    }
    r->document = document;
    oq_status st = convert(r, fy_document_root(document), 0, out);
    if (st == OQ_OK) {
        struct fy_document *more = fy_parse_load_document(parser);
        if (more)
            st = oq_fail(r->env, OQ_E_FORMAT, "%s: holds more than one YAML document", r->source);
        else if (fy_diag_got_error(diag))
            st = fail_parse(r->env, diag, r->source);
        fy_parse_document_destroy(parser, more);
    }
    fy_parse_document_destroy(parser, document);
    return st;
}

/* Offset of the first control byte that is neither tab nor line end; n: none. libfyaml lets them through. */
static size_t find_control(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && ((unsigned char)text[i] >= 0x20 || strchr("\t\n\r", text[i])) && text[i] != 0x7f) i++;
    return i;
}

/* Offset of four single quotes in a row; n: none. libfyaml 0.7.12 loses memory over a scalar with two escaped
 * single quotes side by side; nobody needs one, and a stranger's text must not make a long-lived process grow. */
static size_t find_quotes(const char *text, size_t n)
{
    size_t run = 0;
    for (size_t i = 0; i < n; i++) {
        run = text[i] == '\'' ? run + 1 : 0;
        if (run == 4) return i - 3;
    }
    return n;
}

oq_status oq_yaml_parse(oq_env *env, const char *text, size_t n, const char *source, oq_json **out)
{
    *out = NULL;
    if (!oq_utf8_valid(text, n) || memchr(text, '\0', n))
        return oq_fail(env, OQ_E_FORMAT, "%s: not UTF-8 text", source);
    if (find_control(text, n) < n)
        return oq_fail(env, OQ_E_FORMAT, "%s: not valid YAML: control character 0x%02x at byte %zu", source,
                       (unsigned char)text[find_control(text, n)], find_control(text, n));
    if (find_quotes(text, n) < n)
        return oq_fail(env, OQ_E_FORMAT, "%s: four single quotes in a row at byte %zu; use double quotes",
                       source, find_quotes(text, n));
    struct fy_diag_cfg diag_cfg = {.output_fn = print_nothing, .level = FYET_ERROR, .module_mask = ~0u};
    struct fy_diag *diag = fy_diag_create(&diag_cfg);
    if (!diag) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for the YAML reader", source);
    fy_diag_set_collect_errors(diag, true);
    const struct fy_parse_cfg cfg = {.flags = FYPCF_QUIET | FYPCF_DEFAULT_VERSION_1_2 | FYPCF_JSON_NONE,
                                     .diag = diag};
    struct fy_parser *parser = fy_parser_create(&cfg);
    oq_status st = OQ_OK;
    oq_json *json = NULL;
    if (!parser || fy_parser_set_string(parser, text, n) != 0) {
        st = oq_fail(env, OQ_E_NOMEM, "%s: no memory for the YAML reader", source);
    } else {
        reader r = {.env = env, .source = source};
        st = parse_documents(&r, parser, diag, &json);
    }
    fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    if (st == OQ_OK)
        *out = json;
    else
        oq_json_free(json);
    return st;
}
