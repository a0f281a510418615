/* tune_cache.c -- what the tuner chose, kept between processes: ${XDG_CACHE_HOME:-~/.cache}/omniq/tune-v1/HASH.txt, HASH over
 * everything that the choices depend on. One line a choice: the product's key and the 64 bytes of cuBLASLt's algorithm, in
 * hexadecimal, then the microseconds that it took. Lines are appended under a lock; a line that cannot be read is passed
 * over with a warning; without a folder nothing is kept. */
#include "cuda/tune_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct choice {
    unsigned char key[OQ_TUNE_KEY_BYTES];
    cublasLtMatmulAlgo_t algo;
} choice;

struct oq_tune_cache {
    char path[4096];
    size_t key_bytes;
    choice *choices;
    size_t n, cap;
};

/* ---- where ---------------------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

static bool make_folder(char *path, size_t n, const char *more)
{
    const size_t at = strlen(path);
    if (at + strlen(more) >= n) return false;
    snprintf(path + at, n - at, "%s", more);
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

/* The file's path, its folders made; false: there is no place. */
static bool find_place(oq_tune_cache *t, const oq_device *d)
{
    const char *const cache = getenv("XDG_CACHE_HOME"), *const home = getenv("HOME");
    int driver = 0;
    char about[512];
    const bool own = cache && *cache == '/';
    if (!own && (!home || *home != '/')) return false;
    cudaDriverGetVersion(&driver);
    snprintf(about, sizeof about, "%s|%d|%d|%d|%zu|%zu|1", d->name, d->n_sm, d->capability, driver,
             cublasLtGetVersion(), (size_t)OQ_CUDA_WORKSPACE_BYTES);
    if ((size_t)snprintf(t->path, sizeof t->path, "%s", own ? cache : home) >= sizeof t->path - 64)
        return false;
    if (!own && !make_folder(t->path, sizeof t->path, "/.cache")) return false;
    if (!make_folder(t->path, sizeof t->path, "/omniq") || !make_folder(t->path, sizeof t->path, "/tune-v1"))
        return false;
    snprintf(t->path + strlen(t->path), 32, "/%016llx.txt", (unsigned long long)hash_text(about));
    return true;
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

static void put_hex(char *out, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
}

static int digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool get_hex(void *bytes, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return false;
        ((unsigned char *)bytes)[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static bool remember(oq_env *env, oq_tune_cache *t, const choice *c)
{
    if (t->n == t->cap) {
        choice *more = NULL;
        const size_t cap = t->cap ? 2 * t->cap : 64;
        if (oq_new(env, cap, sizeof *more, "tuned products", &more) != OQ_OK) return false;
        if (t->n) memcpy(more, t->choices, t->n * sizeof *more);
        oq_free(env, t->choices);
        t->choices = more, t->cap = cap;
    }
    t->choices[t->n++] = *c;
    return true;
}

static bool read_line(const oq_tune_cache *t, const char *line, choice *c)
{
    const size_t key = 2 * t->key_bytes, algo = 2 * sizeof c->algo;
    *c = (choice){{0}, {{0}}};
    return strlen(line) > key + 1 + algo && line[key] == ' ' && line[key + 1 + algo] == ' ' &&
           get_hex(c->key, line, t->key_bytes) && get_hex(&c->algo, line + key + 1, sizeof c->algo);
}

static void read_file(oq_env *env, oq_tune_cache *t)
{
    FILE *file = fopen(t->path, "r");
    char line[1024];
    choice c;
    size_t bad = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (!read_line(t, line, &c))
            bad++;
        else if (!remember(env, t, &c))
            break;
    }
    fclose(file);
    if (bad) oq_log(env, OQ_LOG_WARN, "%s: %zu lines cannot be read and are passed over", t->path, bad);
}

/* ---- public --------------------------------------------------------------------------------------------- */

oq_status oq_tune_cache_open(oq_env *env, const oq_device *d, size_t key_bytes, oq_tune_cache **out)
{
    oq_tune_cache *t = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *t, "tuned products", &t));
    t->key_bytes = key_bytes;
    if (find_place(t, d))
        read_file(env, t);
    else
        t->path[0] = '\0';
    *out = t;
    return OQ_OK;
}

void oq_tune_cache_close(oq_env *env, oq_tune_cache *t)
{
    if (!t) return;
    oq_free(env, t->choices);
    oq_free(env, t);
}

/* The last line of a key counts. */
const cublasLtMatmulAlgo_t *oq_tune_cache_find(const oq_tune_cache *t, const void *key)
{
    for (size_t i = t->n; i-- > 0;)
        if (memcmp(t->choices[i].key, key, t->key_bytes) == 0) return &t->choices[i].algo;
    return NULL;
}

void oq_tune_cache_put(oq_env *env, oq_tune_cache *t, const void *key, const cublasLtMatmulAlgo_t *algo,
                       double us)
{
    choice c = {{0}, *algo};
    char line[1024];
    memcpy(c.key, key, t->key_bytes);
    if (!remember(env, t, &c) || !t->path[0]) return;
    put_hex(line, key, t->key_bytes);
    line[2 * t->key_bytes] = ' ';
    put_hex(line + 2 * t->key_bytes + 1, algo, sizeof *algo);
    const size_t at = 2 * t->key_bytes + 1 + 2 * sizeof *algo;
    const int more = snprintf(line + at, sizeof line - at, " %.1f\n", us);
    const int fd = open(t->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return;
    const size_t n = at + (size_t)more;
    if (flock(fd, LOCK_EX) == 0 && write(fd, line, n) != (ssize_t)n)
        oq_log(env, OQ_LOG_WARN, "%s: a choice could not be written", t->path);
    close(fd);
}
