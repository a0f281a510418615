/* kcheck_linear_product.c -- a linear kernel's operands, for every class of numbers and every scheme, and a sum in double of the
 * very operands that the scheme defines. */
#include "kernels/kcheck_linear.h"

#include <math.h>
#include <string.h>

#include "base/size.h"
#include "cpu/linear/linear_fixed.h"
#include "format/float4.h"
#include "format/float8.h"

/* Formats without whole elements: any byte is a code of four bits, and may be a zero point; where codes are e4m3, NaN is
 * left out. */
static void random_codes(kc_rng *rng, const oq_format *f, const oq_planes_mut *planes, const kc_linear *p)
{
    const size_t bytes = p->planes[OQ_PLANE_DATA].bytes;
    unsigned char *const code = planes->plane[OQ_PLANE_DATA];
    kc_fill_bytes(rng, code, bytes);
    for (size_t i = 0; i < bytes && f == &oq_format_mxfp8; i++)
        if ((code[i] & 0x7f) == 0x7f) code[i] ^= 1;
    if (f->int_bits && planes->plane[OQ_PLANE_ZERO])
        kc_fill_bytes(rng, planes->plane[OQ_PLANE_ZERO], p->planes[OQ_PLANE_ZERO].bytes);
}

/* The f16 numbers of a block; 0 bytes: not a format whose other bytes may be anything. */
typedef struct block_floats {
    const oq_format *format;
    size_t at, bytes;
} block_floats;

static block_floats floats_of(const oq_format *f)
{
    const block_floats all[] = {
        {&oq_format_q4_0, 0, 2},   {&oq_format_q4_1, 0, 4},  {&oq_format_q5_0, 0, 2},
        {&oq_format_q5_1, 0, 4},   {&oq_format_q8_0, 0, 2},  {&oq_format_iq4_nl, 0, 2},
        {&oq_format_iq4_xs, 0, 2}, {&oq_format_q2_k, 80, 4}, {&oq_format_q3_k, 108, 2},
        {&oq_format_q4_k, 0, 4},   {&oq_format_q5_k, 0, 4},  {&oq_format_q6_k, 208, 2}};
    for (size_t i = 0; i < OQ_COUNT(all); i++)
        if (all[i].format == f) return all[i];
    return (block_floats){0};
}

/* Blocks keep their f16 numbers. Codes and whole scales are any bytes, or all of one kind before some byte and of one after
 * it: among these are the largest products of both (of q6_k, whose scales stand from byte 192 on, -32 times -128). */
static void random_blocks(kc_rng *rng, const oq_format *f, unsigned char *block, size_t bytes)
{
    static const unsigned char ends[] = {0x00, 0x7f, 0x80, 0xff};
    const block_floats floats = floats_of(f);
    const size_t size = (size_t)f->block->bytes;
    unsigned char kept[4];
    for (size_t b = 0; floats.bytes && b < bytes / size; b++, block += size) {
        const unsigned char before = ends[kc_below(rng, 4)], after = ends[kc_below(rng, 4)];
        const size_t turn = kc_below(rng, 2) ? 192 : (size_t)kc_below(rng, (int)size);
        memcpy(kept, block + floats.at, floats.bytes);
        if (kc_below(rng, 3) == 0)
            kc_fill_bytes(rng, block, size);
        else
            for (size_t i = 0; i < size; i++) block[i] = i < turn ? before : after;
        memcpy(block + floats.at, kept, floats.bytes);
    }
}

/* Factors within a power of two of 1, a random order, a branch of about the product's size. */
static void make_around(kcheck *kc, kc_rng *rng, kc_linear *p, oq_planes_mut *planes)
{
    const int64_t n = p->s.n, k = p->s.k;
    for (int i = OQ_PLANE_SMOOTH; i < OQ_N_PLANES; i++) {
        const size_t bytes = oq_scheme_plane_bytes(&p->spec.scheme, (oq_plane)i, n, k);
        if (bytes == 0) continue;
        kc_buf_free(kc, &p->planes[i]);
        p->planes[i] = kc_buf_new(kc, bytes, 4);
        planes->plane[i] = p->planes[i].data;
        float *const at = p->planes[i].data;
        for (size_t j = 0; j < bytes / sizeof *at; j++)
            at[j] = i == OQ_PLANE_SMOOTH ? kc_uniform(rng, 0.5f, 2.0f) : 0.1f * kc_normal(rng);
    }
    int32_t *const order = planes->plane[OQ_PLANE_ORDER];
    for (int64_t i = 0; order && i < k; i++) {
        const int64_t j = (int64_t)kc_below(rng, (int)(i + 1));
        order[i] = order[j], order[j] = (int32_t)i;
    }
}

/* Weights: encoded from numbers, or (all codes) random bytes under random scales. */
void kc_linear_weight(kcheck *kc, kc_rng *rng, kc_linear *p, kc_class class, bool all_codes)
{
    const oq_format *const f = p->spec.scheme.weight;
    const int64_t n = p->s.n, k = p->s.k;
    oq_planes_mut planes = {{0}};
    for (int i = 0; i < OQ_N_PLANES; i++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)i, n, k);
        p->planes[i] = kc_buf_new(kc, bytes, i == OQ_PLANE_DATA ? 1 : 0);
        planes.plane[i] = bytes ? p->planes[i].data : NULL;
    }
    float *const w = kc_new(kc, (size_t)(n * k) * sizeof *w);
    kc_fill(rng, class == KC_NAN_ROW ? KC_NORMAL : class, w, n, k);
    kc_encode(f, &planes, w, n, k);
    oq_free(kc->env, w);
    if (f->block) {
        if (all_codes) random_blocks(rng, f, planes.plane[OQ_PLANE_DATA], p->planes[OQ_PLANE_DATA].bytes);
    } else if (all_codes && !f->element) {
        random_codes(rng, f, &planes, p);
    } else if (all_codes && f->element->bytes == 1) {
        unsigned char *const code = planes.plane[OQ_PLANE_DATA];
        kc_fill_bytes(rng, code, (size_t)(n * k));
        for (int64_t i = 0; i < n * k && f->element == &oq_dtype_f8_e4m3; i++)
            if ((code[i] & 0x7f) == 0x7f) code[i] ^= 1; /* no NaN */
        float *const scale = planes.plane[OQ_PLANE_SCALE];
        for (size_t i = 0; i < p->planes[OQ_PLANE_SCALE].bytes / sizeof *scale; i++)
            scale[i] = kc_uniform(rng, 0.001f, 0.1f);
    }
    if (oq_act_is_static(p->spec.scheme.act_scale)) {
        kc_buf_free(kc, &p->planes[OQ_PLANE_INPUT_SCALE]);
        p->planes[OQ_PLANE_INPUT_SCALE] = kc_buf_new(kc, sizeof(float), 0);
        const int64_t run = oq_act_run(p->spec.scheme.act_scale, k);
        *(float *)p->planes[OQ_PLANE_INPUT_SCALE].data = 2.0f / (p->spec.scheme.act == &oq_dtype_i8 ? 127.0f
                                                                 : run == 16                        ? 2688.0f
                                                                                                    : 448.0f);
        planes.plane[OQ_PLANE_INPUT_SCALE] = p->planes[OQ_PLANE_INPUT_SCALE].data;
    }
    make_around(kc, rng, p, &planes);
    for (int i = 0; i < OQ_N_PLANES; i++) p->view.plane[i] = planes.plane[i];
}

void kc_linear_input(kcheck *kc, kc_rng *rng, kc_linear *p, kc_class class, int variant)
{
    const kc_linear_shape s = p->s;
    const oq_dtype *const xt = variant & 1 ? &oq_dtype_bf16 : &oq_dtype_f32;
    const oq_dtype *const yt = variant & 2 ? &oq_dtype_bf16 : &oq_dtype_f32;
    const int64_t gap = variant & 4 ? 1 + kc_below(rng, 20) : 0;
    p->has_bias = variant & 8;
    p->x = kc_matrix_new(kc, xt, s.m, s.k, s.k + gap);
    p->y = kc_matrix_new(kc, yt, s.m, s.n, s.n + gap);
    float *const x = kc_new(kc, (size_t)(s.m * s.k) * sizeof *x);
    kc_fill(rng, class, x, s.m, s.k);
    kc_matrix_set(&p->x, x);
    oq_free(kc->env, x);
    p->bias = kc_buf_new(kc, (size_t)s.n * sizeof(float), 4);
    for (int64_t i = 0; i < s.n; i++) ((float *)p->bias.data)[i] = kc_normal(rng);
}

void kc_linear_level(kcheck *kc, kc_linear *p)
{
    const float most = 254.0f / 256.0f; /* what BF16 has below a power of two without a larger step */
    float *const x = kc_new(kc, (size_t)(p->s.m * p->s.k) * sizeof *x);
    for (int64_t i = 0; i < p->s.m * p->s.k; i++) x[i] = most;
    kc_matrix_set(&p->x, x);
    oq_free(kc->env, x);
}

/* x after its quantization, as exact as double holds it: code and scale of each element. */
typedef struct operand {
    float *value; /* codes (or plain values) [rows, k] */
    float *scale; /* [rows, k] */
} operand;

static operand operand_new(kcheck *kc, int64_t rows, int64_t k)
{
    const size_t bytes = (size_t)(rows * k) * sizeof(float);
    return (operand){kc_new(kc, bytes), kc_new(kc, bytes)};
}

static void operand_free(kcheck *kc, operand *o)
{
    oq_free(kc->env, o->value);
    oq_free(kc->env, o->scale);
}

/* Rows as the scheme prepares them, in f32 as it says. */
static void prepare_x(kcheck *kc, const kc_linear *p, float *all)
{
    const oq_scheme *const s = &p->spec.scheme;
    const float *const smooth = p->view.plane[OQ_PLANE_SMOOTH];
    const int32_t *const order = p->view.plane[OQ_PLANE_ORDER];
    float *const from = kc_new(kc, (size_t)p->s.k * sizeof *from);
    for (int64_t i = 0; i < p->s.m; i++) {
        float *const row = all + i * p->s.k;
        memcpy(from, row, (size_t)p->s.k * sizeof *from);
        for (int64_t j = 0; j < p->s.k; j++) {
            const int64_t at = order ? order[j] : j;
            const float shifted = from[at] + s->shift, x = smooth ? shifted * smooth[at] : shifted;
            row[j] = smooth && p->x.t.dtype == &oq_dtype_bf16 ? oq_bf16_round(x) : x;
        }
        for (int64_t j = 0; s->rotate && j < p->s.k; j += s->rotate) oq_rotate(row + j, s->rotate);
    }
    oq_free(kc->env, from);
}

/* LLM.int8: columns with an outlier stay, the rest is i8 under the largest number that is none. */
static void split_outliers(const kc_linear *p, operand *out)
{
    const float limit = p->spec.scheme.outlier;
    const int64_t m = p->s.m, k = p->s.k;
    for (int64_t j = 0; j < k; j++) {
        bool column = false;
        for (int64_t i = 0; i < m; i++) column |= fabsf(out->value[i * k + j]) >= limit;
        for (int64_t i = 0; i < m; i++) out->scale[i * k + j] = column ? 1.0f : 0.0f; /* 0: to quantize */
    }
    for (int64_t i = 0; i < m; i++) {
        float amax = 0.0f, *const row = out->value + i * k, *const scale = out->scale + i * k;
        for (int64_t j = 0; j < k; j++)
            if (fabsf(row[j]) < limit && fabsf(row[j]) > amax) amax = fabsf(row[j]);
        for (int64_t j = 0; j < k; j++) {
            if (scale[j] > 0) continue;
            row[j] = amax > 0 ? rintf(row[j] * (127.0f / amax)) : 0.0f;
            scale[j] = amax > 0 ? amax * (1.0f / 127.0f) : 1.0f;
        }
    }
}

static void operand_of_x(kcheck *kc, const kc_linear *p, operand *out)
{
    const oq_scheme *const scheme = &p->spec.scheme;
    const int64_t m = p->s.m, k = p->s.k, group = oq_act_run(scheme->act_scale, k);
    const oq_dtype *const act = m < scheme->act_min_rows ? NULL : scheme->act;
    const float *const fixed = p->view.plane[OQ_PLANE_INPUT_SCALE];
    float *const row = kc_new(kc, (size_t)k * sizeof *row), *const scales =
                                                                kc_new(kc, (size_t)k * sizeof *scales);
    char *const codes = kc_new(kc, (size_t)k);
    kc_matrix_get(&p->x, out->value);
    prepare_x(kc, p, out->value);
    float global = 0.0f;
    for (int64_t i = 0; i < m * k; i++)
        if (fabsf(out->value[i]) > global) global = fabsf(out->value[i]);
    global = global > 0 ? global / 2688.0f : 1.0f;
    const float under = scheme->act_scale == OQ_ACT_DYNAMIC_NVFP4 ? global : fixed ? *fixed : 0.0f;
    if (scheme->outlier > 0) split_outliers(p, out);
    for (int64_t i = 0; i < m && !(scheme->outlier > 0); i++) {
        memcpy(row, out->value + i * k, (size_t)k * sizeof *row);
        scales[0] = 1.0f;
        if (act && oq_act_has_zero(scheme->act_scale)) {
            oq_act_zero_row(scheme->act_scale, out->value + i * k, k);
        } else if (act) {
            oq_act_quantize_row(scheme, under, row, k, codes, scales);
            act->to_f32(out->value + i * k, codes, (size_t)k);
        }
        for (int64_t j = 0; j < k; j++) out->scale[i * k + j] = scales[act ? j / group : 0];
    }
    oq_free(kc->env, row);
    oq_free(kc->env, scales);
    oq_free(kc->env, codes);
}

static void operand_of_w(const kc_linear *p, operand *out)
{
    const oq_format *const f = p->spec.scheme.weight;
    if (!f->element) { /* the format's own values: one rounding of code times scale is part of their meaning */
        for (int64_t r = 0; r < p->s.n; r++)
            f->decode_row(f, out->value + r * p->s.k, &p->view, r, p->s.n, p->s.k);
        for (int64_t i = 0; i < p->s.n * p->s.k; i++) out->scale[i] = 1.0f;
        return;
    }
    const int64_t n = p->s.n, k = p->s.k, bn = f->block_n ? f->block_n : n, bk = f->block_k ? f->block_k : k;
    const float *const scale = p->view.plane[OQ_PLANE_SCALE];
    f->element->to_f32(out->value, p->view.plane[OQ_PLANE_DATA], (size_t)(n * k));
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < k; j++)
            out->scale[r * k + j] = scale ? scale[r / bn * oq_ceil_div(k, bk) + j / bk] : 1.0f;
}

/* The low-rank branch's part of y[i, j], and how far f32 may be off. */
static double branch_at(const kc_linear *p, const float *x, int64_t i, int64_t j, double *error)
{
    const int64_t k = p->s.k, rank = p->spec.scheme.rank;
    const float *const down = p->view.plane[OQ_PLANE_DOWN], *const up = p->view.plane[OQ_PLANE_UP];
    double y = 0.0, size = 0.0;
    *error = 0.0;
    for (int64_t r = 0; r < rank; r++) {
        double sum = 0.0, abs_sum = 0.0;
        for (int64_t l = 0; l < k; l++) {
            const double a = (double)x[i * k + l] * (double)down[r * k + l];
            sum += a, abs_sum += fabs(a);
        }
        y += sum * (double)up[j * rank + r];
        size += fabs(sum * (double)up[j * rank + r]);
        *error += kc_sum_error(k, abs_sum) * fabs((double)up[j * rank + r]);
    }
    if (rank) *error += kc_sum_error(rank, size) + KC_EPS * fabs(y);
    return y;
}

/* Each run of columns: of x the largest magnitude, of W the sum of magnitudes. */
static double *runs_of(kcheck *kc, const kc_linear *p, const operand *o, int64_t rows, bool largest)
{
    const int64_t k = p->s.k, n_runs = oq_ceil_div(k, p->run);
    double *const runs = kc_new(kc, (size_t)(rows * n_runs) * sizeof *runs);
    for (int64_t i = 0; i < rows * n_runs; i++) runs[i] = largest ? (double)FIXED_LEAST : 0.0;
    for (int64_t i = 0; i < rows * k; i++) {
        double *const run = &runs[i / k * n_runs + i % k / p->run];
        const double size = fabs((double)o->value[i] * (largest ? 1.0 : (double)o->scale[i]));
        *run = !largest ? *run + size : size > *run ? size : *run;
    }
    return runs;
}

/* How far products may be off because x is in fixed point: half a step of each run. */
static void add_fixed_error(kcheck *kc, kc_linear *p, const operand *x, const operand *w)
{
    if (!(p->loss > 0)) return;
    const int64_t m = p->s.m, n = p->s.n, n_runs = oq_ceil_div(p->s.k, p->run);
    double *const of_x = runs_of(kc, p, x, m, true), *const of_w = runs_of(kc, p, w, n, false);
    for (int64_t i = 0; i < m * n; i++) {
        const double *const a = of_x + i / n * n_runs, *const b = of_w + i % n * n_runs;
        for (int64_t r = 0; r < n_runs; r++) p->bound[i] += a[r] * p->loss * b[r];
    }
    oq_free(kc->env, of_x);
    oq_free(kc->env, of_w);
}

/* W as table entries rounded to whole parts of one, times their scales. */
static void round_numbers(const kc_linear *p, operand *w)
{
    const oq_format *const f = p->spec.scheme.weight;
    const int64_t n = p->s.n, k = p->s.k;
    for (int64_t r = 0; r < n; r++)
        for (int64_t at = 0; at < k; at += OQ_PIECE) {
            oq_group_piece part;
            const int64_t count = oq_min_i64(OQ_PIECE, k - at);
            f->piece(f, &part, &p->view, r, at, count, n, k);
            for (int64_t i = 0; i < count; i++) {
                const int64_t code = part.first + i,
                              group = i < part.lead ? 0 : 1 + (i - part.lead) / f->block_k;
                const double number = (double)part.table[part.codes[code / 2] >> 4 * (code % 2) & 15];
                w->value[r * k + at + i] = (float)(rint(number * p->times) / p->times);
                w->scale[r * k + at + i] = part.scale[group];
            }
        }
}

/* code times scale, exact in double; the code alone where `codes`. */
static double *numbers_of(kcheck *kc, const operand *o, int64_t elems, bool codes)
{
    double *const numbers = kc_new(kc, (size_t)elems * sizeof *numbers);
    for (int64_t i = 0; i < elems; i++)
        numbers[i] = (double)o->value[i] * (codes ? 1.0 : (double)o->scale[i]);
    return numbers;
}

/* In lanes, so that compilers use vectors: most of kcheck's time is spent here. */
static double dot(const double *a, const double *b, int64_t k, double *abs_sum)
{
    enum { LANES = 8 };
    double sum[LANES] = {0.0}, size[LANES] = {0.0};
    int64_t l = 0;
    for (; l + LANES <= k; l += LANES)
        for (int i = 0; i < LANES; i++) {
            const double ab = a[l + i] * b[l + i];
            sum[i] += ab, size[i] += fabs(ab);
        }
    for (; l < k; l++) sum[0] += a[l] * b[l], size[0] += fabs(a[l] * b[l]);
    for (int i = 1; i < LANES; i++) sum[0] += sum[i], size[0] += size[i];
    *abs_sum = size[0];
    return sum[0];
}

/* One value of y and its bound; `exact`: a and b are codes, whose sum is exact, under one scale. */
static void expect_one(kc_linear *p, int64_t i, int64_t j, const double *a, const double *b, double scale,
                       const float *raw)
{
    const int64_t k = p->s.k, at = i * p->s.n + j;
    double abs_sum, branch_error, sum = dot(a + i * k, b + j * k, k, &abs_sum);
    if (p->exact) sum *= scale;
    const double bias = p->has_bias ? (double)((float *)p->bias.data)[j] : 0.0;
    double error = p->exact ? 4.0 * KC_EPS * fabs(sum) : kc_sum_error(k, abs_sum);
    error += p->bound[at]; /* of x in fixed point */
    sum += branch_at(p, raw, i, j, &branch_error);
    error += branch_error;
    p->want[at] = sum + bias;
    p->bound[at] = error + 2.0 * KC_EPS * fabs(bias) + kc_store_error(p->y.t.dtype, fabs(sum + bias) + error);
}

void kc_linear_expect(kcheck *kc, kc_linear *p)
{
    const int64_t m = p->s.m, n = p->s.n, k = p->s.k;
    operand x = operand_new(kc, m, k), w = operand_new(kc, n, k);
    operand_of_x(kc, p, &x);
    operand_of_w(p, &w);
    for (int64_t i = 0; p->rounded && i < n * k; i++) {
        w.value[i] = oq_bf16_round(w.value[i] * w.scale[i]);
        w.scale[i] = 1.0f;
    }
    if (p->times > 0) round_numbers(p, &w);
    float *const raw = kc_new(kc, (size_t)(m * k) * sizeof *raw);
    kc_matrix_get(&p->x, raw);
    p->want = kc_new(kc, (size_t)(m * n) * sizeof(double));
    p->bound = kc_new(kc, (size_t)(m * n) * sizeof(double));
    for (int64_t i = 0; i < m * n; i++) p->bound[i] = 0.0;
    add_fixed_error(kc, p, &x, &w);
    double *const a = numbers_of(kc, &x, m * k, p->exact), *const b = numbers_of(kc, &w, n * k, p->exact);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            expect_one(p, i, j, a, b, (double)x.scale[i * k] * (double)w.scale[j * k], raw);
    oq_free(kc->env, a);
    oq_free(kc->env, b);
    oq_free(kc->env, raw);
    operand_free(kc, &x);
    operand_free(kc, &w);
}

void kc_linear_free(kcheck *kc, kc_linear *p)
{
    for (int i = 0; i < OQ_N_PLANES; i++) kc_buf_free(kc, &p->planes[i]);
    kc_matrix_free(kc, &p->x);
    kc_matrix_free(kc, &p->y);
    kc_buf_free(kc, &p->packed);
    kc_buf_free(kc, &p->scratch);
    kc_buf_free(kc, &p->bias);
    oq_free(kc->env, p->want);
    oq_free(kc->env, p->bound);
}
