/* parts.h -- the parts of the server: what it was told, requests and replies, jobs and their queue, routes. */
#ifndef OMNIQ_SERVER_PARTS_H
#define OMNIQ_SERVER_PARTS_H

#include "omniq/omniq.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct MHD_Connection;

/* A sentence holds the longest path and what is wrong with it: finish() finds the path in front, and keeps it to itself. */
enum { MAX_FILES = 16, MAX_FOLDER = 1024, MAX_PATH = MAX_FOLDER + 64, MAX_SENTENCE = MAX_PATH + 1024 };
enum { MAX_PARTIAL = 3 /* OpenAI's bound */ };

/* ---- jobs: one request for pictures or a video, from the queue to its result --------------------------------- */

typedef enum job_state { JOB_WAITING, JOB_RUNNING, JOB_DONE, JOB_FAILED, JOB_CANCELED } job_state;

typedef struct job_item { /* one finished file */
    uint8_t *bytes;
    size_t n;
    uint64_t seed;
    int step, steps; /* of a picture that is not done: made after so many of the steps */
} job_item;

typedef struct job {
    struct job *next;  /* that waits behind it */
    struct job *older; /* kept before it */
    char id[40];
    int references;
    bool kept; /* asked for later, by its id */
    /* the request, complete before it is submitted */
    oq_env *env; /* the request's own: errors of its options */
    oq_options *options;
    char ending[8]; /* "png" */
    char *files[MAX_FILES]; /* uploads, removed with the job */
    int n_files;
    bool stream;        /* events instead of one answer */
    int partial_images; /* of them at most: what the picture is like so far */
    /* what has become of it; the queue's lock guards all below */
    job_state state;
    char phase[16];
    int64_t done, total;
    oq_status status;
    char message[MAX_SENTENCE];
    job_item *items;
    int n_items;
    job_item partial[MAX_PARTIAL]; /* each stays as it is once it counts */
    int n_partial;
    int64_t width, height, frames;
    double fps;
    time_t created, finished;
    double waited_s, worked_s;
} job;

typedef struct queue_counts {
    int waiting;
    bool running;
    uint64_t done, failed, canceled, refused, items;
    double worked_s;
} queue_counts;

typedef struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t worker;
    bool started, stopping;
    oq_env *env; /* the worker's */
    const oq_model *model;
    const char *folder; /* for files on their way to memory */
    int limit, keep;
    job *first, *running, *kept;
    queue_counts counts;
} queue;

/* limit: how many may wait; keep: how many finished jobs stay. */
oq_status queue_start(queue *q, const oq_model *model, const char *folder, int threads, int limit, int keep);
void queue_stop(queue *q); /* what waits is canceled, what runs stops at its next layer */
job *job_new(void);        /* one reference, the caller's; NULL: no memory */
void job_hold(queue *q, job *j); /* one more */
void job_release(queue *q, job *j);
bool queue_submit(queue *q, job *j, bool *stopping); /* false: full, or stopping */
/* Until the job has ended or has more than `seen` partial pictures, or `gone` says that nobody waits any more, which
 * cancels it. */
job_state queue_wait(queue *q, job *j, int seen, bool (*gone)(void *user), void *user);
int queue_partials(queue *q, const job *j); /* how many partial pictures it has; they stay as they are */
job *queue_find(queue *q, const char *id); /* a reference, the caller's; NULL: no kept job of that name */
job *queue_kept_at(queue *q, int index);   /* likewise, newest first */
void queue_forget(queue *q, job *j);       /* a kept job leaves; it is canceled where it has not ended */
queue_counts queue_count(queue *q);
int queue_ahead(queue *q, const job *j);   /* jobs before it */

/* ---- the server ---------------------------------------------------------------------------------------------- */

typedef struct server {
    oq_env *env;
    const oq_options *given; /* of "serve": also what requests begin with */
    oq_model *model;
    char *plan;              /* the plan as JSON */
    const char *host;
    int port;
    char name[256];          /* what requests call the model */
    char key[256];           /* "": everybody may ask */
    size_t max_body;
    bool quiet, verbose;     /* of the log on stderr */
    char folder[MAX_FOLDER]; /* of its own, below TMPDIR or /tmp */
    time_t started;
    queue queue;
    uint64_t n_files;        /* names of uploads; under the queue's lock */
    atomic_int n_heard;      /* requests between head and end of reply */
} server;

/* ---- requests and replies ------------------------------------------------------------------------------------ */

typedef struct http_request {
    struct MHD_Connection *connection;
    const char *path;
    char id[40];    /* what stands for '*' in the route's path */
    bool raw;       /* the client accepts a picture itself and not JSON */
    const char *accepted; /* then of which type: "png" */
    bool form;      /* fields are texts, from multipart/form-data */
    json_t *fields; /* an object; NULL: no body */
    job *job;       /* uploads go into it; taken over by the route */
} http_request;

typedef struct http_reply {
    unsigned status;
    char *body; /* malloc */
    size_t n;
    const char *type;
    int retry_after_s; /* 0: none */
    bool closes;       /* the connection, as what follows on it cannot be trusted */
    struct stream *stream; /* its events are the body; NULL: `body` is */
} http_reply;

void reply_json(http_reply *r, unsigned status, json_t *value); /* takes the value */
void reply_bytes(http_reply *r, const char *type, const void *bytes, size_t n);
/* {"error":{"message","type","param","code"}}; param NULL: none. */
void reply_error(http_reply *r, unsigned status, const char *param, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
unsigned status_of(oq_status st);
void reply_failed(http_reply *r, const job *j); /* of a job that has ended without a result */
bool client_gone(void *connection);
void client_timed(void *connection, bool timed); /* does its idle time count: is it the client who has to go on? */
/* {"error":{...}} of a job that has ended without a result; NULL: no memory. */
json_t *error_json(unsigned status, const char *param, const char *code, const char *message);
bool submit(server *s, job *j, http_reply *r, int retry_after_s); /* false: `r` says why not */

/* ---- events (stream.c): a job's partial pictures and its result, as OpenAI's clients read them ------------------- */

typedef struct stream stream;
stream *stream_new(queue *q, job *j, bool edits, void *connection); /* holds the job; NULL: no memory, and the job is canceled */
void stream_free(stream *s);
/* Up to `size` bytes; waits for the next event. 0: there are no more. */
size_t stream_read(stream *s, char *to, size_t size);

/* ---- a request's fields as options ----------------------------------------------------------------------------- */

/* Fills the job's options and ending; false: `r` says why not. */
bool fields_read(server *s, http_request *q, http_reply *r);
/* The file of a new upload, which the job removes with its folder; false: errno says why. Of MAX_FILES at most. */
bool upload_begin(server *s, job *j, char *path, size_t size);
/* Bytes of "data:image/png;base64,..." or of the text alone: malloc'ed, NULL: not base64. */
uint8_t *base64_decode(const char *text, size_t *n);
char *base64_encode(const uint8_t *bytes, size_t n); /* malloc'ed */

/* ---- routes ---------------------------------------------------------------------------------------------------- */

typedef struct route {
    const char *method, *path; /* '*' stands for one word */
    bool takes_body, open;     /* open: asked for without a key */
    void (*answer)(server *s, http_request *q, http_reply *r);
} route;

/* NULL: `r` is 404 or 405. id[40]: what '*' stands for. */
const route *route_find(const char *method, const char *path, char *id, http_reply *r);

void answer_health(server *s, http_request *q, http_reply *r);
void answer_metrics(server *s, http_request *q, http_reply *r);
void answer_models(server *s, http_request *q, http_reply *r);
void answer_model(server *s, http_request *q, http_reply *r);
void answer_plan(server *s, http_request *q, http_reply *r);
void answer_images(server *s, http_request *q, http_reply *r);
void answer_edits(server *s, http_request *q, http_reply *r);
void answer_videos_post(server *s, http_request *q, http_reply *r);
void answer_videos_list(server *s, http_request *q, http_reply *r);
void answer_video(server *s, http_request *q, http_reply *r);
void answer_video_content(server *s, http_request *q, http_reply *r);
void answer_video_delete(server *s, http_request *q, http_reply *r);

/* ---- HTTP ------------------------------------------------------------------------------------------------------ */

struct MHD_Daemon;
bool http_can_start(const server *s, char *message, size_t size); /* asked before a model is loaded; false: one sentence */
struct MHD_Daemon *http_start(server *s, char *message, size_t size); /* fills s->port; NULL: one sentence */
/* No new connections; who has been heard gets his reply, within a few seconds. */
void http_stop(server *s, struct MHD_Daemon *daemon);

#endif
