/* http.c -- between libmicrohttpd and the routes: a thread for each connection collects the body (JSON, or a form whose
 * files go to disk), asks the route, sends its reply. */
#include "parts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTION_LIMIT = 256, IDLE_S = 60, FORM_BUFFER = 32768, FIRST_BODY = 4096, MAX_TEXT = 1 << 20 };

typedef struct exchange { /* one request, from its head to the end of the reply */
    server *server;
    const route *route; /* NULL: the reply is an error already */
    http_request request;
    http_reply reply;
    char *body; /* JSON so far */
    size_t n, capacity, seen;
    struct MHD_PostProcessor *form;
    FILE *file;                                /* the upload that is coming in */
    char path[MAX_PATH], field[64], name[256]; /* its file, its field, what the client calls it */
    char method[8], asked[128];                /* for the log */
    struct timespec begun;
} exchange;

bool client_gone(void *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd fd = {.fd = info ? info->connect_fd : -1, .events = POLLRDHUP};
    return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

void client_timed(void *connection, bool timed)
{
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, timed ? (unsigned)IDLE_S : 0U);
}

/* ---- who may ask --------------------------------------------------------------------------------------------- */

/* In a time that does not tell how much of it was right. */
static bool same_key(const char *want, const char *have)
{
    const size_t n = strlen(want), m = strlen(have);
    unsigned different = n != m;
    for (size_t i = 0; i < m; i++) different |= (unsigned char)have[i] ^ (unsigned char)want[n ? i % n : 0];
    return !different;
}

static bool may_ask(const server *s, struct MHD_Connection *c)
{
    const char *header = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (!*s->key) return true;
    return header && strncasecmp(header, "Bearer ", 7) == 0 && same_key(s->key, header + 7);
}

/* ---- the body ------------------------------------------------------------------------------------------------ */

static bool broken_disk(exchange *e)
{
    if (!e->reply.status)
        reply_error(&e->reply, 500, e->field, "E_IO", "%s: the upload cannot be kept on disk: %s", e->field,
                    strerror(errno));
    return false;
}

static bool close_upload(exchange *e)
{
    FILE *file = e->file;
    job *j = e->request.job;
    e->file = NULL;
    if (!file) return true;
    if (fclose(file) != 0) return broken_disk(e);
    if (oq_options_set(j->options, "image", e->path) == OQ_OK) return true;
    reply_error(&e->reply, 400, e->field, "E_ARG", "%s", oq_env_error(j->env));
    return false;
}

static bool is_picture(const char *field)
{
    return strcmp(field, "image") == 0 || strcmp(field, "image[]") == 0 ||
           strcmp(field, "input_reference") == 0;
}

static bool open_upload(exchange *e, const char *field, const char *name)
{
    if (!close_upload(e)) return false;
    snprintf(e->field, sizeof e->field, "%s", field);
    snprintf(e->name, sizeof e->name, "%s", name);
    if (!is_picture(field)) {
        reply_error(&e->reply, 400, e->field, "E_ARG",
                    strcmp(field, "mask") == 0 ? "%s: no family of this build paints within a mask"
                                               : "%s: only 'image' and 'input_reference' are files",
                    e->field);
        return false;
    }
    if (e->request.job->n_files == MAX_FILES) {
        reply_error(&e->reply, 400, e->field, "E_ARG", "%s: at most %d pictures", e->field, MAX_FILES);
        return false;
    }
    if (!upload_begin(e->server, e->request.job, e->path, sizeof e->path)) return broken_disk(e);
    e->file = fopen(e->path, "wb");
    return e->file ? true : broken_disk(e);
}

/* The first piece may be empty, and then comes a first piece again. */
static bool take_file(exchange *e, const char *field, const char *name, const char *bytes, uint64_t offset,
                      size_t n)
{
    const bool again =
        e->file && ftell(e->file) == 0 && strcmp(e->field, field) == 0 && strcmp(e->name, name) == 0;
    if (offset == 0 && !again && !open_upload(e, field, name)) return false;
    return !n || (e->file && fwrite(bytes, 1, n, e->file) == n) ? true : broken_disk(e);
}

/* A field's text may come in pieces, the first of them empty. */
static bool take_text(exchange *e, const char *field, const char *bytes, uint64_t offset, size_t n)
{
    json_t *fields = e->request.fields, *old = json_object_get(fields, field);
    if (n && memchr(bytes, '\0', n)) { /* nothing behind it would be seen */
        reply_error(&e->reply, 400, field, "E_ARG", "%s: a text has no NUL character", field);
        return false;
    }
    if (offset + n > MAX_TEXT) {
        reply_error(&e->reply, 413, field, "too_large", "%s: a text of a form may have %d KiB", field,
                    MAX_TEXT >> 10);
        return false;
    }
    if (offset == 0 && old && *json_string_value(old)) {
        reply_error(&e->reply, 400, field, "E_ARG", "%s: given twice", field);
        return false;
    }
    const char *before = offset ? json_string_value(old) : "";
    const size_t length = before ? strlen(before) : 0;
    char *text = malloc(length + n + 1);
    if (text) {
        memcpy(text, before ? before : "", length);
        memcpy(text + length, bytes, n);
        text[length + n] = '\0';
    }
    json_t *value = text ? json_stringn_nocheck(text, length + n) : NULL;
    free(text);
    if (value && json_object_set_new_nocheck(fields, field, value) == 0) return true;
    reply_error(&e->reply, 503, NULL, "E_NOMEM", "a field of the form: no memory");
    return false;
}

/* Asked at the end: a piece may end within a character. */
static bool texts_are_utf8(exchange *e)
{
    const char *field = NULL;
    json_t *value = NULL;
    json_object_foreach(e->request.fields, field, value)
    {
        json_t *checked = json_string(json_string_value(value)), *name = json_string(field);
        const bool ok = checked && name;
        json_decref(checked);
        json_decref(name);
        if (ok) continue;
        reply_error(&e->reply, 400, field, "E_ARG", "a field of the form is not UTF-8");
        return false;
    }
    return true;
}

static enum MHD_Result on_form(void *user, enum MHD_ValueKind kind, const char *field, const char *file_name,
                               const char *type, const char *encoding, const char *bytes, uint64_t offset,
                               size_t n)
{
    exchange *e = user;
    (void)kind, (void)type, (void)encoding;
    if (e->reply.status) return MHD_YES; /* an error is on its way: the rest is read and dropped */
    if (!field || !*field) {             /* the library hands on what the client sent: no name, too */
        reply_error(&e->reply, 400, NULL, "E_ARG", "a part of the form has no name");
        return MHD_YES;
    }
    const bool ok = file_name ? take_file(e, field, file_name, bytes, offset, n)
                              : close_upload(e) && take_text(e, field, bytes, offset, n);
    (void)ok;
    return MHD_YES;
}

static void take_json(exchange *e, const char *bytes, size_t n)
{
    if (e->n + n > e->capacity) {
        const size_t more = e->capacity * 2 > e->n + n ? e->capacity * 2 : e->n + n + FIRST_BODY;
        char *grown = realloc(e->body, more);
        if (!grown) {
            reply_error(&e->reply, 503, NULL, "E_NOMEM", "a body of %zu bytes: no memory", e->n + n);
            return;
        }
        e->body = grown;
        e->capacity = more;
    }
    memcpy(e->body + e->n, bytes, n);
    e->n += n;
}

static void too_large(exchange *e)
{
    reply_error(&e->reply, 413, NULL, "too_large", "a body may have %zu MiB here ('omniq serve --max-body')",
                e->server->max_body >> 20);
}

static void malformed(exchange *e)
{
    if (!e->reply.status) reply_error(&e->reply, 400, NULL, "E_ARG", "the form is cut off or malformed");
}

static void post(exchange *e, const char *bytes, size_t n)
{
    if (MHD_post_process(e->form, bytes, n) != MHD_YES) malformed(e);
}

static void take(exchange *e, const char *bytes, size_t n)
{
    e->seen += n;
    if (e->reply.status) return;
    if (e->seen > e->server->max_body)
        too_large(e);
    else if (e->form)
        post(e, bytes, n);
    else
        take_json(e, bytes, n);
}

static void parse_json(exchange *e)
{
    json_error_t error;
    json_t *value = json_loadb(e->body ? e->body : "", e->n, JSON_REJECT_DUPLICATES, &error);
    if (json_is_object(value)) {
        e->request.fields = value;
        return;
    }
    if (value)
        reply_error(&e->reply, 400, NULL, "E_ARG", "the body has to be a JSON object");
    else
        reply_error(&e->reply, 400, NULL, "E_ARG", "the body is no JSON: line %d, column %d: %s", error.line,
                    error.column, error.text);
    json_decref(value);
}

/* ---- from the head to the reply -------------------------------------------------------------------------------- */

/* "Accept: image/webp" asks for the picture itself, in that type unless a field says another. */
static void read_accept(http_request *q)
{
    const char *accept = MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    if (!accept || strncmp(accept, "image/", 6) != 0) return;
    q->raw = true;
    q->accepted = strncmp(accept + 6, "webp", 4) == 0   ? "webp"
                  : strncmp(accept + 6, "jpeg", 4) == 0 ? "jpeg"
                                                        : "png";
}

static enum MHD_Result count_lengths(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    int *n = user;
    (void)kind, (void)value;
    *n += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 ||
          strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

/* Two lengths of one body: a proxy before this server might believe the other one, and take the rest for a second request. */
static bool one_length(struct MHD_Connection *c)
{
    int n = 0;
    MHD_get_connection_values(c, MHD_HEADER_KIND, count_lengths, &n);
    return n < 2;
}

static void begin_body(exchange *e, struct MHD_Connection *c)
{
    const char *type = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE);
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && strtoull(length, NULL, 10) > e->server->max_body) {
        too_large(e);
        return;
    }
    e->request.job = job_new();
    if (!e->request.job) {
        reply_error(&e->reply, 503, NULL, "E_NOMEM", "a request: no memory");
        return;
    }
    if (type && strncasecmp(type, "multipart/form-data", 19) == 0) {
        e->request.form = true;
        e->request.fields = json_object();
        e->form = MHD_create_post_processor(c, FORM_BUFFER, on_form, e);
        if (!e->form)
            reply_error(&e->reply, 400, NULL, "E_ARG", "the form has no boundary of 2 characters or more");
    } else if (!type || strncasecmp(type, "application/json", 16) != 0) {
        reply_error(&e->reply, 415, NULL, "unsupported_media_type",
                    "the body is %s; JSON or multipart/form-data is needed", type ? type : "of no type");
    }
}

/* What a client sends reaches a terminal. */
static void only_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f) *text = '?';
}

static void note_request(exchange *e, const char *method, const char *url)
{
    snprintf(e->method, sizeof e->method, "%s", method);
    snprintf(e->asked, sizeof e->asked, "%s", url);
    only_printable(e->method);
    only_printable(e->asked);
    clock_gettime(CLOCK_MONOTONIC, &e->begun);
}

/* One line a request; who asks how we are does so too often to be worth one. */
static void log_request(const exchange *e)
{
    struct timespec now;
    const server *s = e->server;
    const bool probe = strcmp(e->asked, "/health") == 0 || strcmp(e->asked, "/metrics") == 0;
    if (s->quiet || (probe && !s->verbose)) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double took_s =
        (double)(now.tv_sec - e->begun.tv_sec) + (double)(now.tv_nsec - e->begun.tv_nsec) * 1e-9;
    fprintf(stderr, "omniq: %s %s: %u in %.2f s\n", e->method, e->asked, e->reply.status, took_s);
}

static exchange *begin(server *s, struct MHD_Connection *c, const char *url, const char *method)
{
    exchange *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    atomic_fetch_add(&s->n_heard, 1);
    e->server = s;
    note_request(e, method, url);
    e->request.connection = c;
    e->request.path = url;
    read_accept(&e->request);
    const route *found = route_find(method, url, e->request.id, &e->reply);
    if (found && !found->open && !may_ask(s, c)) {
        reply_error(&e->reply, 401, NULL, "invalid_api_key",
                    "this server asks for a key: 'Authorization: Bearer KEY'");
        found = NULL;
    }
    if (found && MHD_get_connection_values(c, MHD_GET_ARGUMENT_KIND, NULL, NULL) > 0) {
        reply_error(&e->reply, 400, NULL, "E_ARG", "%s takes no query: fields stand in the body", url);
        found = NULL;
    }
    if (!one_length(c)) {
        reply_error(&e->reply, 400, NULL, "E_ARG", "a body has one length; this request says more than one");
        e->reply.closes = true;
        found = NULL;
    }
    if (found && found->takes_body) begin_body(e, c);
    e->route = e->reply.status ? NULL : found;
    return e;
}

/* The events' own reply: the library asks for more until there are none. */
static ssize_t read_events(void *user, uint64_t at, char *to, size_t size)
{
    (void)at;
    const size_t n = stream_read(user, to, size);
    return n ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

static void free_events(void *user)
{
    stream_free(user);
}

static struct MHD_Response *make_response(http_reply *r)
{
    enum { BLOCK = 65536 };
    if (!r->stream)
        return MHD_create_response_from_buffer(r->n, r->body ? r->body : "", MHD_RESPMEM_MUST_COPY);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_events, r->stream, free_events);
    if (!response) stream_free(r->stream);
    r->stream = NULL; /* the response's now */
    if (response) MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    return response;
}

static enum MHD_Result send_reply(exchange *e, struct MHD_Connection *c)
{
    http_reply *r = &e->reply;
    char number[16];
    struct MHD_Response *response = make_response(r);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, r->type);
    if (r->status == 401) MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (r->closes) MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (r->retry_after_s) {
        snprintf(number, sizeof number, "%d", r->retry_after_s);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, number);
    }
    const enum MHD_Result ok = MHD_queue_response(c, r->status, response);
    MHD_destroy_response(response);
    return ok;
}

/* The connection's limit of idle time is for clients, not for our work: it pauses meanwhile. */
static void answer(exchange *e, struct MHD_Connection *c)
{
    if (e->form) {
        if (MHD_destroy_post_processor(e->form) != MHD_YES) malformed(e); /* its last piece comes out now */
        e->form = NULL;
        if (!e->reply.status && close_upload(e)) texts_are_utf8(e);
    } else if (e->route && e->route->takes_body && !e->reply.status) {
        parse_json(e);
    }
    if (e->reply.status || !e->route) return;
    client_timed(c, false);
    e->route->answer(e->server, &e->request, &e->reply);
    client_timed(c, true);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *bytes, size_t *n, void **state)
{
    exchange *e = *state;
    (void)version;
    if (!e) {
        *state = e = begin(user, c, url, method);
        if (!e) return MHD_NO;
        return e->reply.status ? send_reply(e, c) : MHD_YES; /* an error need not wait for the body */
    }
    if (*n) {
        take(e, bytes, *n);
        *n = 0;
        return MHD_YES;
    }
    answer(e, c);
    return send_reply(e, c);
}

static void on_completed(void *user, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode why)
{
    exchange *e = *state;
    (void)c, (void)why;
    if (!e) return;
    log_request(e);
    if (e->form) MHD_destroy_post_processor(e->form);
    if (e->file) fclose(e->file);
    json_decref(e->request.fields);
    job_release(&((server *)user)->queue, e->request.job);
    free(e->reply.body);
    free(e->body);
    free(e);
    *state = NULL;
    atomic_fetch_sub(&((server *)user)->n_heard, 1);
}

/* ---- start and stop -------------------------------------------------------------------------------------------- */

static struct MHD_Daemon *listen_at(server *s, const struct addrinfo *a, int *error)
{
    const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
                           MHD_USE_ITC | (a->ai_family == AF_INET6 ? MHD_USE_DUAL_STACK : 0);
    errno = 0;
    struct MHD_Daemon *daemon = MHD_start_daemon(
        flags, (uint16_t)s->port, NULL, NULL, on_request, s, MHD_OPTION_SOCK_ADDR, a->ai_addr,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTION_LIMIT, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_S, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_END);
    *error = errno;
    return daemon;
}

static bool look_up(const server *s, struct addrinfo **found, char *message, size_t size)
{
    char port[16];
    const struct addrinfo want = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof port, "%d", s->port);
    const int st = getaddrinfo(s->host, port, &want, found);
    if (st != 0) snprintf(message, size, "host '%s': %s", s->host, gai_strerror(st));
    return st == 0;
}

bool http_can_start(const server *s, char *message, size_t size)
{
    struct addrinfo *found = NULL;
    const int yes = 1;
    if (!look_up(s, &found, message, size)) return false;
    const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0;
    ok = ok && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
    if (!ok) snprintf(message, size, "cannot listen at %s port %d: %s", s->host, s->port, strerror(errno));
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    return ok;
}

struct MHD_Daemon *http_start(server *s, char *message, size_t size)
{
    struct addrinfo *found = NULL;
    int error = 0;
    if (!look_up(s, &found, message, size)) return NULL;
    struct MHD_Daemon *daemon = listen_at(s, found, &error);
    freeaddrinfo(found);
    if (!daemon) {
        snprintf(message, size, "cannot listen at %s port %d: %s", s->host, s->port,
                 error ? strerror(error) : "no reason is told");
        return NULL;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    if (info && info->port) s->port = info->port;
    return daemon;
}

void http_stop(server *s, struct MHD_Daemon *daemon)
{
    enum { LAST_WORDS_S = 5, LOOKS_A_S = 100 };
    const struct timespec moment = {.tv_nsec = 1000000000 / LOOKS_A_S};
    const MHD_socket fd = MHD_quiesce_daemon(daemon);
    /* Stopping the library closes connections whose reply is still on its way. */
    for (int i = 0; i < LAST_WORDS_S * LOOKS_A_S && atomic_load(&s->n_heard) > 0; i++)
        nanosleep(&moment, NULL);
    MHD_stop_daemon(daemon);
    if (fd != MHD_INVALID_SOCKET) close(fd);
}
