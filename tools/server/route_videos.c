/* route_videos.c -- videos take minutes: a client gets an id, asks how far it is, and fetches the file. */
#include "parts.h"

#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {"queued", "in_progress", "completed", "failed", "cancelled"};

/* Loading is over when a job begins; denoising is most of the work. */
static int percent(const job *j)
{
    if (j->state == JOB_DONE) return 100;
    if (j->state != JOB_RUNNING || !*j->phase || strcmp(j->phase, "text") == 0) return 0;
    if (strcmp(j->phase, "denoise") != 0) return 90;
    return j->total > 0 ? (int)(90 * j->done / j->total) : 0;
}

static json_t *video_json(server *s, job *j)
{
    const int ahead = queue_ahead(&s->queue, j);
    pthread_mutex_lock(&s->queue.lock);
    json_t *o =
        json_pack("{s:s,s:s,s:s,s:s,s:I,s:i}", "id", j->id, "object", "video", "model", s->name, "status",
                  state_names[j->state], "created_at", (json_int_t)j->created, "progress", percent(j));
    if (j->state == JOB_WAITING) json_object_set_new(o, "ahead", json_integer(ahead));
    if (j->state == JOB_FAILED || j->state == JOB_CANCELED)
        json_object_set_new(o, "error",
                            json_pack("{s:s,s:s}", "code", oq_status_name(j->status), "message", j->message));
    if (j->state == JOB_DONE) {
        char size[48];
        snprintf(size, sizeof size, "%lldx%lld", (long long)j->width, (long long)j->height);
        json_object_update_new(o, json_pack("{s:I,s:s,s:I,s:f,s:I,s:{s:f,s:f}}", "completed_at",
                                            (json_int_t)j->finished, "size", size, "num_frames",
                                            (json_int_t)j->frames, "fps", j->fps, "seed",
                                            (json_int_t)j->items[0].seed, "timing", "queue_s", j->waited_s,
                                            "generate_s", j->worked_s));
    }
    pthread_mutex_unlock(&s->queue.lock);
    return o;
}

void answer_videos_post(server *s, http_request *q, http_reply *r)
{
    job *j = q->job;
    if (!oq_model_makes_video(s->model)) {
        reply_error(r, 400, "model", "E_ARG", "'%s' makes pictures: ask for them at /v1/images/generations",
                    s->name);
        return;
    }
    if (!fields_read(s, q, r)) return;
    const char *n = oq_options_get(j->options, "batch-count");
    if (n && strcmp(n, "1") != 0) {
        reply_error(r, 400, "n", "E_ARG", "n: a request makes one video, not %s", n);
        return;
    }
    j->kept = true;
    if (!submit(s, j, r, 30)) return;
    reply_json(r, 200, video_json(s, j));
}

void answer_videos_list(server *s, http_request *q, http_reply *r)
{
    (void)q;
    job *j = NULL;
    json_t *data = json_array();
    for (int i = 0; (j = queue_kept_at(&s->queue, i)); i++) {
        json_array_append_new(data, video_json(s, j));
        job_release(&s->queue, j);
    }
    reply_json(r, 200, json_pack("{s:s,s:o}", "object", "list", "data", data));
}

static job *find(server *s, http_request *q, http_reply *r)
{
    job *j = queue_find(&s->queue, q->id);
    if (!j)
        reply_error(r, 404, "id", "not_found",
                    "there is no video '%s' here; the last %d finished ones are kept", q->id, s->queue.keep);
    return j;
}

void answer_video(server *s, http_request *q, http_reply *r)
{
    job *j = find(s, q, r);
    if (!j) return;
    reply_json(r, 200, video_json(s, j));
    job_release(&s->queue, j);
}

void answer_video_content(server *s, http_request *q, http_reply *r)
{
    job *j = find(s, q, r);
    if (!j) return;
    pthread_mutex_lock(&s->queue.lock);
    const job_state state = j->state;
    pthread_mutex_unlock(&s->queue.lock);
    if (state == JOB_DONE)
        reply_bytes(r, strcmp(j->ending, "mp4") == 0 ? "video/mp4" : "image/webp", j->items[0].bytes,
                    j->items[0].n);
    else if (state == JOB_FAILED || state == JOB_CANCELED)
        reply_failed(r, j);
    else
        reply_error(r, 409, "id", "not_ready", "the video is %s: ask again later", state_names[state]);
    job_release(&s->queue, j);
}

void answer_video_delete(server *s, http_request *q, http_reply *r)
{
    job *j = find(s, q, r);
    if (!j) return;
    queue_forget(&s->queue, j);
    reply_json(r, 200, json_pack("{s:s,s:s,s:b}", "id", j->id, "object", "video.deleted", "deleted", 1));
    job_release(&s->queue, j);
}
