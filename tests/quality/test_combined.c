/* test_combined.c -- weight methods, runtime attention quantization and recipes together, on the demo model and on every
 * family's small model: the run works, both parts are in the plan, and the error over a few pictures is the sum of both alone, within 2 dB. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/quality_families.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *weights, *attention;
} pairs[] = {{"fp8", "fp8"}, {"nvfp4", "mxfp8"}, {"gguf", "mxfp4"}};

/* Errors of two kinds are independent on average only: one picture of the trained model strays by more than 2 dB on
 * some processors. */
enum { PICTURES = 4 };

static int pictures_of(const quality_family *f)
{
    return f->data ? 1 : PICTURES;
}

typedef struct stage { /* what the transformer gave in the first step of a run */
    float *values;
    size_t n;
} stage;

static oq_status keep_first(void *user, const char *key, const oq_dtype *dtype, const void *data,
                            const int64_t *shape, int n_dims)
{
    stage *s = user;
    size_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= (size_t)shape[i];
    if (strncmp(key, "step.0.model_out", 16) != 0 || s->values) return OQ_OK;
    s->values = calloc(n, sizeof *s->values);
    assert_non_null(s->values);
    dtype->to_f32(s->values, data, n);
    s->n = n;
    return OQ_OK;
}

static double error_of(const stage *want, const stage *got)
{
    double signal = 0, noise = 0;
    assert_true(want->n > 0 && want->n == got->n);
    for (size_t i = 0; i < want->n; i++) {
        const double d = (double)want->values[i] - (double)got->values[i];
        signal += (double)want->values[i] * (double)want->values[i], noise += d * d;
    }
    return noise / signal;
}

static void check_plan(const oq_model *m, const char *weights, const char *attention)
{
    size_t layers = 0, attentions = 0;
    for (size_t c = 0; c < m->plan->n_components; c++) {
        const oq_plan_component *p = &m->plan->components[c];
        for (size_t i = 0; i < p->n_layers; i++) layers += p->layers[i].choice.quantized;
        for (size_t i = 0; i < p->n_attentions; i++) attentions += p->attentions[i].attention->modes != 0;
    }
    assert_int_equal(layers > 0, weights != NULL);
    assert_int_equal(attentions > 0, attention != NULL);
}

static stage first_step(oq_env *env, const quality_family *f, const char *folder, const char *weights,
                        const char *attention, int picture)
{
    char spec[64];
    stage out = {0};
    oq_model *model = NULL;
    oq_media *media = NULL;
    oq_request request;
    oq_arena arena;
    snprintf(spec, sizeof spec, "{\"transformer\":{\"method\":\"%s\"}}", weights ? weights : "none");
    oq_options *o = quality_family_options(env, f, folder, weights ? spec : NULL, picture);
    assert_int_equal(oq_options_set(o, "steps", "2"), OQ_OK); /* Wan's other expert has the last one */
    if (attention) assert_int_equal(oq_options_set(o, "attention-quantization", attention), OQ_OK);
    if (!f->data) {
        assert_int_equal(oq_options_set(o, "width", "128"), OQ_OK);
        assert_int_equal(oq_options_set(o, "height", "128"), OQ_OK);
    }
    oq_arena_init(&arena, env);
    const oq_run_hooks hooks = {.trace = keep_first, .trace_user = &out};
    model = quality_family_open(env, o);
    if (oq_request_make(env, model, o, &arena, &request) != OQ_OK ||
        oq_generate_request(env, model, &request, &hooks, &media) != OQ_OK)
        fail_msg("%s, %s, %s: %s", f->name, weights, attention, oq_env_error(env));
    check_plan(model, weights, attention);
    oq_media_free(media);
    oq_model_close(model);
    oq_arena_deinit(&arena);
    oq_options_free(o);
    return out;
}

static void check_pair(oq_env *env, const quality_family *f, const char *folder, const stage *plain, size_t i)
{
    const char *w = pairs[i].weights, *a = pairs[i].attention;
    const int n = pictures_of(f);
    double apart = 0, together = 0;
    for (int p = 0; p < n; p++) {
        stage weights = first_step(env, f, folder, w, NULL, p),
              attention = first_step(env, f, folder, NULL, a, p), both = first_step(env, f, folder, w, a, p);
        apart += error_of(&plain[p], &weights) + error_of(&plain[p], &attention);
        together += error_of(&plain[p], &both);
        free(weights.values), free(attention.values), free(both.values);
    }
    print_message("%s, %s weights and %s attention: %.1f dB, %.1f expected\n", f->name, w, a,
                  -10 * log10(together / n), -10 * log10(apart / n));
    assert_true(together > 0 && together <= 1.6 * apart && together >= apart / 1.6);
}

static void test_weights_and_attention(void **state)
{
    (void)state;
    for (const quality_family *f = quality_families; f->name; f++) {
        oq_env *env = NULL;
        char folder[500];
        stage plain[PICTURES];
        assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
        quality_family_folder(env, f, folder);
        for (int p = 0; p < pictures_of(f); p++) plain[p] = first_step(env, f, folder, NULL, NULL, p);
        for (size_t i = 0; i < OQ_COUNT(pairs); i++) check_pair(env, f, folder, plain, i);
        for (int p = 0; p < pictures_of(f); p++) free(plain[p].values);
        oq_env_free(env);
    }
}

/* Every recipe of a family plans on its models, quantizes some layers and leaves some of its own will. */
static void test_recipes(void **state)
{
    (void)state;
    for (const quality_family *f = quality_families; f->name; f++) {
        const oq_pipeline_recipe *recipe = NULL;
        oq_env *env = NULL;
        char folder[500];
        assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
        quality_family_folder(env, f, folder);
        for (size_t i = 0; oq_pipeline_list[i]; i++)
            if (strcmp(oq_pipeline_list[i]->name, f->pipeline) == 0) recipe = oq_pipeline_list[i]->recipes;
        assert_non_null(recipe);
        for (; recipe->name; recipe++) {
            oq_model *model = NULL;
            size_t quantized = 0, left = 0;
            oq_options *o = quality_family_options(env, f, folder, NULL, 0);
            assert_int_equal(oq_options_set(o, "recipe", recipe->name), OQ_OK);
            if (oq_model_prepare(env, o, &model) != OQ_OK)
                fail_msg("%s, %s: %s", f->name, recipe->name, oq_env_error(env));
            const oq_plan_component *c =
                oq_plan_find(model->plan, f->second ? "transformer_2" : "transformer");
            for (size_t i = 0; i < c->n_layers; i++) {
                quantized += c->layers[i].choice.quantized;
                left += !c->layers[i].choice.quantized && !c->layers[i].linear->keep;
            }
            assert_true(quantized > 0 && left > 0);
            oq_model_close(model);
            oq_options_free(o);
        }
        oq_env_free(env);
    }
}

/* What a recipe search relies on: the layer that a denoiser declares last gives its prediction. */
typedef struct order {
    const oq_model *model;
    const oq_linear *last; /* called, of a denoiser */
} order;

static oq_status note_last(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    order *o = user;
    (void)x, (void)y;
    for (size_t c = 0; c < o->model->plan->n_components; c++) {
        const oq_plan_component *p = &o->model->plan->components[c];
        if (strncmp(p->name, "transformer", 11) != 0) continue;
        for (size_t i = 0; i < p->n_layers; i++)
            if (p->layers[i].linear == layer) o->last = layer;
    }
    return OQ_OK;
}

static void test_last_declared_runs_last(void **state)
{
    (void)state;
    for (const quality_family *f = quality_families; f->name; f++) {
        oq_env *env = NULL;
        oq_model *model = NULL;
        oq_media *media = NULL;
        oq_request request;
        oq_arena arena;
        char folder[500];
        assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
        oq_arena_init(&arena, env);
        oq_options *o = quality_family_options(env, f, quality_family_folder(env, f, folder), NULL, 0);
        assert_int_equal(oq_options_set(o, "steps", "1"), OQ_OK);
        model = quality_family_open(env, o);
        assert_int_equal(oq_request_make(env, model, o, &arena, &request), OQ_OK);
        order seen = {.model = model};
        const oq_run_hooks hooks = {.observer = note_last, .observer_user = &seen};
        assert_int_equal(oq_generate_request(env, model, &request, &hooks, &media), OQ_OK);
        bool declared_last = false;
        for (size_t c = 0; c < model->plan->n_components; c++) {
            const oq_plan_component *p = &model->plan->components[c];
            declared_last |= p->n_layers && p->layers[p->n_layers - 1].linear == seen.last;
        }
        if (!declared_last) fail_msg("%s: %s", f->name, seen.last->name);
        oq_media_free(media);
        oq_model_close(model);
        oq_options_free(o);
        oq_arena_deinit(&arena);
        oq_env_free(env);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weights_and_attention),
                                       cmocka_unit_test(test_recipes),
                                       cmocka_unit_test(test_last_declared_runs_last)};
    return cmocka_run_group_tests_name("combined", tests, NULL, NULL);
}
