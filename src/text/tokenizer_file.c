/* tokenizer_file.c -- finds model.vocab and model.merges in the text and parses the rest as a tree: the two
 * may hold hundreds of thousands of values, which their model's own file reads without one. */
#include "text/tokenizer_file.h"

#include "base/file.h"
#include "base/unicode.h"
#include "text/json_scan.h"

#include <string.h>

enum { MAX_BYTES = 128 << 20, MAX_TREE_BYTES = 16 << 20 };

typedef struct hole { /* a large value, cut out of the tree's text */
    size_t begin, end;
} hole;

static bool is_key(const char *key, size_t n, const char *wanted)
{
    return n == strlen(wanted) && memcmp(key, wanted, n) == 0;
}

/* One pass over the members of the object at the reader: calls nothing, only tells where values stand. */
static oq_status find_in_model(oq_json_scan *s, hole *vocab, hole *merges)
{
    bool more = !oq_json_scan_empty(s, '}');
    while (more) {
        const char *key = NULL;
        size_t n = 0;
        hole value = {0};
        OQ_TRY(oq_json_scan_string(s, &key, &n));
        hole *target = is_key(key, n, "vocab") ? vocab : is_key(key, n, "merges") ? merges : NULL;
        OQ_TRY(oq_json_scan_expect(s, ':'));
        OQ_TRY(oq_json_scan_skip(s, &value.begin, &value.end));
        if (target && target->end)
            return oq_fail(s->env, OQ_E_FORMAT, "%s: the model has two members '%s'", s->source,
                           target == vocab ? "vocab" : "merges");
        const char first = s->text[value.begin];
        if (target && (first == '{' || first == '[')) *target = value;
        OQ_TRY(oq_json_scan_more(s, '}', &more));
    }
    return OQ_OK;
}

static oq_status find_holes(oq_json_scan *s, hole *vocab, hole *merges)
{
    OQ_TRY(oq_json_scan_expect(s, '{'));
    bool more = !oq_json_scan_empty(s, '}'), seen = false;
    while (more) {
        const char *key = NULL;
        size_t n = 0, begin, end;
        OQ_TRY(oq_json_scan_string(s, &key, &n));
        const bool is_model = is_key(key, n, "model");
        OQ_TRY(oq_json_scan_expect(s, ':'));
        if (is_model && seen) return oq_fail(s->env, OQ_E_FORMAT, "%s: has two members 'model'", s->source);
        if (is_model && oq_json_scan_peek(s) == '{') {
            seen = true;
            OQ_TRY(oq_json_scan_expect(s, '{'));
            OQ_TRY(find_in_model(s, vocab, merges));
        } else {
            OQ_TRY(oq_json_scan_skip(s, &begin, &end));
        }
        OQ_TRY(oq_json_scan_more(s, '}', &more));
    }
    return OQ_OK;
}

/* The text without the holes, parsed strictly. */
static oq_status parse_tree(oq_env *env, oq_tokenizer_file *file, hole a, hole b)
{
    if (a.begin > b.begin) {
        const hole swap = a;
        a = b;
        b = swap;
    }
    const size_t left = file->n - (a.end - a.begin) - (b.end - b.begin);
    if (left > MAX_TREE_BYTES)
        return oq_fail(env, OQ_E_FORMAT, "%s: %zu bytes beside vocabulary and merges, at most %d are read",
                       file->path, left, MAX_TREE_BYTES);
    oq_strbuf buf;
    oq_strbuf_init(&buf, env);
    oq_strbuf_add(&buf, file->text, a.begin);
    if (a.end) oq_strbuf_puts(&buf, "null");
    oq_strbuf_add(&buf, file->text + a.end, b.begin - a.end);
    if (b.end) oq_strbuf_puts(&buf, "null");
    oq_strbuf_add(&buf, file->text + b.end, file->n - b.end);
    oq_status st = oq_strbuf_check(&buf, file->path);
    if (st == OQ_OK) st = oq_json_parse(env, oq_strbuf_text(&buf), buf.size, file->path, &file->tree);
    oq_strbuf_deinit(&buf);
    return st;
}

static oq_status take_apart(oq_env *env, oq_tokenizer_file *file)
{
    hole vocab = {0}, merges = {0};
    if (!oq_utf8_valid(file->text, file->n))
        return oq_fail(env, OQ_E_FORMAT, "%s: is not UTF-8 text", file->path);
    oq_json_scan scan;
    oq_json_scan_init(&scan, env, file->path, file->text, file->n);
    oq_status st = find_holes(&scan, &vocab, &merges);
    oq_json_scan_deinit(&scan);
    if (st == OQ_OK) st = parse_tree(env, file, vocab, merges);
    if (st != OQ_OK) return st;
    if (vocab.end) file->vocab = file->text + vocab.begin;
    if (merges.end) file->merges = file->text + merges.begin;
    file->n_vocab = vocab.end - vocab.begin;
    file->n_merges = merges.end - merges.begin;
    return OQ_OK;
}

oq_status oq_tokenizer_file_open(oq_env *env, const char *path, oq_tokenizer_file *out)
{
    *out = (oq_tokenizer_file){0};
    out->path = oq_file_is_dir(path) ? oq_path_join(env, path, "tokenizer.json") : oq_strdup(env, path);
    if (!out->path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    oq_status st = oq_file_read(env, out->path, MAX_BYTES, &out->text, &out->n);
    if (st == OQ_OK) st = take_apart(env, out);
    if (st != OQ_OK) oq_tokenizer_file_deinit(env, out);
    return st;
}

oq_status oq_tokenizer_file_parse(oq_env *env, const char *name, const char *text, size_t n,
                                  oq_tokenizer_file *out)
{
    *out = (oq_tokenizer_file){.n = n};
    out->path = oq_strdup(env, name);
    out->text = oq_alloc_raw(env, n + 1);
    oq_status st = OQ_OK;
    if (!out->path || !out->text) st = oq_fail(env, OQ_E_NOMEM, "%s: no memory for %zu bytes", name, n);
    if (st == OQ_OK) {
        memcpy(out->text, text, n);
        out->text[n] = '\0';
        st = take_apart(env, out);
    }
    if (st != OQ_OK) oq_tokenizer_file_deinit(env, out);
    return st;
}

void oq_tokenizer_file_deinit(oq_env *env, oq_tokenizer_file *file)
{
    oq_json_free(file->tree);
    oq_free(env, file->text);
    oq_free(env, file->path);
    *file = (oq_tokenizer_file){0};
}

oq_status oq_component_flag(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                            const char *where, const char *key, bool fallback, bool *out)
{
    const oq_json *value = oq_json_get(component, key);
    *out = oq_json_bool(value, fallback);
    if (!value || oq_json_type(value) == OQ_JSON_BOOL || oq_json_type(value) == OQ_JSON_NULL) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "%s: '%s' of the %s is %s, true or false is needed", file->path, key,
                   where, oq_json_type_name(value));
}

const char *oq_component_type(const oq_json *component)
{
    const char *type = oq_json_string(oq_json_get(component, "type"));
    return type ? type : "?";
}

oq_status oq_component_unsupported(oq_env *env, const oq_tokenizer_file *file, const char *where,
                                   const char *type)
{
    return oq_fail(env, OQ_E_UNSUPPORTED, "%s: the %s '%s' is not supported", file->path, where, type);
}

oq_status oq_component_check(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                             const char *where, bool *is_there)
{
    *is_there = oq_json_type(component) != OQ_JSON_NULL;
    if (!*is_there || oq_json_type(component) == OQ_JSON_OBJECT) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "%s: the %s is %s, an object is needed", file->path, where,
                   oq_json_type_name(component));
}
