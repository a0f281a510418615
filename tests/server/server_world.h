/* server_world.h -- a server as a process, begun and ended by each test, and how it is asked. The program defines SERVER_TESTS, the
 * name of its scratch folder. */
#ifndef OQ_TESTS_SERVER_WORLD_H
#define OQ_TESTS_SERVER_WORLD_H

#include "support/http_client.h"
#include "support/scratch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOYBOX OMNIQ_SOURCE_DIR "/models/toybox"
#define IMAGES "/v1/images/generations"
#define JSON   "Content-Type: application/json\r\n"
#define PNG    JSON "Accept: image/png\r\n"
#define SMALL  "\"size\":\"64x64\",\"steps\":2"

typedef struct world {
    oq_env *env;
    http_server server;
    const char *dir;
} world;

/* NULL arguments end the list. A build without a server skips the test. */
static inline void start(world *w, const char *const *arguments)
{
    w->server = (http_server){0};
    if (!http_server_start(&w->server, arguments)) skip();
}

static inline void start_toybox(world *w)
{
    start(w, (const char *const[]){"-m", TOYBOX, "-q", NULL});
}

static inline void stop(world *w)
{
    assert_int_equal(http_server_stop(&w->server, SIGTERM), 0);
}

static inline int setup(void **state)
{
    static world w;
    static char dir[1024];
    if (oq_env_new(NULL, &w.env) != OQ_OK) return -1;
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, SERVER_TESTS));
    w.dir = dir;
    setenv("TMPDIR", OMNIQ_BINARY_DIR, 1);
    unsetenv("OMNIQ_API_KEY");
    *state = &w;
    return 0;
}

static inline int teardown(void **state)
{
    oq_env_free(((world *)*state)->env);
    return 0;
}

/* A test that failed leaves its server behind. */
static inline int end(void **state)
{
    world *w = *state;
    if (w->server.pid) http_server_stop(&w->server, SIGKILL);
    return 0;
}

static inline http_answer ask_png(const world *w, const char *json)
{
    http_answer a = http_ask(&w->server, "POST", IMAGES, PNG, json, strlen(json));
    if (a.status != 200) fail_msg("%s: %d %s", json, a.status, (char *)a.body);
    assert_string_equal(a.type, "image/png");
    return a;
}

static inline void expect_status(const world *w, const char *method, const char *path, const char *headers,
                          const char *body, int status)
{
    http_answer a = http_ask(&w->server, method, path, headers, body, strlen(body));
    if (a.status != status)
        fail_msg("%s %s: %d, expected %d: %s", method, path, a.status, status, (char *)a.body);
    http_answer_free(&a);
}

#endif
