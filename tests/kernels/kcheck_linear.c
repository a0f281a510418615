/* kcheck_linear.c -- every linear kernel, for every scheme that it accepts, over shapes at and beside every edge; and its speed. */
#include "kernels/kcheck_linear.h"

#include <stdio.h>
#include <string.h>

#include "cpu/linear/linear_fixed.h"
#include "cpu/linear/linear_panel.h"
#include "format/float4.h"

static const kc_linear_shape shapes[] = {
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
    /* more rows over whole blocks and groups: full and partial tiles, panels and chunks */
    {18, 65, 256},
    {23, 37, 768},
    {29, 64, 512},
    {205, 33, 1280},
    {395, 7, 288},
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

static oq_linear_args args_of(const kc_linear *p, oq_tensor y)
{
    return (oq_linear_args){.spec = &p->spec,
                            .packed = p->packed.data,
                            .bias = p->has_bias ? p->bias.data : NULL,
                            .scratch = p->scratch.data,
                            .x = p->x.t,
                            .y = y};
}

static const char *verdict(kcheck *kc, kc_row *row, const kc_linear *p)
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

static const char *run_twice(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, kc_linear *p)
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

/* What the kernel loses by taking x in fixed point; `run` columns of it have one step. 0: it does not. */
static double fixed_loss(const oq_device *device, const oq_linear_kernel *kernel, const oq_linear_spec *spec,
                         const oq_dtype *x, int64_t m, int64_t *run, double *times)
{
    *run = 32;
    *times = 0.0;
    if (!strstr(kernel->name, "_ai16_")) return 0.0;
#if defined(__x86_64__)
    if (strstr(kernel->name, "_avx512vnni")) {
        if (oq_panel_whole_multiplies(device, spec, x, m)) {
            *times = oq_panel_whole_times(spec);
            return oq_panel_whole_loss(spec, run);
        }
        if (!oq_panel_fixed_avx512vnni_takes(spec)) return 0.0;
    }
#endif
    (void)spec;
    return m > OQ_PANEL_FEW || !oq_panel_fixed_pays(device) ? 0.0
           : x == &oq_dtype_bf16                            ? (double)FIXED_LOSS_16
                                                            : (double)FIXED_LOSS_24;
}

/* Does the kernel hand many rows of BF16 on to pairs of bf16? Those of 256 bits stay with f32, whatever else there is. */
static bool hands_to_pairs(const oq_device *device, const oq_linear_kernel *kernel)
{
    if (strstr(kernel->name, "_ai16_avx512vnni")) return device->features & OQ_CPU_AVX512BF16;
    if (strstr(kernel->name, "_ai16_dotprod")) return device->features & OQ_CPU_BF16;
    return false;
}

/* Does the kernel round weights to bf16 first? */
static bool rounds(const oq_device *device, const oq_linear_kernel *kernel, const oq_linear_spec *spec,
                   const oq_dtype *x, int64_t m, double loss)
{
#if defined(__x86_64__) || defined(__aarch64__)
    if (x == &oq_dtype_bf16 && strstr(kernel->name, "_wany_abf16_amx")) return true;
    if (x == &oq_dtype_bf16 &&
        (strstr(kernel->name, "_wany_abf16_") || (hands_to_pairs(device, kernel) && !(loss > 0))))
        return oq_panel_any_pairs_rounds(spec, m);
#endif
    (void)device, (void)kernel, (void)spec, (void)x, (void)m, (void)loss;
    return false;
}

/* The kernel whose arithmetic a product has: the one that does it in place of `kernel`, or that itself. */
static const oq_linear_kernel *does(const oq_device *device, const oq_linear_kernel *kernel,
                                    const oq_linear_spec *spec, const oq_dtype *x, int64_t m)
{
#if defined(__x86_64__)
    const bool hands_on = strstr(kernel->name, "_wany_abf16_amx");
    const oq_linear_kernel *const other = hands_on ? oq_panel_any_amx_hands_to(device, spec, x, m) : NULL;
    if (other) return other;
#endif
    (void)device, (void)spec, (void)x, (void)m;
    return kernel;
}

/* As a backend asks: for schemes that are not bare, only those that take them. */
static bool takes(const oq_linear_kernel *kernel, const oq_linear_spec *spec)
{
    return (kernel->around || oq_scheme_is_bare(&spec->scheme)) && kernel->accepts(spec);
}

/* `level`: where x is in fixed point it is one number, as large as whole numbers can be. */
static void check_shape(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, const oq_scheme *scheme,
                        int index, kc_linear_shape s, bool level)
{
    const kc_class class = (kc_class)(index % KC_N_CLASSES);
    const int variant = index * 7 % 16;
    const bool all_codes = index % 3 == 1 && class != KC_DENORMALS;
    kc_linear p = {.s = s};
    kc_rng rng = kc_rng_new(kc, scheme->weight->name, index);
    p.spec = (oq_linear_spec){*scheme, p.s.n, p.s.k};
    if (!takes(kernel, &p.spec) || !kc_turn(kc)) return;
    p.exact = kernel->need && scheme->act == &oq_dtype_i8 && scheme->weight->element == &oq_dtype_i8 &&
              oq_scheme_is_bare(scheme) && scheme->act_scale != OQ_ACT_DYNAMIC_GROUP;
    kc_linear_weight(kc, &rng, &p, class, all_codes);
    kc_linear_input(kc, &rng, &p, class, variant);
    const oq_linear_kernel *const doing = does(kc->device, kernel, &p.spec, p.x.t.dtype, p.s.m);
    p.loss = fixed_loss(kc->device, doing, &p.spec, p.x.t.dtype, p.s.m, &p.run, &p.times);
    if (level && p.loss > 0) kc_linear_level(kc, &p);
    p.rounded = rounds(kc->device, doing, &p.spec, p.x.t.dtype, p.s.m, p.loss);
    kc_linear_expect(kc, &p);
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
    kc_linear_free(kc, &p);
}

static void check_case(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, const oq_scheme *scheme,
                       int index)
{
    check_shape(kc, row, kernel, scheme, index, shapes[(size_t)index % OQ_COUNT(shapes)], false);
}

/* What layers do around their products, one by one and together. */
static const oq_scheme around_schemes[] = {
    {.weight = &oq_format_int4z_g32, .order = true},
    {.weight = &oq_format_nvfp4, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_STATIC_NVFP4, .smooth = true},
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
    {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN, .rotate = 16},
    {.weight = &oq_format_int8_channel,
     .act = &oq_dtype_i8,
     .act_scale = OQ_ACT_DYNAMIC_TOKEN,
     .outlier = 2.0f},
    {.weight = &oq_format_int4_g128, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN4, .rotate = 16},
    {.weight = &oq_format_int4_g128, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
    {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_ZERO},
    {.weight = &oq_format_int4_g32, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_ZERO, .smooth = true},
    {.weight = &oq_format_int4z_g64, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_LEAST, .rank = 8},
    {.weight = &oq_format_int4_g64, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_INT4},
    {.weight = &oq_format_nvfp4, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_STATIC_TENSOR, .smooth = true},
    {.weight = &oq_format_int8_channel,
     .act = &oq_dtype_i8,
     .act_scale = OQ_ACT_DYNAMIC_TOKEN,
     .act_min_rows = 32,
     .rank = 8},
    {.weight = &oq_format_int8_channel,
     .act = &oq_dtype_i8,
     .act_scale = OQ_ACT_DYNAMIC_TOKEN,
     .act_min_rows = 32},
    {.weight = &oq_format_fp8_e4m3_channel,
     .act = &oq_dtype_f8_e4m3,
     .act_scale = OQ_ACT_DYNAMIC_TOKEN,
     .act_min_rows = 32},
    {.weight = &oq_format_int4z_g64,
     .act = &oq_dtype_i8,
     .act_scale = OQ_ACT_DYNAMIC_LEAST,
     .act_min_rows = 4},
    {.weight = &oq_format_int4_g64, .smooth = true, .order = true, .rotate = 64, .rank = 32},
    {.weight = &oq_format_bf16, .rank = 1},
};

static void check_around(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel)
{
    static const kc_linear_shape sizes[] = {
        {1, 1, 64}, {3, 17, 128}, {33, 40, 192}, {513, 20, 64}, {70, 97, 320}};
    for (size_t i = 0; i < OQ_COUNT(around_schemes); i++)
        for (size_t s = 0; s < OQ_COUNT(sizes); s++)
            for (int index = 0; index < 2 * KC_N_CLASSES; index++) {
                const bool whole =
                    around_schemes[i].outlier > 0 || around_schemes[i].act_scale == OQ_ACT_DYNAMIC_NVFP4;
                if (whole && index % KC_N_CLASSES == KC_NAN_ROW) continue; /* it reaches every row */
                check_shape(kc, row, kernel, &around_schemes[i], index, sizes[s], false);
            }
}

/* Several rounds of rows, and blocks whose x is beyond L2, so that a task takes as many panels as its sums have room for; one
 * case each of types with engines of their own. */
static void check_tall(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel)
{
    enum { PLAIN_BF16 = 15 }; /* KC_NORMAL; x in BF16, a bias */
    static const oq_format *const formats[] = {&oq_format_bf16, &oq_format_q4_0, &oq_format_int8z_g32};
    static const kc_linear_shape rounds = {800, 200, 1056}, stream = {1600, 129, 2048};
    if (!kernel->need) return; /* the reference is slow by intent */
    for (size_t i = 0; i < OQ_COUNT(formats); i++) {
        const oq_scheme scheme = {.weight = formats[i]};
        check_shape(kc, row, kernel, &scheme, PLAIN_BF16, rounds, false);
        if (strstr(kernel->name, "_amx")) check_shape(kc, row, kernel, &scheme, PLAIN_BF16, stream, false);
    }
}

/* The largest codes under the largest scales times x that is all as large as it can be: sums of whole numbers hold them. */
static void check_extremes(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, const oq_format *f)
{
    static const struct {
        kc_linear_shape s;
        int index; /* all codes, KC_POSITIVE; x in BF16, or in F32 */
    } cases[] = {{{2, 33, 512}, 19}, {{2, 33, 512}, 40}, {{20, 65, 512}, 19}};
    const oq_scheme scheme = {.weight = f};
    for (size_t i = 0; i < OQ_COUNT(cases); i++)
        check_shape(kc, row, kernel, &scheme, cases[i].index, cases[i].s, true);
}

/* ---- speed --------------------------------------------------------------------------------------------- */

static const kc_linear_shape bench_shapes[] = {
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

static void bench_case(kcheck *kc, const oq_linear_kernel *kernel, const oq_scheme *scheme, kc_linear_shape s)
{
    kc_linear p = {.s = s, .spec = {*scheme, s.n, s.k}};
    kc_rng rng = kc_rng_new(kc, "bench", 0);
    if (!kernel->accepts(&p.spec)) return;
    kc_linear_weight(kc, &rng, &p, KC_NORMAL, false);
    kc_linear_input(kc, &rng, &p, KC_NORMAL, scheme->weight == &oq_format_f32 ? 8 : 11);
    p.packed = kc_buf_new(kc, kernel->packed_bytes(&p.spec), 0);
    p.scratch = kc_buf_new(kc, kernel->scratch_bytes(&p.spec, s.m), 0);
    kernel->pack(p.packed.data, &p.view, &p.spec);
    bench_job job = {kc, kernel, args_of(&p, p.y.t)};
    char scheme_text[96], text[160];
    oq_scheme_describe(scheme, scheme_text, sizeof scheme_text);
    snprintf(text, sizeof text, "m %lld n %lld k %lld %s", (long long)s.m, (long long)s.n, (long long)s.k,
             scheme_text);
    kc_bench(kc, kernel->name, text, 2.0 * (double)s.m * (double)s.n * (double)s.k, bench_once, &job);
    kc_linear_free(kc, &p);
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
            const kc_linear_shape at = bench_shapes[s];
            if (!kernel->need && at.m * at.n * at.k > 100000000)
                continue; /* the reference is slow by intent */
            bench_case(kc, kernel, &schemes[i], at);
        }
}

/* Kernels for every format: all shapes once for each scheme are enough. */
static bool takes_all(const oq_linear_kernel *kernel)
{
    return strstr(kernel->name, "_wany_") || strstr(kernel->name, "_wcode_");
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
        for (size_t f = 0; oq_format_list[f]; f++) {
            if (strstr(kernel->name, "_ai16_") && kc_encodes(oq_format_list[f]))
                check_extremes(kc, &row, kernel, oq_format_list[f]);
            for (size_t t = 0; t < OQ_COUNT(treatments); t++) {
                const oq_scheme scheme = {
                    .weight = oq_format_list[f], .act = treatments[t].act, .act_scale = treatments[t].how};
                if (!sensible(&scheme) || !kc_encodes(scheme.weight)) continue;
                for (int c = 0; c < (takes_all(kernel) ? CASES / 3 : CASES); c++)
                    check_case(kc, &row, kernel, &scheme, c);
            }
        }
        if (kernel->around)
            check_around(kc, &row, kernel);
        else
            check_tall(kc, &row, kernel);
        kc_row_print(&row);
    }
}
