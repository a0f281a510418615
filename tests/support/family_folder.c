/* family_folder.c -- small model folders of the families, from manifests of names. */
#include "support/family_folder.h"

#include "base/file.h"
#include "base/json.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void die(const char *what, const char *path)
{
    fprintf(stderr, "family_folder: %s '%s'\n", what, path);
    abort();
}

void family_weights(const char *name, float scale, float offset, float *dst, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *at = name; *at; at++) h = (h ^ (uint8_t)*at) * 0x100000001b3u;
    for (size_t i = 0; i < n; i++) {
        uint64_t z = h + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        dst[i] = offset + scale * ((float)(z >> 48) / 32768.0f - 1.0f);
    }
}

static char *join(const char *a, const char *b)
{
    const size_t n = strlen(a) + strlen(b) + 2;
    char *path = malloc(n);
    if (!path) abort();
    snprintf(path, n, "%s/%s", a, b);
    return path;
}

static void copy_file(oq_env *env, const char *from, const char *to)
{
    char *bytes = NULL;
    size_t n = 0;
    if (oq_file_read(env, from, (size_t)64 << 20, &bytes, &n) != OQ_OK) die("cannot read", from);
    FILE *f = fopen(to, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) die("cannot write", to);
    oq_free(env, bytes);
}

static size_t elems_of(const oq_json *tensor)
{
    size_t n = 1;
    const oq_json *shape = oq_json_get(tensor, "shape");
    for (size_t i = 0; i < oq_json_size(shape); i++) n *= (size_t)oq_json_int(oq_json_at(shape, i), 0);
    return n;
}

/* The header of safetensors; tensors lie one behind the other in the manifest's order. */
static char *make_header(const oq_json *tensors, const oq_dtype *dtype, size_t *length)
{
    char *text = NULL;
    size_t at = 0;
    FILE *f = open_memstream(&text, length);
    if (!f) abort();
    fputc('{', f);
    for (size_t i = 0; i < oq_json_size(tensors); i++) {
        const oq_json *t = oq_json_at(tensors, i), *shape = oq_json_get(t, "shape");
        const size_t bytes = elems_of(t) * dtype->bytes;
        fprintf(f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "",
                oq_json_string(oq_json_get(t, "name")), dtype == &oq_dtype_f32 ? "F32" : "BF16");
        for (size_t d = 0; d < oq_json_size(shape); d++)
            fprintf(f, "%s%lld", d ? "," : "", (long long)oq_json_int(oq_json_at(shape, d), 0));
        fprintf(f, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    fputc('}', f);
    fclose(f);
    return text;
}

static void write_weights(oq_env *env, const char *manifest, const char *path, const oq_dtype *dtype)
{
    oq_json *json = NULL;
    if (oq_json_parse_file(env, manifest, (size_t)4 << 20, &json) != OQ_OK) die("cannot read", manifest);
    const oq_json *tensors = oq_json_get(json, "tensors");
    size_t length = 0;
    char *header = make_header(tensors, dtype, &length);
    FILE *f = fopen(path, "wb");
    const uint64_t n = length;
    if (!f || fwrite(&n, 8, 1, f) != 1 || fwrite(header, 1, length, f) != length) die("cannot write", path);
    for (size_t i = 0; i < oq_json_size(tensors); i++) {
        const oq_json *t = oq_json_at(tensors, i);
        const size_t elems = elems_of(t);
        float *values = malloc(elems * sizeof *values);
        void *stored = malloc(elems * dtype->bytes);
        if (!values || !stored) abort();
        family_weights(oq_json_string(oq_json_get(t, "name")),
                       (float)oq_json_real(oq_json_get(t, "scale"), 0),
                       (float)oq_json_real(oq_json_get(t, "offset"), 0), values, elems);
        dtype->from_f32(stored, values, elems);
        if (fwrite(stored, dtype->bytes, elems, f) != elems) die("cannot write", path);
        free(stored);
        free(values);
    }
    if (fclose(f) != 0) die("cannot write", path);
    free(header);
    oq_json_free(json);
}

/* A component's folder, or the family's own files where `component` is NULL. */
static void make_folder(oq_env *env, const char *from, const char *to, const oq_dtype *dtype, bool component)
{
    DIR *dir = opendir(from);
    if (!dir) die("no such folder", from);
    mkdir(to, 0777);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat st;
        if (entry->d_name[0] == '.') continue;
        char *source = join(from, entry->d_name), *target = join(to, entry->d_name);
        if (stat(source, &st) != 0) die("cannot read", source);
        if (S_ISDIR(st.st_mode)) {
            if (!component) make_folder(env, source, target, dtype, true);
        } else if (strcmp(entry->d_name, "weights.json") == 0) {
            const bool encoder = strstr(from, "text_encoder") != NULL;
            char *weights = join(to, encoder ? "model.safetensors" : "diffusion_pytorch_model.safetensors");
            write_weights(env, source, weights, dtype);
            free(weights);
        } else {
            copy_file(env, source, target);
        }
        free(source);
        free(target);
    }
    closedir(dir);
}

char *family_folder(oq_env *env, const char *family, const oq_dtype *dtype, const char *use)
{
    char *data = join(OMNIQ_SOURCE_DIR "/tests/data/families", family);
    mkdir(OMNIQ_BINARY_DIR "/families", 0777);
    char *root = join(OMNIQ_BINARY_DIR "/families", use),
         *to = join(root, dtype == &oq_dtype_f32 ? "f32" : "bf16");
    mkdir(root, 0777);
    make_folder(env, data, to, dtype, false);
    free(root);
    free(data);
    return to;
}
