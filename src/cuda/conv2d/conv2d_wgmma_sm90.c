/* conv2d_wgmma_sm90.c -- bf16 convolutions of stride 1 without gathering (gemm_wgmma.cu): the copy engine fetches shifted
 * boxes of pixels. F32 and odd alignments go to the gathered product. */
#include "base/size.h"
#include "cuda/conv2d/cuda_conv2d.h"

static bool accepts(const oq_conv2d_spec *s)
{
    return s->kt == 0 && oq_conv2d_enlarge(s) == 1 && s->stride == 1 && s->kh * s->kw > 1 &&
           s->c_in % 64 == 0;
}

static size_t weight_bytes(const oq_conv2d_spec *s)
{
    return (size_t)(s->c_out * s->c_in * s->kh * s->kw) * 2;
}

static size_t scratch_bytes(const oq_conv2d_spec *spec, int64_t batch, int64_t h, int64_t w)
{
    const size_t fallback = oq_cuda_conv2d_gemm_sm80.scratch_bytes(spec, batch, h, w);
    const size_t own = weight_bytes(spec) + OQ_CUDA_ALIGN;
    return fallback > own ? fallback : own;
}

static bool run_fast(oq_device *d, const oq_conv2d_args *a)
{
    const oq_conv2d_spec *s = a->spec;
    const bool fits =
        d->capability / 10 == 9 && oq_cuda_is_bf16(a->x) && a->x.ld % 8 == 0 && ((size_t)a->x.data & 15) == 0;
    if (!fits) return false;
    void *weight = (void *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    oq_cu_to_bf16(d->stream, weight, a->packed, s->c_out * s->c_in * s->kh * s->kw);
    const oq_cu_conv c = {.x = oq_cuda_view(a->x),
                          .y = oq_cuda_view(a->y),
                          .weight = weight,
                          .bias = a->bias,
                          .h = a->h,
                          .w = a->w,
                          .oh = a->h + s->pad_top + s->pad_bottom - s->kh + 1,
                          .ow = a->w + s->pad_left + s->pad_right - s->kw + 1,
                          .kh = s->kh,
                          .kw = s->kw,
                          .pad_top = s->pad_top,
                          .pad_left = s->pad_left};
    return oq_cu_conv_wgmma(d->stream, &c);
}

static void run(oq_device *d, const oq_conv2d_args *a)
{
    oq_cuda_enter(d);
    if (run_fast(d, a))
        oq_cuda_done(d, "conv2d_wgmma_sm90");
    else
        oq_cuda_conv2d_gemm_sm80.run(d, a);
}

static size_t packed_bytes(const oq_conv2d_spec *s)
{
    return oq_cuda_conv2d_gemm_sm80.packed_bytes(s);
}

static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    oq_cuda_conv2d_gemm_sm80.pack(dst, weight, s);
}

const oq_conv2d_kernel oq_cuda_conv2d_wgmma_sm90 = {.name = "conv2d_wgmma_sm90",
                                                    .need = 90,
                                                    .accepts = accepts,
                                                    .packed_bytes = packed_bytes,
                                                    .pack = pack,
                                                    .scratch_bytes = scratch_bytes,
                                                    .run = run};
