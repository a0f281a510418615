/* test_packed.c -- integers in 32-bit words: GPTQ, AWQ, AutoRound, compressed-tensors. Words of known vectors, both
 * conventions of zero points, groups that do not divide the row, and each way in which metadata and tensors disagree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/float8.h"

#include "support/dialect_world.h"

#include "write/compensate.h"
#include "write/layout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 8, K = 40, GROUPS = 2, WORDS = 5 }; /* groups of 32: the second has 8 columns */

static uint32_t words[K * N], zeros[GROUPS * N];
static uint16_t scales[GROUPS * N]; /* F16 */
static int32_t index_of[K];

/* Code of row r, column c in all files here. */
static uint32_t code_of(int r, int c)
{
    return (uint32_t)(3 * r + c) % 16;
}

/* Scale of row r in group g; every other one is negative. */
static float scale_of(int r, int g)
{
    return (r % 2 ? -0.25f : 0.5f) * (float)(g + 1);
}

static void add(world *w, const char *name, const oq_dtype *dtype, const void *data, int64_t rows,
                int64_t cols)
{
    memory_ckpt_add(&w->ckpt, name, dtype, data, rows, cols);
}

static void fill_scales(void)
{
    for (int g = 0; g < GROUPS; g++)
        for (int r = 0; r < N; r++) {
            const float x = scale_of(r, g);
            oq_dtype_f16.from_f32(&scales[g * N + r], &x, 1);
        }
}

static void start_gptq(world *w, uint32_t zero_word)
{
    memset(words, 0, sizeof words);
    for (int r = 0; r < N; r++)
        for (int c = 0; c < K; c++) words[c / 8 * N + r] |= code_of(r, c) << 4 * (c % 8);
    for (int g = 0; g < GROUPS; g++) zeros[g] = zero_word;
    for (int c = 0; c < K; c++) index_of[c] = c / 32;
    fill_scales();
    memory_ckpt_init(&w->ckpt);
    add(w, "a.qweight", &oq_dtype_i32, words, WORDS, N);
    add(w, "a.qzeros", &oq_dtype_i32, zeros, GROUPS, 1);
    add(w, "a.scales", &oq_dtype_f16, scales, GROUPS, N);
    add(w, "a.g_idx", &oq_dtype_i32, index_of, K, -1);
}

static void start_awq(world *w)
{
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    memset(words, 0, sizeof words);
    for (int c = 0; c < K; c++)
        for (int i = 0; i < 8; i++) words[c] |= code_of(order[i], c) << 4 * i;
    for (int g = 0; g < GROUPS; g++) zeros[g] = 0x75316420u; /* row r has zero point r */
    fill_scales();
    memory_ckpt_init(&w->ckpt);
    add(w, "a.qweight", &oq_dtype_i32, words, K, 1);
    add(w, "a.qzeros", &oq_dtype_i32, zeros, GROUPS, 1);
    add(w, "a.scales", &oq_dtype_f16, scales, GROUPS, N);
}

static void refuse(world *w, const char *config, oq_status status, const char *text)
{
    oq_part_source part;
    bool found = false;
    assert_int_equal(world_locate(w, config, N, K, &part, &found), status);
    assert_false(found);
    assert_string_equal(oq_env_error(w->env), text);
}

/* Every weight is (code - zero of its row) * scale. */
static void accept(world *w, const char *config, const oq_format *format, const int zero[N])
{
    static uint8_t room[OQ_N_PLANES][4096];
    oq_part_source part;
    oq_planes planes = {{NULL}};
    bool found = false;
    float row[K];
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_true(found);
    assert_ptr_equal(part.format, format);
    assert_null(part.act);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = format->plane_bytes(format, (oq_plane)p, N, K);
        if (bytes) oq_plane_read(&part.plane[p], room[p], bytes, N, K);
        planes.plane[p] = bytes ? room[p] : NULL;
    }
    for (int r = 0; r < N; r++) {
        format->decode_row(format, row, &planes, r, N, K);
        for (int c = 0; c < K; c++) {
            const float wanted = (float)((int)code_of(r, c) - zero[r]) * scale_of(r, c / 32);
            if (row[c] < wanted || row[c] > wanted)
                fail_msg("row %d column %d is %g, not %g", r, c, (double)row[c], (double)wanted);
        }
    }
}

#define GPTQ(more) "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32" more "}"
#define AUTO(more) "{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 32" more "}"
#define AWQ(more)  "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32" more "}"

#define GPTQMODEL ", \"meta\": {\"quantizer\": [\"gptqmodel:7.7.0\"]}"

static void test_gptq(void **state)
{
    world *w = *state;
    static const int half[N] = {8, 8, 8, 8, 8, 8, 8, 8}, plus_one[N] = {1, 2, 3, 4, 5, 6, 7, 8},
                     as_is[N] = {0, 1, 2, 3, 4, 5, 6, 7}, wrapped[N] = {0, 0, 0, 0, 0, 0, 0, 0},
                     borrowed[N] = {0, 0, 1, 3, 4, 5, 6, 7};
    start_gptq(w, 0x77777777u);
    assert_int_equal(words[0], 0x76543210u);
    accept(w, GPTQ(""), &oq_format_int4_g32_f16, half);
    accept(w, GPTQ(", \"sym\": false"), &oq_format_int4z_g32_f16, half);
    accept(w, GPTQ(", \"sym\": false" GPTQMODEL), &oq_format_int4z_g32_f16, half);
    accept(w, AUTO(""), &oq_format_int4_g32_f16, half);
    start_gptq(w, 0x654320ffu); /* the first zero point is 0: it has borrowed from the second */
    accept(w, GPTQ(", \"sym\": false" GPTQMODEL), &oq_format_int4z_g32_f16, as_is);
    accept(w, GPTQ(", \"sym\": false, \"meta\": {\"quantizer\": \"other\"}"), &oq_format_int4z_g32_f16,
           borrowed);
    start_gptq(w, 0x76543210u);
    accept(w, GPTQ(", \"sym\": false"), &oq_format_int4z_g32_f16, plus_one);
    accept(w, GPTQ(", \"sym\": false, \"checkpoint_format\": \"gptq_v2\""), &oq_format_int4z_g32_f16, as_is);
    accept(w, AUTO(", \"sym\": false, \"packing_format\": \"auto_round\""), &oq_format_int4z_g32_f16, as_is);
    accept(w, AUTO(", \"sym\": false, \"packing_format\": \"auto_round:gptqmodel\""),
           &oq_format_int4z_g32_f16, as_is);
    refuse(w, GPTQ(""), OQ_E_FORMAT,
           "tensor 'a.qzeros' has zero point 1 for row 0, group 0, but the metadata says symmetric codes, "
           "whose zero "
           "point is 8");
    start_gptq(w, 0xffffffffu);
    accept(w, GPTQ(", \"sym\": false"), &oq_format_int4z_g32_f16, wrapped);
    start_gptq(w, 0x88888888u);
    refuse(w, GPTQ(""), OQ_E_FORMAT,
           "tensor 'a.qzeros' has zero point 9 for row 0, group 0, but the metadata says symmetric codes, "
           "whose zero "
           "point is 8; zero points stored as they are mean checkpoint_format gptq_v2");
    accept(w, GPTQ(", \"checkpoint_format\": \"gptq_v2\""), &oq_format_int4_g32_f16, half);
}

static void test_awq(void **state)
{
    world *w = *state;
    static const int own[N] = {0, 1, 2, 3, 4, 5, 6, 7};
    start_awq(w);
    assert_int_equal(zeros[0], 0x75316420u);
    accept(w, AWQ(""), &oq_format_int4z_g32_f16, own);
    accept(w, AUTO(", \"sym\": false, \"packing_format\": \"auto_round:auto_awq\""), &oq_format_int4z_g32_f16,
           own);
    refuse(w, AWQ(", \"zero_point\": false"), OQ_E_FORMAT,
           "tensor 'a.qzeros' has zero point 0 for row 0, group 0, but the metadata says symmetric codes, "
           "whose zero "
           "point is 8");
}

/* The same codes in rows; zero points packed along the rows. */
static void test_rows(void **state)
{
    world *w = *state;
    static const int own[N] = {0, 1, 2, 3, 4, 5, 6, 7};
    static float row_scales[N * GROUPS];
    static int64_t shape[2] = {N, K};
    static const char config[] = "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
                                 "\"config_groups\": {\"g\": "
                                 "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": "
                                 "\"int\", \"strategy\": \"group\", "
                                 "\"group_size\": 32, \"symmetric\": false}}}}";
    memset(words, 0, sizeof words);
    for (int r = 0; r < N; r++)
        for (int c = 0; c < K; c++) words[r * WORDS + c / 8] |= code_of(r, c) << 4 * (c % 8);
    for (int r = 0; r < N; r++)
        for (int g = 0; g < GROUPS; g++) row_scales[r * GROUPS + g] = scale_of(r, g);
    for (int g = 0; g < GROUPS; g++) zeros[g] = 0x76543210u;
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight_packed", &oq_dtype_i32, words, N, WORDS);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, GROUPS);
    add(w, "a.weight_zero_point", &oq_dtype_i32, zeros, 1, GROUPS);
    add(w, "a.weight_shape", &oq_dtype_i64, shape, 2, -1);
    accept(w, config, &oq_format_int4z_g32, own);
    shape[1] = K + 1;
    refuse(w, config, OQ_E_FORMAT, "tensor 'a.weight_shape' says [8, 41], its layer needs [8, 40]");
}

/* Columns out of order: sorted by their groups, and the plane of the layer's input says from where each came. */
static void expect_order(world *w, const char *config)
{
    static uint8_t codes[N * K], plain[GROUPS * N * 4];
    static int32_t order[K];
    oq_part_source part;
    oq_scheme scheme;
    bool found = false;
    float row[K];
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_true(found);
    oq_part_scheme(&part, &scheme);
    assert_true(scheme.order && !oq_scheme_is_bare(&scheme));
    oq_plane_read(&part.plane[OQ_PLANE_DATA], codes, (size_t)N * K / 2, N, K);
    oq_plane_read(&part.plane[OQ_PLANE_SCALE], plain, sizeof plain, N, K);
    oq_plane_read(&part.plane[OQ_PLANE_ORDER], order, sizeof order, N, K);
    for (int r = 0; r < N; r++) {
        part.format->decode_row(part.format, row, &(oq_planes){{codes, plain}}, r, N, K);
        for (int i = 0; i < K; i++) {
            const float wanted = (float)((int)code_of(r, order[i]) - 8) * scale_of(r, index_of[order[i]]);
            assert_true(row[i] >= wanted && row[i] <= wanted);
        }
    }
    for (int i = 1; i < K; i++) assert_true(i == 32 || order[i] > order[i - 1]);
}

static void test_act_order(void **state)
{
    world *w = *state;
    static float row_scales[N * GROUPS];
    static const int half[N] = {8, 8, 8, 8, 8, 8, 8, 8};
    static const char rows[] =
        "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
        "\"config_groups\": {\"g\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, "
        "\"type\": \"int\", \"strategy\": \"group\", \"group_size\": 32, \"symmetric\": true, "
        "\"actorder\": \"group\"}}}}";
    start_gptq(w, 0x77777777u);
    for (int c = 0; c < K; c++)
        index_of[c] = c % 5 == 0; /* 8 columns of the second group among the first's 32 */
    expect_order(w, GPTQ(", \"desc_act\": true"));
    index_of[1] = 1;
    refuse(w, GPTQ(""), OQ_E_FORMAT, "tensor 'a.g_idx' puts 31 columns into group 0, not 32");
    index_of[1] = -1;
    refuse(w, GPTQ(""), OQ_E_FORMAT, "tensor 'a.g_idx' puts 31 columns into group 0, not 32");
    index_of[1] = 0;
    memset(words, 0, sizeof words);
    for (int r = 0; r < N; r++)
        for (int c = 0; c < K; c++) words[r * WORDS + c / 8] |= code_of(r, c) << 4 * (c % 8);
    for (int r = 0; r < N; r++)
        for (int g = 0; g < GROUPS; g++) row_scales[r * GROUPS + g] = scale_of(r, g);
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight_packed", &oq_dtype_i32, words, N, WORDS);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, GROUPS);
    add(w, "a.weight_g_idx", &oq_dtype_i32, index_of, K, -1);
    expect_order(w, rows);
    for (int c = 0; c < K; c++) index_of[c] = -1; /* not in use */
    accept(w, rows, &oq_format_int4_g32, half);
}

/* What the writer makes of columns in the order of activation is what is read: codes, scales, zero points, order. */
static void test_written_order(void **state)
{
    enum { ROWS = 32, COLS = 128 };
    world *w = *state;
    const oq_format *f = &oq_format_int4z_g32;
    static float weights[ROWS * COLS], h[COLS * COLS], scale[ROWS * 4], scale_back[ROWS * 4];
    static uint8_t codes[ROWS * COLS / 2], zero[ROWS * 4], codes_back[sizeof codes], zero_back[sizeof zero],
        bytes[4][ROWS * COLS];
    static int32_t order[COLS], order_back[COLS];
    for (int i = 0; i < ROWS * COLS; i++) weights[i] = sinf((float)(i * i % 977));
    for (int i = 0; i < COLS; i++)
        for (int j = 0; j < COLS; j++) h[i * COLS + j] = i == j ? (float)(1 + i * 37 % 101) : 0.5f;
    oq_planes_mut planes = {
        .plane = {[OQ_PLANE_DATA] = codes, [OQ_PLANE_SCALE] = scale, [OQ_PLANE_ZERO] = zero}};
    const oq_compensation how = {.format = f, .order = OQ_COLUMNS_REGROUPED, .damping = 0.01};
    oq_compensation_result result;
    assert_int_equal(oq_compensate(w->env, &how, weights, h, ROWS, COLS, &planes, order, &result), OQ_OK);
    const oq_write_layer layer = {.name = "a", .n = ROWS, .k = COLS, .scheme = {.weight = f, .order = true}};
    const oq_planes is = {.plane = {[OQ_PLANE_DATA] = codes,
                                    [OQ_PLANE_SCALE] = scale,
                                    [OQ_PLANE_ZERO] = zero,
                                    [OQ_PLANE_ORDER] = order}};
    oq_spelled spelled[OQ_LAYOUT_MAX];
    assert_int_equal(oq_layout_spell(oq_layout_find("auto-round"), &layer, spelled),
                     0); /* has no place for it */
    assert_int_equal(oq_layout_spell(oq_layout_find("gptq"), &layer, spelled), 4);
    memory_ckpt_init(&w->ckpt);
    for (int i = 0; i < 4; i++) {
        static char name[4][32];
        assert_true(spelled[i].bytes <= sizeof bytes[i]);
        spelled[i].put(bytes[i], &layer, &is);
        snprintf(name[i], sizeof name[i], "a%s", spelled[i].suffix);
        add(w, name[i], spelled[i].type[0] == 'F' ? &oq_dtype_f32 : &oq_dtype_i32, bytes[i],
            spelled[i].dim[0], spelled[i].n_dims > 1 ? spelled[i].dim[1] : -1);
    }
    oq_part_source part;
    bool found = false;
    if (world_locate(w, GPTQ(", \"sym\": false, \"desc_act\": true"), ROWS, COLS, &part, &found) != OQ_OK)
        fail_msg("%s", oq_env_error(w->env));
    assert_true(found && part.format == f && part.plane[OQ_PLANE_ORDER].tensor);
    oq_plane_read(&part.plane[OQ_PLANE_DATA], codes_back, sizeof codes_back, ROWS, COLS);
    oq_plane_read(&part.plane[OQ_PLANE_SCALE], scale_back, sizeof scale_back, ROWS, COLS);
    oq_plane_read(&part.plane[OQ_PLANE_ZERO], zero_back, sizeof zero_back, ROWS, COLS);
    oq_plane_read(&part.plane[OQ_PLANE_ORDER], order_back, sizeof order_back, ROWS, COLS);
    assert_memory_equal(codes_back, codes, sizeof codes);
    assert_memory_equal(scale_back, scale, sizeof scale);
    assert_memory_equal(zero_back, zero, sizeof zero);
    assert_memory_equal(order_back, order, sizeof order);
    assert_int_not_equal(order[0], 0);
}

static void test_refusals(void **state)
{
    world *w = *state;
    start_gptq(w, 0x77777777u);
    refuse(
        w, "{\"quant_method\": \"gptq\", \"bits\": 5, \"group_size\": 32}", OQ_E_FORMAT,
        "layer 'a' of [8, 40] has codes of 5 bits in planes of 32; 2 to 8 of sides that are multiples of 32 "
        "are");
    refuse(w, "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 12}", OQ_E_UNSUPPORTED,
           "layer 'a' has groups of 12 columns; multiples of 16 and whole rows are read");
    refuse(w, "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -1}", OQ_E_FORMAT,
           "tensor 'a.scales' is [2, 8]; a weight of [8, 40] in codes of 4 bits, groups of -1, needs [1, 8]");
    refuse(
        w, "{\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 32}", OQ_E_FORMAT,
        "tensor 'a.qweight' is [5, 8]; a weight of [8, 40] in codes of 8 bits, groups of 32, needs [10, 8]");
    refuse(w, GPTQ(", \"dynamic\": {\"+:b\": {\"bits\": 6}}"), OQ_E_UNSUPPORTED,
           "layers of 4 bits and ('dynamic' entry '+:b') of 6 in one file of checkpoint_format 'gptq': "
           "5 to 7 bits beside others are read where it is gptq_p");
    refuse(
        w,
        "{\"quant_method\": \"gptq\", \"bits\": 5, \"group_size\": 32, \"checkpoint_format\": \"gptq_v2\", "
        "\"dynamic\": {\"b\": {\"bits\": 8}}}",
        OQ_E_UNSUPPORTED,
        "layers of 5 bits and ('dynamic' entry 'b') of 8 in one file of checkpoint_format 'gptq_v2': "
        "5 to 7 bits beside others are read where it is gptq_p");
    refuse(w, GPTQ(", \"dynamic\": {\"-:a\": {}}"), OQ_E_FORMAT,
           "layer 'a' is quantized in the file, but 'dynamic' leaves it out");
    refuse(
        w, GPTQ(", \"dynamic\": {\"+:a\": {\"bits\": 8}}"), OQ_E_FORMAT,
        "tensor 'a.qweight' is [5, 8]; a weight of [8, 40] in codes of 8 bits, groups of 32, needs [10, 8]");
    refuse(w, AUTO(", \"extra_config\": {\"a\": {\"bits\": 16}}"), OQ_E_FORMAT,
           "layer 'a' is quantized in the file, but extra_config gives it 16 bits");
    refuse(w, AUTO(", \"extra_config\": {\"^a$\": {\"group_size\": 64}}"), OQ_E_FORMAT,
           "tensor 'a.scales' is [2, 8]; a weight of [8, 40] in codes of 4 bits, groups of 64, needs [1, 8]");
    scales[3] = 0x7c00; /* infinity */
    refuse(w, GPTQ(""), OQ_E_FORMAT, "scale 'a.scales' is inf at index 3; it must be finite");
    fill_scales();
    memory_ckpt_remove(&w->ckpt, "a.qzeros");
    refuse(w, GPTQ(", \"sym\": false"), OQ_E_FORMAT, "tensor 'a.qzeros' is missing beside 'a.qweight'");
    add(w, "a.perm", &oq_dtype_i32, index_of, K, -1);
    refuse(w, GPTQ(""), OQ_E_UNSUPPORTED,
           "tensor 'a.perm' changes what layer 'a' computes, in a way that is not in this build yet");
    memory_ckpt_remove(&w->ckpt, "a.perm");
    add(w, "a.qweight", &oq_dtype_f32, words, WORDS, N);
    refuse(w, GPTQ(""), OQ_E_FORMAT, "tensor 'a.qweight' is F32, packed codes are I32");
    memory_ckpt_remove(&w->ckpt, "a.qweight");
    add(w, "a.weight_scale", &oq_dtype_f16, scales, GROUPS, N);
    refuse(w, AUTO(""), OQ_E_FORMAT,
           "tensor 'a.qweight' is missing: the metadata says packed integers ('auto_round:auto_gptq')");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gptq, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_awq, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_rows, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_act_order, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_written_order, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
