/* fuzz_dialect.c -- a checkpoint's metadata, a NUL, and a safetensors file. Properties: every layer that the dialect tells
 * of ends in a decision or one sentence; what it calls found has all planes of its format, and they can be read into
 * exactly their bytes. */
#include "fuzz/fuzz.h"

#include "ckpt/reader.h"
#include "quant/resolve.h"

enum { MOST = 1 << 20 }; /* bytes of a plane that are worth reading here */

static int compare(const void *a, const void *b)
{
    return strcmp(((const oq_ckpt_tensor *)a)->name, ((const oq_ckpt_tensor *)b)->name);
}

static bool has_twins(const oq_ckpt *ckpt)
{
    for (size_t i = 1; i < ckpt->n_tensors; i++)
        if (strcmp(ckpt->tensors[i - 1].name, ckpt->tensors[i].name) == 0) return true;
    return false;
}

static void read_part(oq_env *env, const oq_part_source *part, int64_t n, int64_t k)
{
    oq_scheme scheme;
    oq_planes planes = {{NULL}};
    void *owned[OQ_N_PLANES] = {NULL};
    bool small = n > 0 && k > 0;
    oq_part_scheme(part, &scheme);
    for (int p = 0; p < OQ_N_PLANES; p++)
        small = small && oq_scheme_plane_bytes(&scheme, (oq_plane)p, n, k) <= MOST;
    for (int p = 0; small && p < OQ_N_PLANES; p++) {
        const size_t bytes = oq_scheme_plane_bytes(&scheme, (oq_plane)p, n, k);
        if (bytes == 0) continue;
        FUZZ_CHECK(part->plane[p].tensor);
        owned[p] = oq_alloc(env, bytes);
        planes.plane[p] = owned[p];
        oq_plane_read(&part->plane[p], owned[p], bytes, n, k);
    }
    if (small && k <= MOST / (int64_t)sizeof(float)) {
        float *row = oq_alloc(env, (size_t)k * sizeof *row);
        part->format->decode_row(part->format, row, &planes, n - 1, n, k);
        oq_free(env, row);
    }
    for (int p = 0; p < OQ_N_PLANES; p++) oq_free(env, owned[p]);
}

static void offer(oq_env *env, const oq_resolved_component *c, const oq_ckpt *ckpt, const oq_ckpt_tensor *t)
{
    char name[512];
    size_t length = 0;
    int64_t n = 0, k = 0;
    oq_part_source part = {0};
    bool found = false;
    oq_env_clear(env);
    if (!oq_dialect_layer_of(c->dialect, &c->declared, ckpt, t, &length, &n, &k)) return;
    if (length >= sizeof name) return;
    memcpy(name, t->name, length);
    name[length] = '\0';
    oq_env_clear(env);
    const oq_status st = oq_dialect_locate(env, c->dialect, &c->declared, ckpt, name, n, k, &part, &found);
    fuzz_check_status(env, st);
    FUZZ_CHECK(!found || (st == OQ_OK && part.format));
    if (found) read_part(env, &part, n, k);
}

static void check(oq_env *env, const oq_json *quant, const oq_ckpt *ckpt)
{
    const oq_resolve_input in = {.name = "transformer",
                                 .class_name = "Net",
                                 .quantizable = true,
                                 .quant = quant,
                                 .quant_source = "config.json",
                                 .ckpt = ckpt};
    oq_resolved *resolved = NULL;
    oq_env_clear(env);
    const oq_status st = oq_resolve(env, NULL, &in, 1, &resolved);
    fuzz_check_status(env, st);
    for (size_t i = 0; resolved && resolved->components[0].dialect && i < ckpt->n_tensors; i++)
        offer(env, &resolved->components[0], ckpt, &ckpt->tensors[i]);
    oq_resolved_free(resolved);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    const size_t text = nul ? (size_t)(nul - data) : n, rest = nul ? n - text - 1 : 0;
    uint8_t *copy = oq_alloc(env, rest + 1);
    oq_ckpt ckpt = {.path = "file", .container = "safetensors"};
    oq_ckpt_file file = {.path = "file"};
    oq_ckpt_part part = {0};
    oq_json *quant = NULL;
    if (text) oq_json_parse(env, (const char *)data, text, "metadata", &quant);
    oq_env_clear(env);
    if (rest) memcpy(copy, nul + 1, rest);
    file.map.data = copy, file.map.bytes = rest;
    oq_arena_init(&ckpt.arena, env);
    if (rest >= 8 && oq_safetensors_header_bytes(&file.map) <= rest - 8 &&
        oq_safetensors_parse(env, &ckpt.arena, "file", &file.map, &part) == OQ_OK) {
        file.metadata = part.metadata;
        ckpt.files = &file, ckpt.n_files = 1;
        ckpt.tensors = part.tensors, ckpt.n_tensors = part.n_tensors;
        if (ckpt.n_tensors) qsort(ckpt.tensors, ckpt.n_tensors, sizeof *ckpt.tensors, compare);
        if (!has_twins(&ckpt)) check(env, quant, &ckpt);
    }
    oq_json_free(part.metadata);
    oq_arena_deinit(&ckpt.arena);
    oq_json_free(quant);
    oq_free(env, copy);
    return 0;
}
