/* test_fixtures.c -- no sample is forgotten: every odd and hostile file of tests/data stands in fixtures.json with its outcome, and
 * inspect gives it; every dialect has a seed for the fuzzer that it reads. What each says and decodes to is in test_safetensors,
 * test_gguf and test_producers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "ckpt/reader.h"
#include "quant/resolve.h"
#include "support/env_setup.h"
#include "support/toybox_run.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA  OMNIQ_SOURCE_DIR "/tests/data/"
#define SEEDS OMNIQ_SOURCE_DIR "/tests/fuzz/corpus/dialect"

/* ---- fixtures -------------------------------------------------------------------------------------------- */

/* "Q08_scale_zero.safetensors" */
static bool is_fixture(const char *name)
{
    return strchr("GQS", name[0]) && isdigit((unsigned char)name[1]) && isdigit((unsigned char)name[2]) &&
           name[3] == '_';
}

static bool passes(oq_env *env, const char *path)
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    oq_env_clear(env);
    assert_int_equal(oq_options_new(env, "inspect", &o), OQ_OK);
    assert_int_equal(oq_options_add_argument(o, path), OQ_OK);
    const oq_status st = oq_run(o, &report);
    const bool passed = st == OQ_OK && oq_report_passed(report);
    if (st != OQ_OK) assert_true(strlen(oq_env_error(env)) > 20);
    oq_report_free(report);
    oq_options_free(o);
    return passed;
}

static void test_outcomes(void **state)
{
    static const char *const folders[] = {DATA "ckpt", DATA "quant"};
    oq_env *env = *state;
    oq_json *all = NULL;
    size_t seen = 0, wrong = 0;
    assert_int_equal(oq_json_parse_file(env, DATA "fixtures.json", (size_t)1 << 20, &all), OQ_OK);
    for (size_t f = 0; f < OQ_COUNT(folders); f++) {
        char **names = NULL;
        size_t n = 0;
        assert_int_equal(oq_dir_list(env, folders[f], &names, &n), OQ_OK);
        for (size_t i = 0; i < n; i++) {
            char path[1024];
            const char *expect = oq_json_string(oq_json_get(oq_json_get(all, names[i]), "expect"));
            snprintf(path, sizeof path, "%s/%s", folders[f], names[i]);
            if (is_fixture(names[i]) && !expect) {
                print_error("%s has no outcome in fixtures.json\n", names[i]);
                wrong++;
            } else if (is_fixture(names[i])) {
                assert_true(strcmp(expect, "ok") == 0 || strcmp(expect, "reject") == 0);
                seen++;
                if (passes(env, path) != (strcmp(expect, "ok") == 0)) {
                    print_error("%s: inspect says another thing than '%s'\n", names[i], expect);
                    wrong++;
                }
            }
            oq_free(env, names[i]);
        }
        oq_free(env, names);
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(seen, oq_json_size(all)); /* and none of the list is missing */
    oq_json_free(all);
}

/* ---- seeds ----------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    return strcmp(((const oq_ckpt_tensor *)a)->name, ((const oq_ckpt_tensor *)b)->name);
}

/* Layers that are found in the file behind the metadata. */
static size_t layers_in(oq_env *env, const oq_resolved_component *c, const oq_ckpt *ckpt)
{
    size_t count = 0;
    for (size_t i = 0; c->dialect && i < ckpt->n_tensors; i++) {
        char name[512];
        size_t length = 0;
        int64_t n = 0, k = 0;
        oq_part_source part = {0};
        bool found = false;
        if (!oq_dialect_layer_of(c->dialect, &c->declared, ckpt, &ckpt->tensors[i], &length, &n, &k))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length, ckpt->tensors[i].name);
        const oq_status st =
            oq_dialect_locate(env, c->dialect, &c->declared, ckpt, name, n, k, &part, &found);
        count += st == OQ_OK && found;
    }
    return count;
}

/* A seed is metadata, a NUL, a safetensors file, as fuzz_dialect takes it. */
static const char *dialect_of_seed(oq_env *env, const char *path, size_t *layers)
{
    char *bytes = NULL;
    size_t n = 0;
    const char *name = NULL;
    oq_ckpt ckpt = {.path = path, .container = "safetensors"};
    oq_ckpt_file file = {.path = path};
    oq_ckpt_part part = {0};
    oq_json *quant = NULL;
    oq_resolved *resolved = NULL;
    assert_int_equal(oq_file_read(env, path, (size_t)1 << 26, &bytes, &n), OQ_OK);
    const size_t text = strnlen(bytes, n);
    assert_true(text < n);
    if (text) assert_int_equal(oq_json_parse(env, bytes, text, "metadata", &quant), OQ_OK);
    file.map.data = (uint8_t *)bytes + text + 1, file.map.bytes = n - text - 1;
    oq_arena_init(&ckpt.arena, env);
    assert_int_equal(oq_safetensors_parse(env, &ckpt.arena, path, &file.map, &part), OQ_OK);
    file.metadata = part.metadata;
    ckpt.files = &file, ckpt.n_files = 1, ckpt.tensors = part.tensors, ckpt.n_tensors = part.n_tensors;
    qsort(ckpt.tensors, ckpt.n_tensors, sizeof *ckpt.tensors, compare);
    const oq_resolve_input in = {.name = "transformer",
                                 .class_name = "Net",
                                 .quantizable = true,
                                 .quant = quant,
                                 .quant_source = "config.json",
                                 .ckpt = &ckpt};
    if (oq_resolve(env, NULL, &in, 1, &resolved) == OQ_OK && resolved->components[0].dialect) {
        name = resolved->components[0].dialect->name;
        *layers = layers_in(env, &resolved->components[0], &ckpt);
    }
    if (!name || !*layers) print_error("%s: %s: %s\n", path, name ? name : "no dialect", oq_env_error(env));
    oq_resolved_free(resolved);
    oq_json_free(part.metadata);
    oq_arena_deinit(&ckpt.arena);
    oq_json_free(quant);
    oq_free(env, bytes);
    return name;
}

static void test_seeds(void **state)
{
    oq_env *env = *state;
    char **names = NULL;
    size_t n = 0, bare = 0;
    bool seen[64] = {false};
    assert_int_equal(oq_dir_list(env, SEEDS, &names, &n), OQ_OK);
    for (size_t i = 0; i < n; i++) {
        char path[1024];
        size_t layers = 0;
        snprintf(path, sizeof path, SEEDS "/%s", names[i]);
        const char *name = dialect_of_seed(env, path, &layers);
        for (size_t d = 0; name && layers && oq_dialect_list[d]; d++)
            seen[d] |= strcmp(oq_dialect_list[d]->name, name) == 0;
        oq_free(env, names[i]);
    }
    oq_free(env, names);
    for (size_t d = 0; oq_dialect_list[d]; d++) {
        if (seen[d] || strcmp(oq_dialect_list[d]->name, "gguf") == 0)
            continue; /* whose files have a target of their own */
        print_error("dialect '%s' reads none of the fuzzer's seeds\n", oq_dialect_list[d]->name);
        bare++;
    }
    assert_int_equal(bare, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_outcomes, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_seeds, env_setup, env_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
