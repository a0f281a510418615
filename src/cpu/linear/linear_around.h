/* linear_around.h -- what a layer does around its product, on rows of f32: shared by the reference and by the kernels that
 * put it around any other. */
#ifndef OQ_CPU_LINEAR_LINEAR_AROUND_H
#define OQ_CPU_LINEAR_LINEAR_AROUND_H

#include "cpu/cpu.h"

/* dst[k] from a row of x: smoothed (the products rounded to x's type, as a model of that type has them), put in order,
 * rotated. dst and src do not overlap. */
void oq_around_row(float *dst, const float *src, const oq_dtype *type, const oq_linear_spec *spec,
                   const oq_planes *planes);

/* What a treatment of activations must know of all rows of x before the first. */
typedef struct oq_around_whole {
    uint8_t *outlier; /* [k]: the column is left as it is; NULL: none */
    float global;     /* OQ_ACT_DYNAMIC_NVFP4: amax of x / 2688 */
} oq_around_whole;

bool oq_around_needs_whole(const oq_scheme *scheme);
/* Looks at x, whose rows are as oq_around_row leaves them ([m, k] without gaps). `outlier` has k bytes. */
void oq_around_look(oq_around_whole *out, uint8_t *outlier, const oq_scheme *scheme, const float *x, int64_t m, int64_t k);
/* Is x of so many rows multiplied as it is? */
bool oq_around_is_plain(const oq_scheme *scheme, int64_t rows);
/* A row becomes what its codes and scales say; columns of outliers stay. codes and scales have k places. */
void oq_around_quantize(float *row, const oq_scheme *scheme, const oq_around_whole *whole, float static_scale, int64_t k,
                        uint8_t *codes, float *scales);

/* ---- kernels: all this around the first kernel of the list that takes the bare product and needs no other features ---- */

size_t oq_around_packed_bytes(const oq_linear_spec *spec, uint64_t need);
void   oq_around_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec, uint64_t need);
size_t oq_around_scratch_bytes(const oq_linear_spec *spec, int64_t m, uint64_t need);
void   oq_around_run(oq_device *device, const oq_linear_args *args, uint64_t need);
/* What is not bare, and activations in codes that no other kernel takes beside weights in such a format (those of whole elements have
 * kernels of their own). */
bool   oq_around_accepts(const oq_linear_spec *spec, uint64_t need);

/* The kernel oq_linear_around_<level>, whose file has the same name. */
#define OQ_AROUND_KERNEL(level, features)                                                                              \
    static bool around_accepts(const oq_linear_spec *spec)                                                             \
    {                                                                                                                  \
        return oq_around_accepts(spec, features);                                                                      \
    }                                                                                                                  \
    static size_t around_packed_bytes(const oq_linear_spec *spec)                                                      \
    {                                                                                                                  \
        return oq_around_packed_bytes(spec, features);                                                                 \
    }                                                                                                                  \
    static void around_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)                               \
    {                                                                                                                  \
        oq_around_pack(dst, src, spec, features);                                                                      \
    }                                                                                                                  \
    static size_t around_scratch_bytes(const oq_linear_spec *spec, int64_t m)                                          \
    {                                                                                                                  \
        return oq_around_scratch_bytes(spec, m, features);                                                             \
    }                                                                                                                  \
    static void around_run(oq_device *device, const oq_linear_args *args)                                              \
    {                                                                                                                  \
        oq_around_run(device, args, features);                                                                         \
    }                                                                                                                  \
    const oq_linear_kernel oq_linear_around_##level = {.name = "linear_around_" #level,                                \
                                                       .need = features,                                               \
                                                       .accepts = around_accepts,                                      \
                                                       .packed_bytes = around_packed_bytes,                            \
                                                       .pack = around_pack,                                            \
                                                       .scratch_bytes = around_scratch_bytes,                          \
                                                       .run = around_run,                                              \
                                                       .around = true};

#endif
