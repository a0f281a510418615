/* test_linear_fixed.c -- numbers in fixed point: how much of them is left in two and in three planes of int8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cpu/linear/linear_fixed.h"

#include <math.h>

static double number_of(const int8_t *plane, int planes, float step)
{
    double whole = 0;
    for (int p = 0; p < planes; p++) whole = 256 * whole + plane[p];
    return whole * (double)step;
}

/* x beside a largest number of its run: within half a step, and the largest within its planes. */
static void check_pair(float amax, float x, int planes)
{
    int8_t plane[FIXED_MOST][2];
    int8_t *const at[] = {plane[0], plane[1], plane[2]};
    const float run[] = {amax, x}, step = fixed_step(fabsf(amax), planes);
    const double loss = planes == FIXED_BF16 ? (double)FIXED_LOSS_16 : (double)FIXED_LOSS_24;
    fixed_planes(at, planes, run, 2, step);
    for (int i = 0; i < 2; i++) {
        const int8_t one[] = {plane[0][i], plane[1][i], plane[2][i]};
        const double error = fabs(number_of(one, planes, step) - (double)run[i]);
        assert_true(error <= (double)step / 2);
        assert_true(error <= loss * fmax(fabs((double)amax), (double)FIXED_LEAST));
    }
}

static void test_loss(void **state)
{
    (void)state;
    for (int planes = FIXED_BF16; planes <= FIXED_F32; planes++)
        for (int power = -120; power <= 120; power += 15)
            for (int i = 0; i < 4096; i++) {
                const float amax = ldexpf(1.0f + (float)i / 4096.0f, power);
                check_pair(amax, amax * ldexpf((float)(i * 37 % 4096) / 4096.0f, -(i % 11)), planes);
                check_pair(-amax, -amax, planes);
            }
}

/* A number of BF16 within 2^-7 of its run's largest one loses nothing, but beside a mantissa of ones alone. */
static void test_near_numbers_are_exact(void **state)
{
    (void)state;
    for (uint32_t a = 0x3f80; a < 0x3fff; a++)
        for (uint32_t b = 0x3c00; b <= a; b += 3) {
            int8_t plane[FIXED_MOST][1];
            int8_t *const at[] = {plane[0], plane[1], plane[2]};
            const float amax = oq_f32_from_bits(a << 16), x = oq_f32_from_bits(b << 16);
            const float step = fixed_step(amax, FIXED_BF16);
            fixed_planes(at, FIXED_BF16, &x, 1, step);
            assert_true((float)(256 * plane[0][0] + plane[1][0]) * step == x);
        }
}

static void test_not_a_number(void **state)
{
    (void)state;
    assert_true(isnan(fixed_step(INFINITY, FIXED_BF16)));
    assert_true(isnan(fixed_step(NAN, FIXED_F32)));
    assert_true(fixed_step(0.0f, FIXED_F32) > 0.0f && 1.0f / fixed_step(0.0f, FIXED_F32) < INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_near_numbers_are_exact),
        cmocka_unit_test(test_not_a_number),
    };
    return cmocka_run_group_tests_name("linear fixed", tests, NULL, NULL);
}
