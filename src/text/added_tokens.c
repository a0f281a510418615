/* added_tokens.c -- a trie of the tokens' bytes; at the leftmost place where one matches the longest is
 * taken. */
#include "text/added_tokens.h"

#include "base/unicode.h"

#include <string.h>

enum { MAX_TOKEN_BYTES = 1024, MAX_NODES = 1 << 22 };

typedef struct node {
    uint32_t child, sibling; /* 0: none */
    int32_t token;           /* index of the token that ends here; -1 */
    uint8_t byte;
} node;

typedef struct token {
    int32_t id;
    bool single_word, left_strip, right_strip;
} token;

struct oq_token_trie {
    node *nodes; /* nodes[0] is the root */
    size_t n_nodes, nodes_capacity;
    token *tokens;
    size_t n_tokens;
    uint32_t first[256]; /* children of the root */
};

/* ---- building ------------------------------------------------------------------------------------------ */

static void trie_free(oq_env *env, oq_token_trie *trie)
{
    if (!trie) return;
    oq_free(env, trie->tokens);
    oq_free(env, trie->nodes);
    oq_free(env, trie);
}

static oq_status new_node(oq_env *env, oq_token_trie *t, uint8_t byte, uint32_t *out)
{
    if (t->n_nodes == MAX_NODES)
        return oq_fail(env, OQ_E_UNSUPPORTED, "tokenizer: the added tokens hold more than %d bytes",
                       MAX_NODES);
    if (t->n_nodes == t->nodes_capacity) {
        const size_t capacity = t->nodes_capacity ? t->nodes_capacity * 2 : 256;
        node *grown = NULL;
        OQ_TRY(oq_new(env, capacity, sizeof *grown, "added tokens", &grown));
        if (t->n_nodes) memcpy(grown, t->nodes, t->n_nodes * sizeof *grown);
        oq_free(env, t->nodes);
        t->nodes = grown;
        t->nodes_capacity = capacity;
    }
    *out = (uint32_t)t->n_nodes;
    t->nodes[t->n_nodes++] = (node){.token = -1, .byte = byte};
    return OQ_OK;
}

static oq_status trie_new(oq_env *env, size_t max_tokens, oq_token_trie **out)
{
    uint32_t root = 0;
    OQ_TRY(oq_new(env, 1, sizeof **out, "added tokens", out));
    OQ_TRY(oq_new(env, max_tokens, sizeof *(*out)->tokens, "added tokens", &(*out)->tokens));
    return new_node(env, *out, 0, &root);
}

static uint32_t find_child(const oq_token_trie *t, uint32_t parent, uint8_t byte)
{
    if (parent == 0) return t->first[byte];
    uint32_t child = t->nodes[parent].child;
    while (child && t->nodes[child].byte != byte) child = t->nodes[child].sibling;
    return child;
}

static oq_status trie_add(oq_env *env, oq_token_trie *t, const char *text, size_t n, token added)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)text[i];
        uint32_t child = find_child(t, at, byte);
        if (!child) {
            OQ_TRY(new_node(env, t, byte, &child));
            if (at == 0) {
                t->first[byte] = child;
            } else {
                t->nodes[child].sibling = t->nodes[at].child;
                t->nodes[at].child = child;
            }
        }
        at = child;
    }
    t->nodes[at].token = (int32_t)t->n_tokens;
    t->tokens[t->n_tokens++] = added;
    return OQ_OK;
}

static oq_status add_to_vocab(oq_env *env, const oq_tokenizer_file *file, const char *content, int64_t id,
                              oq_vocab *vocab)
{
    const int32_t known = oq_vocab_find(vocab, content, strlen(content));
    if (known < 0) return oq_vocab_add(env, vocab, file->path, content, strlen(content), id);
    if (known == id) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "%s: the added token '%s' has id %lld, the vocabulary gives it %d",
                   file->path, content, (long long)id, known);
}

static oq_status parse_token(oq_env *env, const oq_tokenizer_file *file, const oq_json *entry, size_t index,
                             const oq_normalizer *normalizer, oq_vocab *vocab, oq_added_tokens *out)
{
    const char *content = oq_json_string(oq_json_get(entry, "content"));
    const oq_json *id = oq_json_get(entry, "id");
    if (!content || !oq_json_is_int(id))
        return oq_fail(env, OQ_E_FORMAT, "%s: the added token %zu has no content or no id", file->path,
                       index);
    const size_t n = strlen(content);
    if (n > MAX_TOKEN_BYTES)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: the added token %zu has %zu bytes, at most %d are read",
                       file->path, index, n, MAX_TOKEN_BYTES);
    bool special = false, normalized = false;
    token added = {0};
    OQ_TRY(oq_component_flag(env, file, entry, "added token", "single_word", false, &added.single_word));
    OQ_TRY(oq_component_flag(env, file, entry, "added token", "lstrip", false, &added.left_strip));
    OQ_TRY(oq_component_flag(env, file, entry, "added token", "rstrip", false, &added.right_strip));
    OQ_TRY(oq_component_flag(env, file, entry, "added token", "special", false, &special));
    OQ_TRY(oq_component_flag(env, file, entry, "added token", "normalized", !special, &normalized));
    OQ_TRY(add_to_vocab(env, file, content, oq_json_int(id, -1), vocab));
    added.id = (int32_t)oq_json_int(id, -1);
    if (n == 0) return OQ_OK; /* has an id, is never found in a text */
    if (!normalized) return trie_add(env, out->raw, content, n, added);
    char *text = NULL;
    size_t text_n = 0;
    OQ_TRY(oq_normalizer_run(env, normalizer, content, n, &text, &text_n));
    const oq_status st = text_n ? trie_add(env, out->normalized, text, text_n, added) : OQ_OK;
    oq_free(env, text);
    return st;
}

oq_status oq_added_tokens_parse(oq_env *env, const oq_tokenizer_file *file, const oq_normalizer *normalizer,
                                oq_vocab *vocab, oq_added_tokens *out)
{
    *out = (oq_added_tokens){0};
    const oq_json *list = oq_json_get(file->tree, "added_tokens");
    if (oq_json_type(list) != OQ_JSON_NULL && oq_json_type(list) != OQ_JSON_ARRAY)
        return oq_fail(env, OQ_E_FORMAT, "%s: 'added_tokens' is %s, a list is needed", file->path,
                       oq_json_type_name(list));
    oq_status st = trie_new(env, oq_json_size(list) + 1, &out->raw);
    if (st == OQ_OK) st = trie_new(env, oq_json_size(list) + 1, &out->normalized);
    for (size_t i = 0; st == OQ_OK && i < oq_json_size(list); i++)
        st = parse_token(env, file, oq_json_at(list, i), i, normalizer, vocab, out);
    if (st != OQ_OK) oq_added_tokens_deinit(env, out);
    return st;
}

void oq_added_tokens_deinit(oq_env *env, oq_added_tokens *tokens)
{
    trie_free(env, tokens->normalized);
    trie_free(env, tokens->raw);
    *tokens = (oq_added_tokens){0};
}

/* ---- finding ------------------------------------------------------------------------------------------- */

/* The longest token that begins at text; NULL: none. */
static const token *longest(const oq_token_trie *t, const char *text, size_t n, size_t *length)
{
    const token *found = NULL;
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        at = find_child(t, at, (uint8_t)text[i]);
        if (!at) break;
        if (t->nodes[at].token < 0) continue;
        found = &t->tokens[t->nodes[at].token];
        *length = i + 1;
    }
    return found;
}

/* White space before `at`, not past `low`. */
static size_t strip_left(const char *text, size_t low, size_t at)
{
    while (at > low) {
        size_t begin = at - 1;
        while (begin > low && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
        if (!oq_utf8_is_space(text + begin, at - begin)) break;
        at = begin;
    }
    return at;
}

static size_t strip_right(const char *text, size_t n, size_t at)
{
    while (at < n) {
        size_t end = at + 1;
        while (end < n && ((unsigned char)text[end] & 0xc0) == 0x80) end++;
        if (!oq_utf8_is_space(text + at, end - at)) break;
        at = end;
    }
    return at;
}

static bool stands_alone(const char *text, size_t n, size_t begin, size_t end)
{
    size_t before = begin, after = end + 1;
    while (before > 0 && ((unsigned char)text[--before] & 0xc0) == 0x80) continue;
    while (after < n && ((unsigned char)text[after] & 0xc0) == 0x80) after++;
    return !(begin > 0 && oq_utf8_is_word(text + before, begin - before)) &&
           !(end < n && oq_utf8_is_word(text + end, after - end));
}

/* The next token at or behind walk->search that may stand there. */
static bool find_token(oq_token_walk *w, oq_token_span *out)
{
    while (w->search < w->n) {
        size_t length = 0;
        const token *t = longest(w->trie, w->text + w->search, w->n - w->search, &length);
        if (!t) {
            w->search++;
            continue;
        }
        size_t begin = w->search, end = begin + length;
        w->search = end;
        if (t->single_word && !stands_alone(w->text, w->n, begin, end)) continue;
        if (t->left_strip) begin = strip_left(w->text, w->done, begin);
        if (t->right_strip) end = strip_right(w->text, w->n, end);
        if (end <= w->done) continue; /* white space that the token before took with it */
        *out = (oq_token_span){.begin = begin > w->done ? begin : w->done, .end = end, .id = t->id};
        return true;
    }
    return false;
}

bool oq_token_walk_next(oq_token_walk *w, oq_token_span *out)
{
    if (!w->has_waiting && w->done < w->n) {
        oq_token_span found = {.begin = w->n, .end = w->n, .id = -1};
        w->has_waiting = w->trie && find_token(w, &found);
        w->waiting = found;
        if (found.begin > w->done) {
            *out = (oq_token_span){.begin = w->done, .end = found.begin, .id = -1};
            w->done = found.begin;
            return true;
        }
    }
    if (!w->has_waiting) return false;
    *out = w->waiting;
    w->done = w->waiting.end;
    w->has_waiting = false;
    return true;
}
