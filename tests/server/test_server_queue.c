/* test_server_queue.c -- `omniq serve` and several clients: one's trouble is no other's, a video is asked for later, and a signal ends
 * it in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/golden_folder.h"

#define SERVER_TESTS "server-queue"
#include "server/server_world.h"

#include <pthread.h>

/* ---- several clients ----------------------------------------------------------------------------------------- */

typedef struct client {
    world *w;
    char request[160];
    http_answer answer;
} client;

static void *ask(void *user)
{
    client *c = user;
    c->answer = http_ask(&c->w->server, "POST", IMAGES, PNG, c->request, strlen(c->request));
    return NULL;
}

static void clients_at_once_get_their_own(void **state)
{
    enum { N = 4 };
    world *w = *state;
    client c[N];
    pthread_t thread[N];
    start_toybox(w);
    for (int i = 0; i < N; i++) {
        c[i] = (client){.w = w};
        snprintf(c[i].request, sizeof c[i].request, "{\"prompt\":\"a red ring\"," SMALL ",\"seed\":%d}", i);
        assert_int_equal(pthread_create(&thread[i], NULL, ask, &c[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++) {
        http_answer alone = ask_png(w, c[i].request);
        assert_int_equal(c[i].answer.status, 200);
        assert_int_equal(c[i].answer.n, alone.n);
        assert_memory_equal(c[i].answer.body, alone.body, alone.n);
        http_answer_free(&alone);
        http_answer_free(&c[i].answer);
    }
    stop(w);
}

/* Events are made from partial pictures while the next ones are drawn. */
static void *ask_events(void *user)
{
    client *c = user;
    char head[256];
    const int fd = http_connect(&c->w->server);
    const int n = snprintf(head, sizeof head,
                           "POST " IMAGES " HTTP/1.0\r\nHost: x\r\n" JSON "Content-Length: %zu\r\n\r\n",
                           strlen(c->request));
    http_send(fd, head, (size_t)n);
    http_send(fd, c->request, strlen(c->request));
    c->answer = http_receive(fd);
    return NULL;
}

static void streams_at_once_tell_their_own(void **state)
{
    enum { N = 2 };
    world *w = *state;
    client c[N];
    pthread_t thread[N];
    start_toybox(w);
    for (int i = 0; i < N; i++) {
        c[i] = (client){.w = w};
        snprintf(c[i].request, sizeof c[i].request,
                 "{\"prompt\":\"a red ring\",\"size\":\"64x64\",\"steps\":4,\"seed\":%d,\"stream\":true,"
                 "\"partial_images\":3}",
                 i);
        assert_int_equal(pthread_create(&thread[i], NULL, ask_events, &c[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        char seed[24];
        int n = 0;
        pthread_join(thread[i], NULL);
        assert_int_equal(c[i].answer.status, 200);
        snprintf(seed, sizeof seed, "\"seed\":%d,", i);
        for (const char *at = (const char *)c[i].answer.body; (at = strstr(at, seed)); at++) n++;
        assert_int_equal(n, 4);
        assert_non_null(strstr((const char *)c[i].answer.body, "event: image_generation.completed\n"));
        http_answer_free(&c[i].answer);
    }
    stop(w);
}

/* A number of /metrics. */
static double metric(const world *w, const char *name)
{
    http_answer a = http_ask(&w->server, "GET", "/metrics", "", NULL, 0);
    assert_int_equal(a.status, 200);
    char line[96];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr((const char *)a.body, line);
    if (!at) fail_msg("no metric %s", name);
    const double value = strtod(at + strlen(line), NULL);
    http_answer_free(&a);
    return value;
}

static void until(const world *w, const char *name, double value)
{
    for (int i = 0; i < 2000 && metric(w, name) < value; i++) usleep(20000);
    assert_true(metric(w, name) >= value);
}

/* A request that takes long, sent but not waited for. */
static int begin_long(const world *w, bool stream)
{
    char head[256], body[128];
    snprintf(body, sizeof body, "{\"prompt\":\"a red ring\",\"size\":\"256x256\",\"steps\":1000%s}",
             stream ? ",\"stream\":true" : "");
    const int fd = http_connect(&w->server);
    const int n =
        snprintf(head, sizeof head,
                 "POST " IMAGES " HTTP/1.1\r\nHost: x\r\n" JSON "Content-Length: %zu\r\n\r\n", strlen(body));
    http_send(fd, head, (size_t)n);
    http_send(fd, body, strlen(body));
    return fd;
}

/* Who goes away stops his own work, waiting or running, and nobody else's. */
static void a_client_that_leaves_cancels(void **state)
{
    world *w = *state;
    start(w, (const char *const[]){"-m", TOYBOX, "-q", "--queue-limit", "1", NULL});
    const int first = begin_long(w, true);
    until(w, "omniq_requests_running", 1);
    const int second = begin_long(w, false);
    until(w, "omniq_requests_waiting", 1);
    http_answer full = http_ask(&w->server, "POST", IMAGES, JSON, "{\"prompt\":\"a\"}", 14);
    assert_int_equal(full.status, 429);
    assert_non_null(strstr(full.head, "Retry-After: "));
    http_answer_free(&full);
    close(second);
    until(w, "omniq_requests_total{result=\"canceled\"}", 1);
    assert_true(metric(w, "omniq_requests_running") > 0);
    close(first);
    until(w, "omniq_requests_total{result=\"canceled\"}", 2);
    http_answer a = ask_png(w, "{\"prompt\":\"a red ring\"," SMALL "}");
    http_answer_free(&a);
    stop(w);
}

static void a_slow_client_holds_nobody_up(void **state)
{
    world *w = *state;
    start_toybox(w);
    const int slow = http_connect(&w->server), odd = http_connect(&w->server);
    http_send(slow, "POST " IMAGES " HT", 10);
    http_send(odd, "\0\r\n\xff\xfe garbage\r\n\r\n", 16);
    http_answer a = ask_png(w, "{\"prompt\":\"a red ring\"," SMALL "}");
    http_answer_free(&a);
    close(slow);
    close(odd);
    stop(w);
}

/* ---- the end ------------------------------------------------------------------------------------------------- */

static void a_signal_answers_who_waits(void **state)
{
    world *w = *state;
    start(w, (const char *const[]){"-m", TOYBOX, "-q", NULL});
    const int running = begin_long(w, false);
    until(w, "omniq_requests_running", 1);
    const int waiting = begin_long(w, false);
    until(w, "omniq_requests_waiting", 1);
    assert_int_equal(http_server_stop(&w->server, SIGINT), 0);
    http_answer a = http_receive(running), b = http_receive(waiting);
    assert_int_equal(a.status, 503);
    assert_int_equal(b.status, 503);
    assert_non_null(strstr((const char *)b.body, "the server is stopping"));
    http_answer_free(&a);
    http_answer_free(&b);
}

static void a_port_that_is_taken(void **state)
{
    world *w = *state;
    char command[512];
    start_toybox(w);
    snprintf(command, sizeof command,
             OMNIQ_BINARY_DIR
             "/omniq serve -q -m " TOYBOX " --port %d 2> %s/err > %s/out; test $? = 1 && grep -q "
             "'cannot listen at 127.0.0.1 port %d: Address already in use' %s/err && ! test -s %s/out",
             w->server.port, w->dir, w->dir, w->server.port, w->dir, w->dir);
    assert_int_equal(system(command), 0);
    stop(w);
}

/* ---- videos -------------------------------------------------------------------------------------------------- */

static void start_wan(world *w)
{
    static const int32_t ids[] = {71, 1712, 1};
    char tokenizer[1200], model[1100];
    scratch_subdir(w->dir, "wan");
    snprintf(model, sizeof model, "%s/wan", w->dir);
    golden_folder_make(w->env, OMNIQ_SOURCE_DIR "/tests/data/golden/wan2.2/t2v-a14b", model, &oq_dtype_bf16);
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer", model);
    golden_ids_tokenizer(w->env, tokenizer, ids, 3, -1, 1);
    start(w, (const char *const[]){"-m", model, "-q", "--keep-results", "1", "--served-model-name", "tiny",
                                   NULL});
}

/* The id of a new video. */
static void ask_video(world *w, const char *request, char *id, size_t size)
{
    oq_json *json = http_post_json(w->env, &w->server, "/v1/videos", request, 200);
    assert_string_equal(oq_json_string(oq_json_get(json, "object")), "video");
    snprintf(id, size, "%s", oq_json_string(oq_json_get(json, "id")));
    oq_json_free(json);
}

static void video_until(world *w, const char *id, const char *status)
{
    char path[80];
    snprintf(path, sizeof path, "/v1/videos/%s", id);
    for (int i = 0; i < 3000; i++) {
        oq_json *json = http_get_json(w->env, &w->server, path, 200);
        const char *now = oq_json_string(oq_json_get(json, "status"));
        const bool there = strcmp(now, status) == 0, failed = strcmp(now, "failed") == 0;
        if (there && strcmp(status, "completed") == 0)
            assert_int_equal(oq_json_int(oq_json_get(json, "num_frames"), 0), 5);
        oq_json_free(json);
        if (there) return;
        assert_false(failed);
        usleep(20000);
    }
    fail_msg("video %s is not %s", id, status);
}

static void a_video_is_fetched_later(void **state)
{
#define VIDEO                                                                                                \
    "{\"prompt\":\"<71><1712>\",\"size\":\"64x48\",\"num_frames\":5,\"output_format\":\"webp\",\"steps\":"
    world *w = *state;
    char id[40], slow[40], path[100];
    start_wan(w);
    ask_video(w, VIDEO "2,\"seed\":3}", id, sizeof id);
    video_until(w, id, "completed");
    snprintf(path, sizeof path, "/v1/videos/%s/content", id);
    http_answer a = http_ask(&w->server, "GET", path, "", NULL, 0);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.type, "image/webp");
    assert_memory_equal(a.body, "RIFF", 4);
    http_answer_free(&a);
    ask_video(w, VIDEO "1000}", slow, sizeof slow);
    snprintf(path, sizeof path, "/v1/videos/%s/content", slow);
    expect_status(w, "GET", path, "", "", 409);
    snprintf(path, sizeof path, "/v1/videos/%s", slow);
    expect_status(w, "DELETE", path, "", "", 200);
    expect_status(w, "GET", path, "", "", 404);
    until(w, "omniq_requests_total{result=\"canceled\"}", 1);
    ask_video(w, VIDEO "2}", slow, sizeof slow); /* one finished result is kept: the first goes */
    video_until(w, slow, "completed");
    snprintf(path, sizeof path, "/v1/videos/%s", id);
    expect_status(w, "GET", path, "", "", 404);
    oq_json *list = http_get_json(w->env, &w->server, "/v1/videos", 200);
    assert_int_equal(oq_json_size(oq_json_get(list, "data")), 1);
    oq_json_free(list);
    oq_json_free(http_post_json(w->env, &w->server, IMAGES, "{\"prompt\":\"<71>\"}", 400));
    oq_json_free(
        http_post_json(w->env, &w->server, "/v1/videos", "{\"prompt\":\"<71>\",\"seconds\":\"4\"}", 400));
    stop(w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, end)
    const struct CMUnitTest tests[] = {
        TEST(clients_at_once_get_their_own), TEST(streams_at_once_tell_their_own),
        TEST(a_client_that_leaves_cancels),  TEST(a_slow_client_holds_nobody_up),
        TEST(a_signal_answers_who_waits),    TEST(a_port_that_is_taken),
        TEST(a_video_is_fetched_later),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
