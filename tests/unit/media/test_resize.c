/* test_resize.c -- resized pictures equal Pillow's LANCZOS and BICUBIC byte for byte: a hash of all bytes and three of them (Pillow's
 * Image.resize over the same formula of pixels). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "media/image.h"

typedef struct row {
    oq_image_filter filter;
    int64_t w, h, to_w, to_h;
    uint64_t hash;   /* FNV-1a 64 of the bytes */
    uint8_t some[3]; /* first, middle, last: red, green, blue */
} row;

static const row rows[] = {
    {OQ_LANCZOS, 7, 5, 12, 9, 0x07d109ac30064e9du, {0, 143, 88}},
    {OQ_LANCZOS, 16, 12, 5, 4, 0xf15da8f0b60ea796u, {112, 132, 119}},
    {OQ_LANCZOS, 33, 20, 8, 31, 0x9729e695f48c28e6u, {69, 116, 113}},
    {OQ_LANCZOS, 40, 40, 40, 40, 0x083cd1588a5e45b5u, {0, 37, 129}},
    {OQ_LANCZOS, 1, 1, 5, 3, 0x8ba7bba66bcec9beu, {0, 53, 106}},
    {OQ_LANCZOS, 100, 3, 7, 50, 0xb0f4f5e6c49b05feu, {103, 132, 120}},
    {OQ_BICUBIC, 7, 5, 12, 9, 0x35ea2176426c8b52u, {0, 147, 87}},
    {OQ_BICUBIC, 16, 12, 5, 4, 0x3b827a25834eacceu, {112, 129, 118}},
    {OQ_BICUBIC, 33, 20, 8, 31, 0x48fe416e1d09f955u, {66, 117, 113}},
    {OQ_BICUBIC, 40, 40, 40, 40, 0x083cd1588a5e45b5u, {0, 37, 129}},
    {OQ_BICUBIC, 1, 1, 5, 3, 0x8ba7bba66bcec9beu, {0, 53, 106}},
    {OQ_BICUBIC, 100, 3, 7, 50, 0x244ce484da5f00ceu, {104, 132, 119}},
};

static void fill(oq_image *image)
{
    for (int64_t y = 0; y < image->height; y++)
        for (int64_t x = 0; x < image->width; x++)
            for (int64_t c = 0; c < 3; c++)
                image->pixels[(y * image->width + x) * 3 + c] =
                    (uint8_t)((x * 37 + y * 91 + c * 53 + x * y * 7) % 256);
}

static void test_equal_to_pillow(void **state)
{
    (void)state;
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const row *r = &rows[i];
        oq_image from, to;
        assert_int_equal(oq_image_new(env, r->w, r->h, &from), OQ_OK);
        fill(&from);
        assert_int_equal(oq_image_resize(env, &from, r->filter, r->to_w, r->to_h, &to), OQ_OK);
        const int64_t n = r->to_w * r->to_h * 3;
        uint64_t hash = 0xcbf29ce484222325u;
        for (int64_t b = 0; b < n; b++) hash = (hash ^ to.pixels[b]) * 0x100000001b3u;
        assert_int_equal(to.pixels[0], r->some[0]);
        assert_int_equal(to.pixels[(r->to_h / 2 * r->to_w + r->to_w / 2) * 3 + 1], r->some[1]);
        assert_int_equal(to.pixels[n - 1], r->some[2]);
        assert_true(hash == r->hash);
        oq_image_deinit(env, &to);
        oq_image_deinit(env, &from);
    }
    oq_env_free(env);
}

static void test_sizes_are_checked(void **state)
{
    (void)state;
    oq_env *env = NULL;
    oq_image from, to;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    assert_int_equal(oq_image_new(env, 4, 4, &from), OQ_OK);
    assert_int_not_equal(oq_image_resize(env, &from, OQ_LANCZOS, 0, 4, &to), OQ_OK);
    assert_int_not_equal(oq_image_resize(env, &from, OQ_BICUBIC, 4, 70000, &to), OQ_OK);
    oq_image_deinit(env, &from);
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_to_pillow),
                                       cmocka_unit_test(test_sizes_are_checked)};
    return cmocka_run_group_tests_name("resize", tests, NULL, NULL);
}
