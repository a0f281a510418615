/* env_setup.c -- see env_setup.h. */
#include "support/env_setup.h"

#include "base/env.h"

int env_setup(void **state)
{
    oq_env *env = NULL;
    const oq_env_params params = {.size = sizeof params, .n_threads = 2};
    if (oq_env_new(&params, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

int env_teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}
