/* mutant.c -- see mutant.h. */
#include "support/mutant.h"

#include "ckpt/ckpt.h"
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors --------------------------------------------------------------------------------------------- */

mutant_tensor *mutant_find(const mutant *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0) return &m->tensors[i];
    return NULL;
}

mutant_tensor *mutant_add(mutant *m, const char *name, const char *type, const int64_t *dim, int n_dims,
                          const void *data, size_t bytes)
{
    if (m->n_tensors == m->cap_tensors) {
        m->cap_tensors = m->cap_tensors ? 2 * m->cap_tensors : 512;
        m->tensors = realloc(m->tensors, m->cap_tensors * sizeof *m->tensors);
        assert_non_null(m->tensors);
    }
    mutant_tensor *t = &m->tensors[m->n_tensors++];
    *t = (mutant_tensor){.n_dims = n_dims, .bytes = bytes, .data = malloc(bytes + 1)};
    assert_non_null(t->data);
    if (bytes) memcpy(t->data, data, bytes);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->type, sizeof t->type, "%s", type);
    for (int i = 0; i < n_dims; i++) t->dim[i] = dim[i];
    return t;
}

void mutant_drop(mutant_tensor *t)
{
    t->name[0] = '\0';
}

/* ---- the whole ------------------------------------------------------------------------------------------- */

static void take_all(mutant *m, oq_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        mutant_add(m, t->name, t->type_name, t->dim, t->n_dims, t->data, t->bytes);
    }
    m->metadata = oq_json_copy(ckpt->files[0].metadata);
    oq_ckpt_close(ckpt);
}

void mutant_read_file(mutant *m, oq_env *env, const char *path)
{
    oq_ckpt *ckpt = NULL;
    *m = (mutant){.env = env};
    assert_int_equal(oq_ckpt_open(env, path, &ckpt), OQ_OK);
    take_all(m, ckpt);
}

void mutant_read(mutant *m, oq_env *env, const char *folder)
{
    oq_ckpt *ckpt = NULL;
    char path[1024];
    *m = (mutant){.env = env};
    assert_int_equal(oq_ckpt_open_folder(env, folder, NULL, &ckpt), OQ_OK);
    take_all(m, ckpt);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(oq_json_parse_file(env, path, 1 << 20, &m->config), OQ_OK);
}

void mutant_copy(mutant *m, const mutant *from)
{
    *m = (mutant){.env = from->env};
    m->config = from->config ? oq_json_copy(from->config) : NULL;
    m->metadata = from->metadata ? oq_json_copy(from->metadata) : NULL;
    for (size_t i = 0; i < from->n_tensors; i++) {
        const mutant_tensor *t = &from->tensors[i];
        mutant_add(m, t->name, t->type, t->dim, t->n_dims, t->data, t->bytes);
    }
}

void mutant_free(mutant *m)
{
    for (size_t i = 0; i < m->n_tensors; i++) free(m->tensors[i].data);
    free(m->tensors);
    oq_json_free(m->config);
    oq_json_free(m->metadata);
    *m = (mutant){0};
}

static oq_json *header_of(const mutant *m, size_t *bytes)
{
    oq_json *header = oq_json_new_object();
    size_t at = 0;
    if (m->metadata && oq_json_size(m->metadata))
        oq_json_set(header, "__metadata__", oq_json_copy(m->metadata));
    for (size_t i = 0; i < m->n_tensors; i++) {
        const mutant_tensor *t = &m->tensors[i];
        oq_json *row = oq_json_new_object(), *shape = oq_json_new_array(), *span = oq_json_new_array();
        if (t->name[0]) {
            for (int d = 0; d < t->n_dims; d++) oq_json_append(shape, oq_json_new_int(t->dim[d]));
            oq_json_append(span, oq_json_new_int((int64_t)at));
            oq_json_append(span, oq_json_new_int((int64_t)(at += t->bytes)));
            oq_json_set(row, "dtype", oq_json_new_string(t->type));
            oq_json_set(row, "shape", shape);
            oq_json_set(row, "data_offsets", span);
            oq_json_set(header, t->name, row);
        } else {
            oq_json_free(row), oq_json_free(shape), oq_json_free(span);
        }
    }
    *bytes = at;
    return header;
}

void mutant_write(const mutant *m, const char *folder)
{
    size_t bytes = 0, at = 0;
    char *text = NULL;
    oq_json *header = header_of(m, &bytes);
    uint8_t *data = malloc(bytes + 1);
    assert_non_null(data);
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (!m->tensors[i].name[0]) continue;
        memcpy(data + at, m->tensors[i].data, m->tensors[i].bytes);
        at += m->tensors[i].bytes;
    }
    assert_int_equal(oq_json_dump(m->env, header, OQ_JSON_COMPACT, &text), OQ_OK);
    scratch_safetensors(folder, "diffusion_pytorch_model.safetensors", text, data, bytes);
    oq_free(m->env, text);
    oq_json_free(header);
    free(data);
    if (!m->config) return;
    assert_int_equal(oq_json_dump(m->env, m->config, OQ_JSON_INDENT, &text), OQ_OK);
    scratch_text(folder, "config.json", text);
    oq_free(m->env, text);
}

/* ---- JSON ------------------------------------------------------------------------------------------------ */

static bool is_tree(const oq_json *json)
{
    return oq_json_type(json) == OQ_JSON_OBJECT || oq_json_type(json) == OQ_JSON_ARRAY;
}

static const oq_json *child(const oq_json *json, size_t i, const char **key)
{
    *key = NULL;
    return oq_json_type(json) == OQ_JSON_OBJECT ? oq_json_member(json, i, key) : oq_json_at(json, i);
}

size_t mutant_json_places(const oq_json *json)
{
    size_t n = 0;
    const char *key;
    for (size_t i = 0; is_tree(json) && i < oq_json_size(json); i++)
        n += 1 + mutant_json_places(child(json, i, &key));
    return n;
}

static oq_json *turned(const oq_json *leaf)
{
    switch (oq_json_type(leaf)) {
    case OQ_JSON_BOOL:
        return oq_json_new_bool(!oq_json_bool(leaf, false));
    case OQ_JSON_INT:
        return oq_json_new_int(oq_json_int(leaf, 0) ? 2 * oq_json_int(leaf, 0) : 1);
    case OQ_JSON_REAL:
        return oq_json_new_real(2 * oq_json_real(leaf, 0) + 1);
    case OQ_JSON_STRING:
        return oq_json_new_string("nonsense");
    default:
        return NULL;
    }
}

oq_json *mutant_json(const oq_json *json, size_t at, int left_out, char *what, size_t n)
{
    const bool object = oq_json_type(json) == OQ_JSON_OBJECT;
    oq_json *out = object ? oq_json_new_object() : oq_json_new_array();
    bool changed = false;
    for (size_t i = 0; i < oq_json_size(json); i++) {
        const char *key;
        const oq_json *old = child(json, i, &key);
        const size_t below = mutant_json_places(old);
        oq_json *now = NULL;
        char deeper[256] = "";
        if (!changed && at == 0) {
            changed = true;
            if (what) snprintf(what, n, "%s", key ? key : "[]");
            if (left_out) {
                at--;
                continue;
            }
            now = is_tree(old) ? NULL : turned(old);
            if (!now) {
                oq_json_free(out);
                return NULL;
            }
        } else if (!changed && at <= below) {
            changed = true;
            now = mutant_json(old, at - 1, left_out, deeper, sizeof deeper);
            if (!now) {
                oq_json_free(out);
                return NULL;
            }
            if (what) snprintf(what, n, "%.100s.%.100s", key ? key : "[]", deeper);
        } else {
            now = oq_json_copy(old);
        }
        at -= 1 + below;
        if (object)
            oq_json_set(out, key, now);
        else
            oq_json_append(out, now);
    }
    return out;
}

/* ---- ways to spoil a tensor ------------------------------------------------------------------------------ */

static bool removed(mutant_tensor *t)
{
    mutant_drop(t);
    return true;
}

static bool zeros(mutant_tensor *t)
{
    memset(t->data, 0, t->bytes);
    return t->bytes > 0;
}

static bool ones(mutant_tensor *t) /* NaN of every floating type, 255, -1 */
{
    memset(t->data, 0xff, t->bytes);
    return t->bytes > 0;
}

static bool infinite(mutant_tensor *t)
{
    static const struct {
        const char *type;
        size_t bytes;
        uint8_t value[4];
    } rows[] = {{"F32", 4, {0, 0, 0x80, 0x7f}}, {"F16", 2, {0, 0x7c}}, {"BF16", 2, {0x80, 0x7f}}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        if (strcmp(rows[i].type, t->type) != 0) continue;
        for (size_t at = 0; at < t->bytes; at++) t->data[at] = rows[i].value[at % rows[i].bytes];
        return t->bytes > 0;
    }
    return false;
}

static bool negative(mutant_tensor *t)
{
    const size_t step = strcmp(t->type, "F32") == 0                        ? 4
                        : t->type[0] == 'B' || strcmp(t->type, "F16") == 0 ? 2
                                                                           : 0;
    if (!step) return false;
    for (size_t at = step - 1; at < t->bytes; at += step) t->data[at] ^= 0x80;
    return t->bytes > 0;
}

static bool shorter(mutant_tensor *t)
{
    if (t->n_dims < 1 || t->dim[0] < 2) return false;
    t->bytes = t->bytes / (size_t)t->dim[0] * (size_t)(t->dim[0] - 1);
    t->dim[0]--;
    return true;
}

static bool longer(mutant_tensor *t)
{
    const size_t row = t->n_dims ? t->bytes / (size_t)t->dim[0] : t->bytes;
    if (!t->bytes) return false;
    t->data = realloc(t->data, t->bytes + row);
    assert_non_null(t->data);
    memcpy(t->data + t->bytes, t->data, row);
    t->bytes += row;
    if (t->n_dims)
        t->dim[0]++;
    else
        t->n_dims = 1, t->dim[0] = 2;
    return true;
}

static bool half_as_wide(mutant_tensor *t)
{
    if (t->n_dims < 2 || t->dim[t->n_dims - 1] % 2) return false;
    t->dim[t->n_dims - 1] /= 2;
    t->bytes /= 2;
    return true;
}

static bool transposed(mutant_tensor *t) /* the shape alone */
{
    if (t->n_dims != 2 || t->dim[0] == t->dim[1] || t->dim[0] == 1 || t->dim[1] == 1) return false;
    const int64_t rows = t->dim[0];
    t->dim[0] = t->dim[1];
    t->dim[1] = rows;
    return true;
}

/* The same bytes under a type of another kind. */
static bool of_another_type(mutant_tensor *t)
{
    static const char *const pairs[][2] = {
        {"F32", "I32"},    {"I32", "F32"},    {"BF16", "I16"},   {"F16", "I16"}, {"I8", "F8_E4M3"},
        {"U8", "F8_E4M3"}, {"F8_E4M3", "I8"}, {"F8_E5M2", "I8"}, {"I64", "F64"}, {"F8_E8M0", "I8"}};
    for (size_t i = 0; i < OQ_COUNT(pairs); i++) {
        if (strcmp(t->type, pairs[i][0]) != 0) continue;
        snprintf(t->type, sizeof t->type, "%s", pairs[i][1]);
        return true;
    }
    return false;
}

static bool of_the_other_sign(mutant_tensor *t)
{
    if (strcmp(t->type, "I8") != 0 && strcmp(t->type, "U8") != 0) return false;
    t->type[0] = t->type[0] == 'I' ? 'U' : 'I';
    return true;
}

static bool as_whole_numbers(mutant_tensor *t)
{
    if (strcmp(t->type, "BF16") != 0 && strcmp(t->type, "F32") != 0 && strcmp(t->type, "F16") != 0)
        return false;
    const size_t elems = t->bytes / (t->type[0] == 'F' && t->type[1] == '3' ? 4 : 2);
    t->data = realloc(t->data, elems * 8 + 1);
    assert_non_null(t->data);
    memset(t->data, 0, elems * 8);
    for (size_t i = 0; i < elems; i++) t->data[8 * i] = 1;
    t->bytes = elems * 8;
    snprintf(t->type, sizeof t->type, "I64");
    return true;
}

const mutant_spoil mutant_spoils[] = {
    {removed, "removed"},
    {zeros, "zeros"},
    {ones, "all bits set"},
    {infinite, "infinite"},
    {negative, "negative"},
    {shorter, "a row less"},
    {longer, "a row more"},
    {half_as_wide, "half as wide"},
    {transposed, "shape transposed"},
    {of_another_type, "same bytes, another type"},
    {of_the_other_sign, "signed for unsigned"},
    {as_whole_numbers, "I64"},
    {NULL, NULL},
};
