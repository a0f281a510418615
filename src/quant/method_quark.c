/* method_quark.c -- AMD Quark: MXFP4 weights with 8-bit activations, with or without a low-rank branch. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "svd_rank",
     .aliases = "rank",
     .type = OQ_METHOD_INT,
     .min = 1,
     .max = 65536,
     .help = "of the low-rank branch; absent: none"},
    OQ_METHOD_IGNORED_ROW(",exclude"),
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_w4a8_serialized"),
    {.name = "quark_export_format",
     .type = OQ_METHOD_CHOICE,
     .choices = "bf16,mxfp4_packed,mxfp4_unshuffled",
     .fallback = "\"bf16\"",
     .help = "how the checkpoint stores codes"},
    {0},
};

const oq_method oq_method_quark = {
    .name = "quark",
    .aliases = "quark_w4a8,quark_svdquant",
    .help = "AMD Quark: 4-bit weights, 8-bit activations, optional low-rank branch",
    .options = options,
    .online = true,
    .serialized = true,
    .tolerated = "*",
    .missing = OQ_METHOD_MISSING,
};
