/* torch_file.c -- weights as torch.save writes them (.bin, .pt): a zip archive with a pickle that describes a dict of
 * tensors, and their bytes beside it. The pickle is read as a description; nothing in it is run. Tensor subclasses
 * (TorchAO's) are taken apart as TorchAO's own safetensors writer does it: "a.weight" with the attribute qdata becomes
 * "a._weight_qdata", and a metadata entry "a.weight" tells its class and its other attributes as JSON. */
#include "ckpt/pickle.h"
#include "ckpt/reader.h"
#include "ckpt/torch_names.h"
#include "ckpt/zip.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 12,  /* of attributes inside attributes */
    WRAPPED_MAX = 4, /* tensor classes inside each other */
    VALUES_MIN =
        1
        << 20 /* of all attributes, beside one for each byte of the pickle: memos can repeat them without end */
};

typedef struct torch_file {
    oq_env *env;
    oq_arena *arena;
    const char *path;
    size_t bytes; /* of the whole file */
    oq_zip zip;
    const char *folder; /* of the entries, with its slash */
    oq_ckpt_tensor *tensors;
    size_t n, room;
    size_t copied; /* bytes of tensors that do not stand in the file as they are read */
    size_t left;   /* values, or eighths of texts, that attributes may still have */
    oq_json *metadata;
} torch_file;

static oq_status no_memory(const torch_file *f)
{
    return oq_fail(f->env, OQ_E_NOMEM, "%s: no memory for its tensors", f->path);
}

/* ---- values -------------------------------------------------------------------------------------------- */

static const char *name_of(const oq_pickle_value *v)
{
    return v && v->kind == OQ_PICKLE_NAME ? v->u.text : NULL;
}

static const char *text_of(const oq_pickle_value *v)
{
    return v && v->kind == OQ_PICKLE_TEXT ? v->u.text : NULL;
}

/* What an object would be made by; OQ_TORCH_NOTHING for other values. */
static oq_torch_call call_of(const oq_pickle_value *v)
{
    return v && v->kind == OQ_PICKLE_OBJECT ? oq_torch_call_of(v->u.item[0]->u.text) : OQ_TORCH_NOTHING;
}

static const oq_pickle_value *argument(const oq_pickle_value *object, size_t i)
{
    return oq_pickle_at(object->u.item[1], i);
}

/* A whole number that is no truth value, at least 0. */
static bool whole_of(const oq_pickle_value *v, int64_t *out)
{
    if (!v || v->kind != OQ_PICKLE_INT || v->u.whole < 0) return false;
    *out = v->u.whole;
    return true;
}

/* torch.Size of a tuple, or the tuple itself. */
static const oq_pickle_value *list_of(const oq_pickle_value *v)
{
    if (v && v->kind == OQ_PICKLE_OBJECT && strcmp(v->u.item[0]->u.text, "torch.Size") == 0)
        return argument(v, 0);
    return v;
}

static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* ---- one tensor of bytes --------------------------------------------------------------------------------- */

typedef struct view { /* a tensor's place in its storage, in elements */
    const oq_torch_type *type;
    const oq_zip_entry *storage;
    int64_t offset, elems, size[OQ_CKPT_MAX_DIMS], stride[OQ_CKPT_MAX_DIMS];
    int n_dims;
} view;

static oq_status fail_tensor(const torch_file *f, const char *name, const char *what)
{
    return oq_fail(f->env, OQ_E_FORMAT, "%s: tensor '%s' %s", f->path, name, what);
}

/* ("storage", class, key, device, elements) */
static oq_status read_storage(const torch_file *f, const char *name, const oq_pickle_value *v, view *out)
{
    const oq_pickle_value *pid = v && v->kind == OQ_PICKLE_OUTSIDE ? v->u.item[0] : NULL;
    const char *class_name = name_of(oq_pickle_at(pid, 1)), *key = text_of(oq_pickle_at(pid, 2));
    int64_t elems = 0;
    size_t bytes = 0;
    if (!class_name || !key || !whole_of(oq_pickle_at(pid, 4), &elems) || !text_of(oq_pickle_at(pid, 0)) ||
        strcmp(text_of(oq_pickle_at(pid, 0)), "storage") != 0)
        return fail_tensor(f, name, "has no storage in the form that torch.save writes");
    const oq_torch_type *of_class = oq_torch_type_find(class_name);
    if (!out->type) out->type = of_class;
    const char *entry = oq_arena_printf(f->arena, "%sdata/%s", f->folder, key);
    if (!entry) return no_memory(f);
    if (!out->type || !out->type->bytes)
        return fail_tensor(f, name, "has elements of a type that is not read");
    out->storage = oq_zip_find(&f->zip, entry);
    if (!out->storage)
        return oq_fail(f->env, OQ_E_FORMAT, "%s: tensor '%s' lies in entry '%s', which is missing", f->path,
                       name, entry);
    if (oq_size_mul((size_t)elems, of_class ? (size_t)of_class->bytes : 1, &bytes) &&
        bytes == out->storage->bytes)
        return OQ_OK;
    return oq_fail(f->env, OQ_E_FORMAT,
                   "%s: tensor '%s': its storage of %lld elements does not fit entry '%s' of %zu bytes",
                   f->path, name, (long long)elems, entry, out->storage->bytes);
}

static oq_status read_shape(const torch_file *f, const char *name, const oq_pickle_value *call, view *out)
{
    const oq_pickle_value *size = list_of(argument(call, 2)), *stride = list_of(argument(call, 3));
    if (!size || !stride || size->kind != OQ_PICKLE_TUPLE || stride->kind != OQ_PICKLE_TUPLE ||
        size->n != stride->n || !whole_of(argument(call, 1), &out->offset))
        return fail_tensor(f, name, "has no offset, shape and strides in the form that torch.save writes");
    if (size->n > OQ_CKPT_MAX_DIMS)
        return oq_fail(f->env, OQ_E_UNSUPPORTED, "%s: tensor '%s' has %u dimensions, at most %d are read",
                       f->path, name, size->n, OQ_CKPT_MAX_DIMS);
    out->n_dims = (int)size->n;
    out->elems = 1;
    int64_t countable = 1;
    for (int i = 0; i < out->n_dims; i++) {
        if (!whole_of(size->u.item[i], &out->size[i]) || !whole_of(stride->u.item[i], &out->stride[i]))
            return fail_tensor(f, name, "has a size or a stride that is no whole number from 0 on");
        if (!oq_i64_mul(countable, out->size[i] ? out->size[i] : 1, &countable) || countable > INT64_MAX / 16)
            return fail_tensor(f, name, "has more elements than can be counted");
        out->elems *= out->size[i];
    }
    return OQ_OK;
}

/* The last element that the strides reach must lie in the storage. */
static oq_status check_reach(const torch_file *f, const char *name, const view *v)
{
    const int64_t there = (int64_t)(v->storage->bytes / (size_t)v->type->bytes);
    int64_t reach = v->offset, step = 0;
    bool fits = true;
    for (int i = 0; i < v->n_dims && v->elems; i++)
        fits = fits && oq_i64_mul(v->size[i] - 1, v->stride[i], &step) &&
               !__builtin_add_overflow(reach, step, &reach);
    if (!v->elems || (fits && reach < there)) return OQ_OK;
    return oq_fail(f->env, OQ_E_FORMAT, "%s: tensor '%s' reaches beyond its storage of %lld elements",
                   f->path, name, (long long)there);
}

static bool is_contiguous(const view *v)
{
    int64_t expected = 1;
    for (int i = v->n_dims - 1; i >= 0; i--) {
        if (v->size[i] != 1 && v->stride[i] != expected) return false;
        expected *= v->size[i];
    }
    return true;
}

/* Do the strides visit some element twice? Dimensions in ascending order of stride must each step over all below. */
static bool repeats(const view *v)
{
    int order[OQ_CKPT_MAX_DIMS];
    int64_t extent = 0;
    for (int i = 0; i < v->n_dims; i++) {
        int at = i;
        for (; at > 0 && v->stride[order[at - 1]] > v->stride[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    for (int i = 0; i < v->n_dims; i++) {
        const int d = order[i];
        if (v->size[d] == 1) continue;
        if (v->stride[d] <= extent) return true;
        extent += (v->size[d] - 1) * v->stride[d];
    }
    return false;
}

/* Row by row in the order of the shape. */
static void copy_strided(uint8_t *dst, const view *v)
{
    const size_t size = (size_t)v->type->bytes;
    int64_t at[OQ_CKPT_MAX_DIMS] = {0};
    const int last = v->n_dims - 1;
    for (int64_t done = 0; done < v->elems; done += v->size[last]) {
        int64_t from = v->offset;
        for (int i = 0; i < last; i++) from += at[i] * v->stride[i];
        for (int64_t c = 0; c < v->size[last]; c++, dst += size)
            memcpy(dst, v->storage->data + (size_t)(from + c * v->stride[last]) * size, size);
        for (int i = last - 1; i >= 0 && ++at[i] == v->size[i]; i--) at[i] = 0;
    }
}

/* Transposed and sliced tensors are copied once; together they may not be larger than the file. */
static oq_status make_contiguous(torch_file *f, const char *name, const view *v, size_t bytes,
                                 const uint8_t **out)
{
    uint8_t *copy = NULL;
    if (repeats(v)) return fail_tensor(f, name, "has strides that use one stored element several times");
    if (bytes > f->bytes - f->copied)
        return fail_tensor(
            f, name, "and others that stand out of order would need more memory than the file has bytes");
    f->copied += bytes;
    OQ_TRY(oq_arena_new(f->arena, bytes, 1, name, &copy));
    copy_strided(copy, v);
    *out = copy;
    return OQ_OK;
}

static oq_status add_view(torch_file *f, const char *name, const char *origin, const view *v)
{
    const size_t bytes = (size_t)v->elems * (size_t)v->type->bytes;
    const uint8_t *data = bytes ? v->storage->data + (size_t)v->offset * (size_t)v->type->bytes : NULL;
    if (bytes && !is_contiguous(v)) OQ_TRY(make_contiguous(f, name, v, bytes, &data));
    if (f->n == f->room) {
        oq_ckpt_tensor *more = NULL;
        const size_t room = f->room ? 2 * f->room : 64;
        OQ_TRY(oq_arena_new(f->arena, room, sizeof *more, "tensor list", &more));
        if (f->n) memcpy(more, f->tensors, f->n * sizeof *more);
        f->tensors = more;
        f->room = room;
    }
    oq_ckpt_tensor *t = &f->tensors[f->n++];
    *t = (oq_ckpt_tensor){.name = name,
                          .origin = origin,
                          .dtype = v->type->dtype,
                          .type_name = v->type->dtype ? v->type->dtype->name : v->type->type_name,
                          .n_dims = v->n_dims,
                          .elems = v->elems,
                          .data = data,
                          .bytes = bytes};
    memcpy(t->dim, v->size, sizeof t->dim);
    return OQ_OK;
}

static oq_status add_tensor(torch_file *f, const char *name, const char *origin, const oq_pickle_value *call)
{
    view v = {0};
    if (call_of(call) == OQ_TORCH_TENSOR_TYPED) {
        const char *type = name_of(argument(call, 6));
        v.type = type ? oq_torch_type_find(type) : NULL;
        if (!v.type) return fail_tensor(f, name, "has no element type");
    }
    OQ_TRY(read_storage(f, name, argument(call, 0), &v));
    OQ_TRY(read_shape(f, name, call, &v));
    OQ_TRY(check_reach(f, name, &v));
    return add_view(f, name, origin, &v);
}

/* ---- attributes as JSON ---------------------------------------------------------------------------------- */

typedef struct attributes {
    torch_file *f;
    const char *name; /* of the tensor that has them */
} attributes;

/* For a value and the text that goes with it. */
static oq_status spend(const attributes *a, const char *text)
{
    const size_t cost = 1 + (text ? strlen(text) / 8 : 0);
    if (cost > a->f->left) return fail_tensor(a->f, a->name, "has attributes that repeat too often");
    a->f->left -= cost;
    return OQ_OK;
}

static oq_status to_json(attributes *a, const oq_pickle_value *v, int depth, oq_json **out);

static oq_status list_to_json(attributes *a, const oq_pickle_value *v, int depth, oq_json **out)
{
    *out = oq_json_new_array();
    for (uint32_t i = 0; i < v->n; i++) {
        oq_json *item = NULL;
        OQ_TRY(to_json(a, v->u.item[i], depth, &item));
        if (!oq_json_append(*out, item)) return no_memory(a->f);
    }
    return *out ? OQ_OK : no_memory(a->f);
}

static oq_status dict_to_json(attributes *a, const oq_pickle_value *v, int depth, oq_json **out)
{
    *out = oq_json_new_object();
    for (uint32_t i = 0; i + 1 < v->n; i += 2) {
        oq_json *item = NULL;
        const char *key = text_of(v->u.item[i]);
        if (!key) return fail_tensor(a->f, a->name, "has an attribute whose name is no text");
        OQ_TRY(spend(a, key));
        OQ_TRY(to_json(a, v->u.item[i + 1], depth, &item));
        if (!oq_json_set(*out, key, item)) return no_memory(a->f);
    }
    return *out ? OQ_OK : no_memory(a->f);
}

/* {"_type", "_data"}: the data are the state, the only argument, or all of them. */
static oq_status object_to_json(attributes *a, const oq_pickle_value *v, int depth, oq_json **out)
{
    const oq_pickle_value *args = v->u.item[1], *data = v->n > 2       ? v->u.item[2]
                                                        : args->n == 1 ? args->u.item[0]
                                                                       : args;
    const char *class_name = v->u.item[0]->u.text;
    oq_json *inner = NULL;
    if (call_of(v) == OQ_TORCH_TEXT || list_of(v) != v)
        return to_json(a, list_of(v) != v ? list_of(v) : data, depth, out);
    OQ_TRY(to_json(a, data, depth, &inner));
    *out = oq_json_new_object();
    const bool put = oq_json_set(*out, "_data", inner);
    return put && oq_json_set(*out, "_type", oq_json_new_string(last_word(class_name))) ? OQ_OK
                                                                                        : no_memory(a->f);
}

static oq_status name_to_json(attributes *a, const char *name, oq_json **out)
{
    const bool is_type = oq_torch_type_find(name) != NULL;
    *out = is_type ? oq_json_new_object() : oq_json_new_string(name);
    const bool ok = *out && (!is_type || (oq_json_set(*out, "_type", oq_json_new_string("torch.dtype")) &&
                                          oq_json_set(*out, "_data", oq_json_new_string(last_word(name)))));
    return ok ? OQ_OK : no_memory(a->f);
}

/* On failure *out may hold what was made so far; it is the caller's. */
static oq_status value_to_json(attributes *a, const oq_pickle_value *v, int depth, oq_json **out)
{
    switch (v->kind) {
    case OQ_PICKLE_NONE:
        *out = oq_json_new_null();
        break;
    case OQ_PICKLE_BOOL:
        *out = oq_json_new_bool(v->u.whole != 0);
        break;
    case OQ_PICKLE_INT:
        *out = oq_json_new_int(v->u.whole);
        break;
    case OQ_PICKLE_REAL:
        *out = oq_json_new_real(v->u.real);
        break;
    case OQ_PICKLE_TEXT:
        *out = oq_json_new_string(v->u.text);
        break;
    case OQ_PICKLE_TUPLE:
    case OQ_PICKLE_LIST:
        return list_to_json(a, v, depth + 1, out);
    case OQ_PICKLE_DICT:
        return dict_to_json(a, v, depth + 1, out);
    case OQ_PICKLE_NAME:
        return name_to_json(a, v->u.text, out);
    case OQ_PICKLE_OBJECT:
        return object_to_json(a, v, depth + 1, out);
    case OQ_PICKLE_OUTSIDE:
        return fail_tensor(a->f, a->name, "has a storage among its attributes");
    }
    return *out ? OQ_OK : no_memory(a->f);
}

static oq_status to_json(attributes *a, const oq_pickle_value *v, int depth, oq_json **out)
{
    *out = NULL;
    if (!v || depth > DEPTH_MAX)
        return fail_tensor(a->f, a->name, "has attributes inside each other too deep");
    OQ_TRY(spend(a, v->kind == OQ_PICKLE_TEXT ? v->u.text : NULL));
    const oq_status st = value_to_json(a, v, depth, out);
    if (st == OQ_OK) return OQ_OK;
    oq_json_free(*out);
    *out = NULL;
    return st;
}

/* ---- tensors of a class of their own --------------------------------------------------------------------- */

static bool is_tensor(const oq_pickle_value *v)
{
    const oq_torch_call call = call_of(v);
    return call == OQ_TORCH_TENSOR || call == OQ_TORCH_TENSOR_TYPED || call == OQ_TORCH_PARAMETER ||
           call == OQ_TORCH_FROM_TYPE;
}

/* Takes parameters and torch's own classes off: the call that makes the tensor inside. */
static const oq_pickle_value *unwrapped(const oq_pickle_value *v, oq_pickle_value *made)
{
    for (int i = 0; i < WRAPPED_MAX && is_tensor(v); i++) {
        if (call_of(v) == OQ_TORCH_PARAMETER) {
            v = argument(v, 0);
            continue;
        }
        const char *function = call_of(v) == OQ_TORCH_FROM_TYPE ? name_of(argument(v, 0)) : NULL;
        const oq_torch_call inner = function ? oq_torch_call_of(function) : OQ_TORCH_NOTHING;
        const oq_pickle_value *args = function ? argument(v, 2) : NULL;
        if (!args || args->kind != OQ_PICKLE_TUPLE ||
            (inner != OQ_TORCH_TENSOR && inner != OQ_TORCH_TENSOR_TYPED))
            break;
        oq_pickle_value **items = made->u.item; /* two places of the caller */
        items[0] = v->u.item[1]->u.item[0];
        items[1] = v->u.item[1]->u.item[2];
        return made;
    }
    return v;
}

/* The attributes of a tensor of class `*class_name`; NULL: it is none. */
static const oq_pickle_value *state_of(const oq_pickle_value *v, const char **class_name)
{
    if (call_of(v) != OQ_TORCH_FROM_TYPE) return NULL;
    const char *function = name_of(argument(v, 0));
    const oq_pickle_value *state = argument(v, 3);
    *class_name = name_of(argument(v, 1));
    if (!function || !*class_name || oq_torch_call_of(function) != OQ_TORCH_WRAPPER) return NULL;
    if (state && state->kind == OQ_PICKLE_TUPLE) state = oq_pickle_at(state, 0); /* with slots behind */
    return state && state->kind == OQ_PICKLE_DICT ? state : NULL;
}

typedef struct wrapped { /* "module" and "_weight_" of "module.weight" */
    attributes a;
    const char *prefix;
    oq_json *names; /* of attributes that are tensors */
} wrapped;

static oq_status add_member(wrapped *w, const char *name, const oq_pickle_value *v, int depth, oq_json *data);

/* {"_type", "_data", "_tensor_data_names"} of a tensor's class; tensors among the attributes become the file's. */
static oq_status add_class(wrapped *w, const oq_pickle_value *v, int depth, oq_json *out)
{
    const char *class_name = NULL;
    const oq_pickle_value *state = state_of(v, &class_name), *size = NULL, *args = argument(v, 2);
    oq_json *data = oq_json_new_object(), *shape = NULL;
    if (!oq_json_set(out, "_data", data)) return no_memory(w->a.f);
    if (depth > WRAPPED_MAX || !state ||
        !oq_json_set(out, "_type", oq_json_new_string(last_word(class_name))))
        return fail_tensor(w->a.f, w->a.name, "is of a class in a form that is not read");
    for (uint32_t i = 0; i + 1 < state->n; i += 2) {
        const char *name = text_of(state->u.item[i]);
        if (!name) return fail_tensor(w->a.f, w->a.name, "has an attribute whose name is no text");
        OQ_TRY(add_member(w, name, state->u.item[i + 1], depth, data));
    }
    size = list_of(oq_pickle_at(args, 2));
    if (!size || oq_json_type(oq_json_get(data, "shape")) != OQ_JSON_NULL) return OQ_OK;
    OQ_TRY(to_json(&w->a, size, 0, &shape));
    return oq_json_set(data, "shape", shape) ? OQ_OK : no_memory(w->a.f);
}

static oq_status add_member(wrapped *w, const char *name, const oq_pickle_value *v, int depth, oq_json *data)
{
    const char *class_name = NULL;
    oq_pickle_value *two[2], made = {.kind = OQ_PICKLE_OBJECT, .n = 2, .u.item = two};
    const oq_pickle_value *inner = unwrapped(v, &made);
    oq_json *json = NULL;
    OQ_TRY(spend(&w->a, w->prefix));
    OQ_TRY(spend(&w->a, name));
    if (state_of(inner, &class_name)) {
        json = oq_json_new_object();
        if (!oq_json_set(data, name, json)) return no_memory(w->a.f);
        return add_class(w, inner, depth + 1, json);
    }
    if (!is_tensor(inner)) {
        OQ_TRY(to_json(&w->a, v, 0, &json));
        return oq_json_set(data, name, json) ? OQ_OK : no_memory(w->a.f);
    }
    const char *full = oq_arena_printf(w->a.f->arena, "%s%s", w->prefix, name);
    if (!full || !oq_json_append(w->names, oq_json_new_string(name))) return no_memory(w->a.f);
    return add_tensor(w->a.f, full, w->a.name, inner);
}

static oq_status put_metadata(torch_file *f, const char *name, const oq_json *json)
{
    char *text = NULL;
    OQ_TRY(oq_json_dump(f->env, json, OQ_JSON_COMPACT, &text));
    const bool ok = oq_json_set(f->metadata, name, oq_json_new_string(text));
    oq_free(f->env, text);
    return ok ? OQ_OK : no_memory(f);
}

static oq_status add_wrapped(torch_file *f, const char *name, const oq_pickle_value *v)
{
    const char *dot = strrchr(name, '.');
    wrapped w = {.a = {.f = f, .name = name}};
    w.prefix = dot ? oq_arena_printf(f->arena, "%.*s._%s_", (int)(dot - name), name, dot + 1)
                   : oq_arena_printf(f->arena, "_%s_", name);
    if (!w.prefix) return no_memory(f);
    oq_json *json = oq_json_new_object();
    w.names = oq_json_new_array();
    oq_status st = oq_json_set(json, "_tensor_data_names", w.names) ? OQ_OK : no_memory(f);
    if (st == OQ_OK) st = add_class(&w, v, 0, json);
    if (st == OQ_OK) st = put_metadata(f, name, json);
    oq_json_free(json);
    return st;
}

/* ---- the dict of tensors --------------------------------------------------------------------------------- */

static oq_status add_entry(torch_file *f, const oq_pickle_value *key, const oq_pickle_value *v)
{
    char what[128];
    const char *name = text_of(key), *class_name = NULL;
    oq_pickle_value *two[2], made = {.kind = OQ_PICKLE_OBJECT, .n = 2, .u.item = two};
    if (!name || !*name) return oq_fail(f->env, OQ_E_FORMAT, "%s: a tensor's name is no text", f->path);
    const oq_pickle_value *inner = unwrapped(v, &made);
    if (state_of(inner, &class_name)) return add_wrapped(f, name, inner);
    const oq_torch_call call = call_of(inner);
    if (call == OQ_TORCH_TENSOR || call == OQ_TORCH_TENSOR_TYPED) return add_tensor(f, name, NULL, inner);
    return oq_fail(f->env, OQ_E_FORMAT, "%s: '%s' is %s, not a tensor", f->path, name,
                   oq_pickle_describe(inner ? inner : v, what, sizeof what));
}

static oq_status add_all(torch_file *f, const oq_pickle_value *root)
{
    char what[128];
    const oq_pickle_value *state = oq_pickle_get(root, "state_dict");
    const oq_pickle_value *dict = state && state->kind == OQ_PICKLE_DICT ? state : root;
    if (dict->kind != OQ_PICKLE_DICT)
        return oq_fail(f->env, OQ_E_FORMAT, "%s: holds %s, not a dict of tensors", f->path,
                       oq_pickle_describe(dict, what, sizeof what));
    if (dict != root)
        oq_log(f->env, OQ_LOG_DEBUG, "%s: the members beside its state_dict are not read", f->path);
    for (uint32_t i = 0; i + 1 < dict->n; i += 2) OQ_TRY(add_entry(f, dict->u.item[i], dict->u.item[i + 1]));
    return OQ_OK;
}

/* ---- the archive ----------------------------------------------------------------------------------------- */

/* "folder/data.pkl": the one pickle, and the folder of all other entries. */
static oq_status find_pickle(torch_file *f, const oq_zip_entry **out)
{
    static const char leaf[] = "data.pkl";
    *out = NULL;
    for (size_t i = 0; i < f->zip.n; i++) {
        const oq_zip_entry *e = &f->zip.entries[i];
        const char *slash = strchr(e->name, '/');
        if (!slash || strcmp(slash + 1, leaf) != 0) continue;
        if (*out)
            return oq_fail(f->env, OQ_E_FORMAT, "%s: holds two pickles, '%s' and '%s'", f->path, (*out)->name,
                           e->name);
        *out = e;
        f->folder = oq_arena_strndup(f->arena, e->name, (size_t)(slash - e->name) + 1);
        if (!f->folder) return no_memory(f);
    }
    if (*out) return OQ_OK;
    return oq_fail(f->env, OQ_E_FORMAT,
                   "%s: is a zip archive without a data.pkl: torch.save did not write it", f->path);
}

static oq_status check_byte_order(const torch_file *f)
{
    const char *name = oq_arena_printf(f->arena, "%sbyteorder", f->folder);
    if (!name) return no_memory(f);
    const oq_zip_entry *e = oq_zip_find(&f->zip, name);
    if (!e || (e->bytes == 6 && memcmp(e->data, "little", 6) == 0)) return OQ_OK;
    return oq_fail(f->env, OQ_E_UNSUPPORTED, "%s: its numbers are in another byte order than little-endian",
                   f->path);
}

static oq_status read_archive(torch_file *f, const oq_mapping *map, oq_ckpt_part *out)
{
    const oq_zip_entry *pickle = NULL;
    const oq_pickle_value *root = NULL;
    OQ_TRY(oq_zip_parse(f->env, f->arena, f->path, map, &f->zip));
    OQ_TRY(find_pickle(f, &pickle));
    OQ_TRY(check_byte_order(f));
    f->left = VALUES_MIN + pickle->bytes;
    OQ_TRY(oq_pickle_parse(f->env, f->arena, f->path, pickle->data, pickle->bytes, oq_torch_known, &root));
    OQ_TRY(add_all(f, root));
    out->header_hash = oq_header_hash(f->arena, pickle->data, pickle->bytes);
    return out->header_hash ? OQ_OK : no_memory(f);
}

oq_status oq_torch_file_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map,
                              oq_ckpt_part *out)
{
    torch_file f = {
        .env = env, .arena = arena, .path = path, .bytes = map->bytes, .metadata = oq_json_new_object()};
    *out = (oq_ckpt_part){0};
    oq_status st = f.metadata ? read_archive(&f, map, out) : no_memory(&f);
    if (st == OQ_OK) {
        out->tensors = f.tensors;
        out->n_tensors = f.n;
        out->metadata = f.metadata;
        return OQ_OK;
    }
    oq_json_free(f.metadata);
    *out = (oq_ckpt_part){0};
    return st;
}
