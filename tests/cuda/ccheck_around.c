/* ccheck_around.c -- layers that do something around their product, against the CPU's reference on the same planes. */
#include "ccheck.h"

#include "base/size.h"

#include <math.h>

typedef struct around_row {
    const char *name;
    oq_scheme scheme;
} around_row;

#define E4M3 &oq_dtype_f8_e4m3
#define E2M1 &oq_dtype_f4_e2m1
#define I8   &oq_dtype_i8
static const around_row rows[] = {
    {"smooth", {.weight = &oq_format_bf16, .smooth = true}},
    {"smooth, fp8 token",
     {.weight = &oq_format_fp8_e4m3_channel, .act = E4M3, .act_scale = OQ_ACT_DYNAMIC_TOKEN, .smooth = true}},
    {"shift, smooth", {.weight = &oq_format_bf16, .shift = 0.171875f, .smooth = true}},
    {"shift, int8 static",
     {.weight = &oq_format_int8_channel, .act = I8, .act_scale = OQ_ACT_STATIC_TENSOR, .shift = -1.3f}},
    {"order, int4", {.weight = &oq_format_int4_g32, .order = true}},
    {"rotate 256, int8 token",
     {.weight = &oq_format_int8_channel, .act = I8, .act_scale = OQ_ACT_DYNAMIC_TOKEN, .rotate = 256}},
    {"rotate 64, int4", {.weight = &oq_format_int4_g64, .rotate = 64}},
    {"rotate 16, mxfp4 mx",
     {.weight = &oq_format_mxfp4, .act = E2M1, .act_scale = OQ_ACT_DYNAMIC_MX, .rotate = 16}},
    {"rank 16, nvfp4", {.weight = &oq_format_nvfp4, .rank = 16}},
    {"smooth, order, rotate, rank",
     {.weight = &oq_format_int8_channel,
      .act = I8,
      .act_scale = OQ_ACT_DYNAMIC_TOKEN,
      .smooth = true,
      .order = true,
      .rotate = 64,
      .rank = 32}},
    {"outliers, int8",
     {.weight = &oq_format_int8_channel, .act = I8, .act_scale = OQ_ACT_DYNAMIC_TOKEN, .outlier = 3.0f}},
    {"outliers, int8 of LLM.int8",
     {.weight = &oq_format_int8_scb, .act = I8, .act_scale = OQ_ACT_DYNAMIC_TOKEN, .outlier = 3.0f}},
    {"smooth, rank, int4 of 64",
     {.weight = &oq_format_int4_g64_bf16,
      .act = I8,
      .act_scale = OQ_ACT_DYNAMIC_INT4,
      .smooth = true,
      .rank = 16}},
    {"shift, smooth, uint4 of 64",
     {.weight = &oq_format_int4_g64_bf16,
      .act = I8,
      .act_scale = OQ_ACT_DYNAMIC_UINT4,
      .shift = 0.171875f,
      .smooth = true}},
    {"nvfp4 under a scale of all",
     {.weight = &oq_format_nvfp4, .act = E2M1, .act_scale = OQ_ACT_DYNAMIC_NVFP4}},
    {"smooth, rank, nvfp4 of all",
     {.weight = &oq_format_nvfp4, .act = E2M1, .act_scale = OQ_ACT_DYNAMIC_NVFP4, .smooth = true, .rank = 8}},
};

/* One layer's planes, made up. */
static void planes_new(ccheck *c, const oq_linear_spec *s, oq_planes_mut *p)
{
    const int64_t n = s->n, k = s->k, rank = s->scheme.rank;
    const oq_format *f = s->scheme.weight;
    float *w = cc_new(c, (size_t)(n * k) * sizeof *w);
    for (int64_t i = 0; i < n * k; i++) w[i] = cc_normal(c) / sqrtf((float)k);
    for (int i = 0; i < OQ_N_PLANES; i++) {
        const size_t bytes =
            i == OQ_PLANE_INPUT_SCALE ? 4 : oq_scheme_plane_bytes(&s->scheme, (oq_plane)i, n, k);
        p->plane[i] = bytes ? cc_new(c, bytes) : NULL;
    }
    f->encode(f, p, w, n, k);
    *(float *)p->plane[OQ_PLANE_INPUT_SCALE] = 0.13f;
    for (int64_t i = 0; s->scheme.smooth && i < k; i++)
        ((float *)p->plane[OQ_PLANE_SMOOTH])[i] = 0.5f + fabsf(cc_normal(c));
    for (int64_t i = 0; s->scheme.order && i < k; i++)
        ((int32_t *)p->plane[OQ_PLANE_ORDER])[i] = (int32_t)((i * 7 + 3) % k);
    for (int64_t i = 0; i < rank * k; i++)
        ((float *)p->plane[OQ_PLANE_DOWN])[i] = cc_normal(c) / sqrtf((float)k);
    for (int64_t i = 0; i < rank * n; i++) ((float *)p->plane[OQ_PLANE_UP])[i] = cc_normal(c) / 8.0f;
    oq_free(c->env, w);
}

/* y of a backend's first kernel; false: it has none. */
static bool run_on(ccheck *c, const oq_backend *b, oq_device *d, const oq_linear_spec *s,
                   const oq_planes *planes, const float *bias, const oq_tensor *x, oq_tensor y)
{
    const oq_linear_kernel *k = b->find_linear(d, s);
    if (!k) return false;
    const size_t packed_bytes = k->packed_bytes(s), bias_bytes = (size_t)s->n * 4;
    void *packed_device = NULL, *scratch = NULL, *bias_device = NULL, *packed = cc_new(c, packed_bytes);
    k->pack(packed, planes, s);
    cc_ok(c, b->buffer_new(c->env, d, packed_bytes, &packed_device));
    cc_ok(c, b->buffer_new(c->env, d, k->scratch_bytes(s, x->rows), &scratch));
    cc_ok(c, b->buffer_new(c->env, d, bias_bytes, &bias_device));
    cc_ok(c, b->upload(c->env, d, packed_device, packed, packed_bytes));
    cc_ok(c, b->upload(c->env, d, bias_device, bias, bias_bytes));
    const oq_linear_args args = {
        .spec = s, .packed = packed_device, .bias = bias_device, .scratch = scratch, .x = *x, .y = y};
    k->run(d, &args);
    cc_ok(c, b->sync(c->env, d));
    b->buffer_free(c->env, d, packed_device);
    b->buffer_free(c->env, d, scratch);
    b->buffer_free(c->env, d, bias_device);
    oq_free(c->env, packed);
    return true;
}

/* What the CPU multiplies and the card does not is refused, in each of the kernels' ways. */
static void check_refused(ccheck *c, const oq_linear_spec *size, cc_row *row)
{
    static const oq_scheme unknown[] = {
        {.weight = &oq_format_int8_channel, .act = I8, .act_scale = OQ_ACT_DYNAMIC_INT4},
        {.weight = &oq_format_bf16, .act = I8, .act_scale = OQ_ACT_DYNAMIC_UINT4, .shift = 0.171875f},
        {.weight = &oq_format_int8_channel, .act = I8, .act_scale = OQ_ACT_DYNAMIC_TOKEN4},
        {.weight = &oq_format_int8_channel, .act = I8, .act_scale = OQ_ACT_DYNAMIC_TOKEN4, .smooth = true},
        {.weight = &oq_format_int4_g64, .act = I8, .act_scale = OQ_ACT_DYNAMIC_TOKEN4}};
    for (size_t i = 0; i < OQ_COUNT(unknown); i++) {
        const oq_linear_spec s = {.scheme = unknown[i], .n = size->n, .k = size->k};
        cc_case(c, row, !oq_backend_cuda.find_linear(c->gpu, &s), "a kernel takes activations of %s",
                oq_act_scale_name(unknown[i].act_scale));
    }
}

static void check_around(ccheck *c, const around_row *r, int64_t m, int64_t n, int64_t k,
                         const oq_dtype *type, cc_row *row)
{
    const oq_linear_spec s = {.scheme = r->scheme, .n = n, .k = k};
    oq_planes_mut made = {{NULL}};
    oq_planes planes;
    planes_new(c, &s, &made);
    for (int i = 0; i < OQ_N_PLANES; i++) planes.plane[i] = made.plane[i];
    float *v = cc_new(c, (size_t)(m * (n > k ? n : k)) * sizeof *v),
          *bias = cc_new(c, (size_t)n * sizeof *bias);
    cc_fill(c, CC_OUTLIERS, v, m, k);
    for (int64_t i = 0; i < m * k; i++) v[i] = fabsf(v[i]) > 20.0f ? v[i] / 10.0f : v[i];
    cc_fill(c, CC_NORMAL, bias, 1, n);
    cc_tensor x = cc_tensor_new(c, type, m, k, 0, v), y = cc_tensor_new(c, type, m, n, 0, NULL);
    check_refused(c, &s, row);
    const bool ran = run_on(c, &oq_backend_cuda, c->gpu, &s, &planes, bias, &x.device, y.device) &&
                     run_on(c, &oq_backend_cpu, c->cpu, &s, &planes, bias, &x.host, y.host);
    const bool intact = cc_tensor_read(c, &y, v);
    double error = 0, power = 0;
    for (int64_t i = 0; i < m * n; i++) {
        const double want = (double)cc_get(&y, i / n, i % n), off = (double)v[i] - want;
        error += off * off, power += want * want;
    }
    /* bf16 rounds prepared rows and the branch once more; codes that sit on an edge may fall to either side */
    const bool quantized = s.scheme.act != NULL, narrow = type->bytes == 2;
    const double bound = narrow ? 0x1p-7 : quantized ? 4e-3 : 2e-5, relative = sqrt(error / power);
    cc_case(c, row, ran && intact && cc_near(row, relative, 0, bound), "%s m %lld n %lld k %lld %s:%s%s %.2e",
            r->name, (long long)m, (long long)n, (long long)k, type->name, ran ? "" : " no kernel",
            intact ? "" : " guard", relative);
    for (int i = 0; i < OQ_N_PLANES; i++) oq_free(c->env, made.plane[i]);
    cc_tensor_free(c, &x);
    cc_tensor_free(c, &y);
    oq_free(c->env, v);
    oq_free(c->env, bias);
}

void ccheck_around(ccheck *c)
{
    static const int64_t sizes[][3] = {{1, 64, 256}, {37, 96, 512}, {130, 256, 768}};
    cc_row row = {.kernel = "linear_around_sm80"};
    if (c->bench_ms > 0 || !cc_wants(c, row.kernel)) return;
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        for (size_t s = 0; s < OQ_COUNT(sizes); s++)
            for (int f32 = 0; f32 < 2; f32++)
                if (cc_mine(c))
                    check_around(c, &rows[i], sizes[s][0], sizes[s][1], sizes[s][2],
                                 f32 ? &oq_dtype_f32 : &oq_dtype_bf16, &row);
    cc_row_print(&row);
}
