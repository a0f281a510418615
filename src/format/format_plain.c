/* format_plain.c -- weights stored as numbers without scales: f32, bf16, f16. */
#include "format/format_scaled.h"

#include "base/size.h"

static size_t plain_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    size_t bytes = 0;
    if (plane != OQ_PLANE_DATA) return 0;
    if (!oq_size_mul((size_t)n, (size_t)k, &bytes) || !oq_size_mul(bytes, f->element->bytes, &bytes))
        return SIZE_MAX;
    return bytes;
}

static void plain_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row,
                              int64_t first, int64_t count, int64_t n, int64_t k)
{
    (void)n;
    const size_t at = (size_t)(row * k + first) * f->element->bytes;
    f->element->to_f32(dst, (const char *)src->plane[OQ_PLANE_DATA] + at, (size_t)count);
}

static void plain_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    f->element->from_f32(dst->plane[OQ_PLANE_DATA], src, (size_t)(n * k));
}

const oq_format oq_format_f32 = {.name = "f32",
                                 .kernel_name = "f32",
                                 .element = &oq_dtype_f32,
                                 .planes = 1u << OQ_PLANE_DATA,
                                 .plane_bytes = plain_plane_bytes,
                                 .decode_row = oq_span_decode_row,
                                 .decode_span = plain_decode_span,
                                 .encode = plain_encode};

const oq_format oq_format_bf16 = {.name = "bf16",
                                  .kernel_name = "bf16",
                                  .element = &oq_dtype_bf16,
                                  .planes = 1u << OQ_PLANE_DATA,
                                  .plane_bytes = plain_plane_bytes,
                                  .decode_row = oq_span_decode_row,
                                  .decode_span = plain_decode_span,
                                  .encode = plain_encode};

const oq_format oq_format_f16 = {.name = "f16",
                                 .kernel_name = "f16",
                                 .element = &oq_dtype_f16,
                                 .planes = 1u << OQ_PLANE_DATA,
                                 .plane_bytes = plain_plane_bytes,
                                 .decode_row = oq_span_decode_row,
                                 .decode_span = plain_decode_span,
                                 .encode = plain_encode};
