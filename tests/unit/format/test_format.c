/* test_format.c -- what stored bytes mean: every code of the small floats, rounding at every boundary, the
 * walk over all formats, and vectors worked out by hand (and once against another implementation). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "format/float8.h"
#include "format/format.h"

/* ---- small floats -------------------------------------------------------------------------------------- */

typedef struct small_float { /* sign, `exponent` bits, `mantissa` bits */
    int exponent, mantissa;
    unsigned top; /* largest finite magnitude */
} small_float;

static double small_value(const small_float *f, unsigned magnitude)
{
    const int bias = (1 << (f->exponent - 1)) - 1;
    const int e = (int)(magnitude >> f->mantissa);
    const int m = (int)(magnitude & ((1u << f->mantissa) - 1u));
    if (!e) return ldexp(m, 1 - bias - f->mantissa);
    return ldexp(m + (1 << f->mantissa), e - bias - f->mantissa);
}

typedef struct coder {
    small_float format;
    float (*decode)(unsigned code);
    unsigned (*encode)(float x);
    unsigned sign;
} coder;

static float decode_f16(unsigned code)
{
    return oq_f16_to_f32((uint16_t)code);
}
static float decode_bf16(unsigned code)
{
    return oq_bf16_to_f32((uint16_t)code);
}
static float decode_e4m3(unsigned code)
{
    return oq_e4m3_to_f32((uint8_t)code);
}
static float decode_e5m2(unsigned code)
{
    return oq_e5m2_to_f32((uint8_t)code);
}
static unsigned encode_f16(float x)
{
    return oq_f16_from_f32(x);
}
static unsigned encode_bf16(float x)
{
    return oq_bf16_from_f32(x);
}
static unsigned encode_e4m3(float x)
{
    return oq_e4m3_from_f32(x);
}
static unsigned encode_e5m2(float x)
{
    return oq_e5m2_from_f32(x);
}

static const coder coders[] = {
    {{5, 10, 0x7bff}, decode_f16, encode_f16, 0x8000},
    {{8, 7, 0x7f7f}, decode_bf16, encode_bf16, 0x8000},
    {{4, 3, 0x7e}, decode_e4m3, encode_e4m3, 0x80},
    {{5, 2, 0x7b}, decode_e5m2, encode_e5m2, 0x80},
};

/* Every finite code decodes to its value and comes back; each midpoint goes to the even neighbour, and the
 * next f32 on each side of it to the nearer one. That decides the rounding of every f32 in between. */
static void test_small_floats_every_code(void **state)
{
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(coders); i++) {
        const coder *const c = &coders[i];
        for (unsigned code = 0; code <= c->format.top; code++) {
            const float value = (float)small_value(&c->format, code);
            assert_true(c->decode(code) == value);
            assert_true(c->decode(code | c->sign) == -value && signbit(c->decode(code | c->sign)));
            assert_int_equal(c->encode(value), code);
            assert_int_equal(c->encode(-value), code | c->sign);
            if (code == c->format.top) continue;
            const float middle =
                (float)((small_value(&c->format, code) + small_value(&c->format, code + 1)) / 2);
            assert_int_equal(c->encode(middle), code & 1 ? code + 1 : code);
            assert_int_equal(c->encode(nextafterf(middle, 0.0f)), code);
            assert_int_equal(c->encode(nextafterf(middle, INFINITY)), code + 1);
            assert_int_equal(c->encode(-middle), (code & 1 ? code + 1 : code) | c->sign);
        }
    }
}

static void test_small_floats_edges(void **state)
{
    (void)state;
    assert_int_equal(oq_e4m3_from_f32(464.0f), 0x7e);
    assert_int_equal(oq_e4m3_from_f32(3e38f), 0x7e);
    assert_int_equal(oq_e4m3_from_f32(-INFINITY), 0xfe);
    assert_int_equal(oq_e4m3_from_f32(NAN) & 0x7f, 0x7f);
    assert_int_equal(oq_e4m3_from_f32(-NAN), 0xff);
    assert_true(isnan(oq_e4m3_to_f32(0x7f)) && isnan(oq_e4m3_to_f32(0xff)));
    assert_int_equal(oq_e5m2_from_f32(61440.0f), 0x7b);
    assert_int_equal(oq_e5m2_from_f32(-3e38f), 0xfb);
    assert_int_equal(oq_e5m2_from_f32(INFINITY), 0x7c);
    assert_true(isnan(oq_e5m2_to_f32(oq_e5m2_from_f32(NAN))));
    for (unsigned code = 0x7d; code <= 0x7f; code++) assert_true(isnan(oq_e5m2_to_f32((uint8_t)code)));
    assert_true(isinf(oq_e5m2_to_f32(0xfc)) && oq_e5m2_to_f32(0xfc) < 0);
    assert_int_equal(oq_f16_from_f32(65519.99f), 0x7bff);
    assert_int_equal(oq_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(oq_f16_from_f32(-INFINITY), 0xfc00);
    assert_true(isnan(oq_f16_to_f32(oq_f16_from_f32(NAN))));
    assert_true(isnan(oq_f16_to_f32(0x7c01)));
    assert_int_equal(oq_bf16_from_f32(3.4028235e38f), 0x7f80);
    assert_true(isnan(oq_bf16_to_f32(oq_bf16_from_f32(oq_f32_from_bits(0x7f800001u)))));
}

/* Encodings that a second implementation gave too. */
static void test_e4m3_known(void **state)
{
    (void)state;
    static const struct {
        float x;
        uint8_t code;
    } known[] = {{1.0f, 0x38},
                 {-1.0f, 0xb8},
                 {448.0f, 0x7e},
                 {464.0f, 0x7e},
                 {500.0f, 0x7e},
                 {0.3f, 0x2a},
                 {17.0f, 0x58},
                 {19.0f, 0x5a},
                 {1.0625f, 0x38},
                 {1.1875f, 0x3a},
                 {0x1p-9f, 0x01},
                 {0x1p-10f, 0x00},
                 {1.0001f * 0x1p-10f, 0x01},
                 {3 * 0x1p-10f, 0x02},
                 {-0.0f, 0x80}};
    for (size_t i = 0; i < OQ_COUNT(known); i++)
        assert_int_equal(oq_e4m3_from_f32(known[i].x), known[i].code);
}

/* ---- element types ------------------------------------------------------------------------------------- */

static void test_dtype_list(void **state)
{
    (void)state;
    for (size_t i = 0; oq_dtype_list[i]; i++) {
        const oq_dtype *const t = oq_dtype_list[i];
        assert_ptr_equal(oq_dtype_find(t->name), t);
        assert_true(t->label[0] && t->bytes && t->bytes <= 8);
        assert_non_null(t->to_f32);
        assert_true(t->floating == (t->from_f32 != NULL));
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(oq_dtype_list[j]->name, t->name);
            assert_string_not_equal(oq_dtype_list[j]->label, t->label);
        }
    }
    assert_null(oq_dtype_find("bf16"));
    assert_null(oq_dtype_find("F8_E4M3FN"));
}

/* Rows at odd addresses give the same values as single numbers, and what is written comes back. */
static void test_dtype_rows(void **state)
{
    (void)state;
    enum { N = 67 };
    static const float some[] = {0.0f, -0.0f, 1.0f, -1.5f, 300.0f, 0.0019f, -448.0f, 0x1p-14f, 5e-8f};
    float x[N], y[N];
    char bytes[8 * N + 1];
    for (size_t i = 0; i < N; i++) x[i] = some[i % OQ_COUNT(some)] * (1.0f + (float)(i / 9) / 16.0f);
    for (size_t t = 0; oq_dtype_list[t]; t++) {
        const oq_dtype *const type = oq_dtype_list[t];
        if (!type->from_f32) continue;
        type->from_f32(bytes + 1, x, N);
        type->to_f32(y, bytes + 1, N);
        for (size_t i = 0; i < N; i++) {
            char one[8];
            float back;
            type->from_f32(one, &x[i], 1);
            assert_memory_equal(one, bytes + 1 + i * type->bytes, type->bytes);
            type->to_f32(&back, one, 1);
            assert_true(back == y[i] && signbit(back) == signbit(x[i]));
            if (type->bytes >= 4) assert_true(back == x[i]);
        }
    }
}

static void test_integers_to_f32(void **state)
{
    (void)state;
    const int64_t i64[] = {-1, (1 << 24) + 1, INT64_MIN};
    const uint64_t u64[] = {UINT64_MAX, (1u << 24) + 3};
    const uint8_t flags[] = {0, 1, 255};
    const int8_t i8[] = {-128, 127};
    const double f64[] = {1.0 + 0x1p-24, 1e300};
    float y[3];
    oq_dtype_i64.to_f32(y, i64, 3);
    assert_true(y[0] == -1.0f && y[1] == 0x1p24f && y[2] == -0x1p63f);
    oq_dtype_u64.to_f32(y, u64, 2);
    assert_true(y[0] == 0x1p64f && y[1] == 0x1.000004p24f);
    oq_dtype_bool.to_f32(y, flags, 3);
    assert_true(y[0] == 0.0f && y[1] == 1.0f && y[2] == 1.0f);
    oq_dtype_i8.to_f32(y, i8, 2);
    assert_true(y[0] == -128.0f && y[1] == 127.0f);
    oq_dtype_f64.to_f32(y, f64, 2);
    assert_true(y[0] == 1.0f && isinf(y[1]));
}

/* ---- formats ------------------------------------------------------------------------------------------- */

static float *weights(int64_t n, int64_t k)
{
    float *const w = malloc((size_t)(n * k) * sizeof *w);
    assert_non_null(w);
    uint32_t s = 12345;
    for (int64_t i = 0; i < n * k; i++) {
        s = s * 1664525u + 1013904223u;
        w[i] = ((float)(s >> 8) * 0x1p-24f - 0.5f) * (i % 97 == 5 ? 20.0f : 1.0f);
        if (i / k == 1) w[i] = 0.0f; /* a zero row */
    }
    return w;
}

static void planes_new(const oq_format *f, int64_t n, int64_t k, oq_planes_mut *out)
{
    memset(out, 0, sizeof *out);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, n, k);
        assert_true((bytes > 0) == ((f->planes >> p & 1u) != 0));
        if (bytes) out->plane[p] = malloc(bytes);
    }
}

static void planes_free(oq_planes_mut *planes)
{
    for (int p = 0; p < OQ_N_PLANES; p++) free(planes->plane[p]);
}

static oq_planes planes_view(const oq_planes_mut *m)
{
    oq_planes view;
    for (int p = 0; p < OQ_N_PLANES; p++) view.plane[p] = m->plane[p];
    return view;
}

/* The scale of element (r, c), found the slow way from the header's words alone. */
static float scale_of(const oq_format *f, const oq_planes_mut *planes, int64_t r, int64_t c, int64_t n,
                      int64_t k)
{
    const float *const s = planes->plane[OQ_PLANE_SCALE];
    const int64_t bn = f->block_n ? f->block_n : n, bk = f->block_k ? f->block_k : k;
    return s ? s[r / bn * ((k + bk - 1) / bk) + c / bk] : 1.0f;
}

static void check_round_trip(const oq_format *f, int64_t n, int64_t k)
{
    float *const w = weights(n, k), *const row = malloc((size_t)k * sizeof *row);
    oq_planes_mut planes;
    planes_new(f, n, k, &planes);
    f->encode(f, &planes, w, n, k);
    const oq_planes view = planes_view(&planes);
    for (int64_t r = 0; r < n; r++) {
        f->decode_row(f, row, &view, r, n, k);
        for (int64_t c = 0; c < k; c++) {
            const float scale = scale_of(f, &planes, r, c, n, k), x = w[r * k + c];
            float one;
            f->element->to_f32(
                &one, (char *)planes.plane[OQ_PLANE_DATA] + (size_t)(r * k + c) * f->element->bytes, 1);
            assert_true(row[c] == one * scale);
            float bound = 0.0f;
            if (f->element == &oq_dtype_i8) bound = 0.5001f * scale;
            if (f->element == &oq_dtype_f8_e4m3) bound = fabsf(x) * 0.0626f + scale * 0x1p-10f;
            if (f->element->bytes == 2) bound = fabsf(x) * 0x1p-8f + 0x1p-24f;
            assert_true(fabsf(row[c] - x) <= bound);
        }
    }
    planes_free(&planes);
    free(row);
    free(w);
}

static void test_format_list(void **state)
{
    (void)state;
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *const f = oq_format_list[i];
        assert_ptr_equal(oq_format_find(f->name), f);
        assert_true(f->kernel_name && f->kernel_name[0]);
        assert_non_null(f->decode_row);
        assert_true(f->planes & 1u << OQ_PLANE_DATA);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(oq_format_list[j]->name, f->name);
        assert_true(f->plane_bytes(f, OQ_PLANE_DATA, INT64_MAX, 3 * (INT64_MAX / 4)) == SIZE_MAX);
        if (!f->encode || !f->element) continue; /* group formats have a test of their own */
        check_round_trip(f, 1, 1);
        check_round_trip(f, 3, 129);
        check_round_trip(f, 130, 257);
        check_round_trip(f, 200, 64);
    }
    assert_null(oq_format_find("fp8"));
    assert_ptr_equal(oq_format_plain(&oq_dtype_bf16), &oq_format_bf16);
    assert_ptr_equal(oq_format_plain(&oq_dtype_f16), &oq_format_f16);
    assert_ptr_equal(oq_format_plain(&oq_dtype_f32), &oq_format_f32);
    assert_null(oq_format_plain(&oq_dtype_i8));
}

static void test_fp8_tensor_known(void **state)
{
    (void)state;
    static const float w[] = {1.0f, -0.5f, 0.25f, 3.0f};
    static const uint8_t codes[] = {0x71, 0xe9, 0x61, 0x7e}, scale_bytes[] = {0xb7, 0x6d, 0xdb, 0x3b};
    uint8_t data[4];
    float scale;
    oq_planes_mut planes = {{data, &scale}};
    oq_format_fp8_e4m3_tensor.encode(&oq_format_fp8_e4m3_tensor, &planes, w, 2, 2);
    assert_memory_equal(data, codes, 4);
    assert_memory_equal(&scale, scale_bytes, 4);
}

static void test_fp8_zero_and_bad_weights(void **state)
{
    (void)state;
    const float w[] = {0.0f, -0.0f, 1e-40f, 0.0f, 1.0f, NAN, 2.0f, -INFINITY};
    uint8_t data[8];
    float scale[4];
    oq_planes_mut planes = {{data, scale}};
    oq_format_fp8_e4m3_channel.encode(&oq_format_fp8_e4m3_channel, &planes, w, 4, 2);
    assert_true(scale[0] == 1.0f && data[0] == 0 && data[1] == 0);
    assert_true(scale[1] == 1.0f && data[2] == 0 && data[3] == 0);
    assert_true(isnan(scale[2]) && isnan(scale[3]));
    oq_format_int8_channel.encode(&oq_format_int8_channel, &planes, w, 4, 2);
    assert_true(scale[0] == 0.0f && scale[1] == 0.0f && data[0] == 0 && data[2] == 0);
    assert_true(isnan(scale[2]) && isnan(scale[3]));
    oq_format_fp8_e4m3_block128.encode(&oq_format_fp8_e4m3_block128, &planes, w, 2, 2);
    assert_true(isfinite(scale[0]) && scale[0] > 0.0f && data[0] == 0);
}

static void test_int8_known(void **state)
{
    (void)state;
    static const float a[] = {1.0f, -2.0f, 0.5f, 0.0f}, b[] = {-1.3984375f, 2.796875f, -2.0f, 1.0f};
    static const int8_t codes_a[] = {64, -127, 32, 0}, codes_b[] = {-64, 127, -91, 45};
    int8_t data[4];
    float scale;
    oq_planes_mut planes = {{data, &scale}};
    oq_format_int8_channel.encode(&oq_format_int8_channel, &planes, a, 1, 4);
    assert_memory_equal(data, codes_a, 4);
    assert_true(fabsf(scale - 0.015748031f) < 1e-9f);
    oq_format_int8_channel.encode(&oq_format_int8_channel, &planes, b, 1, 4);
    assert_memory_equal(data, codes_b, 4);
    assert_true(fabsf(scale - 0.022022638f) < 1e-9f);
}

/* ---- activations --------------------------------------------------------------------------------------- */

static void test_act_e4m3(void **state)
{
    (void)state;
    const oq_scheme token = {
        .weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN};
    const oq_scheme fixed = {
        .weight = &oq_format_fp8_e4m3_tensor, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_STATIC_TENSOR};
    const float x[] = {1.0f, -0.5f, 0.25f, 3.0f}, zero[4] = {0};
    uint8_t codes[4];
    float scale = -1.0f;
    oq_act_quantize_row(&token, 0.0f, x, 4, codes, &scale);
    assert_true(scale == 3.0f / 448.0f);
    for (size_t i = 0; i < 4; i++) assert_int_equal(codes[i], oq_e4m3_from_f32(x[i] / scale));
    oq_act_quantize_row(&token, 0.0f, zero, 4, codes, &scale);
    assert_true(scale == 1.0f / (448.0f * 512.0f) && fabsf(scale - 4.359654e-06f) < 1e-12f);
    assert_int_equal(codes[0] | codes[1] | codes[2] | codes[3], 0);
    oq_act_quantize_row(&fixed, 0.001f, x, 4, codes, &scale);
    assert_true(scale == 0.001f);
    assert_int_equal(codes[0], 0x7e); /* 1000 saturates */
    assert_int_equal(codes[2], oq_e4m3_from_f32(250.0f));
}

static void test_act_groups(void **state)
{
    (void)state;
    enum { K = 300 };
    const oq_scheme scheme = {
        .weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP};
    float x[K], scales[4] = {-1, -1, -1, -1};
    uint8_t codes[K];
    for (int i = 0; i < K; i++) x[i] = i < 128 ? (float)i : i < 256 ? 0.0f : -0.5f;
    oq_act_quantize_row(&scheme, 0.0f, x, K, codes, scales);
    assert_true(scales[0] == 127.0f / 448.0f && scales[1] == 1e-12f / 448.0f && scales[2] == 0.5f / 448.0f);
    assert_true(scales[3] == -1.0f); /* three groups, no more */
    for (int i = 0; i < K; i++) assert_int_equal(codes[i], oq_e4m3_from_f32(x[i] / scales[i / 128]));
}

static void test_act_i8(void **state)
{
    (void)state;
    const oq_scheme scheme = {
        .weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN};
    const float x[] = {-1.3984375f, 2.796875f, -2.0f, 1.0f}, zero[4] = {0}, tiny[] = {1e-39f, 0, 0, 0};
    static const int8_t expected[] = {-64, 127, -91, 45}, zeros[4] = {0};
    int8_t codes[4];
    float scale;
    oq_act_quantize_row(&scheme, 0.0f, x, 4, codes, &scale);
    assert_memory_equal(codes, expected, 4);
    assert_true(scale == 2.796875f / 127.0f);
    oq_act_quantize_row(&scheme, 0.0f, zero, 4, codes, &scale);
    assert_memory_equal(codes, zeros, 4);
    assert_true(scale == 0.0f);
    oq_act_quantize_row(&scheme, 0.0f, tiny, 4, codes, &scale);
    assert_memory_equal(codes, zeros, 4);
    assert_true(scale == 0.0f);
}

static void test_act_non_finite(void **state)
{
    (void)state;
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_tensor, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_STATIC_TENSOR},
        {.weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_int8_tensor, .act = &oq_dtype_i8, .act_scale = OQ_ACT_STATIC_TENSOR},
    };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t s = 0; s < OQ_COUNT(schemes); s++)
        for (size_t b = 0; b < OQ_COUNT(bad); b++) {
            const float x[] = {1.0f, bad[b], 2.0f};
            uint8_t codes[3];
            float scale = 0.0f;
            oq_act_quantize_row(&schemes[s], 0.5f, x, 3, codes, &scale);
            assert_true(isnan(scale));
        }
}

static void test_scheme_text(void **state)
{
    (void)state;
    const oq_scheme fp8 = {
        .weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN};
    const oq_scheme plain = {.weight = &oq_format_bf16, .act = NULL, .act_scale = OQ_ACT_NONE};
    const oq_scheme block = {
        .weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP};
    char text[64];
    oq_scheme_describe(&fp8, text, sizeof text);
    assert_string_equal(text, "w: fp8_e4m3_channel a: fp8_e4m3 dynamic_token");
    oq_scheme_describe(&plain, text, sizeof text);
    assert_string_equal(text, "w: bf16 a: none");
    oq_scheme_describe(&block, text, 10);
    assert_string_equal(text, "w: fp8_e4");
    assert_true(oq_scheme_equal(&fp8, &fp8) && !oq_scheme_equal(&fp8, &block) &&
                !oq_scheme_equal(&fp8, &plain));
    assert_string_equal(oq_act_scale_name(OQ_ACT_STATIC_TENSOR), "static_tensor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_floats_every_code),
        cmocka_unit_test(test_small_floats_edges),
        cmocka_unit_test(test_e4m3_known),
        cmocka_unit_test(test_dtype_list),
        cmocka_unit_test(test_dtype_rows),
        cmocka_unit_test(test_integers_to_f32),
        cmocka_unit_test(test_format_list),
        cmocka_unit_test(test_fp8_tensor_known),
        cmocka_unit_test(test_fp8_zero_and_bad_weights),
        cmocka_unit_test(test_int8_known),
        cmocka_unit_test(test_act_e4m3),
        cmocka_unit_test(test_act_groups),
        cmocka_unit_test(test_act_i8),
        cmocka_unit_test(test_act_non_finite),
        cmocka_unit_test(test_scheme_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
