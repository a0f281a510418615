/* layout_gguf.c -- GGUF: one tensor per layer, blocks of codes with their scales, in a file of its own kind. Keys as
 * ggml's tools and ComfyUI's loader look for them. */
#include "write/layout.h"

#include "format/gguf_type.h"

#include <string.h>

static int spell(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const oq_gguf_type *type = oq_gguf_type_of(l->scheme.weight);
    if (!type || l->scheme.act || l->k % type->elems != 0) return 0;
    out[0] = oq_spell_plane(l, ".weight", type->name, OQ_PLANE_DATA, l->n, l->k);
    return 1;
}

/* ggml's number for a file whose layers are mostly of this type; -1: it has none. */
static int file_type(const oq_format *f)
{
    static const struct {
        const char *type;
        int number;
    } rows[] = {{"F32", 0},    {"F16", 1},    {"Q4_0", 2},    {"Q4_1", 3},    {"Q8_0", 7},
                {"Q5_0", 8},   {"Q5_1", 9},   {"Q2_K", 10},   {"Q3_K", 11},   {"Q4_K", 14},
                {"Q5_K", 16},  {"Q6_K", 18},  {"IQ4_NL", 25}, {"IQ4_XS", 30}, {"BF16", 32},
                {"TQ1_0", 36}, {"TQ2_0", 37}, {"MXFP4", 38},  {"NVFP4", 39},  {"Q1_0", 40}};
    const oq_gguf_type *type = oq_gguf_type_of(f);
    for (size_t i = 0; type && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].type, type->name) == 0) return rows[i].number;
    return -1;
}

static const oq_format *most_frequent(const oq_write_component *c)
{
    const oq_format *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < c->n_layers; i++) {
        size_t n = 0;
        for (size_t j = 0; j < c->n_layers; j++)
            n += c->layers[j].scheme.weight == c->layers[i].scheme.weight;
        if (n > most) most = n, best = c->layers[i].scheme.weight;
    }
    return best;
}

static void metadata(const oq_write_component *c, oq_json *header)
{
    const int number = file_type(most_frequent(c));
    oq_json_set(header, "general.architecture", oq_json_new_string(c->architecture));
    oq_json_set(header, "general.type", oq_json_new_string("model"));
    oq_json_set(header, "general.quantization_version", oq_json_new_int(2));
    if (number >= 0) oq_json_set(header, "general.file_type", oq_json_new_int(number));
}

const oq_layout oq_layout_gguf = {
    .name = "gguf",
    .help = "what method 'gguf' makes of its option 'type': F16, BF16, Q4_0 to Q8_0, Q2_K to Q8_K, IQ4_NL, "
            "IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4",
    .producer = "ggml, ComfyUI-GGUF, stable-diffusion.cpp, diffusers",
    .container = &oq_container_gguf,
    .in_file = true,
    .spell = spell,
    .metadata = metadata,
};
