/* test_load.c -- plan and load over a tiny network: every tensor used or named, every scheme equal to its
 * decoded weights, scratch as measured, no allocation in a forward. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "cpu/cpu.h"
#include "format/float8.h"
#include "load/load.h"
#include "support/st_writer.h"
#include "support/tiny_net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 7 };
static const int32_t ids[ROWS] = {0, 3, 10, 3, 7, 1, 9};

/* ---- the network's tensors, f32 values exact in bf16 --------------------------------------------------- */

typedef struct weights {
    float embed[TINY_VOCAB * TINY_DIM], norm[TINY_DIM], w1[TINY_HIDDEN * TINY_DIM],
        w3[TINY_HIDDEN * TINY_DIM];
    float w2[TINY_DIM * TINY_HIDDEN], head[TINY_DIM * TINY_DIM], bias[TINY_DIM];
    uint16_t half[7][TINY_HIDDEN * TINY_DIM]; /* the same as bf16 */
} weights;

static void make(float *x, uint16_t *half, const char *name, int64_t rows, int64_t cols)
{
    oq_dummy_fill(x, name, (int64_t[]){rows, cols}, cols > 1 ? 2 : 1);
    for (int64_t i = 0; i < rows * cols; i++) {
        half[i] = oq_bf16_from_f32(x[i]);
        x[i] = oq_bf16_to_f32(half[i]);
    }
}

static weights *make_weights(void)
{
    weights *w = calloc(1, sizeof *w);
    assert_non_null(w);
    make(w->embed, w->half[0], "embed.weight", TINY_VOCAB, TINY_DIM);
    make(w->norm, w->half[1], "norm.weight", TINY_DIM, 1);
    make(w->w1, w->half[2], "w1.weight", TINY_HIDDEN, TINY_DIM);
    make(w->w3, w->half[3], "w3.weight", TINY_HIDDEN, TINY_DIM);
    make(w->w2, w->half[4], "w2.weight", TINY_DIM, TINY_HIDDEN);
    make(w->head, w->half[5], "head.weight", TINY_DIM, TINY_DIM);
    make(w->bias, w->half[6], "head.bias", TINY_DIM, 1);
    for (int i = 0; i < TINY_HIDDEN * TINY_DIM; i++) { /* parts of different magnitude: scales of their own */
        w->w3[i] *= 0.25f;
        w->half[3][i] = oq_bf16_from_f32(w->w3[i]);
    }
    return w;
}

enum { N_PLAIN = 7 };

static void plain_tensors(const weights *w, st_tensor out[N_PLAIN])
{
    const oq_dtype *b = &oq_dtype_bf16;
    out[0] = (st_tensor){"embed.weight", b, 2, {TINY_VOCAB, TINY_DIM}, w->half[0]};
    out[1] = (st_tensor){"block.0.norm.weight", b, 1, {TINY_DIM}, w->half[1]};
    out[2] = (st_tensor){"block.0.w1.weight", b, 2, {TINY_HIDDEN, TINY_DIM}, w->half[2]};
    out[3] = (st_tensor){"block.0.w3.weight", b, 2, {TINY_HIDDEN, TINY_DIM}, w->half[3]};
    out[4] = (st_tensor){"block.0.w2.weight", b, 2, {TINY_DIM, TINY_HIDDEN}, w->half[4]};
    out[5] = (st_tensor){"head.weight", b, 2, {TINY_DIM, TINY_DIM}, w->half[5]};
    out[6] = (st_tensor){"head.bias", b, 1, {TINY_DIM}, w->half[6]};
}

/* ---- one run: file -> plan -> load -> forward ---------------------------------------------------------- */

typedef struct fixture {
    oq_env *env;
    oq_device *device;
    weights *w;
    char path[512];
} fixture;

typedef struct run {
    const char *quantization; /* NULL: no wish */
    const char *metadata;     /* the checkpoint's quantization_config; NULL: none */
    const oq_dtype *compute;
    const oq_backend *backend; /* NULL: the CPU's own */
    const char *config;        /* the network's config.json; NULL: {} */
    bool dummy;
    float y[ROWS * TINY_DIM];
    oq_json *plan; /* printed */
} run;

static oq_status forward(fixture *f, const oq_plan *plan, run *r)
{
    const oq_ops *ops = oq_backend_cpu.ops(f->device);
    oq_exec ex = {.env = f->env,
                  .backend = &oq_backend_cpu,
                  .device = f->device,
                  .ops = ops,
                  .compute = plan->compute,
                  .measure = true};
    OQ_TRY(tiny_forward(&ex, plan->components[0].self, oq_tensor_make(NULL, &oq_dtype_f32, ROWS, TINY_DIM),
                        ids));
    const size_t measured = ex.peak;
    void *scratch = NULL;
    OQ_TRY(oq_backend_cpu.buffer_new(f->env, f->device, measured, &scratch));
    ex = (oq_exec){.env = f->env,
                   .backend = &oq_backend_cpu,
                   .device = f->device,
                   .ops = ops,
                   .compute = plan->compute,
                   .base = scratch,
                   .size = measured};
    const size_t allocs = atomic_load(&f->env->n_allocs);
    const oq_status st =
        tiny_forward(&ex, plan->components[0].self, oq_tensor_make(r->y, &oq_dtype_f32, ROWS, TINY_DIM), ids);
    assert_int_equal(atomic_load(&f->env->n_allocs), allocs);
    assert_int_equal(ex.peak, measured);
    oq_backend_cpu.buffer_free(f->env, f->device, scratch);
    return st;
}

static oq_status plan_and_run(fixture *f, run *r, const oq_quant_config *wish, const oq_json *quant,
                              const oq_json *config, const oq_ckpt *ckpt)
{
    const oq_resolve_input ri = {.name = "net",
                                 .class_name = "TinyNet",
                                 .quantizable = true,
                                 .quant = quant,
                                 .quant_source = "config.json",
                                 .ckpt = ckpt};
    const oq_plan_input pi = {
        .name = "net", .class_name = "TinyNet", .module = &tiny_module, .config = config, .ckpt = ckpt};
    oq_resolved *resolved = NULL;
    oq_plan *plan = NULL;
    oq_weights *loaded = NULL;
    OQ_TRY(oq_resolve(f->env, wish, &ri, 1, &resolved));
    OQ_TRY(oq_plan_build(f->env,
                         &(oq_plan_params){.backend = r->backend ? r->backend : &oq_backend_cpu,
                                           .device = f->device,
                                           .compute = r->compute,
                                           .resolved = resolved,
                                           .inputs = &pi,
                                           .n_inputs = 1},
                         &plan));
    r->plan = oq_plan_to_json(plan);
    oq_status st = oq_load(f->env, plan, &loaded);
    if (st == OQ_OK) st = forward(f, plan, r);
    oq_weights_free(f->env, loaded);
    oq_plan_free(plan);
    return st;
}

static oq_json *parse(oq_env *env, const char *text)
{
    oq_json *json = NULL;
    if (text) assert_int_equal(oq_json_parse(env, text, strlen(text), "test", &json), OQ_OK);
    return json;
}

static oq_status run_file(fixture *f, run *r, const st_tensor *tensors, size_t n)
{
    static const char *const components[] = {"net"};
    oq_ckpt *ckpt = NULL;
    oq_quant_config *wish = NULL;
    oq_env_clear(f->env);
    if (!r->dummy) {
        st_write(f->path, tensors, n);
        assert_int_equal(oq_ckpt_open(f->env, f->path, &ckpt), OQ_OK);
    }
    oq_json *quant = parse(f->env, r->metadata), *config = parse(f->env, r->config ? r->config : "{}");
    oq_status st =
        r->quantization ? oq_quant_config_parse(f->env, r->quantization, components, 1, &wish) : OQ_OK;
    if (st == OQ_OK) st = plan_and_run(f, r, wish, quant, config, ckpt);
    oq_quant_config_free(wish);
    oq_json_free(config);
    oq_json_free(quant);
    oq_ckpt_close(ckpt);
    return st;
}

static oq_status run_plain(fixture *f, run *r)
{
    st_tensor t[N_PLAIN];
    plain_tensors(f->w, t);
    return run_file(f, r, t, N_PLAIN);
}

static double snr_db(const float *a, const float *b, int n)
{
    double signal = 0, noise = 0;
    for (int i = 0; i < n; i++)
        signal += (double)a[i] * a[i], noise += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}

/* The whole network in double from the f32 values. */
static void reference(const weights *w, float *y)
{
    for (int r = 0; r < ROWS; r++) {
        double h[TINY_DIM], g[TINY_HIDDEN], o[TINY_DIM], square = 0;
        const float *x = &w->embed[ids[r] * TINY_DIM];
        for (int i = 0; i < TINY_DIM; i++) square += (double)x[i] * x[i];
        for (int i = 0; i < TINY_DIM; i++) h[i] = x[i] / sqrt(square / TINY_DIM + 1e-5) * w->norm[i];
        for (int j = 0; j < TINY_HIDDEN; j++) {
            double a = 0, b = 0;
            for (int i = 0; i < TINY_DIM; i++)
                a += h[i] * w->w1[j * TINY_DIM + i], b += h[i] * w->w3[j * TINY_DIM + i];
            g[j] = a / (1 + exp(-a)) * b;
        }
        for (int i = 0; i < TINY_DIM; i++) {
            o[i] = 0;
            for (int j = 0; j < TINY_HIDDEN; j++) o[i] += g[j] * w->w2[i * TINY_HIDDEN + j];
        }
        for (int i = 0; i < TINY_DIM; i++) {
            double sum = w->bias[i];
            for (int j = 0; j < TINY_DIM; j++) sum += o[j] * w->head[i * TINY_DIM + j];
            y[r * TINY_DIM + i] = (float)sum;
        }
    }
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static void test_plain_equals_reference(void **state)
{
    fixture *f = *state;
    float want[ROWS * TINY_DIM];
    reference(f->w, want);
    run r = {.compute = &oq_dtype_f32};
    assert_int_equal(run_plain(f, &r), OQ_OK);
    assert_true(snr_db(want, r.y, ROWS * TINY_DIM) > 115);
    oq_json_free(r.plan);
    run b = {.compute = &oq_dtype_bf16};
    assert_int_equal(run_plain(f, &b), OQ_OK);
    assert_true(snr_db(want, b.y, ROWS * TINY_DIM) > 40);
    oq_json_free(b.plan);
}

/* A backend whose memory is not the host's gets the same weights through staging buffers. */
static void test_staged_upload(void **state)
{
    fixture *f = *state;
    oq_backend apart = oq_backend_cpu;
    apart.host_memory = false;
    run direct = {.compute = &oq_dtype_bf16, .quantization = "int8"}, staged = direct;
    staged.backend = &apart;
    assert_int_equal(run_plain(f, &direct), OQ_OK);
    assert_int_equal(run_plain(f, &staged), OQ_OK);
    assert_memory_equal(direct.y, staged.y, sizeof direct.y);
    oq_json_free(direct.plan);
    oq_json_free(staged.plan);
}

static const oq_json *layer_row(const oq_json *plan, const char *name)
{
    const oq_json *layers = oq_json_get(oq_json_get(oq_json_get(plan, "components"), "net"), "layers");
    for (size_t i = 0; i < oq_json_size(layers); i++)
        if (strcmp(oq_json_string(oq_json_get(oq_json_at(layers, i), "name")), name) == 0)
            return oq_json_at(layers, i);
    fail_msg("no layer '%s'", name);
    return NULL;
}

static void test_online_methods(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *wish, *weight;
        double low, high;
    } cases[] = {
        {"fp8", "fp8_e4m3_tensor", 22, 32},
        {"{\"method\":\"fp8\",\"weight_strategy\":\"channel\"}", "fp8_e4m3_channel", 22, 32},
        {"{\"method\":\"fp8\",\"weight_strategy\":\"block\"}", "fp8_e4m3_block128", 22, 32},
        {"int8", "int8_channel", 32, 45},
    };
    float want[ROWS * TINY_DIM];
    reference(f->w, want);
    for (size_t i = 0; i < OQ_COUNT(cases); i++) {
        run r = {.compute = &oq_dtype_f32, .quantization = cases[i].wish};
        assert_int_equal(run_plain(f, &r), OQ_OK);
        const double snr = snr_db(want, r.y, ROWS * TINY_DIM);
        if (!(snr > cases[i].low && snr < cases[i].high)) fail_msg("%s: %.1f dB", cases[i].wish, snr);
        const oq_json *w13 = layer_row(r.plan, "block.0.w13"), *head = layer_row(r.plan, "head");
        assert_string_equal(oq_json_string(oq_json_get(oq_json_get(w13, "scheme"), "weight")),
                            cases[i].weight);
        assert_true(oq_json_bool(oq_json_get(w13, "quantized"), false));
        assert_string_equal(oq_json_string(oq_json_at(oq_json_get(w13, "parts"), 1)), "w3");
        assert_false(oq_json_bool(oq_json_get(head, "quantized"), true));
        assert_string_equal(oq_json_string(oq_json_get(head, "reason")), "final layer");
        oq_json_free(r.plan);
    }
}

/* A file with e4m3 codes and one scale per tensor must give what its decoded weights give, the fused pair
 * included. */
static void test_serialized_fp8(void **state)
{
    fixture *f = *state;
    st_tensor t[N_PLAIN + 3];
    plain_tensors(f->w, t);
    static uint8_t codes[3][TINY_HIDDEN * TINY_DIM];
    static float scale[3];
    static const char *const scale_names[] = {"block.0.w1.weight_scale", "block.0.w3.weight_scale",
                                              "block.0.w2.weight_scale"};
    weights *decoded = malloc(sizeof *decoded);
    assert_non_null(decoded);
    *decoded = *f->w;
    float *const to[3] = {decoded->w1, decoded->w3, decoded->w2};
    for (int i = 0; i < 3; i++) {
        float amax = 0;
        const int n = TINY_HIDDEN * TINY_DIM;
        for (int j = 0; j < n; j++) amax = fmaxf(amax, fabsf(to[i][j]));
        scale[i] = amax / 448.0f;
        for (int j = 0; j < n; j++) {
            codes[i][j] = oq_e4m3_from_f32(to[i][j] / scale[i]);
            to[i][j] = oq_e4m3_to_f32(codes[i][j]) * scale[i];
        }
        t[2 + i].dtype = &oq_dtype_f8_e4m3;
        t[2 + i].data = codes[i];
        t[N_PLAIN + i] = (st_tensor){scale_names[i], &oq_dtype_f32, 0, {0}, &scale[i]};
    }
    float want[ROWS * TINY_DIM];
    reference(decoded, want);
    run r = {.compute = &oq_dtype_f32,
             .metadata = "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}"};
    assert_int_equal(run_file(f, &r, t, N_PLAIN + 3), OQ_OK);
    assert_true(snr_db(want, r.y, ROWS * TINY_DIM) > 24); /* activations are quantized */
    const oq_json *w13 = layer_row(r.plan, "block.0.w13");
    assert_string_equal(oq_json_string(oq_json_get(oq_json_get(w13, "scheme"), "weight")),
                        "fp8_e4m3_channel");
    oq_json_free(r.plan);
    run missing = {.compute = &oq_dtype_f32,
                   .metadata = "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}"};
    assert_int_not_equal(run_file(f, &missing, t, N_PLAIN + 2), OQ_OK); /* w2 lost its scale */
    assert_non_null(strstr(oq_env_error(f->env), "block.0.w2"));
    free(decoded);
}

static void expect_refusal(fixture *f, const st_tensor *t, size_t n, const char *text)
{
    run r = {.compute = &oq_dtype_bf16};
    const oq_status st = run_file(f, &r, t, n);
    oq_json_free(r.plan);
    if (st != OQ_E_FORMAT || !strstr(oq_env_error(f->env), text))
        fail_msg("wanted '%s', got %s '%s'", text, oq_status_name(st), oq_env_error(f->env));
}

static void test_every_tensor_is_used_or_named(void **state)
{
    fixture *f = *state;
    st_tensor t[N_PLAIN + 1];
    plain_tensors(f->w, t);
    t[N_PLAIN] = (st_tensor){"block.0.w4.weight", &oq_dtype_bf16, 1, {2}, f->w->half[0]};
    expect_refusal(f, t, N_PLAIN + 1,
                   "1 of 8 tensors belong to no layer of TinyNet, the first is 'block.0.w4.weight'");
    expect_refusal(f, t, N_PLAIN - 1, "tensor 'head.bias' is missing");
    t[N_PLAIN].name = "lm.weight"; /* harmless by the network's own rule */
    run r = {.compute = &oq_dtype_bf16};
    assert_int_equal(run_file(f, &r, t, N_PLAIN + 1), OQ_OK);
    oq_json_free(r.plan);
    plain_tensors(f->w, t);
    t[4].dim[0] = TINY_HIDDEN, t[4].dim[1] = TINY_DIM;
    expect_refusal(f, t, N_PLAIN,
                   "tensor 'block.0.w2.weight' has shape [160, 96], the network needs [96, 160]");
    plain_tensors(f->w, t);
    t[2].dtype = &oq_dtype_i16;
    expect_refusal(f, t, N_PLAIN, "'block.0.w1.weight' holds I16");
    plain_tensors(f->w, t);
    t[5].dtype = &oq_dtype_i8; /* half the bytes of what it was; fp8 would be a checkpoint that was cast */
    expect_refusal(f, t, N_PLAIN, "'head.weight' holds I8, the network needs floating point numbers");
    plain_tensors(f->w, t);
    t[6].dtype = &oq_dtype_f8_e4m3; /* half the bytes of what it was */
    expect_refusal(f, t, N_PLAIN, "'head.bias' holds F8_E4M3 without a scale");
    t[5].dtype = &oq_dtype_f8_e4m3; /* beside matrices of that type it is a cast file: codes are values */
    assert_int_equal(run_file(f, &r, t, N_PLAIN), OQ_OK);
    oq_json_free(r.plan);
}

static void test_prefix_of_the_file(void **state)
{
    fixture *f = *state;
    st_tensor t[N_PLAIN];
    char name[N_PLAIN][64];
    plain_tensors(f->w, t);
    for (int i = 0; i < N_PLAIN; i++) {
        snprintf(name[i], sizeof name[i], "model.%s", t[i].name);
        t[i].name = name[i];
    }
    run r = {.compute = &oq_dtype_f32}, plain = {.compute = &oq_dtype_f32};
    assert_int_equal(run_file(f, &r, t, N_PLAIN), OQ_OK);
    assert_int_equal(run_plain(f, &plain), OQ_OK);
    assert_memory_equal(r.y, plain.y, sizeof r.y);
    oq_json_free(r.plan);
    oq_json_free(plain.plan);
}

/* e4m3 codes and a scale per row. */
static void code_rows(uint8_t *codes, float *scale, const float *x, int64_t rows, int64_t k)
{
    for (int64_t r = 0; r < rows; r++) {
        float amax = 0;
        for (int64_t c = 0; c < k; c++) amax = fmaxf(amax, fabsf(x[r * k + c]));
        scale[r] = amax / 448.0f;
        for (int64_t c = 0; c < k; c++) codes[r * k + c] = oq_e4m3_from_f32(x[r * k + c] / scale[r]);
    }
}

/* Another producer's names: w1 and w3 as one tensor, the head's halves of rows in the other order. Plain and quantized by
 * rows they give the bits of the file that holds each part alone. */
static void test_rows_of_larger_layers(void **state)
{
    enum { HALF = TINY_DIM / 2 * TINY_DIM, W = TINY_HIDDEN * TINY_DIM };
    fixture *f = *state;
    static uint16_t w13[2 * W], swapped[2 * HALF], bias[TINY_DIM];
    static uint8_t c13[2 * W], c_head[2 * HALF], c_swapped[2 * HALF];
    static float s13[2 * TINY_HIDDEN], s_head[TINY_DIM], s_swapped[TINY_DIM];
    memcpy(w13, f->w->half[2], sizeof w13 / 2);
    memcpy(w13 + W, f->w->half[3], sizeof w13 / 2);
    memcpy(swapped, f->w->half[5] + HALF, sizeof swapped / 2);
    memcpy(swapped + HALF, f->w->half[5], sizeof swapped / 2);
    memcpy(bias, f->w->half[6] + TINY_DIM / 2, sizeof bias / 2);
    memcpy(bias + TINY_DIM / 2, f->w->half[6], sizeof bias / 2);
    code_rows(c13, s13, f->w->w1, TINY_HIDDEN, TINY_DIM);
    code_rows(c13 + W, s13 + TINY_HIDDEN, f->w->w3, TINY_HIDDEN, TINY_DIM);
    code_rows(c_head, s_head, f->w->head, TINY_DIM, TINY_DIM);
    code_rows(c_swapped, s_swapped, f->w->head + HALF, TINY_DIM / 2, TINY_DIM);
    code_rows(c_swapped + HALF, s_swapped + TINY_DIM / 2, f->w->head, TINY_DIM / 2, TINY_DIM);
    for (int quantized = 0; quantized < 2; quantized++) {
        const oq_dtype *type = quantized ? &oq_dtype_f8_e4m3 : &oq_dtype_bf16;
        st_tensor alone[N_PLAIN + 3], fused[N_PLAIN + 1];
        plain_tensors(f->w, alone);
        plain_tensors(f->w, fused);
        fused[1].name = "blocks.0.norm.weight";
        fused[2] = (st_tensor){
            "blocks.0.w13.weight", type, 2, {2 * TINY_HIDDEN, TINY_DIM}, quantized ? (void *)c13 : w13};
        fused[3] = (st_tensor){
            "swapped_head.weight", type, 2, {TINY_DIM, TINY_DIM}, quantized ? (void *)c_swapped : swapped};
        fused[4].name = "blocks.0.w2.weight";
        fused[5] = (st_tensor){"swapped_head.bias", &oq_dtype_bf16, 1, {TINY_DIM}, bias};
        fused[6] = (st_tensor){"blocks.0.w13.weight_scale", &oq_dtype_f32, 1, {2 * TINY_HIDDEN}, s13};
        fused[7] = (st_tensor){"swapped_head.weight_scale", &oq_dtype_f32, 1, {TINY_DIM}, s_swapped};
        if (quantized) {
            alone[2].dtype = alone[3].dtype = alone[5].dtype = type;
            alone[2].data = c13, alone[3].data = c13 + W, alone[5].data = c_head;
        }
        alone[7] = (st_tensor){"block.0.w1.weight_scale", &oq_dtype_f32, 1, {TINY_HIDDEN}, s13};
        alone[8] = (st_tensor){"block.0.w3.weight_scale", &oq_dtype_f32, 1, {TINY_HIDDEN}, s13 + TINY_HIDDEN};
        alone[9] = (st_tensor){"head.weight_scale", &oq_dtype_f32, 1, {TINY_DIM}, s_head};
        run a = {.compute = &oq_dtype_f32}, b = a;
        assert_int_equal(run_file(f, &a, alone, quantized ? N_PLAIN + 3 : N_PLAIN), OQ_OK);
        assert_int_equal(run_file(f, &b, fused, quantized ? N_PLAIN + 1 : N_PLAIN - 1), OQ_OK);
        assert_memory_equal(a.y, b.y, sizeof a.y);
        oq_json_free(a.plan);
        oq_json_free(b.plan);
    }
}

static void test_dummy_and_duplicates(void **state)
{
    fixture *f = *state;
    run r = {.compute = &oq_dtype_bf16, .dummy = true, .quantization = "int8"};
    assert_int_equal(run_file(f, &r, NULL, 0), OQ_OK);
    for (int i = 0; i < ROWS * TINY_DIM; i++) assert_true(isfinite(r.y[i]));
    oq_json_free(r.plan);
    run twice = {.compute = &oq_dtype_bf16, .dummy = true, .config = "{\"twice\":true}"};
    assert_int_equal(run_file(f, &twice, NULL, 0), OQ_E_ARG);
    assert_string_equal(oq_env_error(f->env), "net: network 'tiny' declares 'block.0.w2' twice");
}

/* First values of the naming rule, from an independent implementation; exact in f32. */
static void test_dummy_rule(void **state)
{
    (void)state;
    static const float matrix[4] = {-0.035999298095703125f, 0.07114028930664062f, -0.09491348266601562f,
                                    0.08626174926757812f};
    static const float norm[4] = {1.1896133422851562f, 0.8703689575195312f, 1.2244796752929688f,
                                  1.2068099975585938f};
    float w[4 * 128];
    oq_dummy_fill(w, "layers.0.attention.to_q.weight", (int64_t[]){4, 128}, 2);
    assert_memory_equal(w, matrix, sizeof matrix);
    oq_dummy_fill(w, "a.norm.weight", (int64_t[]){8}, 1);
    assert_memory_equal(w, norm, sizeof norm);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f || oq_env_new(NULL, &f->env) != OQ_OK) return -1;
    if (oq_backend_cpu.open(f->env, 0, "auto", &f->device) != OQ_OK) return -1;
    f->w = make_weights();
    snprintf(f->path, sizeof f->path, "%s/test_load.safetensors", OMNIQ_BINARY_DIR);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    remove(f->path);
    free(f->w);
    oq_backend_cpu.close(f->env, f->device);
    oq_env_free(f->env);
    free(f);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_equals_reference),
        cmocka_unit_test(test_staged_upload),
        cmocka_unit_test(test_online_methods),
        cmocka_unit_test(test_serialized_fp8),
        cmocka_unit_test(test_every_tensor_is_used_or_named),
        cmocka_unit_test(test_prefix_of_the_file),
        cmocka_unit_test(test_rows_of_larger_layers),
        cmocka_unit_test(test_dummy_and_duplicates),
        cmocka_unit_test(test_dummy_rule),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
