/* test_act_zero.c -- activations whose codes have zero points: the rules of TorchAO and of SDNQ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/format.h"

#include <math.h>

/* Codes of a byte about a zero point. */
static void test_act_zero(void **state)
{
    (void)state;
    float x[4] = {-1.0f, 0.3f, 4.1f, 0.0f}, positive[3] = {10.0f, 61.0f, 7.25f}, same[2] = {3.0f, 3.0f};
    oq_act_zero_row(OQ_ACT_DYNAMIC_ZERO, x, 4); /* s = 0.02, zero = -78 */
    const float s = 5.1f / 255.0f;
    assert_true(x[0] == -50.0f * s && x[1] == 15.0f * s && x[2] == 205.0f * s && x[3] == 0.0f);
    oq_act_zero_row(OQ_ACT_DYNAMIC_ZERO, positive, 3); /* zero is in the range: s = 61 / 255 */
    assert_true(fabsf(positive[0] - 42.0f * 61.0f / 255.0f) < 1e-5f && fabsf(positive[1] - 61.0f) < 1e-5f);
    oq_act_zero_row(OQ_ACT_DYNAMIC_LEAST, same, 2);
    assert_true(same[0] == 3.0f && same[1] == 3.0f);
    float least[3] = {100.0f, 100.3f, 102.55f}; /* s = 0.01 above 100 */
    oq_act_zero_row(OQ_ACT_DYNAMIC_LEAST, least, 3);
    assert_true(fabsf(least[0] - 100.0f) < 1e-4f && fabsf(least[1] - 100.3f) < 1e-4f &&
                fabsf(least[2] - 102.55f) < 1e-4f);
    least[1] = INFINITY;
    oq_act_zero_row(OQ_ACT_DYNAMIC_LEAST, least, 3);
    assert_true(isnan(least[0]) && isnan(least[1]));
    x[2] = NAN;
    oq_act_zero_row(OQ_ACT_DYNAMIC_ZERO, x, 4);
    assert_true(isnan(x[0]) && isnan(x[3]));
    const oq_scheme scheme = {
        .weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_ZERO};
    assert_false(oq_scheme_is_bare(&scheme));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_act_zero)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
