/* command_serve.c -- the row of `serve` in the list of commands. The server itself is a program over omniq.h
 * (tools/server): a library has no business with sockets and signals. */
#include "engine/command.h"

static oq_status serve(oq_env *env, oq_options *options, oq_report **out)
{
    (void)options;
    (void)out;
    return oq_fail(env, OQ_E_UNSUPPORTED, "serve is a process of its own: start it as 'omniq serve'");
}

const oq_command oq_command_serve = {
    .info = {"serve", "-m MODEL [flags]", "answer requests over HTTP, as OpenAI's clients send them"},
    .run = serve,
};
