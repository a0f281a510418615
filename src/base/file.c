/* file.c -- files through the system calls, with names and reasons in every error. */
#include "base/file.h"

#include "base/arena.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static oq_status fail_errno(oq_env *env, const char *path, const char *what)
{
    const int e = errno;
    return oq_fail(env,
                   e == ENOENT || e == ENOTDIR ? OQ_E_NOTFOUND
                   : e == ENOMEM               ? OQ_E_NOMEM
                                               : OQ_E_IO,
                   "%s: %s: %s", path, what, strerror(e));
}

/* Opens a regular file for reading and tells its size. */
static oq_status open_regular(oq_env *env, const char *path, int *fd, size_t *bytes)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not make us wait */
    if (*fd < 0) return fail_errno(env, path, "cannot be opened");
    if (fstat(*fd, &st) != 0) {
        const oq_status failed = fail_errno(env, path, "cannot be examined");
        close(*fd);
        return failed;
    }
    if (!S_ISREG(st.st_mode)) {
        close(*fd);
        return oq_fail(env, OQ_E_IO, "%s: is %s, not a file", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "a special file");
    }
    *bytes = (size_t)st.st_size;
    return OQ_OK;
}

static oq_status read_all(oq_env *env, const char *path, int fd, char *dst, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(fd, dst + at, n - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(env, path, "cannot be read");
        if (got == 0) return oq_fail(env, OQ_E_IO, "%s: ended after %zu of %zu bytes", path, at, n);
        at += (size_t)got;
    }
    return OQ_OK;
}

static bool begins(const char *bytes, size_t n, const char *with)
{
    return n >= strlen(with) && strncasecmp(bytes, with, strlen(with)) == 0;
}

const char *oq_file_stand_in(const void *bytes, size_t n)
{
    const char *at = bytes;
    if (begins(at, n, "version https://git-lfs"))
        return "is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull' or download it again";
    for (int i = 0; n > 0 && i < 64 && strchr(" \t\r\n", *at) && *at; i++) at++, n--;
    if (begins(at, n, "<!doctype") || begins(at, n, "<html") || begins(at, n, "<!--"))
        return "is a web page (HTML), not the file itself: download it again";
    return NULL;
}

oq_status oq_file_read(oq_env *env, const char *path, size_t max_bytes, char **out, size_t *out_bytes)
{
    int fd = -1;
    size_t n = 0;
    *out = NULL;
    OQ_TRY(open_regular(env, path, &fd, &n));
    oq_status st = OQ_OK;
    char *text = NULL;
    if (n > max_bytes)
        st = oq_fail(env, OQ_E_FORMAT, "%s: %zu bytes, at most %zu are read", path, n, max_bytes);
    else if (!(text = oq_alloc_raw(env, n + 1)))
        st = oq_fail(env, OQ_E_NOMEM, "%s: no memory for %zu bytes", path, n);
    else
        st = read_all(env, path, fd, text, n);
    close(fd);
    if (st != OQ_OK) {
        oq_free(env, text);
        return st;
    }
    text[n] = '\0';
    *out = text;
    *out_bytes = n;
    return OQ_OK;
}

oq_status oq_file_read_fetched(oq_env *env, const char *path, size_t max_bytes, char **out, size_t *out_bytes)
{
    OQ_TRY(oq_file_read(env, path, max_bytes, out, out_bytes));
    const char *stand_in = oq_file_stand_in(*out, *out_bytes);
    if (!stand_in) return OQ_OK;
    oq_free(env, *out);
    *out = NULL;
    return oq_fail(env, OQ_E_FORMAT, "%s: %s", path, stand_in);
}

/* FNV-1a 64 with words of eight bytes; the halves change places, since products carry upwards alone. */
static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x100000001b3u;
    return hash << 32 | hash >> 32;
}

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        for (size_t k = 0; k < 8 && i + k < n; k++) word |= (uint64_t)bytes[i + k] << 8 * k;
        hash = hash_word(hash, word);
    }
    return hash;
}

enum { HASH_BLOCK = 16384, HASH_BLOCKS = 32, HASH_WHOLE = 16 << 20 };

/* n bytes at `at` into the hash. */
static bool hash_block(int fd, size_t at, size_t n, uint64_t *hash)
{
    uint8_t block[HASH_BLOCK];
    while (n) {
        size_t have = 0;
        const size_t want = n < sizeof block ? n : sizeof block;
        while (have < want) {
            const ssize_t got = pread(fd, block + have, want - have, (off_t)(at + have));
            if (got < 0 && errno == EINTR) continue;
            if (got == 0) errno = EIO; /* became shorter */
            if (got <= 0) return false;
            have += (size_t)got;
        }
        *hash = hash_bytes(*hash, block, want);
        at += want, n -= want;
    }
    return true;
}

oq_status oq_file_sample_hash(oq_env *env, const char *path, char out[17])
{
    int fd = -1;
    size_t n = 0;
    OQ_TRY(open_regular(env, path, &fd, &n));
    uint64_t hash = hash_word(0xcbf29ce484222325u, n);
    bool ok = true;
    if (n <= HASH_WHOLE)
        ok = hash_block(fd, 0, n, &hash);
    else
        for (size_t i = 0; ok && i < HASH_BLOCKS; i++)
            ok = hash_block(fd, (n - HASH_BLOCK) / (HASH_BLOCKS - 1) * i, HASH_BLOCK, &hash);
    const oq_status st = ok ? OQ_OK : fail_errno(env, path, "cannot be read");
    close(fd);
    snprintf(out, 17, "%016" PRIx64, hash);
    return st;
}

oq_status oq_file_map(oq_env *env, const char *path, oq_mapping *out)
{
    int fd = -1;
    size_t n = 0;
    *out = (oq_mapping){0};
    OQ_TRY(open_regular(env, path, &fd, &n));
    if (n == 0) {
        close(fd);
        return OQ_OK;
    }
    const oq_status st = oq_file_map_fd(env, path, fd, n, out);
    close(fd);
    return st;
}

bool oq_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool oq_file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool oq_file_is_special(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode);
}

/* The nearest folder above a name that is not there yet. */
static bool real_place(const char *path, char real[PATH_MAX])
{
    char text[PATH_MAX];
    if (realpath(path, real)) return true;
    if ((size_t)snprintf(text, sizeof text, "%s", path) >= sizeof text) return false;
    for (size_t n = strlen(text); n > 0; text[--n] = '\0')
        if (text[n - 1] == '/' && realpath(text, real)) return true;
    return realpath(".", real) != NULL;
}

bool oq_file_within(const char *path, const char *outer)
{
    char a[PATH_MAX], b[PATH_MAX];
    if (!real_place(path, a) || !realpath(outer, b)) return false;
    const size_t n = strlen(b);
    return strncmp(a, b, n) == 0 && (a[n] == '\0' || a[n] == '/' || b[n - 1] == '/');
}

char *oq_path_join(oq_env *env, const char *dir, const char *name)
{
    const size_t n = strlen(dir), m = strlen(name);
    char *path = oq_alloc_raw(env, n + m + 2);
    if (!path) return NULL;
    memcpy(path, dir, n);
    size_t at = n;
    if (n && dir[n - 1] != '/') path[at++] = '/';
    memcpy(path + at, name, m + 1);
    return path;
}

const char *oq_path_leaf(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *oq_path_folder(oq_env *env, const char *path)
{
    const size_t n = (size_t)(oq_path_leaf(path) - path);
    char *folder = oq_strdup(env, n ? path : ".");
    if (folder && n) folder[n > 1 ? n - 1 : 1] = '\0'; /* "/x" lies in "/" */
    return folder;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static oq_status push_name(oq_env *env, char ***names, size_t *n, size_t *capacity, const char *name)
{
    if (*n == *capacity) {
        const size_t more = *capacity ? *capacity * 2 : 32;
        char **grown = NULL;
        OQ_TRY(oq_new(env, more, sizeof *grown, "folder listing", &grown));
        if (*n) memcpy(grown, *names, *n * sizeof *grown);
        oq_free(env, *names);
        *names = grown;
        *capacity = more;
    }
    char *copy = oq_strdup(env, name);
    if (!copy) return oq_fail(env, OQ_E_NOMEM, "folder listing: no memory");
    (*names)[(*n)++] = copy;
    return OQ_OK;
}

oq_status oq_dir_list(oq_env *env, const char *path, char ***out, size_t *count)
{
    DIR *dir = opendir(path);
    if (!dir) return fail_errno(env, path, "cannot be listed");
    char **names = NULL;
    size_t n = 0, capacity = 0;
    oq_status st = OQ_OK;
    for (struct dirent *e; st == OQ_OK && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            st = push_name(env, &names, &n, &capacity, e->d_name);
    closedir(dir);
    if (st != OQ_OK) {
        for (size_t i = 0; i < n; i++) oq_free(env, names[i]);
        oq_free(env, names);
        return st;
    }
    if (n) qsort(names, n, sizeof *names, compare_names);
    *out = names;
    *count = n;
    return OQ_OK;
}

oq_status oq_dir_make(oq_env *env, const char *path)
{
    char *copy = oq_strdup(env, path);
    if (!copy) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    oq_status st = OQ_OK;
    for (char *p = copy + 1; st == OQ_OK; p++) {
        if (*p != '/' && *p != '\0') continue;
        const char kept = *p;
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && !oq_file_is_dir(copy))
            st = fail_errno(env, copy, "folder cannot be made");
        *p = kept;
        if (kept == '\0') break;
    }
    oq_free(env, copy);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

struct oq_file_writer {
    oq_env *env;
    char *path, *temporary; /* temporary NULL: stdout */
    int fd;
    atomic_int wrong; /* errno of the first write at an offset that failed; 0: none */
    oq_status status;
};

static void free_writer(oq_file_writer *w)
{
    oq_env *env = w->env;
    oq_free(env, w->path);
    oq_free(env, w->temporary);
    oq_free(env, w);
}

/* A name of its own beside the target, so that rename stays on one file system. */
static oq_status open_temporary(oq_env *env, oq_file_writer *w)
{
    struct stat st;
    if (stat(w->path, &st) == 0 && !S_ISREG(st.st_mode))
        return oq_fail(env, OQ_E_IO, "%s: is %s, not a regular file", w->path,
                       S_ISDIR(st.st_mode) ? "a folder" : "a special file");
    const size_t n = strlen(w->path) + 32;
    w->temporary = oq_alloc(env, n);
    if (!w->temporary) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", w->path);
    static atomic_uint counter;
    snprintf(w->temporary, n, "%s.%ld-%u.part", w->path, (long)getpid(), atomic_fetch_add(&counter, 1));
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return w->fd < 0 ? fail_errno(env, w->path, "cannot be written") : OQ_OK;
}

oq_status oq_file_create(oq_env *env, const char *path, oq_file_writer **out)
{
    oq_file_writer *w = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *w, path, &w));
    w->env = env;
    w->fd = -1;
    w->path = oq_strdup(env, strcmp(path, "-") == 0 ? "standard output" : path);
    oq_status st = w->path ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    if (st == OQ_OK) {
        if (strcmp(path, "-") == 0)
            w->fd = STDOUT_FILENO;
        else
            st = open_temporary(env, w);
    }
    if (st != OQ_OK) {
        free_writer(w);
        return st;
    }
    *out = w;
    return OQ_OK;
}

oq_status oq_file_write(oq_file_writer *w, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (w->status == OQ_OK && n) {
        const ssize_t put = write(w->fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0)
            w->status = fail_errno(w->env, w->path, "cannot be written");
        else
            p += put, n -= (size_t)put;
    }
    return w->status;
}

oq_status oq_file_reserve(oq_file_writer *w, size_t bytes)
{
    const int wrong = bytes > INT64_MAX ? EFBIG : bytes ? posix_fallocate(w->fd, 0, (off_t)bytes) : 0;
    if (wrong == 0 || ((wrong == EOPNOTSUPP || wrong == EINVAL) && ftruncate(w->fd, (off_t)bytes) == 0))
        return OQ_OK;
    errno = wrong;
    w->status =
        oq_fail(w->env, OQ_E_IO, "%s: no room for its %zu bytes: %s", w->path, bytes, strerror(wrong));
    return w->status;
}

bool oq_file_write_at(oq_file_writer *w, size_t at, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n) {
        const ssize_t put = pwrite(w->fd, p, n, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            int none = 0;
            atomic_compare_exchange_strong(&w->wrong, &none, put < 0 ? errno : EIO);
            return false;
        }
        p += put, at += (size_t)put, n -= (size_t)put;
    }
    return true;
}

oq_status oq_file_finish(oq_file_writer *w)
{
    oq_status st = w->status;
    errno = atomic_load(&w->wrong);
    if (st == OQ_OK && errno) st = fail_errno(w->env, w->path, "cannot be written");
    if (w->temporary) {
        if (close(w->fd) != 0 && st == OQ_OK) st = fail_errno(w->env, w->path, "cannot be written");
        if (st == OQ_OK && rename(w->temporary, w->path) != 0)
            st = fail_errno(w->env, w->path, "cannot be replaced");
        if (st != OQ_OK) unlink(w->temporary);
    }
    free_writer(w);
    return st;
}

void oq_file_abort(oq_file_writer *w)
{
    if (!w) return;
    if (w->temporary) {
        close(w->fd);
        unlink(w->temporary);
    }
    free_writer(w);
}

oq_status oq_file_write_all(oq_env *env, const char *path, const void *bytes, size_t n)
{
    oq_file_writer *w = NULL;
    OQ_TRY(oq_file_create(env, path, &w));
    oq_file_write(w, bytes, n);
    return oq_file_finish(w);
}
