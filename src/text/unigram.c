/* unigram.c -- SentencePiece's unigram model: the segmentation of a piece whose scores add up to the most (Viterbi).
 * Scores are doubles and ties go to the segment that begins first, as in Hugging Face's tokenizers, so that
 * the ids are theirs. A character that no piece spells costs 10 less than the worst piece; neighbours of that
 * kind are one unknown token. */
#include "base/unicode.h"
#include "text/json_scan.h"
#include "text/text_model.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PIECE_BYTES = 1024, MAX_NODES = 1 << 26 };

static const double UNKNOWN_PENALTY = 10;

typedef struct trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t id;              /* of the piece that ends here; -1 */
    uint8_t byte;
} trie_node;

typedef struct unigram {
    double *scores; /* by id */
    size_t n_scores, scores_capacity;
    trie_node *nodes; /* nodes[0] is the root */
    size_t n_nodes, nodes_capacity;
    uint32_t first[256]; /* children of the root */
    double unknown_score;
    int32_t unknown;       /* -1: none */
    int32_t byte_ids[256]; /* byte_fallback: ids of <0x00> to <0xFF> */
    bool byte_fallback;
} unigram;

/* ---- loading ------------------------------------------------------------------------------------------- */

static oq_status push_score(oq_env *env, unigram *u, double score)
{
    if (u->n_scores == u->scores_capacity) {
        const size_t capacity = u->scores_capacity ? u->scores_capacity * 2 : 1024;
        double *grown = NULL;
        OQ_TRY(oq_new(env, capacity, sizeof *grown, "scores of the vocabulary", &grown));
        if (u->n_scores) memcpy(grown, u->scores, u->n_scores * sizeof *grown);
        oq_free(env, u->scores);
        u->scores = grown;
        u->scores_capacity = capacity;
    }
    u->scores[u->n_scores++] = score;
    return OQ_OK;
}

static oq_status new_node(oq_env *env, unigram *u, uint8_t byte, uint32_t *out)
{
    if (u->n_nodes == MAX_NODES)
        return oq_fail(env, OQ_E_UNSUPPORTED, "tokenizer: the pieces hold more than %d bytes", MAX_NODES);
    if (u->n_nodes == u->nodes_capacity) {
        const size_t capacity = u->nodes_capacity ? u->nodes_capacity * 2 : 4096;
        trie_node *grown = oq_alloc_raw(env, capacity * sizeof *grown);
        if (!grown)
            return oq_fail(env, OQ_E_NOMEM, "tokenizer: no memory for %zu bytes", capacity * sizeof *grown);
        if (u->n_nodes) memcpy(grown, u->nodes, u->n_nodes * sizeof *grown);
        oq_free(env, u->nodes);
        u->nodes = grown;
        u->nodes_capacity = capacity;
    }
    *out = (uint32_t)u->n_nodes;
    u->nodes[u->n_nodes++] = (trie_node){.id = -1, .byte = byte};
    return OQ_OK;
}

static uint32_t find_child(const unigram *u, uint32_t parent, uint8_t byte)
{
    if (parent == 0) return u->first[byte];
    uint32_t child = u->nodes[parent].child;
    while (child && u->nodes[child].byte != byte) child = u->nodes[child].sibling;
    return child;
}

static oq_status add_to_trie(oq_env *env, unigram *u, const char *piece, size_t n, int32_t id)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)piece[i];
        uint32_t child = find_child(u, at, byte);
        if (!child) {
            OQ_TRY(new_node(env, u, byte, &child));
            if (at == 0) {
                u->first[byte] = child;
            } else {
                u->nodes[child].sibling = u->nodes[at].child;
                u->nodes[at].child = child;
            }
        }
        at = child;
    }
    if (n) u->nodes[at].id = id;
    return OQ_OK;
}

/* ["piece", score] */
static oq_status read_entry(oq_json_scan *scan, oq_vocab *vocab, unigram *u)
{
    const char *piece = NULL;
    size_t n = 0;
    double score = 0;
    const int64_t id = (int64_t)u->n_scores;
    OQ_TRY(oq_json_scan_expect(scan, '['));
    OQ_TRY(oq_json_scan_string(scan, &piece, &n));
    if (n > MAX_PIECE_BYTES)
        return oq_fail(scan->env, OQ_E_UNSUPPORTED, "%s: piece %lld has %zu bytes, at most %d are read",
                       scan->source, (long long)id, n, MAX_PIECE_BYTES);
    OQ_TRY(oq_vocab_add(scan->env, vocab, scan->source, piece, n, id));
    OQ_TRY(add_to_trie(scan->env, u, piece, n, (int32_t)id));
    OQ_TRY(oq_json_scan_expect(scan, ','));
    OQ_TRY(oq_json_scan_real(scan, &score));
    OQ_TRY(push_score(scan->env, u, score));
    return oq_json_scan_expect(scan, ']');
}

static oq_status read_entries(oq_env *env, const oq_tokenizer_file *file, oq_vocab *vocab, unigram *u)
{
    uint32_t root = 0;
    if (!file->vocab || file->vocab[0] != '[')
        return oq_fail(env, OQ_E_FORMAT, "%s: the Unigram model has no list of pieces", file->path);
    OQ_TRY(oq_vocab_init(env, file->n_vocab / 30, file->n_vocab / 3, vocab));
    OQ_TRY(new_node(env, u, 0, &root));
    oq_json_scan scan;
    oq_json_scan_init(&scan, env, file->path, file->text, (size_t)(file->vocab - file->text) + file->n_vocab);
    scan.at = (size_t)(file->vocab - file->text);
    oq_status st = oq_json_scan_expect(&scan, '[');
    bool more = st == OQ_OK && !oq_json_scan_empty(&scan, ']');
    while (st == OQ_OK && more) {
        st = read_entry(&scan, vocab, u);
        if (st == OQ_OK) st = oq_json_scan_more(&scan, ']', &more);
    }
    oq_json_scan_deinit(&scan);
    return st;
}

static oq_status find_unknown(oq_env *env, const oq_tokenizer_file *file, const oq_json *model, unigram *u)
{
    const oq_json *id = oq_json_get(model, "unk_id");
    u->unknown = -1;
    if (oq_json_type(id) == OQ_JSON_NULL) return OQ_OK;
    if (!oq_json_is_int(id) || oq_json_int(id, -1) < 0 || (uint64_t)oq_json_int(id, -1) >= u->n_scores)
        return oq_fail(env, OQ_E_FORMAT, "%s: 'unk_id' of the Unigram model is none of its %zu pieces",
                       file->path, u->n_scores);
    u->unknown = (int32_t)oq_json_int(id, -1);
    return OQ_OK;
}

/* Used only if all 256 bytes have a piece: a text is spelled whole or not at all. */
static void find_bytes(const oq_vocab *vocab, unigram *u)
{
    for (int i = 0; i < 256; i++) {
        char piece[8];
        snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)i);
        u->byte_ids[i] = oq_vocab_find(vocab, piece, strlen(piece));
    }
}

static oq_status init(oq_env *env, const oq_text_model_setup *setup, oq_vocab *vocab, void *self)
{
    unigram *u = self;
    const oq_json *model = oq_json_get(setup->file->tree, "model");
    if (setup->byte_level)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: a Unigram model behind ByteLevel is not supported",
                       setup->file->path);
    OQ_TRY(oq_component_flag(env, setup->file, model, "Unigram model", "byte_fallback", false,
                             &u->byte_fallback));
    OQ_TRY(read_entries(env, setup->file, vocab, u));
    OQ_TRY(find_unknown(env, setup->file, model, u));
    find_bytes(vocab, u);
    double worst = 0;
    for (size_t i = 0; i < u->n_scores; i++)
        if (i == 0 || u->scores[i] < worst) worst = u->scores[i];
    u->unknown_score = worst - UNKNOWN_PENALTY;
    return OQ_OK;
}

static void deinit(oq_env *env, void *self)
{
    unigram *u = self;
    oq_free(env, u->nodes);
    oq_free(env, u->scores);
    *u = (unigram){0};
}

/* ---- one piece ----------------------------------------------------------------------------------------- */

typedef struct best_node { /* of the segmentations that end at a byte */
    double score;
    uint32_t begin; /* of the last segment */
    int32_t id;     /* of the last segment; -1: nothing ends here */
} best_node;

static void offer(best_node *node, double score, size_t begin, int32_t id)
{
    if (node->id >= 0 && !(score > node->score)) return;
    *node = (best_node){.score = score, .begin = (uint32_t)begin, .id = id};
}

/* Every piece that begins at `begin`; false: none is the single character there, and unknown ones are an error. */
static bool extend(const unigram *u, const char *text, size_t n, size_t begin, best_node *best)
{
    const size_t character = oq_utf8_length(text + begin);
    const double so_far = best[begin].score;
    bool has_character = false;
    uint32_t at = 0;
    for (size_t i = begin; i < n; i++) {
        at = find_child(u, at, (uint8_t)text[i]);
        if (!at) break;
        const int32_t id = u->nodes[at].id;
        if (id < 0) continue;
        offer(&best[i + 1], u->scores[id] + so_far, begin, id);
        if (i + 1 - begin == character) has_character = true;
    }
    if (has_character) return true;
    if (u->unknown >= 0) offer(&best[begin + character], u->unknown_score + so_far, begin, u->unknown);
    return u->unknown >= 0;
}

/* Unknown text as the ids of its bytes; false: some byte has none. */
static oq_status push_unknown(const unigram *u, const char *text, size_t n, oq_text_work *work)
{
    bool spelled = u->byte_fallback;
    for (size_t i = 0; spelled && i < n; i++) spelled = u->byte_ids[(unsigned char)text[i]] >= 0;
    if (!spelled) return oq_text_work_push(work, u->unknown);
    for (size_t i = 0; i < n; i++) OQ_TRY(oq_text_work_push(work, u->byte_ids[(unsigned char)text[i]]));
    return OQ_OK;
}

/* The best path, found from the end, in order: begins of segments are turned into ends. */
static oq_status push_path(const unigram *u, const char *text, size_t n, best_node *best, oq_text_work *work)
{
    uint32_t end = (uint32_t)n;
    for (int32_t id = best[n].id; end > 0;) { /* each node takes the id and end of the segment that follows */
        const uint32_t begin = best[end].begin;
        const int32_t before = best[begin].id;
        best[begin].id = id;
        best[begin].score = (double)end;
        id = before;
        end = begin;
    }
    for (size_t at = 0; at < n;) {
        const size_t begin = at;
        const int32_t id = best[at].id;
        do at = (size_t)best[at].score;
        while (id == u->unknown && at < n && best[at].id == id);
        if (id == u->unknown)
            OQ_TRY(push_unknown(u, text + begin, at - begin, work));
        else
            OQ_TRY(oq_text_work_push(work, id));
    }
    return OQ_OK;
}

static oq_status encode(const void *self, const oq_vocab *vocab, const char *piece, size_t n,
                        oq_text_work *work)
{
    const unigram *u = self;
    (void)vocab;
    OQ_TRY(oq_text_work_reserve(work, (n + 1) * sizeof(best_node)));
    best_node *best = work->scratch;
    for (size_t i = 0; i <= n; i++) best[i] = (best_node){.id = -1};
    for (size_t begin = 0; begin < n; begin += oq_utf8_length(piece + begin))
        if (!extend(u, piece, n, begin, best))
            return oq_fail(work->env, OQ_E_UNSUPPORTED,
                           "tokenizer: the vocabulary has no piece for byte 0x%02x",
                           (unsigned char)piece[begin]);
    return push_path(u, piece, n, best, work);
}

const oq_text_model_type oq_text_model_unigram = {
    .name = "Unigram",
    .self_bytes = sizeof(unigram),
    .init = init,
    .deinit = deinit,
    .encode = encode,
};
