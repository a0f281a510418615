/* test_tiles.c -- decoding in tiles: the weights of every pixel add up to one whatever the sizes, tiles lie where their
 * latents are, and one tile is the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/arena.h"
#include "cpu/cpu.h"
#include "pipelines/tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FRAMES = 3, SCALE = 2, MOST = 40 };

typedef struct fixture {
    oq_env *env;
    oq_device *device;
    oq_exec ex;
    int calls, wholes;
    _Alignas(256) uint8_t scratch[1 << 20];
} fixture;

static int setup(void **state)
{
    fixture *f = aligned_alloc(256, sizeof *f);
    if (!f) return -1;
    memset(f, 0, sizeof *f);
    if (oq_env_new(NULL, &f->env) != OQ_OK) return -1;
    if (oq_backend_cpu.open(f->env, 0, "ref", &f->device) != OQ_OK) return -1;
    f->ex = (oq_exec){.env = f->env,
                      .backend = &oq_backend_cpu,
                      .device = f->device,
                      .ops = oq_backend_cpu.ops(f->device),
                      .compute = &oq_dtype_f32,
                      .base = f->scratch,
                      .size = sizeof f->scratch};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    oq_backend_cpu.close(f->env, f->device);
    oq_env_free(f->env);
    free(f);
    return 0;
}

/* An oq_tile_decode: every pixel is its latent, frame by frame. */
static oq_status repeat(oq_exec *ex, void *user, oq_tensor z, int64_t h, int64_t w, bool whole,
                        oq_tile_take take, void *take_user)
{
    fixture *f = user;
    static float latents[FRAMES * MOST * MOST], pixels[MOST * MOST * SCALE * SCALE * 3];
    f->calls++;
    f->wholes += whole;
    OQ_TRY(oq_download(ex, latents, z));
    for (int64_t t = 0; t < FRAMES; t++) {
        const oq_mark mark = oq_mark_get(ex);
        oq_tensor frame;
        for (int64_t y = 0; y < h * SCALE; y++)
            for (int64_t x = 0; x < w * SCALE; x++)
                for (int c = 0; c < 3; c++)
                    pixels[(y * w * SCALE + x) * 3 + c] =
                        latents[(t * h + y / SCALE) * w + x / SCALE] + (float)c;
        OQ_TRY(oq_tmp(ex, h * w * SCALE * SCALE, 3, &frame));
        OQ_TRY(oq_upload(ex, frame, pixels));
        OQ_TRY(take(ex, take_user, frame, t, 1));
        oq_mark_reset(ex, mark);
    }
    return OQ_OK;
}

/* Decodes h x w latents; the greatest distance from what they stand for. */
static double distance_of(fixture *f, int64_t h, int64_t w, int64_t tile)
{
    static float rows[FRAMES * MOST * MOST], sum[FRAMES * MOST * MOST * SCALE * SCALE * 3];
    const oq_tiling tiling = {.frames = FRAMES,
                              .h = h,
                              .w = w,
                              .channels = 1,
                              .scale = SCALE,
                              .tile = tile,
                              .most_frames = 1,
                              .decode = repeat,
                              .user = f};
    oq_arena arena;
    double worst = 0;
    oq_arena_init(&arena, f->env);
    f->calls = f->wholes = 0;
    memset(sum, 0, sizeof sum);
    for (int64_t i = 0; i < FRAMES * h * w; i++) rows[i] = sinf((float)i);
    assert_int_equal(oq_decode_tiles(&f->ex, &arena, &tiling, rows, sum), OQ_OK);
    for (int64_t i = 0; i < FRAMES * h * w * SCALE * SCALE * 3; i++) {
        const int64_t pixel = i / 3, x = pixel % (w * SCALE), y = pixel / (w * SCALE) % (h * SCALE);
        const int64_t frame = pixel / (w * h * SCALE * SCALE);
        const double expected = (double)rows[(frame * h + y / SCALE) * w + x / SCALE] + (double)(i % 3);
        worst = fmax(worst, fabs((double)sum[i] - expected));
    }
    oq_arena_deinit(&arena);
    return worst;
}

static void test_weights_add_up(void **state)
{
    fixture *f = *state;
    static const int64_t sizes[] = {4, 5, 7, 8, 13, 16, 31, 40}, tiles[] = {4, 5, 6, 8, 11, 16};
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++)
        for (size_t b = 0; b < sizeof sizes / sizeof *sizes; b++)
            for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
                const double worst = distance_of(f, sizes[a], sizes[b], tiles[t]);
                if (!(worst < 1e-6))
                    fail_msg("%lld x %lld in tiles of %lld: %.3e", (long long)sizes[a], (long long)sizes[b],
                             (long long)tiles[t], worst);
            }
}

static void test_number_of_tiles(void **state)
{
    fixture *f = *state;
    assert_true(distance_of(f, 9, 12, 0) < 1e-6);
    assert_int_equal(f->calls, 1);
    assert_int_equal(f->wholes, 1);
    assert_true(distance_of(f, 9, 12, 12) < 1e-6);
    assert_int_equal(f->calls, 1);
    distance_of(f, 8, 8, 8);
    assert_int_equal(f->wholes, 1);
    distance_of(f, 14, 8, 8); /* two: 0 to 8, 6 to 14 */
    assert_int_equal(f->calls, 2);
    assert_int_equal(f->wholes, 0);
    distance_of(f, 15, 15, 8);
    assert_int_equal(f->calls, 9);
}

static void test_sizes_in_latents(void **state)
{
    (void)state;
    assert_int_equal(oq_tile_latents(0, 8), 0);
    assert_int_equal(oq_tile_latents(256, 8), 32);
    assert_int_equal(oq_tile_latents(100, 16), 6);
    assert_int_equal(oq_tile_latents(1, 16), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weights_add_up),
                                       cmocka_unit_test(test_number_of_tiles),
                                       cmocka_unit_test(test_sizes_in_latents)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
