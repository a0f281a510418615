/* http_client.h -- `omniq serve` as a process, and a client that sends exactly the bytes a test wants over real sockets.
 * Failures abort the test. */
#ifndef OQ_TESTS_HTTP_CLIENT_H
#define OQ_TESTS_HTTP_CLIENT_H

#include "base/json.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct http_server {
    pid_t pid;
    int port, out; /* out: reads its standard output */
    char first_line[256];
} http_server;

/* arguments: what follows "omniq serve --port 0", NULL at the end. false: this build has no server. */
bool http_server_start(http_server *s, const char *const *arguments);
int http_server_stop(http_server *s, int signal_number); /* its exit status; pid becomes 0 */

typedef struct http_answer {
    int status;      /* 0: the connection was closed without an answer */
    char type[64];   /* Content-Type */
    char *head;      /* all of it; the caller's */
    uint8_t *body;   /* the caller's; a NUL byte follows */
    size_t n;
} http_answer;
void http_answer_free(http_answer *a);

int http_connect(const http_server *s);
void http_send(int fd, const void *bytes, size_t n);
http_answer http_receive(int fd); /* until the server closes or Content-Length is reached; closes fd */

/* A request in one piece; headers: lines with "\r\n" each, or "". Content-Length comes by itself. */
http_answer http_ask(const http_server *s, const char *method, const char *path, const char *headers, const void *body,
                     size_t n);
/* POST of JSON, and the answer as JSON (the caller's), which has to have this status. */
oq_json *http_post_json(oq_env *env, const http_server *s, const char *path, const char *json, int status);
oq_json *http_get_json(oq_env *env, const http_server *s, const char *path, int status);

#endif
