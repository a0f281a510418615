/* vision_patches.h -- pictures as Qwen2-VL's image processor hands them to a vision tower: resized to whole states, normalized,
 * cut into patches. Resizing is Pillow's BICUBIC; torchvision's, where transformers finds it, differs by a level here and there. */
#ifndef OQ_PIPELINES_VISION_PATCHES_H
#define OQ_PIPELINES_VISION_PATCHES_H

#include "base/arena.h"
#include "media/image.h"

typedef struct oq_vision_patches { /* fields of preprocessor_config.json */
    int64_t patch, frames, merge;    /* pixels of a patch's side; a picture stands for so many frames; patches of a state's side */
    int64_t least_pixels, most_pixels;
    double rescale;
    float mean[3], std[3];
} oq_vision_patches;

/* Of `folder`/processor, in either file that transformers writes; dummy: a folder without one means the published values. */
oq_status oq_vision_patches_read(oq_env *env, const char *folder, bool dummy, oq_vision_patches *out);

/* The size that a picture is resized to: multiples of patch * merge. False: one side is more than 200 times the other. */
bool oq_vision_patches_size(const oq_vision_patches *p, int64_t width, int64_t height, int64_t *to_width,
                            int64_t *to_height);
/* patches: host [states * merge^2, 3 frames patch^2] in `arena`, state by state in rows, as oq_vision_qwen25_picture has them. */
oq_status oq_vision_patches_make(oq_env *env, oq_arena *arena, const oq_vision_patches *p, const oq_image *image,
                                 int64_t width, int64_t height, float **patches);

#endif
