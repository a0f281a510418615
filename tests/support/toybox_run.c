/* toybox_run.c -- see toybox_run.h. */
#include "support/toybox_run.h"

#include "format/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- running commands ---------------------------------------------------------------------------------- */

/* argument, then pairs of option and value, NULL at the end. */
oq_status toybox_command(oq_env *env, const char *name, const char *argument, const char *const *pairs,
                         oq_json **json)
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    oq_env_clear(env);
    assert_int_equal(oq_options_new(env, name, &o), OQ_OK);
    if (argument) assert_int_equal(oq_options_add_argument(o, argument), OQ_OK);
    for (; *pairs; pairs += 2) assert_int_equal(oq_options_set(o, pairs[0], pairs[1]), OQ_OK);
    const oq_status st = oq_run(o, &report);
    if (st == OQ_OK && json) {
        const char *text = oq_report_json(report);
        assert_int_equal(oq_json_parse(env, text, strlen(text), "report", json), OQ_OK);
    }
    oq_report_free(report);
    oq_options_free(o);
    return st;
}

void done(oq_env *env, const char *name, const char *argument, const char *const *pairs, oq_json **json)
{
    const oq_status st = toybox_command(env, name, argument, pairs, json);
    if (st != OQ_OK) print_error("%s %s: %s\n", name, argument ? argument : "", oq_env_error(env));
    assert_int_equal(st, OQ_OK);
}

void refused(oq_env *env, const char *argument, const char *const *pairs, oq_status status, const char *text)
{
    const oq_status st = toybox_command(env, "quantize", argument, pairs, NULL);
    if (st != status || !strstr(oq_env_error(env), text))
        print_error("%s: %s\n", oq_status_name(st), oq_env_error(env));
    assert_int_equal(st, status);
    assert_non_null(strstr(oq_env_error(env), text));
    oq_env_clear(env);
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

picture draw(oq_env *env, const char *model, const char *option, const char *value)
{
    picture out = {0};
    oq_options *o = NULL;
    oq_model *m = NULL;
    oq_media *media = NULL;
    const char *const fixed[] = {
        "prompt", "a large red ball", "seed", "3", "width", "128", "height", "128", "steps", "4", NULL};
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "model", model), OQ_OK);
    for (const char *const *f = fixed; *f; f += 2) assert_int_equal(oq_options_set(o, f[0], f[1]), OQ_OK);
    if (option) assert_int_equal(oq_options_set(o, option, value), OQ_OK);
    const oq_status st = oq_model_open(env, o, &m);
    if (st != OQ_OK) print_error("%s: %s\n", model, oq_env_error(env));
    assert_int_equal(st, OQ_OK);
    assert_int_equal(oq_generate(env, m, o, &media), OQ_OK);
    out.n = (size_t)oq_media_width(media) * (size_t)oq_media_height(media) * 3;
    out.pixels = malloc(out.n);
    assert_non_null(out.pixels);
    memcpy(out.pixels, oq_media_pixels(media, 0), out.n);
    oq_media_free(media);
    oq_model_close(m);
    oq_options_free(o);
    return out;
}

double psnr(const picture *a, const picture *b)
{
    oq_metrics m;
    assert_int_equal(a->n, b->n);
    oq_metrics_u8(a->pixels, b->pixels, a->n, &m);
    return m.psnr_db;
}

oq_json *of_transformer(const oq_json *report, const char *key)
{
    return oq_json_ref(oq_json_get(oq_json_get(oq_json_get(report, "components"), "transformer"), key));
}

/* The format's own way there and back for one matrix of the demo model. */
static void expect_round_trip(const oq_format *f, const oq_ckpt_tensor *plain, const oq_ckpt_tensor *written)
{
    const int64_t n = plain->dim[0], k = plain->dim[1];
    float *x = malloc((size_t)(n * k) * sizeof *x), *want = malloc((size_t)k * sizeof *want);
    oq_planes_mut to = {0};
    oq_planes from = {0};
    assert_true(x && want);
    plain->dtype->to_f32(x, plain->data, (size_t)(n * k));
    for (int i = 0; i < OQ_N_PLANES; i++) {
        if (!(f->planes & 1u << i)) continue;
        to.plane[i] = calloc(1, f->plane_bytes(f, (oq_plane)i, n, k));
        from.plane[i] = to.plane[i];
    }
    f->encode(f, &to, x, n, k);
    assert_ptr_equal(written->dtype, &oq_dtype_f32);
    assert_int_equal(written->dim[0], n);
    for (int64_t r = 0; r < n; r++) {
        f->decode_row(f, want, &from, r, n, k);
        for (int64_t c = 0; c < k; c++) {
            float got;
            memcpy(&got, written->data + (size_t)(r * k + c) * sizeof got, sizeof got);
            if (!(got >= want[c] && got <= want[c])) fail_msg("%s [%d, %d]", written->name, (int)r, (int)c);
        }
    }
    for (int i = 0; i < OQ_N_PLANES; i++) free(to.plane[i]);
    free(want);
    free(x);
}

/* Of whatever type: GGUF has its vectors in F32. */
static void expect_same_values(const oq_ckpt_tensor *a, const oq_ckpt_tensor *b)
{
    const size_t n = (size_t)a->elems;
    float *x = malloc(2 * n * sizeof *x);
    assert_non_null(x);
    assert_int_equal(a->elems, b->elems);
    assert_int_equal(a->n_dims, b->n_dims);
    a->dtype->to_f32(x, a->data, n);
    b->dtype->to_f32(x + n, b->data, n);
    assert_memory_equal(x, x + n, n * sizeof *x);
    free(x);
}

static oq_ckpt *open_weights(oq_env *env, const char *path)
{
    oq_ckpt *ckpt = NULL;
    const oq_status st =
        oq_file_is_dir(path) ? oq_ckpt_open_folder(env, path, NULL, &ckpt) : oq_ckpt_open(env, path, &ckpt);
    if (st != OQ_OK) fail_msg("%s: %s", path, oq_env_error(env));
    return ckpt;
}

/* dequantize, then every layer of the report against the source's plain weight; all else is as it was. */
void expect_encoded(oq_env *env, const char *source, const char *quantized, const char *to,
                    const oq_json *layers)
{
    done(env, "dequantize", quantized,
         (const char *const[]){"output", to, "dtype", "f32", "force", "true", NULL}, NULL);
    oq_ckpt *plain = open_weights(env, source), *written = open_weights(env, to);
    assert_int_equal(plain->n_tensors, written->n_tensors);
    size_t n_layers = 0;
    for (size_t i = 0; i < plain->n_tensors; i++) {
        const oq_ckpt_tensor *a = &plain->tensors[i], *b = &written->tensors[i];
        assert_string_equal(a->name, b->name);
        const oq_format *f = NULL;
        for (size_t l = 0; l < oq_json_size(layers) && !f; l++) {
            const char *name = oq_json_string(oq_json_get(oq_json_at(layers, l), "name"));
            if (strncmp(a->name, name, strlen(name)) == 0 && strcmp(a->name + strlen(name), ".weight") == 0)
                f = oq_format_find(oq_json_string(oq_json_get(oq_json_at(layers, l), "format")));
        }
        if (f) {
            expect_round_trip(f, a, b);
            n_layers++;
        } else {
            expect_same_values(a, b);
        }
    }
    assert_int_equal(n_layers, oq_json_size(layers));
    oq_ckpt_close(written);
    oq_ckpt_close(plain);
}

void expect_plain_again(oq_env *env, const char *quantized, const char *to, const oq_json *layers)
{
    expect_encoded(env, TRANSFORMER, quantized, to, layers);
}
