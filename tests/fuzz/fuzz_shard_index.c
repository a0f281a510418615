/* fuzz_shard_index.c -- *.safetensors.index.json. Property: accepted file names stay inside the folder;
 * entries and shards are sorted and distinct, and each entry points at one of the shards. */
#include "fuzz/fuzz.h"

#include "ckpt/reader.h"

static void check_index(const oq_shard_index *index)
{
    FUZZ_CHECK(index->n_entries > 0 && index->n_shards > 0 && index->n_shards <= index->n_entries);
    for (size_t i = 0; i < index->n_shards; i++) {
        const char *name = index->shards[i];
        FUZZ_CHECK(*name && *name != '/' && strncmp(name, "../", 3) != 0 && strcmp(name, "..") != 0);
        FUZZ_CHECK(!strstr(name, "/../") && !strchr(name, '\\'));
        FUZZ_CHECK(i == 0 || strcmp(index->shards[i - 1], name) < 0);
    }
    for (size_t i = 0; i < index->n_entries; i++) {
        size_t k = 0;
        while (k < index->n_shards && index->shards[k] != index->entries[i].shard) k++;
        FUZZ_CHECK(k < index->n_shards);
        FUZZ_CHECK(i == 0 || strcmp(index->entries[i - 1].name, index->entries[i].name) < 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    oq_arena arena;
    oq_shard_index index;
    oq_arena_init(&arena, env);
    const oq_status st = oq_shard_index_parse(env, &arena, "input", (const char *)data, n, &index);
    fuzz_check_status(env, st);
    if (st == OQ_OK) check_index(&index);
    oq_shard_index_deinit(&index);
    oq_arena_deinit(&arena);
    return 0;
}
