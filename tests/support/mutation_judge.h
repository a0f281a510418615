/* mutation_judge.h -- the verdict on a spoilt transformer of the demo model: plan, inspect and generate agree; what they take gives
 * the picture of the unspoilt file, what they refuse is refused with one sentence. */
#ifndef OQ_TESTS_MUTATION_JUDGE_H
#define OQ_TESTS_MUTATION_JUDGE_H

#include "support/toybox_run.h"

#ifdef OMNIQ_SANITIZED
enum { MUTATION_SHARE = 97 };
#else
enum { MUTATION_SHARE = 14 };
#endif

typedef struct mutation_judge {
    oq_env *env;
    picture plain, whole; /* of the plain model; of the unspoilt file */
    const char *layout;   /* words for messages */
    size_t n, n_taken, n_wrong;
    size_t turn; /* counts every way there is: one in MUTATION_SHARE is tried, of each layout others */
} mutation_judge;

/* A small picture with `transformer` (NULL: the model's own). pixels: the caller's. */
oq_status mutation_picture(oq_env *env, const char *transformer, picture *out);
/* Is it this one's turn? MUTATIONS_ALL: always. */
bool mutation_due(mutation_judge *j);
/* `may_differ`: what is read is other than before, and no worse (a layer that is plain now). */
void mutation_verdict(mutation_judge *j, const char *transformer, const char *what, bool may_differ);

#endif
