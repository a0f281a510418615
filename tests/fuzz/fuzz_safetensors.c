/* fuzz_safetensors.c -- a whole weight file. Property: what is accepted has every tensor inside the file,
 * covers the data exactly once, and each name is found again. */
#include "fuzz/fuzz.h"

#include "ckpt/reader.h"

static void check_part(const oq_ckpt_part *part, const oq_mapping *map)
{
    size_t covered = 0;
    unsigned sum = 0;
    for (size_t i = 0; i < part->n_tensors; i++) {
        const oq_ckpt_tensor *t = &part->tensors[i];
        int64_t elems = 1;
        for (int d = 0; d < t->n_dims; d++) elems *= t->dim[d];
        FUZZ_CHECK(elems == t->elems && t->type_name);
        FUZZ_CHECK(!t->dtype || t->bytes == (size_t)t->elems * t->dtype->bytes);
        FUZZ_CHECK((t->data != NULL) == (t->bytes > 0));
        if (!t->bytes) continue;
        FUZZ_CHECK(t->data > map->data && t->bytes <= (size_t)(map->data + map->bytes - t->data));
        for (size_t k = 0; k < t->bytes; k++) sum += t->data[k];
        covered += t->bytes;
    }
    FUZZ_CHECK(covered < map->bytes && sum <= covered * 255);
    FUZZ_CHECK(strlen(part->header_hash) == 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    const oq_mapping map = {.data = n ? data : NULL, .bytes = n};
    oq_container container;
    oq_arena arena;
    oq_ckpt_part part = {0};
    oq_arena_init(&arena, env);
    oq_status st = oq_container_detect(env, "input", &map, &container);
    if (st == OQ_OK && container == OQ_CONTAINER_SAFETENSORS)
        st = oq_safetensors_parse(env, &arena, "input", &map, &part);
    fuzz_check_status(env, st);
    if (st == OQ_OK && container == OQ_CONTAINER_SAFETENSORS) check_part(&part, &map);
    oq_json_free(part.metadata);
    oq_arena_deinit(&arena);
    return 0;
}
