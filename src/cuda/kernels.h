/* kernels.h -- the door between the host's C and the device's CUDA C++: plain views and launch functions.
 * Launches are asynchronous on `stream` and never fail here; the caller asks cudaGetLastError once per
 * operation. */
#ifndef OQ_CUDA_KERNELS_H
#define OQ_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oq_cu_type { OQ_CU_F32, OQ_CU_BF16, OQ_CU_E4M3, OQ_CU_I8 } oq_cu_type;

/* rows x cols elements, `ld` elements from row to row, in device memory. rows 0: absent. */
typedef struct oq_cu_view {
    void *data;
    int64_t rows, cols, ld;
    oq_cu_type type;
} oq_cu_view;

/* ---- elementwise.cu ------------------------------------------------------------------------------------ */
void oq_cu_unary(cudaStream_t stream, int kind, oq_cu_view y, oq_cu_view x);
void oq_cu_glu(cudaStream_t stream, int kind, oq_cu_view y, oq_cu_view a, oq_cu_view b);
void oq_cu_modulate(cudaStream_t stream, oq_cu_view y, oq_cu_view x, oq_cu_view scale, oq_cu_view shift,
                    float one);
void oq_cu_add_gated(cudaStream_t stream, oq_cu_view y, oq_cu_view x, oq_cu_view gate, oq_cu_view r);
void oq_cu_axpby(cudaStream_t stream, oq_cu_view y, float a, oq_cu_view x, float b);
void oq_cu_copy(cudaStream_t stream, oq_cu_view y, oq_cu_view x);
void oq_cu_embed(cudaStream_t stream, oq_cu_view y, oq_cu_view table, const int32_t *ids);
void oq_cu_upsample2x(cudaStream_t stream, oq_cu_view y, oq_cu_view x, int64_t batch, int64_t h, int64_t w);
void oq_cu_rope(cudaStream_t stream, oq_cu_view x, const float *cos, const float *sin, int64_t n_heads,
                int64_t head_dim, bool half);
typedef struct oq_cu_permutation {
    int64_t dim[6], ys[6], xs[6];
} oq_cu_permutation;
void oq_cu_permute(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_permutation *p);
/* flag[0] becomes 0 if an element is not finite (the caller set it to 1). */
void oq_cu_all_finite(cudaStream_t stream, oq_cu_view x, int *flag);

/* ---- norm.cu ------------------------------------------------------------------------------------------- */
typedef struct oq_cu_norm {
    oq_cu_view x, y;
    const float *weight, *bias;
    float eps;
    int64_t group; /* columns normalised together */
    bool round_before_weight;
    bool mean; /* layer norm: subtract the mean */
} oq_cu_norm;
void oq_cu_row_norm(cudaStream_t stream, const oq_cu_norm *a);
/* Bytes of `work` that group norm needs. */
size_t oq_cu_group_norm_work(int64_t rows, int64_t cols, int64_t batch, int64_t n_groups);
typedef struct oq_cu_group_norm_args {
    oq_cu_view y, x;
    const float *weight, *bias;
    float eps;
    int64_t n_groups, batch;
    bool silu;
    const double *pieces; /* [n_pieces, n_groups, 3] of oq_cu_group_moments: x is a piece of them; NULL: the whole */
    int64_t n_pieces;
} oq_cu_group_norm_args;
void oq_cu_group_norm(cudaStream_t stream, const oq_cu_group_norm_args *g, void *work);
/* [n_groups, 3]: values, mean, sum of squares about it. */
void oq_cu_group_moments(cudaStream_t stream, oq_cu_view x, int64_t n_groups, double *out, void *work);

/* ---- quantize.cu --------------------------------------------------------------------------------------- */
/* A vector that becomes bf16 beside other work; n 0: none. */
typedef struct oq_cu_narrow {
    const float *from;
    void *to;
    int64_t n;
} oq_cu_narrow;
typedef enum oq_cu_act_scale { OQ_CU_ACT_STATIC, OQ_CU_ACT_TOKEN, OQ_CU_ACT_GROUP } oq_cu_act_scale;
/* x -> codes [m,k] (contiguous) and scales: [m] for static and token (static repeats its scale), [k/128
 * rounded up][m] (outer dimension contiguous) for groups of 128. */
void oq_cu_quantize(cudaStream_t stream, oq_cu_type code, oq_cu_act_scale kind, const float *static_scale,
                    void *codes, float *scales, oq_cu_view x, oq_cu_narrow beside);
/* Columns [from, k) of x made on the way: act(a) or (b.rows) act(a) * b, rounded to x's type as oq_cu_unary and oq_cu_glu
 * would. Static and token scales alone; false: not for this case, nothing was launched. */
typedef struct oq_cu_pre {
    int unary;
    oq_cu_view a, b;
    int64_t from;
} oq_cu_pre;
bool oq_cu_quantize_pre(cudaStream_t stream, oq_cu_type code, oq_cu_act_scale kind, const float *static_scale,
                        void *codes, float *scales, oq_cu_view x, const oq_cu_pre *pre, oq_cu_narrow beside);

/* ---- rows.cu: what happens between two products in one pass; bits as of the operations one by one ------- */
typedef struct oq_cu_step_norm {
    int kind; /* oq_row_norm_kind */
    const float *weight, *bias;
    float eps;
    bool round_before_weight;
} oq_cu_step_norm;
typedef struct oq_cu_rows { /* oq_rows_args */
    oq_cu_view x, h, r, gate, scale, shift;
    oq_cu_step_norm r_norm, norm;
    float one;
    /* codes not NULL: h is not stored, its codes [rows, cols] and scales [rows] are; as oq_cu_quantize would make them */
    void *codes;
    float *scales;
    const float *given; /* the static scale */
    oq_cu_type code;
    oq_cu_act_scale kind; /* static or token */
    oq_cu_narrow beside;
} oq_cu_rows;
bool oq_cu_rows_fits(const oq_cu_rows *a);
void oq_cu_rows_run(cudaStream_t stream, const oq_cu_rows *a);
/* The same for what fits and is bf16 throughout (rows_bf16.cu); false: it is not. */
bool oq_cu_rows_bf16(cudaStream_t stream, const oq_cu_rows *a);
/* q and k in place: norm of each head (weights NULL: none), then rope. False: not for this case, nothing was launched. */
typedef struct oq_cu_qk {
    oq_cu_view q, k;
    const float *q_weight, *k_weight, *cos, *sin;
    float eps;
    bool round_before_weight, half;
    int64_t head_dim;
} oq_cu_qk;
bool oq_cu_qk_norm_rope(cudaStream_t stream, const oq_cu_qk *a);

/* ---- decode.cu ----------------------------------------------------------------------------------------- */
void oq_cu_to_bf16(cudaStream_t stream, void *dst, const float *src, int64_t n);
/* Weight codes [n,k] with one scale per block_n x block_k (0: whole) -> bf16, rounded once. scales NULL: 1.
 */
typedef struct oq_cu_codes {
    const void *codes;
    oq_cu_type type;
    const float *scales;
    int64_t block_n, block_k, scale_ld;
    int64_t n, k;
} oq_cu_codes;
void oq_cu_decode(cudaStream_t stream, void *dst, const oq_cu_codes *w);
/* y = acc * sx[row] * sw[col] + bias[col]; acc is i32 or (with `floating`) f32, [m,n] contiguous. */
void oq_cu_scale_rows(cudaStream_t stream, oq_cu_view y, const void *acc, bool floating, const float *sx,
                      const float *sw, const float *bias);

/* ---- group_decode.cu, group_small.cu, group_row.cu: weights that stay compressed ------------------------------------- */
typedef enum oq_cu_code { OQ_CU_E2M1, OQ_CU_NF4, OQ_CU_FP4, OQ_CU_INT, OQ_CU_CODE_E4M3, OQ_CU_N_CODES } oq_cu_code;
typedef enum oq_cu_scale {
    OQ_CU_SCALE_F32,
    OQ_CU_SCALE_E8M0,  /* one byte, 2^(byte - 127) */
    OQ_CU_SCALE_E4M3,  /* one byte, times `global` */
    OQ_CU_SCALE_E4M3_OVER, /* one byte, divided by `global` */
    OQ_CU_SCALE_NESTED /* one byte; map[byte] * absmax[group of the whole matrix / 256] + offset, all in `global` */
} oq_cu_scale;
/* W[n,k] in groups of `group` columns (16, 32, 64 or 128), laid out as products read it: by tiles of 16 rows, in a tile by
 * blocks of 128 columns, in a block by rows; rows and columns are filled up with zeros. The part of one row in one block
 * is 32 units of four codes, transposed: unit 8 q + j holds columns 16 j + 4 q .. + 3, so that a thread that multiplies
 * columns 4 q of every sixteen reads its units in one piece, and a warp 16 rows in one. Four-bit codes: two a byte, the
 * first in the low half. Scales and zeros of a row's groups in a block lie in the same order. */
typedef struct oq_cu_group {
    const uint8_t *codes;
    oq_cu_code code;
    int bits; /* 4 or 8 */
    oq_cu_scale scale_kind;
    const void *scales;
    const uint8_t *zeros; /* like scales; NULL: `zero` everywhere. Integers: value = (code - zero) * scale */
    int zero;
    const float *global;
    int global_step; /* 1: one global scale for each row */
    int group;
    int64_t groups; /* of a row, as the format counts them */
    int64_t n, k, blocks;
} oq_cu_group;
/* Rows [first, first + dst.rows) -> dst [rows, k] in bf16 (rounded once) or f32. */
void oq_cu_group_decode(cudaStream_t stream, oq_cu_view dst, const oq_cu_group *w, int64_t first);
/* y = x . W^T + bias for few rows of bf16, k a multiple of 128; false: not for this case, nothing was launched. */
bool oq_cu_group_small_fits(const oq_cu_group *w, oq_cu_view x, oq_cu_view y);
bool oq_cu_group_small(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_group *w, const float *bias);
/* The same for up to eight rows and four-bit integers alone (group_row.cu). `early`: the device can start a kernel while the
 * one before ends (Hopper). */
bool oq_cu_group_row(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_group *w, const float *bias, bool early);

/* The same for up to hundreds of rows, on Hopper alone; `work` holds oq_cu_group_wgmma_work bytes. */
size_t oq_cu_group_wgmma_work(int64_t m, int64_t k);
bool oq_cu_group_wgmma(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_group *w, const float *bias,
                       void *work);

/* ---- dummy.cu: weights that need no file ---------------------------------------------------------------- */
typedef struct oq_cu_dummy { /* element i: offset + scale * u(seed, i) */
    uint64_t seed;
    float scale, offset;
} oq_cu_dummy;
void oq_cu_dummy_plain(cudaStream_t stream, void *dst, oq_cu_type type, const oq_cu_dummy *d, int64_t n); /* bf16 or f32 */
void oq_cu_dummy_amax(cudaStream_t stream, float *amax, const oq_cu_dummy *d, int64_t rows, int64_t k); /* [rows] */
void oq_cu_dummy_one_amax(cudaStream_t stream, float *amax, int64_t rows); /* all become the largest */
/* e4m3 or i8 codes [rows, k]; scales come as the amax that they belong to. */
void oq_cu_dummy_codes(cudaStream_t stream, void *codes, oq_cu_type type, float *scales, const oq_cu_dummy *d, int64_t rows,
                       int64_t k);

/* ---- around.cu: what a layer does to its activations ----------------------------------------------------- */
#define OQ_CU_AROUND_SHARED ((size_t)220 << 10) /* bytes of a row in f32, at most: a block's memory on Hopper */
typedef struct oq_cu_around {
    float shift;          /* added first */
    const float *smooth;  /* [k] or NULL */
    const int32_t *order; /* [k] or NULL */
    int rotate;           /* columns turned together; 0: none */
} oq_cu_around;
/* y = x smoothed (rounded to x's type), in order, rotated; not in place. False: a row is too long, nothing was launched. */
bool oq_cu_around_prepare(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_around *a);
/* *global = amax of x / 2688; 1 where x is all zeros. */
void oq_cu_around_global(cudaStream_t stream, float *global, oq_cu_view x);
/* outlier[c] = 1 where column c holds an |x| >= limit; the others become what codes of eight bits under their row's largest
 * number stand for. */
void oq_cu_around_outliers(cudaStream_t stream, oq_cu_view x, float limit, uint8_t *outlier);

/* ---- gguf.cu: GGUF's blocks as they lie in the file ------------------------------------------------------ */
typedef enum oq_cu_gguf_type {
    OQ_CU_NO_GGUF, OQ_CU_Q4_0, OQ_CU_Q4_1, OQ_CU_Q5_0, OQ_CU_Q5_1, OQ_CU_Q8_0, OQ_CU_IQ4_NL,
    OQ_CU_Q2_K, OQ_CU_Q3_K, OQ_CU_Q4_K, OQ_CU_Q5_K, OQ_CU_Q6_K, OQ_CU_IQ4_XS
} oq_cu_gguf_type;
typedef struct oq_cu_gguf { /* W[n,k], rows of whole blocks */
    const uint8_t *blocks;
    oq_cu_gguf_type type;
    int64_t n, k;
} oq_cu_gguf;
/* Rows [first, first + dst.rows) -> dst [rows, k] in bf16 (rounded once) or f32; rows of dst begin at multiples of 16 bytes. */
void oq_cu_gguf_decode(cudaStream_t stream, oq_cu_view dst, const oq_cu_gguf *w, int64_t first);
/* y = x . W^T + bias for few rows; false: not for this case, nothing was launched. */
bool oq_cu_gguf_small(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_gguf *w, const float *bias);

/* ---- requantize.cu ------------------------------------------------------------------------------------- */
/* How activations are rounded in blocks: 32 columns under a power of two, 2^X the least with amax / 2^X <= limit (or below
 * it), 16 under an e4m3 scale times `given` (NVFP4, in device memory), or 64 to integers up to `limit` (int4). */
typedef struct oq_cu_blocks {
    bool nvfp4, e4m3; /* codes: e4m3, else e2m1 */
    bool dual;        /* numbers of 512 columns are divided by a sixth of the largest first */
    bool int4;
    float limit;
    bool below;
    bool positive; /* int4: what is below 0 becomes 0 */
    const float *given;
} oq_cu_blocks;
/* y = x rounded as the block format would keep it: the arithmetic of oq_act_quantize_row, codes times scales. */
void oq_cu_requantize(cudaStream_t stream, oq_cu_view y, oq_cu_view x, const oq_cu_blocks *how);
/* y = codes times scales of a row (x_group 0) or of 128 columns, as oq_cu_quantize wrote them. */
void oq_cu_dequantize(cudaStream_t stream, oq_cu_view y, oq_cu_view codes, const float *scales, int64_t x_group);

/* ---- gemm_simt.cu: every format and type, in f32; the device's reference ------------------------------- */
typedef struct oq_cu_gemm {
    oq_cu_view x, y; /* [m,k], [m,n]; x of any type */
    const void *w;   /* [n,k] */
    oq_cu_type w_type;
    const float *w_scale;         /* NULL: 1 */
    int64_t w_block_n, w_block_k; /* 0: the whole dimension */
    int64_t w_ld;                 /* elements from row to row; 0: k */
    int64_t w_scale_ld;           /* scales from one row of blocks to the next; 0: no padding */
    const float *x_scale;         /* NULL: 1; else as oq_cu_quantize writes it */
    int64_t x_group;              /* 0: one per row; 128: per group */
    const float *bias;
} oq_cu_gemm;
void oq_cu_gemm_simt(cudaStream_t stream, const oq_cu_gemm *a);

/* ---- gemm_wgmma.cu, Hopper alone; false: nothing was launched ------------------------------------------ */
/* x and w i8 or e4m3 with a scale per row, or e4m3 with scales of 128 columns (x_group) and of 128 x 128; k and the rows'
 * distance multiples of 16. */
bool oq_cu_gemm_wgmma(cudaStream_t stream, const oq_cu_gemm *a);
typedef struct oq_cu_conv { /* stride 1 */
    oq_cu_view x, y;        /* bf16 [B*h*w, c_in], c_in a multiple of 64; [B*oh*ow, c_out] */
    const void *weight;     /* bf16 [c_out, kh, kw, c_in] */
    const float *bias;
    int64_t h, w, oh, ow;
    int kh, kw, pad_top, pad_left;
} oq_cu_conv;
bool oq_cu_conv_wgmma(cudaStream_t stream, const oq_cu_conv *a);

/* ---- attention_softmax.cu, attention_flash.cu ---------------------------------------------------------- */
typedef struct oq_cu_attention {
    oq_cu_view q, k, v, o;
    int64_t n_heads, n_kv_heads, head_dim;
    bool causal;
    float scale;
    const uint8_t *key_mask;
    const float *bias;
    int64_t bias_head, bias_row;
    const uint8_t *block_map; /* as oq_attention_args; attention_wgmma.cu and attention_fp8.cu alone */
} oq_cu_attention;
/* Rows [first, first + rows) of one head: scores f32 [rows, n_kv] -> probabilities of `type` in place of `p`.
 */
void oq_cu_attention_softmax(cudaStream_t stream, const oq_cu_attention *a, int64_t head, int64_t first,
                             int64_t rows, const float *scores, oq_cu_view p);
bool oq_cu_attention_flash_fits(int64_t head_dim);
void oq_cu_attention_flash(cudaStream_t stream, const oq_cu_attention *a);
/* What a device has for attention that is shared out evenly: attention_work.cuh. */
typedef struct oq_cu_attention_room {
    int n_sm;
    float *parts;
    size_t parts_bytes;
    int *tickets; /* zeros between launches */
    int n_tickets;
} oq_cu_attention_room;
/* attention_wgmma.cu, Hopper alone; false: not for this case, nothing was launched. */
bool oq_cu_attention_wgmma_fits(int64_t head_dim);
bool oq_cu_attention_wgmma(cudaStream_t stream, const oq_cu_attention *a, const oq_cu_attention_room *room);

/* ---- attention_operand.cu: operands as format/attention_operand.h defines them ------------------------- */
typedef struct oq_cu_operand {
    oq_cu_view x, y;     /* [rows, heads * head_dim]; y bf16 */
    int precision, side; /* oq_attention_precision (never plain), oq_attention_side */
    int64_t head_dim;
    const uint8_t *seen; /* [rows] or NULL */
    uint32_t *work;      /* oq_cu_operand_work bytes */
} oq_cu_operand;
size_t oq_cu_operand_work(int64_t rows, int64_t cols);
void oq_cu_operand_round(cudaStream_t stream, const oq_cu_operand *a);

/* Codes for attention_fp8.cu, heads of 128: Q and K [heads][rows up to 128 or 256][128], V [heads][128][rows up to 256]
 * with the keys of every sixteen in the order of its probabilities; a scale per block. Rows beyond are zero codes. */
typedef struct oq_cu_fp8_operands {
    uint8_t *q, *k, *v;
    float *q_scale, *k_scale, *v_scale; /* [heads, blocks] */
} oq_cu_fp8_operands;
size_t oq_cu_fp8_operands_bytes(int64_t n_q, int64_t n_kv, int64_t n_heads, int64_t n_kv_heads);
oq_cu_fp8_operands oq_cu_fp8_operands_at(void *memory, int64_t n_q, int64_t n_kv, int64_t n_heads, int64_t n_kv_heads);
void oq_cu_fp8_quantize(cudaStream_t stream, const oq_cu_fp8_operands *to, const oq_cu_attention *a);
/* attention_fp8.cu, Hopper alone: o from the codes. False: not for this case, nothing was launched. */
bool oq_cu_attention_fp8_fits(const oq_cu_attention *a);
bool oq_cu_attention_fp8(cudaStream_t stream, const oq_cu_attention *a, const oq_cu_fp8_operands *codes,
                         const oq_cu_attention_room *room);

/* ---- attention_blocks.cu: which blocks of 128 keys a block of 128 queries sees ------------------------- */
size_t oq_cu_attention_blocks_work(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim);
/* map [heads, blocks, blocks]; `kept` blocks of a row are 1. */
void oq_cu_attention_blocks(cudaStream_t stream, uint8_t *map, const oq_cu_attention *a, int64_t kept, void *work);

/* ---- conv.cu ------------------------------------------------------------------------------------------- */
typedef struct oq_cu_im2col {
    oq_cu_view x;      /* [B*frames*H*W, c_in] */
    oq_cu_view before; /* [B*n_before*H*W, c_in]: the frames before x's first; further back are zeros */
    int64_t h, w, oh, ow, frames, out_frames, n_before;
    int kt, kh, kw, stride, stride_t, pad_top, pad_left, pad_front;
    int64_t first, rows; /* output pixels of this chunk, counted over batch and frames */
    int64_t ld;          /* columns of one row of dst: kt*kh*kw*c_in, padded with zeros */
} oq_cu_im2col;
void oq_cu_im2col_run(cudaStream_t stream, void *dst, const oq_cu_im2col *a); /* dst has x's type */
/* f32 [rows, k] -> bf16 [rows, ld] with zero columns, rows up to padded_rows zero. */
void oq_cu_pad_weight(cudaStream_t stream, void *dst, bool to_bf16, const float *src, int64_t rows, int64_t k,
                      int64_t padded_rows, int64_t ld);

#ifdef __cplusplus
}
#endif
#endif
