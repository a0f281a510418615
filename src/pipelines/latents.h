/* latents.h -- host arithmetic that families share: noise of a batch, steps, pictures from decoded values.
 * Sampler state is float32 in host memory: it is small, and torch's order of operations is easy to keep here.
 */
#ifndef OQ_PIPELINES_LATENTS_H
#define OQ_PIPELINES_LATENTS_H

#include "nn/nn.h"

/* n_items * elems values. shared: one generator draws all; otherwise item i has one of its own with seed + i.
 */
void oq_latents_noise(uint64_t seed, bool shared, int64_t n_items, int64_t elems, float *dst);

/* Values of `dtype` (F32 or BF16) from and to float32; the buffers do not overlap. */
void oq_values_round(const oq_dtype *dtype, void *dst, const float *src, int64_t n);
void oq_values_widen(const oq_dtype *dtype, float *dst, const void *src, int64_t n);
bool oq_values_finite(const float *x, int64_t n);

/* pos := pos + scale * (pos - neg), then, if limit > 0, shortened to limit times the length that pos had. */
void oq_latents_guide(float *pos, const float *neg, int64_t n, double scale, double limit);

/* pos := neg + scale * (pos - neg), each row of `width` then brought to the length that pos had; a rounding to `dtype`
 * after each operation, as torch does in that type. */
void oq_latents_guide_true(const oq_dtype *dtype, float *pos, const float *neg, int64_t rows, int64_t width,
                           double scale);
/* pos := neg + scale * (pos - neg), rounded to `dtype` after each operation. */
void oq_latents_guide_plain(const oq_dtype *dtype, float *pos, const float *neg, int64_t n, double scale);
/* x + dt * v, rounded as torch's FlowMatchEuler does with a prediction of `dtype`. */
void oq_latents_euler(const oq_dtype *dtype, float *x, const float *v, int64_t n, float dt);
/* x [n, channels] or [channels, n] (planes): x / (1 / std) + mean per channel, with roundings to `dtype`. */
void oq_latents_rescale(const oq_dtype *dtype, float *x, int64_t n, int64_t channels, bool planes, const float *mean,
                        const float *std);
float oq_value_round(const oq_dtype *dtype, float x);

/* x rounded to `dtype`, divided and shifted with a rounding after each operation, as a model in that type
 * does. */
void oq_latents_unscale(const oq_dtype *dtype, float *x, int64_t n, double scaling, double shift);

/* round(clamp(x / 2 + 1/2) * 255), half to even; x holds values of `dtype` in float32, and so does x / 2 +
 * 1/2. */
void oq_pixels_from_values(const oq_dtype *dtype, uint8_t *dst, const float *x, int64_t n);

/* Host values under `key` for --trace; free without a trace. */
oq_status oq_trace_host(oq_exec *ex, const char *key, const oq_dtype *dtype, const void *data,
                        const int64_t *shape, int n_dims);

#endif
