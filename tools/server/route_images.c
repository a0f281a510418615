/* route_images.c -- pictures: a client waits for them. Generations begin with noise, edits with pictures. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

static const char *type_of(const char *ending)
{
    return strcmp(ending, "webp") == 0     ? "image/webp"
           : strncmp(ending, "jp", 2) == 0 ? "image/jpeg"
                                           : "image/png";
}

static json_t *item_json(const job_item *item)
{
    char *text = base64_encode(item->bytes, item->n);
    json_t *o = text ? json_pack("{s:s,s:I}", "b64_json", text, "seed", (json_int_t)item->seed) : NULL;
    free(text);
    return o;
}

static void reply_pictures(http_reply *r, const job *j)
{
    json_t *data = json_array();
    for (int i = 0; i < j->n_items; i++) json_array_append_new(data, item_json(&j->items[i]));
    char size[48];
    snprintf(size, sizeof size, "%lldx%lld", (long long)j->width, (long long)j->height);
    reply_json(r, 200,
               json_pack("{s:I,s:o,s:s,s:s,s:{s:f,s:f}}", "created", (json_int_t)j->created, "data", data,
                         "output_format", j->ending, "size", size, "timing", "queue_s", j->waited_s,
                         "generate_s", j->worked_s));
}

/* Pictures to begin with, and only there. */
static bool begins_right(const job *j, bool edits, http_reply *r)
{
    const bool given = oq_options_get(j->options, "image") != NULL;
    if (given == edits) return true;
    reply_error(r, 400, "image", "E_ARG",
                edits ? "image: an edit begins with at least one picture"
                      : "image: pictures to begin with are for /v1/images/edits");
    return false;
}

static void answer(server *s, http_request *q, http_reply *r, bool edits)
{
    job *j = q->job;
    if (oq_model_makes_video(s->model)) {
        reply_error(r, 400, "model", "E_ARG", "'%s' makes videos: ask for them at /v1/videos", s->name);
        return;
    }
    if (!fields_read(s, q, r) || !begins_right(j, edits, r)) return;
    const char *n = oq_options_get(j->options, "batch-count");
    if (q->raw && n && strcmp(n, "1") != 0) {
        reply_error(r, 400, "n", "E_ARG",
                    "n: a client that accepts a picture itself gets one at a time, not %s", n);
        return;
    }
    if (j->stream && (q->raw || (n && strcmp(n, "1") != 0))) {
        reply_error(r, 400, "stream", "E_ARG",
                    q->raw ? "stream: events are JSON, 'Accept: image/...' asks for a picture"
                           : "stream: events are of one picture, n is %s",
                    n);
        return;
    }
    if (!submit(s, j, r, 5)) return;
    if (j->stream) {
        r->status = 200;
        r->type = "text/event-stream";
        r->stream = stream_new(&s->queue, j, edits, q->connection);
        if (!r->stream) reply_error(r, 503, NULL, "E_NOMEM", "a stream of events: no memory");
        return;
    }
    const job_state state = queue_wait(&s->queue, j, MAX_PARTIAL, client_gone, q->connection);
    if (state != JOB_DONE)
        reply_failed(r, j);
    else if (q->raw)
        reply_bytes(r, type_of(j->ending), j->items[0].bytes, j->items[0].n);
    else
        reply_pictures(r, j);
}

void answer_images(server *s, http_request *q, http_reply *r)
{
    answer(s, q, r, false);
}

void answer_edits(server *s, http_request *q, http_reply *r)
{
    answer(s, q, r, true);
}
