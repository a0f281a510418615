/* reply.c -- what goes back to a client: JSON, files, and errors in the form that OpenAI's clients read. */
#include "parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void reply_json(http_reply *r, unsigned status, json_t *value)
{
    r->status = value ? status : 500;
    r->type = "application/json";
    free(r->body);
    r->body = value ? json_dumps(value, JSON_COMPACT) : NULL;
    r->n = r->body ? strlen(r->body) : 0;
    json_decref(value);
}

void reply_bytes(http_reply *r, const char *type, const void *bytes, size_t n)
{
    r->status = 200;
    r->type = type;
    free(r->body);
    r->body = malloc(n ? n : 1);
    r->n = r->body ? n : 0;
    if (r->body)
        memcpy(r->body, bytes, n);
    else
        r->status = 500;
}

json_t *error_json(unsigned status, const char *param, const char *code, const char *text)
{
    json_t *named = param ? json_string(param) : NULL; /* NULL too for a name that is no UTF-8 */
    json_t *message =
        json_string(text); /* NULL where a name within it was cut in the middle of a character */
    json_t *o = json_pack("{s:{s:o,s:s,s:s?,s:s?}}", "error", "message",
                          message ? message : json_string("the request has texts that are not UTF-8"), "type",
                          status == 401   ? "authentication_error"
                          : status == 429 ? "rate_limit_error"
                          : status < 500  ? "invalid_request_error"
                                          : "server_error",
                          "param", named ? param : NULL, "code", code);
    json_decref(named);
    return o;
}

void reply_error(http_reply *r, unsigned status, const char *param, const char *code, const char *format, ...)
{
    char text[MAX_SENTENCE + 256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    reply_json(r, status, error_json(status, param, code, text));
}

/* A wish that cannot be met is the client's; a machine that fails is ours. */
unsigned status_of(oq_status st)
{
    switch (st) {
    case OQ_OK:
        return 200;
    case OQ_E_ARG:
    case OQ_E_CONFIG:
    case OQ_E_MISMATCH:
    case OQ_E_FORMAT: /* of an uploaded picture: the model's files were read long ago */
    case OQ_E_UNSUPPORTED:
        return 400;
    case OQ_E_CANCELED:
        return 503;
    default:
        return 500;
    }
}

bool submit(server *s, job *j, http_reply *r, int retry_after_s)
{
    bool stopping = false;
    if (queue_submit(&s->queue, j, &stopping)) return true;
    if (stopping) {
        reply_error(r, 503, NULL, "stopping", "the server is stopping");
        return false;
    }
    reply_error(r, 429, NULL, "queue_full", "%d requests are waiting already: try again later",
                s->queue.limit);
    r->retry_after_s = retry_after_s;
    return false;
}

void reply_failed(http_reply *r, const job *j)
{
    reply_error(r, status_of(j->status), NULL, oq_status_name(j->status), "%s",
                *j->message ? j->message : oq_status_text(j->status));
}
