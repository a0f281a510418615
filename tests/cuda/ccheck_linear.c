/* ccheck_linear.c -- the products: every kernel that accepts a scheme, on sizes with tails and on real ones
 * (there, sampled rows and columns), against the formats' own decoding and quantization with sums in double.
 */
#include "ccheck.h"

#include "base/size.h"
#include "format/float4.h"

#include <math.h>

#define MAX_SAMPLED 48

typedef struct scheme_row {
    const char *name;
    oq_scheme scheme;
} scheme_row;

#define SCHEME(label, format, type, scale)                                                                   \
    {                                                                                                        \
        label,                                                                                               \
        {                                                                                                    \
            .weight = &oq_format_##format, .act = type, .act_scale = OQ_ACT_##scale                          \
        }                                                                                                    \
    }
#define E4M3 &oq_dtype_f8_e4m3
#define E2M1 &oq_dtype_f4_e2m1
static const scheme_row schemes[] = {
    SCHEME("f32", f32, NULL, NONE),
    SCHEME("bf16", bf16, NULL, NONE),
    SCHEME("f16", f16, NULL, NONE),
    SCHEME("fp8 tensor x token", fp8_e4m3_tensor, E4M3, DYNAMIC_TOKEN),
    SCHEME("fp8 channel x token", fp8_e4m3_channel, E4M3, DYNAMIC_TOKEN),
    SCHEME("fp8 channel x static", fp8_e4m3_channel, E4M3, STATIC_TENSOR),
    SCHEME("fp8 tensor x static", fp8_e4m3_tensor, E4M3, STATIC_TENSOR),
    SCHEME("fp8 block128 x group128", fp8_e4m3_block128, E4M3, DYNAMIC_GROUP),
    SCHEME("fp8 channel x none", fp8_e4m3_channel, NULL, NONE),
    SCHEME("fp8 block128 x none", fp8_e4m3_block128, NULL, NONE),
    SCHEME("int8 channel x token", int8_channel, &oq_dtype_i8, DYNAMIC_TOKEN),
    SCHEME("int8 channel x static", int8_channel, &oq_dtype_i8, STATIC_TENSOR),
    SCHEME("int8 tensor x token", int8_tensor, &oq_dtype_i8, DYNAMIC_TOKEN),
    SCHEME("int8 channel x none", int8_channel, NULL, NONE),
    SCHEME("mxfp8 x none", mxfp8, NULL, NONE),
    SCHEME("mxfp8 x mx", mxfp8, E4M3, DYNAMIC_MX),
    SCHEME("mxfp8 x mx floor", mxfp8, E4M3, DYNAMIC_MX_FLOOR),
    SCHEME("mxfp8 x mx even", mxfp8, E4M3, DYNAMIC_MX_EVEN),
    SCHEME("mxfp4 x none", mxfp4, NULL, NONE),
    SCHEME("mxfp4 x mx", mxfp4, E2M1, DYNAMIC_MX),
    SCHEME("mxfp4 x mx ceil", mxfp4, E2M1, DYNAMIC_MX_CEIL),
    SCHEME("mxfp4 x mx even", mxfp4, E2M1, DYNAMIC_MX_EVEN),
    SCHEME("mxfp4 x mx fp8", mxfp4, E4M3, DYNAMIC_MX),
    SCHEME("mxfp4_q725 x mx_q725", mxfp4_q725, E2M1, DYNAMIC_MX_Q725),
    SCHEME("mxfp4_dual x none", mxfp4_dual, NULL, NONE),
    SCHEME("mxfp4_dual x dual", mxfp4_dual, E2M1, DYNAMIC_MX_DUAL),
    SCHEME("nvfp4 x none", nvfp4, NULL, NONE),
    SCHEME("nvfp4 x static", nvfp4, E2M1, STATIC_NVFP4),
    SCHEME("nvfp4_rows x static", nvfp4_rows, E2M1, STATIC_NVFP4),
    SCHEME("nvfp4_inverse x static", nvfp4_inverse, E2M1, STATIC_NVFP4),
    SCHEME("nvfp4_inverse_rows x none", nvfp4_inverse_rows, NULL, NONE),
    SCHEME("nf4 x none", nf4_b64, NULL, NONE),
    SCHEME("nf4 nested x none", nf4_b64_nested, NULL, NONE),
    SCHEME("fp4 x none", fp4_b64, NULL, NONE),
    SCHEME("fp4 nested x none", fp4_b64_nested, NULL, NONE),
    SCHEME("nf4 b32 x none", nf4_b32, NULL, NONE),
    SCHEME("nf4 b128 x none", nf4_b128, NULL, NONE),
    SCHEME("nf4 b128 nested x none", nf4_b128_nested, NULL, NONE),
    SCHEME("fp4 b256 x none", fp4_b256, NULL, NONE),
    SCHEME("int4 g16 x none", int4_g16, NULL, NONE),
    SCHEME("int4 g32 f16 x none", int4_g32_f16, NULL, NONE),
    SCHEME("int4z g64 bf16 x none", int4z_g64_bf16, NULL, NONE),
    SCHEME("int4 g32 x none", int4_g32, NULL, NONE),
    SCHEME("int4 g64 x none", int4_g64, NULL, NONE),
    SCHEME("int4 g128 x none", int4_g128, NULL, NONE),
    SCHEME("int4z g32 x none", int4z_g32, NULL, NONE),
    SCHEME("int4z g128 x none", int4z_g128, NULL, NONE),
    SCHEME("int2 g32 x none", int2_g32, NULL, NONE),
    SCHEME("int3z g64 x none", int3z_g64, NULL, NONE),
    SCHEME("int8 g128 x none", int8_g128, NULL, NONE),
    SCHEME("int8z g32 x none", int8z_g32, NULL, NONE),
    SCHEME("int4 g128 x int8 token", int4_g128, &oq_dtype_i8, DYNAMIC_TOKEN),
    SCHEME("int4 g64 bf16 x int4", int4_g64_bf16, &oq_dtype_i8, DYNAMIC_INT4),
    SCHEME("int4 g64 x uint4", int4_g64, &oq_dtype_i8, DYNAMIC_UINT4),
    SCHEME("nvfp4 x fp8 token", nvfp4, E4M3, DYNAMIC_TOKEN),
    SCHEME("q4_0", q4_0, NULL, NONE),
    SCHEME("q4_1", q4_1, NULL, NONE),
    SCHEME("q5_0", q5_0, NULL, NONE),
    SCHEME("q5_1", q5_1, NULL, NONE),
    SCHEME("q8_0", q8_0, NULL, NONE),
    SCHEME("iq4_nl", iq4_nl, NULL, NONE),
    SCHEME("q2_k", q2_k, NULL, NONE),
    SCHEME("q3_k", q3_k, NULL, NONE),
    SCHEME("q4_k", q4_k, NULL, NONE),
    SCHEME("q5_k", q5_k, NULL, NONE),
    SCHEME("q6_k", q6_k, NULL, NONE),
    SCHEME("iq4_xs", iq4_xs, NULL, NONE),
    SCHEME("tq2_0", tq2_0, NULL, NONE),
};

typedef struct linear_case {
    oq_linear_spec spec;
    const char *scheme_name;
    int64_t m;
    const oq_dtype *type; /* of x and y */
    bool bias, strided;
    cc_class kind;
    /* made by setup */
    oq_planes_mut planes;
    float input_scale;
    float *bias_host;
    void *bias_device;
    cc_tensor x;
} linear_case;

/* For measurements: 128 rows encoded, and repeated. Nested formats begin their tensor's scales with a map. */
static void encode_repeated(ccheck *c, const oq_format *f, oq_planes_mut *planes, const float *w, int64_t n,
                            int64_t k)
{
    enum { ROWS = 128, NESTED_HEAD = 257 * 4 };
    oq_planes_mut few = {{NULL}};
    for (int p = 0; p < OQ_PLANE_INPUT_SCALE; p++)
        if (planes->plane[p]) few.plane[p] = cc_new(c, f->plane_bytes(f, (oq_plane)p, ROWS, k));
    f->encode(f, &few, w, ROWS, k);
    for (int p = 0; p < OQ_PLANE_INPUT_SCALE; p++) {
        if (!planes->plane[p]) continue;
        const size_t some = f->plane_bytes(f, (oq_plane)p, ROWS, k),
                     all = f->plane_bytes(f, (oq_plane)p, n, k);
        const size_t head = p == OQ_PLANE_GLOBAL && some > NESTED_HEAD ? NESTED_HEAD : 0;
        memcpy(planes->plane[p], few.plane[p], some);
        for (size_t at = some; at < all; at++)
            ((char *)planes->plane[p])[at] = ((char *)planes->plane[p])[at - (some - head)];
        oq_free(c->env, few.plane[p]);
    }
}

static void setup(ccheck *c, linear_case *t)
{
    const oq_format *f = t->spec.scheme.weight;
    const int64_t n = t->spec.n, k = t->spec.k;
    float *w = cc_new(c, (size_t)(n * k) * sizeof *w), *x = cc_new(c, (size_t)(t->m * k) * sizeof *x);
    const bool repeat = c->bench_ms > 0 && n > 128 && n % 128 == 0;
    for (int64_t i = 0; i < (repeat ? 128 : n) * k; i++)
        w[i] = (c->bench_ms > 0 ? cc_rough_normal(c) : cc_normal(c)) / sqrtf((float)k);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->planes >> p & 1u ? f->plane_bytes(f, (oq_plane)p, n, k) : 0;
        t->planes.plane[p] = bytes ? cc_new(c, bytes) : NULL;
    }
    if (repeat)
        encode_repeated(c, f, &t->planes, w, n, k);
    else
        f->encode(f, &t->planes, w, n, k);
    t->input_scale = t->spec.scheme.act_scale == OQ_ACT_STATIC_NVFP4 ? 6.0f / (6.0f * 448.0f) : 6.0f / 448.0f;
    t->planes.plane[OQ_PLANE_INPUT_SCALE] = &t->input_scale;
    if (c->bench_ms > 0)
        for (int64_t i = 0; i < t->m * k; i++) x[i] = cc_rough_normal(c);
    else
        cc_fill(c, t->kind, x, t->m, k);
    t->x = cc_tensor_new(c, t->type, t->m, k, t->strided ? k + 24 : 0, x);
    if (t->bias) {
        t->bias_host = cc_new(c, (size_t)n * sizeof(float));
        for (int64_t i = 0; i < n; i++) t->bias_host[i] = cc_normal(c);
        if (t->type->bytes == 2) /* networks keep their biases in the compute type's values */
            for (int64_t i = 0; i < n; i++) {
                uint16_t half;
                t->type->from_f32(&half, t->bias_host + i, 1);
                t->type->to_f32(t->bias_host + i, &half, 1);
            }
        t->bias_device = cc_upload(c, t->bias_host, (size_t)n * sizeof(float));
    }
    oq_free(c->env, w);
    oq_free(c->env, x);
}

static void teardown(ccheck *c, linear_case *t)
{
    for (int p = 0; p < OQ_PLANE_INPUT_SCALE; p++) oq_free(c->env, t->planes.plane[p]);
    cc_tensor_free(c, &t->x);
    oq_free(c->env, t->bias_host);
    if (t->bias_device) cc_release(c, t->bias_device);
}

static oq_planes planes_of(const linear_case *t)
{
    oq_planes p;
    for (int i = 0; i < OQ_N_PLANES; i++) p.plane[i] = t->planes.plane[i];
    return p;
}

/* Row `row` of x as the product sees it: quantized and multiplied back where the scheme says so. */
static void effective_row(ccheck *c, const linear_case *t, int64_t row, double *out)
{
    const int64_t k = t->spec.k;
    const oq_scheme *s = &t->spec.scheme;
    float *x = cc_new(c, (size_t)k * sizeof *x);
    for (int64_t i = 0; i < k; i++) x[i] = cc_get(&t->x, row, i);
    if (s->act) {
        const int64_t group = oq_act_run(s->act_scale, k);
        char *codes = cc_new(c, (size_t)k);
        float *scales = cc_new(c, (size_t)oq_ceil_div(k, group) * sizeof *scales);
        oq_act_quantize_row(s, t->input_scale, x, k, codes, scales);
        s->act->to_f32(x, codes, (size_t)k);
        for (int64_t i = 0; i < k; i++) out[i] = (double)x[i] * (double)scales[i / group];
        oq_free(c->env, codes);
        oq_free(c->env, scales);
    } else {
        for (int64_t i = 0; i < k; i++) out[i] = (double)x[i];
    }
    oq_free(c->env, x);
}

/* Relative error that the arithmetic of a kernel may add to the sum of magnitudes. */
static double sum_error(const linear_case *t, const char *kernel)
{
    const double k = (double)t->spec.k;
    double e = (k / 16 + 16) * 0x1p-23;                     /* f32 sums, in blocks of at least 16 */
    if (strstr(kernel, "aany")) e = (k / 4 + 16) * 0x1p-23; /* one long chain */
    if (strstr(kernel, "afp8")) e += 0x1p-9;       /* Hopper keeps 13 bits below the largest of 32 products */
    if (strstr(kernel, "wany_abf16")) e += 0x1p-8; /* weights rounded to bf16 */
    if (strstr(kernel, "wgroup") && t->type == &oq_dtype_bf16)
        e += 0x1p-8; /* weights (and some activations) in bf16 */
    if (t->spec.scheme.act && t->spec.scheme.act->bytes == 1) e += 4 * 0x1p-23; /* scales multiplied in f32 */
    return e;
}

static bool compare(ccheck *c, const linear_case *t, cc_row *row, const float *got)
{
    const int64_t n = t->spec.n, k = t->spec.k;
    const oq_format *f = t->spec.scheme.weight;
    const oq_planes planes = planes_of(t);
    const int64_t rows = oq_min_i64(t->m, MAX_SAMPLED), cols = oq_min_i64(n, MAX_SAMPLED * 4);
    double *x = cc_new(c, (size_t)(rows * k) * sizeof *x);
    float *w = cc_new(c, (size_t)k * sizeof *w);
    bool ok = true;
    for (int64_t i = 0; i < rows; i++)
        effective_row(c, t, i * (t->m - 1) / oq_max_i64(rows - 1, 1), x + i * k);
    const double e = sum_error(t, row->kernel);
    for (int64_t j = 0; j < cols; j++) {
        const int64_t col = j * (n - 1) / oq_max_i64(cols - 1, 1);
        f->decode_row(f, w, &planes, col, n, k);
        for (int64_t i = 0; i < rows; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t l = 0; l < k; l++) {
                const double p = x[i * k + l] * (double)w[l];
                sum += p;
                magnitude += fabs(p);
            }
            if (t->bias) sum += (double)t->bias_host[col], magnitude += fabs((double)t->bias_host[col]);
            const int64_t at = i * (t->m - 1) / oq_max_i64(rows - 1, 1);
            ok = cc_near(row, got[at * n + col], sum, e * magnitude + cc_store_error(t->type, sum)) && ok;
        }
    }
    oq_free(c->env, x);
    oq_free(c->env, w);
    return ok;
}

/* Does it multiply the codes of both operands? Those are FP8's and INT8's own kernels, which never take the reference. */
static bool multiplies_codes(const oq_linear_kernel *kernel)
{
    return strstr(kernel->name, "_afp8_") || strstr(kernel->name, "_ai8_");
}

static const char *way_name(oq_cuda_way way)
{
    return way == OQ_CUDA_WAY_LT ? "cuBLASLt" : way == OQ_CUDA_WAY_OWN ? "own" : "reference";
}

static void check_kernel(ccheck *c, const linear_case *t, const oq_linear_kernel *kernel, cc_row *row)
{
    const oq_linear_spec *spec = &t->spec;
    const oq_planes planes = planes_of(t);
    char *packed = cc_new(c, kernel->packed_bytes(spec));
    kernel->pack(packed, &planes, spec);
    void *packed_device = cc_upload(c, packed, kernel->packed_bytes(spec));
    oq_free(c->env, packed);
    const size_t scratch_bytes = kernel->scratch_bytes(spec, t->m);
    cc_tensor scratch =
        cc_tensor_new(c, &oq_dtype_f32, 1, (int64_t)oq_align_up(scratch_bytes, 4) / 4 + 1, 0, NULL);
    cc_tensor y = cc_tensor_new(c, t->type, t->m, spec->n, t->strided ? spec->n + 16 : 0, NULL);
    /* The first element past what was asked for must survive. */
    const oq_linear_args args = {.spec = spec,
                                 .packed = packed_device,
                                 .bias = t->bias_device,
                                 .scratch = scratch.device.data,
                                 .x = t->x.device,
                                 .y = y.device};
    c->gpu->way = OQ_CUDA_WAY_LT;
    kernel->run(c->gpu, &args);
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    const oq_cuda_way way = c->gpu->way;
    const bool fast = way != OQ_CUDA_WAY_REFERENCE || !multiplies_codes(kernel);
    float *got = cc_new(c, (size_t)(t->m * spec->n) * sizeof *got);
    float *first = cc_new(c, (size_t)(t->m * spec->n) * sizeof *got);
    bool intact = cc_tensor_read(c, &y, got);
    float *tail = cc_new(c, (size_t)scratch.host.cols * sizeof *tail);
    intact = cc_tensor_read(c, &scratch, tail) && isnan(tail[scratch.host.cols - 1]) && intact;
    const bool near = compare(c, t, row, got);
    memcpy(first, got, (size_t)(t->m * spec->n) * sizeof *got);
    kernel->run(c->gpu, &args);
    cc_tensor_read(c, &y, got);
    const bool same = memcmp(first, got, (size_t)(t->m * spec->n) * sizeof *got) == 0;
    cc_case(c, row, intact && near && same && fast, "%s m %lld n %lld k %lld %s%s%s class %d by %s:%s%s%s%s",
            t->scheme_name, (long long)t->m, (long long)spec->n, (long long)spec->k, t->type->name,
            t->bias ? " bias" : "", t->strided ? " strided" : "", (int)t->kind, way_name(way),
            intact ? "" : " guard", near ? "" : " values", same ? "" : " differs on repeat",
            fast ? "" : " the reference");
    oq_free(c->env, got);
    oq_free(c->env, first);
    oq_free(c->env, tail);
    cc_tensor_free(c, &scratch);
    cc_tensor_free(c, &y);
    cc_release(c, packed_device);
}

/* Does this run check the kernel on this case? */
static bool takes(const ccheck *c, const linear_case *t, const oq_linear_kernel *kernel)
{
    const double work = (double)t->m * (double)t->spec.n * (double)t->spec.k;
    return cc_wants(c, kernel->name) && kernel->need <= (uint64_t)c->gpu->capability && !kernel->around &&
           kernel->accepts(&t->spec) && (!strstr(kernel->name, "aany") || work <= 1e10);
}

static void check_case(ccheck *c, linear_case *t, cc_row *rows)
{
    size_t first = 0;
    while (oq_cuda_linear_list[first] && !takes(c, t, oq_cuda_linear_list[first])) first++;
    if (!oq_cuda_linear_list[first]) return;
    setup(c, t);
    for (size_t i = first; oq_cuda_linear_list[i]; i++) {
        if (!takes(c, t, oq_cuda_linear_list[i])) continue;
        rows[i].kernel = oq_cuda_linear_list[i]->name;
        check_kernel(c, t, oq_cuda_linear_list[i], &rows[i]);
        if (!multiplies_codes(oq_cuda_linear_list[i])) continue;
        c->gpu->force = OQ_CUDA_WAY_OWN;
        check_kernel(c, t, oq_cuda_linear_list[i], &rows[i]);
        c->gpu->force = OQ_CUDA_WAY_LT;
    }
    teardown(c, t);
}

static void check_scheme(ccheck *c, const scheme_row *s, cc_row *rows)
{
    static const int64_t sizes[][3] = {
        {1, 16, 16},       {5, 48, 64},       {17, 33, 40},      {1, 200, 256}, {48, 200, 1152},
        {16, 136, 128},    {77, 192, 192},    {128, 256, 512},   {19, 33, 48},  {129, 640, 1536},
        {256, 1024, 1040}, {333, 3840, 2560}, {4224, 3840, 3840}};
    const size_t n = c->brief ? 9 : OQ_COUNT(sizes);
    for (size_t i = 0; i < n; i++)
        for (int v = 0; v < 4; v++) {
            if (!cc_mine(c)) continue;
            if (i + 2 >= OQ_COUNT(sizes) && v % 2 == 0) continue; /* large ones: two variants */
            linear_case t = {.spec = {s->scheme, sizes[i][1], sizes[i][2]},
                             .scheme_name = s->name,
                             .m = sizes[i][0],
                             .type = v == 3 && i + 1 < OQ_COUNT(sizes) ? &oq_dtype_f32 : &oq_dtype_bf16,
                             .bias = v != 0,
                             .strided = v == 2,
                             .kind = (cc_class)((i + (size_t)v) % CC_N_CLASSES)};
            check_case(c, &t, rows);
        }
}

/* Every format of the list that can be written, whatever kernel takes it: the plugin knows formats by name and by what they
 * say of themselves, so a new one must not pass for another. */
static void check_formats(ccheck *c, cc_row *rows)
{
    static const int64_t sizes[][3] = {{1, 48, 512}, {5, 33, 96}, {40, 64, 1024}, {40, 16, 4096}};
    for (size_t f = 0; oq_format_list[f]; f++) {
        const oq_format *const format = oq_format_list[f];
        for (size_t i = 0; format->encode && i < OQ_COUNT(sizes); i++) {
            if (!cc_mine(c)) continue;
            linear_case t = {.spec = {{.weight = format}, sizes[i][1], sizes[i][2]},
                             .scheme_name = format->name,
                             .m = sizes[i][0],
                             .type = i == 2 ? &oq_dtype_f32 : &oq_dtype_bf16,
                             .bias = i != 0};
            cc_row any = {.kernel = "linear"};
            if (!c->filter)
                cc_case(c, &any, oq_backend_cuda.find_linear(c->gpu, &t.spec) != NULL,
                        "%s n %lld k %lld: no kernel takes it", format->name, (long long)t.spec.n,
                        (long long)t.spec.k);
            check_case(c, &t, rows);
        }
    }
}

/* ---- few rows and many of k: the second product of a text stream's feed-forward ------------------------- */

/* GELU of x within the product, against the operation and then the product. */
static void check_gelu(ccheck *c, const linear_case *t, const oq_linear_kernel *kernel,
                       const oq_linear_args *like, cc_row *row)
{
    const int64_t n = t->spec.n, k = t->spec.k;
    float *x = cc_new(c, (size_t)(t->m * k) * sizeof *x), *y = cc_new(c, (size_t)(2 * t->m * n) * sizeof *y);
    for (int64_t i = 0; i < t->m * k; i++) x[i] = cc_get(&t->x, i / k, i % k);
    bool intact = true;
    c->gpu->way = OQ_CUDA_WAY_LT;
    for (int j = 0; j < 2; j++) {
        cc_tensor in = cc_tensor_new(c, t->type, t->m, k, 0, x),
                  out = cc_tensor_new(c, t->type, t->m, n, 0, NULL);
        const oq_pre pre = {.unary = OQ_GELU_TANH, .a = in.device};
        oq_linear_args args = *like;
        args.x = in.device, args.y = out.device, args.pre = j ? NULL : &pre;
        if (j) oq_backend_cuda.ops(c->gpu)->unary(c->gpu, OQ_GELU_TANH, in.device, in.device);
        kernel->run(c->gpu, &args);
        cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
        intact = cc_tensor_read(c, &out, y + j * t->m * n) && intact;
        cc_tensor_free(c, &in);
        cc_tensor_free(c, &out);
    }
    const bool same = memcmp(y, y + t->m * n, (size_t)(t->m * n) * sizeof *y) == 0;
    cc_case(c, row, same && intact && c->gpu->way != OQ_CUDA_WAY_REFERENCE,
            "%s m %lld n %lld k %lld gelu by %s:%s%s", t->scheme_name, (long long)t->m, (long long)n,
            (long long)k, way_name(c->gpu->way), same ? "" : " values", intact ? "" : " guard");
    oq_free(c->env, x);
    oq_free(c->env, y);
}

static void check_narrow_gelu(ccheck *c, linear_case *t, const oq_linear_kernel *kernel, cc_row *row)
{
    const oq_planes planes = planes_of(t);
    const size_t bytes = kernel->packed_bytes(&t->spec);
    char *packed = cc_new(c, bytes);
    kernel->pack(packed, &planes, &t->spec);
    void *const scratch = cc_device(c, kernel->scratch_bytes(&t->spec, t->m) + 256);
    const oq_linear_args like = {
        .spec = &t->spec, .packed = cc_upload(c, packed, bytes), .bias = t->bias_device, .scratch = scratch};
    for (int own = 0; own < 2; own++) {
        c->gpu->force = own ? OQ_CUDA_WAY_OWN : OQ_CUDA_WAY_LT;
        check_gelu(c, t, kernel, &like, row);
        printf("{\"product\":\"%s "
               "%lldx%lldx%lld\",\"kernel\":\"%s\",\"way\":\"%s\",\"lt_found\":%d,\"lt_taken\":%d}\n",
               t->scheme_name, (long long)t->m, (long long)t->spec.n, (long long)t->spec.k, kernel->name,
               way_name(c->gpu->way), c->gpu->lt_found, c->gpu->lt_taken);
    }
    c->gpu->force = OQ_CUDA_WAY_LT;
    cc_release(c, (void *)(size_t)like.packed);
    cc_release(c, scratch);
    oq_free(c->env, packed);
}

static void check_narrow(ccheck *c, const scheme_row *s, cc_row *rows)
{
    linear_case t = {.spec = {s->scheme, 3072, 12288},
                     .scheme_name = s->name,
                     .m = 256,
                     .type = &oq_dtype_bf16,
                     .bias = true};
    size_t first = 0;
    while (oq_cuda_linear_list[first] && !takes(c, &t, oq_cuda_linear_list[first])) first++;
    const oq_linear_kernel *const kernel = oq_cuda_linear_list[first];
    if (!kernel || !multiplies_codes(kernel) || !cc_mine(c)) return;
    rows[first].kernel = kernel->name;
    check_case(c, &t, rows);
    if (!kernel->fuses || !(kernel->fuses(&t.spec) & OQ_FUSE_PRE)) return;
    setup(c, &t);
    check_narrow_gelu(c, &t, kernel, &rows[first]);
    teardown(c, &t);
}

/* ---- speed --------------------------------------------------------------------------------------------- */

typedef struct linear_bench {
    ccheck *c;
    const oq_linear_kernel *kernel;
    oq_linear_args args[12];
    int64_t sets;
} linear_bench;

static void bench_run(void *user, int64_t i)
{
    linear_bench *b = user;
    b->kernel->run(b->c->gpu, &b->args[i % b->sets]);
}

static void bench_kernel(ccheck *c, const scheme_row *s, const oq_linear_kernel *kernel, int64_t m, int64_t k,
                         int64_t n)
{
    linear_bench b = {.c = c, .kernel = kernel};
    linear_case t = {.spec = {s->scheme, n, k}, .m = m, .type = &oq_dtype_bf16, .bias = true};
    char shape[96], op[128];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)m, (long long)k, (long long)n);
    snprintf(op, sizeof op, "linear %s (%s)", s->name, b.kernel->name);
    if (!kernel->accepts(&t.spec) || !cc_measures(c, op, shape)) return;
    setup(c, &t);
    const oq_planes planes = planes_of(&t);
    const size_t packed_bytes = b.kernel->packed_bytes(&t.spec);
    b.sets = 2 + 192000000 / (2 * m * k + (int64_t)packed_bytes); /* more than the L2 holds */
    if (b.sets > (int64_t)OQ_COUNT(b.args)) b.sets = (int64_t)OQ_COUNT(b.args);
    char *packed = cc_new(c, packed_bytes);
    b.kernel->pack(packed, &planes, &t.spec);
    void *scratch = cc_device(c, b.kernel->scratch_bytes(&t.spec, m) + 256);
    void *y = cc_device(c, (size_t)(m * n) * 2);
    for (int64_t i = 0; i < b.sets; i++) {
        void *x = cc_upload(c, t.x.host.data, (size_t)(m * k) * 2);
        b.args[i] = (oq_linear_args){.spec = &t.spec,
                                     .packed = cc_upload(c, packed, packed_bytes),
                                     .bias = t.bias_device,
                                     .scratch = scratch,
                                     .x = oq_tensor_make(x, &oq_dtype_bf16, m, k),
                                     .y = oq_tensor_make(y, &oq_dtype_bf16, m, n)};
    }
    cc_bench(c, op, shape, 2.0 * (double)m * (double)n * (double)k,
             (double)packed_bytes + 2.0 * (double)(m * k) + 2.0 * (double)(m * n), bench_run, &b);
    for (int64_t i = 0; i < b.sets; i++) {
        cc_release(c, (void *)(size_t)b.args[i].packed);
        cc_release(c, b.args[i].x.data);
    }
    cc_release(c, scratch);
    cc_release(c, y);
    oq_free(c->env, packed);
    teardown(c, &t);
}

static void bench_scheme(ccheck *c, const scheme_row *s, const int64_t shape[3])
{
    for (size_t i = 0; oq_cuda_linear_list[i]; i++) {
        const oq_linear_kernel *kernel = oq_cuda_linear_list[i];
        if (cc_wants(c, kernel->name) && kernel->need <= (uint64_t)c->gpu->capability &&
            !strstr(kernel->name, "aany"))
            bench_kernel(c, s, kernel, shape[0], shape[1], shape[2]);
    }
}

static void bench_few_bits(ccheck *c)
{
    static const int64_t rows[] = {1, 16, 64, 256, 1024, 4096}, sizes[][2] = {{3072, 12288}, {4096, 24576}};
    static const char *const wanted[] = {"bf16", "int4 g128 x none", "nvfp4 x none", "nf4 x none",
                                         "mxfp8 x mx"};
    for (size_t i = 0; i < OQ_COUNT(sizes); i++)
        for (size_t w = 0; w < OQ_COUNT(wanted); w++)
            for (size_t s = 0; s < OQ_COUNT(schemes); s++)
                for (size_t r = 0; r < OQ_COUNT(rows) && !strcmp(schemes[s].name, wanted[w]); r++)
                    if (i == 0 || rows[r] != 1024)
                        bench_scheme(c, &schemes[s], (const int64_t[]){rows[r], sizes[i][0], sizes[i][1]});
}

void ccheck_linear(ccheck *c)
{
    static const int64_t shapes[][3] = {{4096, 3072, 12288}, {4608, 15360, 3072}, {4224, 10240, 3840},
                                        {4224, 3840, 11520}, {512, 3072, 9216},   {256, 12288, 3072}};
    if (c->bench_ms > 0) bench_few_bits(c);
    if (c->bench_ms > 0) {
        static const char *const wanted[] = {"bf16",
                                             "fp8 channel x token",
                                             "fp8 tensor x static",
                                             "fp8 block128 x group128",
                                             "int8 channel x token",
                                             "fp8 channel x none"};
        for (size_t i = 0; i < OQ_COUNT(shapes); i++)
            for (size_t w = 0; w < OQ_COUNT(wanted); w++)
                for (size_t s = 0; s < OQ_COUNT(schemes); s++)
                    if (!strcmp(schemes[s].name, wanted[w])) bench_scheme(c, &schemes[s], shapes[i]);
        return;
    }
    cc_row rows[16] = {{0}};
    for (size_t s = 0; s < OQ_COUNT(schemes); s++) check_scheme(c, &schemes[s], rows);
    check_formats(c, rows);
    for (size_t s = 0; s < OQ_COUNT(schemes) && !c->brief; s++) check_narrow(c, &schemes[s], rows);
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (rows[i].kernel) cc_row_print(&rows[i]);
}
