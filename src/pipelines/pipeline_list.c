/* pipeline_list.c -- the families: one line each. */
#include "pipelines/pipeline.h"

#include <string.h>

extern const oq_pipeline_type oq_pipeline_flux1;
extern const oq_pipeline_type oq_pipeline_flux2_dev;
extern const oq_pipeline_type oq_pipeline_flux2_klein;
extern const oq_pipeline_type oq_pipeline_qwen_image;
extern const oq_pipeline_type oq_pipeline_qwen_image_edit;
extern const oq_pipeline_type oq_pipeline_qwen_image_edit_plus;
extern const oq_pipeline_type oq_pipeline_wan;
extern const oq_pipeline_type oq_pipeline_wan_i2v;
extern const oq_pipeline_type oq_pipeline_z_image;

/* clang-format off */
const oq_pipeline_type *const oq_pipeline_list[] = {
    &oq_pipeline_flux1,
    &oq_pipeline_flux2_dev,
    &oq_pipeline_flux2_klein,
    &oq_pipeline_qwen_image,
    &oq_pipeline_qwen_image_edit,
    &oq_pipeline_qwen_image_edit_plus,
    &oq_pipeline_wan,
    &oq_pipeline_wan_i2v,
    &oq_pipeline_z_image,
    NULL,
};
/* clang-format on */

const oq_pipeline_type *oq_pipeline_find(const char *class_name)
{
    for (const oq_pipeline_type *const *p = oq_pipeline_list; *p; p++)
        if (strcmp((*p)->class_name, class_name) == 0) return *p;
    return NULL;
}
