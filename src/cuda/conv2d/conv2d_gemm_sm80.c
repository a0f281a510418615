/* conv2d_gemm_sm80.c -- a convolution as gathered rows times weights, in pieces of pixels that stay in the
 * L2. 1x1 convolutions need no gathering. Weights are kept in f32 and rounded to the activations' type in
 * scratch; channels are padded to eights with zeros where the product wants it (three colours, say). */
#include "base/size.h"
#include "cuda/conv2d/cuda_conv2d.h"
#include "cuda/lt.h"

#include <string.h>

#define PIECE_BYTES ((int64_t)32 << 20) /* of gathered rows */

typedef struct geometry {
    int64_t k, ld; /* columns of a gathered row, and with padding */
    int64_t n, n_pad;
    int64_t oh, ow, frames, rows, piece;                 /* frames: of the output */
    bool direct;                                         /* x is its own gathered matrix */
    size_t weight_at, bias_at, gather_at, out_at, bytes; /* in scratch */
} geometry;

/* Sizes are for F32, which BF16 fits into. */
static geometry geometry_of(const oq_conv2d_spec *s, int64_t batch, int64_t frames, int64_t h, int64_t w)
{
    geometry g = {.k = s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw, .n = s->c_out};
    g.ld = oq_ceil_div(g.k, 8) * 8;
    g.n_pad = oq_ceil_div(g.n, 8) * 8;
    g.oh = oq_conv2d_out_h(s, h);
    g.ow = oq_conv2d_out_w(s, w);
    g.frames = frames ? oq_conv2d_out_frames(s, frames) : 1;
    g.rows = batch * g.frames * g.oh * g.ow;
    g.direct = s->kh == 1 && s->kw == 1 && s->stride == 1 &&
               (s->kt == 0 || (s->kt == 1 && s->stride_t == 1 && s->pad_front == 0)) && s->pad_top == 0 &&
               s->pad_left == 0 && s->pad_bottom == 0 && s->pad_right == 0 && g.ld == g.k;
    g.piece = oq_max_i64(PIECE_BYTES / (4 * g.ld) / 128 * 128, 128);
    if (s->kt == 0)
        g.piece = oq_min_i64(g.rows, g.piece); /* a video's frames are not known when scratch is measured */
    if (g.direct && g.n_pad == g.n) g.piece = g.rows;
    g.bias_at = oq_align_up((size_t)(g.n_pad * g.ld) * 4, OQ_CUDA_ALIGN);
    g.gather_at = g.bias_at + oq_align_up((size_t)g.n_pad * 4, OQ_CUDA_ALIGN);
    g.out_at = g.gather_at + (g.direct ? 0 : oq_align_up((size_t)(g.piece * g.ld) * 4, OQ_CUDA_ALIGN));
    g.bytes = g.out_at + (g.n_pad == g.n ? 0 : (size_t)(g.piece * g.n_pad) * 4) + OQ_CUDA_ALIGN;
    return g;
}

static bool accepts(const oq_conv2d_spec *spec)
{
    return oq_conv2d_enlarge(spec) == 1 && (spec->kt == 0 || spec->stride_t >= 1) && spec->stride >= 1 &&
           spec->c_in > 0 && spec->c_out > 0;
}

static size_t packed_bytes(const oq_conv2d_spec *s)
{
    return (size_t)(s->c_out * s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw) * sizeof(float);
}

/* [c_out, c_in, kt, kh, kw] -> [c_out, kt, kh, kw, c_in] */
static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    float *to = dst;
    const int64_t taps = (int64_t)oq_conv2d_taps_t(s) * s->kh * s->kw;
    for (int64_t o = 0; o < s->c_out; o++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t c = 0; c < s->c_in; c++) *to++ = weight[(o * s->c_in + c) * taps + t];
}

static size_t scratch_bytes(const oq_conv2d_spec *spec, int64_t batch, int64_t h, int64_t w)
{
    return geometry_of(spec, batch, 0, h, w).bytes;
}

/* Output pixels [first, first + rows). */
static bool run_piece(oq_device *d, const oq_conv2d_args *a, const geometry *g, char *scratch, int64_t first,
                      int64_t rows)
{
    const bool bf16 = oq_cuda_is_bf16(a->x);
    const oq_conv2d_spec *s = a->spec;
    oq_cu_im2col im = {.x = oq_cuda_view(a->x),
                       .before = oq_cuda_view(a->before),
                       .frames = s->kt ? a->frames : 1,
                       .out_frames = g->frames,
                       .n_before = s->kt ? a->n_before : 0,
                       .kt = oq_conv2d_taps_t(s),
                       .stride_t = s->kt ? s->stride_t : 1,
                       .pad_front = s->kt ? s->pad_front : 0,
                       .h = a->h,
                       .w = a->w,
                       .oh = g->oh,
                       .ow = g->ow,
                       .kh = a->spec->kh,
                       .kw = a->spec->kw,
                       .stride = a->spec->stride,
                       .pad_top = a->spec->pad_top,
                       .pad_left = a->spec->pad_left,
                       .first = first,
                       .rows = rows,
                       .ld = g->ld};
    const oq_tensor x = oq_tensor_rows(a->x, first, rows), y = oq_tensor_rows(a->y, first, rows);
    if (!g->direct) oq_cu_im2col_run(d->stream, scratch + g->gather_at, &im);
    const bool padded = g->n_pad != g->n;
    const oq_lt_call call = {.kind = bf16 ? OQ_LT_BF16 : OQ_LT_F32,
                             .y_is_f32 = !bf16,
                             .m = rows,
                             .n = g->n_pad,
                             .k = g->ld,
                             .ldx = g->direct ? x.ld : g->ld,
                             .ldw = g->ld,
                             .ldy = padded ? g->n_pad : y.ld,
                             .x = g->direct ? x.data : scratch + g->gather_at,
                             .w = scratch + g->weight_at,
                             .y = padded ? scratch + g->out_at : y.data,
                             .bias = a->bias ? scratch + g->bias_at : NULL};
    if (!oq_lt_matmul(d, &call)) return false;
    const oq_cu_view out = {scratch + g->out_at, rows, g->n, g->n_pad, bf16 ? OQ_CU_BF16 : OQ_CU_F32};
    if (padded) oq_cu_copy(d->stream, oq_cuda_view(y), out);
    return true;
}

static void run(oq_device *d, const oq_conv2d_args *a)
{
    oq_cuda_enter(d);
    const geometry g = geometry_of(a->spec, a->batch, a->spec->kt ? a->frames : 0, a->h, a->w);
    char *scratch = (char *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    const bool bf16 = oq_cuda_is_bf16(a->x);
    oq_cu_pad_weight(d->stream, scratch + g.weight_at, bf16, a->packed, g.n, g.k, g.n_pad, g.ld);
    if (a->bias) oq_cu_pad_weight(d->stream, scratch + g.bias_at, bf16, a->bias, 1, g.n, 1, g.n_pad);
    for (int64_t first = 0; first < g.rows; first += g.piece)
        if (bf16 != oq_cuda_is_bf16(a->y) ||
            !run_piece(d, a, &g, scratch, first, oq_min_i64(g.piece, g.rows - first)))
            oq_cuda_note(d, cudaErrorNotSupported, "conv2d_gemm_sm80");
    oq_cuda_done(d, "conv2d_gemm_sm80");
}

const oq_conv2d_kernel oq_cuda_conv2d_gemm_sm80 = {.name = "conv2d_gemm_sm80",
                                                   .need = 80,
                                                   .accepts = accepts,
                                                   .packed_bytes = packed_bytes,
                                                   .pack = pack,
                                                   .scratch_bytes = scratch_bytes,
                                                   .run = run};
