/* run.c -- oq_run: from options to the command that they belong to. */
#include "engine/engine.h"

#include "base/file.h"

#include <string.h>

static oq_status run(const oq_command *command, oq_env *env, oq_options *options, oq_report **out)
{
    const oq_status st = oq_files_settle(env, command->run(env, options, out));
    if (st == OQ_OK) return OQ_OK;
    oq_report_free(*out);
    *out = NULL;
    return st;
}

oq_status oq_run(oq_options *options, oq_report **out)
{
    if (!options || !out) return OQ_E_ARG;
    oq_env *env = oq_options_env(options);
    *out = NULL;
    for (size_t i = 0; oq_command_table[i]; i++)
        if (strcmp(oq_command_table[i]->info.name, oq_options_command(options)) == 0)
            return run(oq_command_table[i], env, options, out);
    return oq_fail(env, OQ_E_UNSUPPORTED, "command '%s' is not in this build", oq_options_command(options));
}
