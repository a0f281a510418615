/* fuzz_gguf.c -- a whole GGUF file. Property: what is accepted has every tensor inside the file, at an aligned place of
 * its own, as large as its shape and type say, and what is read decodes without touching anything else. */
#include "fuzz/fuzz.h"

#include "ckpt/reader.h"
#include "format/gguf_type.h"

static void check_tensor(const oq_ckpt_tensor *t, const oq_mapping *map)
{
    const oq_gguf_type *type = oq_gguf_type_by_name(t->type_name);
    int64_t elems = 1;
    for (int d = 0; d < t->n_dims; d++) elems *= t->dim[d];
    FUZZ_CHECK(type && elems == t->elems && elems % type->elems == 0);
    FUZZ_CHECK(t->bytes == (size_t)(elems / type->elems) * (size_t)type->bytes);
    FUZZ_CHECK((t->data != NULL) == (t->bytes > 0));
    FUZZ_CHECK(t->dtype == type->dtype && t->format == type->format);
    if (!t->bytes) return;
    FUZZ_CHECK(t->data > map->data && t->bytes <= (size_t)(map->data + map->bytes - t->data));
    float block[OQ_BLOCK_ELEMS];
    const oq_planes planes = {{t->data}};
    for (int64_t at = 0; t->format && at < elems; at += type->elems)
        t->format->decode_span(t->format, block, &planes, 0, at, type->elems, 1, elems);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    const oq_mapping map = {.data = n ? data : NULL, .bytes = n};
    oq_container container;
    oq_arena arena;
    oq_ckpt_part part = {0};
    oq_gguf_split_info split;
    oq_arena_init(&arena, env);
    oq_status st = oq_container_detect(env, "input", &map, &container);
    const bool gguf = st == OQ_OK && container == OQ_CONTAINER_GGUF;
    if (gguf) st = oq_gguf_parse(env, &arena, "input", &map, &part);
    if (gguf && st == OQ_OK) {
        for (size_t i = 0; i < part.n_tensors; i++) check_tensor(&part.tensors[i], &map);
        FUZZ_CHECK(strlen(part.header_hash) == 16);
        st = oq_gguf_split(env, "input-00001-of-00002.gguf", &part, &split);
        FUZZ_CHECK(st != OQ_OK || (split.count >= 1 && split.no >= 0 && split.no < split.count));
    }
    fuzz_check_status(env, st);
    oq_json_free(part.metadata);
    oq_arena_deinit(&arena);
    return 0;
}
