/* test_latents.c -- the host arithmetic of families: noise of a batch, guidance, scaling, pixels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pipelines/latents.h"
#include "sched/noise.h"

#include <math.h>
#include <string.h>

static void test_noise_own_and_shared(void **state)
{
    (void)state;
    enum { ITEMS = 3, ELEMS = 64 };
    float own[ITEMS * ELEMS], shared[ITEMS * ELEMS], alone[ELEMS], whole[ITEMS * ELEMS];
    oq_latents_noise(7, false, ITEMS, ELEMS, own);
    for (int i = 0; i < ITEMS; i++) {
        oq_latents_noise(7 + (uint64_t)i, false, 1, ELEMS, alone);
        assert_memory_equal(alone, own + i * ELEMS, sizeof alone);
    }
    oq_latents_noise(7, true, ITEMS, ELEMS, shared);
    oq_rng rng;
    oq_rng_seed(&rng, 7);
    oq_rng_normal(&rng, whole, ITEMS * ELEMS);
    assert_memory_equal(shared, whole, sizeof whole);
    assert_memory_not_equal(shared, own, sizeof own);
    oq_latents_noise(UINT64_MAX, false, 2, ELEMS, own); /* the seed wraps, as unsigned numbers do */
}

static void test_guidance_is_added_on_top(void **state)
{
    (void)state;
    float pos[4] = {1, 2, -1, 0}, neg[4] = {0, 1, 1, 0};
    oq_latents_guide(pos, neg, 4, 2.0, 0);
    const float expected[4] = {3, 4, -5, 0};
    assert_memory_equal(pos, expected, sizeof pos);
}

static void test_guidance_keeps_its_length(void **state)
{
    (void)state;
    float pos[2] = {3, 4}, neg[2] = {0, 0}; /* length 5 */
    oq_latents_guide(pos, neg, 2, 1.0, 1.0);
    assert_true(fabs(hypot((double)pos[0], (double)pos[1]) - 5) < 1e-6);
    float looser[2] = {3, 4};
    oq_latents_guide(looser, neg, 2, 1.0, 1.5);
    assert_true(fabs(hypot((double)looser[0], (double)looser[1]) - 7.5) < 1e-6);
    float untouched[2] = {3, 4}; /* 6, 8 is not longer than 4 times 5 */
    oq_latents_guide(untouched, neg, 2, 1.0, 4.0);
    assert_true(untouched[0] == 6 && untouched[1] == 8);
    float zero[2] = {0, 0};
    oq_latents_guide(zero, neg, 2, 3.0, 1.0);
    assert_true(zero[0] == 0 && zero[1] == 0);
}

static void test_unscaling_rounds_each_operation(void **state)
{
    (void)state;
    float x = 1.2345678f;
    oq_latents_unscale(&oq_dtype_f32, &x, 1, 0.5, 0.25);
    assert_true(x == 1.2345678f / 0.5f + 0.25f);
    x = 1.2345678f; /* bfloat16: 1.234375 / 0.3611 = 3.41837 -> 3.421875, + 0.1159 = 3.537775 -> 3.53125 */
    oq_latents_unscale(&oq_dtype_bf16, &x, 1, 0.3611, 0.1159);
    assert_true(x == 3.53125f);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A picture's worth of values goes through a table: the same bytes as one by one. */
static void many_pixels(void **state)
{
    enum { N = 3 * 32768 };
    static float x[N];
    static uint8_t all[N];
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t bits = (i * 40503u & 0xffffu) << 16;
        if ((bits & 0x7f800000u) == 0x7f800000u) bits = 0;
        if (i % 5 == 0) bits |= 0x1234u; /* no bf16 number */
        memcpy(&x[i], &bits, sizeof bits);
    }
    oq_pixels_from_values(&oq_dtype_bf16, all, x, N);
    for (uint32_t i = 0; i < N; i++) {
        uint8_t one;
        if ((bits_of(x[i]) & 0x7f800000u) == 0x7f800000u) continue;
        oq_pixels_from_values(&oq_dtype_bf16, &one, &x[i], 1);
        assert_int_equal(all[i], one);
    }
}

static void test_pixels_round_half_to_even(void **state)
{
    (void)state;
    const float x[] = {-1, 1, -5, 5, 0, -1 + 2 * 0.5f / 255, -1 + 2 * 2.4f / 255, -1 + 2 * 2.6f / 255};
    uint8_t out[OQ_COUNT(x)];
    oq_pixels_from_values(&oq_dtype_f32, out, x, OQ_COUNT(x));
    const uint8_t expected[] = {0, 255, 0, 255, 128, 0, 2, 3}; /* 0.5 * 255 = 127.5 goes to the even 128 */
    assert_memory_equal(out, expected, sizeof expected);
    /* 145/256 / 2 + 1/2 lies between 200/256 and 201/256, the neighbours that bfloat16 has: the even one is 199.2 */
    const float y = 145.0f / 256;
    oq_pixels_from_values(&oq_dtype_bf16, out, &y, 1);
    assert_int_equal(out[0], 199);
    oq_pixels_from_values(&oq_dtype_f32, out, &y, 1);
    assert_int_equal(out[0], 200);
}

static void test_finiteness(void **state)
{
    (void)state;
    float x[3] = {0, 1, 2};
    assert_true(oq_values_finite(x, 3));
    x[2] = INFINITY;
    assert_false(oq_values_finite(x, 3));
    x[2] = NAN;
    assert_false(oq_values_finite(x, 3));
    assert_true(oq_values_finite(x, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_pixels),
        cmocka_unit_test(test_noise_own_and_shared),
        cmocka_unit_test(test_guidance_is_added_on_top),
        cmocka_unit_test(test_guidance_keeps_its_length),
        cmocka_unit_test(test_unscaling_rounds_each_operation),
        cmocka_unit_test(test_pixels_round_half_to_even),
        cmocka_unit_test(test_finiteness),
    };
    return cmocka_run_group_tests_name("latents", tests, NULL, NULL);
}
