/* test_server_stream.c -- a stream of events without memory: nobody will read what the job makes, so it is given up, wherever
 * the memory ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

static int lacks; /* the allocation that fails, counted from 1; 0: none */

static void *scarce(void *memory)
{
    if (lacks == 0 || --lacks > 0) return memory;
    free(memory);
    return NULL;
}

#define calloc(n, size) scarce((calloc)(n, size))
#define malloc(size)    scarce((malloc)(size))
#include "../../tools/server/stream.c"
#undef calloc
#undef malloc

/* ---- what stands around it ------------------------------------------------------------------------------- */

static int held, forgotten;

void job_hold(queue *q, job *j)
{
    (void)q, (void)j;
    held++;
}

void job_release(queue *q, job *j)
{
    (void)q, (void)j;
    held--;
}

void queue_forget(queue *q, job *j)
{
    (void)q, (void)j;
    forgotten++;
}

job_state queue_wait(queue *q, job *j, int seen, bool (*gone)(void *user), void *user)
{
    (void)q, (void)seen, (void)gone, (void)user;
    return j->state;
}

int queue_partials(queue *q, const job *j)
{
    (void)q;
    return j->n_partial;
}

bool client_gone(void *connection)
{
    (void)connection;
    return false;
}

void client_timed(void *connection, bool timed)
{
    (void)connection, (void)timed;
}

unsigned status_of(oq_status st)
{
    (void)st;
    return 500;
}

json_t *error_json(unsigned status, const char *param, const char *code, const char *message)
{
    (void)status, (void)param, (void)code;
    return json_pack("{s:s}", "message", message);
}

char *base64_encode(const uint8_t *bytes, size_t n)
{
    (void)bytes, (void)n;
    return scarce(strdup("AAAA"));
}

/* ---- tests ----------------------------------------------------------------------------------------------- */

static void no_stream_no_job(void **state)
{
    job j = {.state = JOB_RUNNING};
    (void)state;
    held = forgotten = 0;
    lacks = 1;
    assert_null(stream_new(NULL, &j, false, NULL));
    assert_int_equal(held, 0);
    assert_int_equal(forgotten, 1);
}

/* An event that cannot be made ends the stream early; read to the end, or not. */
static void no_event_no_job(void **state)
{
    char text[512];
    uint8_t byte = 0;
    job_item done = {.bytes = &byte, .n = 1};
    (void)state;
    for (int failing = 0; failing < 3; failing++) { /* none, the digits, the event's text */
        job j = {.state = JOB_DONE,
                 .items = &done,
                 .n_items = 1,
                 .n_partial = 1,
                 .partial = {done},
                 .ending = "png"};
        held = forgotten = lacks = 0;
        stream *s = stream_new(NULL, &j, false, NULL);
        assert_non_null(s);
        assert_int_equal(held, 1);
        lacks = failing;
        const size_t n = stream_read(s, text, sizeof text);
        assert_int_equal(n > 0, failing == 0);
        stream_free(s);
        assert_int_equal(held, 0);
        assert_int_equal(forgotten, 1); /* the result was not told */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_stream_no_job), cmocka_unit_test(no_event_no_job)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
