/* gguf_mutant.c -- GGUF to parts and back, by a reader and a writer of their own: what omniq's reader refuses can be written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/gguf_mutant.h"

#include "base/env.h"
#include "base/size.h"
#include "format/gguf_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    assert_non_null(copy);
    if (bytes) memcpy(copy, data, bytes);
    return copy;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

typedef struct cursor {
    const uint8_t *data;
    size_t at, size;
} cursor;

static uint64_t take(cursor *c, size_t bytes)
{
    uint64_t v = 0;
    assert_true(c->at + bytes <= c->size);
    memcpy(&v, c->data + c->at, bytes);
    c->at += bytes;
    return v;
}

static void take_name(cursor *c, char out[192])
{
    const size_t n = (size_t)take(c, 8);
    assert_true(n < 192 && c->at + n <= c->size);
    memcpy(out, c->data + c->at, n);
    out[n] = '\0';
    c->at += n;
}

static void skip_value(cursor *c, uint32_t type)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == GGUF_STRING) {
        c->at += (size_t)take(c, 8);
    } else if (type == GGUF_ARRAY) {
        const uint32_t of = (uint32_t)take(c, 4);
        for (uint64_t n = take(c, 8); n; n--) skip_value(c, of);
    } else {
        assert_true(type < OQ_COUNT(sizes));
        c->at += sizes[type];
    }
    assert_true(c->at <= c->size);
}

static void read_tensor(cursor *c, gguf_mutant_tensor *t, uint64_t *offset)
{
    uint64_t elems = 1;
    *t = (gguf_mutant_tensor){0};
    take_name(c, t->name);
    t->n_dims = (uint32_t)take(c, 4);
    assert_true(t->n_dims <= OQ_COUNT(t->dim));
    for (uint32_t d = 0; d < t->n_dims; d++) elems *= t->dim[d] = take(c, 8);
    t->type = (uint32_t)take(c, 4);
    *offset = take(c, 8);
    const oq_gguf_type *type = oq_gguf_type_by_id(t->type);
    assert_non_null(type);
    t->bytes = (size_t)elems / (size_t)type->elems * (size_t)type->bytes;
}

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*n);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

void gguf_mutant_read(gguf_mutant *m, const char *path)
{
    cursor c = {0};
    uint64_t offset[1024];
    uint8_t *data = read_file(path, &c.size);
    c.data = data;
    *m = (gguf_mutant){.alignment = 32};
    assert_memory_equal(data, "GGUF", 4);
    c.at = 4;
    m->version = (uint32_t)take(&c, 4);
    const size_t n_tensors = (size_t)take(&c, 8), n_keys = (size_t)take(&c, 8);
    assert_true(n_tensors <= OQ_COUNT(offset));
    for (size_t i = 0; i < n_keys; i++) {
        char name[192];
        take_name(&c, name);
        const uint32_t type = (uint32_t)take(&c, 4);
        const size_t at = c.at;
        skip_value(&c, type);
        gguf_mutant_add_key(m, name, type, data + at, c.at - at);
    }
    m->cap_tensors = n_tensors + 8;
    m->tensors = calloc(m->cap_tensors, sizeof *m->tensors);
    assert_non_null(m->tensors);
    for (; m->n_tensors < n_tensors; m->n_tensors++)
        read_tensor(&c, &m->tensors[m->n_tensors], &offset[m->n_tensors]);
    const gguf_mutant_key *alignment = gguf_mutant_find_key(m, "general.alignment");
    if (alignment) memcpy(&m->alignment, alignment->value, alignment->bytes);
    const size_t begin = oq_align_up(c.at, m->alignment);
    for (size_t i = 0; i < n_tensors; i++) {
        gguf_mutant_tensor *t = &m->tensors[i];
        assert_true(begin + offset[i] + t->bytes <= c.size);
        t->data = copy_of(data + begin + offset[i], t->bytes);
    }
    free(data);
}

/* ---- parts ----------------------------------------------------------------------------------------------- */

gguf_mutant_key *gguf_mutant_add_key(gguf_mutant *m, const char *name, uint32_t type, const void *value,
                                     size_t bytes)
{
    if (m->n_keys == m->cap_keys) {
        m->cap_keys = 2 * m->cap_keys + 8;
        m->keys = realloc(m->keys, m->cap_keys * sizeof *m->keys);
        assert_non_null(m->keys);
    }
    gguf_mutant_key *k = &m->keys[m->n_keys++];
    *k = (gguf_mutant_key){.type = type, .value = copy_of(value, bytes), .bytes = bytes};
    snprintf(k->name, sizeof k->name, "%s", name);
    return k;
}

void gguf_mutant_set(gguf_mutant_key *k, uint32_t type, const void *value, size_t bytes)
{
    uint8_t *own = copy_of(value, bytes);
    free(k->value);
    k->type = type;
    k->value = own;
    k->bytes = bytes;
}

gguf_mutant_tensor *gguf_mutant_add(gguf_mutant *m, const gguf_mutant_tensor *like, const char *name)
{
    if (m->n_tensors == m->cap_tensors) {
        m->cap_tensors = 2 * m->cap_tensors + 8;
        m->tensors = realloc(m->tensors, m->cap_tensors * sizeof *m->tensors);
        assert_non_null(m->tensors);
    }
    gguf_mutant_tensor *t = &m->tensors[m->n_tensors++];
    *t = *like;
    t->data = copy_of(like->data, like->bytes);
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

void gguf_mutant_copy(gguf_mutant *m, const gguf_mutant *from)
{
    *m = *from;
    m->keys = NULL, m->tensors = NULL;
    m->n_keys = m->cap_keys = m->n_tensors = m->cap_tensors = 0;
    for (size_t i = 0; i < from->n_keys; i++) {
        const gguf_mutant_key *k = &from->keys[i];
        gguf_mutant_add_key(m, k->name, k->type, k->value, k->bytes)->dropped = k->dropped;
    }
    for (size_t i = 0; i < from->n_tensors; i++) {
        char name[192];
        snprintf(name, sizeof name, "%s", from->tensors[i].name);
        gguf_mutant_add(m, &from->tensors[i], name);
    }
}

void gguf_mutant_free(gguf_mutant *m)
{
    for (size_t i = 0; i < m->n_keys; i++) free(m->keys[i].value);
    for (size_t i = 0; i < m->n_tensors; i++) free(m->tensors[i].data);
    free(m->keys);
    free(m->tensors);
    *m = (gguf_mutant){0};
}

gguf_mutant_key *gguf_mutant_find_key(const gguf_mutant *m, const char *name)
{
    for (size_t i = 0; i < m->n_keys; i++)
        if (strcmp(m->keys[i].name, name) == 0 && !m->keys[i].dropped) return &m->keys[i];
    return NULL;
}

gguf_mutant_tensor *gguf_mutant_find(const gguf_mutant *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0 && !m->tensors[i].dropped) return &m->tensors[i];
    return NULL;
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static void put(FILE *f, const void *bytes, size_t n)
{
    if (n) assert_int_equal(fwrite(bytes, 1, n, f), n);
}

static void put_uint(FILE *f, uint64_t v, size_t bytes)
{
    put(f, &v, bytes);
}

static void put_name(FILE *f, const char *name)
{
    put_uint(f, strlen(name), 8);
    put(f, name, strlen(name));
}

static void pad(FILE *f, size_t alignment)
{
    while ((size_t)ftell(f) % alignment) put_uint(f, 0, 1);
}

static void put_header(FILE *f, const gguf_mutant *m)
{
    uint64_t n_keys = m->more_keys, n_tensors = m->more_tensors, offset = 0;
    for (size_t i = 0; i < m->n_keys; i++) n_keys += !m->keys[i].dropped;
    for (size_t i = 0; i < m->n_tensors; i++) n_tensors += !m->tensors[i].dropped;
    put(f, "GGUF", 4);
    put_uint(f, m->version, 4);
    put_uint(f, n_tensors, 8);
    put_uint(f, n_keys, 8);
    for (size_t i = 0; i < m->n_keys; i++) {
        if (m->keys[i].dropped) continue;
        put_name(f, m->keys[i].name);
        put_uint(f, m->keys[i].type, 4);
        put(f, m->keys[i].value, m->keys[i].bytes);
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        const gguf_mutant_tensor *t = &m->tensors[i];
        if (t->dropped) continue;
        put_name(f, t->name);
        put_uint(f, t->n_dims, 4);
        for (uint32_t d = 0; d < t->n_dims; d++) put_uint(f, t->dim[d], 8);
        put_uint(f, t->type, 4);
        put_uint(f, offset + (uint64_t)t->moved, 8);
        offset = oq_align_up((size_t)offset + t->bytes, m->alignment);
    }
}

void gguf_mutant_write(const gguf_mutant *m, const char *path)
{
    FILE *f = fopen(path, "wb+");
    assert_non_null(f);
    put_header(f, m);
    pad(f, m->alignment);
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (m->tensors[i].dropped) continue;
        put(f, m->tensors[i].data, m->tensors[i].bytes);
        pad(f, m->alignment); /* the header's end is a multiple of it */
    }
    for (size_t i = 0; i < m->added; i++) put_uint(f, 0x5a, 1);
    const long size = ftell(f) - (long)m->cut;
    assert_int_equal(fclose(f), 0);
    if (m->cut) {
        size_t n = 0;
        uint8_t *all = read_file(path, &n);
        f = fopen(path, "wb");
        assert_non_null(f);
        put(f, all, (size_t)(size > 0 ? size : 0));
        assert_int_equal(fclose(f), 0);
        free(all);
    }
}
