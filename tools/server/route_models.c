/* route_models.c -- what the server is: its model, the plan of it, whether it lives, how busy it is. */
#include "parts.h"

#include <stdio.h>
#include <string.h>

static json_t *model_json(const server *s)
{
    return json_pack("{s:s,s:s,s:I,s:s,s:s}", "id", s->name, "object", "model", "created",
                     (json_int_t)s->started, "owned_by", "omniq", "makes",
                     oq_model_makes_video(s->model) ? "videos" : "pictures");
}

void answer_models(server *s, http_request *q, http_reply *r)
{
    (void)q;
    reply_json(r, 200, json_pack("{s:s,s:[o]}", "object", "list", "data", model_json(s)));
}

void answer_model(server *s, http_request *q, http_reply *r)
{
    if (strcmp(q->id, s->name) == 0)
        reply_json(r, 200, model_json(s));
    else
        reply_error(r, 404, "model", "model_not_found", "there is no model '%s'; this server has '%s'", q->id,
                    s->name);
}

void answer_plan(server *s, http_request *q, http_reply *r)
{
    (void)q;
    reply_bytes(r, "application/json", s->plan, strlen(s->plan));
}

void answer_health(server *s, http_request *q, http_reply *r)
{
    (void)q;
    const queue_counts c = queue_count(&s->queue);
    reply_json(r, 200,
               json_pack("{s:s,s:s,s:s,s:i,s:b,s:i}", "status", "ok", "model", s->name, "version",
                         oq_version(), "waiting", c.waiting, "running", c.running, "queue_limit",
                         s->queue.limit));
}

/* The text format that Prometheus reads. */
void answer_metrics(server *s, http_request *q, http_reply *r)
{
    (void)q;
    char text[1536];
    const queue_counts c = queue_count(&s->queue);
    const int n = snprintf(text, sizeof text,
                           "# TYPE omniq_requests_waiting gauge\nomniq_requests_waiting %d\n"
                           "# TYPE omniq_requests_running gauge\nomniq_requests_running %d\n"
                           "# TYPE omniq_requests_total counter\n"
                           "omniq_requests_total{result=\"done\"} %llu\n"
                           "omniq_requests_total{result=\"failed\"} %llu\n"
                           "omniq_requests_total{result=\"canceled\"} %llu\n"
                           "omniq_requests_total{result=\"refused\"} %llu\n"
                           "# TYPE omniq_items_total counter\nomniq_items_total %llu\n"
                           "# TYPE omniq_generate_seconds_total counter\nomniq_generate_seconds_total %.6f\n",
                           c.waiting, c.running ? 1 : 0, (unsigned long long)c.done,
                           (unsigned long long)c.failed, (unsigned long long)c.canceled,
                           (unsigned long long)c.refused, (unsigned long long)c.items, c.worked_s);
    reply_bytes(r, "text/plain; version=0.0.4", text, (size_t)n);
}
