/* trace.c -- keeps the tensors of a run by key and writes them as one safetensors file. */
#include "engine/engine.h"

#include "base/names.h"
#include "base/size.h"

#include <string.h>

#define MAX_SHAPE 8

typedef struct trace_entry {
    struct trace_entry *next;
    const char *key;
    const oq_dtype *dtype;
    int64_t shape[MAX_SHAPE];
    int n_dims;
    void *data;
    size_t bytes;
} trace_entry;

struct oq_trace {
    oq_env *env;
    oq_arena arena;     /* keys, globs */
    const char **globs; /* NULL: everything except per-block tensors */
    size_t n_globs;
    trace_entry *first, **last;
};

/* Comma separated patterns, of any length. */
static oq_status read_globs(oq_trace *t, const char *csv)
{
    const char *word = NULL;
    size_t n = 0;
    for (const char *at = csv; at; t->n_globs++) at = oq_csv_next(at, &word, &n);
    OQ_TRY(oq_arena_new(&t->arena, t->n_globs, sizeof *t->globs, "trace-keys", &t->globs));
    const char *at = csv;
    for (size_t i = 0; i < t->n_globs; i++) {
        at = oq_csv_next(at, &word, &n);
        t->globs[i] = oq_arena_strndup(&t->arena, word, n);
        if (!t->globs[i]) return oq_fail(t->env, OQ_E_NOMEM, "trace-keys: no memory");
    }
    return OQ_OK;
}

oq_status oq_trace_new(oq_env *env, const char *globs, oq_trace **out)
{
    oq_trace *t = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *t, "trace", &t));
    t->env = env;
    t->last = &t->first;
    oq_arena_init(&t->arena, env);
    const oq_status st = globs && *globs ? read_globs(t, globs) : OQ_OK;
    if (st != OQ_OK) {
        oq_trace_free(t);
        return st;
    }
    *out = t;
    return OQ_OK;
}

/* Tensors inside the networks ("dit0.layers.3…", "text.pos.0.hidden.1", "vae.mid") are many: they come when
 * asked for. */
static bool wanted(const oq_trace *t, const char *key)
{
    if (!t->globs)
        return strncmp(key, "dit0.", 5) != 0 && !strstr(key, ".hidden.") &&
               (strncmp(key, "vae.", 4) != 0 || strcmp(key, "vae.in") == 0 || strcmp(key, "vae.out") == 0);
    for (size_t i = 0; i < t->n_globs; i++)
        if (oq_glob_match(t->globs[i], key)) return true;
    return false;
}

static bool known(const oq_trace *t, const char *key)
{
    for (const trace_entry *e = t->first; e; e = e->next)
        if (strcmp(e->key, key) == 0) return true;
    return false;
}

oq_status oq_trace_sink_put(void *trace, const char *key, const oq_dtype *dtype, const void *data,
                            const int64_t *shape, int n_dims)
{
    oq_trace *t = trace;
    if (!wanted(t, key) || known(t, key)) return OQ_OK;
    trace_entry *e = NULL;
    OQ_TRY(oq_arena_new(&t->arena, 1, sizeof *e, "trace", &e));
    e->key = oq_arena_strdup(&t->arena, key);
    e->dtype = dtype;
    e->n_dims = n_dims < MAX_SHAPE ? n_dims : MAX_SHAPE;
    e->bytes = dtype->bytes;
    for (int i = 0; i < e->n_dims; i++) {
        e->shape[i] = shape[i];
        if (!oq_size_mul(e->bytes, (size_t)shape[i], &e->bytes))
            return oq_fail(t->env, OQ_E_NOMEM, "trace '%s' does not fit in memory", key);
    }
    e->data = oq_alloc_raw(t->env, e->bytes);
    if (!e->key || !e->data) {
        oq_free(t->env, e->data);
        return oq_fail(t->env, OQ_E_NOMEM, "trace '%s': no memory for %zu bytes", key, e->bytes);
    }
    memcpy(e->data, data, e->bytes);
    *t->last = e;
    t->last = &e->next;
    return OQ_OK;
}

static oq_json *header_entry(const trace_entry *e, size_t at)
{
    oq_json *json = oq_json_new_object(), *shape = oq_json_new_array(), *offsets = oq_json_new_array();
    for (int i = 0; i < e->n_dims; i++) oq_json_append(shape, oq_json_new_int(e->shape[i]));
    oq_json_append(offsets, oq_json_new_int((int64_t)at));
    oq_json_append(offsets, oq_json_new_int((int64_t)(at + e->bytes)));
    oq_json_set(json, "dtype", oq_json_new_string(e->dtype->name));
    oq_json_set(json, "shape", shape);
    oq_json_set(json, "data_offsets", offsets);
    return json;
}

static oq_status make_header(const oq_trace *t, char **out)
{
    oq_json *header = oq_json_new_object();
    size_t at = 0;
    bool ok = header != NULL;
    for (const trace_entry *e = t->first; ok && e; e = e->next) {
        ok = oq_json_set(header, e->key, header_entry(e, at));
        at += e->bytes;
    }
    const oq_status st = ok ? oq_json_dump(t->env, header, OQ_JSON_COMPACT, out)
                            : oq_fail(t->env, OQ_E_NOMEM, "trace: no memory for its header");
    oq_json_free(header);
    return st;
}

/* A pattern without effect is most often one that was mistyped. */
static void warn_of_idle_globs(const oq_trace *t)
{
    for (size_t i = 0; i < t->n_globs; i++) {
        const trace_entry *e = t->first;
        while (e && !oq_glob_match(t->globs[i], e->key)) e = e->next;
        if (!e) oq_log(t->env, OQ_LOG_WARN, "trace-keys: '%s' matches no stage of this run", t->globs[i]);
    }
}

oq_status oq_trace_write(oq_trace *t, const char *path)
{
    warn_of_idle_globs(t);
    char *header = NULL;
    OQ_TRY(make_header(t, &header));
    const size_t n = strlen(header), padded = oq_align_up(n, 8);
    oq_file_writer *w = NULL;
    const oq_status st = oq_file_create(t->env, path, &w);
    if (st == OQ_OK) {
        uint8_t length[8];
        for (int i = 0; i < 8; i++) length[i] = (uint8_t)(padded >> (8 * i));
        oq_file_write(w, length, sizeof length);
        oq_file_write(w, header, n);
        oq_file_write(w, "       ", padded - n);
        for (const trace_entry *e = t->first; e; e = e->next) oq_file_write(w, e->data, e->bytes);
    }
    oq_free(t->env, header);
    return st == OQ_OK ? oq_file_finish(w) : st;
}

void oq_trace_free(oq_trace *t)
{
    if (!t) return;
    for (trace_entry *e = t->first; e; e = e->next) oq_free(t->env, e->data);
    oq_arena_deinit(&t->arena);
    oq_free(t->env, t);
}
