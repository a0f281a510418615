/* method_comfy_nvfp4.c -- FLUX.2 checkpoints in NVFP4 as ComfyUI and Black Forest Labs write them: high
 * nibble first, block scales in the tiled order of the GPU; not ModelOpt's layout. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "quantized_layers",
     .type = OQ_METHOD_NAMES,
     .help = "names of the quantized layers; all others are plain"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

const oq_method oq_method_comfy_nvfp4 = {
    .name = "comfy_nvfp4",
    .aliases = "bfl_nvfp4",
    .help = "NVFP4 checkpoints in ComfyUI's and Black Forest Labs' layout; 4-bit activations where "
            "comfy_quant tells of the layer or the file has their scale",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
};
