/* pool.h -- one pool of threads per env. Work is split by shape, never by the number of threads, so results are
 * the same for 1 and 64 of them.
 *
 * Waking a sleeping thread costs 5 us on bare metal and 50 to 300 us in a virtual machine, a small operation takes 10 us:
 * so workers stay awake between the operations of a hot section (one request, one measurement), and outside of one they
 * sleep after a few microseconds, because a thread that spins while another library's threads work ruins both. Nobody
 * waits for a worker that wakes late: a run ends when its tasks are done. */
#ifndef OQ_BASE_POOL_H
#define OQ_BASE_POOL_H

#include "base/env.h"

/* n_threads 0: the cores this process may use (affinity mask). The caller's thread counts as one. More threads than
 * cores are allowed (with a warning): they sleep between any two operations. */
oq_status oq_pool_new(oq_env *env, int n_threads, oq_pool **out);
void      oq_pool_free(oq_env *env, oq_pool *pool);
int       oq_pool_threads(const oq_pool *pool); /* 1 for NULL */

/* Runs fn(user, i, worker) once for every i in [0, n_tasks), worker in [0, oq_pool_threads). Returns when all are
 * done. Tasks must not depend on which worker runs them. pool NULL: in order on this thread. Not re-entrant:
 * a task that calls it again gets serial execution. Each worker begins with its own run of neighbouring tasks, the same
 * for the same n_tasks, and then helps the others: what it wrote in one operation is in its cache in the next. */
typedef void (*oq_task_fn)(void *user, int64_t i, int worker);
void oq_pool_run(oq_pool *pool, int64_t n_tasks, oq_task_fn fn, void *user);

/* A hot section: workers wake up now and spin between runs until the matching end; one that gets nothing to do for
 * milliseconds, or that the system puts off its core, sleeps all the same. Sections may be nested. pool NULL is fine. */
void oq_pool_hot_begin(oq_pool *pool);
void oq_pool_hot_end(oq_pool *pool);

#endif
