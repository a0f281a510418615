/* method_torchao.c -- TorchAO's checkpoints as diffusers writes them: flattened tensor subclasses. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "quant_type",
     .type = OQ_METHOD_ANY,
     .fallback =
         "{\"default\": {\"_type\": \"Float8WeightOnlyConfig\", \"_version\": 2, \"_data\": "
         "{\"weight_dtype\": "
         "{\"_type\": \"torch.dtype\", \"_data\": \"float8_e4m3fn\"}, \"set_inductor_config\": false}}}",
     .help = "a serialized TorchAO configuration, or its short name"},
    {.name = "quant_type_kwargs", .type = OQ_METHOD_OBJECT, .help = "arguments of the short name"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

const oq_method oq_method_torchao = {
    .name = "torchao",
    .aliases = "torchao_float8_weight_only",
    .help = "TorchAO checkpoints: FP8, INT8, INT4 in rows and tiles, grouped integers, MX and NVFP4",
    .options = options,
    .serialized = true,
    .tolerated = "*",
};
