/* container_safetensors.c -- safetensors' header: JSON of types, shapes and offsets behind its length. */
#include "write/container.h"

#include <string.h>

static oq_json *entry(const oq_write_tensor *t)
{
    oq_json *json = oq_json_new_object(), *shape = oq_json_new_array(), *offsets = oq_json_new_array();
    for (int i = 0; i < t->n_dims; i++) oq_json_append(shape, oq_json_new_int(t->dim[i]));
    oq_json_append(offsets, oq_json_new_int((int64_t)t->at));
    oq_json_append(offsets, oq_json_new_int((int64_t)(t->at + t->bytes)));
    oq_json_set(json, "dtype", oq_json_new_string(t->type));
    oq_json_set(json, "shape", shape);
    oq_json_set(json, "data_offsets", offsets);
    return json;
}

static oq_json *metadata_entry(const oq_json *metadata)
{
    oq_json *json = metadata ? oq_json_copy(metadata) : oq_json_new_object();
    oq_json_set(json, "format", oq_json_new_string("pt"));
    return json;
}

static oq_status header(oq_env *env, const oq_json *metadata, oq_write_tensor *const *tensors, size_t n,
                        oq_strbuf *out)
{
    oq_json *json = oq_json_new_object();
    char *text = NULL;
    bool ok = oq_json_set(json, "__metadata__", metadata_entry(metadata));
    for (size_t i = 0; i < n; i++) ok = ok && oq_json_set(json, tensors[i]->name, entry(tensors[i]));
    oq_status st = ok ? oq_json_dump(env, json, OQ_JSON_COMPACT, &text)
                      : oq_fail(env, OQ_E_NOMEM, "no memory for a header of %zu tensors", n);
    if (st == OQ_OK) {
        const size_t length = strlen(text), padded = (length + 7) / 8 * 8;
        char prefix[8];
        for (int i = 0; i < 8; i++) prefix[i] = (char)(padded >> (8 * i) & 0xff);
        oq_strbuf_add(out, prefix, sizeof prefix);
        oq_strbuf_add(out, text, length);
        oq_strbuf_add(out, "       ", padded - length);
    }
    oq_free(env, text);
    oq_json_free(json);
    return st;
}

const oq_write_container oq_container_safetensors = {
    .name = "safetensors",
    .ending = ".safetensors",
    .align = 1,
    .header = header,
};

const oq_write_container *oq_write_container_of(const char *path)
{
    static const oq_write_container *const all[] = {&oq_container_safetensors, &oq_container_gguf};
    const size_t n = strlen(path);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const size_t m = strlen(all[i]->ending);
        if (n >= m && strcmp(path + n - m, all[i]->ending) == 0) return all[i];
    }
    return NULL;
}
