/* gguf_writer.c -- see gguf_writer.h. */
#include "support/gguf_writer.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/scratch.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32 };

static void put(oq_strbuf *to, const void *bytes, size_t n)
{
    oq_strbuf_add(to, bytes, n);
}

static void put_u32(oq_strbuf *to, uint32_t x)
{
    put(to, &x, sizeof x);
}

static void put_u64(oq_strbuf *to, uint64_t x)
{
    put(to, &x, sizeof x);
}

static void put_text(oq_strbuf *to, const char *text)
{
    put_u64(to, strlen(text));
    put(to, text, strlen(text));
}

static void pad(oq_strbuf *to)
{
    while (to->size % ALIGNMENT) oq_strbuf_putc(to, '\0');
}

void gguf_begin(gguf_writer *w, oq_env *env)
{
    *w = (gguf_writer){0};
    oq_strbuf_init(&w->keys, env);
    oq_strbuf_init(&w->infos, env);
    oq_strbuf_init(&w->data, env);
}

void gguf_key_text(gguf_writer *w, const char *key, const char *text)
{
    put_text(&w->keys, key);
    put_u32(&w->keys, 8);
    put_text(&w->keys, text);
    w->n_keys++;
}

/* Blocks that are only read: any indices under a scale of 1/64. */
static void any_blocks(uint8_t *out, size_t bytes, size_t block)
{
    uint32_t seed = 7;
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    for (size_t i = 0; i < bytes; i += block) oq_dtype_f16.from_f32(out + i, &(float){1.0f / 64}, 1);
}

static void put_values(gguf_writer *w, const float *x, int64_t n, const oq_gguf_type *type)
{
    const size_t bytes = (size_t)(n / type->elems) * (size_t)type->bytes;
    void *out = malloc(bytes);
    assert_non_null(out);
    memset(out, 0, bytes);
    if (type->dtype)
        type->dtype->from_f32(out, x, (size_t)n);
    else if (type->format && type->format->encode) /* what is not read: zeros */
        type->format->encode(type->format, &(oq_planes_mut){{out}}, x, 1, n);
    else if (type->format)
        any_blocks(out, bytes, (size_t)type->bytes);
    put(&w->data, out, bytes);
    free(out);
}

void gguf_tensor(gguf_writer *w, const char *name, const oq_ckpt_tensor *const *parts, int n_parts,
                 const oq_gguf_type *type)
{
    const oq_ckpt_tensor *first = parts[0];
    const bool is_vector = first->n_dims < 2 || first->dim[0] == 1;
    int64_t elems = 0, rows = 0;
    for (int i = 0; i < n_parts; i++) elems += parts[i]->elems, rows += parts[i]->dim[0];
    float *x = malloc((size_t)elems * sizeof *x), *at = x;
    assert_non_null(x);
    for (int i = 0; i < n_parts; at += parts[i++]->elems)
        parts[i]->dtype->to_f32(at, parts[i]->data, (size_t)parts[i]->elems);
    if (is_vector) type = oq_gguf_type_by_name("F32");
    put_text(&w->infos, name);
    put_u32(&w->infos, (uint32_t)first->n_dims);
    for (int i = first->n_dims - 1; i >= 0; i--) put_u64(&w->infos, (uint64_t)(i ? first->dim[i] : rows));
    put_u32(&w->infos, type->id);
    pad(&w->data);
    put_u64(&w->infos, w->data.size);
    put_values(w, x, elems, type);
    w->n_tensors++;
    free(x);
}

const char *gguf_finish(gguf_writer *w, const char *dir, const char *leaf)
{
    oq_strbuf file;
    oq_strbuf_init(&file, w->keys.env);
    put(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, w->n_tensors);
    put_u64(&file, w->n_keys);
    put(&file, w->keys.text, w->keys.size);
    put(&file, w->infos.text, w->infos.size);
    pad(&file);
    pad(&w->data);
    put(&file, w->data.text, w->data.size);
    assert_false(file.failed);
    scratch_write(dir, leaf, file.text, file.size);
    oq_strbuf_deinit(&file);
    oq_strbuf_deinit(&w->keys);
    oq_strbuf_deinit(&w->infos);
    oq_strbuf_deinit(&w->data);
    return scratch_path(dir, leaf);
}
