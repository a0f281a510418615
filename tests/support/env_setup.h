/* env_setup.h -- cmocka's setup and teardown of tests whose state is an environment of two threads. */
#ifndef SUPPORT_ENV_SETUP_H
#define SUPPORT_ENV_SETUP_H

int env_setup(void **state); /* *state: an oq_env */
int env_teardown(void **state);

#endif
