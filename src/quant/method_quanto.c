/* method_quanto.c -- optimum-quanto's checkpoints: int8, e4m3 or e5m2 codes with a scale per row, codes of four and two
 * bits with a scale and a shift per group. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "weights_dtype",
     .aliases = "weights",
     .type = OQ_METHOD_CHOICE,
     .choices = "int8,float8,float8_e5m2,int4,int2",
     .fallback = "\"int8\"",
     .help = "type of a code"},
    {.name = "activations_dtype",
     .aliases = "activations",
     .type = OQ_METHOD_CHOICE,
     .choices = "none,int8,float8",
     .help = "type of activations"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

const oq_method oq_method_quanto = {
    .name = "quanto",
    .aliases = "optimum_quanto",
    .help = "optimum-quanto checkpoints: int8 or FP8 weights with a scale per row, int4 and int2 in groups",
    .options = options,
    .serialized = true,
    .tolerated = "*",
};
