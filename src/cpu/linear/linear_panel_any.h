/* linear_panel_any.h -- panels of f32 from weights that rest in their format's own planes, and rows of x under group
 * scales. Included by the engines of each instruction set, as linear_panel_rows.h is. */
#ifndef OQ_CPU_LINEAR_LINEAR_PANEL_ANY_H
#define OQ_CPU_LINEAR_LINEAR_PANEL_ANY_H

#ifdef OQ_SPAN_BF16
#include "cpu/linear/linear_decode_simd.h"
#else
#include "cpu/linear/linear_few_simd.h"
#endif
#include "cpu/linear/linear_panel_rows.h"

/* The e2m1 number nearest to x, as e4m3_nearest finds its own. */
static inline float e2m1_nearest(float x)
{
    const uint32_t bits = oq_f32_bits(x), sign = bits & 0x80000000u, all = bits & 0x7fffffffu;
    const uint32_t magnitude = all < 0x40c00000u ? all : 0x40c00000u; /* 6 */
    const uint32_t power = magnitude & 0x7f800000u;
    const uint32_t shift = (power > 0x3f800000u ? power : 0x3f800000u) + (22u << 23);
    const float rounded = (oq_f32_from_bits(magnitude) + oq_f32_from_bits(shift)) - oq_f32_from_bits(shift);
    return oq_f32_from_bits(oq_f32_bits(rounded) | sign);
}

/* x becomes code * scale, a power of two per group: oq_act_quantize_row without the codes in between. */
static inline void row_mx(const oq_scheme *scheme, float *x, int64_t k)
{
    const bool four = scheme->act == &oq_dtype_f4_e2m1;
    const oq_e8m0_rule rule = oq_act_mx_rule(scheme->act_scale, scheme->act);
    for (int64_t first = 0; first < k; first += OQ_ACT_MX_GROUP) {
        const int64_t n = k - first < OQ_ACT_MX_GROUP ? k - first : OQ_ACT_MX_GROUP;
        float *const at = x + first;
        const uint8_t byte = oq_e8m0_choose(row_amax(at, n), rule);
        const float by = oq_e8m0_to_f32(byte), inverse = byte == 255 ? 0.0f : oq_e8m0_inverse(byte);
        if (byte == 255)
            for (int64_t i = 0; i < n; i++) at[i] = by;
        else if (four)
            for (int64_t i = 0; i < n; i++) at[i] = e2m1_nearest(at[i] * inverse) * by;
        else
            for (int64_t i = 0; i < n; i++) at[i] = e4m3_nearest(at[i] * inverse) * by;
    }
}

#ifndef OQ_SPAN_BF16 /* engines of bf16 make panels of their own */
/* x in f32; where the scheme quantizes it, what its codes and scales say. ROW_CHUNK holds whole groups of every kind. */
static inline void any_quantize(const oq_panel_job *job, float *a)
{
    const oq_scheme *const scheme = &job->args->spec->scheme;
    const int64_t k = job->args->spec->k;
    if (!scheme->act) return;
    if (oq_act_is_mx(scheme->act_scale)) {
        row_mx(scheme, a, k);
        return;
    }
    const int64_t run = oq_act_run(scheme->act_scale, ROW_CHUNK);
    const float *const fixed = job->planes.plane[OQ_PLANE_INPUT_SCALE];
    for (int64_t first = 0; first < k; first += ROW_CHUNK) {
        const int64_t n = k - first < ROW_CHUNK ? k - first : ROW_CHUNK;
        float *const x = a + first, scale[ROW_CHUNK];
        uint8_t codes[ROW_CHUNK];
        oq_act_quantize_row(scheme, fixed ? *fixed : 0.0f, x, n, codes, scale);
        scheme->act->to_f32(x, codes, (size_t)n);
        for (int64_t i = 0; i < n; i++) x[i] *= scale[i / run];
    }
}

static inline void any_prologue(const oq_panel_job *job, int64_t row)
{
    const int64_t k = job->args->spec->k;
    float *const a = (float *)(job->a + (size_t)row * job->lda);
    row_load(a, &job->args->x, job->first + row, k);
    memset(a + k, 0, job->lda - (size_t)k * sizeof *a);
    job->row_scale[row] = 1.0f;
    any_quantize(job, a);
    if (job->few) few_order(few_kind_of(job->args->spec), a, k);
}

/* ---- panels -------------------------------------------------------------------------------------------- */

/* Eight columns of W at a time: decoded along k, then turned. Columns and k that are not there are zero. */
static inline const void *any_decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                                     int64_t count, int64_t nr)
{
    const oq_linear_spec *const spec = job->args->spec;
    const int64_t there = spec->k - first < count ? spec->k - first : count;
    _Alignas(64) float rows[8 * OQ_PANEL_CHUNK];
    float *const dst = buffer;
    for (int64_t c = 0; c < nr; c += 8) {
        for (int64_t j = 0; j < 8; j++) {
            const int64_t row = panel * nr + c + j, have = row < spec->n ? there : 0;
            float *const at = rows + j * OQ_PANEL_CHUNK;
            if (have > 0) decode_columns(spec, &job->planes, at, row, first, have);
            for (int64_t i = have > 0 ? have : 0; i < (count + 7) / 8 * 8; i++) at[i] = 0.0f;
        }
        for (int64_t i = 0; i < count; i += 8) v_transpose8(dst + i * nr + c, nr, rows + i, OQ_PANEL_CHUNK);
    }
    return buffer;
}
#endif

#endif
