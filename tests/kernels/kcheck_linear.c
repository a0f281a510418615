/* kcheck_linear.c -- every linear kernel, for every scheme that it accepts, against a sum in double of the
 * very operands that the scheme defines. */
#include "kernels/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "cpu/linear/linear_panel.h"
#include "format/float4.h"
#include "format/float8.h"

typedef struct shape {
    int64_t m, n, k;
} shape;

static const shape shapes[] = {
    {1, 1, 1},
    {1, 16, 15},
    {2, 17, 16},
    {3, 31, 17},
    {4, 33, 31},
    {5, 47, 33},
    {6, 48, 64},
    {7, 49, 127},
    {8, 63, 128},
    {9, 64, 129},
    {10, 65, 5},
    {11, 127, 63},
    {12, 129, 255},
    {13, 32, 256},
    {14, 96, 257},
    {15, 95, 300},
    {16, 131, 384},
    {17, 3, 513},
    {24, 15, 65},
    {25, 200, 97},
    {31, 66, 191},
    {33, 34, 640},
    {40, 97, 35},
    {47, 128, 520},
    {61, 40, 48},
    {256, 70, 130},
    {401, 35, 67},
    {2, 300, 1100},
    {3, 40, 2520},
    /* a few rows over whole groups, up to more than one piece of x */
    {1, 33, 512},
    {2, 35, 256},
    {3, 17, 3328},
    {4, 34, 768},
    {5, 19, 1536},
    {6, 33, 256},
    {7, 20, 1024},
    {8, 36, 2304},
    {9, 18, 512},
    {12, 37, 768},
    {13, 5, 1280},
    {16, 40, 1024},
    {1, 4, 6400},
    {17, 6, 512},
};

static const struct treatment {
    const oq_dtype *act;
    oq_act_scale how;
} treatments[] = {
    {NULL, OQ_ACT_NONE},
    {&oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {&oq_dtype_f8_e4m3, OQ_ACT_STATIC_TENSOR},
    {&oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_GROUP},
    {&oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN},
    {&oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN4},
    {&oq_dtype_i8, OQ_ACT_STATIC_TENSOR},
    {&oq_dtype_i8, OQ_ACT_DYNAMIC_GROUP},
    {&oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX},
    {&oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX},
    {&oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_Q725},
    {&oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX_FLOOR},
    {&oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_CEIL},
    {&oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_EVEN},
    {&oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_DUAL},
    {&oq_dtype_f4_e2m1, OQ_ACT_STATIC_NVFP4},
};

/* Group scales of MX go with the formats that have them in plans, and with one of each other kind. */
static bool sensible(const oq_scheme *s)
{
    const oq_format *const f = s->weight;
    const bool mx = oq_act_is_mx(s->act_scale) || s->act_scale == OQ_ACT_DYNAMIC_MX_DUAL;
    if (mx)
        return f == &oq_format_mxfp8 || f == &oq_format_mxfp4 || f == &oq_format_mxfp4_dual ||
               f == &oq_format_nf4_b64 || f == &oq_format_bf16;
    return f->element || !s->act || (f == &oq_format_int4_g32 && s->act == &oq_dtype_f8_e4m3);
}

/* One product: its operands, and what it should give. */
typedef struct problem {
    oq_linear_spec spec;
    shape s;
    kc_matrix x, y;
    kc_buf planes[OQ_N_PLANES], packed, scratch, bias;
    oq_planes view;
    bool has_bias, exact;
    bool rounded;         /* weights are rounded to bf16 first */
    double *want, *bound; /* [m, n] */
} problem;

/* Formats without whole elements: any byte is a code of four bits, and may be a zero point; where codes are e4m3, NaN is
 * left out. */
static void random_codes(kc_rng *rng, const oq_format *f, const oq_planes_mut *planes, const problem *p)
{
    const size_t bytes = p->planes[OQ_PLANE_DATA].bytes;
    unsigned char *const code = planes->plane[OQ_PLANE_DATA];
    kc_fill_bytes(rng, code, bytes);
    for (size_t i = 0; i < bytes && f == &oq_format_mxfp8; i++)
        if ((code[i] & 0x7f) == 0x7f) code[i] ^= 1;
    if (f->int_bits && planes->plane[OQ_PLANE_ZERO])
        kc_fill_bytes(rng, planes->plane[OQ_PLANE_ZERO], p->planes[OQ_PLANE_ZERO].bytes);
}

/* Factors within a power of two of 1, a random order, a branch of about the product's size. */
static void make_around(kcheck *kc, kc_rng *rng, problem *p, oq_planes_mut *planes)
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
static void make_weight(kcheck *kc, kc_rng *rng, problem *p, kc_class class, bool all_codes)
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
        /* any byte may be a scale: the codes are those that numbers give */
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

static void make_input(kcheck *kc, kc_rng *rng, problem *p, kc_class class, int variant)
{
    const shape s = p->s;
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
static void prepare_x(kcheck *kc, const problem *p, float *all)
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
static void split_outliers(const problem *p, operand *out)
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

static void operand_of_x(kcheck *kc, const problem *p, operand *out)
{
    const oq_scheme *const scheme = &p->spec.scheme;
    const int64_t m = p->s.m, k = p->s.k, group = oq_act_run(scheme->act_scale, k);
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
        if (scheme->act) {
            oq_act_quantize_row(scheme, under, row, k, codes, scales);
            scheme->act->to_f32(out->value + i * k, codes, (size_t)k);
        }
        for (int64_t j = 0; j < k; j++) out->scale[i * k + j] = scales[scheme->act ? j / group : 0];
    }
    oq_free(kc->env, row);
    oq_free(kc->env, scales);
    oq_free(kc->env, codes);
}

static void operand_of_w(const problem *p, operand *out)
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
static double branch_at(const problem *p, const float *x, int64_t i, int64_t j, double *error)
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

static void expect(kcheck *kc, problem *p)
{
    const int64_t m = p->s.m, n = p->s.n, k = p->s.k;
    operand x = operand_new(kc, m, k), w = operand_new(kc, n, k);
    operand_of_x(kc, p, &x);
    operand_of_w(p, &w);
    for (int64_t i = 0; p->rounded && i < n * k; i++) {
        w.value[i] = oq_bf16_round(w.value[i] * w.scale[i]);
        w.scale[i] = 1.0f;
    }
    float *const raw = kc_new(kc, (size_t)(m * k) * sizeof *raw);
    kc_matrix_get(&p->x, raw);
    p->want = kc_new(kc, (size_t)(m * n) * sizeof(double));
    p->bound = kc_new(kc, (size_t)(m * n) * sizeof(double));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0, abs_sum = 0.0, codes = 0.0; /* codes: exact for integers */
            for (int64_t l = 0; l < k; l++) {
                const double a = (double)x.value[i * k + l] * (double)x.scale[i * k + l];
                const double b = (double)w.value[j * k + l] * (double)w.scale[j * k + l];
                sum += a * b;
                abs_sum += fabs(a * b);
                codes += (double)x.value[i * k + l] * (double)w.value[j * k + l];
            }
            if (p->exact) sum = codes * (double)x.scale[i * k] * (double)w.scale[j * k];
            const double bias = p->has_bias ? (double)((float *)p->bias.data)[j] : 0.0;
            double error = p->exact ? 4.0 * KC_EPS * fabs(sum) : kc_sum_error(k, abs_sum), branch_error;
            sum += branch_at(p, raw, i, j, &branch_error);
            error += branch_error;
            p->want[i * n + j] = sum + bias;
            p->bound[i * n + j] =
                error + 2.0 * KC_EPS * fabs(bias) + kc_store_error(p->y.t.dtype, fabs(sum + bias) + error);
        }
    oq_free(kc->env, raw);
    operand_free(kc, &x);
    operand_free(kc, &w);
}

static void problem_free(kcheck *kc, problem *p)
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

static oq_linear_args args_of(const problem *p, oq_tensor y)
{
    return (oq_linear_args){.spec = &p->spec,
                            .packed = p->packed.data,
                            .bias = p->has_bias ? p->bias.data : NULL,
                            .scratch = p->scratch.data,
                            .x = p->x.t,
                            .y = y};
}

static const char *verdict(kcheck *kc, kc_row *row, const problem *p)
{
    float *const y = kc_new(kc, (size_t)(p->s.m * p->s.n) * sizeof *y);
    kc_matrix_get(&p->y, y);
    const char *why = NULL;
    for (int64_t i = 0; i < p->s.m * p->s.n && !why; i++)
        if (!kc_near(row, (double)y[i], p->want[i], p->bound[i])) why = "a value is off";
    oq_free(kc->env, y);
    if (why) return why;
    if (!kc_matrix_intact(&p->y) || !kc_matrix_intact(&p->x)) return "bytes around x or y were written";
    if (!kc_buf_intact(&p->packed) || !kc_buf_intact(&p->scratch))
        return "bytes around packed or scratch were written";
    return NULL;
}

static const char *run_twice(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, problem *p)
{
    const oq_linear_args args = args_of(p, p->y.t);
    kernel->run(kc->device, &args);
    const char *const why = verdict(kc, row, p);
    if (why) return why;
    kc_matrix again = kc_matrix_new(kc, p->y.t.dtype, p->s.m, p->s.n, p->s.n);
    const oq_linear_args single = args_of(p, again.t);
    memset(p->scratch.data, 0xff, p->scratch.bytes);
    kernel->run(&kc->single, &single);
    const bool same = kc_matrix_same(&p->y, &again);
    kc_matrix_free(kc, &again);
    return same ? NULL : "one thread gives other bits than all";
}

/* Does the kernel round weights to bf16 first? */
static bool rounds(const oq_linear_kernel *kernel, const oq_linear_spec *spec, const oq_dtype *x, int64_t m)
{
#if defined(__x86_64__) || defined(__aarch64__)
    if (strstr(kernel->name, "_wany_abf16_") && x == &oq_dtype_bf16)
        return oq_panel_any_pairs_rounds(spec, m);
#endif
    (void)kernel, (void)spec, (void)x, (void)m;
    return false;
}

/* As a backend asks: for schemes that are not bare, only those that take them. */
static bool takes(const oq_linear_kernel *kernel, const oq_linear_spec *spec)
{
    return (kernel->around || oq_scheme_is_bare(&spec->scheme)) && kernel->accepts(spec);
}

static void check_shape(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, const oq_scheme *scheme,
                        int index, shape s)
{
    const kc_class class = (kc_class)(index % KC_N_CLASSES);
    const int variant = index * 7 % 16;
    const bool all_codes = index % 3 == 1 && class != KC_DENORMALS;
    problem p = {.s = s};
    kc_rng rng = kc_rng_new(kc, scheme->weight->name, index);
    p.spec = (oq_linear_spec){*scheme, p.s.n, p.s.k};
    if (!takes(kernel, &p.spec) || !kc_turn(kc)) return;
    p.exact = kernel->need && scheme->act == &oq_dtype_i8 && scheme->weight->element == &oq_dtype_i8 &&
              oq_scheme_is_bare(scheme) && scheme->act_scale != OQ_ACT_DYNAMIC_GROUP;
    make_weight(kc, &rng, &p, class, all_codes);
    make_input(kc, &rng, &p, class, variant);
    p.rounded = rounds(kernel, &p.spec, p.x.t.dtype, p.s.m);
    expect(kc, &p);
    p.packed = kc_buf_new(kc, kernel->packed_bytes(&p.spec), 0);
    p.scratch = kc_buf_new(kc, kernel->scratch_bytes(&p.spec, p.s.m), 0);
    kernel->pack(p.packed.data, &p.view, &p.spec);
    char text[96];
    oq_scheme_describe(scheme, text, sizeof text);
    kc_now("%s: %s, m %lld n %lld k %lld", kernel->name, text, (long long)p.s.m, (long long)p.s.n,
           (long long)p.s.k);
    const char *const why = run_twice(kc, row, kernel, &p);
    kc_case(kc, row, !why, "%s: %s, m %lld n %lld k %lld, %s, x %s y %s%s%s%s", why ? why : "", text,
            (long long)p.s.m, (long long)p.s.n, (long long)p.s.k, kc_class_name(class), p.x.t.dtype->label,
            p.y.t.dtype->label, p.has_bias ? ", bias" : "", variant & 4 ? ", ld > cols" : "",
            all_codes ? ", all codes" : "");
    problem_free(kc, &p);
}

static void check_case(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, const oq_scheme *scheme,
                       int index)
{
    check_shape(kc, row, kernel, scheme, index, shapes[(size_t)index % OQ_COUNT(shapes)]);
}

/* What layers do around their products, one by one and together. */
static void check_around(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel)
{
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_int4z_g32, .order = true},
        {.weight = &oq_format_nvfp4,
         .act = &oq_dtype_f4_e2m1,
         .act_scale = OQ_ACT_STATIC_NVFP4,
         .smooth = true},
        {.weight = &oq_format_nvfp4, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_DYNAMIC_NVFP4},
        {.weight = &oq_format_nvfp4,
         .act = &oq_dtype_f4_e2m1,
         .act_scale = OQ_ACT_STATIC_NVFP4,
         .smooth = true,
         .rank = 5},
        {.weight = &oq_format_int8_channel,
         .act = &oq_dtype_i8,
         .act_scale = OQ_ACT_STATIC_TENSOR,
         .smooth = true},
        {.weight = &oq_format_int8_channel,
         .act = &oq_dtype_i8,
         .act_scale = OQ_ACT_STATIC_TENSOR,
         .shift = -0.375f},
        {.weight = &oq_format_int4_g64,
         .act = &oq_dtype_i8,
         .act_scale = OQ_ACT_DYNAMIC_UINT4,
         .shift = 0.171875f,
         .smooth = true,
         .rank = 16},
        {.weight = &oq_format_int8_channel,
         .act = &oq_dtype_i8,
         .act_scale = OQ_ACT_DYNAMIC_TOKEN,
         .rotate = 16},
        {.weight = &oq_format_int8_channel,
         .act = &oq_dtype_i8,
         .act_scale = OQ_ACT_DYNAMIC_TOKEN,
         .outlier = 2.0f},
        {.weight = &oq_format_int4_g128,
         .act = &oq_dtype_i8,
         .act_scale = OQ_ACT_DYNAMIC_TOKEN4,
         .rotate = 16},
        {.weight = &oq_format_int4_g128, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_int4_g64, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_INT4},
        {.weight = &oq_format_nvfp4,
         .act = &oq_dtype_f8_e4m3,
         .act_scale = OQ_ACT_STATIC_TENSOR,
         .smooth = true},
        {.weight = &oq_format_int4_g64, .smooth = true, .order = true, .rotate = 64, .rank = 32},
        {.weight = &oq_format_bf16, .rank = 1},
    };
    static const shape sizes[] = {{1, 1, 64}, {3, 17, 128}, {33, 40, 192}, {513, 20, 64}, {70, 97, 320}};
    for (size_t i = 0; i < OQ_COUNT(schemes); i++)
        for (size_t s = 0; s < OQ_COUNT(sizes); s++)
            for (int index = 0; index < 2 * KC_N_CLASSES; index++) {
                const bool whole = schemes[i].outlier > 0 || schemes[i].act_scale == OQ_ACT_DYNAMIC_NVFP4;
                if (whole && index % KC_N_CLASSES == KC_NAN_ROW) continue; /* it reaches every row */
                check_shape(kc, row, kernel, &schemes[i], index, sizes[s]);
            }
}

/* ---- speed --------------------------------------------------------------------------------------------- */

static const shape bench_shapes[] = {
    {1, 2048, 4096}, {8, 2048, 4096}, {256, 192, 192},  {288, 512, 192},
    {288, 192, 512}, {320, 576, 576}, {288, 1024, 192}, {512, 2048, 4096},
};

typedef struct bench_job {
    kcheck *kc;
    const oq_linear_kernel *kernel;
    oq_linear_args args;
} bench_job;

static void bench_once(void *user)
{
    const bench_job *const job = user;
    job->kernel->run(job->kc->device, &job->args);
}

static void bench_case(kcheck *kc, const oq_linear_kernel *kernel, const oq_scheme *scheme, shape s)
{
    problem p = {.s = s, .spec = {*scheme, s.n, s.k}};
    kc_rng rng = kc_rng_new(kc, "bench", 0);
    if (!kernel->accepts(&p.spec)) return;
    make_weight(kc, &rng, &p, KC_NORMAL, false);
    make_input(kc, &rng, &p, KC_NORMAL, scheme->weight == &oq_format_f32 ? 8 : 11);
    p.packed = kc_buf_new(kc, kernel->packed_bytes(&p.spec), 0);
    p.scratch = kc_buf_new(kc, kernel->scratch_bytes(&p.spec, s.m), 0);
    kernel->pack(p.packed.data, &p.view, &p.spec);
    bench_job job = {kc, kernel, args_of(&p, p.y.t)};
    char scheme_text[96], text[160];
    oq_scheme_describe(scheme, scheme_text, sizeof scheme_text);
    snprintf(text, sizeof text, "m %lld n %lld k %lld %s", (long long)s.m, (long long)s.n, (long long)s.k,
             scheme_text);
    kc_bench(kc, kernel->name, text, 2.0 * (double)s.m * (double)s.n * (double)s.k, bench_once, &job);
    problem_free(kc, &p);
}

static void bench_kernel(kcheck *kc, const oq_linear_kernel *kernel)
{
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_f32, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_bf16, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_fp8_e4m3_channel, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_mxfp8, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_MX},
        {.weight = &oq_format_mxfp4, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_DYNAMIC_MX},
        {.weight = &oq_format_nvfp4, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_nf4_b64, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_nf4_b64_nested, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_int4z_g128, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_int4_g32, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_int4_g32_f16, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_int4_g32_bf16, .act = NULL, .act_scale = OQ_ACT_NONE},
    };
    for (size_t i = 0; i < OQ_COUNT(schemes); i++)
        for (size_t s = 0; s < OQ_COUNT(bench_shapes); s++) {
            const shape at = bench_shapes[s];
            if (!kernel->need && at.m * at.n * at.k > 100000000)
                continue; /* the reference is slow by intent */
            bench_case(kc, kernel, &schemes[i], at);
        }
}

/* Kernels for every format: all shapes once for each scheme are enough. */
static bool takes_all(const oq_linear_kernel *kernel)
{
    return strstr(kernel->name, "_wany_") != NULL;
}

void kcheck_linear(kcheck *kc)
{
    enum { CASES = 3 * (int)OQ_COUNT(shapes) };
    for (int i = 0; kc_linear_kernel(i); i++) {
        const oq_linear_kernel *const kernel = kc_linear_kernel(i);
        if (!kc_wants(kc, kernel->name, kernel->need)) continue;
        if (kc->bench) {
            bench_kernel(kc, kernel);
            continue;
        }
        kc_row row = {.kernel = kernel->name};
        for (size_t f = 0; oq_format_list[f]; f++)
            for (size_t t = 0; t < OQ_COUNT(treatments); t++) {
                const oq_scheme scheme = {
                    .weight = oq_format_list[f], .act = treatments[t].act, .act_scale = treatments[t].how};
                if (!sensible(&scheme) || !kc_encodes(scheme.weight)) continue;
                for (int c = 0; c < (takes_all(kernel) ? CASES / 3 : CASES); c++)
                    check_case(kc, &row, kernel, &scheme, c);
            }
        if (kernel->around) check_around(kc, &row, kernel);
        kc_row_print(&row);
    }
}
