/* env.c -- life of an environment, its allocator, error text, log and cancellation. */
#include "base/env.h"

#include "base/file.h"
#include "base/pool.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

const char *oq_status_name(oq_status status)
{
    switch (status) {
#define X(name, value, text)                                                                                 \
    case OQ_##name:                                                                                          \
        return #name;
        OQ_STATUS_MAP(X)
#undef X
    }
    return "E_UNKNOWN";
}

const char *oq_status_text(oq_status status)
{
    switch (status) {
#define X(name, value, text)                                                                                 \
    case OQ_##name:                                                                                          \
        return text;
        OQ_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

const char *oq_version(void)
{
    return OQ_VERSION_STRING;
}

static void *default_allocate(void *user, size_t bytes)
{
    (void)user;
    const size_t rounded = oq_align_up(bytes ? bytes : 1, 64);
    return rounded < bytes ? NULL : aligned_alloc(64, rounded);
}

static void default_release(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

oq_status oq_env_new(const oq_env_params *params, oq_env **out)
{
    if (!out) return OQ_E_ARG;
    *out = NULL;
    oq_env_params p = OQ_ENV_PARAMS_INIT;
    if (params) memcpy(&p, params, params->size < sizeof p ? params->size : sizeof p);
    if (!p.allocate != !p.release) return OQ_E_ARG;
    if (!p.allocate) p.allocate = default_allocate, p.release = default_release;

    oq_env *env = p.allocate(p.alloc_user, sizeof *env);
    if (!env) return OQ_E_NOMEM;
    memset(env, 0, sizeof *env);
    env->params = p;
    const oq_status st = oq_pool_new(env, p.n_threads, &env->pool);
    if (st != OQ_OK) {
        oq_log(env, OQ_LOG_INFO, "%s", env->error); /* nobody can ask for it later */
        oq_env_free(env);
        return st;
    }
    *out = env;
    return OQ_OK;
}

void oq_env_free(oq_env *env)
{
    if (!env) return;
    if (env->registry && env->registry_free) env->registry_free(env, env->registry);
    oq_pool_free(env, env->pool);
    oq_files_forget(env);
    env->params.release(env->params.alloc_user, env);
}

const char *oq_env_error(const oq_env *env)
{
    return env ? env->error : "";
}

void oq_env_clear(oq_env *env)
{
    if (!env) return;
    env->status = OQ_OK;
    env->error[0] = '\0';
    oq_files_forget(env);
    atomic_store(&env->canceled, 0);
}

void oq_env_cancel(oq_env *env)
{
    if (env) atomic_store(&env->canceled, 1);
}

oq_status oq_check_canceled(oq_env *env)
{
    if (!env || !atomic_load_explicit(&env->canceled, memory_order_relaxed)) return OQ_OK;
    return oq_fail(env, OQ_E_CANCELED, "interrupted");
}

/* Length of the valid UTF-8 sequence at `s`, 0 if there is none. */
static size_t sequence_length(const unsigned char *s)
{
    if (s[0] < 0x80) return 1;
    const size_t n = s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc2 ? 2 : 0;
    if (n == 0 || s[0] > 0xf4) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return n;
}

/* Messages reach terminals and JSON: control bytes and broken UTF-8 from files must not. */
static void sanitize(char *text)
{
    unsigned char *s = (unsigned char *)text;
    while (*s) {
        const size_t n = sequence_length(s);
        if (n == 0 || *s < 0x20 || *s == 0x7f)
            *s++ = '?';
        else
            s += n;
    }
}

oq_status oq_fail(oq_env *env, oq_status status, const char *fmt, ...)
{
    if (!env || env->status != OQ_OK) return status;
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(env->error, sizeof env->error, fmt, args);
    va_end(args);
    if (n >= (int)sizeof env->error) memcpy(env->error + sizeof env->error - 4, "...", 4);
    sanitize(env->error);
    env->status = status;
    return status;
}

oq_status oq_fail_within(oq_env *env, oq_status status, const char *where)
{
    char message[sizeof env->error];
    if (!env || env->status == OQ_OK) return oq_fail(env, status, "%s", where);
    memcpy(message, env->error, sizeof message);
    env->status = OQ_OK;
    return oq_fail(env, status, "%s: %s", where, message);
}

void oq_log(oq_env *env, oq_log_level level, const char *fmt, ...)
{
    if (!env || !env->params.log) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    sanitize(text);
    env->params.log(env->params.log_user, level, text);
}

void oq_report_progress(oq_env *env, const char *phase, int64_t done, int64_t total, double elapsed_s)
{
    if (!env || !env->params.progress || env->unreported > 0) return;
    const oq_progress p = {.phase = phase, .done = done, .total = total, .elapsed_s = elapsed_s};
    env->params.progress(env->params.progress_user, &p);
}

void oq_progress_within(oq_env *env, bool within)
{
    env->unreported += within ? 1 : -1;
}

void *oq_alloc_raw(oq_env *env, size_t bytes)
{
    void *p = env->params.allocate(env->params.alloc_user, bytes ? bytes : 1);
    if (p) atomic_fetch_add_explicit(&env->n_allocs, 1, memory_order_relaxed);
    return p;
}

void *oq_alloc(oq_env *env, size_t bytes)
{
    void *p = oq_alloc_raw(env, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void oq_free(oq_env *env, void *ptr)
{
    if (ptr) env->params.release(env->params.alloc_user, ptr);
}

oq_status oq_new(oq_env *env, size_t count, size_t size, const char *what, void *out_pointer)
{
    size_t bytes;
    if (!oq_size_mul(count, size, &bytes))
        return oq_fail(env, OQ_E_NOMEM, "%s: %zu times %zu bytes do not fit in memory", what, count, size);
    void *p = oq_alloc(env, bytes);
    if (!p) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for %zu bytes", what, bytes);
    memcpy(out_pointer, &p, sizeof p);
    return OQ_OK;
}

char *oq_strdup(oq_env *env, const char *text)
{
    const size_t n = strlen(text);
    char *copy = oq_alloc_raw(env, n + 1);
    if (copy) memcpy(copy, text, n + 1);
    return copy;
}

double oq_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

size_t oq_peak_rss_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (size_t)usage.ru_maxrss * 1024u : 0;
}
