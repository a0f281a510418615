/* method_gguf.c -- transformers from GGUF files. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "gguf_model",
     .type = OQ_METHOD_STRING,
     .help = "a file, owner/repo/file.gguf, or owner/repo:TYPE"},
    OQ_METHOD_IGNORED_ROW(",unquantized_modules"),
    {0},
};

const oq_method oq_method_gguf = {
    .name = "gguf",
    .help = "the transformer from a GGUF file; everything else from the model's folder",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
    .missing = OQ_METHOD_MISSING,
};
