/* test_family_nunchaku.c -- FLUX.1 as nunchaku's files hold it, in integers and in NVFP4, in both spellings: every layer decodes
 * to what was written, bit for bit, the plan has the single blocks' last product in two pieces, and the network's output is as
 * far from the plain one as its layers predict (test_family_methods says how); adapters and the check against a base work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/compare.h"
#include "engine/inspect.h"
#include "parity/family.h"
#include "support/nunchaku_writer.h"
#include "support/st_writer.h"
#include "support/toybox_run.h"

typedef struct written {
    nunchaku_precision precision;
    bool later;               /* diffusers' modules' names */
    double least_db, most_db; /* of a layer's output */
} written;

static const written files[] = {
    {NUNCHAKU_INT4, false, 13, 21}, {NUNCHAKU_NVFP4, false, 15.5, 18.5}, {NUNCHAKU_INT4, true, 13, 21}};

typedef struct world {
    oq_env *env;
    char folder[512], file[600], lora[600];
    oq_ckpt *plain;
    oq_model *reference;
    stages want;
} world;

static oq_model *open_model(world *w, const char *file, const char *lora)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    if (oq_options_new(w->env, "generate", &options) != OQ_OK ||
        oq_options_set(options, "model", w->folder) != OQ_OK ||
        oq_options_set(options, "dtype", "fp32") != OQ_OK || parity_place(options) != OQ_OK ||
        (file && oq_options_set(options, "transformer", file) != OQ_OK) ||
        (lora && oq_options_set(options, "lora", lora) != OQ_OK) ||
        oq_model_open(w->env, options, &model) != OQ_OK)
        fail_msg("%s: %s", file ? file : w->folder, oq_env_error(w->env));
    oq_options_free(options);
    return model;
}

static void first_output(world *w, const oq_model *model, oq_layer_errors *errors, stages *kept)
{
    static const char *const prompt = "a red circle on a white background";
    const oq_request request = {.prompts = &prompt,
                                .n_prompts = 1,
                                .width = 64,
                                .height = 64,
                                .guidance_2 = (double)NAN,
                                .steps = 1,
                                .guidance = 1,
                                .true_cfg = 1,
                                .seed = 3,
                                .images_per_prompt = 1,
                                .max_sequence_length = 45,
                                .cfg_truncation = 1};
    const oq_run_hooks hooks = {.observer = errors ? oq_layer_errors_observe : NULL,
                                .observer_user = errors,
                                .trace = stages_keep,
                                .trace_user = kept};
    oq_media *media = NULL;
    if (oq_generate_request(w->env, model, &request, &hooks, &media) != OQ_OK)
        fail_msg("%s", oq_env_error(w->env));
    oq_media_free(media);
}

static double relative(const stages *a, const stages *b)
{
    const stage *x = stages_find(a, "step.0.model_out.0"), *y = stages_find(b, "step.0.model_out.0");
    distance d = {0};
    assert_true(x && y && x->n == y->n);
    for (int64_t i = 0; i < x->n; i++) distance_add(&d, (double)x->values[i], (double)y->values[i]);
    return distance_relative(&d);
}

static int setup(void **state)
{
    static world w;
    char dir[512];
    if (oq_env_new(NULL, &w.env) != OQ_OK) return -1;
    snprintf(w.folder, sizeof w.folder, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-nunchaku-folder"));
    golden_folder_make(w.env, OMNIQ_SOURCE_DIR "/tests/data/golden/flux1", w.folder, &oq_dtype_f32);
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-nunchaku"));
    snprintf(w.file, sizeof w.file, "%s/svdq.safetensors", dir);
    snprintf(w.lora, sizeof w.lora, "%s/lora.safetensors", dir);
    if (oq_ckpt_open_folder(w.env, scratch_path(w.folder, "transformer"), NULL, &w.plain) != OQ_OK) return -1;
    w.reference = open_model(&w, NULL, NULL);
    first_output(&w, w.reference, NULL, &w.want);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    stages_free(&w->want);
    oq_model_close(w->reference);
    oq_ckpt_close(w->plain);
    oq_env_free(w->env);
    return 0;
}

/* ---- values ------------------------------------------------------------------------------------------------ */

static void check_equal(const nunchaku_layer *l, const char *what, const float *got, const float *want,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (got[i] < want[i] || got[i] > want[i] || isnan(got[i]))
            fail_msg("'%s': %s %lld is %.9g, not %.9g", l->name, what, (long long)i, (double)got[i],
                     (double)want[i]);
}

static void check_layer(world *w, const oq_inspect_part *part, const nunchaku_layer *l)
{
    const oq_inspect_layer *have = NULL;
    oq_layer_planes planes = {0};
    for (size_t i = 0; i < part->n_layers && !have; i++)
        if (strcmp(part->layers[i].name, l->name) == 0) have = &part->layers[i];
    if (!have) fail_msg("no layer '%s'", l->name);
    assert_true(have->n == l->n && have->k == l->k);
    float *got = malloc((size_t)(l->n * l->k) * sizeof *got);
    assert_non_null(got);
    assert_int_equal(oq_layer_planes_read(w->env, have, &planes), OQ_OK);
    for (int64_t r = 0; r < l->n; r++)
        have->source.format->decode_row(have->source.format, got + r * l->k, &planes.planes, r, l->n, l->k);
    check_equal(l, "value", got, l->values, l->n * l->k);
    assert_int_equal(oq_layer_values(w->env, have, got), OQ_OK);
    check_equal(l, "folded value", got, l->folded, l->n * l->k);
    oq_plane_read(&have->source.bias, got, (size_t)l->n * sizeof *got, l->n, l->k);
    check_equal(l, "bias", got, l->bias, l->n);
    oq_layer_planes_free(w->env, &planes);
    free(got);
}

static void check_values(world *w, const nunchaku_file *file)
{
    oq_inspect inspect;
    assert_int_equal(oq_inspect_open(w->env, w->file, NULL, &inspect), OQ_OK);
    assert_int_equal(oq_inspect_quant(&inspect, &inspect.parts[0]), OQ_OK);
    assert_int_equal(inspect.parts[0].n_layers, file->n_layers);
    assert_int_equal(inspect.parts[0].n_unclaimed, 0);
    for (size_t i = 0; i < file->n_layers; i++) check_layer(w, &inspect.parts[0], &file->layers[i]);
    oq_inspect_deinit(&inspect);
}

/* ---- the network ------------------------------------------------------------------------------------------- */

static const oq_linear *find(const oq_model *model, const char *name)
{
    const oq_plan_component *c = oq_plan_find(model->plan, "transformer");
    for (size_t i = 0; i < c->n_layers; i++)
        if (strcmp(c->layers[i].linear->name, name) == 0) return c->layers[i].linear;
    return NULL;
}

static void check_plan(const oq_model *model, const written *f)
{
    const oq_linear *attn = find(model, "single_transformer_blocks.1.proj_out.attn"),
                    *mlp = find(model, "single_transformer_blocks.1.proj_out.mlp");
    assert_null(find(model, "single_transformer_blocks.1.proj_out"));
    assert_true(attn && mlp && attn->whole == mlp->whole && attn->whole->apart_columns);
    assert_true(attn->spec.k == 256 && mlp->spec.k == 1024 && attn->spec.n == 256 && mlp->spec.n == 256);
    assert_int_equal(attn->spec.scheme.rank, 16);
    const bool integers = f->precision == NUNCHAKU_INT4;
    assert_int_equal(attn->spec.scheme.act_scale, integers ? OQ_ACT_DYNAMIC_INT4 : OQ_ACT_STATIC_NVFP4);
    assert_int_equal(mlp->spec.scheme.act_scale, integers ? OQ_ACT_DYNAMIC_UINT4 : OQ_ACT_STATIC_NVFP4);
}

/* Root mean square of the layers' relative errors; each lies in the file's band (modulations, weights alone, above it). */
static double check_layers(const oq_layer_errors *errors, const written *f)
{
    oq_json *json = oq_layer_errors_json(errors);
    double sum = 0, least = INFINITY, most = -INFINITY;
    size_t n = 0;
    for (size_t i = 0; i < oq_json_size(json); i++) {
        const oq_json *row = oq_json_at(json, i);
        const double db = oq_json_real(oq_json_get(row, "snr_db"), NAN);
        if (isnan(db)) fail_msg("'%s' did not run", oq_json_string(oq_json_get(row, "name")));
        n++;
        sum += pow(10, -db / 10);
        if (strstr(oq_json_string(oq_json_get(row, "name")), "norm")) continue;
        least = fmin(least, db), most = fmax(most, db);
        if (db < f->least_db || db > f->most_db)
            fail_msg("'%s' has %.1f dB", oq_json_string(oq_json_get(row, "name")), db);
    }
    oq_json_free(json);
    assert_int_equal(n, 2 * 10 + 2 * 4); /* proj_out is one row */
    printf("%s: layers %.1f to %.1f dB\n", f->precision == NUNCHAKU_INT4 ? "int4" : "nvfp4", least, most);
    return sqrt(sum / (double)n);
}

static void check_run(world *w, const written *f)
{
    oq_model *model = open_model(w, w->file, NULL);
    oq_layer_errors *errors = NULL;
    stages got = {0};
    check_plan(model, f);
    assert_int_equal(oq_layer_errors_new(w->env, w->reference, model, &errors), OQ_OK);
    first_output(w, model, errors, &got);
    const double rms = check_layers(errors, f), error = relative(&got, &w->want);
    printf("rms error %.4f; output %.4f\n", rms, error);
    assert_true(error >= rms / 3 && error <= rms * 3);
    oq_layer_errors_free(errors);
    stages_free(&got);
    oq_model_close(model);
}

static void check_file(world *w, const written *f)
{
    nunchaku_file file = nunchaku_write(w->plain, w->file, f->precision, f->later);
    check_values(w, &file);
    check_run(w, f);
    nunchaku_free(&file);
}

static void test_int4(void **state)
{
    check_file(*state, &files[0]);
}
static void test_nvfp4(void **state)
{
    check_file(*state, &files[1]);
}
static void test_later_names(void **state)
{
    check_file(*state, &files[2]);
}

/* ---- written again ------------------------------------------------------------------------------------------ */

/* `quantize` reads the file itself: biases in its order, the shift of x and the low rank included. Pieces of a product stay plain. */
static void test_quantize(void **state)
{
    world *w = *state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char out[700], plain[700];
        oq_json *report = NULL;
        nunchaku_file file = nunchaku_write(w->plain, w->file, files[i].precision, files[i].later);
        snprintf(out, sizeof out, "%s.int8.safetensors", w->file);
        snprintf(plain, sizeof plain, "%s.plain.safetensors", w->file);
        const char *with[] = {"model",  w->folder, "quantization", "int8", "layout",         "int8",
                              "output", out,       "force",        "true", "ignored-layers", "proj_out",
                              NULL};
        done(w->env, "quantize", w->file, with, &report);
        assert_true(oq_json_bool(oq_json_get(report, "verified"), false));
        oq_json_free(report);
        done(w->env, "dequantize", w->file,
             (const char *const[]){"dtype", "f32", "output", plain, "force", "true", NULL}, NULL);
        with[10] = NULL;
        refused(w->env, w->file, with, OQ_E_UNSUPPORTED,
                "which are not put together: --ignored-layers proj_out");
        oq_model *a = open_model(w, plain, NULL), *b = open_model(w, out, NULL);
        stages whole = {0}, got = {0};
        first_output(w, a, NULL, &whole);
        first_output(w, b, NULL, &got);
        const double error = relative(&got, &whole);
        printf("int8 of the file beside its values: %.4f\n", error);
        assert_true(error > 0 && error < 0.03);
        stages_free(&whole);
        stages_free(&got);
        oq_model_close(a);
        oq_model_close(b);
        nunchaku_free(&file);
    }
}

/* ---- beside it --------------------------------------------------------------------------------------------- */

/* An adapter of the whole product that the file has in two pieces moves the output as it moves the plain network's. */
static void test_adapter(void **state)
{
    enum { N = 256, K = 1280, RANK = 4 };
    static float down[RANK * K], up[N * RANK];
    world *w = *state;
    golden_uniform("down", 0.5f, down, RANK * K);
    golden_uniform("up", 0.5f, up, N * RANK);
    const st_tensor tensors[] = {
        {"transformer.single_transformer_blocks.1.proj_out.lora_A.weight", &oq_dtype_f32, 2, {RANK, K}, down},
        {"transformer.single_transformer_blocks.1.proj_out.lora_B.weight", &oq_dtype_f32, 2, {N, RANK}, up}};
    st_write(w->lora, tensors, 2);
    nunchaku_file file = nunchaku_write(w->plain, w->file, NUNCHAKU_NVFP4, false);
    oq_model *plain = open_model(w, NULL, w->lora), *model = open_model(w, w->file, w->lora);
    stages want = {0}, got = {0};
    first_output(w, plain, NULL, &want);
    first_output(w, model, NULL, &got);
    const double effect = relative(&want, &w->want), error = relative(&got, &want);
    printf("adapter: moves the output by %.3f; error %.3f\n", effect, error);
    assert_true(effect > 0.3 && error < effect / 3);
    stages_free(&want), stages_free(&got);
    oq_model_close(plain), oq_model_close(model);
    nunchaku_free(&file);
}

/* The plain transformer as one file; of `other` the columns stand in the opposite order. */
static void write_base(world *w, const char *path, const char *other)
{
    st_tensor *tensors = calloc(w->plain->n_tensors, sizeof *tensors);
    float *turned = NULL;
    assert_non_null(tensors);
    for (size_t i = 0; i < w->plain->n_tensors; i++) {
        const oq_ckpt_tensor *t = &w->plain->tensors[i];
        tensors[i] = (st_tensor){t->name, t->dtype, t->n_dims, {0}, t->data};
        memcpy(tensors[i].dim, t->dim, (size_t)t->n_dims * sizeof *t->dim);
        if (!other || strcmp(t->name, other) != 0) continue;
        tensors[i].data = turned = malloc((size_t)t->elems * sizeof *turned);
        assert_non_null(turned);
        for (int64_t e = 0; e < t->elems; e++)
            turned[e / t->dim[1] * t->dim[1] + t->dim[1] - 1 - e % t->dim[1]] =
                ((const float *)(const void *)t->data)[e];
    }
    st_write(path, tensors, w->plain->n_tensors);
    free(turned);
    free(tensors);
}

/* Pieces are held against their columns of the base's product. */
static void test_verify(void **state)
{
    world *w = *state;
    oq_model *model = NULL;
    oq_options *options = NULL;
    char base[616];
    nunchaku_file file = nunchaku_write(w->plain, w->file, NUNCHAKU_INT4, false);
    snprintf(base, sizeof base, "%s.base", w->file);
    for (int right = 0; right < 2; right++) {
        write_base(w, base, right ? NULL : "single_transformer_blocks.0.proj_out.weight");
        assert_int_equal(oq_options_new(w->env, "generate", &options), OQ_OK);
        assert_int_equal(oq_options_set(options, "model", w->folder), OQ_OK);
        assert_int_equal(oq_options_set(options, "transformer", w->file), OQ_OK);
        assert_int_equal(oq_options_set(options, "verify-against", base), OQ_OK);
        const oq_status st = oq_model_open(w->env, options, &model);
        if (right && st != OQ_OK) fail_msg("%s", oq_env_error(w->env));
        if (!right &&
            (st == OQ_OK || !strstr(oq_env_error(w->env), "single_transformer_blocks.0.proj_out.attn")))
            fail_msg("accepted, or not named: %s", oq_env_error(w->env));
        oq_env_clear(w->env);
        oq_model_close(model);
        oq_options_free(options);
    }
    nunchaku_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_int4),        cmocka_unit_test(test_nvfp4),
                                       cmocka_unit_test(test_later_names), cmocka_unit_test(test_adapter),
                                       cmocka_unit_test(test_quantize),    cmocka_unit_test(test_verify)};
    return cmocka_run_group_tests_name("nunchaku's FLUX.1", tests, setup, teardown);
}
