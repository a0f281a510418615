/* format_gguf_k_encode.c -- weights to GGUF's blocks of 256, the choices of the producer's reference: per sub-block a
 * scale (and minimum) fitted by weighted least squares over several trial grids, then small integers for these, then
 * the codes again under what the file will say. Sums run in f32 in the order given: the bytes are the reference's. */
#include "format/format_block.h"

#include <math.h>

enum { ELEMS = 256, MAX_SUB = 32 };
static const float nothing = 1e-15f; /* a sub-block whose largest magnitude is below counts as zero */

/* ---- code * scale + min, min <= 0 -------------------------------------------------------------------------- */

typedef struct grid { /* how trials are made */
    int top;          /* largest code */
    float first, step;
    int trials;
    bool absolute; /* errors count by magnitude, not by square */
} grid;

typedef struct ranged_fit {
    float scale, min;
} ranged_fit;

/* Sums over a sub-block, each number by its weight. */
typedef struct moments {
    float l, ll, xl;
} moments;

static moments take_codes(uint8_t *code, const float *x, const float *weight, int n, float by, float min,
                          int top)
{
    moments m = {0};
    for (int i = 0; i < n; i++) {
        const int l = oq_block_clamp(oq_block_nearest(by * (x[i] - min)), 0, top);
        code[i] = (uint8_t)l;
        m.l += weight[i] * (float)l;
        m.ll += weight[i] * (float)l * (float)l;
        m.xl += weight[i] * (float)l * x[i];
    }
    return m;
}

static float error_of(const uint8_t *code, const float *x, const float *weight, int n, ranged_fit f,
                      bool absolute)
{
    float error = 0.0f;
    for (int i = 0; i < n; i++) {
        const float product = f.scale * (float)code[i];
        const float off = product + f.min - x[i];
        error += weight[i] * (absolute ? fabsf(off) : off * off);
    }
    return error;
}

/* The pair that makes the weighted squares least for given codes; a minimum above zero becomes zero. */
static bool solve(const moments *m, float sum_w, float sum_x, ranged_fit *out)
{
    const float determinant = sum_w * m->ll - m->l * m->l;
    if (!(determinant > 0.0f)) return false;
    out->scale = (sum_w * m->xl - sum_x * m->l) / determinant;
    out->min = (m->ll * sum_x - m->l * m->xl) / determinant;
    if (out->min > 0.0f) *out = (ranged_fit){m->xl / m->ll, 0.0f};
    return true;
}

/* Each trial begins from the best minimum so far. `kept` gets the codes of the best trial: they stay where the file's
 * scale rounds to zero. */
static ranged_fit fit_ranged(uint8_t *kept, const float *x, const float *weight, int n, const grid *g)
{
    uint8_t code[MAX_SUB];
    float min = x[0], max = x[0], sum_w = weight[0], sum_x = weight[0] * x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < min) min = x[i];
        if (x[i] > max) max = x[i];
        sum_w += weight[i];
        sum_x += weight[i] * x[i];
    }
    if (min > 0.0f) min = 0.0f;
    if (!(max > min)) return (ranged_fit){0.0f, min};
    const float by = (float)g->top / (max - min);
    ranged_fit best = {1.0f / by, min}, trial;
    take_codes(kept, x, weight, n, by, min, g->top);
    float least = error_of(kept, x, weight, n, best, g->absolute);
    for (int t = 0; t <= g->trials; t++) {
        const float trial_by = (g->first + g->step * (float)t + (float)g->top) / (max - best.min);
        const moments m = take_codes(code, x, weight, n, trial_by, best.min, g->top);
        if (!solve(&m, sum_w, sum_x, &trial)) continue;
        const float error = error_of(code, x, weight, n, trial, g->absolute);
        if (!(error < least)) continue;
        least = error;
        best = trial;
        memcpy(kept, code, (size_t)n);
    }
    return best;
}

/* ---- code * scale, codes from -half to half - 1 -------------------------------------------------------------- */

static float peak_of(const float *x, int n)
{
    float peak = 0.0f, amax = 0.0f;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > amax) amax = fabsf(x[i]), peak = x[i];
    return peak;
}

static int signed_code_of(float x, int half)
{
    return oq_block_clamp(oq_block_nearest(x), -half, half - 1);
}

static int signed_code(float x, float by, int half)
{
    return signed_code_of(by * x, half);
}

/* Weighted by squares. */
static moments signed_moments(const float *x, int n, float by, int half)
{
    moments m = {0};
    for (int i = 0; i < n; i++) {
        const float l = (float)signed_code(x[i], by, half), w = x[i] * x[i];
        m.xl += w * x[i] * l;
        m.ll += w * l * l;
    }
    return m;
}

static float fit_signed(uint8_t *kept, const float *x, int n, int half)
{
    const float peak = peak_of(x, n);
    if (fabsf(peak) < nothing) return 0.0f;
    float by = (float)-half / peak;
    moments m = signed_moments(x, n, by, half);
    float scale = m.ll > 0.0f ? m.xl / m.ll : 0.0f, best = scale * m.xl;
    for (int t = -9; t <= 9; t++) {
        const float trial_by = -((float)half + 0.1f * (float)t) / peak;
        if (t == 0) continue;
        m = signed_moments(x, n, trial_by, half);
        if (!(m.ll > 0.0f && m.xl * m.xl > best * m.ll)) continue;
        scale = m.xl / m.ll;
        best = scale * m.xl;
        by = trial_by;
    }
    for (int i = 0; i < n; i++) kept[i] = (uint8_t)(signed_code(x[i], by, half) + half);
    return scale;
}

/* The same by moving one code at a time to where the fit wants it, five rounds at most: three bits. */
static float fit_three_bits(uint8_t *kept, const float *x, int n)
{
    enum { HALF = 4, ROUNDS = 5 };
    int code[MAX_SUB];
    const float peak = peak_of(x, n), by = (float)-HALF / peak;
    float xl = 0.0f, ll = 0.0f;
    if (fabsf(peak) < nothing) return 0.0f;
    for (int i = 0; i < n; i++) {
        const float w = x[i] * x[i];
        code[i] = signed_code(x[i], by, HALF);
        xl += w * x[i] * (float)code[i];
        ll += w * (float)code[i] * (float)code[i];
    }
    for (int round = 0, moved = 1; round < ROUNDS && moved; round++) {
        moved = 0;
        for (int i = 0; i < n; i++) {
            const float w = x[i] * x[i], old = (float)code[i];
            float rest_xl = xl - w * x[i] * old, rest_ll = ll - w * old * old;
            if (!(rest_xl > 0.0f)) continue;
            const int l = oq_block_clamp(oq_block_nearest(x[i] * rest_ll / rest_xl), -HALF, HALF - 1);
            if (l == code[i]) continue;
            rest_xl += w * x[i] * (float)l;
            rest_ll += w * (float)l * (float)l;
            if (!(rest_ll > 0.0f && rest_xl * rest_xl * ll > xl * xl * rest_ll)) continue;
            code[i] = l;
            xl = rest_xl;
            ll = rest_ll;
            moved++;
        }
    }
    for (int i = 0; i < n; i++) kept[i] = (uint8_t)(code[i] + HALF);
    return ll > 0.0f ? xl / ll : 0.0f;
}

/* ---- sub-blocks -------------------------------------------------------------------------------------------- */

/* Codes under the numbers that the file holds; a step of zero keeps none. */
static void final_codes(uint8_t *code, const float *x, int n, float step, float min, int top)
{
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)oq_block_clamp(oq_block_nearest((x[i] + min) / step), 0, top);
}

static bool is_zero(float x)
{
    return !(x < 0.0f || x > 0.0f);
}

static void put_two_bits(uint8_t *qs, const uint8_t *code)
{
    for (int i = 0; i < ELEMS; i++) {
        uint8_t *const at = qs + i / 128 * 32 + i % 32;
        *at = (uint8_t)(*at | (code[i] & 3) << 2 * (i % 128 / 32));
    }
}

/* Integers 0 .. top for scales and minima of all sub-blocks, and the numbers they are multiples of. */
static float share(uint8_t *code, const float *value, int n, int top)
{
    float max = 0.0f;
    for (int i = 0; i < n; i++) max = value[i] > max ? value[i] : max;
    const float by = max > 0.0f ? (float)top / max : 0.0f;
    for (int i = 0; i < n; i++) code[i] = (uint8_t)oq_block_clamp(oq_block_nearest(by * value[i]), 0, top);
    return max / (float)top;
}

void oq_q2_k_encode(uint8_t *dst, const float *x)
{
    static const grid g = {.top = 3, .first = -0.5f, .step = 0.1f, .trials = 15, .absolute = true};
    float scale[16], min[16], weight[16];
    uint8_t scale_code[16], min_code[16], code[ELEMS] = {0};
    for (int s = 0; s < 16; s++) {
        for (int i = 0; i < 16; i++) weight[i] = fabsf(x[16 * s + i]);
        const ranged_fit f = fit_ranged(code + 16 * s, x + 16 * s, weight, 16, &g);
        scale[s] = f.scale, min[s] = -f.min;
    }
    oq_block_put_f16(dst + 80, share(scale_code, scale, 16, 15));
    oq_block_put_f16(dst + 82, share(min_code, min, 16, 15));
    for (int s = 0; s < 16; s++) {
        dst[s] = (uint8_t)(scale_code[s] | min_code[s] << 4);
        const float step = oq_block_f16(dst + 80) * (float)scale_code[s];
        if (!is_zero(step))
            final_codes(code + 16 * s, x + 16 * s, 16, step, oq_block_f16(dst + 82) * (float)min_code[s], 3);
    }
    put_two_bits(dst + 16, code);
}

void oq_q3_k_encode(uint8_t *dst, const float *x)
{
    float scale[16];
    int8_t scale_code[16];
    uint8_t code[ELEMS] = {0};
    for (int s = 0; s < 16; s++) scale[s] = fit_three_bits(code + 16 * s, x + 16 * s, 16);
    const float peak = peak_of(scale, 16), by = is_zero(peak) ? 0.0f : -32.0f / peak;
    for (int s = 0; s < 16; s++)
        scale_code[s] =
            (int8_t)(is_zero(peak) ? -32 : oq_block_clamp(oq_block_nearest(by * scale[s]), -32, 31));
    oq_q3_scales_write(dst + 96, scale_code);
    oq_block_put_f16(dst + 108, is_zero(peak) ? 0.0f : 1.0f / by);
    for (int s = 0; s < 16; s++) {
        const float step = oq_block_f16(dst + 108) * (float)scale_code[s];
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            if (!is_zero(step)) code[i] = (uint8_t)(signed_code_of(x[i] / step, 4) + 4);
            if (code[i] > 3) dst[i % 32] = (uint8_t)(dst[i % 32] | 1 << i / 32);
        }
    }
    put_two_bits(dst + 32, code);
}

/* What Q4_K and Q5_K share: both scales, the packed integers at dst + 4, the codes. */
static void ranged_subs(uint8_t *dst, const float *x, const grid *g, uint8_t *code)
{
    float scale[8], min[8], weight[32];
    uint8_t scale_code[8], min_code[8];
    for (int s = 0; s < 8; s++) {
        const float *const at = x + 32 * s;
        float squares = 0.0f;
        for (int i = 0; i < 32; i++) squares += at[i] * at[i];
        const float mean = sqrtf(squares / 32.0f);
        for (int i = 0; i < 32; i++) weight[i] = mean + fabsf(at[i]);
        const ranged_fit f = fit_ranged(code + 32 * s, at, weight, 32, g);
        scale[s] = f.scale, min[s] = -f.min;
    }
    oq_block_put_f16(dst, share(scale_code, scale, 8, 63));
    oq_block_put_f16(dst + 2, share(min_code, min, 8, 63));
    oq_k_scales_write(dst + 4, scale_code, min_code);
    for (int s = 0; s < 8; s++) {
        const float step = oq_block_f16(dst) * (float)scale_code[s];
        if (!is_zero(step))
            final_codes(code + 32 * s, x + 32 * s, 32, step, oq_block_f16(dst + 2) * (float)min_code[s],
                        g->top);
    }
}

static void put_nibble_runs(uint8_t *qs, const uint8_t *code)
{
    for (int i = 0; i < ELEMS; i += 64, qs += 32)
        for (int j = 0; j < 32; j++) qs[j] = (uint8_t)((code[i + j] & 15) | (code[i + j + 32] & 15) << 4);
}

void oq_q4_k_encode(uint8_t *dst, const float *x)
{
    static const grid g = {.top = 15, .first = -1.0f, .step = 0.1f, .trials = 20};
    uint8_t code[ELEMS] = {0};
    ranged_subs(dst, x, &g, code);
    put_nibble_runs(dst + 16, code);
}

void oq_q5_k_encode(uint8_t *dst, const float *x)
{
    static const grid g = {.top = 31, .first = -0.5f, .step = 0.1f, .trials = 15};
    uint8_t code[ELEMS] = {0};
    ranged_subs(dst, x, &g, code);
    for (int i = 0; i < ELEMS; i++) dst[16 + i % 32] = (uint8_t)(dst[16 + i % 32] | (code[i] >> 4) << i / 32);
    put_nibble_runs(dst + 48, code);
}

static void q6_code(uint8_t *dst, int i, int code)
{
    const int half = i / 128, j = i % 128;
    uint8_t *const low = dst + 64 * half + j % 64, *const high = dst + 128 + 32 * half + j % 32;
    *low = (uint8_t)(*low | (code & 15) << 4 * (j / 64));
    *high = (uint8_t)(*high | code >> 4 << 2 * (j / 32));
}

void oq_q6_k_encode(uint8_t *dst, const float *x)
{
    float scale[16];
    uint8_t kept[ELEMS] = {0};
    for (int s = 0; s < 16; s++) scale[s] = fit_signed(kept + 16 * s, x + 16 * s, 16, 32);
    const float peak = peak_of(scale, 16);
    if (fabsf(peak) < nothing) return;
    const float by = -128.0f / peak;
    oq_block_put_f16(dst + 208, 1.0f / by);
    for (int s = 0; s < 16; s++) {
        const int code = oq_block_nearest(by * scale[s]);
        dst[192 + s] = (uint8_t)(int8_t)(code < 127 ? code : 127);
        const float step = oq_block_f16(dst + 208) * (float)(int8_t)dst[192 + s];
        for (int i = 16 * s; i < 16 * s + 16; i++)
            q6_code(dst, i, is_zero(step) ? kept[i] : signed_code_of(x[i] / step, 32) + 32);
    }
}

/* The number of largest magnitude becomes -127; sums of sixteen codes go along. */
void oq_q8_k_encode(uint8_t *dst, const float *x)
{
    const float peak = peak_of(x, ELEMS);
    if (is_zero(peak)) return;
    const float by = -127.0f / peak, d = 1.0f / by;
    memcpy(dst, &d, sizeof d);
    for (int s = 0; s < 16; s++) {
        int sum = 0;
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            const int code = oq_block_nearest(by * x[i]);
            dst[4 + i] = (uint8_t)(int8_t)(code < 127 ? code : 127);
            sum += (int8_t)dst[4 + i];
        }
        const int16_t stored = (int16_t)sum;
        memcpy(dst + 260 + 2 * s, &stored, sizeof stored);
    }
}
