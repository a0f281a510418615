/* method_fp8_blockwise_mixed.c -- FP8 MLP weights by 128x128 blocks with BF16 scales, dequantized in the
 * product. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "recipe",
     .type = OQ_METHOD_CHOICE,
     .choices = "fp8_blockwise_mixed",
     .help = "the producer's recipe"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

const oq_method oq_method_fp8_blockwise_mixed = {
    .name = "fp8_blockwise_mixed",
    .help = "checkpoints whose MLP weights are FP8 by 128x128 blocks, with 16-bit activations",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
};
