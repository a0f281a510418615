/* post_processor.h -- the ids that a tokenizer puts around a text on its own. */
#ifndef OQ_TEXT_POST_PROCESSOR_H
#define OQ_TEXT_POST_PROCESSOR_H

#include "text/tokenizer_file.h"
#include "text/vocab.h"

enum { OQ_POST_MAX_IDS = 64 };

typedef struct oq_post_processor { /* zero adds nothing */
    int32_t before[OQ_POST_MAX_IDS], after[OQ_POST_MAX_IDS];
    size_t n_before, n_after;
} oq_post_processor;

oq_status oq_post_processor_parse(oq_env *env, const oq_tokenizer_file *file, const oq_vocab *vocab,
                                  oq_post_processor *out);

#endif
