/* http_client.c -- see http_client.h. */
#include "support/http_client.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the process --------------------------------------------------------------------------------------------- */

enum { MAX_ARGUMENTS = 32, PATIENCE_S = 120 };

static void become(const char *const *arguments, int out)
{
    const char *argv[MAX_ARGUMENTS + 5] = {OMNIQ_BINARY_DIR "/omniq", "serve", "--port", "0"};
    for (int i = 0; i < MAX_ARGUMENTS && arguments[i]; i++) argv[4 + i] = arguments[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive a test that crashed */
    dup2(out, STDOUT_FILENO);
    close(out);
    execv(argv[0], (char *const *)argv);
    _exit(127);
}

static void read_line(http_server *s)
{
    size_t n = 0;
    while (n + 1 < sizeof s->first_line && read(s->out, s->first_line + n, 1) == 1 &&
           s->first_line[n] != '\n')
        n++;
    s->first_line[n] = '\0';
}

bool http_server_start(http_server *s, const char *const *arguments)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        close(ends[0]);
        become(arguments, ends[1]);
    }
    close(ends[1]);
    s->out = ends[0];
    read_line(s);
    const char *colon = strstr(s->first_line, "://") ? strchr(strstr(s->first_line, "://") + 3, ':') : NULL;
    s->port = colon ? atoi(colon + 1) : 0;
    if (s->port) return true;
    const int status = http_server_stop(s, 0);
    if (status == 1) return false;
    fail_msg("omniq serve ended with %d", status);
    return false;
}

int http_server_stop(http_server *s, int signal_number)
{
    int status = 0;
    if (signal_number) kill(s->pid, signal_number);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    close(s->out);
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

/* ---- bytes --------------------------------------------------------------------------------------------------- */

int http_connect(const http_server *s)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

void http_send(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n) {
        const ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0) return; /* the server has closed: what it said is still to be read */
        at += sent;
        n -= (size_t)sent;
    }
}

static const char *header(const char *head, const char *name)
{
    const char *at = strcasestr(head, name);
    return at ? at + strlen(name) : NULL;
}

http_answer http_receive(int fd)
{
    http_answer a = {0};
    size_t n = 0, capacity = 1 << 16, wanted = SIZE_MAX;
    char *bytes = malloc(capacity + 1), *end = NULL;
    while (bytes && n < wanted) {
        if (n == capacity) bytes = realloc(bytes, (capacity *= 2) + 1);
        assert_non_null(bytes);
        const ssize_t got = recv(fd, bytes + n, capacity - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        bytes[n] = '\0';
        if (!end && (end = strstr(bytes, "\r\n\r\n")) && header(bytes, "\r\nContent-Length: "))
            wanted = (size_t)(end - bytes) + 4 + strtoull(header(bytes, "\r\nContent-Length: "), NULL, 10);
    }
    close(fd);
    if (!end) return free(bytes), a;
    const size_t head = (size_t)(end - bytes) + 4;
    a.n = n - head;
    a.head = strndup(bytes, head);
    a.body = calloc(1, a.n + 1);
    assert_true(a.head && a.body);
    memcpy(a.body, bytes + head, a.n);
    free(bytes);
    a.status = atoi(a.head + strlen("HTTP/1.1 "));
    const char *type = header(a.head, "\r\nContent-Type: ");
    if (type) snprintf(a.type, sizeof a.type, "%.*s", (int)strcspn(type, "\r"), type);
    return a;
}

void http_answer_free(http_answer *a)
{
    free(a->head);
    free(a->body);
    *a = (http_answer){0};
}

http_answer http_ask(const http_server *s, const char *method, const char *path, const char *headers,
                     const void *body, size_t n)
{
    char head[1024];
    const int fd = http_connect(s);
    const int length =
        snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: test\r\nContent-Length: %zu\r\n%s\r\n", method,
                 path, n, headers);
    http_send(fd, head, (size_t)length);
    if (n) http_send(fd, body, n);
    return http_receive(fd);
}

static oq_json *json_of(oq_env *env, http_answer *a, const char *what, int status)
{
    oq_json *json = NULL;
    if (a->status != status)
        fail_msg("%s: status %d, expected %d: %s", what, a->status, status, (char *)a->body);
    if (oq_json_parse(env, (const char *)a->body, a->n, what, &json) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    http_answer_free(a);
    return json;
}

oq_json *http_post_json(oq_env *env, const http_server *s, const char *path, const char *json, int status)
{
    http_answer a = http_ask(s, "POST", path, "Content-Type: application/json\r\n", json, strlen(json));
    return json_of(env, &a, json, status);
}

oq_json *http_get_json(oq_env *env, const http_server *s, const char *path, int status)
{
    http_answer a = http_ask(s, "GET", path, "", NULL, 0);
    return json_of(env, &a, path, status);
}
