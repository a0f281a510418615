/* method_svdquant.c -- SVDQuant: 4-bit weights of a smoothed residual plus a low-rank branch in 16 bit. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "rank",
     .type = OQ_METHOD_INT,
     .min = 1,
     .max = 65536,
     .fallback = "32",
     .help = "of the low-rank branch"},
    {.name = "precision",
     .type = OQ_METHOD_CHOICE,
     .choices = "nvfp4,int4",
     .fallback = "\"nvfp4\"",
     .help = "of the residual"},
    {.name = "act_unsigned", .type = OQ_METHOD_BOOL, .fallback = "false", .help = "activations without sign"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

const oq_method oq_method_svdquant = {
    .name = "svdquant",
    .aliases = "nunchaku,nunchaku_lite",
    .help = "SVDQuant checkpoints of nunchaku and ComfyUI: weights of four bits (int4 or NVFP4) with a "
            "low-rank branch",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
};
