/* method_ascend.c -- msModelSlim's checkpoints; quant_model_description.json names each tensor's type. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "quant_model_description", .type = OQ_METHOD_OBJECT, .help = "a tensor's name to its type"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

const oq_method oq_method_ascend = {
    .name = "ascend",
    .aliases = "msmodelslim,modelslim",
    .help = "checkpoints by Ascend msModelSlim: INT8, INT4, FP8, MXFP8 and MXFP4, a type per layer",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
    .file_keys = "quant_model_description",
};
