/* rewrite_file.c -- weight files written by several workers: header and offsets first, then every layer's bytes to their
 * place. */
#include "engine/rewrite.h"

#include "base/pool.h"
#include "base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writing {
    oq_rewrite *rw;
    oq_file_writer **writers; /* per file */
    size_t *data_at;          /* per file: where data begins */
    atomic_llong done;
    int turn; /* that goes on */
    double started_s;
} writing;

/* ---- headers ------------------------------------------------------------------------------------------- */

static size_t element_bytes(const char *type)
{
    const oq_dtype *dtype = oq_dtype_find(type);
    return dtype ? dtype->bytes : 1;
}

/* Wide elements first, so that none is unaligned; then by name. */
static int compare_tensors(const void *a, const void *b)
{
    const oq_write_tensor *x = *(oq_write_tensor *const *)a, *y = *(oq_write_tensor *const *)b;
    const size_t m = element_bytes(x->type), n = element_bytes(y->type);
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return m != n ? (m > n ? -1 : 1) : strcmp(x->name, y->name);
}

static oq_status write_header(oq_file_writer *w, const oq_strbuf *header, size_t data_bytes)
{
    OQ_TRY(oq_file_reserve(w, header->size + data_bytes));
    oq_file_write_at(w, 0, oq_strbuf_text(header), header->size);
    return OQ_OK;
}

/* Offsets of one file's tensors, which stand together in the sorted list; its header. */
static oq_status begin_file(writing *w, oq_write_tensor **sorted, size_t n, size_t *first, int file,
                            const oq_json *metadata)
{
    const oq_write_container *container = w->rw->container;
    oq_write_tensor **own = sorted + *first;
    size_t at = 0, count = 0;
    for (; *first < n && sorted[*first]->file == file; ++*first, ++count) {
        sorted[*first]->at = at;
        at = oq_align_up(at + sorted[*first]->bytes, container->align);
    }
    oq_strbuf header;
    oq_strbuf_init(&header, w->rw->env);
    oq_status st = container->header(w->rw->env, metadata, own, count, &header);
    if (st == OQ_OK) st = oq_strbuf_check(&header, w->rw->file_names[file]);
    if (st == OQ_OK) st = write_header(w->writers[file], &header, at);
    w->data_at[file] = header.size;
    oq_strbuf_deinit(&header);
    return st;
}

static oq_status sort_tensors(oq_rewrite *rw, oq_write_tensor ***out, size_t *n)
{
    oq_write_tensor **sorted = NULL;
    *n = 0;
    for (size_t i = 0; i < rw->n_jobs; i++) *n += (size_t)rw->jobs[i].n_out;
    OQ_TRY(oq_new(rw->env, *n + 1, sizeof *sorted, "output list", &sorted));
    *n = 0;
    for (size_t i = 0; i < rw->n_jobs; i++)
        for (int t = 0; t < rw->jobs[i].n_out; t++) sorted[(*n)++] = rw->jobs[i].out[t];
    if (*n) qsort(sorted, *n, sizeof *sorted, compare_tensors);
    *out = sorted;
    return OQ_OK;
}

/* ---- the index of several files ------------------------------------------------------------------------ */

/* "x-00001-of-00002.safetensors" -> "x.safetensors.index.json". */
static const char *index_name(oq_rewrite *rw)
{
    const char *name = rw->file_names[0], *number = strstr(name, "-00001-of-");
    return number ? oq_arena_printf(rw->arena, "%.*s.safetensors.index.json", (int)(number - name), name)
                  : "diffusion_pytorch_model.safetensors.index.json";
}

static oq_status write_index(oq_rewrite *rw, const char *folder)
{
    oq_env *env = rw->env;
    oq_json *index = oq_json_new_object(), *map = oq_json_new_object(), *metadata = oq_json_new_object();
    char *text = NULL, *path = NULL;
    const char *name = index_name(rw);
    oq_json_set(metadata, "total_size", oq_json_new_int((int64_t)rw->bytes));
    for (size_t i = 0; i < rw->n_jobs; i++)
        for (int t = 0; t < rw->jobs[i].n_out; t++)
            oq_json_set(map, rw->jobs[i].out[t]->name,
                        oq_json_new_string(rw->file_names[rw->jobs[i].out[t]->file]));
    oq_json_set(index, "metadata", metadata);
    oq_json_set(index, "weight_map", map);
    oq_status st = name ? oq_json_dump(env, index, OQ_JSON_INDENT | OQ_JSON_SORT, &text)
                        : oq_fail(env, OQ_E_NOMEM, "%s: no memory", folder);
    if (st == OQ_OK && !(path = oq_path_join(env, folder, name)))
        st = oq_fail(env, OQ_E_NOMEM, "%s: no memory", folder);
    if (st == OQ_OK) st = oq_file_write_all(env, path, text, strlen(text));
    oq_free(env, path);
    oq_free(env, text);
    oq_json_free(index);
    return st;
}

/* ---- data ---------------------------------------------------------------------------------------------- */

static bool put_bytes(void *user, const oq_write_tensor *t, const void *bytes)
{
    const writing *w = user;
    return oq_file_write_at(w->writers[t->file], w->data_at[t->file] + t->at, bytes, t->bytes);
}

static void forget(const oq_rewrite *rw, const oq_inspect_layer *layer, const oq_ckpt_tensor *plain)
{
    if (layer) oq_inspect_layer_forget(rw->part->ckpt, layer);
    if (plain) oq_ckpt_forget(rw->part->ckpt, plain);
}

static void forget_job(const oq_rewrite *rw, const oq_rewrite_job *job)
{
    forget(rw, job->layer, job->plain);
    for (int i = 0; i < job->n_more; i++) forget(rw, job->more[i].layer, job->more[i].plain);
}

static void run_job(void *user, int64_t i, int worker)
{
    writing *w = user;
    oq_rewrite_job *job = &w->rw->jobs[i];
    oq_env *env = w->rw->env;
    if (job->turn != w->turn) return;
    if (atomic_load_explicit(&env->canceled, memory_order_relaxed)) {
        job->status = OQ_E_CANCELED;
        return;
    }
    job->status = oq_rewrite_run(env, job, put_bytes, w);
    forget_job(w->rw, job);
    const int64_t done = atomic_fetch_add(&w->done, 1) + 1;
    if (worker == 0)
        oq_report_progress(env, "write", done, (int64_t)w->rw->n_jobs, oq_now_s() - w->started_s);
}

/* Jobs without a turn side by side, the others one after the other. */
static oq_status run_turns(writing *w)
{
    oq_rewrite *rw = w->rw;
    oq_pool_run(rw->env->pool, (int64_t)rw->n_jobs, run_job, w);
    for (w->turn = 1; w->turn <= rw->n_turns; w->turn++) {
        OQ_TRY(rw->begin_turn(rw->turn_user, w->turn));
        for (size_t i = 0; i < rw->n_jobs; i++) run_job(w, (int64_t)i, 0);
    }
    return OQ_OK;
}

static oq_status first_failure(const oq_rewrite *rw)
{
    for (size_t i = 0; i < rw->n_jobs; i++) {
        const oq_rewrite_job *job = &rw->jobs[i];
        switch (job->status) {
        case OQ_OK:
        case OQ_E_IO: /* the file tells */
            break;
        case OQ_E_CANCELED:
            return oq_fail(rw->env, OQ_E_CANCELED, "interrupted while writing '%s'", job->name);
        case OQ_E_NOMEM:
            return oq_fail(rw->env, OQ_E_NOMEM, "layer '%s' of [%lld, %lld]: no memory for its temporaries",
                           job->name, (long long)job->n, (long long)job->k);
        default:
            return oq_fail(
                rw->env, job->status,
                "layer '%s' of [%lld, %lld] holds values that are not finite, or planes of another size",
                job->name, (long long)job->n, (long long)job->k);
        }
    }
    return OQ_OK;
}

static oq_status open_files(writing *w, const char *folder, const oq_json *metadata)
{
    oq_env *env = w->rw->env;
    oq_write_tensor **sorted = NULL;
    size_t n = 0, first = 0;
    OQ_TRY(sort_tensors(w->rw, &sorted, &n));
    oq_status st = OQ_OK;
    for (int i = 0; st == OQ_OK && i < w->rw->n_files; i++) {
        char *path = oq_path_join(env, folder, w->rw->file_names[i]);
        st = path ? oq_file_create(env, path, &w->writers[i])
                  : oq_fail(env, OQ_E_NOMEM, "%s: no memory", folder);
        oq_free(env, path);
        if (st == OQ_OK) st = begin_file(w, sorted, n, &first, i, metadata);
    }
    oq_free(env, sorted);
    return st;
}

static oq_status close_files(writing *w, oq_status st)
{
    for (int i = 0; i < w->rw->n_files; i++) {
        if (!w->writers[i]) continue;
        if (st == OQ_OK)
            st = oq_file_finish(w->writers[i]);
        else
            oq_file_abort(w->writers[i]);
    }
    return st;
}

oq_status oq_rewrite_write(oq_rewrite *rw, const char *folder, const oq_json *metadata)
{
    oq_env *env = rw->env;
    writing w = {.rw = rw, .started_s = oq_now_s()};
    OQ_TRY(oq_dir_make(env, folder));
    oq_status st = oq_new(env, (size_t)rw->n_files, sizeof(oq_file_writer *), "files", &w.writers);
    if (st == OQ_OK) st = oq_new(env, (size_t)rw->n_files, sizeof *w.data_at, "files", &w.data_at);
    if (st == OQ_OK) st = open_files(&w, folder, metadata);
    if (st == OQ_OK) {
        st = run_turns(&w);
        if (st == OQ_OK) st = first_failure(rw);
    }
    if (w.writers) st = close_files(&w, st);
    if (st == OQ_OK)
        oq_report_progress(env, "write", (int64_t)rw->n_jobs, (int64_t)rw->n_jobs, oq_now_s() - w.started_s);
    if (st == OQ_OK && rw->n_files > 1) st = write_index(rw, folder);
    oq_free(env, w.data_at);
    oq_free(env, w.writers);
    return st;
}
