/* text_model.h -- the contract of a tokenizer model: pieces of text to ids. One file each in this room
 * (bpe.c, unigram.c), one row each in text_model_list.c. */
#ifndef OQ_TEXT_TEXT_MODEL_H
#define OQ_TEXT_TEXT_MODEL_H

#include "text/tokenizer_file.h"
#include "text/vocab.h"

/* Working memory of one encode call. Models keep nothing between pieces but may use `scratch`. */
typedef struct oq_text_work {
    oq_env *env;
    int32_t *ids;
    size_t n_ids, ids_capacity;
    void *scratch;
    size_t scratch_bytes;
} oq_text_work;

void oq_text_work_deinit(oq_text_work *work);
oq_status oq_text_work_push(oq_text_work *work, int32_t id);
oq_status oq_text_work_reserve(oq_text_work *work,
                               size_t bytes); /* scratch of at least that size; contents are lost */

typedef struct oq_text_model_setup { /* facts that init reads */
    const oq_tokenizer_file *file;
    bool byte_level; /* pieces are bytes that the vocabulary spells as printable characters */
} oq_text_model_setup;

typedef struct oq_text_model_type {
    const char *name; /* model.type in tokenizer.json */
    size_t self_bytes;
    /* Fills `vocab` (zeroed) and `self` (zeroed); deinit also clears what a failed init left. */
    oq_status (*init)(oq_env *env, const oq_text_model_setup *setup, oq_vocab *vocab, void *self);
    void (*deinit)(oq_env *env, void *self);
    /* Appends the ids of one piece (valid UTF-8, n >= 1) to work. Called from several threads with their own
     * work. */
    oq_status (*encode)(const void *self, const oq_vocab *vocab, const char *piece, size_t n,
                        oq_text_work *work);
} oq_text_model_type;

extern const oq_text_model_type *const oq_text_model_list[]; /* NULL-terminated */
extern const oq_text_model_type oq_text_model_bpe;
extern const oq_text_model_type oq_text_model_unigram;

/* GPT-2's spelling of bytes as printable characters, in UTF-8: at most 2 bytes and a NUL. */
void oq_byte_spelling(unsigned char byte, char out[3]);

#endif
