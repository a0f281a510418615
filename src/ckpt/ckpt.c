/* ckpt.c -- opens weight files, brings their tensors into one sorted list, finds them by name. */
#include "ckpt/reader.h"

#include "base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const oq_ckpt_tensor *)a)->name, ((const oq_ckpt_tensor *)b)->name);
}

static oq_status new_ckpt(oq_env *env, const char *path, size_t n_files, oq_ckpt **out)
{
    oq_ckpt *ckpt = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *ckpt, "checkpoint", &ckpt));
    oq_arena_init(&ckpt->arena, env);
    ckpt->container = "safetensors";
    ckpt->path = oq_arena_strdup(&ckpt->arena, path);
    oq_status st = ckpt->path ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    if (st == OQ_OK)
        st = oq_arena_new(&ckpt->arena, n_files, sizeof *ckpt->files, "checkpoint files", &ckpt->files);
    if (st == OQ_OK)
        *out = ckpt;
    else
        oq_ckpt_close(ckpt);
    return st;
}

void oq_ckpt_close(oq_ckpt *ckpt)
{
    if (!ckpt) return;
    oq_env *env = ckpt->arena.env;
    for (int i = ckpt->n_files - 1; i >= 0; i--) {
        oq_json_free(ckpt->files[i].metadata);
        oq_file_unmap(&ckpt->files[i].map);
    }
    oq_arena_deinit(&ckpt->arena);
    oq_free(env, ckpt);
}

typedef oq_status (*parser)(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map,
                            oq_ckpt_part *out);

static parser parser_of(oq_container container)
{
    if (container == OQ_CONTAINER_GGUF) return oq_gguf_parse;
    return container == OQ_CONTAINER_TORCH ? oq_torch_file_parse : oq_safetensors_parse;
}

/* Takes over the mapping, also on failure: it becomes the checkpoint's next file. */
static oq_status add_file(oq_env *env, oq_ckpt *ckpt, const char *path, oq_container container,
                          oq_mapping map, oq_ckpt_part *part)
{
    const int index = ckpt->n_files++;
    oq_ckpt_file *file = &ckpt->files[index];
    file->map = map;
    file->path = oq_arena_strdup(&ckpt->arena, path);
    if (!file->path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    OQ_TRY(parser_of(container)(env, &ckpt->arena, file->path, &file->map, part));
    file->metadata = part->metadata;
    file->header_hash = part->header_hash;
    ckpt->bytes += map.bytes;
    for (size_t i = 0; i < part->n_tensors; i++) part->tensors[i].file = index;
    return OQ_OK;
}

/* Sorts by name; one name twice is an error that says where. */
static oq_status sort_tensors(oq_env *env, oq_ckpt *ckpt)
{
    if (ckpt->n_tensors) qsort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, compare_tensors);
    for (size_t i = 1; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *a = &ckpt->tensors[i - 1], *b = &ckpt->tensors[i];
        if (strcmp(a->name, b->name) != 0) continue;
        if (a->file == b->file)
            return oq_fail(env, OQ_E_FORMAT, "%s: tensor '%s' stands twice in its header",
                           ckpt->files[a->file].path, a->name);
        const int first = a->file < b->file ? a->file : b->file, second = a->file + b->file - first;
        return oq_fail(env, OQ_E_FORMAT, "%s: tensor '%s' is in two files, %s and %s", ckpt->path, a->name,
                       oq_path_leaf(ckpt->files[first].path), oq_path_leaf(ckpt->files[second].path));
    }
    return OQ_OK;
}

/* The parts' tensors as one list. */
static oq_status merge_parts(oq_env *env, oq_ckpt *ckpt, const oq_ckpt_part *parts)
{
    size_t n = 0;
    for (int i = 0; i < ckpt->n_files; i++) n += parts[i].n_tensors;
    OQ_TRY(oq_arena_new(&ckpt->arena, n + 1, sizeof *ckpt->tensors, "tensor list", &ckpt->tensors));
    for (int i = 0; i < ckpt->n_files; i++) {
        if (parts[i].n_tensors)
            memcpy(ckpt->tensors + ckpt->n_tensors, parts[i].tensors,
                   parts[i].n_tensors * sizeof *ckpt->tensors);
        ckpt->n_tensors += parts[i].n_tensors;
    }
    return sort_tensors(env, ckpt);
}

/* Part `no` of a split file, checked against what the first says. */
static oq_status open_part(oq_env *env, oq_ckpt *ckpt, const oq_gguf_split_info *first, int no,
                           oq_ckpt_part *out)
{
    oq_mapping map = {0};
    oq_container container;
    oq_gguf_split_info split;
    const char *path = oq_arena_printf(&ckpt->arena, "%.*s-%05d-of-%05d.gguf", first->stem,
                                       ckpt->files[0].path, no + 1, first->count);
    if (!path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", ckpt->path);
    if (!oq_file_exists(path))
        return oq_fail(env, OQ_E_NOTFOUND, "%s: part %d of %d, '%s', is missing", ckpt->path, no + 1,
                       first->count, oq_path_leaf(path));
    OQ_TRY(oq_file_map(env, path, &map));
    oq_status st = oq_container_detect(env, path, &map, &container);
    if (st == OQ_OK && container != OQ_CONTAINER_GGUF)
        st = oq_fail(env, OQ_E_FORMAT, "%s: is part %d of a GGUF file by its name, but no GGUF file", path,
                     no + 1);
    if (st != OQ_OK) {
        oq_file_unmap(&map);
        return st;
    }
    OQ_TRY(add_file(env, ckpt, path, container, map, out));
    OQ_TRY(oq_gguf_split(env, path, out, &split));
    if (split.no == no && split.count == first->count) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "%s: says that it is part %d of %d, its name says %d of %d", path,
                   split.no + 1, split.count, no + 1, first->count);
}

/* `first` is open; the other parts lie beside it. */
static oq_status open_parts(oq_env *env, oq_ckpt *ckpt, const oq_ckpt_part *first,
                            const oq_gguf_split_info *split)
{
    oq_ckpt_file *files = NULL;
    oq_ckpt_part *parts = NULL;
    if (split->no != 0)
        return oq_fail(env, OQ_E_ARG, "%s: is part %d of %d; name the first one, '...-00001-of-%05d.gguf'",
                       ckpt->path, split->no + 1, split->count, split->count);
    OQ_TRY(oq_arena_new(&ckpt->arena, (size_t)split->count, sizeof *files, "checkpoint files", &files));
    files[0] = ckpt->files[0];
    ckpt->files = files;
    OQ_TRY(oq_new(env, (size_t)split->count, sizeof *parts, "checkpoint files", &parts));
    parts[0] = *first;
    oq_status st = OQ_OK;
    for (int i = 1; st == OQ_OK && i < split->count; i++) st = open_part(env, ckpt, split, i, &parts[i]);
    if (st == OQ_OK) st = merge_parts(env, ckpt, parts);
    oq_free(env, parts);
    if (st == OQ_OK && split->n_tensors >= 0 && (size_t)split->n_tensors != ckpt->n_tensors)
        st = oq_fail(env, OQ_E_FORMAT, "%s: tells %lld tensors in all parts, they hold %zu", ckpt->path,
                     (long long)split->n_tensors, ckpt->n_tensors);
    return st;
}

static oq_status take_file(oq_env *env, oq_ckpt *ckpt, const char *path, oq_container container,
                           oq_mapping map)
{
    oq_ckpt_part part;
    oq_gguf_split_info split = {.count = 1};
    OQ_TRY(add_file(env, ckpt, path, container, map, &part));
    if (container == OQ_CONTAINER_TORCH) ckpt->container = "torch";
    if (container == OQ_CONTAINER_GGUF) {
        ckpt->container = "gguf";
        OQ_TRY(oq_gguf_split(env, path, &part, &split));
    }
    if (split.count > 1) return open_parts(env, ckpt, &part, &split);
    ckpt->tensors = part.tensors;
    ckpt->n_tensors = part.n_tensors;
    return sort_tensors(env, ckpt);
}

static oq_status open_single(oq_env *env, const char *path, oq_container container, oq_mapping map,
                             oq_ckpt **out)
{
    oq_ckpt *ckpt = NULL;
    oq_status st = new_ckpt(env, path, 1, &ckpt);
    if (st != OQ_OK) {
        oq_file_unmap(&map);
        return st;
    }
    st = take_file(env, ckpt, path, container, map);
    if (st == OQ_OK)
        *out = ckpt;
    else
        oq_ckpt_close(ckpt);
    return st;
}

static oq_status open_shard(oq_env *env, oq_ckpt *ckpt, const char *name, oq_ckpt_part *part)
{
    oq_mapping map = {0};
    oq_container container;
    char *path = oq_path_join(env, ckpt->path, name);
    if (!path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", name);
    oq_status st = oq_file_map(env, path, &map);
    if (st == OQ_OK) st = oq_container_detect(env, path, &map, &container);
    if (st == OQ_OK && container != OQ_CONTAINER_SAFETENSORS && container != OQ_CONTAINER_TORCH)
        st = oq_fail(env, OQ_E_FORMAT, "%s: is %s, not a safetensors file", path,
                     container == OQ_CONTAINER_GGUF ? "a GGUF file" : "JSON text");
    if (st == OQ_OK && container == OQ_CONTAINER_TORCH) ckpt->container = "torch";
    if (st == OQ_OK)
        st = add_file(env, ckpt, path, container, map, part);
    else
        oq_file_unmap(&map);
    oq_free(env, path);
    return st;
}

static oq_status open_shards(oq_env *env, oq_ckpt *ckpt, const oq_shard_index *index)
{
    oq_ckpt_part *parts = NULL;
    OQ_TRY(oq_shard_index_check_files(env, index, ckpt->path));
    OQ_TRY(oq_new(env, index->n_shards, sizeof *parts, "checkpoint files", &parts));
    oq_status st = OQ_OK;
    for (size_t i = 0; i < index->n_shards && st == OQ_OK; i++)
        st = open_shard(env, ckpt, index->shards[i], &parts[i]);
    if (st == OQ_OK) st = merge_parts(env, ckpt, parts);
    if (st == OQ_OK) st = oq_shard_index_check(env, index, ckpt);
    oq_free(env, parts);
    return st;
}

static oq_status open_sharded(oq_env *env, const char *path, const oq_mapping *map, oq_ckpt **out)
{
    oq_arena arena;
    oq_shard_index index;
    oq_ckpt *ckpt = NULL;
    char *folder = oq_path_folder(env, path);
    if (!folder) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    oq_arena_init(&arena, env);
    oq_status st = oq_shard_index_parse(env, &arena, path, (const char *)map->data, map->bytes, &index);
    if (st == OQ_OK) st = new_ckpt(env, folder, index.n_shards, &ckpt);
    if (st == OQ_OK) st = open_shards(env, ckpt, &index);
    oq_shard_index_deinit(&index);
    oq_arena_deinit(&arena);
    oq_free(env, folder);
    if (st == OQ_OK)
        *out = ckpt;
    else
        oq_ckpt_close(ckpt);
    return st;
}

static oq_status open_any(oq_env *env, const char *path, oq_ckpt **out)
{
    oq_mapping map;
    oq_container container = OQ_CONTAINER_SAFETENSORS;
    OQ_TRY(oq_file_map(env, path, &map));
    oq_status st = oq_container_detect(env, path, &map, &container);
    if (st == OQ_OK && container != OQ_CONTAINER_SHARD_INDEX)
        return open_single(env, path, container, map, out);
    if (st == OQ_OK) st = open_sharded(env, path, &map, out);
    oq_file_unmap(&map);
    return st;
}

void oq_ckpt_forget(const oq_ckpt *ckpt, const oq_ckpt_tensor *t)
{
    const oq_mapping *map = &ckpt->files[t->file].map;
    if (!t->data || t->data < map->data || t->data >= map->data + map->bytes) return;
    oq_file_forget(map, (size_t)(t->data - map->data), t->bytes);
}

oq_status oq_ckpt_open(oq_env *env, const char *path, oq_ckpt **out)
{
    *out = NULL;
    OQ_TRY(open_any(env, path, out));
    oq_status st = oq_ckpt_unwrap(env, *out);
    if (st == OQ_OK) st = oq_files_check(env); /* what was read of it so far */
    if (st == OQ_OK) return OQ_OK;
    oq_ckpt_close(*out);
    *out = NULL;
    return st;
}

void oq_ckpt_put_shape(const oq_ckpt_tensor *t, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < t->n_dims && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    if (at < size) snprintf(out + at, size - at, "]");
}

const oq_ckpt_tensor *oq_ckpt_find(const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor key = {.name = name};
    if (!ckpt->n_tensors) return NULL;
    return bsearch(&key, ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, compare_tensors);
}

const oq_json *oq_ckpt_metadata(const oq_ckpt *ckpt, const char *key)
{
    for (int i = 0; i < ckpt->n_files; i++) {
        const oq_json *value = oq_json_get(ckpt->files[i].metadata, key);
        if (value) return value;
    }
    return NULL;
}
