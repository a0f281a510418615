/* golden_folder.c -- folders of tiny models out of manifests. */
#include "support/golden_folder.h"

#include "base/file.h"
#include "base/strbuf.h"
#include "load/load.h"
#include "support/scratch.h"
#include "support/st_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(oq_env *env, oq_status st)
{
    if (st == OQ_OK) return;
    fprintf(stderr, "golden folder: %s\n", oq_env_error(env));
    abort();
}

static void make_tensor(const oq_json *entry, const oq_dtype *dtype, st_tensor *out)
{
    const oq_json *shape = oq_json_get(entry, "shape");
    int64_t n = 1;
    *out = (st_tensor){.name = oq_json_string(oq_json_get(entry, "name")), .dtype = dtype};
    out->n_dims = (int)oq_json_size(shape);
    for (int i = 0; i < out->n_dims; i++) n *= out->dim[i] = oq_json_int(oq_json_at(shape, (size_t)i), 0);
    float *values = malloc((size_t)n * sizeof *values);
    void *packed = malloc((size_t)n * dtype->bytes);
    if (!values || !packed) abort();
    oq_dummy_fill_as(values, out->name, n, (float)oq_json_real(oq_json_get(entry, "scale"), 0),
                     (float)oq_json_real(oq_json_get(entry, "offset"), 0));
    dtype->from_f32(packed, values, (size_t)n);
    free(values);
    out->data = packed;
}

static void write_weights(oq_env *env, const char *manifest, const char *path, const oq_dtype *dtype)
{
    oq_json *json = NULL;
    check(env, oq_json_parse_file(env, manifest, 1 << 22, &json));
    const oq_json *list = oq_json_get(json, "tensors");
    const size_t n = oq_json_size(list);
    st_tensor *tensors = calloc(n + 1, sizeof *tensors);
    size_t used = 0;
    if (!tensors) abort();
    for (size_t i = 0; i < n; i++) {
        if (oq_json_get(oq_json_at(list, i), "tied_to")) continue;
        make_tensor(oq_json_at(list, i), dtype, &tensors[used++]);
    }
    st_write(path, tensors, used);
    for (size_t i = 0; i < used; i++) free((void *)(uintptr_t)tensors[i].data);
    free(tensors);
    oq_json_free(json);
}

static void copy(oq_env *env, const char *from, const char *dir, const char *name)
{
    char *bytes = NULL;
    size_t n = 0;
    check(env, oq_file_read(env, from, 1 << 22, &bytes, &n));
    scratch_write(dir, name, bytes, n);
    oq_free(env, bytes);
}

static void make_component(oq_env *env, const char *from, const char *out, const char *name,
                           const oq_dtype *dtype)
{
    char **files = NULL, to[1024];
    size_t n = 0;
    const char *base = strncmp(name, "text_encoder", 12) == 0 ? "model" : "diffusion_pytorch_model";
    check(env, oq_dir_list(env, from, &files, &n));
    scratch_subdir(out, name);
    snprintf(to, sizeof to, "%s/%s", out, name);
    for (size_t i = 0; i < n; i++) {
        char source[1200], target[1200];
        snprintf(source, sizeof source, "%s/%s", from, files[i]);
        snprintf(target, sizeof target, "%s/%s.safetensors", to, base);
        if (strcmp(files[i], "weights.json") == 0)
            write_weights(env, source, target, dtype);
        else
            copy(env, source, to, files[i]);
        oq_free(env, files[i]);
    }
    oq_free(env, files);
}

void golden_folder_make(oq_env *env, const char *data, const char *out, const oq_dtype *dtype)
{
    char **entries = NULL, from[800], to[800];
    size_t n = 0;
    snprintf(from, sizeof from, "%s", data); /* either may be one of scratch's, which pass */
    snprintf(to, sizeof to, "%s", out);
    check(env, oq_dir_list(env, from, &entries, &n));
    for (size_t i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", from, entries[i]);
        if (oq_file_is_dir(path))
            make_component(env, path, to, entries[i], dtype);
        else if (strcmp(entries[i], "model_index.json") == 0)
            copy(env, path, to, entries[i]);
        oq_free(env, entries[i]);
    }
    oq_free(env, entries);
}

static bool seen_before(const int32_t *ids, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (ids[i] == ids[at]) return true;
    return false;
}

void golden_ids_tokenizer(oq_env *env, const char *folder, const int32_t *ids, size_t n, int32_t before,
                          int32_t after)
{
    oq_strbuf b;
    oq_strbuf_init(&b, env);
    oq_strbuf_puts(&b, "{\"added_tokens\":[");
    for (size_t i = 0, used = 0; i < n; i++) {
        if (seen_before(ids, i)) continue;
        oq_strbuf_printf(&b, "%s{\"id\":%d,\"content\":\"<%d>\",\"special\":true}", used++ ? "," : "", ids[i],
                         ids[i]);
    }
    oq_strbuf_puts(&b, "],\"model\":{\"type\":\"Unigram\",\"vocab\":[]},"
                       "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (before >= 0) oq_strbuf_puts(&b, "{\"SpecialToken\":{\"id\":\"before\"}},");
    oq_strbuf_puts(&b, "{\"Sequence\":{\"id\":\"A\"}}");
    if (after >= 0) oq_strbuf_puts(&b, ",{\"SpecialToken\":{\"id\":\"after\"}}");
    oq_strbuf_printf(&b, "],\"special_tokens\":{\"before\":{\"ids\":[%d]},\"after\":{\"ids\":[%d]}}}}",
                     before, after);
    check(env, oq_strbuf_check(&b, "tokenizer.json"));
    scratch_text(folder, "tokenizer.json", oq_strbuf_text(&b));
    oq_strbuf_deinit(&b);
}

void golden_uniform(const char *name, float scale, float *values, int64_t n)
{
    oq_dummy_fill_as(values, name, n, scale, 0.0f);
}

oq_image golden_picture(const char *name, int64_t width, int64_t height)
{
    const int64_t n = width * height * 3;
    float *u = malloc((size_t)n * sizeof *u);
    const oq_image image = {.width = width, .height = height, .pixels = malloc((size_t)n)};
    if (!u || !image.pixels) abort();
    golden_uniform(name, 1, u, n);
    for (int64_t i = 0; i < n; i++) image.pixels[i] = (uint8_t)floorf((u[i] + 1.0f) * 128.0f);
    free(u);
    return image;
}
