/* fuzz_pickle.c -- a file of torch.save, or its pickle alone. Properties: what is accepted lies inside the file or was
 * copied once, as large as its shape and type say, and its metadata are JSON; a pickle alone ends in a value or in one
 * sentence. */
#include "fuzz/fuzz.h"

#include "ckpt/pickle.h"
#include "ckpt/reader.h"
#include "ckpt/torch_names.h"

static size_t outside; /* bytes of tensors that are not in the file */

static void check_tensor(const oq_ckpt_tensor *t, const oq_mapping *map)
{
    int64_t elems = 1;
    for (int d = 0; d < t->n_dims; d++) elems *= t->dim[d];
    FUZZ_CHECK(t->name && elems == t->elems && (t->data != NULL) == (t->bytes > 0));
    FUZZ_CHECK(!t->dtype || t->bytes == (size_t)elems * t->dtype->bytes);
    if (!t->bytes) return;
    const bool inside = t->data >= map->data && t->data < map->data + map->bytes;
    if (inside)
        FUZZ_CHECK(t->bytes <= (size_t)(map->data + map->bytes - t->data));
    else
        outside += t->bytes;
    volatile uint8_t touched = (uint8_t)(t->data[0] ^ t->data[t->bytes - 1]);
    (void)touched;
}

static void check_metadata(oq_env *env, const oq_json *metadata)
{
    const char *key;
    const oq_json *value;
    for (void *at = NULL; oq_json_next(metadata, &at, &key, &value);) {
        oq_json *json = NULL;
        const char *text = oq_json_string(value);
        FUZZ_CHECK(text && oq_json_parse(env, text, strlen(text), key, &json) == OQ_OK);
        oq_json_free(json);
    }
}

static void whole_file(oq_env *env, const oq_mapping *map)
{
    oq_arena arena;
    oq_ckpt_part part = {0};
    oq_arena_init(&arena, env);
    outside = 0;
    const oq_status st = oq_torch_file_parse(env, &arena, "input", map, &part);
    fuzz_check_status(env, st);
    for (size_t i = 0; i < part.n_tensors; i++) check_tensor(&part.tensors[i], map);
    FUZZ_CHECK(outside <= map->bytes && (st == OQ_OK) == (part.metadata != NULL));
    if (st == OQ_OK) check_metadata(env, part.metadata);
    oq_json_free(part.metadata);
    oq_arena_deinit(&arena);
}

static void pickle_alone(oq_env *env, const uint8_t *data, size_t n)
{
    char what[64];
    oq_arena arena;
    const oq_pickle_value *root = NULL;
    oq_arena_init(&arena, env);
    const oq_status st = oq_pickle_parse(env, &arena, "input", data, n, oq_torch_known, &root);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (root != NULL));
    if (root) FUZZ_CHECK(*oq_pickle_describe(root, what, sizeof what) && !oq_pickle_at(root, SIZE_MAX));
    oq_arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    const oq_mapping map = {.data = n ? data : NULL, .bytes = n};
    if (n && data[0] == 0x80)
        pickle_alone(env, data, n);
    else
        whole_file(env, &map);
    return 0;
}
