/* container_gguf.c -- GGUF's header, version 3: typed keys, then the tensors with their dimensions from the innermost on.
 * A tensor of more than four dimensions is folded, its shape noted in the key that ComfyUI's reader looks for. */
#include "write/container.h"

#include "format/gguf_type.h"

#include <string.h>

enum { VERSION = 3, ALIGN = 32, MAX_DIMS = 4 };
enum { KIND_U32 = 4, KIND_I32 = 5, KIND_STRING = 8, KIND_ARRAY = 9 }; /* of values */

static void put_uint(oq_strbuf *out, uint64_t value, int bytes)
{
    char little[8];
    for (int i = 0; i < bytes; i++) little[i] = (char)(value >> (8 * i) & 0xff);
    oq_strbuf_add(out, little, (size_t)bytes);
}

static void put_text(oq_strbuf *out, const char *text)
{
    put_uint(out, strlen(text), 8);
    oq_strbuf_add(out, text, strlen(text));
}

/* ---- keys ------------------------------------------------------------------------------------------------ */

static void put_number(oq_strbuf *out, const oq_json *value)
{
    put_uint(out, KIND_U32, 4);
    put_uint(out, (uint64_t)oq_json_int(value, 0), 4);
}

static void put_list(oq_strbuf *out, const oq_json *value)
{
    put_uint(out, KIND_ARRAY, 4);
    put_uint(out, KIND_I32, 4);
    put_uint(out, oq_json_size(value), 8);
    for (size_t i = 0; i < oq_json_size(value); i++)
        put_uint(out, (uint64_t)oq_json_int(oq_json_at(value, i), 0), 4);
}

static void put_key(oq_strbuf *out, const char *key, const oq_json *value)
{
    put_text(out, key);
    switch (oq_json_type(value)) {
    case OQ_JSON_ARRAY:
        put_list(out, value);
        return;
    case OQ_JSON_STRING:
        put_uint(out, KIND_STRING, 4);
        put_text(out, oq_json_string(value));
        return;
    default:
        put_number(out, value);
        return;
    }
}

static size_t n_folded(oq_write_tensor *const *tensors, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += tensors[i]->n_dims > MAX_DIMS;
    return count;
}

static void put_shapes(oq_strbuf *out, oq_write_tensor *const *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const oq_write_tensor *t = tensors[i];
        if (t->n_dims <= MAX_DIMS) continue;
        put_uint(out, strlen("comfy.gguf.orig_shape.") + strlen(t->name), 8);
        oq_strbuf_printf(out, "comfy.gguf.orig_shape.%s", t->name);
        put_uint(out, KIND_ARRAY, 4);
        put_uint(out, KIND_I32, 4);
        put_uint(out, (uint64_t)t->n_dims, 8);
        for (int d = 0; d < t->n_dims; d++) put_uint(out, (uint64_t)t->dim[d], 4);
    }
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

static void put_tensor(oq_strbuf *out, const oq_write_tensor *t)
{
    const int n = t->n_dims < 1 ? 1 : t->n_dims < MAX_DIMS ? t->n_dims : MAX_DIMS;
    int64_t dim[MAX_DIMS] = {1};
    for (int d = 0; d < t->n_dims; d++) /* the innermost of too many become one */
        if (d < MAX_DIMS)
            dim[d] = t->dim[d];
        else
            dim[MAX_DIMS - 1] *= t->dim[d];
    put_text(out, t->name);
    put_uint(out, (uint64_t)n, 4);
    for (int d = n - 1; d >= 0; d--) put_uint(out, (uint64_t)dim[d], 8);
    put_uint(out, oq_gguf_type_by_name(t->type)->id, 4);
    put_uint(out, t->at, 8);
}

static oq_status header(oq_env *env, const oq_json *metadata, oq_write_tensor *const *tensors, size_t n,
                        oq_strbuf *out)
{
    const char *key = NULL;
    const oq_json *value = NULL;
    void *at = NULL;
    for (size_t i = 0; i < n; i++)
        if (!oq_gguf_type_by_name(tensors[i]->type))
            return oq_fail(env, OQ_E_UNSUPPORTED, "tensor '%s' is %s, which GGUF has no type for",
                           tensors[i]->name, tensors[i]->type);
    const size_t begin = out->size;
    oq_strbuf_add(out, "GGUF", 4);
    put_uint(out, VERSION, 4);
    put_uint(out, n, 8);
    put_uint(out, oq_json_size(metadata) + n_folded(tensors, n), 8);
    while (oq_json_next(metadata, &at, &key, &value)) put_key(out, key, value);
    put_shapes(out, tensors, n);
    for (size_t i = 0; i < n; i++) put_tensor(out, tensors[i]);
    while ((out->size - begin) % ALIGN != 0 && !out->failed) oq_strbuf_putc(out, '\0');
    return oq_strbuf_check(out, "GGUF header");
}

const oq_write_container oq_container_gguf = {
    .name = "gguf",
    .ending = ".gguf",
    .align = ALIGN,
    .whole = true,
    .small_f32 = true,
    .header = header,
};
