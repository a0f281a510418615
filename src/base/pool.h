/* pool.h -- one pool of threads per env. Work is split by shape, never by the number of threads, so results are
 * the same for 1 and 64 of them. Workers spin briefly, then sleep. */
#ifndef OQ_BASE_POOL_H
#define OQ_BASE_POOL_H

#include "base/env.h"

/* n_threads 0: the cores this process may use (affinity mask). The caller's thread counts as one. */
oq_status oq_pool_new(oq_env *env, int n_threads, oq_pool **out);
void      oq_pool_free(oq_env *env, oq_pool *pool);
int       oq_pool_threads(const oq_pool *pool); /* 1 for NULL */

/* Runs fn(user, i, worker) once for every i in [0, n_tasks), worker in [0, oq_pool_threads). Returns when all are
 * done. Tasks must not depend on which worker runs them. pool NULL: in order on this thread. Not re-entrant:
 * a task that calls it again gets serial execution. */
typedef void (*oq_task_fn)(void *user, int64_t i, int worker);
void oq_pool_run(oq_pool *pool, int64_t n_tasks, oq_task_fn fn, void *user);

#endif
