/* bench_peer.c -- runs tools/dev/peer (diffusers and torch in an environment of their own) and takes over its
 * rows. */
#include "engine/bench.h"

#include "base/pool.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT "tools/dev/peer"

extern char **environ;

/* Starts the script with its standard output in a pipe. */
static oq_status start(oq_bench *b, pid_t *pid, FILE **out)
{
    int fd[2];
    char threads[16];
    const char *model = oq_options_text(b->options, "model", NULL);
    posix_spawn_file_actions_t actions;
    if (pipe(fd) != 0) return oq_fail(b->env, OQ_E_IO, "%s: no pipe: %s", SCRIPT, strerror(errno));
    snprintf(threads, sizeof threads, "%d", oq_pool_threads(b->env->pool));
    char *const argv[] = {(char *)(uintptr_t)SCRIPT, (char *)(uintptr_t)model, threads, NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, fd[0]);
    const int e = posix_spawn(pid, SCRIPT, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fd[1]);
    *out = e == 0 ? fdopen(fd[0], "r") : NULL;
    if (*out) return OQ_OK;
    close(fd[0]);
    return oq_fail(b->env, OQ_E_IO, "%s: cannot be started: %s", SCRIPT, strerror(e ? e : errno));
}

static const char *text_of(const oq_json *row, const char *key)
{
    const char *text = oq_json_string(oq_json_get(row, key));
    return text ? text : "";
}

static oq_status take_row(oq_bench *b, const char *line)
{
    oq_json *row = NULL;
    OQ_TRY(oq_json_parse(b->env, line, strlen(line), SCRIPT, &row));
    oq_strbuf_printf(b->text, "%-10s %-28s %-22s %-34s %10.3f\n", text_of(row, "op"), text_of(row, "shape"),
                     text_of(row, "dtype"), text_of(row, "peer"), oq_json_real(oq_json_get(row, "ms"), 0));
    oq_json_append(b->rows, row);
    return OQ_OK;
}

oq_status oq_bench_peer(oq_bench *b)
{
    pid_t pid = 0;
    FILE *out = NULL;
    char *line = NULL;
    size_t capacity = 0;
    int status = 0;
    if (!oq_file_exists(SCRIPT))
        return oq_fail(b->env, OQ_E_NOTFOUND,
                       "%s is not here: the peers are compared from omniq's repository", SCRIPT);
    oq_log(b->env, OQ_LOG_WARN, "bench: running the peers; the first time installs torch and diffusers");
    OQ_TRY(start(b, &pid, &out));
    oq_status st = OQ_OK;
    while (getline(&line, &capacity, out) > 0)
        if (st == OQ_OK && line[0] == '{') st = take_row(b, line);
    free(line);
    fclose(out);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (st == OQ_OK && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        st = oq_fail(b->env, OQ_E_IO, "%s failed with status %d", SCRIPT,
                     WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return st;
}
