/* fuzz_png.c -- any picture file. Properties: what is read has sides within the limits and comes back the same after
 * being written; texts are valid UTF-8. */
#include "fuzz/fuzz.h"

#include "base/unicode.h"
#include "media/image.h"

static void check_round_trip(oq_env *env, const oq_image *image)
{
    char *png = NULL;
    size_t n = 0;
    oq_image again;
    FUZZ_CHECK(oq_png_encode(env, image->width, image->height, image->pixels, NULL, 0, "out", &png, &n) ==
               OQ_OK);
    FUZZ_CHECK(oq_png_decode(env, png, n, "out", &again) == OQ_OK);
    FUZZ_CHECK(again.width == image->width && again.height == image->height);
    FUZZ_CHECK(memcmp(again.pixels, image->pixels, (size_t)(image->width * image->height * 3)) == 0);
    oq_image_deinit(env, &again);
    oq_free(env, png);
}

static void check_pixels(oq_env *env, const uint8_t *data, size_t n)
{
    oq_image image;
    const oq_status st = oq_png_decode(env, data, n, "in", &image);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (image.pixels != NULL));
    if (st == OQ_OK) {
        FUZZ_CHECK(image.width >= 1 && image.height >= 1);
        FUZZ_CHECK(image.width <= OQ_IMAGE_MAX_PX && image.height <= OQ_IMAGE_MAX_PX);
        if (image.width * image.height <= 1 << 16) check_round_trip(env, &image);
    }
    oq_image_deinit(env, &image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    char *text = NULL;
    check_pixels(env, data, n);
    oq_env_clear(env);
    const oq_status st = oq_png_decode_text(env, data, n, "in", "Star", &text);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (text != NULL));
    if (text) FUZZ_CHECK(oq_utf8_valid(text, strlen(text)));
    oq_free(env, text);
    return 0;
}
