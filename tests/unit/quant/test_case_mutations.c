/* test_case_mutations.c -- producers' layers spoilt tensor by tensor, those too whose layouts are not written here: what is
 * taken has the values of the unspoilt layer, or numbers that are not finite and stop a run; all else is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/inspect.h"
#include "support/mutant.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES OMNIQ_SOURCE_DIR "/tests/data/quant/cases"

typedef struct bench {
    oq_env *env;
    char dir[1024], name[256];
    oq_arena arena;
    oq_folder_component folder; /* of the case */
    size_t n, n_taken, n_wrong;
} bench;

static int setup(void **state)
{
    static bench b;
    if (oq_env_new(NULL, &b.env) != OQ_OK) return -1;
    snprintf(b.dir, sizeof b.dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "case-mutations"));
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    oq_env_free(b->env);
    return 0;
}

/* ---- one layer of a file --------------------------------------------------------------------------------- */

typedef struct layer {
    int64_t n, k;
    bool found, finite;
    oq_scheme scheme;
    float input_scale;
    float *values; /* [n, k] */
} layer;

static oq_status decode(bench *b, const oq_resolved_component *c, const oq_ckpt *ckpt, const char *name,
                        layer *l)
{
    oq_inspect_layer of = {.name = name, .n = l->n, .k = l->k};
    const oq_plane_source *input = &of.source.plane[OQ_PLANE_INPUT_SCALE];
    OQ_TRY(
        oq_dialect_locate(b->env, c->dialect, &c->declared, ckpt, name, l->n, l->k, &of.source, &l->found));
    if (!l->found) return OQ_OK;
    oq_part_scheme(&of.source, &l->scheme);
    if (input->tensor && oq_act_is_static(l->scheme.act_scale))
        oq_plane_read(input, &l->input_scale, sizeof l->input_scale, l->n, l->k);
    l->finite = isfinite(l->input_scale);
    OQ_TRY(oq_layer_values(b->env, &of, l->values));
    for (int64_t i = 0; i < l->n * l->k; i++) l->finite &= isfinite(l->values[i]) != 0;
    return OQ_OK;
}

static oq_status read_layer(bench *b, const char *path, const char *name, layer *l)
{
    oq_ckpt *ckpt = NULL;
    oq_resolved *resolved = NULL;
    oq_env_clear(b->env);
    oq_status st = oq_ckpt_open(b->env, path, &ckpt);
    if (st == OQ_OK) {
        const oq_resolve_input in = {.name = "transformer",
                                     .class_name = "Net",
                                     .quantizable = true,
                                     .quant = b->folder.quant,
                                     .quant_source = b->folder.quant_source,
                                     .ckpt = ckpt};
        st = oq_resolve(b->env, NULL, &in, 1, &resolved);
    }
    if (st == OQ_OK && resolved->components[0].dialect)
        st = decode(b, &resolved->components[0], ckpt, name, l);
    oq_resolved_free(resolved);
    oq_ckpt_close(ckpt);
    return st;
}

static layer layer_new(int64_t n, int64_t k)
{
    layer l = {.n = n, .k = k, .values = calloc((size_t)(n * k), sizeof *l.values)};
    assert_non_null(l.values);
    return l;
}

/* ---- spoilt ---------------------------------------------------------------------------------------------- */

static bool of_layer(const mutant_tensor *t, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(t->name, name, n) == 0 && t->name[n] == '.';
}

/* A layer that is none any more: the plan misses its weight, or finds what belongs to no layer. */
static bool plan_refuses(const mutant *m, const char *name)
{
    char weight[300];
    snprintf(weight, sizeof weight, "%s.weight", name);
    const mutant_tensor *t = mutant_find(m, weight);
    const bool plain = t && (t->type[0] == 'B' || strcmp(t->type, "F32") == 0 || strcmp(t->type, "F16") == 0);
    for (size_t i = 0; i < m->n_tensors; i++)
        if (of_layer(&m->tensors[i], name) && &m->tensors[i] != t && !strstr(m->tensors[i].name, ".bias"))
            return true;
    return !plain;
}

/* Files without these are whole files too: factors are folded into the norm before, a second scale is 1, and groups that
 * no number tells are told by the scales' shape. */
static const struct {
    const char *producer, *tensor, *what;
} untold[] = {
    {"modelopt/", ".pre_quant_scale", "removed"},
    {"modelopt/w4a16_awq", ".weight_scale", "half as wide"},
    {"modelopt/w4a8_awq", ".weight_scale", "half as wide"},
    {"comfy/nvfp4_awq", ".pre_quant_scale", "removed"},
    {"comfy/nvfp4_awq", ".input_scale", "removed"},
    {"nunchaku/", ".wtscale", "removed"},
    {"nunchaku/", ".wcscales", "removed"},
};

static bool is_untold(const bench *b, const mutant_tensor *t, const char *what)
{
    for (size_t i = 0; i < OQ_COUNT(untold); i++)
        if (strncmp(b->name, untold[i].producer, strlen(untold[i].producer)) == 0 &&
            strstr(t->name, untold[i].tensor) && strcmp(what, untold[i].what) == 0)
            return true;
    return false;
}

/* Only of scales is it known what they cannot be; codes, zero points, factors and orders are values like others, and
 * scales of integers in groups are negative in files of producers. */
static bool says_nothing(const mutant_tensor *t, const char *what, const layer *whole)
{
    const bool scale = strstr(t->name, "scale") || strstr(t->name, "SCB");
    const bool any = !strcmp(what, "zeros") || !strcmp(what, "all bits set") || !strcmp(what, "negative");
    if (strstr(t->name, "smooth") || strstr(t->name, "pre_quant") || strstr(t->name, "bias")) return any;
    const bool signs = !strcmp(what, "negative") &&
                       (whole->scheme.weight->int_bits || strstr(whole->scheme.weight->name, "int4"));
    return any && (!scale || signs || strstr(t->name, "zero"));
}

static void judge(bench *b, const mutant *m, const char *name, const char *what, const layer *whole)
{
    layer l = layer_new(whole->n, whole->k);
    char path[1200];
    mutant_write(m, b->dir);
    snprintf(path, sizeof path, "%s/diffusion_pytorch_model.safetensors", b->dir);
    b->n++;
    const oq_status st = read_layer(b, path, name, &l);
    const bool same = l.found && oq_scheme_equal(&l.scheme, &whole->scheme) &&
                      memcmp(&l.input_scale, &whole->input_scale, sizeof(float)) == 0 &&
                      memcmp(l.values, whole->values, (size_t)(l.n * l.k) * sizeof(float)) == 0;
    b->n_taken += st == OQ_OK;
    if (getenv("MUTATIONS_VERBOSE"))
        print_message("%s: %s: %s\n", b->name, what, st ? oq_env_error(b->env) : same ? "same" : "other");
    if (st == OQ_OK && !same && (l.found ? l.finite : !plan_refuses(m, name))) {
        print_error("%s: %s: %s\n", b->name, what, l.found ? "other values in silence" : "plain in silence");
        b->n_wrong++;
    }
    free(l.values);
}

static void spoil_layer(bench *b, const mutant *whole, const char *name, const layer *l)
{
    char what[300];
    for (size_t i = 0; i < whole->n_tensors; i++) {
        if (!of_layer(&whole->tensors[i], name) || strstr(whole->tensors[i].name, ".bias")) continue;
        for (const mutant_spoil *s = mutant_spoils; s->what; s++) {
            mutant m;
            if (says_nothing(&whole->tensors[i], s->what, l) || is_untold(b, &whole->tensors[i], s->what))
                continue;
            mutant_copy(&m, whole);
            snprintf(what, sizeof what, "%s %s", whole->tensors[i].name, s->what);
            if (s->spoil(&m.tensors[i])) judge(b, &m, name, what, l);
            mutant_free(&m);
        }
    }
}

static void run_case(bench *b)
{
    char path[1400];
    oq_json *json = NULL;
    mutant whole;
    const char *name = NULL;
    oq_arena_init(&b->arena, b->env);
    b->folder = (oq_folder_component){0};
    snprintf(path, sizeof path, CASES "/%s", b->name);
    assert_int_equal(oq_folder_component_read(b->env, &b->arena, path, &b->folder), OQ_OK);
    snprintf(path, sizeof path, CASES "/%s/case.json", b->name);
    assert_int_equal(oq_json_parse_file(b->env, path, 1 << 22, &json), OQ_OK);
    const char *file = oq_json_string(oq_json_get(json, "checkpoint"));
    const oq_json *first = oq_json_member(oq_json_get(json, "dequant"), 0, &name);
    const oq_json *shape = oq_json_get(first, "shape");
    snprintf(path, sizeof path, CASES "/%s/%s", b->name, file);
    if (first && strstr(file, ".safetensors")) {
        layer l = layer_new(oq_json_int(oq_json_at(shape, 0), 0), oq_json_int(oq_json_at(shape, 1), 0));
        mutant_read_file(&whole, b->env, path);
        if (read_layer(b, path, name, &l) != OQ_OK) fail_msg("%s: %s", b->name, oq_env_error(b->env));
        assert_true(l.found);
        spoil_layer(b, &whole, name, &l);
        mutant_free(&whole);
        free(l.values);
    }
    oq_json_free(json);
    oq_folder_component_deinit(&b->folder);
    oq_arena_deinit(&b->arena);
}

static void test_cases(void **state)
{
    bench *b = *state;
    char **producers = NULL, **names = NULL, path[1024];
    size_t n_producers = 0, n = 0;
    const char *only = getenv("MUTATIONS_ONLY");
    assert_int_equal(oq_dir_list(b->env, CASES, &producers, &n_producers), OQ_OK);
    for (size_t p = 0; p < n_producers; p++) {
        snprintf(path, sizeof path, CASES "/%s", producers[p]);
        assert_int_equal(oq_dir_list(b->env, path, &names, &n), OQ_OK);
        for (size_t i = 0; i < n; i++) {
            snprintf(b->name, sizeof b->name, "%s/%s", producers[p], names[i]);
            if (!only || strstr(b->name, only)) run_case(b);
            oq_free(b->env, names[i]);
        }
        oq_free(b->env, names);
        oq_free(b->env, producers[p]);
    }
    oq_free(b->env, producers);
    print_message("%zu spoilt layers, %zu of them taken, %zu wrongly\n", b->n, b->n_taken, b->n_wrong);
    assert_int_equal(b->n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cases, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
