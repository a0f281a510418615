/* test_format_gguf.c -- GGUF's blocks against a file that the format's own tool wrote (all_types.gguf: one matrix [24, 512]
 * per type, of weights that are a function of their names): our encoders give its bytes, our decoders its values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "format/float8.h"
#include "format/gguf_type.h"
#include "load/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_OF_ALL OMNIQ_SOURCE_DIR "/tests/data/quant/gguf/all_types.gguf"

enum { ROWS = 24, COLS = 512, N = ROWS * COLS };

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

/* The weights that the file's matrix was made of. */
static void source_of(const oq_ckpt_tensor *t, float *out)
{
    oq_dummy_fill(out, t->name, t->dim, t->n_dims);
    for (int i = 0; i < N; i++) out[i] = oq_bf16_round(out[i]);
}

static void encode_blocks(const oq_block *b, uint8_t *dst, const float *src, int64_t n)
{
    for (int64_t at = 0; at < n; at += b->elems, dst += b->bytes) {
        memset(dst, 0, (size_t)b->bytes);
        b->encode(dst, src + at);
    }
}

static void test_bytes_of_the_producer(void **state)
{
    oq_ckpt *ckpt = NULL;
    static float x[N];
    static uint8_t ours[N * 2];
    int n_compared = 0;
    if (oq_ckpt_open(*state, FILE_OF_ALL, &ckpt) != OQ_OK) fail_msg("%s", oq_env_error(*state));
    assert_int_equal(ckpt->n_tensors, 19);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        if (!t->format || !t->format->block->encode) continue;
        const oq_block *b = t->format->block;
        source_of(t, x);
        encode_blocks(b, ours, x, N);
        for (size_t at = 0; at < t->bytes; at++)
            if (ours[at] != t->data[at])
                fail_msg("%s: byte %d of block %d is %02x, the producer has %02x", t->type_name,
                         (int)(at % (size_t)b->bytes), (int)(at / (size_t)b->bytes), ours[at], t->data[at]);
        n_compared++;
    }
    assert_int_equal(n_compared, 16);
    oq_ckpt_close(ckpt);
}

/* ---- all codes ------------------------------------------------------------------------------------------- */

/* Any piece of the flattened matrix has the bits of whole blocks, whatever its ends and whatever the bytes. */
static void test_spans_of_any_bytes(void **state)
{
    (void)state;
    uint32_t seed = 1;
    static float whole[5 * 520], part[520];
    static uint8_t bytes[5 * 520 * 2];
    for (const oq_gguf_type *type = oq_gguf_types; type->name; type++) {
        const oq_format *f = type->format;
        if (!f) continue;
        const int64_t n = 5, k = 520; /* rows begin inside blocks */
        const size_t size = f->plane_bytes(f, OQ_PLANE_DATA, n, k);
        assert_true(size <= sizeof bytes &&
                    size ==
                        (size_t)((n * k + f->block->elems - 1) / f->block->elems) * (size_t)f->block->bytes);
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
        const oq_planes planes = {{bytes}};
        f->decode_row(f, whole, &planes, 0, 1, n * k);
        for (int64_t row = 0; row < n; row++)
            for (int64_t first = 0; first < k; first += 37) {
                const int64_t count = k - first < 301 ? k - first : 301;
                f->decode_span(f, part, &planes, row, first, count, n, k);
                assert_memory_equal(part, whole + row * k + first, (size_t)count * sizeof *part);
            }
    }
}

/* What GGML gives for scales at the edges: e8m0 bytes 0, 1 and 255, e4m3 bytes 0x7f and 0xff. */
static void test_scales_at_the_edges(void **state)
{
    (void)state;
    float x[64];
    uint8_t block[36] = {0};
    block[1] = 0x21; /* codes 1 and 2 */
    static const struct {
        uint8_t byte;
        float one;
    } powers[] = {{0, 0x1p-128f}, {1, 0x1p-127f}, {127, 0.5f}, {255, 0x1p127f}};
    for (size_t i = 0; i < OQ_COUNT(powers); i++) {
        block[0] = powers[i].byte;
        oq_format_mxfp4_gguf.block->decode(x, block);
        assert_true(x[0] == powers[i].one && x[16] == powers[i].one * 2);
    }
    static const uint8_t scales[4] = {0x7f, 0xff, 0x38, 0x80};
    memcpy(block, scales, 4);
    memset(block + 4, 0x22, 32); /* all ones */
    oq_format_nvfp4_gguf.block->decode(x, block);
    assert_true(x[0] == 0.0f && x[16] == 480.0f && x[32] == 1.0f && x[48] == 0.0f);
    memset(block, 0, sizeof block);
    block[2] = 0xe4; /* Q2_0: 0 1 2 3 -> -1 0 1 2 */
    block[1] = 0x3c;
    oq_format_q2_0.block->decode(x, block);
    assert_true(x[0] == -1.0f && x[1] == 0.0f && x[2] == 1.0f && x[3] == 2.0f && x[4] == -1.0f);
}

/* ---- how much is kept -------------------------------------------------------------------------------------- */

static uint64_t state_of_random;

static double uniform(void)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return ((double)(state_of_random >> 11) + 0.5) * 0x1p-53;
}

static double normal(void)
{
    const double u = uniform(), v = uniform();
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

enum { GAUSS, LAPLACE, STUDENT4, OUTLIERS, N_KINDS };

static void fill(float *x, int n, int k, int kind)
{
    state_of_random = 7;
    for (int i = 0; i < n * k; i++) {
        const double g = normal();
        double chi = 0;
        for (int j = 0; kind == STUDENT4 && j < 4; j++) {
            const double c = normal();
            chi += c * c;
        }
        x[i] = (float)(kind == LAPLACE    ? -log(uniform()) * (uniform() < 0.5 ? -1 : 1)
                       : kind == STUDENT4 ? g / sqrt(chi / 4)
                       : kind == OUTLIERS ? g * (i % k % 512 == 77 ? 20 : 1)
                                          : g);
    }
}

static double snr_db(const oq_block *b, const float *x, int n)
{
    double signal = 0, noise = 0;
    for (int at = 0; at < n; at += b->elems) {
        uint8_t bytes[OQ_BLOCK_BYTES] = {0};
        float y[OQ_BLOCK_ELEMS];
        b->encode(bytes, x + at);
        b->decode(y, bytes);
        for (int i = 0; i < b->elems; i++) {
            const double off = (double)y[i] - (double)x[at + i];
            signal += (double)x[at + i] * (double)x[at + i];
            noise += off * off;
        }
    }
    return 10 * log10(signal / noise);
}

/* Signal to noise of each type for four kinds of weights, within 0.3 dB of GGML's own: too good is as wrong as too bad.
 */
static void test_what_each_type_keeps(void **state)
{
    (void)state;
    static const struct {
        const oq_format *f;
        double db[N_KINDS];
    } rows[] = {
        {&oq_format_q8_0, {45.43, 43.44, 42.72, 40.68}},
        {&oq_format_q6_k, {35.03, 33.29, 32.82, 31.38}},
        {&oq_format_q5_k, {28.85, 27.37, 27.15, 27.13}},
        {&oq_format_q5_1, {28.45, 27.05, 26.87, 26.79}},
        {&oq_format_q5_0, {27.40, 25.44, 24.73, 22.84}},
        {&oq_format_q4_k, {22.94, 21.45, 21.24, 21.21}},
        {&oq_format_q4_1, {22.14, 20.74, 20.56, 20.36}},
        {&oq_format_q4_0, {21.32, 19.43, 18.73, 17.99}},
        {&oq_format_iq4_nl, {22.36, 21.13, 20.59, 19.65}},
        {&oq_format_iq4_xs, {22.29, 21.06, 20.50, 19.48}},
        {&oq_format_q3_k, {16.43, 15.08, 14.72, 16.32}},
        {&oq_format_q2_k, {10.57, 9.26, 9.30, 11.25}},
        {&oq_format_mxfp4_gguf, {18.79, 17.95, 17.65, 16.57}},
        {&oq_format_nvfp4_gguf, {20.43, 20.66, 20.75, 20.66}},
    };
    enum { N_ROWS = 256, K = 4096 };
    float *const x = malloc(sizeof *x * N_ROWS * K);
    int missed = 0;
    assert_non_null(x);
    for (int kind = 0; kind < N_KINDS; kind++) {
        fill(x, N_ROWS, K, kind);
        for (size_t i = 0; i < OQ_COUNT(rows); i++) {
            const double db = snr_db(rows[i].f->block, x, N_ROWS * K);
            const bool near = fabs(db - rows[i].db[kind]) <= 0.3;
            if (!near)
                print_message("%s, kind %d: %.2f dB, expected %.2f\n", rows[i].f->name, kind, db,
                              rows[i].db[kind]);
            missed += !near;
        }
    }
    free(x);
    assert_int_equal(missed, 0);
}

/* ---- the table of types -------------------------------------------------------------------------------------- */

static void test_types(void **state)
{
    (void)state;
    for (const oq_gguf_type *t = oq_gguf_types; t->name; t++) {
        assert_ptr_equal(oq_gguf_type_by_id(t->id), t);
        assert_ptr_equal(oq_gguf_type_by_name(t->name), t);
        assert_true(!t->dtype + !t->format + !t->why == 2); /* one of the three */
        if (t->dtype) assert_true(t->elems == 1 && t->bytes == (int)t->dtype->bytes);
        if (!t->format) continue;
        assert_true(t->elems == t->format->block->elems && t->bytes == t->format->block->bytes);
        assert_ptr_equal(oq_gguf_type_of(t->format), t);
    }
    assert_null(oq_gguf_type_by_id(4));
    assert_string_equal(oq_gguf_type_by_name("q4_k")->name, "Q4_K");
    assert_string_equal(oq_gguf_type_of(&oq_format_bf16)->name, "BF16");
    assert_null(oq_gguf_type_of(&oq_format_nvfp4));
}

/* B36: what takes rows that a type does not divide. */
static void test_fitting(void **state)
{
    (void)state;
    static const struct {
        const char *wanted;
        int64_t k;
        const char *fits;
    } rows[] = {{"Q4_K", 512, "Q4_K"}, {"Q4_K", 192, "Q5_0"},    {"Q5_K", 192, "Q5_1"},
                {"Q6_K", 192, "Q8_0"}, {"Q2_K", 96, "IQ4_NL"},   {"Q3_K", 96, "IQ4_NL"},
                {"TQ1_0", 96, "Q4_0"}, {"IQ4_XS", 96, "IQ4_NL"}, {"NVFP4", 96, "MXFP4"},
                {"Q8_0", 96, "Q8_0"},  {"Q8_0", 100, "F16"},     {"Q4_K", 100, "F16"}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        assert_string_equal(oq_gguf_type_fitting(oq_gguf_type_by_name(rows[i].wanted), rows[i].k)->name,
                            rows[i].fits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_the_producer),
        cmocka_unit_test(test_spans_of_any_bytes),
        cmocka_unit_test(test_scales_at_the_edges),
        cmocka_unit_test(test_what_each_type_keeps),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_fitting),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
