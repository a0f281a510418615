/* replay.c -- runs a fuzz target without libFuzzer, with any compiler: every file of the corpus folders as it
 * is, then every prefix of the short ones and a fixed number of damaged copies. Deterministic. */
#include "fuzz/fuzz.h"

#include "base/file.h"

enum { PREFIX_MAX = 600, DAMAGED_COPIES = 300, DAMAGED_MAX = 1 << 16, FILE_MAX = 1 << 24 };

/* Runs a copy of exactly n bytes, so that a sanitizer sees the first byte read beyond it. */
static void run_copy(const char *bytes, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) abort();
    if (n) memcpy(copy, bytes, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Bytes replaced, with a liking for digits and brackets, or a piece cut out. */
static void run_damaged(const char *bytes, size_t n)
{
    static const char liked[] = "0123456789-.eE{}[]\",:\\\xff\x80";
    uint32_t state = (uint32_t)n;
    char *copy = malloc(n);
    if (!copy) abort();
    for (int i = 0; i < DAMAGED_COPIES; i++) {
        size_t m = n;
        memcpy(copy, bytes, n);
        for (uint32_t k = 1 + next_random(&state) % 4; k > 0; k--) {
            const uint32_t r = next_random(&state);
            copy[next_random(&state) % n] = r & 1 ? liked[r / 2 % (sizeof liked - 1)] : (char)(r >> 1);
        }
        if (i % 4 == 3) {
            const size_t at = next_random(&state) % n, cut = 1 + next_random(&state) % (n - at);
            memmove(copy + at, copy + at + cut, n - at - cut);
            m -= cut;
        }
        run_copy(copy, m);
    }
    free(copy);
}

static void run_file(oq_env *env, const char *path)
{
    char *bytes = NULL;
    size_t n = 0;
    if (oq_file_read(env, path, FILE_MAX, &bytes, &n) != OQ_OK) {
        fprintf(stderr, "%s\n", oq_env_error(env));
        abort();
    }
    run_copy(bytes, n);
    for (size_t cut = 0; cut < n && n <= PREFIX_MAX; cut++) run_copy(bytes, cut);
    if (n && n <= DAMAGED_MAX) run_damaged(bytes, n);
    oq_free(env, bytes);
}

int main(int argc, char **argv)
{
    oq_env *env = NULL;
    size_t n_files = 0;
    if (oq_env_new(NULL, &env) != OQ_OK) return 1;
    for (int i = 1; i < argc; i++) {
        char **names = NULL;
        size_t n = 0;
        if (oq_dir_list(env, argv[i], &names, &n) != OQ_OK) {
            fprintf(stderr, "%s\n", oq_env_error(env));
            return 1;
        }
        for (size_t k = 0; k < n; k++, n_files++) {
            char *path = oq_path_join(env, argv[i], names[k]);
            if (!path) abort();
            run_file(env, path);
            oq_free(env, path);
            oq_free(env, names[k]);
        }
        oq_free(env, names);
    }
    oq_env_free(env);
    printf("%zu corpus files\n", n_files);
    return n_files ? 0 : 1; /* a door without corpus tests nothing */
}
