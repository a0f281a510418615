/* normalizer.h -- what happens to a text before it is cut. */
#ifndef OQ_TEXT_NORMALIZER_H
#define OQ_TEXT_NORMALIZER_H

#include "text/tokenizer_file.h"

enum { OQ_NORMALIZER_MAX_STEPS = 16 };

typedef struct oq_normalize_step oq_normalize_step;

typedef struct oq_normalizer { /* zero changes nothing; read-only after parsing, shareable between threads */
    oq_normalize_step *steps;
    size_t n_steps;
} oq_normalizer;

oq_status oq_normalizer_parse(oq_env *env, const oq_tokenizer_file *file, oq_normalizer *out);
void oq_normalizer_deinit(oq_env *env, oq_normalizer *normalizer);
/* *out is always a copy of its own. */
oq_status oq_normalizer_run(oq_env *env, const oq_normalizer *normalizer, const char *text, size_t n,
                            char **out, size_t *out_n);

#endif
