/* env.h -- the first parameter of everything fallible: allocator, log, error text, cancellation, threads.
 * There is no global state in the library; one env serves one thread (or request) at a time. */
#ifndef OQ_BASE_ENV_H
#define OQ_BASE_ENV_H

#include "omniq/omniq.h"

#include <stdatomic.h>

typedef struct oq_pool oq_pool;
typedef struct oq_mapped oq_mapped;     /* a file that is mapped; base/file_map.c */
typedef struct oq_registry oq_registry; /* methods registered from outside; owned by quant/ */

struct oq_env {
    oq_env_params  params;
    atomic_size_t  n_allocs;     /* allocations since creation: a test asserts that forward adds none */
    atomic_int     canceled;
    int            unreported;   /* above 0: work within work, whose progress is not shown */
    oq_status      status;       /* of the first failure since oq_env_clear */
    char           error[2048];  /* its sentence */
    oq_pool       *pool;         /* worker threads; NULL: the caller's thread does everything */
    oq_registry   *registry;     /* NULL until oq_method_register */
    void         (*registry_free)(oq_env *env, oq_registry *registry);
    _Atomic(oq_mapped *) mapped; /* files open as memory; a signal handler walks them */
    oq_mapped     *lost;         /* one that changed under its reader, closed before anybody asked; NULL: none */
};

#define OQ_TRY(expr)                              \
    do {                                          \
        const oq_status oq_try_st_ = (expr);      \
        if (oq_try_st_ != OQ_OK) return oq_try_st_; \
    } while (0)

/* For functions that hold something: `st` receives the status, `label` frees. */
#define OQ_TRY_GOTO(st, expr, label) \
    do {                             \
        (st) = (expr);               \
        if ((st) != OQ_OK) goto label; \
    } while (0)

#define OQ_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Writes the sentence (lower case, no full stop, names the subject and the numbers) and returns `status`.
 * The first failure since oq_env_clear stays: callers above pass a status on untouched. Control bytes and invalid
 * UTF-8 in the arguments come out as '?'; text beyond the buffer is cut with "...". `env` may be NULL. */
oq_status oq_fail(oq_env *env, oq_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The sentence that stands again, with the place that it speaks of in front: "recipe.json: …". Returns `status`. */
oq_status oq_fail_within(oq_env *env, oq_status status, const char *where);

void oq_log(oq_env *env, oq_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void oq_report_progress(oq_env *env, const char *phase, int64_t done, int64_t total, double elapsed_s);
/* What is done in between (within: true before, false after) reports no progress: who calls it reports instead. */
void oq_progress_within(oq_env *env, bool within);

/* OQ_E_CANCELED with a sentence once oq_env_cancel was called, else OQ_OK. */
oq_status oq_check_canceled(oq_env *env);

/* Zeroed memory aligned to 64 bytes; NULL when there is none (bytes 0 gives a valid pointer).
 * These do not write an error; oq_new does, naming `what`. */
void *oq_alloc(oq_env *env, size_t bytes);
void *oq_alloc_raw(oq_env *env, size_t bytes); /* not zeroed: for large blocks that are overwritten at once */
void  oq_free(oq_env *env, void *ptr);         /* NULL is fine */

/* count * size bytes, zeroed, with overflow checked; on failure OQ_E_NOMEM naming `what` and the bytes. */
oq_status oq_new(oq_env *env, size_t count, size_t size, const char *what, void *out_pointer);
char     *oq_strdup(oq_env *env, const char *text); /* NULL when there is no memory */

double oq_now_s(void);       /* monotonic seconds */
size_t oq_peak_rss_bytes(void);

#endif
