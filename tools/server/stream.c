/* stream.c -- server-sent events of one request for a picture, in OpenAI's words: partial pictures while it is made, then the
 * picture, or the error that ended it. One event at a time is text; reading waits for the next. */
#include "parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stream {
    queue *queue;
    job *job;
    const char *kind; /* "image_generation", "image_edit" */
    void *connection;
    int seen;   /* partial pictures told */
    bool told;  /* the last event is made */
    char *text; /* the event that is being read */
    size_t n, at;
};

stream *stream_new(queue *q, job *j, bool edits, void *connection)
{
    stream *s = calloc(1, sizeof *s);
    if (!s) return queue_forget(q, j), NULL; /* nobody would read what it makes */
    *s = (stream){
        .queue = q, .job = j, .kind = edits ? "image_edit" : "image_generation", .connection = connection};
    job_hold(q, j);
    return s;
}

void stream_free(stream *s)
{
    if (!s) return;
    if (!s->told) queue_forget(s->queue, s->job); /* nobody reads how it ends */
    job_release(s->queue, s->job);
    free(s->text);
    free(s);
}

/* "event: NAME", the object as one line of data, an empty line. Takes the object; without memory the stream ends. */
static void make_event(stream *s, const char *name, json_t *object)
{
    char *data = object ? json_dumps(object, JSON_COMPACT) : NULL;
    const size_t size = strlen(name) + (data ? strlen(data) : 0) + sizeof "event: \ndata: \n\n";
    free(s->text);
    s->text = data ? malloc(size) : NULL;
    s->at = 0;
    s->n = s->text ? (size_t)snprintf(s->text, size, "event: %s\ndata: %s\n\n", name, data) : 0;
    free(data);
    json_decref(object);
}

static json_t *picture_json(const stream *s, const char *type, const job_item *item)
{
    const job *j = s->job;
    char *base64 = base64_encode(item->bytes, item->n);
    json_t *o = base64 ? json_pack("{s:s,s:s,s:I,s:s,s:s,s:s,s:I}", "type", type, "b64_json", base64,
                                   "created_at", (json_int_t)j->created, "output_format", j->ending,
                                   "quality", "auto", "background", "opaque", "seed", (json_int_t)item->seed)
                       : NULL;
    free(base64);
    return o;
}

/* What the queue has put in place stays as it is: only the count needed its lock. */
static void tell_partial(stream *s)
{
    char type[48];
    const job_item *item = &s->job->partial[s->seen];
    snprintf(type, sizeof type, "%s.partial_image", s->kind);
    json_t *o = picture_json(s, type, item);
    json_object_set_new(o, "partial_image_index", json_integer(s->seen));
    json_object_set_new(o, "step", json_integer(item->step));
    json_object_set_new(o, "steps", json_integer(item->steps));
    make_event(s, type, o);
    s->seen++;
}

static void tell_result(stream *s, job_state state)
{
    char type[48], size[48];
    const job *j = s->job;
    s->told = true;
    if (state != JOB_DONE) {
        json_t *o = error_json(status_of(j->status), NULL, oq_status_name(j->status),
                               *j->message ? j->message : oq_status_text(j->status));
        json_object_set_new(o, "type", json_string("error"));
        make_event(s, "error", o);
        return;
    }
    snprintf(type, sizeof type, "%s.completed", s->kind);
    snprintf(size, sizeof size, "%lldx%lld", (long long)j->width, (long long)j->height);
    json_t *o = picture_json(s, type, &j->items[0]);
    json_object_set_new(o, "size", json_string(size));
    json_object_set_new(o, "timing",
                        json_pack("{s:f,s:f}", "queue_s", j->waited_s, "generate_s", j->worked_s));
    make_event(s, type, o);
}

size_t stream_read(stream *s, char *to, size_t size)
{
    if (s->at == s->n) {
        if (s->told) return 0;
        client_timed(s->connection, false);
        const job_state state = queue_wait(s->queue, s->job, s->seen, client_gone, s->connection);
        client_timed(s->connection, true); /* one that stops reading does not keep its connection */
        if (s->seen < queue_partials(s->queue, s->job))
            tell_partial(s);
        else
            tell_result(s, state);
    }
    const size_t left = s->n - s->at, n = left < size ? left : size;
    if (n) memcpy(to, s->text + s->at, n);
    s->at += n;
    return n;
}
