/* pool.c -- workers that join a run while it is open, spin within hot sections and sleep otherwise.
 *
 * `state` is one word: a number of the run, a bit that says that the run is open, and how many workers are inside. A worker
 * enters by adding one to an open state, so none can enter once the caller has closed it, and the caller waits only
 * for those inside. Sleepers are counted: a caller makes a system call only when there is one to wake. Both sides write
 * their own word before they read the other's (sequentially consistent), so one of them always sees the other. */
#include "base/pool.h"

#include "base/size.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum {
    MAX_THREADS = 1024,
    SPINS_PER_LOOK = 16,   /* pauses between two looks at the clock */
    COLD_SPIN_NS = 20000,  /* outside of hot sections */
    HOT_SPIN_NS = 4000000, /* inside: longer than what a pipeline does on the host between two operations */
    PUT_OFF_NS = 200000,   /* between two looks: somebody else had this core */
    CALLER_SPIN_NS = 1000000, /* waiting for the last tasks of a run */
    CACHE_LINE = 64
};

#define OPEN      (UINT64_C(1) << 31)
#define INSIDE    (OPEN - 1)
#define RUN_SHIFT 32

typedef struct worker {
    oq_pool *pool;
    int index;
    pthread_t thread;
} worker;

typedef struct share { /* tasks [next, end) that one worker begins with */
    _Alignas(CACHE_LINE) _Atomic int64_t next;
    int64_t end;
} share;

struct oq_pool {
    _Alignas(CACHE_LINE) _Atomic uint64_t state;
    _Alignas(CACHE_LINE) share *shares; /* [n_threads] */
    oq_task_fn fn;
    void *user;
    int n_threads;   /* with the caller's */
    worker *workers; /* n_threads - 1 */
    int n_started;
    bool crowded;     /* more threads than cores: spinning takes the core from whoever is waited for */
    atomic_flag busy; /* a run is under way: nested calls go serial */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_int n_sleeping;
    atomic_int hot;
    atomic_bool caller_sleeps, stop;
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

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint32_t run_of(uint64_t state)
{
    return (uint32_t)(state >> RUN_SHIFT);
}

/* ---- workers ------------------------------------------------------------------------------------------- */

static void take_share(oq_pool *pool, share *s, int index)
{
    while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
        const int64_t i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (i < s->end) pool->fn(pool->user, i, index);
    }
}

/* One's own share, then what is left of the others'. */
static void take_tasks(oq_pool *pool, int index)
{
    for (int i = 0; i < pool->n_threads; i++)
        take_share(pool, &pool->shares[(index + i) % pool->n_threads], index);
}

/* Is there a run that this worker has not seen and may still enter? Then it is inside. */
static bool enter(oq_pool *pool, uint32_t *seen)
{
    uint64_t state = atomic_load_explicit(&pool->state, memory_order_acquire);
    while ((state & OPEN) && run_of(state) != *seen)
        if (atomic_compare_exchange_weak_explicit(&pool->state, &state, state + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *seen = run_of(state);
            return true;
        }
    return false;
}

static void leave(oq_pool *pool)
{
    const uint64_t left = atomic_fetch_sub(&pool->state, 1) - 1;
    if ((left & (OPEN | INSIDE)) != 0 || !atomic_load(&pool->caller_sleeps)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->lock);
}

static bool has_call(oq_pool *pool, uint32_t seen)
{
    const uint64_t state = atomic_load(&pool->state);
    return ((state & OPEN) && run_of(state) != seen) || atomic_load(&pool->stop);
}

/* Returns as soon as there is something to do, or when spinning is no longer worth it. */
static void spin(oq_pool *pool, uint32_t seen)
{
    if (pool->crowded) return;
    const int64_t start = now_ns();
    for (int64_t last = start;;) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (has_call(pool, seen)) return;
            cpu_relax();
        }
        const int64_t now = now_ns();
        const bool hot = atomic_load_explicit(&pool->hot, memory_order_relaxed) > 0;
        if (now - last > PUT_OFF_NS || now - start > (hot ? HOT_SPIN_NS : COLD_SPIN_NS)) return;
        last = now;
    }
}

/* Until there is a call; when a hot section begins, sleepers come back to spin. */
static void sleep_until_called(oq_pool *pool, uint32_t seen)
{
    pthread_mutex_lock(&pool->lock);
    const int hot = atomic_load(&pool->hot);
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (!has_call(pool, seen) && atomic_load(&pool->hot) <= hot)
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg)
{
    const worker *const self = arg;
    oq_pool *const pool = self->pool;
    uint32_t seen = 0;
    while (!atomic_load(&pool->stop)) {
        if (enter(pool, &seen)) {
            take_tasks(pool, self->index);
            leave(pool);
            continue;
        }
        spin(pool, seen);
        if (!has_call(pool, seen)) sleep_until_called(pool, seen);
    }
    return NULL;
}

static void wake_sleepers(oq_pool *pool)
{
    if (atomic_load(&pool->n_sleeping) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static oq_status start_workers(oq_env *env, oq_pool *pool)
{
    OQ_TRY(oq_new(env, (size_t)pool->n_threads, sizeof *pool->shares, "thread pool", &pool->shares));
    OQ_TRY(oq_new(env, (size_t)pool->n_threads, sizeof *pool->workers, "thread pool", &pool->workers));
    for (int i = 0; i < pool->n_threads - 1; i++) {
        pool->workers[i] = (worker){.pool = pool, .index = i + 1};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0)
            return oq_fail(env, OQ_E_NOMEM, "thread %d of %d cannot be started", i + 2, pool->n_threads);
        pool->n_started++;
    }
    return OQ_OK;
}

oq_status oq_pool_new(oq_env *env, int n_threads, oq_pool **out)
{
    *out = NULL;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return oq_fail(env, OQ_E_ARG, "%d threads asked for, 1 to %d are possible", n_threads, MAX_THREADS);
    const int cores = allowed_cores();
    if (n_threads == 0) n_threads = (int)oq_min_i64(cores, MAX_THREADS);
    if (n_threads > cores)
        oq_log(env, OQ_LOG_WARN, "%d threads on %d cores: they will take turns; %d or fewer are faster",
               n_threads, cores, cores);
    oq_pool *pool = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *pool, "thread pool", &pool));
    pool->n_threads = n_threads;
    pool->crowded = n_threads > cores;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    const oq_status st = start_workers(env, pool);
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
    wake_sleepers(pool);
    for (int i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    oq_free(env, pool->workers);
    oq_free(env, pool->shares);
    oq_free(env, pool);
}

int oq_pool_threads(const oq_pool *pool)
{
    return pool ? pool->n_threads : 1;
}

void oq_pool_hot_begin(oq_pool *pool)
{
    if (!pool) return;
    atomic_fetch_add(&pool->hot, 1);
    if (!pool->crowded) wake_sleepers(pool);
}

void oq_pool_hot_end(oq_pool *pool)
{
    if (pool) atomic_fetch_sub(&pool->hot, 1);
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

static void run_serial(int64_t n_tasks, oq_task_fn fn, void *user)
{
    for (int64_t i = 0; i < n_tasks; i++) fn(user, i, 0);
}

static bool all_left(oq_pool *pool)
{
    return (atomic_load(&pool->state) & INSIDE) == 0;
}

/* Those inside are at their last task. */
static void wait_for_workers(oq_pool *pool)
{
    const int64_t start = now_ns();
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (all_left(pool)) return;
            cpu_relax();
        }
        if (pool->crowded) sched_yield();
    } while (now_ns() - start < CALLER_SPIN_NS);
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, true);
    while (!all_left(pool)) pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->lock);
}

static void share_out(oq_pool *pool, int64_t n_tasks)
{
    const int64_t each = n_tasks / pool->n_threads, more = n_tasks % pool->n_threads;
    int64_t first = 0;
    for (int i = 0; i < pool->n_threads; i++) {
        atomic_store_explicit(&pool->shares[i].next, first, memory_order_relaxed);
        first += each + (i < more);
        pool->shares[i].end = first;
    }
}

void oq_pool_run(oq_pool *pool, int64_t n_tasks, oq_task_fn fn, void *user)
{
    if (n_tasks <= 0) return;
    if (!pool || pool->n_started == 0 || n_tasks == 1 || atomic_flag_test_and_set(&pool->busy)) {
        run_serial(n_tasks, fn, user);
        return;
    }
    pool->fn = fn;
    pool->user = user;
    share_out(pool, n_tasks);
    const uint64_t run = run_of(atomic_load(&pool->state)) + UINT64_C(1);
    atomic_store(&pool->state, run << RUN_SHIFT | OPEN);
    wake_sleepers(pool);
    take_tasks(pool, 0);
    atomic_fetch_and(&pool->state, ~OPEN);
    wait_for_workers(pool);
    atomic_flag_clear(&pool->busy);
}
