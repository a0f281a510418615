/* test_stream.c -- a limit of the device's memory: which layers are streamed, what that leaves in the device's memory, and a
 * picture that is the same to the bit. The device is the CPU in disguise: its buffers are called memory of its own, and its
 * window is two places, of which the one that was left is overwritten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cpu/cpu.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

struct oq_window {
    oq_env *env;
    size_t bytes, n_gets;
    char *place[2];
};

static size_t gets, got_bytes;

static oq_status host_new(oq_env *env, oq_device *device, size_t bytes, void **out)
{
    (void)device;
    return oq_new(env, bytes, 1, "host memory", out);
}

static void host_free(oq_env *env, oq_device *device, void *host)
{
    (void)device;
    oq_free(env, host);
}

static oq_status window_new(oq_env *env, oq_device *device, size_t bytes, oq_window **out)
{
    oq_window *w = NULL;
    (void)device;
    OQ_TRY(oq_new(env, 1, sizeof *w, "window", &w));
    *w = (oq_window){.env = env, .bytes = bytes};
    for (int i = 0; i < 2; i++) {
        void *place = aligned_alloc(256, bytes + 256 - bytes % 256);
        assert_non_null(place);
        w->place[i] = place;
    }
    *out = w;
    return OQ_OK;
}

static void window_free(oq_env *env, oq_window *w)
{
    for (int i = 0; i < 2; i++) free(w->place[i]);
    oq_free(env, w);
}

static const void *window_get(oq_window *w, const void *host, size_t bytes)
{
    assert_true(bytes <= w->bytes);
    memset(w->place[w->n_gets % 2], 0xff, w->bytes);
    w->n_gets++;
    gets++, got_bytes += bytes;
    return memcpy(w->place[w->n_gets % 2], host, bytes);
}

static oq_backend disguised(void)
{
    oq_backend b = oq_backend_cpu;
    b.host_memory = false;
    b.host_new = host_new;
    b.host_free = host_free;
    b.window_new = window_new;
    b.window_free = window_free;
    b.window_get = window_get;
    return b;
}

static oq_options *options_of(oq_env *env, const char *quantization)
{
    static const char *const rows[][2] = {
        {"model", MODEL}, {"device", "cpu"}, {"prompt", "a small blue star"}, {"steps", "2"}, {"seed", "3"},
        {"width", "64"},  {"height", "64"}};
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        assert_int_equal(oq_options_set(o, rows[i][0], rows[i][1]), OQ_OK);
    assert_int_equal(oq_options_set(o, "quantization", quantization), OQ_OK);
    return o;
}

static size_t products_bytes(const oq_plan *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->n_components; i++)
        for (size_t j = 0; j < plan->components[i].n_layers; j++)
            bytes += plan->components[i].layers[j].bytes;
    return bytes;
}

/* share: of the products' weights that the limit has no room for; 0: nothing is limited. */
static oq_media *picture(oq_env *env, const oq_backend *b, const char *quantization, double share)
{
    oq_options *o = options_of(env, quantization);
    oq_model *model = NULL;
    oq_media *media = NULL;
    assert_int_equal(oq_model_prepare(env, o, &model), OQ_OK);
    oq_plan *plan = model->plan;
    model->backend = plan->backend = b;
    const size_t limit =
        plan->scratch_bytes + plan->weights_bytes - (size_t)((double)products_bytes(plan) * share);
    if (share > 0) {
        if (oq_plan_limit(plan, limit) != OQ_OK) fail_msg("%s", oq_env_error(env));
        assert_true(plan->stream_bytes > 0 && plan->window_bytes > 0);
        assert_true(oq_plan_device_bytes(plan) + plan->scratch_bytes <= limit);
    }
    gets = got_bytes = 0;
    if (oq_model_load(env, model) != OQ_OK || oq_generate(env, model, o, &media) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    assert_true(share > 0 ? gets > 0 && got_bytes >= plan->stream_bytes / 2 : gets == 0);
    oq_model_close(model);
    oq_options_free(o);
    return media;
}

static void test_same_picture(void **state)
{
    static const char *const methods[] = {"none", "fp8", "mxfp4"};
    const oq_backend b = disguised();
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(methods); i++) {
        oq_env *env = NULL;
        assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
        oq_media *whole = picture(env, &b, methods[i], 0), *some = picture(env, &b, methods[i], 0.1),
                 *most = picture(env, &b, methods[i], 0.5);
        const size_t n = (size_t)(oq_media_width(whole) * oq_media_height(whole)) * 3;
        assert_memory_equal(oq_media_pixels(whole, 0), oq_media_pixels(some, 0), n);
        assert_memory_equal(oq_media_pixels(whole, 0), oq_media_pixels(most, 0), n);
        oq_media_free(whole), oq_media_free(some), oq_media_free(most);
        oq_env_free(env);
    }
}

/* Encoders go before the transformer; too little is refused with the numbers. */
static void test_choice(void **state)
{
    const oq_backend b = disguised();
    oq_env *env = NULL;
    oq_model *model = NULL;
    (void)state;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_options *o = options_of(env, "none");
    assert_int_equal(oq_model_prepare(env, o, &model), OQ_OK);
    oq_plan *plan = model->plan;
    assert_int_equal(oq_plan_limit(plan, 1), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "works in the host's"));
    plan->backend = &b;
    env->status = OQ_OK; /* the next sentence, please */
    assert_int_equal(oq_plan_limit(plan, plan->scratch_bytes), OQ_E_NOMEM);
    assert_non_null(strstr(oq_env_error(env), "are too few: this request needs"));
    assert_int_equal(plan->stream_bytes, 0);
    const size_t all = plan->weights_bytes + plan->scratch_bytes;
    assert_int_equal(oq_plan_limit(plan, all), OQ_OK);
    assert_int_equal(plan->stream_bytes, 0);
    assert_int_equal(oq_plan_limit(plan, all - 1), OQ_OK);
    bool encoder = false, transformer = false;
    for (size_t i = 0; i < plan->n_components; i++)
        for (size_t j = 0; j < plan->components[i].n_layers; j++) {
            if (!plan->components[i].layers[j].linear->streamed) continue;
            if (strcmp(plan->components[i].name, "transformer") == 0) transformer = true;
            if (strcmp(plan->components[i].name, "text_encoder") == 0) encoder = true;
        }
    assert_true(encoder);
    print_message("streamed %zu of %zu bytes%s\n", plan->stream_bytes, plan->weights_bytes,
                  transformer ? ", the transformer's too" : "");
    oq_model_close(model);
    oq_options_free(o);
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_picture), cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
