/* format.h -- what the bytes of one quantized (or plain) weight mean: planes, granularity, decode, encode.
 * One canonical layout per format; dialects normalise at the door. */
#ifndef OQ_FORMAT_FORMAT_H
#define OQ_FORMAT_FORMAT_H

#include "format/dtype.h"

/* A weight is W[n, k], row-major: n output features, k input features. */
typedef enum oq_plane {
    OQ_PLANE_DATA,        /* codes */
    OQ_PLANE_SCALE,       /* multipliers per block (or channel, or tensor) */
    OQ_PLANE_GLOBAL,      /* second-level multiplier of the whole tensor */
    OQ_PLANE_ZERO,        /* zero points */
    OQ_PLANE_INPUT_SCALE, /* static activation scale, f32 [1]; belongs to the layer, not to the weight format */
    OQ_N_PLANES
} oq_plane;

typedef struct oq_planes {
    const void *plane[OQ_N_PLANES]; /* unused planes are NULL; no alignment is promised for plane DATA */
} oq_planes;

typedef struct oq_planes_mut {
    void *plane[OQ_N_PLANES];
} oq_planes_mut;

typedef struct oq_format {
    const char     *name;    /* "fp8_e4m3_channel" */
    const char     *kernel_name; /* the word in kernel names: "fp8" */
    const oq_dtype *element; /* type of one code where codes are whole elements, else NULL */
    unsigned        planes;  /* bit set 1u << OQ_PLANE_* of the planes the weight itself has */
    /* One scale covers block_n rows and block_k columns; 0 is the whole dimension: tensor (0,0), channel (1,0),
     * block (128,128), group (1,g). Plain formats have no SCALE plane and (0,0). */
    int32_t block_n, block_k;
    /* 0: plane unused; SIZE_MAX: does not fit into a size_t. */
    size_t (*plane_bytes)(const struct oq_format *f, oq_plane plane, int64_t n, int64_t k);
    /* Row `row` of W as f32 [k]. */
    void (*decode_row)(const struct oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t n,
                       int64_t k);
    /* Whole W[n,k] from f32; fills all planes of the format. NULL: read-only format. Deterministic. A block with a
     * non-finite weight gets scale NaN (plain formats keep the value), so that the run stops instead of painting. */
    void (*encode)(const struct oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k);
} oq_format;

/* Plain: the element type alone. */
extern const oq_format oq_format_f32, oq_format_bf16, oq_format_f16;
/* DATA e4m3 [n,k]; SCALE f32: [1], [n], [ceil(n/128), ceil(k/128)], [n, ceil(k/128)]. Value = code * scale. */
extern const oq_format oq_format_fp8_e4m3_tensor, oq_format_fp8_e4m3_channel, oq_format_fp8_e4m3_block128,
    oq_format_fp8_e4m3_group128;
/* DATA i8 [n,k]; SCALE f32: [1], [n]. */
extern const oq_format oq_format_int8_tensor, oq_format_int8_channel;

extern const oq_format *const oq_format_list[]; /* NULL-terminated */
const oq_format *oq_format_find(const char *name);
const oq_format *oq_format_plain(const oq_dtype *dtype); /* f32, bf16, f16; NULL for others */

/* How activations are scaled before the product. */
typedef enum oq_act_scale {
    OQ_ACT_NONE,           /* activations stay as they are */
    OQ_ACT_STATIC_TENSOR,  /* plane INPUT_SCALE */
    OQ_ACT_DYNAMIC_TOKEN,  /* one scale per row of x */
    OQ_ACT_DYNAMIC_GROUP   /* one scale per row and 128 columns */
} oq_act_scale;
#define OQ_ACT_GROUP 128
const char *oq_act_scale_name(oq_act_scale s); /* "none", "static_tensor", "dynamic_token", "dynamic_group128" */

/* How one layer is stored and multiplied. */
typedef struct oq_scheme {
    const oq_format *weight;
    const oq_dtype  *act; /* NULL: x is not quantized; else &oq_dtype_f8_e4m3 or &oq_dtype_i8 */
    oq_act_scale     act_scale;
} oq_scheme;

/* "w: fp8_e4m3_channel a: fp8_e4m3 dynamic_token"; "w: bf16 a: none" where x is not quantized. Cut at n, terminated. */
void oq_scheme_describe(const oq_scheme *s, char *out, size_t n);
bool oq_scheme_equal(const oq_scheme *a, const oq_scheme *b);

/* Quantizes one row x[k] of activations as the scheme says: codes (element type `act`, one byte each) and scales
 * (one, or one per group of 128). static_scale is used by OQ_ACT_STATIC_TENSOR alone. Reference arithmetic:
 *   e4m3 token: s = max(amax/448, 1/(448*512)), code = e4m3(clamp(x / s))
 *   e4m3 group: amax = max(amax, 1e-12) (finite), s = amax/448, code = e4m3(clamp(x / s))
 *   e4m3 static: code = e4m3(clamp(x / s))
 *   i8 token:   s = amax/127, code = rne(x * (127/amax)) clamped to [-127,127]; amax 0: codes 0, s 0
 *   i8 group:   the same per group; i8 static: code = rne(x / s) clamped to [-127,127]
 * (an amax so small that 127/amax overflows counts as 0)
 * A row with a non-finite value gets s = NaN, so that the product is NaN and the run stops, never a wrong picture. */
void oq_act_quantize_row(const oq_scheme *scheme, float static_scale, const float *x, int64_t k, void *codes,
                         float *scales);

#endif
