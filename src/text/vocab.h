/* vocab.h -- spellings and ids: the table that every tokenizer model shares. */
#ifndef OQ_TEXT_VOCAB_H
#define OQ_TEXT_VOCAB_H

#include "base/env.h"

enum { OQ_VOCAB_MAX_IDS = 1 << 22 }; /* the largest published vocabularies hold 262144 */

typedef struct oq_vocab { /* zero is empty; deinit in any state */
    char *bytes;          /* all spellings, each with a NUL behind it */
    size_t n_bytes, bytes_capacity;
    uint32_t *offset, *length;  /* by id; length UINT32_MAX: no such id */
    size_t n_ids, ids_capacity; /* largest id + 1 */
    uint32_t *slots;            /* id + 1; 0: free */
    size_t n_slots, n_pieces;
} oq_vocab;

oq_status oq_vocab_init(oq_env *env, size_t expected_pieces, size_t expected_bytes, oq_vocab *out);
void oq_vocab_deinit(oq_env *env, oq_vocab *vocab);
/* Copies `piece`. An id outside [0, OQ_VOCAB_MAX_IDS), an id or a piece that is there already: OQ_E_FORMAT,
 * with `source` in front. */
oq_status oq_vocab_add(oq_env *env, oq_vocab *vocab, const char *source, const char *piece, size_t n,
                       int64_t id);
int32_t oq_vocab_find(const oq_vocab *vocab, const char *piece, size_t n); /* -1: none */
const char *oq_vocab_piece(const oq_vocab *vocab, int64_t id, size_t *n);  /* NULL: none; terminated */

/* 64 bits of any key, for the open hash tables of this room. */
static inline uint64_t oq_hash_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}
uint64_t oq_hash_bytes(const char *bytes, size_t n);

#endif
