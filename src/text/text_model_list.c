/* text_model_list.c -- the tokenizer models of this build. */
#include "text/text_model.h"

const oq_text_model_type *const oq_text_model_list[] = {
    &oq_text_model_bpe,
    &oq_text_model_unigram,
    NULL,
};
