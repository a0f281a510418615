/* quark_words.c -- Quark's patterns of names, for checkpoints and for made-up weights. */
#include "quant/quark_words.h"

#include "base/names.h"

#include <string.h>

const oq_json *oq_quark_words_find(const oq_json *options, const char *name)
{
    const oq_json *layers = oq_json_get(options, "layer_quant_config"),
                  *types = oq_json_get(options, "layer_type_quant_config"), *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    while (oq_json_next(layers, &at, &key, &value))
        if (oq_glob_match(key, name)) return value;
    at = NULL;
    while (oq_json_next(types, &at, &key, &value)) {
        const char *leaf = strrchr(key, '.');
        if (strcmp(leaf ? leaf + 1 : key, "Linear") == 0) return value;
    }
    return oq_json_get(options, "global_quant_config");
}
