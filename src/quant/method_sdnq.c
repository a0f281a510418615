/* method_sdnq.c -- SD.Next's checkpoints: integers of 2 to 8 bits and FP8 in groups or rows, with or without a low-rank branch
 * and a rotation of columns. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "weights_dtype", .type = OQ_METHOD_STRING, .fallback = "\"int8\"", .help = "type of a code"},
    {.name = "sdnq_version", .type = OQ_METHOD_STRING, .help = "version of the package that wrote the file"},
    {.name = "quantized_matmul_dtype",
     .type = OQ_METHOD_STRING,
     .help = "type that activations become; without it int8, uint8 or float8_e4m3fn, as the codes are"},
    {.name = "use_quantized_matmul",
     .type = OQ_METHOD_BOOL,
     .fallback = "false",
     .help = "activations are quantized"},
    {.name = "use_hadamard",
     .type = OQ_METHOD_BOOL,
     .fallback = "false",
     .help = "columns are rotated in runs"},
    {.name = "hadamard_group_size",
     .type = OQ_METHOD_INT,
     .min = 1,
     .max = 65536,
     .fallback = "256",
     .help = "columns of such a run at most"},
    {.name = "use_codebook",
     .type = OQ_METHOD_BOOL,
     .fallback = "false",
     .help = "codes are places in tables of numbers"},
    {.name = "scale_dtype", .type = OQ_METHOD_STRING, .help = "type of the codes of scales"},
    {.name = "zero_point_dtype", .type = OQ_METHOD_STRING, .help = "type of the codes of zero points"},
    {.name = "modules_dtype_dict",
     .type = OQ_METHOD_OBJECT,
     .help = "types, or least numbers of bits, to layers that have another type"},
    {.name = "modules_quant_config", .type = OQ_METHOD_OBJECT, .help = "layers to options of their own"},
    {.name = "modules_to_not_convert", .type = OQ_METHOD_CSV, .help = "layers that are plain in the file"},
    {.name = "modules_to_not_use_matmul",
     .type = OQ_METHOD_CSV,
     .help = "layers whose activations are not quantized"},
    {.name = "ignored_layers",
     .type = OQ_METHOD_CSV,
     .fallback = "[]",
     .help = "names, dotted runs, globs or re: patterns of layers that stay plain"},
    {0},
};

const oq_method oq_method_sdnq = {
    .name = "sdnq",
    .help = "SD.Next (SDNQ) checkpoints: integers and floats of 2 to 8 bits in groups, rows and low-rank "
            "branches",
    .options = options,
    .serialized = true,
    .tolerated = "*",
};
