/* normalizer.h -- what happens to a text before it is cut. */
#ifndef OQ_TEXT_NORMALIZER_H
#define OQ_TEXT_NORMALIZER_H

#include "text/tokenizer_file.h"

enum { OQ_NORMALIZER_MAX_STEPS = 16 };

/* text (valid UTF-8) to *out, the caller's. */
typedef oq_status (*oq_normalize_fn)(oq_env *env, const char *text, size_t n, char **out, size_t *out_n);

typedef struct oq_normalizer { /* zero changes nothing */
    oq_normalize_fn steps[OQ_NORMALIZER_MAX_STEPS];
    size_t n_steps;
} oq_normalizer;

oq_status oq_normalizer_parse(oq_env *env, const oq_tokenizer_file *file, oq_normalizer *out);
/* *out is always a copy of its own. */
oq_status oq_normalizer_run(oq_env *env, const oq_normalizer *normalizer, const char *text, size_t n,
                            char **out, size_t *out_n);

#endif
