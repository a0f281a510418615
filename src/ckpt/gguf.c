/* gguf.c -- the header of one GGUF file to tensors: every count and length is checked against the bytes that are left
 * before it is believed, sizes are computed without overflow, and the tensors lie one behind the other as the format
 * wants them. Reads no weight byte and copies none. Versions 2 and 3, little-endian. */
#include "ckpt/reader.h"

#include "base/size.h"
#include "base/unicode.h"
#include "format/gguf_type.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20,
    MAX_NAME = 4096,       /* bytes of a key or of a tensor's name */
    MAX_DEPTH = 4,         /* lists in lists */
    KEPT_ELEMENTS = 64,    /* longer lists (vocabularies) are counted, not kept */
    KEPT_VALUES = 1 << 18, /* of the whole file */
    LEAST_KEY = 8 + 4 + 1, /* bytes of the smallest key with its value, of the smallest tensor entry */
    LEAST_TENSOR = 8 + 4 + 4 + 8
};

static const char shape_prefix[] = "comfy.gguf.orig_shape.";

typedef enum value_kind {
    KIND_U8,
    KIND_I8,
    KIND_U16,
    KIND_I16,
    KIND_U32,
    KIND_I32,
    KIND_F32,
    KIND_BOOL,
    KIND_STRING,
    KIND_ARRAY,
    KIND_U64,
    KIND_I64,
    KIND_F64,
    N_KINDS
} value_kind;

static const struct {
    const char *name;
    size_t bytes; /* 0: tells its length itself */
} kinds[N_KINDS] = {
    {"UINT8", 1}, {"INT8", 1},   {"UINT16", 2}, {"INT16", 2},  {"UINT32", 4}, {"INT32", 4},   {"FLOAT32", 4},
    {"BOOL", 1},  {"STRING", 0}, {"ARRAY", 0},  {"UINT64", 8}, {"INT64", 8},  {"FLOAT64", 8},
};

typedef struct reader {
    oq_env *env;
    oq_arena *arena;
    const char *path;
    const uint8_t *data;
    size_t size, at;
    size_t alignment;
    size_t kept; /* metadata values so far */
    oq_json *metadata;
    oq_ckpt_tensor *tensors;
    uint64_t *offsets;
    size_t n_tensors;
} reader;

static oq_status fail(const reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static oq_status fail(const reader *r, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return oq_fail(r->env, OQ_E_FORMAT, "%s: %s", r->path, text);
}

/* ---- numbers and strings --------------------------------------------------------------------------------- */

static size_t left(const reader *r)
{
    return r->size - r->at;
}

static oq_status take(reader *r, size_t n, const char *what, const uint8_t **out)
{
    if (n > left(r))
        return fail(r,
                    "the file ends inside %s (at byte %zu of %zu, which needs %zu more): download it again",
                    what, r->at, r->size, n);
    *out = r->data + r->at;
    r->at += n;
    return OQ_OK;
}

static uint64_t little(const uint8_t *p, size_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

static oq_status take_uint(reader *r, size_t bytes, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    OQ_TRY(take(r, bytes, what, &p));
    *out = little(p, bytes);
    return OQ_OK;
}

static oq_status take_text(reader *r, const char *what, const uint8_t **text, size_t *n)
{
    uint64_t length = 0;
    OQ_TRY(take_uint(r, 8, what, &length));
    if (length > left(r))
        return fail(r, "%s of %llu bytes at byte %zu, where %zu bytes are left", what,
                    (unsigned long long)length, r->at, left(r));
    *n = (size_t)length;
    return take(r, *n, what, text);
}

/* A key or a tensor's name: text without NUL, not absurdly long. */
static oq_status take_name(reader *r, const char *what, char **out)
{
    const uint8_t *text = NULL;
    size_t n = 0;
    OQ_TRY(take_text(r, what, &text, &n));
    if (n == 0 || n > MAX_NAME || memchr(text, 0, n))
        return fail(r, "%s of %zu bytes at byte %zu %s", what, n, r->at - n,
                    n == 0         ? "is empty"
                    : n > MAX_NAME ? "is too long"
                                   : "has a zero byte in it");
    if (!oq_utf8_valid((const char *)text, n))
        return fail(r, "%s of %zu bytes at byte %zu is not UTF-8", what, n, r->at - n);
    *out = oq_arena_strndup(r->arena, (const char *)text, n);
    return *out ? OQ_OK : oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for the names of its tensors", r->path);
}

/* ---- metadata -------------------------------------------------------------------------------------------- */

static float f32_of(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

static double f64_of(const uint8_t *p)
{
    double x;
    memcpy(&x, p, sizeof x);
    return x;
}

static oq_json *scalar_json(value_kind kind, const uint8_t *p)
{
    const uint64_t u = kind == KIND_F32 || kind == KIND_F64 ? 0 : little(p, kinds[kind].bytes);
    switch (kind) {
    case KIND_I8:
        return oq_json_new_int((int8_t)u);
    case KIND_I16:
        return oq_json_new_int((int16_t)u);
    case KIND_I32:
        return oq_json_new_int((int32_t)u);
    case KIND_F32:
        return oq_json_new_real((double)f32_of(p));
    case KIND_F64:
        return oq_json_new_real(f64_of(p));
    case KIND_BOOL:
        return oq_json_new_bool(u != 0);
    case KIND_U64:
        return u > INT64_MAX ? oq_json_new_real((double)u) : oq_json_new_int((int64_t)u);
    default:
        return oq_json_new_int((int64_t)u);
    }
}

static oq_status take_kind(reader *r, const char *key, value_kind *out)
{
    uint64_t kind = 0;
    OQ_TRY(take_uint(r, 4, "the type of a key", &kind));
    if (kind >= N_KINDS) return fail(r, "key '%s' is of unknown type %llu", key, (unsigned long long)kind);
    *out = (value_kind)kind;
    return OQ_OK;
}

static oq_status read_value(reader *r, const char *key, value_kind kind, bool keep, int depth, oq_json **out);

static oq_json *string_json(const reader *r, const uint8_t *text, size_t n)
{
    char *copy = oq_alloc(r->env, n + 1); /* zeroed: ends with NUL */
    if (copy) memcpy(copy, text, n);
    oq_json *json = copy ? oq_json_new_string(copy) : NULL;
    oq_free(r->env, copy);
    return json;
}

/* Elements one by one, kept in `list`, or only walked over where it is NULL. */
static oq_status read_elements(reader *r, const char *key, value_kind kind, uint64_t n, int depth,
                               oq_json *list)
{
    for (uint64_t i = 0; i < n; i++) {
        oq_json *value = NULL;
        OQ_TRY(read_value(r, key, kind, list != NULL, depth, &value));
        if (list && !oq_json_append(list, value))
            return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory", r->path);
    }
    return OQ_OK;
}

/* What stands for a list that is too long to keep. */
static oq_json *summary_json(value_kind kind, uint64_t n)
{
    oq_json *out = oq_json_new_object();
    oq_json_set(out, "array_of", oq_json_new_string(kinds[kind].name));
    oq_json_set(out, "length", oq_json_new_int((int64_t)n));
    return out;
}

static oq_status read_array(reader *r, const char *key, bool keep, int depth, oq_json **out)
{
    value_kind kind = KIND_U8;
    uint64_t n = 0;
    if (depth == MAX_DEPTH)
        return fail(r, "key '%s' holds lists in lists, more than %d deep", key, MAX_DEPTH);
    OQ_TRY(take_kind(r, key, &kind));
    OQ_TRY(take_uint(r, 8, "the length of a list", &n));
    const size_t least = kinds[kind].bytes ? kinds[kind].bytes : kind == KIND_STRING ? 8 : 12;
    if (n > left(r) / least)
        return fail(r, "key '%s' is a list of %llu %s, for which %zu bytes are left", key,
                    (unsigned long long)n, kinds[kind].name, left(r));
    const bool all = keep && n <= KEPT_ELEMENTS;
    if (kinds[kind].bytes && !all) {
        r->at += (size_t)n * kinds[kind].bytes;
        if (keep) *out = summary_json(kind, n);
        return OQ_OK;
    }
    oq_json *list = all ? oq_json_new_array() : NULL;
    const oq_status st = read_elements(r, key, kind, n, depth + 1, list);
    if (st != OQ_OK)
        oq_json_free(list);
    else if (keep)
        *out = all ? list : summary_json(kind, n);
    return st;
}

static oq_status read_value(reader *r, const char *key, value_kind kind, bool keep, int depth, oq_json **out)
{
    const uint8_t *p = NULL;
    size_t n = 0;
    if (keep && ++r->kept > KEPT_VALUES) return fail(r, "its metadata hold more than %d values", KEPT_VALUES);
    if (kind == KIND_ARRAY) return read_array(r, key, keep, depth, out);
    if (kind == KIND_STRING) {
        OQ_TRY(take_text(r, "a string", &p, &n));
        if (keep) *out = string_json(r, p, n);
    } else {
        OQ_TRY(take(r, kinds[kind].bytes, "a value", &p));
        if (keep) *out = scalar_json(kind, p);
    }
    return OQ_OK;
}

static oq_status check_alignment(reader *r, value_kind kind, const oq_json *value)
{
    const int64_t n = oq_json_int(value, 0);
    if (kind != KIND_U32)
        return fail(r, "general.alignment is stored as %s, it must be UINT32", kinds[kind].name);
    if (n < 1 || n > MAX_ALIGNMENT || (n & (n - 1)) != 0)
        return fail(r, "general.alignment is %lld, it must be a power of two up to %d", (long long)n,
                    MAX_ALIGNMENT);
    r->alignment = (size_t)n;
    return OQ_OK;
}

static oq_status read_key(reader *r)
{
    char *key = NULL;
    value_kind kind = KIND_U8;
    oq_json *value = NULL;
    OQ_TRY(take_name(r, "a key", &key));
    OQ_TRY(take_kind(r, key, &kind));
    OQ_TRY(read_value(r, key, kind, true, 0, &value));
    const bool twice = oq_json_get(r->metadata, key) != NULL;
    oq_status st = twice ? fail(r, "key '%s' stands twice", key) : OQ_OK;
    if (st == OQ_OK && strcmp(key, "general.alignment") == 0) st = check_alignment(r, kind, value);
    if (st != OQ_OK) {
        oq_json_free(value);
        return st;
    }
    if (oq_json_set(r->metadata, key, value)) return OQ_OK;
    return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory for its metadata", r->path);
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

static oq_status read_shape(reader *r, oq_ckpt_tensor *t)
{
    uint64_t n = 0, dim = 0;
    int64_t room = 1; /* without those that are 0: the product of any of them is countable then */
    OQ_TRY(take_uint(r, 4, "a tensor's dimensions", &n));
    if (n > OQ_CKPT_MAX_DIMS)
        return fail(r, "tensor '%s': %llu dimensions, at most %d are read", t->name, (unsigned long long)n,
                    OQ_CKPT_MAX_DIMS);
    t->n_dims = (int)n;
    t->elems = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) { /* the file begins with the innermost */
        OQ_TRY(take_uint(r, 8, "a tensor's dimensions", &dim));
        if (dim > INT64_MAX || !oq_i64_mul(room, dim ? (int64_t)dim : 1, &room))
            return fail(r, "tensor '%s': its shape has more elements than can be counted", t->name);
        t->dim[i] = (int64_t)dim;
        t->elems *= (int64_t)dim;
    }
    return OQ_OK;
}

static oq_status read_type(reader *r, oq_ckpt_tensor *t)
{
    uint64_t id = 0;
    size_t blocks = 0;
    OQ_TRY(take_uint(r, 4, "a tensor's type", &id));
    const oq_gguf_type *type = oq_gguf_type_by_id((uint32_t)id);
    if (!type) return fail(r, "tensor '%s': unknown type %llu", t->name, (unsigned long long)id);
    t->type_name = type->name;
    t->dtype = type->dtype;
    t->format = type->format;
    const int64_t row = t->n_dims ? t->dim[t->n_dims - 1] : 1;
    if (row % type->elems != 0)
        return fail(r, "tensor '%s': rows of %lld elements are not whole blocks of %s, which have %d",
                    t->name, (long long)row, type->name, type->elems);
    blocks = (size_t)(t->elems / type->elems);
    if (!oq_size_mul(blocks, (size_t)type->bytes, &t->bytes) || t->bytes > INT64_MAX)
        return fail(r, "tensor '%s': %lld elements of %s are more bytes than can be counted", t->name,
                    (long long)t->elems, type->name);
    return OQ_OK;
}

static oq_status read_tensor(reader *r)
{
    oq_ckpt_tensor *t = &r->tensors[r->n_tensors];
    char *name = NULL;
    OQ_TRY(take_name(r, "a tensor's name", &name));
    t->name = name;
    OQ_TRY(read_shape(r, t));
    OQ_TRY(read_type(r, t));
    OQ_TRY(take_uint(r, 8, "a tensor's offset", &r->offsets[r->n_tensors]));
    if (r->offsets[r->n_tensors] % r->alignment != 0)
        return fail(r,
                    "tensor '%s': begins at byte %llu of the data, which is no multiple of the alignment %zu",
                    t->name, (unsigned long long)r->offsets[r->n_tensors], r->alignment);
    r->n_tensors++;
    return OQ_OK;
}

/* Writers that have no room for a shape flatten the tensor and note its shape beside it. */
static oq_status restore_shape(reader *r, oq_ckpt_tensor *t)
{
    char key[sizeof shape_prefix + MAX_NAME];
    int64_t elems = 1, room = 1;
    snprintf(key, sizeof key, "%s%s", shape_prefix, t->name);
    const oq_json *shape = oq_json_get(r->metadata, key);
    const size_t n = oq_json_size(shape);
    if (!shape) return OQ_OK;
    if (oq_json_type(shape) != OQ_JSON_ARRAY || n == 0 || n > OQ_CKPT_MAX_DIMS)
        return fail(r, "key '%s' is no list of 1 to %d dimensions", key, OQ_CKPT_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        const int64_t dim = oq_json_int(oq_json_at(shape, i), -1);
        if (dim < 0 || !oq_i64_mul(room, dim ? dim : 1, &room))
            return fail(r, "key '%s' tells no shape that can be counted", key);
        t->dim[i] = dim;
        elems *= dim;
    }
    if (elems != t->elems)
        return fail(r, "key '%s' tells %lld elements, its tensor has %lld", key, (long long)elems,
                    (long long)t->elems);
    t->n_dims = (int)n;
    return OQ_OK;
}

typedef struct place {
    uint64_t offset;
    oq_ckpt_tensor *tensor;
} place;

static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->tensor->bytes > 0) - (y->tensor->bytes > 0); /* empty ones in front */
}

/* Each tensor begins at the first aligned byte behind the one before, and the last ends with the file, but for
 * padding. */
static oq_status check_places(reader *r, place *places)
{
    const size_t begin = oq_align_up(r->at, r->alignment);
    const size_t room = begin < r->size ? r->size - begin : 0;
    uint64_t end = 0;
    for (size_t i = 0; i < r->n_tensors; i++) places[i] = (place){r->offsets[i], &r->tensors[i]};
    if (r->n_tensors) qsort(places, r->n_tensors, sizeof *places, compare_places);
    for (size_t i = 0; i < r->n_tensors; i++) {
        const place *p = &places[i];
        const uint64_t aligned = oq_align_up((size_t)end, r->alignment);
        if (p->offset != aligned)
            return fail(r, "tensor '%s': begins at byte %llu of the data, %s at %llu", p->tensor->name,
                        (unsigned long long)p->offset,
                        p->offset < aligned ? "but the one before it ends" : "but its place is",
                        (unsigned long long)aligned);
        if (p->offset > room || p->tensor->bytes > room - p->offset)
            return fail(
                r, "the file ends inside tensor '%s' (%zu bytes of data, %llu needed): download it again",
                p->tensor->name, room, (unsigned long long)p->offset + p->tensor->bytes);
        end = p->offset + p->tensor->bytes;
        if (p->tensor->bytes) p->tensor->data = r->data + begin + p->offset;
    }
    if (room - end >= r->alignment && room > end)
        return fail(r,
                    "%llu bytes follow the last tensor, its header does not describe them: download it again",
                    (unsigned long long)(room - end));
    return OQ_OK;
}

static oq_status place_tensors(reader *r)
{
    place *places = NULL;
    OQ_TRY(oq_new(r->env, r->n_tensors + 1, sizeof *places, "tensor list", &places));
    const oq_status st = check_places(r, places);
    oq_free(r->env, places);
    return st;
}

/* ---- the whole header ------------------------------------------------------------------------------------ */

static oq_status read_version(reader *r)
{
    uint64_t version = 0;
    r->at = 4;
    OQ_TRY(take_uint(r, 4, "its header", &version));
    if (version == 2 || version == 3) return OQ_OK;
    if ((version & 0xffff) == 0 && version != 0)
        return oq_fail(r->env, OQ_E_UNSUPPORTED,
                       "%s: is a big-endian GGUF file; only little-endian ones are read", r->path);
    return oq_fail(r->env, OQ_E_UNSUPPORTED, "%s: is a GGUF file of version %llu; versions 2 and 3 are read",
                   r->path, (unsigned long long)version);
}

static oq_status check_count(const reader *r, uint64_t n, size_t least, const char *what)
{
    if (n <= left(r) / least) return OQ_OK;
    return fail(r, "its header tells %llu %s, for which %zu bytes are left", (unsigned long long)n, what,
                left(r));
}

static oq_status read_header(reader *r)
{
    uint64_t n_tensors = 0, n_keys = 0;
    OQ_TRY(read_version(r));
    OQ_TRY(take_uint(r, 8, "its header", &n_tensors));
    OQ_TRY(take_uint(r, 8, "its header", &n_keys));
    OQ_TRY(check_count(r, n_tensors, LEAST_TENSOR, "tensors"));
    OQ_TRY(check_count(r, n_keys, LEAST_KEY, "keys"));
    if (!(r->metadata = oq_json_new_object())) return oq_fail(r->env, OQ_E_NOMEM, "%s: no memory", r->path);
    for (uint64_t i = 0; i < n_keys; i++) OQ_TRY(read_key(r));
    OQ_TRY(check_count(r, n_tensors, LEAST_TENSOR, "tensors"));
    OQ_TRY(oq_arena_new(r->arena, (size_t)n_tensors + 1, sizeof *r->tensors, "tensor list", &r->tensors));
    OQ_TRY(oq_new(r->env, (size_t)n_tensors + 1, sizeof *r->offsets, "tensor list", &r->offsets));
    for (uint64_t i = 0; i < n_tensors; i++) OQ_TRY(read_tensor(r));
    OQ_TRY(place_tensors(r));
    for (size_t i = 0; i < r->n_tensors; i++) OQ_TRY(restore_shape(r, &r->tensors[i]));
    return OQ_OK;
}

oq_status oq_gguf_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map,
                        oq_ckpt_part *out)
{
    reader r = {.env = env,
                .arena = arena,
                .path = path,
                .data = map->data,
                .size = map->bytes,
                .alignment = DEFAULT_ALIGNMENT};
    *out = (oq_ckpt_part){0};
    oq_status st = read_header(&r);
    oq_free(env, r.offsets);
    if (st == OQ_OK && !(out->header_hash = oq_header_hash(arena, map->data, r.at)))
        st = oq_fail(env, OQ_E_NOMEM, "%s: no memory for the hash of its header", path);
    if (st != OQ_OK) {
        oq_json_free(r.metadata);
        *out = (oq_ckpt_part){0};
        return st;
    }
    out->tensors = r.tensors;
    out->n_tensors = r.n_tensors;
    out->metadata = r.metadata;
    return OQ_OK;
}

/* ---- split files ------------------------------------------------------------------------------------------- */

oq_status oq_gguf_split(oq_env *env, const char *path, const oq_ckpt_part *part, oq_gguf_split_info *out)
{
    static const char suffix[] = ".gguf";
    const int64_t count = oq_json_int(oq_json_get(part->metadata, "split.count"), 1);
    const int64_t no = oq_json_int(oq_json_get(part->metadata, "split.no"), 0);
    char tail[64];
    *out = (oq_gguf_split_info){.count = 1, .no = 0, .n_tensors = -1};
    if (count <= 1) return OQ_OK;
    if (count > 99999 || no < 0 || no >= count)
        return oq_fail(env, OQ_E_FORMAT, "%s: says that it is part %lld of %lld", path, (long long)no,
                       (long long)count);
    snprintf(tail, sizeof tail, "-%05lld-of-%05lld%s", (long long)no + 1, (long long)count, suffix);
    const size_t n = strlen(path), m = strlen(tail);
    if (n < m || strcmp(path + n - m, tail) != 0)
        return oq_fail(env, OQ_E_FORMAT, "%s: is part %lld of %lld, so its name must end with '%s'", path,
                       (long long)no + 1, (long long)count, tail);
    *out = (oq_gguf_split_info){.count = (int)count,
                                .no = (int)no,
                                .stem = (int)(n - m),
                                .n_tensors =
                                    oq_json_int(oq_json_get(part->metadata, "split.tensors.count"), -1)};
    return OQ_OK;
}
