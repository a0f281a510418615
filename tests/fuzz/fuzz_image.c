/* fuzz_image.c -- any bytes as a picture of any type. Properties: a picture that is read has sides within bounds, can be
 * written as PNG and read back equal; orientation and texts of the same bytes never crash. */
#include "fuzz/fuzz.h"

#include "media/exif.h"
#include "media/image_type.h"

static void check_text(oq_env *env, const uint8_t *data, size_t size, const char *key)
{
    char *text = NULL;
    const oq_status st = oq_image_decode_text(env, data, size, "in", key, &text);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (text != NULL));
    oq_free(env, text);
    oq_env_clear(env);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    oq_env *env = fuzz_env();
    oq_image image = {0}, back = {0};
    char *bytes = NULL;
    size_t n = 0;
    const oq_status st = oq_image_decode(env, data, size, "in", &image);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (image.pixels != NULL));
    if (st == OQ_OK && image.width * image.height <= 1 << 20) {
        FUZZ_CHECK(image.width >= 1 && image.height >= 1 && image.width <= OQ_IMAGE_MAX_PX);
        FUZZ_CHECK(oq_png_encode(env, image.width, image.height, image.pixels, NULL, 0, "out", &bytes, &n) ==
                   OQ_OK);
        FUZZ_CHECK(oq_png_decode(env, bytes, n, "out", &back) == OQ_OK);
        FUZZ_CHECK(memcmp(image.pixels, back.pixels, (size_t)(image.width * image.height * 3)) == 0);
    }
    oq_env_clear(env);
    const int orientation = oq_exif_orientation(data, size);
    FUZZ_CHECK(orientation >= 1 && orientation <= 8);
    check_text(env, data, size, "omniq");
    check_text(env, data, size, "parameters");
    oq_free(env, bytes);
    oq_image_deinit(env, &back);
    oq_image_deinit(env, &image);
    return 0;
}
