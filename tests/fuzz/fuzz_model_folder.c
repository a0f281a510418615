/* fuzz_model_folder.c -- a model folder: the input, cut at each byte 0, becomes model_index.json,
 * transformer/config.json, transformer/hf_quant_config.json and omniq.json. Property: an accepted model has a
 * class, components below its folder, and quantization metadata that is an object with a source. */
#include "fuzz/fuzz.h"

#include "ckpt/ckpt.h"

#include <sys/stat.h>
#include <unistd.h>

static const char *const files[] = {"model_index.json", "transformer/config.json",
                                    "transformer/hf_quant_config.json", "omniq.json"};
static char folder[] = OMNIQ_BINARY_DIR "/fuzz-XXXXXX";

static void path_of(const char *name, char *out, size_t n)
{
    if (snprintf(out, n, "%s/%s", folder, name) >= (int)n) abort();
}

static void remove_folder(void)
{
    char path[1024];
    for (size_t i = 0; i < OQ_COUNT(files); i++) {
        path_of(files[i], path, sizeof path);
        unlink(path);
    }
    path_of("transformer", path, sizeof path);
    rmdir(path);
    rmdir(folder);
}

static void make_folder(void)
{
    static bool made;
    char path[1024];
    if (made) return;
    made = true;
    if (!mkdtemp(folder)) abort();
    path_of("transformer", path, sizeof path);
    if (mkdir(path, 0700) != 0) abort();
    atexit(remove_folder);
}

static void put_file(const char *name, const uint8_t *data, size_t n)
{
    char path[1024];
    path_of(name, path, sizeof path);
    FILE *f = fopen(path, "wb");
    if (!f || (n && fwrite(data, 1, n, f) != n) || fclose(f) != 0) abort();
}

static void put_files(const uint8_t *data, size_t n)
{
    char path[1024];
    for (size_t i = 0; i < OQ_COUNT(files); i++) {
        path_of(files[i], path, sizeof path);
        unlink(path);
    }
    for (size_t i = 0; i < OQ_COUNT(files); i++) {
        const uint8_t *end = n ? memchr(data, 0, n) : NULL;
        const size_t m = end && i + 1 < OQ_COUNT(files) ? (size_t)(end - data) : n;
        put_file(files[i], data, m);
        if (m == n) return;
        data += m + 1;
        n -= m + 1;
    }
}

static void check_folder(const oq_folder *f)
{
    FUZZ_CHECK(f->class_name && f->n_components > 0 && strcmp(f->path, folder) == 0);
    for (size_t i = 0; i < f->n_components; i++) {
        const oq_folder_component *c = &f->components[i];
        FUZZ_CHECK(strncmp(c->path, folder, strlen(folder)) == 0 && !strchr(c->name, '/'));
        FUZZ_CHECK((c->quant != NULL) == (c->quant_source != NULL));
        FUZZ_CHECK(!c->quant || oq_json_type(c->quant) == OQ_JSON_OBJECT);
        FUZZ_CHECK(oq_folder_find(f, c->name) == c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    oq_folder *f = NULL;
    make_folder();
    put_files(data, n);
    const oq_status st = oq_folder_open(env, folder, &f);
    fuzz_check_status(env, st);
    if (st == OQ_OK) check_folder(f);
    oq_folder_close(f);
    return 0;
}
