/* pre_tokenizer.h -- cuts normalized text into the pieces that a model encodes one by one. */
#ifndef OQ_TEXT_PRE_TOKENIZER_H
#define OQ_TEXT_PRE_TOKENIZER_H

#include "base/regex.h"
#include "text/tokenizer_file.h"

typedef struct oq_piece {
    size_t begin, end; /* bytes of the text */
    bool is_match;     /* while a pattern cuts */
} oq_piece;

typedef struct oq_pieces { /* text and its cuts; free with oq_pieces_deinit */
    oq_env *env;
    char *text; /* owned */
    size_t n;
    bool at_start; /* the text is the beginning of what the user gave, not what stands behind a token */
    oq_piece *list;
    size_t count, capacity;
} oq_pieces;
oq_status oq_pieces_push(oq_pieces *pieces, oq_piece piece);
void oq_pieces_deinit(oq_pieces *pieces);

typedef struct oq_pre_step oq_pre_step;

typedef struct oq_pre_tokenizer { /* zero cuts nothing; read-only after parsing, shareable between threads */
    oq_pre_step *steps;
    size_t n_steps;
    bool byte_level; /* the model sees bytes */
} oq_pre_tokenizer;

oq_status oq_pre_tokenizer_parse(oq_env *env, const oq_tokenizer_file *file, oq_pre_tokenizer *out);
void oq_pre_tokenizer_deinit(oq_env *env, oq_pre_tokenizer *pre);
/* Cuts every piece of `pieces` further; the text itself may change (added spaces). */
oq_status oq_pre_tokenizer_run(const oq_pre_tokenizer *pre, oq_pieces *pieces);

#endif
