/* image.c -- pictures in memory: their block of bytes, and two of them beside their difference. */
#include "media/image.h"

#include "base/size.h"

#include <string.h>

oq_status oq_image_new(oq_env *env, int64_t width, int64_t height, oq_image *out)
{
    *out = (oq_image){0};
    if (width < 1 || height < 1 || width > OQ_IMAGE_MAX_PX || height > OQ_IMAGE_MAX_PX)
        return oq_fail(env, OQ_E_ARG, "a picture of %lld x %lld pixels, sides are 1 to %d", (long long)width,
                       (long long)height, OQ_IMAGE_MAX_PX);
    uint8_t *pixels = NULL;
    OQ_TRY(oq_new(env, (size_t)width * (size_t)height, 3, "picture", &pixels));
    *out = (oq_image){.width = width, .height = height, .pixels = pixels};
    return OQ_OK;
}

void oq_image_deinit(oq_env *env, oq_image *image)
{
    oq_free(env, image->pixels);
    *image = (oq_image){0};
}

/* Differences of a few levels are invisible: eight times as large they show. */
static uint8_t amplified(uint8_t a, uint8_t b)
{
    const int d = 8 * (a > b ? a - b : b - a);
    return (uint8_t)(d > 255 ? 255 : d);
}

oq_status oq_image_side_by_side(oq_env *env, const oq_image *a, const oq_image *b, oq_image *out)
{
    *out = (oq_image){0};
    if (a->width != b->width || a->height != b->height)
        return oq_fail(env, OQ_E_ARG, "pictures of %lld x %lld and %lld x %lld pixels cannot be compared",
                       (long long)a->width, (long long)a->height, (long long)b->width, (long long)b->height);
    OQ_TRY(oq_image_new(env, 3 * a->width, a->height, out));
    const size_t row = (size_t)a->width * 3;
    for (size_t y = 0; y < (size_t)a->height; y++) {
        const uint8_t *p = a->pixels + y * row, *q = b->pixels + y * row;
        uint8_t *dst = out->pixels + y * row * 3;
        memcpy(dst, p, row);
        memcpy(dst + row, q, row);
        for (size_t x = 0; x < row; x++) dst[2 * row + x] = amplified(p[x], q[x]);
    }
    return OQ_OK;
}
