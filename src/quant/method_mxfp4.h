/* method_mxfp4.h -- the fallback options that mxfp4 and mxfp4_dualscale share. */
#ifndef OQ_QUANT_METHOD_MXFP4_H
#define OQ_QUANT_METHOD_MXFP4_H

#include "quant/method.h"

#define OQ_MXFP4_FALLBACK_ROWS                                                                               \
    {.name = "w4a8_fallback_steps",                                                                          \
     .type = OQ_METHOD_INT_SET,                                                                              \
     .max = 1e9,                                                                                             \
     .fallback = "[]",                                                                                       \
     .side = OQ_SIDE_REQUEST,                                                                                \
     .help = "denoising steps with 8-bit activations"},                                                      \
    {                                                                                                        \
        .name = "w4a8_fallback_layers", .type = OQ_METHOD_NAMES, .fallback = "[]", .side = OQ_SIDE_REQUEST,  \
        .help = "full names of layers with 8-bit activations"                                                \
    }

/* Block of a layer ("blocks.5.ffn.net.0.proj" is 5), -1 for layers outside the blocks. */
int64_t oq_mxfp4_block(const char *layer);

#endif
