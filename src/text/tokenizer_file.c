/* tokenizer_file.c -- finds model.vocab and model.merges in the text and parses the rest as a tree: the two
 * may hold hundreds of thousands of values, which their model's own file reads without one. */
#include "text/tokenizer_file.h"

#include "base/file.h"
#include "base/unicode.h"
#include "text/json_scan.h"
#include "text/sentencepiece.h"

#include <string.h>

enum { MAX_BYTES = 128 << 20, MAX_TREE_BYTES = 16 << 20, T5_EXTRA_IDS = 100, MAX_EXTRA_IDS = 10000 };

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

/* ---- opening ------------------------------------------------------------------------------------------- */

/* file->path and file->text are set: the rest, or all of it undone. */
static oq_status finish_open(oq_env *env, oq_tokenizer_file *file, oq_status st)
{
    if (st == OQ_OK && (!file->path || !file->text)) st = oq_fail(env, OQ_E_NOMEM, "tokenizer: no memory");
    if (st == OQ_OK) st = take_apart(env, file);
    if (st != OQ_OK) oq_tokenizer_file_deinit(env, file);
    return st;
}

static void take_text(oq_tokenizer_file *file, oq_strbuf *text)
{
    file->n = text->size;
    file->text = oq_strbuf_take(text);
}

/* tokenizer_config.json of the folder; *out NULL if there is none. */
static oq_status read_config(oq_env *env, const char *folder, oq_json **out)
{
    char *path = oq_path_join(env, folder, "tokenizer_config.json");
    *out = NULL;
    if (!path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", folder);
    const oq_status st = oq_file_exists(path) ? oq_json_parse_file(env, path, MAX_TREE_BYTES, out) : OQ_OK;
    oq_free(env, path);
    return st;
}

static oq_status open_sentencepiece(oq_env *env, oq_tokenizer_file *file)
{
    char *bytes = NULL, *folder = oq_path_folder(env, file->path);
    size_t n = 0;
    oq_json *config = NULL;
    oq_strbuf text;
    oq_strbuf_init(&text, env);
    oq_status st = folder ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", file->path);
    if (st == OQ_OK) st = read_config(env, folder, &config);
    if (st == OQ_OK) st = oq_file_read_fetched(env, file->path, MAX_BYTES, &bytes, &n);
    int64_t extra = oq_json_int(oq_json_get(config, "extra_ids"), T5_EXTRA_IDS);
    if (extra < 0 || extra > MAX_EXTRA_IDS) extra = T5_EXTRA_IDS;
    if (st == OQ_OK)
        st = oq_sentencepiece_to_json(env, file->path, (const uint8_t *)bytes, n, (int)extra, &text);
    if (st == OQ_OK) take_text(file, &text);
    oq_strbuf_deinit(&text);
    oq_json_free(config);
    oq_free(env, bytes);
    oq_free(env, folder);
    return st;
}

static oq_status open_vocab_merges(oq_env *env, const char *folder, const char *merges_path,
                                   oq_tokenizer_file *file)
{
    char *vocab = NULL, *merges = NULL;
    size_t n = 0;
    oq_json *config = NULL;
    oq_strbuf text;
    oq_strbuf_init(&text, env);
    oq_status st = read_config(env, folder, &config);
    if (st == OQ_OK) st = oq_file_read_fetched(env, file->path, MAX_BYTES, &vocab, &n);
    if (st == OQ_OK) st = oq_file_read_fetched(env, merges_path, MAX_BYTES, &merges, &n);
    if (st == OQ_OK) st = oq_vocab_merges_to_json(env, folder, vocab, merges, config, &text);
    if (st == OQ_OK) take_text(file, &text);
    oq_strbuf_deinit(&text);
    oq_json_free(config);
    oq_free(env, merges);
    oq_free(env, vocab);
    return st;
}

/* The first of the names that the folder holds, as a path; NULL: none, or no memory. */
static char *find_in_folder(oq_env *env, const char *folder, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *path = oq_path_join(env, folder, names[i]);
        if (path && oq_file_exists(path)) return path;
        oq_free(env, path);
    }
    return NULL;
}

static oq_status open_folder(oq_env *env, const char *folder, oq_tokenizer_file *file)
{
    static const char *const whole[] = {"tokenizer.json"}, *const vocab[] = {"vocab.json"},
                             *const merges[] = {"merges.txt"},
                             *const models[] = {"spiece.model", "sentencepiece.model", "tokenizer.model"};
    file->path = find_in_folder(env, folder, whole, OQ_COUNT(whole));
    if (file->path) return oq_file_read_fetched(env, file->path, MAX_BYTES, &file->text, &file->n);
    file->path = find_in_folder(env, folder, models, OQ_COUNT(models));
    if (file->path) return open_sentencepiece(env, file);
    file->path = find_in_folder(env, folder, vocab, OQ_COUNT(vocab));
    char *second = find_in_folder(env, folder, merges, OQ_COUNT(merges));
    oq_status st = OQ_OK;
    if (file->path && second) {
        st = open_vocab_merges(env, folder, second, file);
    } else { /* the sentence names the file that is looked for first */
        oq_free(env, file->path);
        file->path = oq_path_join(env, folder, whole[0]);
        st = file->path ? oq_file_read_fetched(env, file->path, MAX_BYTES, &file->text, &file->n) : OQ_OK;
    }
    oq_free(env, second);
    return st;
}

oq_status oq_tokenizer_file_open(oq_env *env, const char *path, oq_tokenizer_file *out)
{
    const size_t n = strlen(path);
    *out = (oq_tokenizer_file){0};
    if (oq_file_is_dir(path)) return finish_open(env, out, open_folder(env, path, out));
    out->path = oq_strdup(env, path);
    if (!out->path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    if (n > 6 && strcmp(path + n - 6, ".model") == 0)
        return finish_open(env, out, open_sentencepiece(env, out));
    return finish_open(env, out, oq_file_read_fetched(env, path, MAX_BYTES, &out->text, &out->n));
}

oq_status oq_tokenizer_file_parse(oq_env *env, const char *name, const char *text, size_t n,
                                  oq_tokenizer_file *out)
{
    *out = (oq_tokenizer_file){.n = n};
    out->path = oq_strdup(env, name);
    out->text = oq_alloc_raw(env, n + 1);
    if (out->text) {
        memcpy(out->text, text, n);
        out->text[n] = '\0';
    }
    return finish_open(env, out, OQ_OK);
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
