/* qwen_image_edit.h -- what the files of Qwen-Image-Edit and Qwen-Image-Edit-Plus share. */
#ifndef OQ_PIPELINES_QWEN_IMAGE_EDIT_H
#define OQ_PIPELINES_QWEN_IMAGE_EDIT_H

#include "pipelines/qwen_image.h"
#include "pipelines/vision_patches.h"

/* The template: this, the pictures, the prompt, QWEN_IMAGE_AFTER. States of its first tokens are not used. */
#define QWEN_IMAGE_EDIT_BEFORE                                                                               \
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "   \
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new " \
    "image that meets the user's requirements while maintaining consistency with the original input where "      \
    "appropriate.<|im_end|>\n<|im_start|>user\n"
#define QWEN_IMAGE_EDIT_PAD "<|image_pad|>"
enum { QWEN_IMAGE_EDIT_DROPPED = 64, QWEN_IMAGE_EDIT_AFTER_TOKENS = 5 };

typedef struct qwen_image_edit {
    qwen_image base;              /* first */
    const oq_te_qwen25_vl *seer;  /* base.encoder with its tower */
    oq_vision_patches patches;
    bool several;                 /* pictures, each named in the template */
    int64_t area, shown_area;     /* pixels to which a picture is brought for the autoencoder, and for the tower; 0: the same picture */
} qwen_image_edit;

/* The size of `image` at an area: its proportions, sides to the nearest multiples of 32, 0 if one has none. */
void qwen_image_edit_fit(int64_t area, const oq_image *image, int64_t *width, int64_t *height);

oq_status qwen_image_edit_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out);

#endif
