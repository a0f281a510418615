/* queue.c -- jobs wait here in the order in which they came; one worker takes them one by one, each on all threads. The
 * queue's lock guards every job's state. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- a job's life ------------------------------------------------------------------------------------------- */

static void make_id(char *id, size_t size)
{
    uint8_t random[12];
    char *at = id;
    FILE *f = fopen("/dev/urandom", "rb");
    if (!f || fread(random, 1, sizeof random, f) != sizeof random) /* ids have to differ, not to be secret */
        for (size_t i = 0; i < sizeof random; i++)
            random[i] = (uint8_t)((uint64_t)(now_s() * 1e9) >> (i * 5 % 57));
    if (f) fclose(f);
    at += snprintf(at, size, "video_");
    for (size_t i = 0; i < sizeof random; i++) at += snprintf(at, 3, "%02x", random[i]);
}

job *job_new(void)
{
    job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    if (oq_env_new(&(oq_env_params){.size = sizeof(oq_env_params), .n_threads = 1}, &j->env) != OQ_OK ||
        oq_options_new(j->env, "generate", &j->options) != OQ_OK) {
        oq_env_free(j->env);
        free(j);
        return NULL;
    }
    j->references = 1;
    j->created = time(NULL);
    j->waited_s = now_s(); /* the moment, until it is at work */
    make_id(j->id, sizeof j->id);
    return j;
}

/* Not inlined: gcc 12 takes the holder of one of two references for somebody who uses what the other one freed. */
__attribute__((noinline)) static void job_free(job *j)
{
    for (int i = 0; i < j->n_files; i++) {
        remove(j->files[i]);
        *strrchr(j->files[i], '/') = '\0';
        rmdir(j->files[i]); /* upload_begin's, of this file alone */
        free(j->files[i]);
    }
    for (int i = 0; i < j->n_items; i++) free(j->items[i].bytes);
    for (int i = 0; i < j->n_partial; i++) free(j->partial[i].bytes);
    free(j->items);
    oq_options_free(j->options);
    oq_env_free(j->env);
    free(j);
}

/* The lock is held. */
static void drop(job *j)
{
    if (--j->references == 0) job_free(j);
}

void job_hold(queue *q, job *j)
{
    pthread_mutex_lock(&q->lock);
    j->references++;
    pthread_mutex_unlock(&q->lock);
}

void job_release(queue *q, job *j)
{
    if (!j) return;
    pthread_mutex_lock(&q->lock);
    drop(j);
    pthread_mutex_unlock(&q->lock);
}

static bool ended(const job *j)
{
    return j->state == JOB_DONE || j->state == JOB_FAILED || j->state == JOB_CANCELED;
}

/* ---- the worker --------------------------------------------------------------------------------------------- */

static void show_progress(void *user, const oq_progress *p)
{
    queue *q = user;
    pthread_mutex_lock(&q->lock);
    if (q->running) {
        snprintf(q->running->phase, sizeof q->running->phase, "%s", p->phase);
        q->running->done = p->done;
        q->running->total = p->total;
    }
    pthread_mutex_unlock(&q->lock);
}

static bool read_file(const char *path, job_item *item)
{
    FILE *f = fopen(path, "rb");
    long size = -1;
    if (f && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    item->bytes = size > 0 && fseek(f, 0, SEEK_SET) == 0 ? malloc((size_t)size) : NULL;
    item->n = (size_t)(size > 0 ? size : 0);
    const bool ok = item->bytes && fread(item->bytes, 1, item->n, f) == item->n;
    if (f) fclose(f);
    return ok;
}

/* One item as a file, and its bytes. The library writes files whole or not at all; memory is where they stay. */
static oq_status take_item(const queue *q, const job *j, oq_env *env, const oq_media *media, int i,
                           job_item *item, char *message, size_t size)
{
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/%s.%s", q->folder, j->id, j->ending);
    const oq_status st = oq_media_save(env, media, i, path);
    if (st != OQ_OK) return snprintf(message, size, "%s", oq_env_error(env)), st;
    item->seed = oq_media_seed(media, i);
    const bool ok = read_file(path, item);
    unlink(path);
    if (ok) return OQ_OK;
    snprintf(message, size, "item %d cannot be read back from %s", i, path);
    return OQ_E_IO;
}

/* A picture that is not done yet; without it the result is the same. Its env is the job's: an error there ends nothing. */
static void take_partial(void *user, const oq_preview *preview)
{
    queue *q = user;
    job *j = q->running; /* this is the worker, which alone sets it */
    char message[MAX_SENTENCE];
    job_item item = {0};
    if (!j || j->n_partial >= j->partial_images) return;
    if (take_item(q, j, j->env, preview->media, 0, &item, message, sizeof message) != OQ_OK) {
        free(item.bytes);
        return;
    }
    item.step = preview->step;
    item.steps = preview->steps;
    pthread_mutex_lock(&q->lock);
    j->partial[j->n_partial++] = item;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

/* Outside the lock: results are nobody's to see before the state says so. */
static oq_status work(queue *q, job *j, char *message, size_t size)
{
    oq_media *media = NULL;
    oq_status st = oq_generate(q->env, q->model, j->options, &media);
    if (st != OQ_OK) return snprintf(message, size, "%s", oq_env_error(q->env)), st;
    const int n = oq_media_count(media);
    j->width = oq_media_width(media);
    j->height = oq_media_height(media);
    j->frames = oq_media_frames(media);
    j->fps = oq_media_fps(media);
    j->items = calloc((size_t)n, sizeof *j->items);
    if (!j->items) st = OQ_E_NOMEM, snprintf(message, size, "%d results: no memory", n);
    for (int i = 0; st == OQ_OK && i < n; i++) {
        j->n_items = i + 1;
        st = take_item(q, j, q->env, media, i, &j->items[i], message, size);
    }
    oq_media_free(media);
    return st;
}

/* An upload is the client's picture, not a file of ours: ": what is wrong", or NULL. */
static const char *without_path(const queue *q, const char *message)
{
    return strncmp(message, q->folder, strlen(q->folder)) == 0 ? strstr(message, ": ") : NULL;
}

/* The lock is held. */
static void finish(queue *q, job *j, oq_status st, const char *message)
{
    const char *const rest = without_path(q, message);
    j->status = st;
    snprintf(j->message, sizeof j->message, "%s%s", rest ? "image" : "", rest ? rest : message);
    j->state = st == OQ_OK ? JOB_DONE : st == OQ_E_CANCELED ? JOB_CANCELED : JOB_FAILED;
    j->finished = time(NULL);
    q->counts.done += j->state == JOB_DONE;
    q->counts.failed += j->state == JOB_FAILED;
    q->counts.canceled += j->state == JOB_CANCELED;
    q->counts.items += st == OQ_OK ? (uint64_t)j->n_items : 0;
    q->counts.worked_s += j->worked_s;
    pthread_cond_broadcast(&q->changed);
}

/* Finished jobs beyond the limit leave, the oldest first: they stand at the end. */
static void trim(queue *q)
{
    int n = 0;
    for (job **at = &q->kept; *at;) {
        job *j = *at;
        if (!ended(j) || n++ < q->keep) {
            at = &j->older;
            continue;
        }
        *at = j->older;
        j->kept = false;
        drop(j);
    }
}

static void *run(void *user)
{
    queue *q = user;
    char message[MAX_SENTENCE];
    pthread_mutex_lock(&q->lock);
    while (!q->stopping) {
        job *j = q->first;
        if (!j) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        q->first = j->next;
        j->next = NULL;
        q->counts.waiting--;
        oq_env_clear(q->env); /* a cancel meant an earlier job */
        q->running = j;
        j->state = JOB_RUNNING;
        const double start = now_s();
        j->waited_s = start - j->waited_s;
        pthread_mutex_unlock(&q->lock);
        message[0] = '\0';
        const oq_status st = work(q, j, message, sizeof message);
        pthread_mutex_lock(&q->lock);
        j->worked_s = now_s() - start;
        q->running = NULL;
        finish(q, j, st, message);
        trim(q);
        drop(j);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

oq_status queue_start(queue *q, const oq_model *model, const char *folder, int threads, int limit, int keep)
{
    const oq_env_params params = {.size = sizeof params,
                                  .progress = show_progress,
                                  .progress_user = q,
                                  .n_threads = threads,
                                  .preview = take_partial,
                                  .preview_user = q};
    *q = (queue){.model = model, .folder = folder, .limit = limit, .keep = keep};
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    const oq_status st = oq_env_new(&params, &q->env);
    if (st != OQ_OK) return st;
    if (pthread_create(&q->worker, NULL, run, q) != 0) return OQ_E_NOMEM;
    q->started = true;
    return OQ_OK;
}

void queue_stop(queue *q)
{
    if (q->started) {
        pthread_mutex_lock(&q->lock);
        q->stopping = true;
        for (job *j = q->first, *next; j; j = next) {
            next = j->next;
            finish(q, j, OQ_E_CANCELED, "the server is stopping");
            drop(j);
        }
        q->first = NULL;
        q->counts.waiting = 0;
        if (q->running) oq_env_cancel(q->env);
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
        pthread_join(q->worker, NULL);
        q->started = false;
    }
    for (job *j = q->kept, *older; j; j = older) {
        older = j->older;
        drop(j);
    }
    q->kept = NULL;
    oq_env_free(q->env);
    q->env = NULL;
}

/* ---- what requests do with it ------------------------------------------------------------------------------- */

bool queue_submit(queue *q, job *j, bool *stopping)
{
    pthread_mutex_lock(&q->lock);
    *stopping = q->stopping;
    const bool taken = !q->stopping && (q->counts.waiting < q->limit || (!q->running && !q->first));
    if (taken) {
        job **at = &q->first;
        while (*at) at = &(*at)->next;
        *at = j;
        j->references++;
        q->counts.waiting++;
        if (j->kept) {
            j->older = q->kept;
            q->kept = j;
            j->references++;
        }
        pthread_cond_broadcast(&q->changed);
    } else {
        q->counts.refused++;
    }
    pthread_mutex_unlock(&q->lock);
    return taken;
}

/* The lock is held. */
static void cancel(queue *q, job *j)
{
    if (j->state == JOB_RUNNING) oq_env_cancel(q->env);
    for (job **at = &q->first; *at; at = &(*at)->next) {
        if (*at != j) continue;
        *at = j->next;
        q->counts.waiting--;
        finish(q, j, OQ_E_CANCELED, "canceled before its turn");
        drop(j);
        return;
    }
}

/* How often somebody who waits is asked whether he is still there. */
static struct timespec a_moment_from_now(void)
{
    enum { MOMENT_NS = 200000000 };
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += MOMENT_NS;
    if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    return t;
}

job_state queue_wait(queue *q, job *j, int seen, bool (*gone)(void *user), void *user)
{
    pthread_mutex_lock(&q->lock);
    while (!ended(j) && j->n_partial <= seen) {
        const struct timespec until = a_moment_from_now();
        pthread_cond_timedwait(&q->changed, &q->lock, &until);
        if (!ended(j) && gone(user)) cancel(q, j);
    }
    const job_state state = j->state;
    pthread_mutex_unlock(&q->lock);
    return state;
}

int queue_partials(queue *q, const job *j)
{
    pthread_mutex_lock(&q->lock);
    const int n = j->n_partial;
    pthread_mutex_unlock(&q->lock);
    return n;
}

job *queue_find(queue *q, const char *id)
{
    pthread_mutex_lock(&q->lock);
    job *j = q->kept;
    while (j && strcmp(j->id, id) != 0) j = j->older;
    if (j) j->references++;
    pthread_mutex_unlock(&q->lock);
    return j;
}

job *queue_kept_at(queue *q, int index)
{
    pthread_mutex_lock(&q->lock);
    job *j = q->kept;
    while (j && index-- > 0) j = j->older;
    if (j) j->references++;
    pthread_mutex_unlock(&q->lock);
    return j;
}

void queue_forget(queue *q, job *j)
{
    pthread_mutex_lock(&q->lock);
    cancel(q, j);
    for (job **at = &q->kept; *at; at = &(*at)->older) {
        if (*at != j) continue;
        *at = j->older;
        j->kept = false;
        drop(j);
        break;
    }
    pthread_mutex_unlock(&q->lock);
}

queue_counts queue_count(queue *q)
{
    pthread_mutex_lock(&q->lock);
    queue_counts counts = q->counts;
    counts.running = q->running != NULL;
    pthread_mutex_unlock(&q->lock);
    return counts;
}

int queue_ahead(queue *q, const job *j)
{
    int n = 0;
    pthread_mutex_lock(&q->lock);
    if (j->state == JOB_WAITING) {
        n = q->running != NULL;
        for (const job *at = q->first; at && at != j; at = at->next) n++;
    }
    pthread_mutex_unlock(&q->lock);
    return n;
}
