/* pool.c -- workers that spin briefly and then sleep; tasks are taken one by one from an atomic counter. */
#include "base/pool.h"

#include "base/size.h"

#include <pthread.h>
#include <sched.h>

#define MAX_THREADS 256
#define SPIN_ROUNDS 4000

typedef struct worker {
    oq_pool *pool;
    int index;
    pthread_t thread;
} worker;

struct oq_pool {
    int n_threads;   /* with the caller's */
    worker *workers; /* n_threads - 1 */
    int n_started;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_uint generation;
    atomic_int n_active; /* workers still inside the current generation */
    atomic_bool stop;
    atomic_flag busy; /* a run is under way: nested calls go serial */
    _Atomic int64_t next;
    int64_t n_tasks;
    oq_task_fn fn;
    void *user;
};

static int allowed_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void take_tasks(oq_pool *pool, int index)
{
    const int64_t n = pool->n_tasks;
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= n) return;
        pool->fn(pool->user, i, index);
    }
}

static void wait_for_generation(oq_pool *pool, unsigned seen)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen) return;
        cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->generation, memory_order_acquire) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    oq_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_generation(pool, seen);
        seen = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (atomic_load(&pool->stop)) return NULL;
        take_tasks(pool, self->index);
        if (atomic_fetch_sub_explicit(&pool->n_active, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void bump_generation(oq_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

oq_status oq_pool_new(oq_env *env, int n_threads, oq_pool **out)
{
    *out = NULL;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return oq_fail(env, OQ_E_ARG, "%d threads asked for, 1 to %d are possible", n_threads, MAX_THREADS);
    if (n_threads == 0) n_threads = (int)oq_min_i64(allowed_cores(), MAX_THREADS);
    oq_pool *pool = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *pool, "thread pool", &pool));
    pool->n_threads = n_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    oq_status st = oq_new(env, (size_t)n_threads, sizeof *pool->workers, "thread pool", &pool->workers);
    for (int i = 0; st == OQ_OK && i < n_threads - 1; i++) {
        pool->workers[i] = (worker){.pool = pool, .index = i + 1};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0)
            st = oq_fail(env, OQ_E_NOMEM, "thread %d of %d cannot be started", i + 2, n_threads);
        else
            pool->n_started++;
    }
    if (st != OQ_OK) {
        oq_pool_free(env, pool);
        return st;
    }
    *out = pool;
    return OQ_OK;
}

void oq_pool_free(oq_env *env, oq_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, true);
    bump_generation(pool);
    for (int i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    oq_free(env, pool->workers);
    oq_free(env, pool);
}

int oq_pool_threads(const oq_pool *pool)
{
    return pool ? pool->n_threads : 1;
}

static void run_serial(int64_t n_tasks, oq_task_fn fn, void *user)
{
    for (int64_t i = 0; i < n_tasks; i++) fn(user, i, 0);
}

static void wait_for_workers(oq_pool *pool)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->n_active, memory_order_acquire) == 0) return;
        cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->n_active, memory_order_acquire) != 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void oq_pool_run(oq_pool *pool, int64_t n_tasks, oq_task_fn fn, void *user)
{
    if (n_tasks <= 0) return;
    if (!pool || pool->n_started == 0 || n_tasks == 1) {
        run_serial(n_tasks, fn, user);
        return;
    }
    if (atomic_flag_test_and_set(&pool->busy)) {
        run_serial(n_tasks, fn, user);
        return;
    }
    pool->fn = fn;
    pool->user = user;
    pool->n_tasks = n_tasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->n_active, pool->n_started, memory_order_relaxed);
    bump_generation(pool);
    take_tasks(pool, 0);
    wait_for_workers(pool);
    atomic_flag_clear(&pool->busy);
}
