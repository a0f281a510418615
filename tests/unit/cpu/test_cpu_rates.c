/* test_cpu_rates.c -- what is chosen at which rates, and a cache that may be missing, broken or out of reach without any
 * harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cpu/rates/rates.h"
#include "support/scratch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ALL = OQ_CPU_AVX2 | OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI | OQ_CPU_AVX512BF16 | OQ_CPU_AMX };

/* The rates that were measured on two machines, and one where tiles are slow. */
static const oq_cpu_rates zen5 = {{255, 520, 1040, 0, 0}}, emerald = {{165, 86, 295, 2700, 5300}},
                          crowded = {{165, 86, 295, 120, 240}};

static void the_faster_instruction_is_taken_whatever_the_processor_has(void **state)
{
    (void)state;
    assert_int_equal(oq_cpu_rates_slower(ALL & ~(uint64_t)OQ_CPU_AMX, &zen5), 0);
    assert_int_equal(oq_cpu_rates_slower(ALL, &emerald), OQ_CPU_AVX512BF16);
    assert_int_equal(oq_cpu_rates_slower(ALL, &crowded), OQ_CPU_AVX512BF16 | OQ_CPU_AMX);
    assert_int_equal(oq_cpu_rates_slower(OQ_CPU_AVX2 | OQ_CPU_AVX512, &emerald), 0);
    const uint64_t arm = OQ_CPU_NEON | OQ_CPU_DOTPROD | OQ_CPU_I8MM | OQ_CPU_BF16;
    assert_int_equal(oq_cpu_rates_slower(arm, &emerald), OQ_CPU_BF16);
    assert_int_equal(oq_cpu_rates_slower(arm, &(oq_cpu_rates){{20, 80, 10}}), OQ_CPU_DOTPROD | OQ_CPU_I8MM);
}

static void what_is_left_out_is_said(void **state)
{
    (void)state;
    char text[192];
#if defined(__aarch64__)
    oq_cpu_rates_describe(&(oq_cpu_rates){{165, 86, 295}}, OQ_CPU_NEON | OQ_CPU_DOTPROD, text, sizeof text);
    assert_string_equal(text, "products per core in GFLOP/s: f32 165, bf16 86 (left out), int8 295");
#else
    oq_cpu_rates_describe(&emerald, ALL & ~(uint64_t)OQ_CPU_AVX512BF16, text, sizeof text);
    assert_string_equal(
        text, "products per core in GFLOP/s: f32 165, bf16 86 (left out), int8 295, AMX bf16 2700, AMX "
              "int8 5300");
#endif
    oq_cpu_rates_describe(&(oq_cpu_rates){{0}}, ALL, text, sizeof text);
    assert_string_equal(text, "");
}

static void only_what_was_printed_for_this_machine_is_believed(void **state)
{
    (void)state;
    char text[1024], broken[1024];
    oq_cpu_rates back = {{1, 2, 3, 4, 5}};
    oq_cpu_rates_print(&zen5, "a machine", text, sizeof text);
    assert_false(oq_cpu_rates_parse(text, "another machine", &back));
    for (size_t cut = 0; cut < strlen(text); cut++) {
        memcpy(broken, text, cut);
        broken[cut] = '\0';
        assert_false(oq_cpu_rates_parse(broken, "a machine", &back));
    }
    memcpy(broken, text, sizeof broken);
    *strstr(broken, "520") = '-';
    assert_false(oq_cpu_rates_parse(broken, "a machine", &back));
    assert_true(back.gflops[0] == 1 && back.gflops[4] == 5);
    assert_true(oq_cpu_rates_parse(text, "a machine", &back));
    assert_memory_equal(&back, &zen5, sizeof back);
}

/* The one file in `folder`, or none. */
static bool find_file(const char *folder, char *out, size_t n)
{
    DIR *d = opendir(folder);
    bool found = false;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') found = snprintf(out, n, "%s/%s", folder, e->d_name) < (int)n;
    if (d) closedir(d);
    return found;
}

static void a_broken_or_unwritable_cache_costs_a_measurement_and_no_more(void **state)
{
    (void)state;
    const uint64_t features = oq_cpu_probe();
    const char *const dir = scratch_dir(OMNIQ_BINARY_DIR, "cpu-rates");
    char folder[512], path[1024], root[1024];
    oq_cpu_rates first, second;
    if (!features) skip();
    snprintf(folder, sizeof folder, "%s/omniq", dir);
    setenv("XDG_CACHE_HOME", dir, 1);
    oq_cpu_rates_get(features, &first);
    assert_true(first.gflops[OQ_RATE_F32] > 0);
    assert_true(find_file(folder, path, sizeof path));
    oq_cpu_rates_get(features, &second); /* from the file: the very same */
    assert_memory_equal(&first, &second, sizeof first);

    char line[512] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
#if defined(OMNIQ_SANITIZED) || !defined(__OPTIMIZE__)
    assert_non_null(strstr(line, " slowed\n")); /* such a build keeps its rates from the others */
#else
    assert_null(strstr(line, " slowed"));
#endif

    f = fopen(path, "w");
    assert_non_null(f);
    fputs("nonsense", f);
    fclose(f);
    oq_cpu_rates_get(features, &second); /* measured again, and the file is whole again */
    assert_true(second.gflops[OQ_RATE_F32] > 0);
    oq_cpu_rates_get(features, &first);
    assert_memory_equal(&first, &second, sizeof first);

    snprintf(root, sizeof root, "%s", path); /* a file where the folder should be */
    setenv("XDG_CACHE_HOME", root, 1);
    oq_cpu_rates_get(features, &second);
    assert_true(second.gflops[OQ_RATE_F32] > 0);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "relative", 1);
    oq_cpu_rates_get(features, &second);
    assert_true(second.gflops[OQ_RATE_F32] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_faster_instruction_is_taken_whatever_the_processor_has),
        cmocka_unit_test(what_is_left_out_is_said),
        cmocka_unit_test(only_what_was_printed_for_this_machine_is_believed),
        cmocka_unit_test(a_broken_or_unwritable_cache_costs_a_measurement_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
