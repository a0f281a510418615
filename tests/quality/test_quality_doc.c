/* test_quality_doc.c -- are the tables of docs/QUALITY.md today's? Every method and layout has its row; sizes are today's to the
 * digit; pictures of two methods are what the table says; every family and recipe stands there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/quality_families.h"
#include "support/quality_rows.h"

#include "base/names.h"
#include "quant/method.h"
#include "write/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static oq_env *env;
static char *document;

static int setup(void **state)
{
    size_t n = 0;
    (void)state;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    return oq_file_read(env, OMNIQ_SOURCE_DIR "/docs/QUALITY.md", 1 << 20, &document, &n) == OQ_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    oq_free(env, document);
    oq_env_free(env);
    return 0;
}

/* Cell `at` (from 0) of the row that begins with the two cells. */
static double cell(const char *first, const char *second, int at)
{
    char start[200];
    snprintf(start, sizeof start, "| %s | %s |", first, second);
    const char *row = strstr(document, start);
    if (!row) fail_msg("docs/QUALITY.md has no row '%s' (make quality renews it)", start);
    for (int i = 0; i <= at; i++) row = strchr(row, '|') + 1;
    return atof(row);
}

static const char *stored(const quality_row *row)
{
    return row->layout ? row->layout : "while loading";
}

static bool has_row(const char *method, const char *layout, const char *type)
{
    char name[96], word[96];
    snprintf(name, sizeof name, "\"method\":\"%s\"", method);
    snprintf(word, sizeof word, "\"type\":\"%s\"", type ? type : "");
    for (const quality_row *r = quality_rows; r->name; r++)
        if ((!method[0] || strstr(r->spec, name)) && (!type || strstr(r->spec, word)) &&
            (layout ? r->layout && strcmp(r->layout, layout) == 0 : !r->layout))
            return true;
    return false;
}

/* A method is called by its name or, in a row, by one of its aliases. */
static bool method_has_row(const oq_method *m)
{
    char alias[64];
    if (has_row(m->name, NULL, NULL)) return true;
    for (size_t i = 0; m->aliases && oq_csv_word(m->aliases, i, alias, sizeof alias); i++)
        if (has_row(alias, NULL, NULL)) return true;
    return false;
}

static void test_list_is_complete(void **state)
{
    char word[64];
    (void)state;
    for (size_t i = 0; oq_method_list[i]; i++) {
        const oq_method *m = oq_method_list[i];
        if (!m->missing && m->online && !method_has_row(m)) fail_msg("no row runs method '%s'", m->name);
        for (const oq_method_option *o = m->options; strcmp(m->name, "gguf") == 0 && o && o->name; o++)
            for (size_t t = 0; strcmp(o->name, "type") == 0 && oq_csv_word(o->choices, t, word, sizeof word);
                 t++)
                if (!has_row("gguf", NULL, word)) fail_msg("no row runs gguf's type '%s'", word);
    }
    for (size_t i = 0; oq_layout_list[i]; i++)
        if (!has_row("", oq_layout_list[i]->name, NULL))
            fail_msg("no row writes '%s'", oq_layout_list[i]->name);
}

/* Bits and bytes of what is quantized while loading; of one layout, through quantize. */
static void test_sizes_are_todays(void **state)
{
    (void)state;
    bool written = false;
    for (const quality_row *row = quality_rows; row->name; row++) {
        char folder[500];
        const double bits = cell(row->name, stored(row), 2), mb = cell(row->name, stored(row), 3);
        if (row->layout && written) continue;
        written = row->layout != NULL;
        quality_folder(env, row, folder);
        const quality_size size = quality_size_of(env, row, folder);
        if (!(fabs(size.bits - bits) <= 0.0051) || !(fabs(size.mb - mb) <= 0.02 * mb))
            fail_msg("%s, %s: %.3f bits, %.3f MB; the table says %.2f, %.2f", row->name, stored(row),
                     size.bits, size.mb, bits, mb);
    }
}

static void test_pictures_are_todays(void **state)
{
    (void)state;
#ifdef OMNIQ_SANITIZED
    skip(); /* eighteen whole pictures */
#endif
    oq_media *plain[QUALITY_PROMPTS] = {0}, *media[QUALITY_PROMPTS] = {0};
    char folder[500];
    static const char *const names[] = {"int8", "gguf Q4_0"};
    quality_pictures(env, &quality_rows[0], quality_folder(env, &quality_rows[0], folder), QUALITY_PROMPTS,
                     plain);
    for (const quality_row *row = quality_rows; row->name; row++) {
        bool wanted = false;
        for (size_t i = 0; i < OQ_COUNT(names); i++)
            wanted |= !row->layout && strcmp(row->name, names[i]) == 0;
        if (!wanted) continue;
        quality_pictures(env, row, folder, QUALITY_PROMPTS, media);
        const quality_psnr psnr = quality_compare(plain, media, QUALITY_PROMPTS);
        const double told = cell(row->name, stored(row), 4);
        print_message("%s: mean PSNR %.2f dB, the table says %.1f\n", row->name, psnr.mean_db, told);
        assert_true(fabs(psnr.mean_db - told) <= 2.5); /* another CPU rounds in another order */
        quality_free(media, QUALITY_PROMPTS);
    }
    quality_free(plain, QUALITY_PROMPTS);
}

/* Verdicts follow from the figures beside them. */
static void test_nothing_is_outside_its_band(void **state)
{
    (void)state;
    assert_null(strstr(document, "above its band"));
    assert_null(strstr(document, "below its band"));
    for (const quality_row *row = quality_rows; row->name; row++)
        if (row->emulated_db > 0)
            assert_true(fabs(cell(row->name, stored(row), 4) - row->emulated_db) <= 4.05);
}

static void test_families_and_recipes(void **state)
{
    (void)state;
    for (const quality_family *f = quality_families; f->name; f++) {
        assert_true(cell(f->name, "fp8", 3) > cell(f->name, "mxfp4", 3));
        assert_true(cell(f->name, "`--recipe careful8`", 2) < 16);
    }
    for (size_t i = 0; oq_pipeline_list[i]; i++)
        for (const oq_pipeline_recipe *r = oq_pipeline_list[i]->recipes; r && r->name; r++) {
            char name[64];
            snprintf(name, sizeof name, "`--recipe %s`", r->name);
            assert_non_null(strstr(document, name));
            assert_true(strlen(r->evidence) > 40);
        }
}

/* Do both figures of the table stand in the recipe's evidence? */
static bool tells(const quality_family *f, const oq_pipeline_recipe *r)
{
    static const char *const beside[][2] = {{"careful8", "`int8`"}, {"careful4", "`nvfp4`"}};
    char name[64], without[16], with[16];
    for (size_t i = 0; i < OQ_COUNT(beside); i++) {
        if (strcmp(r->name, beside[i][0]) != 0) continue;
        snprintf(name, sizeof name, "`--recipe %s`", r->name);
        snprintf(without, sizeof without, "%.1f", cell(f->name, beside[i][1], 5));
        snprintf(with, sizeof with, "%.1f", cell(f->name, name, 5));
        return strstr(r->evidence, without) && strstr(r->evidence, with);
    }
    fail_msg("recipe %s is beside no method of the table", r->name);
    return false;
}

/* What a family says for its recipes was measured on one of its models, and stands in the table. */
static void test_evidence_is_measured(void **state)
{
    (void)state;
    for (size_t i = 0; oq_pipeline_list[i]; i++) {
        const oq_pipeline_type *type = oq_pipeline_list[i];
        const char *of = strcmp(type->name, "wan-i2v") == 0 ? "wan" : type->name; /* the same networks */
        for (const oq_pipeline_recipe *r = type->recipes; r && r->name; r++) {
            bool told = false;
            for (const quality_family *f = quality_families; f->name && !told; f++)
                told = strcmp(f->pipeline, of) == 0 && tells(f, r);
            if (!told)
                fail_msg("%s: %s says figures that docs/QUALITY.md has not: %s", type->name, r->name,
                         r->evidence);
        }
    }
}

/* "budgets": | budget | bits | mean | worst | single method | bits | mean | worst |, each recipe above what it was held against. */
static void test_searched_recipes(void **state)
{
    (void)state;
    const char *row = strstr(document, "<!-- generated: budgets -->");
    int n = 0;
    assert_non_null(row);
    while ((row = strstr(row, "\n| ")) != NULL) {
        double budget, bits, mean, worst, single_bits, single;
        char name[64];
        if (sscanf(++row, "| %lf | %lf | %lf | %lf | %63s | %lf | %lf |", &budget, &bits, &mean, &worst, name,
                   &single_bits, &single) != 7)
            continue;
        assert_true(bits <= budget + 0.005 && single_bits <= budget + 0.005);
        if (!(mean > single))
            fail_msg("at %.2f bits %s alone gives %.1f dB, the recipe %.1f", budget, name, single, mean);
        n++;
    }
    assert_true(n >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_is_complete),     cmocka_unit_test(test_sizes_are_todays),
        cmocka_unit_test(test_pictures_are_todays),  cmocka_unit_test(test_nothing_is_outside_its_band),
        cmocka_unit_test(test_families_and_recipes), cmocka_unit_test(test_searched_recipes),
        cmocka_unit_test(test_evidence_is_measured),
    };
    return cmocka_run_group_tests_name("docs/QUALITY.md", tests, setup, teardown);
}
