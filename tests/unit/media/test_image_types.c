/* test_image_types.c -- JPEG and WebP: pixels and texts come back, pictures come upright, damage is refused. A build without
 * one of them says which package it would need. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "media/exif.h"
#include "media/ending.h"
#include "media/image_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { W = 40, H = 28 };

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

static const oq_image_type *type_named(const char *name)
{
    for (size_t i = 0; oq_image_list[i]; i++)
        if (strcmp(oq_image_list[i]->name, name) == 0) return oq_image_list[i];
    fail_msg("no type '%s'", name);
    return NULL;
}

static uint8_t pixels[W * H * 3];
static void fill_pixels(void)
{
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            uint8_t *p = pixels + (y * W + x) * 3;
            p[0] = (uint8_t)(x * 6), p[1] = (uint8_t)(y * 9), p[2] = (uint8_t)(255 - x * 3 - y * 4);
        }
}

static double psnr(const uint8_t *a, const uint8_t *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum > 0 ? 10 * log10(255.0 * 255.0 * (double)n / sum) : INFINITY;
}

static const oq_image_text TEXTS[] = {{"parameters", "a cat \xe2\x80\x94 \xf0\x9f\x8e\x89\nSteps: 4"},
                                      {"omniq", "{\"command\": \"generate\", \"x\": \"\xc3\xbc\"}"}};

static void check_type(oq_env *env, const char *name, double least)
{
    const oq_image_type *type = type_named(name);
    if (type->missing) {
        assert_non_null(strstr(type->missing, "this build has no "));
        assert_non_null(strstr(type->missing, "install lib"));
        return;
    }
    char *bytes = NULL, *text = NULL;
    size_t n = 0;
    oq_image image = {0};
    fill_pixels();
    if (type->encode(env, W, H, pixels, TEXTS, 2, "x", &bytes, &n) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    assert_true(type->is((const uint8_t *)bytes, n));
    if (oq_image_decode(env, bytes, n, "x", &image) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(image.width, W);
    assert_int_equal(image.height, H);
    assert_true(psnr(pixels, image.pixels, sizeof pixels) >= least);
    oq_image_deinit(env, &image);
    for (size_t i = 0; i < 2; i++) {
        if (oq_image_decode_text(env, bytes, n, "x", TEXTS[i].key, &text) != OQ_OK)
            fail_msg("%s", oq_env_error(env));
        assert_string_equal(text, TEXTS[i].text);
        oq_free(env, text);
    }
    /* every end that comes too early is refused, or was of no consequence to the pixels */
    for (size_t cut = 0; cut < n; cut++) {
        const oq_status st = oq_image_decode(env, bytes, cut, "x", &image);
        if (st == OQ_OK) assert_true(psnr(pixels, image.pixels, sizeof pixels) >= least);
        oq_image_deinit(env, &image);
        oq_env_clear(env);
    }
    oq_free(env, bytes);
    assert_int_equal(type->encode(env, W, H, pixels, NULL, 0, "x", &bytes, &n), OQ_OK);
    assert_int_equal(oq_image_decode_text(env, bytes, n, "x", "omniq", &text), OQ_E_NOTFOUND);
    oq_env_clear(env);
    assert_int_equal(type->encode(env, 70000, 1, pixels, NULL, 0, "x", &text, &n), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "70000 x 1 pixels, sides of a "));
    oq_env_clear(env);
    oq_free(env, bytes);
}

static void test_jpeg(void **state)
{
    check_type(*state, "JPEG", 40);
}
static void test_webp(void **state)
{
    check_type(*state, "WebP", 1000); /* without loss */
}

static void test_unknown_types(void **state)
{
    oq_env *env = *state;
    oq_image image = {0};
    assert_int_equal(oq_image_decode(env, "GIF89a", 6, "x.gif", &image), OQ_E_FORMAT);
    assert_non_null(strstr(oq_env_error(env), "x.gif: this build reads pictures as PNG"));
    oq_env_clear(env);
}

/* Nobody gets a PNG who did not ask for one. */
static void test_unknown_endings(void **state)
{
    oq_env *env = *state;
    static const char *const fine[] = {"x.png", "a.b/x.PNG", "name.with.dots.png", "-"};
    static const char *const wrong[] = {"x.gif", "x.xyz", "x.mp4", "x.png.part", "name.with.dots",
                                        "x",     "x.",    ".png",  "a.png/x",    "a.png/"};
    for (size_t i = 0; i < OQ_COUNT(fine); i++) assert_int_equal(oq_image_check_output(env, fine[i]), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(wrong); i++) {
        char begin[96];
        const uint8_t pixel[3] = {0};
        snprintf(begin, sizeof begin, "output '%s': this build writes pictures as .png, ", wrong[i]);
        assert_int_equal(oq_image_check_output(env, wrong[i]), OQ_E_ARG);
        if (strncmp(oq_env_error(env), begin, strlen(begin)) != 0) fail_msg("%s", oq_env_error(env));
        oq_env_clear(env);
        assert_int_equal(oq_image_write(env, wrong[i], 1, 1, pixel, NULL, 0), OQ_E_ARG);
        oq_env_clear(env);
    }
    assert_int_equal(oq_image_check_output(env, "x.xyz"), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), ", not '.xyz'"));
    oq_env_clear(env);
    assert_int_equal(oq_image_check_output(env, "x"), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), ", and the name has no ending"));
    oq_env_clear(env);
}

/* Of an output before it is known whether pictures or videos come. */
static void test_endings_of_any_kind(void **state)
{
    oq_env *env = *state;
    static const char *const fine[] = {"x.png", "x.y4m", "x.mp4", "x.JPG", "frames", "-", "a.xyz/frames"};
    for (size_t i = 0; i < OQ_COUNT(fine); i++) assert_int_equal(oq_ending_check(env, fine[i]), OQ_OK);
    assert_int_equal(oq_ending_check(env, "a/x.xyz"), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "output 'a/x.xyz': this build writes pictures as .png"));
    assert_non_null(strstr(oq_env_error(env), ".y4m, not '.xyz'"));
    oq_env_clear(env);
}

/* The eight orientations, as EXIF defines them by where the first row and the first column are. */
static void test_upright(void **state)
{
    oq_env *env = *state;
    static const uint8_t upright[] = {1, 2, 3, 4, 5, 6}; /* 3 x 2 */
    static const struct {
        int64_t w, h;
        uint8_t stored[6];
    } rows[] = {{3, 2, {1, 2, 3, 4, 5, 6}}, {3, 2, {3, 2, 1, 6, 5, 4}}, {3, 2, {6, 5, 4, 3, 2, 1}},
                {3, 2, {4, 5, 6, 1, 2, 3}}, {2, 3, {1, 4, 2, 5, 3, 6}}, {2, 3, {3, 6, 2, 5, 1, 4}},
                {2, 3, {6, 3, 5, 2, 4, 1}}, {2, 3, {4, 1, 5, 2, 6, 3}}};
    for (int o = 1; o <= 8; o++) {
        oq_image image;
        assert_int_equal(oq_image_new(env, rows[o - 1].w, rows[o - 1].h, &image), OQ_OK);
        for (int i = 0; i < 6; i++) memset(image.pixels + i * 3, rows[o - 1].stored[i], 3);
        assert_int_equal(oq_image_upright(env, &image, o), OQ_OK);
        assert_int_equal(image.width, 3);
        assert_int_equal(image.height, 2);
        for (int i = 0; i < 6; i++) assert_int_equal(image.pixels[i * 3], upright[i]);
        oq_image_deinit(env, &image);
    }
}

/* Both byte orders; what is damaged says nothing. */
static void test_orientation_is_found(void **state)
{
    (void)state;
    static const uint8_t big[] = "MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0",
                         little[] = "Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x08\0\0\0\0\0\0\0";
    assert_int_equal(oq_exif_orientation(big, sizeof big - 1), 6);
    assert_int_equal(oq_exif_orientation(little, sizeof little - 1), 8);
    for (size_t n = 0; n < 20; n++) assert_int_equal(oq_exif_orientation(big, n), 1);
    uint8_t wrong[sizeof big];
    memcpy(wrong, big, sizeof big);
    wrong[19] = 9;
    assert_int_equal(oq_exif_orientation(wrong, sizeof big - 1), 1);
    wrong[7] = 255; /* the list beyond the block */
    assert_int_equal(oq_exif_orientation(wrong, sizeof big - 1), 1);
}

/* ---- an orientation inside a real file ----------------------------------------------------------------- */

/* Turned by a quarter: 14 bytes of header, one entry. */
#define QUARTER "MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"

/* `type` writes the picture; `add` puts the block into its bytes (room for 128 more) and returns their number. */
static void check_upright(oq_env *env, const char *type, size_t (*add)(uint8_t *bytes, size_t n))
{
    char *bytes = NULL;
    size_t n = 0;
    oq_image plain = {0}, turned = {0};
    fill_pixels();
    assert_int_equal(type_named(type)->encode(env, W, H, pixels, NULL, 0, "x", &bytes, &n), OQ_OK);
    uint8_t *with = malloc(n + 128);
    assert_non_null(with);
    memcpy(with, bytes, n);
    assert_int_equal(oq_image_decode(env, bytes, n, "x", &plain), OQ_OK);
    if (oq_image_decode(env, with, add(with, n), "x", &turned) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(turned.width, H);
    assert_int_equal(turned.height, W);
    assert_int_equal(oq_image_upright(env, &plain, 6), OQ_OK);
    assert_memory_equal(plain.pixels, turned.pixels, sizeof pixels);
    oq_image_deinit(env, &plain);
    oq_image_deinit(env, &turned);
    oq_free(env, bytes);
    free(with);
}

static size_t insert(uint8_t *bytes, size_t n, size_t at, const void *data, size_t count)
{
    memmove(bytes + at + count, bytes + at, n - at);
    memcpy(bytes + at, data, count);
    return n + count;
}

#ifdef OMNIQ_HAVE_JPEG
static size_t add_to_jpeg(uint8_t *bytes, size_t n)
{
    static const char marker[] = "\xff\xe1\0\x22"
                                 "Exif\0\0" QUARTER;
    return insert(bytes, n, 2, marker, sizeof marker - 1);
}
static void test_jpeg_comes_upright(void **state)
{
    check_upright(*state, "JPEG", add_to_jpeg);
}
#endif

#ifdef OMNIQ_HAVE_WEBP
/* Behind the bitstream, and a header that announces it. */
static size_t add_to_webp(uint8_t *bytes, size_t n)
{
    static const char header[] = "VP8X\x0a\0\0\0\x08\0\0\0", block[] = "EXIF\x1a\0\0\0" QUARTER;
    uint8_t whole[18] = {0};
    memcpy(whole, header, sizeof header - 1);
    whole[12] = W - 1;
    whole[15] = H - 1;
    n = insert(bytes, n, 12, whole, sizeof whole);
    n = insert(bytes, n, n, block, sizeof block - 1);
    for (int i = 0; i < 4; i++) bytes[4 + i] = (uint8_t)((n - 8) >> (8 * i));
    return n;
}
static void test_webp_comes_upright(void **state)
{
    check_upright(*state, "WebP", add_to_webp);
}
#endif

static uint32_t crc_of(const uint8_t *bytes, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

static size_t add_chunk(uint8_t *bytes, size_t n, size_t at)
{
    static const char block[] = "\0\0\0\x1a"
                                "eXIf" QUARTER;
    uint8_t chunk[sizeof block - 1 + 4];
    memcpy(chunk, block, sizeof block - 1);
    const uint32_t crc = crc_of(chunk + 4, sizeof block - 1 - 4);
    for (int i = 0; i < 4; i++) chunk[sizeof block - 1 + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
    return insert(bytes, n, at, chunk, sizeof chunk);
}
static size_t add_before_pixels(uint8_t *bytes, size_t n)
{
    return add_chunk(bytes, n, 8 + 25); /* behind the signature and IHDR */
}
static size_t add_behind_pixels(uint8_t *bytes, size_t n)
{
    return add_chunk(bytes, n, n - 12); /* before IEND */
}
static void test_png_comes_upright(void **state)
{
    check_upright(*state, "PNG", add_before_pixels);
    check_upright(*state, "PNG", add_behind_pixels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png_comes_upright),
        cmocka_unit_test(test_jpeg),
        cmocka_unit_test(test_webp),
        cmocka_unit_test(test_unknown_types),
        cmocka_unit_test(test_unknown_endings),
        cmocka_unit_test(test_endings_of_any_kind),
        cmocka_unit_test(test_upright),
        cmocka_unit_test(test_orientation_is_found),
#ifdef OMNIQ_HAVE_JPEG
        cmocka_unit_test(test_jpeg_comes_upright),
#endif
#ifdef OMNIQ_HAVE_WEBP
        cmocka_unit_test(test_webp_comes_upright),
#endif
    };
    return cmocka_run_group_tests_name("image types", tests, setup, teardown);
}
