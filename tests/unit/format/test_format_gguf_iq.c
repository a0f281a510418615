/* test_format_gguf_iq.c -- GGUF's code-book types: random blocks of each have the values that the published package gives them,
 * bit for bit (tests/data/quant/gguf/iq_blocks.bin, written by tests/reference/iq_points.py), and the books are what their
 * order says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "format/format_block.h"
#include "format/gguf_type.h"
#include "format/iq_points.h"

#include <string.h>

enum { BLOCKS = 6, ELEMS = 256, N_TYPES = 7 };

static void test_blocks(void **state)
{
    (void)state;
    oq_env *env = NULL;
    char *bytes = NULL;
    size_t size = 0, at = 0, n_types = 0;
    float got[ELEMS];
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    assert_int_equal(
        oq_file_read(env, OMNIQ_SOURCE_DIR "/tests/data/quant/gguf/iq_blocks.bin", 1 << 20, &bytes, &size),
        OQ_OK);
    for (; at < size; n_types++) {
        const oq_gguf_type *type = oq_gguf_type_by_name(bytes + at);
        if (!type || !type->format) fail_msg("%s is not read", bytes + at);
        assert_null(type->format->encode);
        const uint8_t *block = (const uint8_t *)bytes + at + 8;
        const char *want = bytes + at + 8 + BLOCKS * type->bytes;
        for (int b = 0; b < BLOCKS; b++, block += type->bytes, want += sizeof got) {
            type->format->block->decode(got, block);
            for (int i = 0; i < ELEMS; i++)
                if (memcmp(&got[i], want + (size_t)i * sizeof *got, sizeof *got) != 0)
                    fail_msg("%s: weight %d of block %d is %.9g", type->name, i, b, (double)got[i]);
        }
        at = (size_t)(want - bytes);
    }
    assert_int_equal(n_types, N_TYPES);
    oq_free(env, bytes);
    oq_env_free(env);
}

static void check_book(const uint16_t *points, int n, uint32_t base, int digits, bool even)
{
    uint32_t end = 1;
    for (int i = 0; i < digits; i++) end *= base;
    assert_int_equal(points[0], 0);
    for (int i = 0; i < n; i++) {
        uint32_t sum = 0;
        for (uint32_t p = points[i]; p; p /= base) sum += p % base;
        assert_true(points[i] < end && (i == 0 || points[i] > points[i - 1]));
        assert_true(!even || sum % 2 == 0);
    }
}

static void test_books(void **state)
{
    (void)state;
    check_book(oq_iq_points_2_xxs, 256, 3, 8, true);
    check_book(oq_iq_points_2_xs, 512, 3, 8, true);
    check_book(oq_iq_points_2_s, 1024, 3, 8, true);
    check_book(oq_iq_points_1_s, 2048, 3, 8, false);
    check_book(oq_iq_points_3_xxs, 256, 8, 4, false);
    check_book(oq_iq_points_3_s, 512, 8, 4, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_books)};
    return cmocka_run_group_tests_name("GGUF's code books", tests, NULL, NULL);
}
