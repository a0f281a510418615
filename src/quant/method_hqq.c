/* method_hqq.c -- HQQ's checkpoints: unsigned codes with scales and zero points that are floats; the tensors of each layer say
 * what it is. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "quant_config", .type = OQ_METHOD_OBJECT, .help = "what the producer was asked for"},
    {.name = "skip_modules", .type = OQ_METHOD_CSV, .help = "layers that it was asked to leave plain"},
    {.name = "ignored_layers",
     .type = OQ_METHOD_CSV,
     .fallback = "[]",
     .help = "names, dotted runs, globs or re: patterns of layers that stay plain"},
    {0},
};

const oq_method oq_method_hqq = {
    .name = "hqq",
    .help = "HQQ checkpoints: weights of 1, 2, 3, 4 and 8 bits in groups along rows or across them, zero "
            "points that are floats",
    .options = options,
    .serialized = true,
    .tolerated = "*",
};
