/* vocab.c -- spellings in one block, an open hash table of ids above it. Grows by doubling; never shrinks. */
#include "text/vocab.h"

#include "base/size.h"

#include <string.h>

#define NO_ID UINT32_MAX

uint64_t oq_hash_bytes(const char *bytes, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (; n >= 8; bytes += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        h = oq_hash_mix(h ^ word);
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < n; i++) tail |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
    return oq_hash_mix(h ^ tail);
}

/* A larger block with the old contents; `old_bytes` may be 0. */
static oq_status grow(oq_env *env, void **block, size_t old_bytes, size_t new_bytes)
{
    void *grown = oq_alloc_raw(env, new_bytes);
    if (!grown) return oq_fail(env, OQ_E_NOMEM, "vocabulary: no memory for %zu bytes", new_bytes);
    if (old_bytes) memcpy(grown, *block, old_bytes);
    oq_free(env, *block);
    *block = grown;
    return OQ_OK;
}

static oq_status reserve_ids(oq_env *env, oq_vocab *v, size_t n)
{
    if (n <= v->ids_capacity) return OQ_OK;
    size_t capacity = v->ids_capacity ? v->ids_capacity : 256;
    while (capacity < n) capacity *= 2;
    void *offset = v->offset, *length = v->length;
    oq_status st = grow(env, &offset, v->n_ids * sizeof *v->offset, capacity * sizeof *v->offset);
    v->offset = offset;
    if (st == OQ_OK) st = grow(env, &length, v->n_ids * sizeof *v->length, capacity * sizeof *v->length);
    v->length = length;
    if (st == OQ_OK) v->ids_capacity = capacity;
    return st;
}

static oq_status reserve_bytes(oq_env *env, oq_vocab *v, size_t more)
{
    size_t need;
    if (!oq_size_add(v->n_bytes, more, &need) || need > UINT32_MAX)
        return oq_fail(env, OQ_E_FORMAT, "vocabulary: more than %u bytes of spellings", UINT32_MAX);
    if (need <= v->bytes_capacity) return OQ_OK;
    size_t capacity = v->bytes_capacity ? v->bytes_capacity : 4096;
    while (capacity < need) capacity *= 2;
    void *bytes = v->bytes;
    OQ_TRY(grow(env, &bytes, v->n_bytes, capacity));
    v->bytes = bytes;
    v->bytes_capacity = capacity;
    return OQ_OK;
}

/* The slot that holds the piece, or the free one where it belongs. */
static size_t find_slot(const oq_vocab *v, const char *piece, size_t n)
{
    size_t at = oq_hash_bytes(piece, n) & (v->n_slots - 1);
    for (; v->slots[at]; at = (at + 1) & (v->n_slots - 1)) {
        const uint32_t id = v->slots[at] - 1;
        if (v->length[id] == n && memcmp(v->bytes + v->offset[id], piece, n) == 0) break;
    }
    return at;
}

static oq_status reserve_slots(oq_env *env, oq_vocab *v, size_t pieces)
{
    if (pieces * 2 <= v->n_slots) return OQ_OK;
    size_t n = v->n_slots ? v->n_slots : 1024;
    while (n < pieces * 2) n *= 2;
    uint32_t *slots = NULL;
    OQ_TRY(oq_new(env, n, sizeof *slots, "vocabulary", &slots));
    oq_free(env, v->slots);
    v->slots = slots;
    v->n_slots = n;
    for (uint32_t id = 0; id < v->n_ids; id++)
        if (v->length[id] != NO_ID) slots[find_slot(v, v->bytes + v->offset[id], v->length[id])] = id + 1;
    return OQ_OK;
}

oq_status oq_vocab_init(oq_env *env, size_t expected_pieces, size_t expected_bytes, oq_vocab *out)
{
    *out = (oq_vocab){0};
    if (expected_pieces > OQ_VOCAB_MAX_IDS) expected_pieces = OQ_VOCAB_MAX_IDS;
    oq_status st = reserve_ids(env, out, expected_pieces + 1);
    if (st == OQ_OK) st = reserve_slots(env, out, expected_pieces + 1);
    if (st == OQ_OK) st = reserve_bytes(env, out, expected_bytes);
    if (st != OQ_OK) oq_vocab_deinit(env, out);
    return st;
}

void oq_vocab_deinit(oq_env *env, oq_vocab *vocab)
{
    oq_free(env, vocab->slots);
    oq_free(env, vocab->length);
    oq_free(env, vocab->offset);
    oq_free(env, vocab->bytes);
    *vocab = (oq_vocab){0};
}

oq_status oq_vocab_add(oq_env *env, oq_vocab *v, const char *source, const char *piece, size_t n, int64_t id)
{
    if (id < 0 || id >= OQ_VOCAB_MAX_IDS)
        return oq_fail(env, OQ_E_FORMAT, "%s: piece '%.*s' has id %lld, ids are 0 to %d", source,
                       (int)(n < 64 ? n : 64), piece, (long long)id, OQ_VOCAB_MAX_IDS - 1);
    OQ_TRY(reserve_ids(env, v, (size_t)id + 1));
    OQ_TRY(reserve_bytes(env, v, n + 1));
    OQ_TRY(reserve_slots(env, v, v->n_pieces + 1));
    const size_t slot = find_slot(v, piece, n);
    if (v->slots[slot])
        return oq_fail(env, OQ_E_FORMAT, "%s: piece '%.*s' stands twice in the vocabulary", source,
                       (int)(n < 64 ? n : 64), piece);
    if ((size_t)id < v->n_ids && v->length[id] != NO_ID)
        return oq_fail(env, OQ_E_FORMAT, "%s: pieces '%.64s' and '%.*s' have the same id %lld", source,
                       v->bytes + v->offset[id], (int)(n < 64 ? n : 64), piece, (long long)id);
    for (; v->n_ids <= (size_t)id; v->n_ids++) v->offset[v->n_ids] = 0, v->length[v->n_ids] = NO_ID;
    v->offset[id] = (uint32_t)v->n_bytes;
    v->length[id] = (uint32_t)n;
    memcpy(v->bytes + v->n_bytes, piece, n);
    v->bytes[v->n_bytes + n] = '\0';
    v->n_bytes += n + 1;
    v->slots[slot] = (uint32_t)id + 1;
    v->n_pieces++;
    return OQ_OK;
}

int32_t oq_vocab_find(const oq_vocab *vocab, const char *piece, size_t n)
{
    return vocab->n_slots ? (int32_t)vocab->slots[find_slot(vocab, piece, n)] - 1 : -1;
}

const char *oq_vocab_piece(const oq_vocab *vocab, int64_t id, size_t *n)
{
    if (id < 0 || (size_t)id >= vocab->n_ids || vocab->length[id] == NO_ID) return NULL;
    if (n) *n = vocab->length[id];
    return vocab->bytes + vocab->offset[id];
}
