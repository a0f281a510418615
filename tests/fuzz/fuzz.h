/* fuzz.h -- what a fuzz target is: bytes in, no crash, and one property that aborts when it does not hold. */
#ifndef OQ_TESTS_FUZZ_H
#define OQ_TESTS_FUZZ_H

#include "base/env.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libFuzzer's entry; always returns 0. Called many times by one process. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define FUZZ_CHECK(condition)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                   \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* A failure has its sentence, a success has none. */
static inline void fuzz_check_status(const oq_env *env, oq_status st)
{
    FUZZ_CHECK((st == OQ_OK) == (oq_env_error(env)[0] == '\0'));
}

/* An env without worker threads, made once per process. */
static inline oq_env *fuzz_env(void)
{
    static oq_env *env;
    const oq_env_params params = {.size = sizeof params, .n_threads = 1};
    if (!env && oq_env_new(&params, &env) != OQ_OK) abort();
    oq_env_clear(env);
    return env;
}

#endif
