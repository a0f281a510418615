/* server.h -- the HTTP server behind `omniq serve`, a program over omniq.h like any other: one model, a queue, one
 * request at a time at work on all threads. The only header of this folder that others include. */
#ifndef OMNIQ_SERVER_H
#define OMNIQ_SERVER_H

#include "omniq/omniq.h"

#include <stdio.h>

/* Opens the model that `options` (of "serve") name, listens, says so on `out` in one line and answers until SIGINT,
 * SIGTERM or SIGHUP. On failure message[size] is one sentence. */
oq_status server_run(oq_env *env, const oq_options *options, FILE *out, char *message, size_t size);

#endif
