/* bpe.c -- byte pair encoding: the vocabulary, the merges in order of rank, and the greedy merge of one
 * piece. A piece is a linked list of symbols with a heap of their mergeable pairs, so its cost is n log n at
 * any length. The last symbol of a piece may carry a suffix ("</w>"). Not here: byte fallback, dropout, prefixes
 * (refused by name). */
#include "base/strbuf.h"
#include "base/unicode.h"
#include "text/json_scan.h"
#include "text/text_model.h"

#include <string.h>

#define NONE UINT32_MAX

enum { MAX_SUFFIX_BYTES = 60 };

typedef struct merge {
    int32_t left, right, merged;
} merge;

typedef struct bpe {
    merge *merges; /* by rank */
    size_t n_merges, merges_capacity;
    uint32_t *slots; /* open hash table of rank + 1 by (left, right); 0: free */
    size_t n_slots;
    int32_t byte_ids[256];      /* with byte_level; -1: the vocabulary lacks it */
    int32_t last_byte_ids[256]; /* of a piece's last byte, which carries the suffix */
    char *suffix;               /* NULL: none */
    int32_t unknown;            /* -1: none */
    bool byte_level, fuse_unknown, ignore_merges;
} bpe;

void oq_byte_spelling(unsigned char byte, char out[3])
{
    /* Printable Latin-1 stands for itself; the others take the code points from U+0100 on, in order. */
    unsigned code = byte;
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    if (!printable) code = 0x100u + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7fu + 0x21u : 0x43u);
    out[0] = (char)(code < 0x80 ? code : 0xc0 | code >> 6);
    out[1] = (char)(code < 0x80 ? 0 : 0x80 | (code & 0x3f));
    out[2] = '\0';
}

/* ---- loading ------------------------------------------------------------------------------------------- */

/* Numbers do not touch the reader's scratch: a piece stays valid until it is copied. */
static oq_status read_vocab(oq_env *env, const oq_tokenizer_file *file, oq_vocab *vocab)
{
    if (!file->vocab || file->vocab[0] != '{')
        return oq_fail(env, OQ_E_FORMAT, "%s: the BPE model has no vocabulary object", file->path);
    /* A piece costs a dozen bytes and more in JSON: a first size that seldom grows. */
    OQ_TRY(oq_vocab_init(env, file->n_vocab / 20, file->n_vocab / 2, vocab));
    oq_json_scan scan;
    oq_json_scan_init(&scan, env, file->path, file->text, (size_t)(file->vocab - file->text) + file->n_vocab);
    scan.at = (size_t)(file->vocab - file->text);
    oq_status st = oq_json_scan_expect(&scan, '{');
    bool more = st == OQ_OK && !oq_json_scan_empty(&scan, '}');
    while (st == OQ_OK && more) {
        const char *piece = NULL;
        size_t n = 0;
        int64_t id = 0;
        st = oq_json_scan_string(&scan, &piece, &n);
        if (st == OQ_OK) st = oq_json_scan_expect(&scan, ':');
        if (st == OQ_OK) st = oq_json_scan_int(&scan, &id);
        if (st == OQ_OK) st = oq_vocab_add(env, vocab, file->path, piece, n, id);
        if (st == OQ_OK) st = oq_json_scan_more(&scan, '}', &more);
    }
    oq_json_scan_deinit(&scan);
    return st;
}

static oq_status push_merge(oq_env *env, bpe *b, merge m)
{
    if (b->n_merges == b->merges_capacity) {
        const size_t capacity = b->merges_capacity ? b->merges_capacity * 2 : 1024;
        merge *grown = NULL;
        OQ_TRY(oq_new(env, capacity, sizeof *grown, "merges", &grown));
        if (b->n_merges) memcpy(grown, b->merges, b->n_merges * sizeof *grown);
        oq_free(env, b->merges);
        b->merges = grown;
        b->merges_capacity = capacity;
    }
    b->merges[b->n_merges++] = m;
    return OQ_OK;
}

typedef struct merge_reader {
    oq_json_scan scan;
    const oq_vocab *vocab;
    oq_strbuf joined;
    size_t rank;
} merge_reader;

static oq_status find_part(merge_reader *r, const char *part, size_t n, int32_t *out)
{
    *out = oq_vocab_find(r->vocab, part, n);
    if (*out >= 0) return OQ_OK;
    return oq_fail(r->scan.env, OQ_E_FORMAT,
                   "%s: merge %zu uses the piece '%.*s', which the vocabulary lacks", r->scan.source, r->rank,
                   (int)(n < 64 ? n : 64), part);
}

/* "a b": one space between the parts. */
static oq_status read_joined_pair(merge_reader *r, merge *out)
{
    const char *text = NULL;
    size_t n = 0;
    OQ_TRY(oq_json_scan_string(&r->scan, &text, &n));
    const char *space = memchr(text, ' ', n);
    const size_t left = space ? (size_t)(space - text) : 0;
    if (!space || memchr(space + 1, ' ', n - left - 1))
        return oq_fail(r->scan.env, OQ_E_FORMAT,
                       "%s: merge %zu is '%.*s', two pieces with one space are needed", r->scan.source,
                       r->rank, (int)(n < 64 ? n : 64), text);
    OQ_TRY(find_part(r, text, left, &out->left));
    return find_part(r, space + 1, n - left - 1, &out->right);
}

/* ["a", "b"] */
static oq_status read_listed_pair(merge_reader *r, merge *out)
{
    const char *part = NULL;
    size_t n = 0;
    OQ_TRY(oq_json_scan_expect(&r->scan, '['));
    OQ_TRY(oq_json_scan_string(&r->scan, &part, &n));
    OQ_TRY(find_part(r, part, n, &out->left));
    OQ_TRY(oq_json_scan_expect(&r->scan, ','));
    OQ_TRY(oq_json_scan_string(&r->scan, &part, &n));
    OQ_TRY(find_part(r, part, n, &out->right));
    return oq_json_scan_expect(&r->scan, ']');
}

static oq_status read_merge(merge_reader *r, merge *out)
{
    if (oq_json_scan_peek(&r->scan) == '[')
        OQ_TRY(read_listed_pair(r, out));
    else
        OQ_TRY(read_joined_pair(r, out));
    size_t n_left = 0, n_right = 0;
    const char *left = oq_vocab_piece(r->vocab, out->left, &n_left);
    const char *right = oq_vocab_piece(r->vocab, out->right, &n_right);
    oq_strbuf_clear(&r->joined);
    oq_strbuf_add(&r->joined, left, n_left);
    oq_strbuf_add(&r->joined, right, n_right);
    OQ_TRY(oq_strbuf_check(&r->joined, r->scan.source));
    return find_part(r, oq_strbuf_text(&r->joined), r->joined.size, &out->merged);
}

static oq_status read_merges(oq_env *env, const oq_tokenizer_file *file, const oq_vocab *vocab, bpe *b)
{
    if (!file->merges || file->merges[0] != '[')
        return oq_fail(env, OQ_E_FORMAT, "%s: the BPE model has no list of merges", file->path);
    merge_reader r = {.vocab = vocab};
    oq_json_scan_init(&r.scan, env, file->path, file->text,
                      (size_t)(file->merges - file->text) + file->n_merges);
    oq_strbuf_init(&r.joined, env);
    r.scan.at = (size_t)(file->merges - file->text);
    oq_status st = oq_json_scan_expect(&r.scan, '[');
    bool more = st == OQ_OK && !oq_json_scan_empty(&r.scan, ']');
    for (; st == OQ_OK && more; r.rank++) {
        merge m = {0};
        st = read_merge(&r, &m);
        if (st == OQ_OK) st = push_merge(env, b, m);
        if (st == OQ_OK) st = oq_json_scan_more(&r.scan, ']', &more);
    }
    oq_strbuf_deinit(&r.joined);
    oq_json_scan_deinit(&r.scan);
    return st;
}

/* The slot of a pair, or the free one where it belongs. */
static size_t find_slot(const bpe *b, int32_t left, int32_t right)
{
    size_t at = oq_hash_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & (b->n_slots - 1);
    for (; b->slots[at]; at = (at + 1) & (b->n_slots - 1)) {
        const merge *m = &b->merges[b->slots[at] - 1];
        if (m->left == left && m->right == right) break;
    }
    return at;
}

/* Of a pair that is listed twice the later rank counts, as in the original implementation. */
static oq_status index_merges(oq_env *env, bpe *b)
{
    if (b->n_merges >= OQ_VOCAB_MAX_IDS * 2u)
        return oq_fail(env, OQ_E_FORMAT, "tokenizer: %zu merges, at most %u are read", b->n_merges,
                       OQ_VOCAB_MAX_IDS * 2u);
    for (b->n_slots = 16; b->n_slots < b->n_merges * 2;) b->n_slots *= 2;
    OQ_TRY(oq_new(env, b->n_slots, sizeof *b->slots, "merges", &b->slots));
    for (uint32_t rank = 0; rank < b->n_merges; rank++)
        b->slots[find_slot(b, b->merges[rank].left, b->merges[rank].right)] = rank + 1;
    return OQ_OK;
}

/* What would change the result and is not here must be off. */
static oq_status check_off(oq_env *env, const oq_tokenizer_file *file, const oq_json *model)
{
    const oq_json *prefix = oq_json_get(model, "continuing_subword_prefix");
    const char *text = oq_json_string(prefix);
    if (oq_json_type(prefix) != OQ_JSON_NULL && !(text && text[0] == '\0'))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "%s: 'continuing_subword_prefix' of the BPE model is not supported", file->path);
    bool byte_fallback = false;
    OQ_TRY(oq_component_flag(env, file, model, "BPE model", "byte_fallback", false, &byte_fallback));
    if (byte_fallback)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: 'byte_fallback' of the BPE model is not supported",
                       file->path);
    const oq_json *dropout = oq_json_get(model, "dropout");
    if (oq_json_type(dropout) != OQ_JSON_NULL && !(oq_json_real(dropout, 1) <= 0))
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: 'dropout' of the BPE model is not supported", file->path);
    return OQ_OK;
}

static oq_status read_suffix(oq_env *env, const oq_tokenizer_file *file, const oq_json *model, bpe *b)
{
    const oq_json *value = oq_json_get(model, "end_of_word_suffix");
    const char *text = oq_json_string(value);
    if (!text && oq_json_type(value) != OQ_JSON_NULL)
        return oq_fail(env, OQ_E_FORMAT,
                       "%s: 'end_of_word_suffix' of the BPE model is %s, a string is needed", file->path,
                       oq_json_type_name(value));
    if (!text || !text[0]) return OQ_OK;
    if (strlen(text) > MAX_SUFFIX_BYTES)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: 'end_of_word_suffix' has %zu bytes, at most %d are read",
                       file->path, strlen(text), MAX_SUFFIX_BYTES);
    b->suffix = oq_strdup(env, text);
    return b->suffix ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", file->path);
}

/* The id of n <= 4 bytes of spelling with the suffix behind them; -1: none. */
static int32_t find_last(const bpe *b, const oq_vocab *vocab, const char *spelling, size_t n)
{
    char word[MAX_SUFFIX_BYTES + 4];
    if (!b->suffix) return oq_vocab_find(vocab, spelling, n);
    const size_t more = strlen(b->suffix);
    memcpy(word, spelling, n);
    memcpy(word + n, b->suffix, more);
    return oq_vocab_find(vocab, word, n + more);
}

static oq_status init(oq_env *env, const oq_text_model_setup *setup, oq_vocab *vocab, void *self)
{
    bpe *b = self;
    const oq_tokenizer_file *file = setup->file;
    const oq_json *model = oq_json_get(file->tree, "model");
    OQ_TRY(check_off(env, file, model));
    OQ_TRY(oq_component_flag(env, file, model, "BPE model", "fuse_unk", false, &b->fuse_unknown));
    OQ_TRY(oq_component_flag(env, file, model, "BPE model", "ignore_merges", false, &b->ignore_merges));
    OQ_TRY(read_suffix(env, file, model, b));
    OQ_TRY(read_vocab(env, file, vocab));
    OQ_TRY(read_merges(env, file, vocab, b));
    OQ_TRY(index_merges(env, b));
    const char *unknown = oq_json_string(oq_json_get(model, "unk_token"));
    b->unknown = unknown ? oq_vocab_find(vocab, unknown, strlen(unknown)) : -1;
    b->byte_level = setup->byte_level;
    for (int i = 0; i < 256; i++) {
        char spelling[3];
        oq_byte_spelling((unsigned char)i, spelling);
        b->byte_ids[i] = oq_vocab_find(vocab, spelling, strlen(spelling));
        b->last_byte_ids[i] = find_last(b, vocab, spelling, strlen(spelling));
    }
    return OQ_OK;
}

static void deinit(oq_env *env, void *self)
{
    bpe *b = self;
    oq_free(env, b->suffix);
    oq_free(env, b->slots);
    oq_free(env, b->merges);
    *b = (bpe){0};
}

/* ---- one piece ----------------------------------------------------------------------------------------- */

typedef struct symbol {
    int32_t id;
    uint32_t previous, next; /* NONE at the ends */
    uint32_t rank;           /* of the pair (this, next); NONE: no merge, or this symbol is gone */
} symbol;

/* Pairs by (rank, position), the smallest first: the leftmost of the most frequent. */
typedef struct pair_heap {
    uint64_t *keys;
    size_t n;
} pair_heap;

static void heap_push(pair_heap *h, uint64_t key)
{
    size_t at = h->n++;
    for (; at && h->keys[(at - 1) / 2] > key; at = (at - 1) / 2) h->keys[at] = h->keys[(at - 1) / 2];
    h->keys[at] = key;
}

static uint64_t heap_pop(pair_heap *h)
{
    const uint64_t top = h->keys[0], last = h->keys[--h->n];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child]) child++;
        if (h->keys[child] >= last) break;
        h->keys[at] = h->keys[child];
    }
    if (h->n) h->keys[at] = last;
    return top;
}

static void rank_pair(const bpe *b, symbol *symbols, uint32_t at, pair_heap *heap)
{
    symbol *s = &symbols[at];
    s->rank = s->next == NONE
                  ? NONE
                  : b->slots[find_slot(b, s->id, symbols[s->next].id)] - 1; /* free: 0 - 1 = NONE */
    if (s->rank != NONE) heap_push(heap, (uint64_t)s->rank << 32 | at);
}

static void merge_symbols(const bpe *b, symbol *symbols, uint32_t n, pair_heap *heap)
{
    for (uint32_t i = 0; i < n; i++) rank_pair(b, symbols, i, heap);
    while (heap->n) {
        const uint64_t key = heap_pop(heap);
        const uint32_t at = (uint32_t)key, rank = (uint32_t)(key >> 32);
        symbol *s = &symbols[at];
        if (s->rank != rank) continue; /* one of the pair was merged meanwhile */
        symbol *gone = &symbols[s->next];
        s->id = b->merges[rank].merged;
        s->next = gone->next;
        gone->rank = NONE;
        if (s->next != NONE) symbols[s->next].previous = at;
        if (s->previous != NONE) rank_pair(b, symbols, s->previous, heap);
        rank_pair(b, symbols, at, heap);
    }
}

static int32_t find_symbol(const bpe *b, const oq_vocab *vocab, const char *bytes, size_t n, bool is_last)
{
    const unsigned char first = (unsigned char)bytes[0];
    if (b->byte_level) return is_last ? b->last_byte_ids[first] : b->byte_ids[first];
    return is_last ? find_last(b, vocab, bytes, n) : oq_vocab_find(vocab, bytes, n);
}

/* The piece's bytes or characters as symbols; *count of them. */
static oq_status split_symbols(const bpe *b, const oq_vocab *vocab, const char *piece, size_t n,
                               symbol *symbols, uint32_t *count, oq_env *env)
{
    uint32_t used = 0;
    bool after_unknown = false;
    for (size_t i = 0, step; i < n; i += step) {
        const unsigned char first = (unsigned char)piece[i];
        step = b->byte_level ? 1 : oq_utf8_length(piece + i);
        int32_t id = find_symbol(b, vocab, piece + i, step, i + step == n);
        const bool unknown = id < 0;
        if (unknown && b->unknown < 0)
            return oq_fail(env, OQ_E_UNSUPPORTED, "tokenizer: the vocabulary has no piece for byte 0x%02x",
                           first);
        if (unknown) id = b->unknown;
        if (!(unknown && after_unknown && b->fuse_unknown))
            symbols[used] = (symbol){.id = id, .previous = used ? used - 1 : NONE, .next = used + 1}, used++;
        after_unknown = unknown;
    }
    symbols[used - 1].next = NONE;
    *count = used;
    return OQ_OK;
}

/* With ignore_merges: the id of a piece that the vocabulary holds as a whole, else -1. */
static int32_t find_whole(const bpe *b, const oq_vocab *vocab, const char *piece, size_t n, char *buffer)
{
    if (!b->byte_level) return oq_vocab_find(vocab, piece, n);
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        char spelling[3];
        oq_byte_spelling((unsigned char)piece[i], spelling);
        for (const char *p = spelling; *p; p++) buffer[used++] = *p;
    }
    return oq_vocab_find(vocab, buffer, used);
}

static oq_status encode(const void *self, const oq_vocab *vocab, const char *piece, size_t n,
                        oq_text_work *work)
{
    const bpe *b = self;
    OQ_TRY(oq_text_work_reserve(work, n * (sizeof(symbol) + 3 * sizeof(uint64_t))));
    if (b->ignore_merges) {
        const int32_t id = find_whole(b, vocab, piece, n, work->scratch);
        if (id >= 0) return oq_text_work_push(work, id);
    }
    /* Every merge ends one symbol and makes two pairs at most: n + 2 n keys. */
    pair_heap heap = {.keys = work->scratch};
    symbol *symbols = (symbol *)(heap.keys + 3 * n);
    uint32_t count = 0;
    OQ_TRY(split_symbols(b, vocab, piece, n, symbols, &count, work->env));
    merge_symbols(b, symbols, count, &heap);
    for (uint32_t i = 0; i != NONE; i = symbols[i].next) OQ_TRY(oq_text_work_push(work, symbols[i].id));
    return OQ_OK;
}

const oq_text_model_type oq_text_model_bpe = {
    .name = "BPE",
    .self_bytes = sizeof(bpe),
    .init = init,
    .deinit = deinit,
    .encode = encode,
};
