/* test_conv3d.c -- promises of causal convolutions over frames: a video in pieces gives the bits of the whole one, a
 * single frame those of the last tap alone, and what does not fit is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cpu/cpu.h"
#include "nn/nn.h"

#include <stdlib.h>
#include <string.h>

enum {
    C_IN = 5,
    C_OUT = 7,
    H = 4,
    W = 6,
    FRAMES = 5,
    KT = 3,
    PIXELS = H * W,
    N_WEIGHTS = C_OUT * C_IN * KT * 9
};

typedef struct fixture {
    oq_env *env;
    oq_arena arena;
    oq_device *device;
    oq_conv2d conv;
    oq_exec ex;
    float weight[N_WEIGHTS], bias[C_OUT], x[FRAMES * PIXELS * C_IN];
    float *packed;
    _Alignas(256) uint8_t scratch[1 << 20];
} fixture;

static float value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 2147483648.0f;
}

static int setup(void **state)
{
    fixture *f = aligned_alloc(256, sizeof *f);
    uint32_t seed = 7;
    if (!f) return -1;
    memset(f, 0, sizeof *f);
    if (oq_env_new(NULL, &f->env) != OQ_OK) return -1;
    oq_arena_init(&f->arena, f->env);
    char root[] = "decoder.";
    oq_builder b = {.env = f->env, .arena = &f->arena, .component = "vae", .scope = root};
    if (oq_declare_conv3d(&b, &f->conv, "conv_in", C_OUT, C_IN, KT, 3) != OQ_OK || b.n_items != 1) return -1;
    if (oq_backend_cpu.open(f->env, 0, "ref", &f->device) != OQ_OK) return -1;
    for (int i = 0; i < N_WEIGHTS; i++) f->weight[i] = value(&seed);
    for (int i = 0; i < C_OUT; i++) f->bias[i] = value(&seed);
    for (int i = 0; i < FRAMES * PIXELS * C_IN; i++) f->x[i] = value(&seed);
    f->conv.kernel = oq_backend_cpu.find_conv2d(f->device, &f->conv.spec);
    f->packed = malloc(f->conv.kernel->packed_bytes(&f->conv.spec));
    f->conv.kernel->pack(f->packed, f->weight, &f->conv.spec);
    f->conv.packed = f->packed;
    f->conv.bias = f->bias;
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
    oq_arena_deinit(&f->arena);
    oq_env_free(f->env);
    free(f->packed);
    free(f);
    return 0;
}

/* Frames [first, first + n) of the fixture's video. */
static oq_tensor frames_of(fixture *f, int64_t first, int64_t n)
{
    if (n == 0) return oq_absent();
    return oq_tensor_make(f->x + first * PIXELS * C_IN, &oq_dtype_f32, n * PIXELS, C_IN);
}

static void convolve(fixture *f, float *y, oq_tensor x, oq_tensor before)
{
    const oq_tensor out = oq_tensor_make(y, &oq_dtype_f32, x.rows, C_OUT);
    if (oq_conv3d_forward(&f->ex, &f->conv, out, x, before, 1, x.rows / PIXELS, H, W) != OQ_OK)
        fail_msg("%s", oq_env_error(f->env));
}

static void a_declared_one_is_causal_and_keeps_the_size(void **state)
{
    fixture *f = *state;
    const oq_conv2d_spec *s = &f->conv.spec;
    assert_string_equal(f->conv.name, "decoder.conv_in");
    assert_int_equal(s->kt, KT);
    assert_int_equal(s->pad_front, KT - 1);
    assert_int_equal(oq_conv2d_out_frames(s, FRAMES), FRAMES);
    assert_int_equal(oq_conv2d_out_h(s, H), H);
    assert_int_equal(oq_conv2d_out_w(s, W), W);
}

static void a_video_in_pieces_gives_the_bits_of_the_whole(void **state)
{
    fixture *f = *state;
    static float whole[FRAMES * PIXELS * C_OUT], pieces[FRAMES * PIXELS * C_OUT];
    convolve(f, whole, frames_of(f, 0, FRAMES), oq_absent());
    for (int64_t first = 0, n = 1; first < FRAMES; first += n, n = 2) {
        const int64_t back = first < KT - 1 ? first : KT - 1;
        convolve(f, pieces + first * PIXELS * C_OUT, frames_of(f, first, n),
                 frames_of(f, first - back, back));
    }
    assert_memory_equal(whole, pieces, sizeof whole);
}

/* The frames before the first are zeros, so only the last tap's weights count. */
static void a_single_frame_is_the_image_convolution_of_the_last_tap(void **state)
{
    fixture *f = *state;
    static float video[PIXELS * C_OUT], image[PIXELS * C_OUT], last[C_OUT * C_IN * 9];
    for (int i = 0; i < C_OUT * C_IN; i++)
        memcpy(last + i * 9, f->weight + (i * KT + KT - 1) * 9, 9 * sizeof *last);
    oq_conv2d flat = f->conv;
    flat.spec = oq_conv2d_same(C_OUT, C_IN, 3);
    flat.packed = malloc(flat.kernel->packed_bytes(&flat.spec));
    flat.kernel->pack((void *)(uintptr_t)flat.packed, last, &flat.spec);
    convolve(f, video, frames_of(f, 0, 1), oq_absent());
    const oq_tensor out = oq_tensor_make(image, &oq_dtype_f32, PIXELS, C_OUT);
    assert_int_equal(oq_conv2d_forward(&f->ex, &flat, out, frames_of(f, 0, 1), 1, H, W), OQ_OK);
    free((void *)(uintptr_t)flat.packed);
    assert_memory_equal(video, image, sizeof video);
}

static void refused(fixture *f, oq_status st, const char *sentence)
{
    assert_int_equal(st, OQ_E_ARG);
    assert_string_equal(oq_env_error(f->env), sentence);
    oq_env_clear(f->env);
}

static void what_does_not_fit_is_refused(void **state)
{
    fixture *f = *state;
    static float y[FRAMES * PIXELS * C_OUT];
    const oq_tensor out = oq_tensor_make(y, &oq_dtype_f32, 2 * PIXELS, C_OUT), two = frames_of(f, 3, 2);
    const oq_conv2d *c = &f->conv;
    refused(f, oq_conv3d_forward(&f->ex, c, out, frames_of(f, 0, 3), oq_absent(), 1, 3, H, W),
            "layer 'decoder.conv_in': [72,5] to [48,7] does not fit 1 x 3 frames of 4 x 6 pixels");
    refused(f, oq_conv3d_forward(&f->ex, c, out, two, frames_of(f, 0, 3), 1, 2, H, W),
            "layer 'decoder.conv_in': [72,5] are not at most 2 frames of 1 x 4 x 6 pixels before the first");
    refused(f, oq_conv2d_forward(&f->ex, c, out, two, 2, H, W),
            "layer 'decoder.conv_in': [48,5] to [48,7] does not fit 2 x 4 x 6 pixels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_declared_one_is_causal_and_keeps_the_size, setup, teardown),
        cmocka_unit_test_setup_teardown(a_video_in_pieces_gives_the_bits_of_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(a_single_frame_is_the_image_convolution_of_the_last_tap, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
