/* method_quark.c -- AMD Quark's checkpoints; global_quant_config, layer_type_quant_config and layer_quant_config say what a
 * layer is. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "global_quant_config", .type = OQ_METHOD_ANY, .help = "what layers are that nothing else means"},
    {.name = "layer_type_quant_config",
     .type = OQ_METHOD_OBJECT,
     .help = "a class of layers to what they are"},
    {.name = "layer_quant_config", .type = OQ_METHOD_OBJECT, .help = "a pattern of names to what they are"},
    {.name = "export", .type = OQ_METHOD_OBJECT, .help = "how the producer packed codes"},
    {.name = "algo_config", .type = OQ_METHOD_ANY, .help = "what the producer did before"},
    OQ_METHOD_IGNORED_ROW(",exclude"),
    {.name = "svd_rank",
     .aliases = "rank",
     .type = OQ_METHOD_INT,
     .min = 1,
     .max = 65536,
     .help = "of the low-rank branch; absent: none"},
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_w4a8_serialized"),
    {.name = "quark_export_format",
     .type = OQ_METHOD_CHOICE,
     .choices = "bf16,mxfp4_packed,mxfp4_unshuffled",
     .help = "how the checkpoint stores codes, where nothing else says it"},
    {0},
};

const oq_method oq_method_quark = {
    .name = "quark",
    .aliases = "quark_w4a8,quark_svdquant",
    .help = "checkpoints by AMD Quark: FP8, INT8, integers of four bits in groups, MXFP4",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
    .file_keys = "global_quant_config,layer_quant_config",
};
