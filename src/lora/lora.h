/* lora.h -- adapters of low rank at run time: y += scale * up(down(x)) beside a layer's own product, whatever format its
 * weights have. Attached to a plan before it is measured, loaded after the weights. */
#ifndef OQ_LORA_LORA_H
#define OQ_LORA_LORA_H

#include "plan/plan.h"

typedef struct oq_loras oq_loras; /* the adapters of one model */

typedef struct oq_lora_request { /* one --lora FILE[:SCALE] */
    const char *path;
    double scale;
} oq_lora_request;

/* "FILE" or "FILE:0.8"; path is cut off in `text`, which is the caller's. */
oq_status oq_lora_parse(oq_env *env, char *text, oq_lora_request *out);

/* Reads the files (safetensors in the spellings of diffusers, PEFT, kohya and ComfyUI; any rank; alpha), finds the plan's
 * layers, chooses kernels and adds their bytes. A file of which nothing fits, weights of another shape, DoRA and other
 * kinds of adapters: an error that names the key. What fits no layer is counted, warned about and left out. */
oq_status oq_loras_attach(oq_env *env, oq_plan *plan, const oq_lora_request *requests, size_t n, oq_loras **out);
/* Packs and uploads the weights; the files are closed. */
oq_status oq_loras_load(oq_env *env, oq_loras *loras);
void oq_loras_free(oq_env *env, oq_loras *loras);

/* For reports: files and what of them fitted, in the order of the requests. */
typedef struct oq_lora_summary {
    const char *path;
    double scale;
    size_t layers, keys, matched; /* layers that the file changes; its tensors; those of them that fit a layer */
    const char *first_unmatched;  /* NULL: all fit */
} oq_lora_summary;
size_t oq_loras_count(const oq_loras *loras);
oq_lora_summary oq_loras_summary(const oq_loras *loras, size_t index);

#endif
