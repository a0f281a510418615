/* safetensors.c -- the header of one safetensors file to tensors: every field is checked, every size is
 * computed without overflow, and the tensors cover the data exactly. Reads no weight byte and copies none. */
#include "ckpt/reader.h"

#include "base/size.h"
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8    /* little-endian header length in front of the JSON */
#define ENTRY_MAX    4096 /* bytes of one tensor's description; real ones have about a hundred */
#define METADATA_MAX ((size_t)16 << 20) /* bytes of __metadata__; as JSON values it grows twentyfold */

typedef struct span { /* of the data behind the header */
    size_t begin, end;
    oq_ckpt_tensor *tensor;
} span;

typedef struct header {
    oq_env *env;
    oq_arena *arena;
    const char *path;
    const uint8_t *data; /* behind the header */
    size_t data_bytes;
    oq_ckpt_tensor *tensors;
    span *spans;
    size_t n;
} header;

/* Types that the container knows and no kernel computes with: kept as bytes, so that they can be listed. */
static const struct {
    const char *name;
    size_t bits;
} opaque_types[] = {
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"F4", 4},          {"C64", 64},
};

static oq_status fail_tensor(const header *h, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static oq_status fail_tensor(const header *h, const char *name, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return oq_fail(h->env, OQ_E_FORMAT, "%s: tensor '%s': %s", h->path, name, text);
}

/* The entry is an object of exactly the three fields that the container defines. */
static oq_status check_fields(const header *h, const char *name, const oq_json *entry)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    void *at = NULL;
    const char *key;
    const oq_json *value;
    if (oq_json_type(entry) != OQ_JSON_OBJECT)
        return fail_tensor(h, name, "its header entry is %s, not an object", oq_json_type_name(entry));
    for (size_t i = 0; i < OQ_COUNT(fields); i++)
        if (!oq_json_get(entry, fields[i])) return fail_tensor(h, name, "has no %s", fields[i]);
    while (oq_json_next(entry, &at, &key, &value)) {
        size_t i = 0;
        while (i < OQ_COUNT(fields) && strcmp(key, fields[i]) != 0) i++;
        if (i == OQ_COUNT(fields)) return fail_tensor(h, name, "unknown field '%s' in its header entry", key);
    }
    return OQ_OK;
}

static oq_status read_type(const header *h, const oq_json *value, oq_ckpt_tensor *t, size_t *bits)
{
    const char *name = oq_json_string(value);
    if (!name) return fail_tensor(h, t->name, "dtype is %s, not a string", oq_json_type_name(value));
    t->dtype = oq_dtype_find(name);
    if (t->dtype) {
        t->type_name = t->dtype->name;
        *bits = t->dtype->bytes * 8;
        return OQ_OK;
    }
    for (size_t i = 0; i < OQ_COUNT(opaque_types); i++) {
        if (strcmp(opaque_types[i].name, name) != 0) continue;
        t->type_name = opaque_types[i].name;
        *bits = opaque_types[i].bits;
        return OQ_OK;
    }
    return fail_tensor(h, t->name, "unknown dtype '%s'", name);
}

/* A size or offset: a whole number that is not negative, written as such. */
static bool read_count(const oq_json *value, int64_t *out)
{
    *out = oq_json_int(value, -1);
    return oq_json_type(value) == OQ_JSON_INT && *out >= 0;
}

static oq_status read_shape(const header *h, const oq_json *value, oq_ckpt_tensor *t)
{
    const size_t n = oq_json_size(value);
    if (oq_json_type(value) != OQ_JSON_ARRAY)
        return fail_tensor(h, t->name, "shape is %s, not a list", oq_json_type_name(value));
    if (n > OQ_CKPT_MAX_DIMS)
        return fail_tensor(h, t->name, "%zu dimensions, at most %d are read", n, OQ_CKPT_MAX_DIMS);
    int64_t room = 1; /* without those that are 0: the product of any of them is countable then */
    t->n_dims = (int)n;
    t->elems = 1;
    for (size_t i = 0; i < n; i++) {
        if (!read_count(oq_json_at(value, i), &t->dim[i]))
            return fail_tensor(h, t->name, "dimension %zu of its shape is not a whole number from 0 up", i);
        if (!oq_i64_mul(room, t->dim[i] ? t->dim[i] : 1, &room))
            return fail_tensor(h, t->name, "its shape has more elements than can be counted");
        t->elems *= t->dim[i];
    }
    return OQ_OK;
}

static oq_status read_offsets(const header *h, const oq_json *value, const oq_ckpt_tensor *t, span *out)
{
    int64_t begin, end;
    if (oq_json_type(value) != OQ_JSON_ARRAY || oq_json_size(value) != 2 ||
        !read_count(oq_json_at(value, 0), &begin) || !read_count(oq_json_at(value, 1), &end))
        return fail_tensor(h, t->name, "data_offsets is not a list of two whole numbers from 0 up");
    if (end < begin)
        return fail_tensor(h, t->name, "ends at byte %lld, before its begin at %lld", (long long)end,
                           (long long)begin);
    out->begin = (size_t)begin;
    out->end = (size_t)end;
    return OQ_OK;
}

static oq_status check_size(const header *h, oq_ckpt_tensor *t, size_t bits, const span *s)
{
    size_t total;
    const long long elems = t->elems;
    if (!oq_size_mul((size_t)t->elems, bits, &total))
        return fail_tensor(h, t->name, "%lld elements of %s are more bytes than can be counted", elems,
                           t->type_name);
    if (total % 8 != 0)
        return fail_tensor(h, t->name, "%lld elements of %s do not fill whole bytes", elems, t->type_name);
    t->bytes = total / 8;
    if (t->bytes != s->end - s->begin)
        return fail_tensor(h, t->name, "%lld elements of %s are %zu bytes, its data_offsets span %zu", elems,
                           t->type_name, t->bytes, s->end - s->begin);
    return OQ_OK;
}

static oq_status read_tensor(header *h, const char *name, const oq_json *entry)
{
    oq_ckpt_tensor *t = &h->tensors[h->n];
    span *s = &h->spans[h->n];
    size_t bits = 0;
    t->name = oq_arena_strdup(h->arena, name);
    if (!t->name) return oq_fail(h->env, OQ_E_NOMEM, "%s: no memory for the names of its tensors", h->path);
    OQ_TRY(check_fields(h, name, entry));
    OQ_TRY(read_type(h, oq_json_get(entry, "dtype"), t, &bits));
    OQ_TRY(read_shape(h, oq_json_get(entry, "shape"), t));
    OQ_TRY(read_offsets(h, oq_json_get(entry, "data_offsets"), t, s));
    OQ_TRY(check_size(h, t, bits, s));
    s->tensor = t;
    h->n++;
    return OQ_OK;
}

static oq_status read_metadata(const header *h, const oq_json *value, oq_ckpt_part *out)
{
    void *at = NULL;
    const char *key;
    const oq_json *text;
    if (out->metadata)
        return oq_fail(h->env, OQ_E_FORMAT, "%s: __metadata__ stands twice in its header", h->path);
    while (oq_json_next(value, &at, &key, &text))
        if (!oq_json_string(text))
            return oq_fail(h->env, OQ_E_FORMAT, "%s: __metadata__ key '%s' is %s, not a string", h->path, key,
                           oq_json_type_name(text));
    out->metadata = oq_json_ref(value);
    return OQ_OK;
}

static int compare_spans(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Sorted by place, each tensor begins where the one before ends, and the last ends with the file. */
static oq_status check_coverage(header *h)
{
    size_t end = 0;
    const char *before = NULL;
    if (h->n) qsort(h->spans, h->n, sizeof *h->spans, compare_spans);
    for (size_t i = 0; i < h->n; i++) {
        const span *s = &h->spans[i];
        if (s->begin > end)
            return fail_tensor(h, s->tensor->name,
                               "begins at byte %zu of the data, %zu bytes before it belong to no tensor",
                               s->begin, s->begin - end);
        if (s->begin < end)
            return fail_tensor(h, s->tensor->name,
                               "begins at byte %zu of the data, inside tensor '%s' that ends at %zu",
                               s->begin, before, end);
        end = s->end;
        before = s->tensor->name;
    }
    if (end > h->data_bytes)
        return oq_fail(h->env, OQ_E_FORMAT,
                       "%s: the file ends %zu bytes early (%zu of %zu bytes of data): download it again",
                       h->path, end - h->data_bytes, h->data_bytes, end);
    if (end < h->data_bytes)
        return oq_fail(
            h->env, OQ_E_FORMAT,
            "%s: %zu bytes follow the last tensor, its header does not describe them: download it again",
            h->path, h->data_bytes - end);
    return OQ_OK;
}

/* What a member may cost is checked before it becomes JSON values. */
static oq_status check_member(const header *h, const char *text, const oq_header_member *m)
{
    static const char metadata[] = "\"__metadata__\"";
    const size_t n = m->value_end - m->value, key_n = m->key_end - m->key;
    const bool is_metadata = key_n == sizeof metadata - 1 && memcmp(text + m->key, metadata, key_n) == 0;
    if (is_metadata && m->nested)
        return oq_fail(h->env, OQ_E_FORMAT,
                       "%s: __metadata__ holds a list or an object, its values must be strings", h->path);
    if (n <= (is_metadata ? METADATA_MAX : ENTRY_MAX)) return OQ_OK;
    return oq_fail(h->env, OQ_E_FORMAT, "%s: header entry %.*s has %zu bytes, at most %zu are read", h->path,
                   key_n < 1000 ? (int)key_n : 1000, text + m->key, n,
                   is_metadata ? METADATA_MAX : (size_t)ENTRY_MAX);
}

/* One member as a JSON object of its own, in `scratch`, then as a tensor or as the metadata. */
static oq_status read_member(header *h, const char *text, const oq_header_member *m, oq_strbuf *scratch,
                             oq_ckpt_part *out)
{
    void *at = NULL;
    const char *key;
    const oq_json *value;
    oq_json *json = NULL;
    OQ_TRY(check_member(h, text, m));
    oq_strbuf_clear(scratch);
    oq_strbuf_printf(scratch, "%s: header at byte %zu", h->path, m->key);
    const size_t source_n = scratch->size;
    oq_strbuf_putc(scratch, '\0');
    oq_strbuf_putc(scratch, '{');
    oq_strbuf_add(scratch, text + m->key, m->value_end - m->key);
    oq_strbuf_putc(scratch, '}');
    OQ_TRY(oq_strbuf_check(scratch, "header entry"));
    const char *source = oq_strbuf_text(scratch), *member = source + source_n + 1;
    OQ_TRY(oq_json_parse(h->env, member, scratch->size - source_n - 1, source, &json));
    oq_json_next(json, &at, &key, &value);
    const oq_status st =
        strcmp(key, "__metadata__") == 0 ? read_metadata(h, value, out) : read_tensor(h, key, value);
    oq_json_free(json);
    return st;
}

static oq_status count_members(const header *h, const char *text, size_t n, size_t *out)
{
    oq_header_cursor cursor = {.text = text, .n = n};
    oq_header_member member;
    *out = 0;
    for (bool more = true;; ++*out) {
        OQ_TRY(oq_header_next(h->env, h->path, &cursor, &member, &more));
        if (!more) return OQ_OK;
    }
}

static oq_status read_members(header *h, const char *text, size_t n, oq_ckpt_part *out)
{
    oq_header_cursor cursor = {.text = text, .n = n};
    oq_header_member member;
    oq_strbuf scratch;
    size_t n_members = 0;
    OQ_TRY(count_members(h, text, n, &n_members));
    OQ_TRY(oq_arena_new(h->arena, n_members + 1, sizeof *h->tensors, "tensor list", &h->tensors));
    OQ_TRY(oq_new(h->env, n_members + 1, sizeof *h->spans, "tensor list", &h->spans));
    oq_strbuf_init(&scratch, h->env);
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < n_members; i++) {
        bool more = false;
        st = oq_header_next(h->env, h->path, &cursor, &member, &more);
        if (st == OQ_OK) st = read_member(h, text, &member, &scratch, out);
    }
    oq_strbuf_deinit(&scratch);
    if (st == OQ_OK) st = check_coverage(h);
    for (size_t i = 0; st == OQ_OK && i < h->n; i++) {
        const span *s = &h->spans[i];
        if (s->end > s->begin) s->tensor->data = h->data + s->begin;
    }
    return st;
}

const char *oq_header_hash(oq_arena *arena, const uint8_t *text, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ text[i]) * 0x100000001b3u;
    return oq_arena_printf(arena, "%016llx", (unsigned long long)hash);
}

uint64_t oq_safetensors_header_bytes(const oq_mapping *map)
{
    uint64_t n = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) n = n << 8 | map->data[i];
    return n;
}

/* The header's text inside the mapping. */
static oq_status find_header(oq_env *env, const char *path, const oq_mapping *map, size_t *n)
{
    if (map->bytes < LENGTH_BYTES + 2)
        return oq_fail(env, OQ_E_FORMAT,
                       "%s: %zu bytes are too few for a safetensors file: download it again", path,
                       map->bytes);
    const uint64_t length = oq_safetensors_header_bytes(map);
    if (length > OQ_SAFETENSORS_HEADER_MAX)
        return oq_fail(env, OQ_E_FORMAT, "%s: a header of %llu bytes, at most %u are read", path,
                       (unsigned long long)length, OQ_SAFETENSORS_HEADER_MAX);
    if (length > map->bytes - LENGTH_BYTES)
        return oq_fail(
            env, OQ_E_FORMAT,
            "%s: the file ends %llu bytes early, inside its header of %llu bytes: download it again", path,
            (unsigned long long)(length - (map->bytes - LENGTH_BYTES)), (unsigned long long)length);
    if (length < 2 || map->data[LENGTH_BYTES] != '{')
        return oq_fail(env, OQ_E_FORMAT, "%s: its header of %llu bytes does not begin with '{'", path,
                       (unsigned long long)length);
    *n = (size_t)length;
    return OQ_OK;
}

oq_status oq_safetensors_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map,
                               oq_ckpt_part *out)
{
    size_t n = 0;
    *out = (oq_ckpt_part){0};
    OQ_TRY(find_header(env, path, map, &n));
    const uint8_t *text = map->data + LENGTH_BYTES;
    header h = {.env = env,
                .arena = arena,
                .path = path,
                .data = text + n,
                .data_bytes = map->bytes - LENGTH_BYTES - n};
    oq_status st = read_members(&h, (const char *)text, n, out);
    oq_free(env, h.spans);
    if (st == OQ_OK && !(out->header_hash = oq_header_hash(arena, text, n)))
        st = oq_fail(env, OQ_E_NOMEM, "%s: no memory for the hash of its header", path);
    out->tensors = h.tensors;
    out->n_tensors = h.n;
    if (st != OQ_OK) {
        oq_json_free(out->metadata);
        *out = (oq_ckpt_part){0};
    }
    return st;
}
