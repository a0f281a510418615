/* window.c -- weights that live in pinned host memory and pass through a ring of device memory. A piece that is asked for is
 * waited for by the stream that computes, not by the host; behind it, the copies of the pieces that followed it last time are
 * enqueued on a stream of their own, as far as the ring has room that nobody reads any more. */
#include "cuda/cuda.h"

#include <string.h>

#define ENTRIES     64   /* pieces in the ring at most */
#define FIRST_TABLE 1024 /* slots of the table of pieces; a power of two, doubled when it is half full */
#define NONE        (-1)

typedef struct piece { /* of host memory, and what was asked for after it */
    const void *host;
    size_t bytes;
    int64_t next; /* its slot does not last: an index into `pieces`; NONE: not known yet */
} piece;

typedef struct entry { /* a piece's stay in the ring */
    int64_t piece;
    size_t at, bytes;
    bool used; /* `freed` was recorded: nobody enqueued later reads it */
    cudaEvent_t ready, freed;
} entry;

struct oq_window {
    oq_env *env;
    oq_device *device;
    char *base;
    size_t bytes, head; /* of the ring; where the next piece goes */
    cudaStream_t copies;
    piece *pieces;
    size_t n_pieces, cap_pieces;
    int64_t *table; /* hash of the address -> index of the piece + 1 */
    size_t n_table;
    entry entries[ENTRIES]; /* a queue, oldest first */
    size_t first, n;
    int64_t current, last_issued, last_asked; /* entry in use (its number since the beginning), pieces */
};

static entry *entry_at(oq_window *w, size_t i)
{
    return &w->entries[(w->first + i) % ENTRIES];
}

/* ---- pieces by address ---------------------------------------------------------------------------------- */

static size_t slot_of(const oq_window *w, const void *host)
{
    size_t at = (size_t)(((uintptr_t)host >> 8) * 0x9e3779b97f4a7c15u >> 20) & (w->n_table - 1);
    while (w->table[at] && w->pieces[w->table[at] - 1].host != host) at = (at + 1) & (w->n_table - 1);
    return at;
}

static bool grow(oq_window *w)
{
    const size_t n_table = w->n_table ? 2 * w->n_table : FIRST_TABLE, cap = n_table / 2;
    piece *pieces = NULL;
    int64_t *table = NULL;
    if (oq_new(w->env, cap, sizeof *pieces, "streamed layers", &pieces) != OQ_OK) return false;
    if (oq_new(w->env, n_table, sizeof *table, "streamed layers", &table) != OQ_OK) {
        oq_free(w->env, pieces);
        return false;
    }
    if (w->n_pieces) memcpy(pieces, w->pieces, w->n_pieces * sizeof *pieces);
    oq_free(w->env, w->pieces);
    oq_free(w->env, w->table);
    w->pieces = pieces, w->table = table, w->n_table = n_table, w->cap_pieces = cap;
    for (size_t i = 0; i < w->n_pieces; i++) w->table[slot_of(w, w->pieces[i].host)] = (int64_t)i + 1;
    return true;
}

static int64_t piece_of(oq_window *w, const void *host, size_t bytes)
{
    size_t at = slot_of(w, host);
    if (w->table[at]) return w->table[at] - 1;
    if (w->n_pieces == w->cap_pieces) {
        if (!grow(w)) return NONE;
        at = slot_of(w, host);
    }
    w->pieces[w->n_pieces] = (piece){.host = host, .bytes = bytes, .next = NONE};
    w->table[at] = (int64_t)++w->n_pieces;
    return (int64_t)w->n_pieces - 1;
}

/* ---- the ring ------------------------------------------------------------------------------------------- */

static bool overlaps(const entry *e, size_t at, size_t bytes)
{
    return e->at < at + bytes && at < e->at + e->bytes;
}

/* Makes room for `bytes` at *at; the copies wait for whoever read what lay there. False: someone still does, or will. */
static bool make_room(oq_window *w, size_t bytes, size_t *at)
{
    *at = w->head + bytes <= w->bytes ? w->head : 0;
    size_t leave = 0; /* the oldest ones up to the last that is in the way */
    for (size_t i = 0; i < w->n; i++)
        if (overlaps(entry_at(w, i), *at, bytes)) leave = i + 1;
    if (w->n == ENTRIES && leave == 0) leave = 1;
    for (size_t i = 0; i < leave; i++)
        if (!entry_at(w, i)->used) return false;
    for (; leave > 0; leave--) {
        cudaStreamWaitEvent(w->copies, entry_at(w, 0)->freed, 0);
        w->first = (w->first + 1) % ENTRIES;
        w->n--;
        if (w->current != NONE) w->current--;
    }
    return true;
}

/* Enqueues the copy of a piece. */
static bool issue(oq_window *w, int64_t which)
{
    const piece *p = &w->pieces[which];
    const size_t bytes = (p->bytes + OQ_CUDA_ALIGN - 1) / OQ_CUDA_ALIGN * OQ_CUDA_ALIGN;
    size_t at;
    if (bytes > w->bytes || !make_room(w, bytes, &at)) return false;
    entry *e = entry_at(w, w->n++);
    e->piece = which, e->at = at, e->bytes = bytes, e->used = false;
    oq_cuda_note(w->device,
                 cudaMemcpyAsync(w->base + at, p->host, p->bytes, cudaMemcpyHostToDevice, w->copies),
                 "copy of a streamed layer");
    cudaEventRecord(e->ready, w->copies);
    w->head = at + bytes;
    w->last_issued = which;
    return true;
}

static void leave(entry *e, cudaStream_t stream)
{
    e->used = true;
    cudaEventRecord(e->freed, stream);
}

/* The entry that holds the piece; copies that were guessed wrongly before it are given up. */
static int64_t arrive(oq_window *w, int64_t which)
{
    int64_t found = NONE;
    for (size_t i = 0; i < w->n && found == NONE; i++)
        if (!entry_at(w, i)->used && entry_at(w, i)->piece == which) found = (int64_t)i;
    for (size_t i = 0; i < w->n && (found == NONE || (int64_t)i < found); i++)
        if (!entry_at(w, i)->used) leave(entry_at(w, i), w->copies);
    if (found != NONE) return found;
    return issue(w, which) ? (int64_t)w->n - 1 : NONE;
}

const void *oq_cuda_window_get(oq_window *w, const void *host, size_t bytes)
{
    oq_cuda_enter(w->device);
    if (w->current != NONE) leave(entry_at(w, (size_t)w->current), w->device->stream);
    w->current = NONE;
    const int64_t which = piece_of(w, host, bytes);
    const int64_t found = which == NONE ? NONE : arrive(w, which);
    if (found == NONE) {
        oq_cuda_note(w->device, cudaErrorMemoryAllocation, "copy of a streamed layer");
        return w->base;
    }
    w->current = found;
    if (w->last_asked != NONE) w->pieces[w->last_asked].next = which;
    w->last_asked = which;
    const char *const at = w->base + entry_at(w, (size_t)found)->at;
    cudaStreamWaitEvent(w->device->stream, entry_at(w, (size_t)found)->ready, 0);
    for (int64_t next = w->pieces[w->last_issued].next; next != NONE && next != which && issue(w, next);)
        next = w->pieces[w->last_issued].next;
    return at;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

void oq_cuda_window_free(oq_env *env, oq_window *w)
{
    if (!w) return;
    oq_cuda_enter(w->device);
    cudaStreamSynchronize(w->device->stream);
    if (w->copies) cudaStreamSynchronize(w->copies);
    for (int i = 0; i < ENTRIES; i++) {
        if (w->entries[i].ready) cudaEventDestroy(w->entries[i].ready);
        if (w->entries[i].freed) cudaEventDestroy(w->entries[i].freed);
    }
    if (w->copies) cudaStreamDestroy(w->copies);
    if (w->base) cudaFree(w->base);
    oq_free(env, w->pieces);
    oq_free(env, w->table);
    oq_free(env, w);
}

static cudaError_t window_open(oq_window *w)
{
    cudaError_t error = cudaMalloc((void **)&w->base, w->bytes);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&w->copies, cudaStreamNonBlocking);
    for (int i = 0; error == cudaSuccess && i < ENTRIES; i++) {
        error = cudaEventCreateWithFlags(&w->entries[i].ready, cudaEventDisableTiming);
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&w->entries[i].freed, cudaEventDisableTiming);
    }
    return error;
}

oq_status oq_cuda_window_new(oq_env *env, oq_device *d, size_t bytes, oq_window **out)
{
    oq_window *w = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *w, "window", &w));
    *w = (oq_window){.env = env, .device = d, .bytes = bytes, .current = NONE, .last_asked = NONE};
    oq_cuda_enter(d);
    const cudaError_t error = window_open(w);
    if (error == cudaSuccess && grow(w)) {
        *out = w;
        return OQ_OK;
    }
    cudaGetLastError();
    oq_cuda_window_free(env, w);
    return oq_fail(env, OQ_E_NOMEM, "device cuda:%d: no window of %zu bytes for streamed layers", d->index,
                   bytes);
}

oq_status oq_cuda_host_new(oq_env *env, oq_device *d, size_t bytes, void **out)
{
    oq_cuda_enter(d);
    *out = NULL;
    if (cudaMallocHost(out, bytes ? bytes : 1) == cudaSuccess) return OQ_OK;
    cudaGetLastError();
    return oq_fail(env, OQ_E_NOMEM, "device cuda:%d: no pinned host memory for %zu bytes of streamed layers",
                   d->index, bytes);
}

void oq_cuda_host_free(oq_env *env, oq_device *d, void *host)
{
    (void)env;
    oq_cuda_enter(d);
    if (host) cudaFreeHost(host);
}
