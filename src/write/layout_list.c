/* layout_list.c -- every layout that is written, in the order in which a default is looked for: the first that holds all
 * layers. */
#include "write/layout.h"

#include "base/names.h"

extern const oq_layout oq_layout_compressed_tensors, oq_layout_bitsandbytes, oq_layout_modelopt,
    oq_layout_comfy, oq_layout_autoround, oq_layout_gguf, oq_layout_autoround_awq, oq_layout_torchao,
    oq_layout_fp8, oq_layout_int8, oq_layout_quanto, oq_layout_gptq;

const oq_layout *const oq_layout_list[] = {
    &oq_layout_compressed_tensors,
    &oq_layout_bitsandbytes,
    &oq_layout_modelopt,
    &oq_layout_comfy,
    &oq_layout_autoround,
    &oq_layout_autoround_awq,
    &oq_layout_gptq,
    &oq_layout_fp8,
    &oq_layout_int8,
    &oq_layout_quanto,
    &oq_layout_torchao,
    &oq_layout_gguf,
    NULL,
};

const oq_layout *oq_layout_find(const char *name)
{
    for (const oq_layout *const *l = oq_layout_list; *l; l++)
        if (oq_name_equal((*l)->name, name)) return *l;
    return NULL;
}
