/* shard_index.c -- *.safetensors.index.json, *.bin.index.json: which file holds which tensor. The index decides; what it says
 * and what the files hold must be the same. */
#include "ckpt/reader.h"

#include "base/strbuf.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES_SHOWN = 5 };

/* A relative path of plain names: it cannot leave the folder it starts in. */
static bool stays_inside(const char *path)
{
    for (const char *at = path;; at++) {
        const size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.')) return false;
        if (memchr(at, '\\', n)) return false;
        at += n;
        if (*at == '\0') return true;
    }
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const oq_shard_entry *)a)->name, ((const oq_shard_entry *)b)->name);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static oq_status read_entries(oq_env *env, oq_arena *arena, const oq_json *map, oq_shard_index *out)
{
    void *at = NULL;
    const char *key;
    const oq_json *value;
    const size_t n = oq_json_size(map);
    if (oq_json_type(map) != OQ_JSON_OBJECT || n == 0)
        return oq_fail(
            env, OQ_E_FORMAT,
            "%s: is JSON text, but no index of weight files: it has no weight_map (an object from tensor "
            "names to file names)",
            out->path);
    OQ_TRY(oq_arena_new(arena, n, sizeof *out->entries, "shard index", &out->entries));
    OQ_TRY(oq_arena_new(arena, n, sizeof *out->shards, "shard index", &out->shards));
    while (oq_json_next(map, &at, &key, &value)) {
        const char *shard = oq_json_string(value);
        if (!shard)
            return oq_fail(env, OQ_E_FORMAT, "%s: the file of tensor '%s' is %s, not a string", out->path,
                           key, oq_json_type_name(value));
        if (!stays_inside(shard))
            return oq_fail(env, OQ_E_FORMAT,
                           "%s: the file of tensor '%s' is '%s', which is not a name inside its folder",
                           out->path, key, shard);
        out->entries[out->n_entries] = (oq_shard_entry){.name = key, .shard = shard};
        out->shards[out->n_entries++] = shard;
    }
    return OQ_OK;
}

/* Distinct shards in order; each entry then points at the one text of its shard. */
static void sort_entries(oq_shard_index *index)
{
    const size_t n = index->n_entries;
    qsort(index->entries, n, sizeof *index->entries, compare_entries);
    qsort(index->shards, n, sizeof *index->shards, compare_texts);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(index->shards[i], index->shards[index->n_shards - 1]) != 0)
            index->shards[index->n_shards++] = index->shards[i];
    for (size_t i = 0; i < n; i++) {
        const char *const *found = bsearch(&index->entries[i].shard, index->shards, index->n_shards,
                                           sizeof *index->shards, compare_texts);
        index->entries[i].shard = *found;
    }
}

oq_status oq_shard_index_parse(oq_env *env, oq_arena *arena, const char *path, const char *text, size_t n,
                               oq_shard_index *out)
{
    *out = (oq_shard_index){.path = path, .total_size = -1};
    if (n > OQ_SAFETENSORS_HEADER_MAX)
        return oq_fail(env, OQ_E_FORMAT, "%s: an index of %zu bytes, at most %u are read", path, n,
                       OQ_SAFETENSORS_HEADER_MAX);
    oq_status st = oq_json_parse(env, text, n, path, &out->json);
    if (st == OQ_OK) st = read_entries(env, arena, oq_json_get(out->json, "weight_map"), out);
    if (st == OQ_OK) {
        out->total_size = oq_json_int(oq_json_get(oq_json_get(out->json, "metadata"), "total_size"), -1);
        sort_entries(out);
    } else {
        oq_shard_index_deinit(out);
    }
    return st;
}

void oq_shard_index_deinit(oq_shard_index *index)
{
    oq_json_free(index->json);
    *index = (oq_shard_index){0};
}

oq_status oq_shard_index_check_files(oq_env *env, const oq_shard_index *index, const char *folder)
{
    size_t missing = 0;
    oq_strbuf names;
    oq_strbuf_init(&names, env);
    for (size_t i = 0; i < index->n_shards; i++) {
        char *path = oq_path_join(env, folder, index->shards[i]);
        if (!path)
            names.failed = true;
        else if (!oq_file_exists(path) && missing++ < NAMES_SHOWN)
            oq_strbuf_printf(&names, "%s%s", missing > 1 ? ", " : "", index->shards[i]);
        oq_free(env, path);
    }
    oq_status st = oq_strbuf_check(&names, "shard index");
    if (st == OQ_OK && missing)
        st = oq_fail(env, OQ_E_NOTFOUND, "%s: %zu of %zu files are missing: %s%s", index->path, missing,
                     index->n_shards, oq_strbuf_text(&names), missing > NAMES_SHOWN ? ", …" : "");
    oq_strbuf_deinit(&names);
    return st;
}

static oq_status check_place(oq_env *env, const oq_shard_index *index, const oq_shard_entry *entry,
                             const oq_ckpt_tensor *tensor)
{
    const char *shard = index->shards[tensor->file];
    if (entry->shard == shard) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "%s: tensor '%s' should be in %s, but is in %s: the index does not belong to these files",
                   index->path, tensor->name, entry->shard, shard);
}

/* Two sorted lists walked side by side: O(n). */
static oq_status check_names(oq_env *env, const oq_shard_index *index, const oq_ckpt *ckpt)
{
    size_t i = 0, j = 0;
    while (i < index->n_entries || j < ckpt->n_tensors) {
        const oq_shard_entry *entry = i < index->n_entries ? &index->entries[i] : NULL;
        const oq_ckpt_tensor *tensor = j < ckpt->n_tensors ? &ckpt->tensors[j] : NULL;
        const int order = !entry ? 1 : !tensor ? -1 : strcmp(entry->name, tensor->name);
        if (order < 0)
            return oq_fail(env, OQ_E_FORMAT,
                           "%s: tensor '%s' is missing in %s: the index does not belong to these files",
                           index->path, entry->name, entry->shard);
        if (order > 0)
            return oq_fail(env, OQ_E_FORMAT,
                           "%s: does not name tensor '%s' of %s: the index does not belong to these files",
                           index->path, tensor->name, index->shards[tensor->file]);
        OQ_TRY(check_place(env, index, entry, tensor));
        i++, j++;
    }
    return OQ_OK;
}

/* Tensors that were taken apart stand in the index under the name of the whole. */
static oq_status check_origins(oq_env *env, const oq_shard_index *index, const oq_ckpt *ckpt)
{
    bool *seen = NULL;
    oq_status st = oq_new(env, index->n_entries + 1, sizeof *seen, "shard index", &seen);
    for (size_t i = 0; st == OQ_OK && i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        const oq_shard_entry key = {.name = t->origin ? t->origin : t->name};
        const oq_shard_entry *entry =
            bsearch(&key, index->entries, index->n_entries, sizeof key, compare_entries);
        st = entry ? check_place(env, index, entry, t)
                   : oq_fail(env, OQ_E_FORMAT,
                             "%s: does not name tensor '%s' of %s: the index does not belong to these files",
                             index->path, key.name, index->shards[t->file]);
        if (st == OQ_OK) seen[entry - index->entries] = true;
    }
    for (size_t i = 0; st == OQ_OK && i < index->n_entries; i++)
        if (!seen[i])
            st = oq_fail(env, OQ_E_FORMAT,
                         "%s: tensor '%s' is missing in %s: the index does not belong to these files",
                         index->path, index->entries[i].name, index->entries[i].shard);
    oq_free(env, seen);
    return st;
}

oq_status oq_shard_index_check(oq_env *env, const oq_shard_index *index, const oq_ckpt *ckpt)
{
    /* torch's index tells the bytes of the tensors before they were quantized, and shared ones once. */
    if (strcmp(ckpt->container, "torch") == 0) return check_origins(env, index, ckpt);
    OQ_TRY(check_names(env, index, ckpt));
    int64_t bytes = 0;
    for (size_t i = 0; i < ckpt->n_tensors; i++) bytes += (int64_t)ckpt->tensors[i].bytes;
    if (index->total_size >= 0 && index->total_size != bytes)
        return oq_fail(
            env, OQ_E_FORMAT,
            "%s: says %lld bytes of tensors, its files hold %lld: the index does not belong to these files",
            index->path, (long long)index->total_size, (long long)bytes);
    return OQ_OK;
}
