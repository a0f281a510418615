/* test_reports.c -- what users of other programs met with quantized files: NaN scales over zeros, one number among zeros,
 * scales that a product changed. docs/faults.md names the reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/backend.h"
#include "cpu/cpu.h"
#include "format/float4.h"
#include "quant/resolve.h"

#include "support/memory_ckpt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

/* ---- a NaN scale over a block of zeros ----------------------------------------------------------------- */

enum { N = 4, K = 64 };

static oq_status locate(oq_env *env, memory_ckpt *m, oq_resolved **resolved, oq_part_source *part)
{
    static const char config[] = "{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A16_NVFP4\"}";
    oq_json *quant = NULL;
    bool found = false;
    assert_int_equal(oq_json_parse(env, config, strlen(config), "t", &quant), OQ_OK);
    const oq_resolve_input in = {.name = "transformer",
                                 .class_name = "Net",
                                 .quantizable = true,
                                 .quant = quant,
                                 .quant_source = "net/config.json",
                                 .ckpt = &m->ckpt};
    assert_int_equal(oq_resolve(env, NULL, &in, 1, resolved), OQ_OK);
    const oq_resolved_component *c = &(*resolved)->components[0];
    const oq_status st = c->dialect->locate(env, &c->declared, &m->ckpt, "a", N, K, part, &found);
    oq_json_free(quant);
    return st;
}

static void test_nan_scale_over_zeros(void **state)
{
    uint8_t codes[N * K / 2], scales[N * K / 16], clean[N * K / 16];
    float one = 1.0f;
    memory_ckpt m;
    oq_resolved *resolved = NULL;
    oq_part_source part;
    memset(codes, 0x22, sizeof codes);
    memset(scales, 0x38, sizeof scales);
    memset(codes + K / 2 + 8, 0x80, 8); /* row 1, group 1: zeros of both signs */
    scales[K / 16 + 1] = 0x7f;
    memory_ckpt_init(&m);
    memory_ckpt_add(&m, "a.weight", &oq_dtype_u8, codes, N, K / 2);
    memory_ckpt_add(&m, "a.weight_scale", &oq_dtype_f8_e4m3, scales, N, K / 16);
    memory_ckpt_add(&m, "a.weight_scale_2", &oq_dtype_f32, &one, -1, -1);
    assert_int_equal(locate(*state, &m, &resolved, &part), OQ_OK);
    oq_plane_read(&part.plane[OQ_PLANE_SCALE], clean, sizeof clean, N, K);
    for (size_t i = 0; i < sizeof clean; i++) assert_int_equal(clean[i], i == K / 16 + 1 ? 0 : 0x38);
    oq_resolved_free(resolved);
    codes[K / 2 + 8] = 0x01;
    resolved = NULL;
    assert_int_equal(locate(*state, &m, &resolved, &part), OQ_E_FORMAT);
    assert_string_equal(oq_env_error(*state), "scale 'a.weight_scale' is byte 0x7f at index 5, which is NaN");
    oq_resolved_free(resolved);
}

/* ---- zeros and a single one ---------------------------------------------------------------------------- */

static void check_single_one(const oq_format *f)
{
    enum { SIZE = 256, ONE = 37 * SIZE + 200 };
    const float zero = strncmp(f->name, "iq4_", 4) == 0 ? 0.01f : 0.0f; /* their levels have no zero */
    oq_planes_mut planes = {{NULL}};
    oq_planes view = {{NULL}};
    float *w = calloc(SIZE * SIZE, sizeof *w), row[SIZE];
    assert_non_null(w);
    w[ONE] = 1.0f;
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, SIZE, SIZE);
        view.plane[p] = planes.plane[p] = bytes ? malloc(bytes) : NULL;
    }
    f->encode(f, &planes, w, SIZE, SIZE);
    for (int64_t r = 0; r < SIZE; r++) {
        f->decode_row(f, row, &view, r, SIZE, SIZE);
        for (int c = 0; c < SIZE; c++) {
            const bool one = r * SIZE + c == ONE;
            if (!(one ? fabsf(row[c] - 1.0f) < 0.2f : fabsf(row[c]) <= zero))
                fail_msg("%s: row %d column %d is %g", f->name, (int)r, c, (double)row[c]);
        }
    }
    for (int p = 0; p < OQ_N_PLANES; p++) free(planes.plane[p]);
    free(w);
}

static void test_one_among_zeros(void **state)
{
    (void)state;
    for (size_t i = 0; oq_format_list[i]; i++)
        if (oq_format_list[i]->encode) check_single_one(oq_format_list[i]);
}

/* ---- a product leaves the weights as they are ---------------------------------------------------------- */

static void run(oq_device *device, const oq_linear_kernel *kernel, const oq_linear_spec *spec,
                const void *packed, const float *x, int64_t m, float *y)
{
    void *scratch = NULL;
    assert_int_equal(posix_memalign(&scratch, 256, kernel->scratch_bytes(spec, m) + 1), 0);
    const oq_linear_args args = {.spec = spec,
                                 .packed = packed,
                                 .scratch = scratch,
                                 .x = oq_tensor_make((void *)(uintptr_t)x, &oq_dtype_f32, m, spec->k),
                                 .y = oq_tensor_make(y, &oq_dtype_f32, m, spec->n)};
    kernel->run(device, &args);
    free(scratch);
}

/* One row alone, then in a batch, then alone again: the same bits, and the packed weights are as they were. */
static void check_unchanged(oq_device *device, const oq_scheme *scheme)
{
    enum { ROWS = 24, COLS = 128, BATCH = 5 };
    const oq_linear_spec spec = {.n = ROWS, .k = COLS, .scheme = *scheme};
    const oq_linear_kernel *kernel = oq_backend_cpu.find_linear(device, &spec);
    static float w[ROWS * COLS], x[BATCH * COLS], y[BATCH * ROWS], alone[ROWS];
    oq_planes_mut planes = {{NULL}};
    oq_planes view = {{NULL}};
    void *packed = NULL;
    for (int i = 0; i < ROWS * COLS; i++) w[i] = sinf((float)i);
    for (int i = 0; i < BATCH * COLS; i++) x[i] = cosf((float)i) * (float)(1 + i / COLS);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = oq_scheme_plane_bytes(scheme, (oq_plane)p, ROWS, COLS);
        view.plane[p] = planes.plane[p] = bytes ? malloc(bytes) : NULL;
    }
    scheme->weight->encode(scheme->weight, &planes, w, ROWS, COLS);
    const size_t bytes = kernel->packed_bytes(&spec);
    assert_int_equal(posix_memalign(&packed, 256, bytes + 1), 0);
    kernel->pack(packed, &view, &spec);
    void *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, packed, bytes);
    run(device, kernel, &spec, packed, x, 1, alone);
    run(device, kernel, &spec, packed, x, BATCH, y);
    assert_memory_equal(before, packed, bytes);
    for (int i = 0; i < ROWS; i++) assert_true(fabsf(y[i] - alone[i]) <= 1e-5f * fabsf(alone[i]) + 1e-6f);
    run(device, kernel, &spec, packed, x, 1, y);
    assert_memory_equal(y, alone, sizeof alone);
    for (int p = 0; p < OQ_N_PLANES; p++) free(planes.plane[p]);
    free(before);
    free(packed);
}

static void test_products_leave_weights(void **state)
{
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_mxfp8, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_MX},
        {.weight = &oq_format_mxfp4, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_DYNAMIC_MX},
        {.weight = &oq_format_nvfp4},
        {.weight = &oq_format_nf4_b64_nested},
    };
    oq_device *device = NULL;
    assert_int_equal(oq_backend_cpu.open(*state, 0, NULL, &device), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(schemes); i++) check_unchanged(device, &schemes[i]);
    oq_backend_cpu.close(*state, device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nan_scale_over_zeros, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_among_zeros, setup, teardown),
        cmocka_unit_test_setup_teardown(test_products_leave_weights, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
