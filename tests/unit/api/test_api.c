/* test_api.c -- the public header alone: its own loop, a model kept for several pictures, cancelling, a method from outside,
 * misuse. Includes nothing private. */
#include "omniq/omniq.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

static oq_options *options_for(oq_env *env, const char *command)
{
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, command, &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "model", MODEL), OQ_OK);
    return o;
}

static void set_small(oq_options *o)
{
    assert_int_equal(oq_options_set_json(
                         o, "{\"prompt\":\"a red ring\",\"width\":64,\"height\":64,\"steps\":2,\"seed\":3}"),
                     OQ_OK);
}

static void the_loop_of_the_header_runs(void **state)
{
    (void)state;
    oq_env *env = NULL;
    oq_options *o = NULL;
    oq_report *r = NULL;
    const char *path = OMNIQ_BINARY_DIR "/test_api.png";
    remove(path);
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    o = options_for(env, "generate");
    set_small(o);
    assert_int_equal(oq_options_set(o, "quantization", "fp8"), OQ_OK);
    assert_int_equal(oq_options_set(o, "output", path), OQ_OK);
    assert_int_equal(oq_run(o, &r), OQ_OK);
    assert_non_null(strstr(oq_report_json(r), "\"outputs\""));
    assert_non_null(strstr(oq_report_text(r), "64x64, seed 3"));
    assert_true(oq_report_passed(r));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fclose(f);
    oq_report_free(r);
    oq_options_free(o);
    oq_env_free(env);
}

static void a_model_serves_several_requests(void **state)
{
    (void)state;
    oq_env *env = NULL;
    oq_model *model = NULL;
    oq_media *a = NULL, *b = NULL, *c = NULL;
    oq_report *plan = NULL;
    oq_metrics m;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_options *o = options_for(env, "generate");
    set_small(o);
    assert_int_equal(oq_model_open(env, o, &model), OQ_OK);
    assert_int_equal(oq_model_plan(env, model, &plan), OQ_OK);
    assert_non_null(strstr(oq_report_json(plan), "\"transformer\""));
    assert_int_equal(oq_generate(env, model, o, &a), OQ_OK);
    assert_int_equal(oq_generate(env, model, o, &b), OQ_OK);
    assert_int_equal(oq_options_set(o, "seed", "4"), OQ_OK);
    assert_int_equal(oq_options_set(o, "batch-count", "2"), OQ_OK);
    assert_int_equal(oq_generate(env, model, o, &c), OQ_OK);
    assert_int_equal(oq_media_count(a), 1);
    assert_int_equal(oq_media_count(c), 2);
    assert_int_equal(oq_media_seed(c, 1), 5);
    assert_int_equal(oq_media_width(a), 64);
    assert_memory_equal(oq_media_pixels(a, 0), oq_media_pixels(b, 0), 64 * 64 * 3);
    oq_metrics_u8(oq_media_pixels(a, 0), oq_media_pixels(c, 0), 64 * 64 * 3, &m);
    assert_true(m.mse > 0);
    assert_null(oq_media_pixels(c, 2));
    assert_string_equal(oq_status_name(oq_media_save(env, c, 2, "x.png")), "E_ARG");
    oq_report_free(plan);
    oq_media_free(a);
    oq_media_free(b);
    oq_media_free(c);
    oq_model_close(model);
    oq_options_free(o);
    oq_env_free(env);
}

/* What a kept model makes repeats by its file and the model, with the quantization it was opened with; without a seed each request
 * draws its own. */
static void pictures_remember_their_run(void **state)
{
    (void)state;
    const char *path = OMNIQ_BINARY_DIR "/test_api_kept.png", *again = OMNIQ_BINARY_DIR "/test_api_again.png";
    oq_env *env = NULL;
    oq_model *model = NULL;
    oq_media *a = NULL, *b = NULL;
    oq_report *r = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_options *o = options_for(env, "generate"), *request = NULL, *repeat = NULL;
    assert_int_equal(oq_options_set(o, "quantization", "int8"), OQ_OK);
    assert_int_equal(oq_model_open(env, o, &model), OQ_OK);
    assert_int_equal(oq_options_new(env, "generate", &request), OQ_OK);
    assert_int_equal(
        oq_options_set_json(request, "{\"prompt\":\"a red ring\",\"width\":64,\"height\":64,\"steps\":2}"),
        OQ_OK);
    assert_int_equal(oq_generate(env, model, request, &a), OQ_OK);
    assert_int_equal(oq_generate(env, model, request, &b), OQ_OK);
    assert_true(oq_media_seed(a, 0) != oq_media_seed(b, 0));
    assert_int_equal(oq_media_save(env, a, 0, path), OQ_OK);
    assert_int_equal(oq_options_new(env, "generate", &repeat), OQ_OK);
    assert_int_equal(oq_options_set(repeat, "from", path), OQ_OK);
    assert_int_equal(oq_options_set(repeat, "model", MODEL), OQ_OK);
    assert_int_equal(oq_options_set(repeat, "output", again), OQ_OK);
    assert_int_equal(oq_run(repeat, &r), OQ_OK);
    const char *const compare =
        "cmp -s " OMNIQ_BINARY_DIR "/test_api_kept.png " OMNIQ_BINARY_DIR "/test_api_again.png";
    assert_int_equal(system(compare), 0);
    oq_report_free(r);
    oq_media_free(a);
    oq_media_free(b);
    oq_model_close(model);
    oq_options_free(o);
    oq_options_free(request);
    oq_options_free(repeat);
    oq_env_free(env);
}

static void options_are_read_and_copied(void **state)
{
    (void)state;
    oq_env *env = NULL;
    oq_options *to = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_options *o = options_for(env, "serve");
    assert_int_equal(oq_options_set(o, "num_inference_steps", "7"), OQ_OK);
    assert_int_equal(oq_options_set(o, "port", "0"), OQ_OK);
    assert_string_equal(oq_options_get(o, "steps"), "7");
    assert_string_equal(oq_options_get(o, "port"), "0");
    assert_null(oq_options_get(o, "width"));
    assert_null(oq_options_get(o, "no-such-option"));
    assert_null(oq_options_get(NULL, "steps"));
    assert_int_equal(oq_options_new(env, "generate", &to), OQ_OK);
    assert_int_equal(oq_options_copy(o, to), OQ_OK);
    assert_string_equal(oq_options_get(to, "steps"), "7");
    assert_string_equal(oq_options_get(to, "model"), MODEL);
    assert_int_equal(oq_options_copy(NULL, to), OQ_E_ARG);
    oq_options_free(o);
    oq_options_free(to);
    oq_env_free(env);
}

static void outputs_are_checked_before_the_work(void **state)
{
    (void)state;
    oq_env *env = NULL;
    oq_model *model = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_options *o = options_for(env, "generate");
    assert_int_equal(oq_model_open(env, o, &model), OQ_OK);
    assert_false(oq_model_makes_video(model));
    assert_int_equal(oq_model_check_output(env, model, "x.png"), OQ_OK);
    assert_int_equal(oq_model_check_output(env, model, "x.gif"), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "x.gif"));
    oq_model_close(model);
    oq_options_free(o);
    oq_env_free(env);
}

static void on_progress(void *user, const oq_progress *p)
{
    if (strcmp(p->phase, "denoise") == 0 && p->done == 1) oq_env_cancel(*(oq_env **)user);
}

static void cancelling_stops_the_work_and_can_be_forgotten(void **state)
{
    (void)state;
    oq_env *env = NULL;
    oq_model *model = NULL;
    oq_media *media = NULL;
    oq_env_params params = OQ_ENV_PARAMS_INIT;
    params.progress = on_progress;
    params.progress_user = &env;
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    oq_options *o = options_for(env, "generate");
    set_small(o);
    assert_int_equal(oq_options_set(o, "steps", "50"), OQ_OK);
    assert_int_equal(oq_model_open(env, o, &model), OQ_OK);
    assert_int_equal(oq_generate(env, model, o, &media), OQ_E_CANCELED);
    assert_null(media);
    oq_env_clear(env);
    assert_string_equal(oq_env_error(env), "");
    assert_int_equal(oq_options_set(o, "steps", "1"), OQ_OK);
    const oq_status st = oq_generate(env, model, o, &media); /* step 1 cancels again, after the last step */
    assert_true(st == OQ_OK || st == OQ_E_CANCELED);
    oq_media_free(media);
    oq_model_close(model);
    oq_options_free(o);
    oq_env_free(env);
}

static const char *choose(void *user, const char *layer, int64_t n, int64_t k)
{
    *(int *)user += n > 0 && k > 0;
    return strstr(layer, "feed_forward") ? "int8" : "none";
}

static void a_method_from_outside_is_planned(void **state)
{
    (void)state;
    int calls = 0;
    oq_env *env = NULL;
    oq_report *r = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    const oq_custom_method mine = {.size = sizeof mine, .name = "mine", .choose = choose, .user = &calls};
    assert_int_equal(oq_method_register(env, &mine), OQ_OK);
    oq_options *o = options_for(env, "plan");
    assert_int_equal(oq_options_set(o, "quantization", "{\"transformer\":\"mine\"}"), OQ_OK);
    assert_int_equal(oq_run(o, &r), OQ_OK);
    assert_true(calls > 0);
    assert_non_null(strstr(oq_report_text(r), "int8_channel"));
    oq_report_free(r);
    oq_options_free(o);
    oq_env_free(env);
}

static void misuse_is_refused(void **state)
{
    (void)state;
    oq_env *env = NULL;
    oq_options *o = NULL;
    oq_report *r = NULL;
    assert_int_equal(oq_run(NULL, &r), OQ_E_ARG);
    assert_int_equal(oq_options_set(NULL, "steps", "1"), OQ_E_ARG);
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "steps", NULL), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "a name and a value"));
    oq_env_clear(env);
    assert_int_equal(oq_run(o, &r), OQ_E_ARG);
    assert_null(r);
    assert_string_equal(oq_env_error(env), "generate needs a model: --model DIR");
    oq_report_free(NULL);
    oq_options_free(NULL);
    oq_model_close(NULL);
    oq_media_free(NULL);
    oq_options_free(o);
    oq_env_free(env);
    oq_env_free(NULL);
}

static void commands_and_statuses_are_listed(void **state)
{
    (void)state;
    size_t n = 0;
    const oq_command_info *c = NULL;
    while ((c = oq_command_at(n))) {
        assert_true(strlen(c->name) > 2 && strlen(c->help) > 8 && c->usage != NULL);
        n++;
    }
    assert_int_equal(n, 13);
    assert_string_equal(oq_status_name(OQ_E_CONFIG), "E_CONFIG");
    assert_string_equal(oq_status_name((oq_status)-99), "E_UNKNOWN");
    assert_string_equal(oq_version(), OQ_VERSION_STRING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loop_of_the_header_runs),
        cmocka_unit_test(a_model_serves_several_requests),
        cmocka_unit_test(pictures_remember_their_run),
        cmocka_unit_test(options_are_read_and_copied),
        cmocka_unit_test(outputs_are_checked_before_the_work),
        cmocka_unit_test(cancelling_stops_the_work_and_can_be_forgotten),
        cmocka_unit_test(a_method_from_outside_is_planned),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(commands_and_statuses_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
