/* file_map.c -- files as memory. Nobody keeps others from writing to a file that is mapped: every file is compared with what it was
 * when it was mapped, and one whose bytes went away under a reader is told instead of ending the process. */
#include "base/file.h"

#include "base/size.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a signal handler walks: complete before it is linked, unlinked before it is freed. */
struct oq_mapped {
    _Atomic(oq_mapped *) next;
    char *path;
    uintptr_t first, end; /* whole pages */
    size_t page;
    struct stat st;   /* as it was mapped */
    atomic_bool lost; /* bytes were asked for that were not there any more: zeros stand in their place */
    bool told;        /* its sentence was written */
};

static void free_node(oq_env *env, oq_mapped *m)
{
    if (m) oq_free(env, m->path);
    oq_free(env, m);
}

oq_status oq_file_map_fd(oq_env *env, const char *path, int fd, size_t bytes, oq_mapping *out)
{
    oq_mapped *m = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *m, path, &m));
    m->path = oq_strdup(env, path);
    if (!m->path || fstat(fd, &m->st) != 0) {
        const oq_status st = m->path
                                 ? oq_fail(env, OQ_E_IO, "%s: cannot be examined: %s", path, strerror(errno))
                                 : oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
        free_node(env, m);
        return st;
    }
    void *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        free_node(env, m);
        return oq_fail(env, errno == ENOMEM ? OQ_E_NOMEM : OQ_E_IO, "%s: cannot be mapped: %s", path,
                       strerror(errno));
    }
    m->st.st_size = (off_t)bytes; /* of what is mapped: it may have changed since it was measured */
    m->page = (size_t)sysconf(_SC_PAGESIZE);
    m->first = (uintptr_t)p;
    m->end = m->first + oq_align_up(bytes, m->page);
    atomic_store(&m->next, atomic_load(&env->mapped));
    atomic_store(&env->mapped, m);
    *out = (oq_mapping){.data = p, .bytes = bytes, .file = m, .env = env};
    return OQ_OK;
}

/* Its name may stand for another file by now, which is nobody's loss: the mapping keeps the one that it has. */
static bool changed(const oq_mapped *m, struct stat *now)
{
    *now = m->st;
    if (stat(m->path, now) != 0 || now->st_dev != m->st.st_dev || now->st_ino != m->st.st_ino) {
        *now = m->st;
        return false;
    }
    return now->st_size != m->st.st_size || now->st_mtim.tv_sec != m->st.st_mtim.tv_sec ||
           now->st_mtim.tv_nsec != m->st.st_mtim.tv_nsec;
}

/* Stands before whatever the zeros led to. */
static oq_status tell(oq_env *env, oq_mapped *m, const struct stat *now)
{
    env->status = OQ_OK;
    m->told = true;
    if (now->st_size != m->st.st_size)
        return oq_fail(env, OQ_E_IO,
                       "%s: had %lld bytes when it was opened and has %lld now: it was written to "
                       "while it was read",
                       m->path, (long long)m->st.st_size, (long long)now->st_size);
    if (atomic_load(&m->lost))
        return oq_fail(env, OQ_E_IO,
                       "%s: bytes of it could not be read: its disk or network failed, or it was "
                       "shorter for a while",
                       m->path);
    return oq_fail(env, OQ_E_IO, "%s: was written to while it was read", m->path);
}

oq_status oq_files_check(oq_env *env)
{
    struct stat now;
    oq_mapped *const gone = env->lost;
    if (gone) {
        changed(gone, &now);
        tell(env, gone, &now);
        env->lost = NULL;
        free_node(env, gone);
        return env->status;
    }
    for (oq_mapped *m = atomic_load(&env->mapped); m; m = atomic_load(&m->next)) {
        const bool other = changed(m, &now);
        if (!m->told && (other || atomic_load(&m->lost))) return tell(env, m, &now);
    }
    return OQ_OK;
}

oq_status oq_files_settle(oq_env *env, oq_status st)
{
    const oq_status changed_st = oq_files_check(env);
    return changed_st == OQ_OK ? st : changed_st;
}

void oq_files_forget(oq_env *env)
{
    free_node(env, env->lost);
    env->lost = NULL;
}

void oq_file_unmap(oq_mapping *mapping)
{
    oq_mapped *const m = mapping->file;
    if (m) {
        oq_env *const env = mapping->env;
        struct stat now;
        _Atomic(oq_mapped *) *at = &env->mapped;
        while (atomic_load(at) != m) at = &atomic_load(at)->next;
        atomic_store(at, atomic_load(&m->next));
        munmap((void *)m->first, mapping->bytes);
        if (!m->told && !env->lost && (changed(m, &now) || atomic_load(&m->lost)))
            env->lost = m; /* who reads on without asking is told at the end */
        else
            free_node(env, m);
    }
    *mapping = (oq_mapping){0};
}

bool oq_env_file_lost(oq_env *env, const void *address)
{
    const uintptr_t at = (uintptr_t)address;
    for (oq_mapped *m = env ? atomic_load(&env->mapped) : NULL; m; m = atomic_load(&m->next)) {
        if (at < m->first || at >= m->end) continue;
        const uintptr_t from = at / m->page * m->page;
        const int before = errno;
        atomic_store(&m->lost, true);
        const bool ok = mmap((void *)from, m->end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                             -1, 0) != MAP_FAILED;
        errno = before;
        return ok;
    }
    return false;
}

void oq_file_forget(const oq_mapping *mapping, size_t at, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t begin = oq_align_up(at, page);
    const size_t end = (at + bytes) / page * page;
    if (mapping->data && end > begin)
        madvise((void *)(uintptr_t)(mapping->data + begin), end - begin, MADV_DONTNEED);
}
