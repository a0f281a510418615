/* bench_peer.c -- tools/dev/peer at the other end of a socket: one line there, one object of JSON back. */
#include "engine/bench.h"

#include "base/pool.h"

#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT "tools/dev/peer"

extern char **environ;

struct oq_bench_peer {
    oq_env *env;
    pid_t pid;
    int fd;
    FILE *answers;
    char *line;
    size_t capacity;
};

static oq_status spawn(oq_bench *b, int theirs, pid_t *pid)
{
    char threads[16];
    const char *const model = oq_options_text(b->options, "model", "");
    posix_spawn_file_actions_t actions;
    snprintf(threads, sizeof threads, "%d", oq_pool_threads(b->env->pool));
    char *const argv[] = {(char *)(uintptr_t)SCRIPT, (char *)(uintptr_t)model, threads, NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, theirs, STDOUT_FILENO);
    const int e = posix_spawn(pid, SCRIPT, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return e == 0 ? OQ_OK : oq_fail(b->env, OQ_E_IO, "%s: cannot be started: %s", SCRIPT, strerror(e));
}

oq_status oq_bench_peer_start(oq_bench *b, oq_bench_peer **out)
{
    int fds[2];
    oq_bench_peer *peer = NULL;
    *out = NULL;
    if (!oq_file_exists(SCRIPT))
        return oq_fail(b->env, OQ_E_NOTFOUND,
                       "%s is not here: the peers are compared from omniq's repository", SCRIPT);
    OQ_TRY(oq_new(b->env, 1, sizeof *peer, "bench", &peer));
    peer->env = b->env;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        oq_free(b->env, peer);
        return oq_fail(b->env, OQ_E_IO, "%s: no socket: %s", SCRIPT, strerror(errno));
    }
    peer->fd = fds[0];
    oq_log(b->env, OQ_LOG_WARN, "bench: starting the peers; the first time installs torch and diffusers");
    const oq_status st = spawn(b, fds[1], &peer->pid);
    close(fds[1]);
    peer->answers = st == OQ_OK ? fdopen(fds[0], "r") : NULL;
    if (peer->answers) {
        *out = peer;
        return OQ_OK;
    }
    close(fds[0]);
    oq_free(b->env, peer);
    return st;
}

static oq_status take_answer(oq_bench_peer *peer, const char *order, oq_json **answer)
{
    oq_json *json = NULL;
    const ssize_t n = getline(&peer->line, &peer->capacity, peer->answers);
    if (n <= 0) return oq_fail(peer->env, OQ_E_IO, "%s ended at '%s'", SCRIPT, order);
    OQ_TRY(oq_json_parse(peer->env, peer->line, (size_t)n, SCRIPT, &json));
    const char *const error = oq_json_string(oq_json_get(json, "error"));
    if (error) {
        const oq_status st = oq_fail(peer->env, OQ_E_IO, "%s at '%s': %s", SCRIPT, order, error);
        oq_json_free(json);
        return st;
    }
    *answer = json;
    return OQ_OK;
}

oq_status oq_bench_peer_ask(oq_bench_peer *peer, oq_json **answer, const char *fmt, ...)
{
    char order[1024];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(order, sizeof order - 1, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof order - 1)
        return oq_fail(peer->env, OQ_E_ARG, "an order of %d bytes is too long for %s", n, SCRIPT);
    order[n] = '\n';
    if (send(peer->fd, order, (size_t)n + 1, MSG_NOSIGNAL) != n + 1)
        return oq_fail(peer->env, OQ_E_IO, "%s takes no orders: %s", SCRIPT, strerror(errno));
    order[n] = '\0';
    return take_answer(peer, order, answer);
}

void oq_bench_peer_stop(oq_bench_peer *peer)
{
    if (!peer) return;
    fclose(peer->answers); /* its input ends: it leaves */
    while (waitpid(peer->pid, NULL, 0) < 0 && errno == EINTR) continue;
    free(peer->line);
    oq_free(peer->env, peer);
}
