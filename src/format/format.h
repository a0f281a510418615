/* format.h -- what the bytes of one quantized (or plain) weight mean: planes, granularity, decode, encode.
 * One canonical layout per format; dialects normalise at the door. */
#ifndef OQ_FORMAT_FORMAT_H
#define OQ_FORMAT_FORMAT_H

#include "format/dtype.h"

/* A weight is W[n, k], row-major: n output features, k input features. */
typedef enum oq_plane {
    OQ_PLANE_DATA,        /* codes */
    OQ_PLANE_SCALE,       /* multipliers per block (or channel, or tensor) */
    OQ_PLANE_GLOBAL,      /* second level of the scales, of the whole tensor */
    OQ_PLANE_ZERO,        /* zero points */
    /* The rest belongs to the layer, not to the weight format: oq_scheme. */
    OQ_PLANE_INPUT_SCALE, /* static activation scale, f32 [1] */
    OQ_PLANE_SMOOTH,      /* factors of the columns of x, f32 [k] */
    OQ_PLANE_ORDER,       /* column of x for each column of W, i32 [k] */
    OQ_PLANE_DOWN,        /* low-rank branch, f32 [rank, k] */
    OQ_PLANE_UP,          /* and f32 [n, rank] */
    OQ_N_PLANES
} oq_plane;

typedef struct oq_planes {
    const void *plane[OQ_N_PLANES]; /* unused planes are NULL; no alignment is promised for plane DATA */
} oq_planes;

typedef struct oq_planes_mut {
    void *plane[OQ_N_PLANES];
} oq_planes_mut;

/* A piece of a row in its parts: value = (number of the code - offset) * scale. */
enum { OQ_PIECE = 256 }; /* columns of a piece at most */
typedef struct oq_group_piece {
    const float   *table; /* numbers of four-bit codes; NULL: e4m3, one a byte */
    const uint8_t *codes; /* the piece begins with code number `first` of these */
    int64_t first;
    int64_t lead;         /* columns under scale[0]; each later one covers block_k of them */
    float   scale[OQ_PIECE / 16 + 1], offset[OQ_PIECE / 16 + 1];
} oq_group_piece;

/* Codes and scales together: so many bytes for so many weights, each block by itself. */
typedef struct oq_block {
    int elems, bytes; /* at most OQ_BLOCK_ELEMS, OQ_BLOCK_BYTES */
    void (*decode)(float *dst, const uint8_t *src);
    /* Rounds to nearest, the way of the producer's reference. Finite values alone. NULL: is read, not written. */
    void (*encode)(uint8_t *dst, const float *src);
    void (*poison)(uint8_t *dst); /* a block that decodes to numbers that are not finite; NULL: there is none, so who encodes
                                   * looks at the weights first */
} oq_block;
enum { OQ_BLOCK_ELEMS = 256, OQ_BLOCK_BYTES = 292 };

typedef struct oq_format {
    const char     *name;    /* "fp8_e4m3_channel" */
    const char     *kernel_name; /* the word in kernel names: "fp8" */
    const oq_dtype *element; /* type of one code where codes are whole elements under f32 scales (or none), else NULL */
    unsigned        planes;  /* bit set 1u << OQ_PLANE_* of the planes the weight itself has */
    const oq_block *block;   /* DATA is blocks of the flattened matrix (one may cross into the next row); NULL: planes */
    /* One scale covers block_n rows and block_k columns; 0 is the whole dimension: tensor (0,0), channel (1,0),
     * block (128,128), group (1,g). Plain formats have no SCALE plane and (0,0). */
    int32_t block_n, block_k;
    int32_t int_bits; /* of one code of an integer format in groups (int4z_g32: 4); 0: another kind of format */
    const oq_dtype *scale_type; /* of plane SCALE (and of ZERO where that has floats) in 16 bits; NULL: as the format says */
    /* The block_n rows under one scale (of each column) stand apart: rows r, r + m, r + 2 m ... of m = ceil(n / block_n). Rows of it
     * are no weight of their own, and two of it are none together. */
    bool    spread;
    bool    flat; /* blocks are runs of the flattened matrix: they cross from row to row */
    /* 0: plane unused; SIZE_MAX: does not fit into a size_t. */
    size_t (*plane_bytes)(const struct oq_format *f, oq_plane plane, int64_t n, int64_t k);
    /* Row `row` of W as f32 [k]. */
    void (*decode_row)(const struct oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t n,
                       int64_t k);
    /* Columns [first, first + count) of that row, the same bits: kernels take a row piece by piece. */
    void (*decode_span)(const struct oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                        int64_t count, int64_t n, int64_t k);
    /* The same piece undecoded, at most OQ_PIECE columns, for kernels that decode codes themselves; NULL: no group format. */
    void (*piece)(const struct oq_format *f, oq_group_piece *out, const oq_planes *src, int64_t row, int64_t first,
                  int64_t count, int64_t n, int64_t k);
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
/* DATA i8 [n,k]; SCALE f32 [n], the row's largest number. Value = (code * scale) * (1 / 127): LLM.int8. */
extern const oq_format oq_format_int8_scb;
/* Codes of four bits are two a byte, the first of them in the low nibble; rows begin at whole bytes, and with a new
 * group. DATA u8 [n, ceil(k/2)]. */
/* OCP microscaling: SCALE u8 [n, ceil(k/32)], 2^(byte - 127). mxfp8: DATA e4m3 [n,k]. mxfp4 and mxfp4_q725 (e2m1) are read
 * alike; they differ in how a power of two is chosen: float4.h. */
extern const oq_format oq_format_mxfp8, oq_format_mxfp4, oq_format_mxfp4_q725;
/* mxfp4 with GLOBAL f32 [n, ceil(k/512)]: value = code * (2^(byte - 127) * global). */
extern const oq_format oq_format_mxfp4_dual;
/* e2m1; SCALE e4m3 [n, ceil(k/16)], GLOBAL f32 [1]. Value = code * (scale * global). */
extern const oq_format oq_format_nvfp4;
/* The same with GLOBAL f32 [n]: fused parts keep their own. */
extern const oq_format oq_format_nvfp4_rows;
/* Value = code * (scale / global): the quotient is another number in its last bit. */
extern const oq_format oq_format_nvfp4_inverse, oq_format_nvfp4_inverse_rows;
/* Code tables, blocks of b of W flattened: DATA u8 [ceil(n*k/2)], SCALE f32 [ceil(n*k/b)]. Nested: SCALE u8, GLOBAL f32: offset,
 * map [256], absmax [ceil(n*k/b/256)]; scale = map[code] * absmax + offset. nf4_b64, nf4_b64_nested, fp4_b64 ... */
#define OQ_BNB4_BLOCKS(X) X(32) X(64) X(128) X(256) X(512) X(1024) X(2048) X(4096)
#define OQ_BNB4_DECLARE(b)                                                                                             \
    extern const oq_format oq_format_nf4_b##b, oq_format_fp4_b##b, oq_format_nf4_b##b##_nested, oq_format_fp4_b##b##_nested;
OQ_BNB4_BLOCKS(OQ_BNB4_DECLARE)
/* NULL: there is none of such blocks. */
const oq_format *oq_format_bnb4(bool nf4, int64_t block, bool nested);
/* Integers of b = 2 to 8 bits, unsigned; SCALE [n, ceil(k/g)], f32, or what stands behind g; value = (code - 2^(b-1)) *
 * scale. With z: ZERO [n, groups] (a byte each, rows of b = 2 and 3
 * bits a stream of bits); (code - zero) * scale. DATA u8 [n, ceil(b*k/8)]: a row is one stream of bits, low bits
 * first. int4_g32, int4z_g128_bf16 ... Those of 5, 6 and 7 bits are read alone. */
#define OQ_INT_SCALES(X, name) X(name) X(name##_f16) X(name##_bf16)
#define OQ_INT_GROUPS(X, name)                                                                                         \
    OQ_INT_SCALES(X, name##_g16) OQ_INT_SCALES(X, name##_g32) OQ_INT_SCALES(X, name##_g64) OQ_INT_SCALES(X, name##_g128)
#define OQ_INT_FORMATS(X)                                                                                              \
    OQ_INT_GROUPS(X, int2) OQ_INT_GROUPS(X, int2z) OQ_INT_GROUPS(X, int3) OQ_INT_GROUPS(X, int3z)                      \
    OQ_INT_GROUPS(X, int4) OQ_INT_GROUPS(X, int4z) OQ_INT_GROUPS(X, int5) OQ_INT_GROUPS(X, int5z)                      \
    OQ_INT_GROUPS(X, int6) OQ_INT_GROUPS(X, int6z) OQ_INT_GROUPS(X, int7) OQ_INT_GROUPS(X, int7z)                      \
    OQ_INT_GROUPS(X, int8) OQ_INT_GROUPS(X, int8z)
#define OQ_INT_FORMAT_DECLARE(name) extern const oq_format oq_format_##name;
OQ_INT_FORMATS(OQ_INT_FORMAT_DECLARE)
/* int4_g128 with GLOBAL f32 [1]: value = e4m3((code - 8) * scale / global) * global. Is read alone. */
extern const oq_format oq_format_int4_e4m3_g128;
/* int4 with SCALE f32 [n], one for a whole row. Is read alone. */
extern const oq_format oq_format_int4_channel;
/* Whole numbers of eight bits in fewer: value = clamp(rne(number of the code * scale), -127, 127) * global; SCALE e4m3 [n, ceil(k/g)],
 * GLOBAL f32 [n]. whole4: ZERO f32 [16], the numbers; DATA as in int4. whole6: the number is code - 32; DATA u8 [n, ceil(k/2) +
 * ceil(k/4)]: the lower four bits as in int4, then the upper two, four codes a byte, low bits first. Are read alone. */
#define OQ_WHOLE_FORMATS(X)                                                                                            \
    X(whole4_g16) X(whole4_g32) X(whole4_g64) X(whole4_g128) X(whole6_g16) X(whole6_g32) X(whole6_g64) X(whole6_g128)
OQ_WHOLE_FORMATS(OQ_INT_FORMAT_DECLARE)
const oq_format *oq_format_whole(int64_t bits, int64_t group); /* NULL: there is none */
/* The format of these numbers, its scales of that type (f16, bf16, f32); NULL: there is none. */
const oq_format *oq_format_int(int bits, int group, bool zero_points, const oq_dtype *scale);

/* Codes of four bits with SCALE and ZERO [n, ceil(k/g)], both f32 or both what stands behind g: int4f is (code - 8) * scale +
 * zero, uint4f code * scale + zero, the product rounded before the sum. DATA as in int4. */
#define OQ_INT4F_FORMATS(X)                                                                                            \
    OQ_INT_SCALES(X, int4f_g32) OQ_INT_SCALES(X, int4f_g64) OQ_INT_SCALES(X, int4f_g128)                               \
    OQ_INT_SCALES(X, uint4f_g32) OQ_INT_SCALES(X, uint4f_g64) OQ_INT_SCALES(X, uint4f_g128)
OQ_INT4F_FORMATS(OQ_INT_FORMAT_DECLARE)
/* middle: 8 is taken off the codes. NULL: there is none of this group. */
const oq_format *oq_format_int4_float(int group, bool middle, const oq_dtype *scale);

/* Codes of b bits with SCALE and ZERO [n, ceil(k/g)] or (channel) [n], both f32 or both what stands behind g: uint<b>fma is
 * code * scale + zero, rounded once, b = 2 ... 8; uint<b>zf is (code - zero) * scale, b = 1, 2, 3, 4, 8, and uint<b>sum
 * code * scale + zero, b = 2, 4, with each step rounded to the type of the scales. DATA as in int<b>. Are read alone. uint4fma_g64_bf16, uint8fma_channel ... */
#define OQ_AFFINE_GROUPS(X, name)                                                                                      \
    OQ_INT_GROUPS(X, name) OQ_INT_SCALES(X, name##_g256) OQ_INT_SCALES(X, name##_channel)
#define OQ_AFFINE_FORMATS(X)                                                                                           \
    OQ_AFFINE_GROUPS(X, uint2fma) OQ_AFFINE_GROUPS(X, uint3fma) OQ_AFFINE_GROUPS(X, uint4fma)                          \
    OQ_AFFINE_GROUPS(X, uint1zf) OQ_AFFINE_GROUPS(X, uint5fma) OQ_AFFINE_GROUPS(X, uint6fma)                          \
    OQ_AFFINE_GROUPS(X, uint7fma) OQ_AFFINE_GROUPS(X, uint8fma)                        \
    OQ_AFFINE_GROUPS(X, uint2zf) OQ_AFFINE_GROUPS(X, uint3zf) OQ_AFFINE_GROUPS(X, uint4zf) OQ_AFFINE_GROUPS(X, uint8zf)  \
    OQ_AFFINE_GROUPS(X, uint2sum) OQ_AFFINE_GROUPS(X, uint4sum) OQ_INT_SCALES(X, uint2sum_g96)                         \
    OQ_INT_SCALES(X, uint4sum_g96)
OQ_AFFINE_FORMATS(OQ_INT_FORMAT_DECLARE)
typedef enum oq_affine { OQ_AFFINE_FMA, OQ_AFFINE_ZF, OQ_AFFINE_SUM } oq_affine;
/* group 0: one scale per row. NULL: there is none of these numbers. */
const oq_format *oq_format_affine(oq_affine kind, int bits, int group, const oq_dtype *scale);

/* uint<b>zf of b = 1, 2, 3, 4, 8 with SCALE and ZERO [ceil(n/g), k], spread: row r of W has row r % ceil(n/g) of them. uint4zf_s64 ... */
#define OQ_SPREAD_GROUPS(X, name) OQ_INT_SCALES(X, name##_s32) OQ_INT_SCALES(X, name##_s64) OQ_INT_SCALES(X, name##_s128)
#define OQ_SPREAD_FORMATS(X)                                                                                           \
    OQ_SPREAD_GROUPS(X, uint1zf) OQ_SPREAD_GROUPS(X, uint2zf) OQ_SPREAD_GROUPS(X, uint3zf)                             \
    OQ_SPREAD_GROUPS(X, uint4zf) OQ_SPREAD_GROUPS(X, uint8zf)
OQ_SPREAD_FORMATS(OQ_INT_FORMAT_DECLARE)
const oq_format *oq_format_spread(int bits, int64_t group, const oq_dtype *scale); /* NULL: there is none */

/* Floats of 2 to 8 bits without infinities and NaN: e<e>m<m>fn with a sign, number * scale; e<e>m<m>fnu without one and with ZERO,
 * number * scale + zero, rounded once. DATA as in int<b>; SCALE and ZERO f32 [n, ceil(k/g)] or (channel) [n]. Are read alone.
 * e2m1fn_g64, e3m2fnu_channel ... T(exponent, mantissa) */
#define OQ_MINI_SIGNED(T) \
    T(1, 0) T(1, 1) T(2, 0) T(1, 2) T(2, 1) T(3, 0) T(1, 3) T(2, 2) T(3, 1) T(4, 0) T(1, 4) T(2, 3) T(3, 2) \
    T(4, 1) T(5, 0) T(1, 5) T(2, 4) T(3, 3) T(4, 2) T(5, 1) T(1, 6) T(2, 5) T(3, 4) T(4, 3) T(5, 2)
#define OQ_MINI_UNSIGNED(T) \
    T(1, 1) T(2, 0) T(1, 2) T(2, 1) T(3, 0) T(1, 3) T(2, 2) T(3, 1) T(4, 0) T(1, 4) T(2, 3) T(3, 2) T(4, 1) \
    T(5, 0) T(1, 5) T(2, 4) T(3, 3) T(4, 2) T(5, 1) T(1, 6) T(2, 5) T(3, 4) T(4, 3) T(5, 2) T(1, 7) T(2, 6) \
    T(3, 5) T(4, 4) T(5, 3)
#define OQ_MINI_GROUPS(X, name) X(name##_g16) X(name##_g32) X(name##_g64) X(name##_g128) X(name##_g256) X(name##_channel)
#define OQ_MINI_DECLARE_FN(E, M)  OQ_MINI_GROUPS(OQ_INT_FORMAT_DECLARE, e##E##m##M##fn)
#define OQ_MINI_DECLARE_FNU(E, M) OQ_MINI_GROUPS(OQ_INT_FORMAT_DECLARE, e##E##m##M##fnu)
OQ_MINI_SIGNED(OQ_MINI_DECLARE_FN)
OQ_MINI_UNSIGNED(OQ_MINI_DECLARE_FNU)
/* group 0: one scale per row. NULL: there is none of these. */
const oq_format *oq_format_mini(int exponent, int mantissa, bool sign, int group);

/* GGUF's blocks: plane DATA alone, W flattened, the last block filled up with zeros. Layouts: docs/numerics.md. */
extern const oq_format oq_format_q4_0, oq_format_q4_1, oq_format_q5_0, oq_format_q5_1, oq_format_q8_0;
extern const oq_format oq_format_q2_k, oq_format_q3_k, oq_format_q4_k, oq_format_q5_k, oq_format_q6_k, oq_format_q8_k;
extern const oq_format oq_format_iq4_nl, oq_format_iq4_xs, oq_format_tq1_0, oq_format_tq2_0;
extern const oq_format oq_format_mxfp4_gguf, oq_format_nvfp4_gguf, oq_format_q1_0, oq_format_q2_0;
extern const oq_format oq_format_iq2_xxs, oq_format_iq2_xs, oq_format_iq2_s, oq_format_iq3_xxs, oq_format_iq3_s;
extern const oq_format oq_format_iq1_s, oq_format_iq1_m;

extern const oq_format *const oq_format_list[]; /* NULL-terminated */
const oq_format *oq_format_find(const char *name);
const oq_format *oq_format_plain(const oq_dtype *dtype); /* f32, bf16, f16; NULL for others */

/* Rows [first, first + n) of a weight of `whole` rows as a weight of its own: do blocks end at both edges? */
bool oq_format_rows_separable(const oq_format *f, int64_t first, int64_t n, int64_t whole, int64_t k);
/* One plane of those rows out of the whole one's, where they are separable. */
void oq_format_take_rows(const oq_format *f, oq_plane plane, void *dst, const void *src, int64_t first, int64_t n,
                         int64_t whole, int64_t k);

/* How activations are scaled before the product. */
typedef enum oq_act_scale {
    OQ_ACT_NONE,           /* activations stay as they are */
    OQ_ACT_STATIC_TENSOR,  /* plane INPUT_SCALE */
    OQ_ACT_DYNAMIC_TOKEN,  /* one scale per row of x */
    OQ_ACT_DYNAMIC_GROUP,  /* one scale per row and 128 columns */
    OQ_ACT_DYNAMIC_MX,     /* a power of two per row and 32 columns, chosen as mxfp8 and mxfp4 choose it */
    OQ_ACT_DYNAMIC_MX_Q725, /* as mxfp4_q725 does */
    OQ_ACT_DYNAMIC_MX_FLOOR, /* floor(log2 amax) less the type's largest exponent: OCP's rule, for e4m3 too */
    OQ_ACT_DYNAMIC_MX_CEIL,  /* nothing saturates, in e2m1 neither */
    OQ_ACT_DYNAMIC_MX_EVEN,  /* OCP's rule for an amax that is rounded to the type's mantissa first */
    OQ_ACT_DYNAMIC_MX_DUAL, /* a power of two per 32 columns times an f32 per 512, as mxfp4_dual chooses them */
    OQ_ACT_STATIC_NVFP4,    /* an e4m3 scale per row and 16 columns, times plane INPUT_SCALE */
    OQ_ACT_DYNAMIC_NVFP4,   /* the same times amax / 2688 of all of x */
    OQ_ACT_DYNAMIC_INT4,    /* codes -7..7 (of type i8) under a scale per row and 64 columns */
    OQ_ACT_DYNAMIC_UINT4,   /* codes 0..15 likewise: of x that a shift made positive */
    OQ_ACT_DYNAMIC_TOKEN4,  /* codes -7..7 (of type i8) under one scale per row */
    OQ_ACT_DYNAMIC_ZERO,    /* codes -128..127 (of type i8) under one scale and about one whole zero point per row */
    OQ_ACT_DYNAMIC_LEAST,   /* the same above a row's least number, which is code -128 */
    OQ_N_ACT_SCALES
} oq_act_scale;
#define OQ_ACT_GROUP 128
#define OQ_ACT_MX_GROUP 32
#define OQ_ACT_NVFP4_GROUP 16
#define OQ_ACT_INT4_GROUP 64
#define OQ_ACT_DUAL_GROUP 512
/* "none", "static_tensor", "dynamic_token", "dynamic_group128", "dynamic_mx32" (and _q725, _floor, _ceil, _even, _dual),
 * "static_nvfp4", "dynamic_nvfp4", "dynamic_int4_64", "dynamic_uint4_64", "dynamic_token_int4", "dynamic_token_zero",
 * "dynamic_token_least" */
const char *oq_act_scale_name(oq_act_scale s);
int64_t oq_act_run(oq_act_scale s, int64_t k); /* columns under one scale: k, 128, 64, 32 or 16 */
bool    oq_act_is_static(oq_act_scale s);      /* takes plane INPUT_SCALE */
bool    oq_act_is_mx(oq_act_scale s);          /* powers of two per 32 columns */
bool    oq_act_has_zero(oq_act_scale s);       /* codes and scales alone do not say a row: oq_act_zero_row */

/* How one layer is stored and multiplied. */
typedef struct oq_scheme {
    const oq_format *weight;
    const oq_dtype  *act; /* NULL: x is not quantized; else e4m3, i8, or (mx and nvfp4 scales alone) e2m1: float4.h */
    oq_act_scale     act_scale;
    int32_t          act_min_rows; /* x of fewer rows is not quantized; 0: any is */
    /* What the layer does around its product; all 0: nothing, the scheme is bare. x is shifted and multiplied, then put in
     * order, then rotated, and then quantized. */
    float   shift;   /* x[i] + shift; the bias was made for it */
    bool    smooth;  /* x[i] * SMOOTH[i] */
    bool    order;   /* x'[i] = x[ORDER[i]] */
    int32_t rotate;  /* each run of so many columns (a power of four that divides k) by oq_rotate; 0: none */
    int32_t rank;    /* y += (x . DOWN^T) . UP^T with x as it came; 0: no branch */
    float   outlier; /* columns that hold an |x| >= this are left as they are, `act` (i8) takes the others; 0: takes all */
} oq_scheme;

/* Bare, each row of x is treated by itself, and its codes times scales are what it becomes. */
bool oq_scheme_is_bare(const oq_scheme *s);
/* Bytes of one plane of a layer [n, k], those of its weight's format included; 0: it has none. SIZE_MAX: does not fit. */
size_t oq_scheme_plane_bytes(const oq_scheme *s, oq_plane plane, int64_t n, int64_t k);
/* x[group] times the orthonormal symmetric matrix that is the Kronecker power of 1/2 [1 1 1 -1; 1 1 -1 1; 1 -1 1 1;
 * -1 1 1 1] (a regular Hadamard matrix): its own inverse. `group` is a power of four. */
void oq_rotate(float *x, int64_t group);

/* " from 32 rows", what follows the name of a scale; "" for 0. Cut at n, terminated. */
void oq_act_describe_from(char *out, size_t n, int32_t min_rows);
/* "w: fp8_e4m3_channel a: fp8_e4m3 dynamic_token"; "w: bf16 a: none" where x is not quantized. Cut at n, terminated. */
void oq_scheme_describe(const oq_scheme *s, char *out, size_t n);
bool oq_scheme_equal(const oq_scheme *a, const oq_scheme *b);

/* Quantizes one row x[k] (of OQ_ACT_DYNAMIC_NVFP4 under the given scale; outliers are the caller's business) of activations as the scheme says: codes (element type `act`, one byte each) and scales
 * (one per oq_act_run columns). static_scale is that of static kinds. Reference arithmetic:
 *   e4m3 token: s = max(amax/448, 1/(448*512)), code = e4m3(clamp(x / s))
 *   e4m3 group: amax = max(amax, 1e-12) (finite), s = amax/448, code = e4m3(clamp(x / s))
 *   e4m3 static: code = e4m3(clamp(x / s))
 *   i8 token:   s = amax/127, code = rne(x * (127/amax)) clamped to [-127,127]; amax 0: codes 0, s 0
 *   i8 group:   the same per group; i8 static: code = rne(x / s) clamped to [-128,127]
 *   int4:       s = amax/7, code = rne(x * (7/amax)); amax 0: codes 0, s 0
 *   uint4:      s = amax/15, code = rne(x * (15/amax)), 0 for what is below
 *   mx:         s = 2^X, X by the rule of float4.h within [-127, 127]; code = e4m3 or e2m1(x / s)
 *   nvfp4:      s = e4m3(amax / (6 * static) within [2^-9, 448]) * static; code = e2m1(x / s)
 * (an amax so small that 127/amax overflows counts as 0)
 * A row with a non-finite value gets s = NaN, so that the product is NaN and the run stops, never a wrong picture. */
void oq_act_quantize_row(const oq_scheme *scheme, float static_scale, const float *x, int64_t k, void *codes,
                         float *scales);
/* A row of kinds with a zero point becomes what its codes of eight bits say:
 *   zero:  least and most are those of x and of 0; s = max((most - least) / 255, 2^-23), zero = -128 - rne(least / s) within the codes,
 *          code = rne(x * (1 / s)) + zero within -128..127; (code - zero) * s
 *   least: s = (most - least) / 255, zero = least + 128 s, code = rne((x - zero) / s) within -128..127; code * s + zero. A row of one
 *          number stays as it is.
 * A number that is not finite makes all of the row NaN. */
void oq_act_zero_row(oq_act_scale how, float *x, int64_t k);

#endif
