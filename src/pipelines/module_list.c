/* module_list.c -- the networks: one line each. */
#include "pipelines/pipeline.h"

#include "modules/dit_flux1/dit_flux1.h"
#include "modules/dit_flux2/dit_flux2.h"
#include "modules/dit_qwen_image/dit_qwen_image.h"
#include "modules/dit_wan/dit_wan.h"
#include "modules/dit_zimage/dit_zimage.h"
#include "modules/te_clip/te_clip.h"
#include "modules/te_qwen3/te_qwen3.h"
#include "modules/te_t5/te_t5.h"
#include "modules/vae_kl/vae_kl.h"
#include "modules/vae_wan/vae_wan.h"

#include <string.h>

/* clang-format off */
const oq_module_type *const oq_module_list[] = {
    &oq_module_dit_flux1,
    &oq_module_dit_flux2,
    &oq_module_dit_qwen_image,
    &oq_module_dit_wan,
    &oq_module_dit_zimage,
    &oq_module_te_clip,
    &oq_module_te_mistral,
    &oq_module_te_qwen25_vl,
    &oq_module_te_qwen3,
    &oq_module_te_t5,
    &oq_module_vae_kl_flux2, /* before the one that its tensors fit as well */
    &oq_module_vae_kl,
    &oq_module_vae_wan,
    NULL,
};
/* clang-format on */

const oq_module_type *oq_module_find(const char *class_name)
{
    for (const oq_module_type *const *m = oq_module_list; *m; m++)
        for (const char *const *name = (*m)->class_names; *name; name++)
            if (strcmp(*name, class_name) == 0) return *m;
    return NULL;
}
