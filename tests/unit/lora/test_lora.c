/* test_lora.c -- adapters of low rank: every spelling finds its rows, the effect is scale * alpha / rank * up(down(x)) beside
 * weights of any format, files that do not fit are refused, what fits nothing is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define LORA_SCRATCH "lora"
#include "unit/lora/lora_net.h"

enum { RANK = 4 };

/* ---- files --------------------------------------------------------------------------------------------- */

typedef struct
    entry { /* one adapter of a file; alpha 0: none. Weights of entry i: u("down<i>"), u("up<i>") */
    const char *layer, *down, *up;
    int64_t n, k;
    float alpha;
} entry;

static const char *write_file(fixture *f, const char *name, const entry *entries, size_t n)
{
    static char names[24][200], path[600];
    static float alphas[8];
    st_tensor t[24];
    float *owned[16];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &entries[i];
        char down[16], up[16];
        snprintf(down, sizeof down, "down%zu", i);
        snprintf(up, sizeof up, "up%zu", i);
        owned[2 * i] = values(down, 0.25f, RANK * e->k);
        owned[2 * i + 1] = values(up, 0.25f, e->n * RANK);
        alphas[i] = e->alpha;
        add_tensor(&t[used], names[used], e->layer, e->down, RANK, e->k, owned[2 * i]), used++;
        add_tensor(&t[used], names[used], e->layer, e->up, e->n, RANK, owned[2 * i + 1]), used++;
        if (e->alpha != 0) add_tensor(&t[used], names[used], e->layer, ".alpha", 0, 0, &alphas[i]), used++;
    }
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    st_write(path, t, used);
    for (size_t i = 0; i < 2 * n; i++) free(owned[i]);
    return path;
}

/* What an adapter must add to columns [at, at + n) of a product: rows [from, from + n) of entry `index`. */
typedef struct expected {
    int index;
    int64_t at, n, from, all; /* all: rows of its up */
    double scale;
    bool swapped; /* halves of up changed places */
} expected;

/* with - plain equals the sum of the expected, computed in double, and is nothing elsewhere. */
static void check_effect(fixture *f, const oq_linear *with, const oq_linear *plain, const expected *e,
                         size_t count)
{
    const int64_t n = with->spec.n, k = with->spec.k;
    float *x = values("x", 1, ROWS * k), *y = values("y", 1, ROWS * n), *base = values("y", 1, ROWS * n);
    double *want = calloc((size_t)(ROWS * n), sizeof *want), difference = 0, length = 0;
    product(f, with, x, y);
    product(f, plain, x, base);
    for (size_t c = 0; c < count; c++) {
        char word[16];
        snprintf(word, sizeof word, "down%d", e[c].index);
        float *down = values(word, 0.25f, RANK * k);
        snprintf(word, sizeof word, "up%d", e[c].index);
        float *up = values(word, 0.25f, e[c].all * RANK);
        for (int64_t i = 0; i < ROWS * e[c].n; i++) {
            const int64_t r = i / e[c].n, o = i % e[c].n;
            const int64_t row = (e[c].from + o + (e[c].swapped ? e[c].all / 2 : 0)) % e[c].all;
            double sum = 0;
            for (int q = 0; q < RANK; q++) {
                double inner = 0;
                for (int64_t j = 0; j < k; j++) inner += (double)x[r * k + j] * (double)down[q * k + j];
                sum += inner * (double)up[row * RANK + q];
            }
            want[r * n + e[c].at + o] += e[c].scale * sum;
        }
        free(up);
        free(down);
    }
    for (int64_t i = 0; i < ROWS * n; i++) {
        const double got = (double)y[i] - (double)base[i];
        difference += (got - want[i]) * (got - want[i]);
        length += want[i] * want[i];
    }
    if (!(length > 0 && sqrt(difference / length) < 1e-5))
        fail_msg("relative error %g", sqrt(difference / length));
    free(want);
    free(base);
    free(y);
    free(x);
}

/* The tiny network with and without the files. */
static void check_tiny(fixture *f, const char *quantization, const oq_lora_request *requests, size_t n,
                       bool fused, const expected *e, size_t count)
{
    net with, plain;
    net_plan(f, &tiny_module, "{}", quantization, &with);
    net_plan(f, &tiny_module, "{}", quantization, &plain);
    if (net_attach(f, &with, requests, n) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    net_load(f, &with);
    net_load(f, &plain);
    const tiny_net *a = with.plan->components[0].self, *b = plain.plan->components[0].self;
    check_effect(f, fused ? &a->w13 : &a->w2, fused ? &b->w13 : &b->w2, e, count);
    net_free(f, &with);
    net_free(f, &plain);
}

/* ---- what is found ------------------------------------------------------------------------------------- */

static void test_spellings(void **state)
{
    fixture *f = *state;
    static const char *const rows[][3] = {
        {"transformer.block.0.w3", ".lora_A.weight", ".lora_B.weight"},
        {"block.0.w3", ".lora_A.weight", ".lora_B.weight"},
        {"base_model.model.block.0.w3", ".lora_A.default.weight", ".lora_B.default.weight"},
        {"base_model.model.transformer.block.0.w3", ".lora_A.weight", ".lora_B.weight"},
        {"diffusion_model.block.0.w3", ".lora_down.weight", ".lora_up.weight"},
        {"diffusion_model.model.block.0.w3", ".lora_A.weight", ".lora_B.weight"},
        {"lora_unet_block_0_w3", ".lora_down.weight", ".lora_up.weight"},
        {"lora_transformer_block_0_w3", ".lora_down.weight", ".lora_up.weight"},
        {"transformer.block.0.w3", ".lora.down.weight", ".lora.up.weight"},
        {"transformer.block.0.w3", ".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"},
    };
    const expected e = {0, TINY_HIDDEN, TINY_HIDDEN, 0, TINY_HIDDEN, 0.8 * 2.0 / RANK, false};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const entry row = {rows[i][0], rows[i][1], rows[i][2], TINY_HIDDEN, TINY_DIM, 2};
        const oq_lora_request request = {write_file(f, "spelling.safetensors", &row, 1), 0.8};
        check_tiny(f, NULL, &request, 1, true, &e, 1);
    }
}

/* Beside weights of any format the effect is the same, and proportional to the scale. */
static void test_effect_beside_quantized_weights(void **state)
{
    fixture *f = *state;
    static const char *const methods[] = {NULL, "fp8", "int8", "mxfp8", "mxfp4"};
    static const double scales[] = {0.25, 1, -2};
    const entry row = {
        "transformer.block.0.w2", ".lora_A.weight", ".lora_B.weight", TINY_DIM, TINY_HIDDEN, 0};
    for (size_t m = 0; m < OQ_COUNT(methods); m++)
        for (size_t i = 0; i < OQ_COUNT(scales); i++) {
            const oq_lora_request request = {write_file(f, "effect.safetensors", &row, 1), scales[i]};
            const expected e = {0, 0, TINY_DIM, 0, TINY_DIM, scales[i], false};
            check_tiny(f, methods[m], &request, 1, false, &e, 1);
        }
}

/* Two files at their own scales, of which the first names both parts of a product: effects add up. */
static void test_several_files(void **state)
{
    fixture *f = *state;
    const entry both[] = {{"block.0.w1", ".lora_A.weight", ".lora_B.weight", TINY_HIDDEN, TINY_DIM, 0},
                          {"block.0.w3", ".lora_A.weight", ".lora_B.weight", TINY_HIDDEN, TINY_DIM, 8}};
    const entry second = {
        "lora_unet_block_0_w1", ".lora_down.weight", ".lora_up.weight", TINY_HIDDEN, TINY_DIM, 0};
    char first[600];
    snprintf(first, sizeof first, "%s", write_file(f, "both.safetensors", both, 2));
    const oq_lora_request requests[] = {{first, 1}, {write_file(f, "second.safetensors", &second, 1), 0.5}};
    const expected e[] = {{0, 0, TINY_HIDDEN, 0, TINY_HIDDEN, 1.5, false},
                          {1, TINY_HIDDEN, TINY_HIDDEN, 0, TINY_HIDDEN, 8.0 / RANK, false}};
    check_tiny(f, NULL, requests, 2, true, e, 2);
}

/* Fused thirds and swapped halves of the original release's names. */
static void test_original_names(void **state)
{
    fixture *f = *state;
    enum { D = 32, F = 4 * D };
    const entry entries[] = {
        {"lora_unet_double_blocks_0_img_attn_qkv", ".lora_down.weight", ".lora_up.weight", 3 * D, D, 0},
        {"lora_unet_single_blocks_0_linear1", ".lora_down.weight", ".lora_up.weight", 3 * D + F, D, 0},
        {"diffusion_model.final_layer.adaLN_modulation.1", ".lora_A.weight", ".lora_B.weight", 2 * D, D, 0},
    };
    const oq_lora_request request = {write_file(f, "original.safetensors", entries, 3), 1};
    net with, plain;
    net_plan(f, &oq_module_dit_flux1, LORA_FLUX, NULL, &with);
    net_plan(f, &oq_module_dit_flux1, LORA_FLUX, NULL, &plain);
    if (net_attach(f, &with, &request, 1) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    const oq_lora_summary s = oq_loras_summary(with.loras, 0);
    assert_int_equal(s.layers, 3);
    assert_int_equal(s.keys, 6);
    assert_int_equal(s.matched, 6);
    assert_null(s.first_unmatched);
    net_load(f, &with);
    net_load(f, &plain);
    const oq_dit_flux1 *a = with.plan->components[0].self, *b = plain.plan->components[0].self;
    const expected qkv = {0, 0, 3 * D, 0, 3 * D, 1, false}, in = {1, 0, 3 * D, 0, 3 * D + F, 1, false},
                   mlp = {1, 0, F, 3 * D, 3 * D + F, 1, false}, last = {2, 0, 2 * D, 0, 2 * D, 1, true};
    check_effect(f, &a->doubles[0].image.qkv, &b->doubles[0].image.qkv, &qkv, 1);
    check_effect(f, &a->singles[0].qkv, &b->singles[0].qkv, &in, 1);
    check_effect(f, &a->singles[0].mlp, &b->singles[0].mlp, &mlp, 1);
    check_effect(f, &a->final_mod, &b->final_mod, &last, 1);
    assert_null(a->doubles[0].text.qkv.lora);
    net_free(f, &with);
    net_free(f, &plain);
}

/* ---- what is refused, what is counted ------------------------------------------------------------------ */

static void test_refusals(void **state)
{
    fixture *f = *state;
#define W2 TINY_DIM, TINY_HIDDEN, 0
    static const struct {
        entry e;
        oq_status status;
        const char *text;
    } rows[] = {
        {{"transformer.block.9.w2", ".lora_A.weight", ".lora_B.weight", W2},
         OQ_E_FORMAT,
         "none of its 2 tensors fits a layer of this model (the first is "
         "'transformer.block.9.w2.lora_A.weight')"},
        {{"transformer.block.0.w2", ".lora_A.weight", ".lora_magnitude_vector", W2},
         OQ_E_UNSUPPORTED,
         "'transformer.block.0.w2.lora_magnitude_vector' belongs to an adapter of another kind (DoRA)"},
        {{"transformer.block.0.w2", ".dora_scale", ".lora_up.weight", W2}, OQ_E_UNSUPPORTED, "(DoRA)"},
        {{"lora_unet_block_0_w2", ".hada_w1_b", ".hada_w1_a", W2},
         OQ_E_FORMAT,
         "'lora_unet_block_0_w2' has no hada_w2_a"},
        {{"lora_unet_block_0_w2", ".hada_t1", ".hada_w1_a", W2}, OQ_E_UNSUPPORTED, "(LoHa of convolutions)"},
        {{"lora_unet_block_0_w2", ".lokr_t2", ".lokr_w1", W2}, OQ_E_UNSUPPORTED, "(LoKr of convolutions)"},
        {{"lora_unet_block_0_w2", ".lokr_w1", ".lokr_w2", W2},
         OQ_E_FORMAT,
         "'lora_unet_block_0_w2' is [4,160] by [96,4] of a Kronecker product, the layer is [96,160]"},
        {{"lora_unet_block_0_w2", ".lokr_w1", ".lora_up.weight", W2},
         OQ_E_FORMAT,
         "is an adapter of several kinds"},
        {{"transformer.block.0.w2", ".lora_A.weight", ".lora_B.weight", TINY_DIM, TINY_DIM, 0},
         OQ_E_FORMAT,
         "'transformer.block.0.w2' is [96,4] after [4,96], the layer takes [96,r] after [r,160]"},
        {{"transformer.block.0.w2", ".lora_A.weight", ".other", W2},
         OQ_E_FORMAT,
         "'transformer.block.0.w2' has no up (lora_B) weight"},
        {{"transformer.block.0.w2", ".lora_A.weight", ".lora_down.weight", W2}, OQ_E_FORMAT, "are the same"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const oq_lora_request request = {write_file(f, "refused.safetensors", &rows[i].e, 1), 1};
        net n;
        net_plan(f, &tiny_module, "{}", NULL, &n);
        const oq_status st = net_attach(f, &n, &request, 1);
        if (st != rows[i].status || !strstr(oq_env_error(f->env), rows[i].text))
            fail_msg("%zu: %s: %s", i, oq_status_name(st), oq_env_error(f->env));
        net_free(f, &n);
    }
    oq_env_clear(f->env);
}

/* One file that means the same rows twice, in two spellings or alone and within a fused product, would change them twice. */
static void test_rows_twice_in_one_file(void **state)
{
    static const struct {
        entry twice[2];
        const char *error;
    } rows[] = {
        {{{"lora_unet_block_0_w2", ".lora_down.weight", ".lora_up.weight", W2},
          {"transformer.block.0.w2", ".lora_A.weight", ".lora_B.weight", W2}},
         "'lora_unet_block_0_w2' and 'transformer.block.0.w2' mean the same rows of layer 'block.0.w2'"},
        {{{"lora_unet_block_0_w13", ".lora_down.weight", ".lora_up.weight", 2 * TINY_HIDDEN, TINY_DIM, 0},
          {"transformer.block.0.w3", ".lora_A.weight", ".lora_B.weight", TINY_HIDDEN, TINY_DIM, 0}},
         "'lora_unet_block_0_w13' and 'transformer.block.0.w3' mean the same rows of layer 'block.0.w13'"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const oq_lora_request request = {write_file(f, "twice.safetensors", rows[i].twice, 2), 1};
        net n;
        net_plan(f, &tiny_module, "{}", NULL, &n);
        assert_int_equal(net_attach(f, &n, &request, 1), OQ_E_FORMAT);
        if (!strstr(oq_env_error(f->env), rows[i].error)) fail_msg("%s", oq_env_error(f->env));
        net_free(f, &n);
        oq_env_clear(f->env);
    }
}

/* A rank of 0 is told with the tensor's shape. */
static void test_rank_of_nothing(void **state)
{
    fixture *f = *state;
    char path[1100];
    snprintf(path, sizeof path, "%s/rank0.safetensors", f->dir);
    const st_tensor tensors[] = {
        {"transformer.block.0.w2.lora_A.weight", &oq_dtype_f32, 2, {0, TINY_HIDDEN}, NULL},
        {"transformer.block.0.w2.lora_B.weight", &oq_dtype_f32, 2, {TINY_DIM, 0}, NULL},
    };
    st_write(path, tensors, 2);
    const oq_lora_request request = {path, 1};
    net n;
    net_plan(f, &tiny_module, "{}", NULL, &n);
    assert_int_equal(net_attach(f, &n, &request, 1), OQ_E_FORMAT);
    assert_non_null(strstr(oq_env_error(f->env),
                           "lora_A.weight' is [0, 160] of F32; a matrix of a floating type "
                           "with a rank of at least 1 is needed"));
    net_free(f, &n);
    oq_env_clear(f->env);
}

/* Puts a text into a file's metadata. */
static void put_metadata(const char *path, const char *key, const char *text)
{
    static char old[1 << 16], header[1 << 12];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t bytes = fread(old, 1, sizeof old, file);
    uint64_t n = 0;
    fclose(file);
    memcpy(&n, old, sizeof n);
    uint64_t more =
        (uint64_t)snprintf(header, sizeof header, "{\"__metadata__\":{\"%s\":\"%s\"},", key, text);
    while ((more + n - 1) % 8) header[more++] = ' ';
    const uint64_t whole = more + n - 1;
    file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&whole, sizeof whole, 1, file);
    fwrite(header, 1, (size_t)more, file);
    fwrite(old + 9, 1, bytes - 9, file);
    assert_int_equal(fclose(file), 0);
}

/* diffusers keeps alpha in the file's metadata. */
static void test_alpha_in_metadata(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"{\\\"transformer.r\\\":4,\\\"transformer.lora_alpha\\\":8}", NULL},
        {"{\\\"transformer.lora_alpha\\\":\\\"x\\\"}",
         "'transformer.lora_alpha' of its lora_adapter_metadata is a string, want a number"},
        {"{\\\"transformer.alpha_pattern\\\":{\\\"w2\\\":1}}",
         "'transformer.alpha_pattern' of its lora_adapter_metadata is not supported"},
        {"{\\\"transformer.init_lora_weights\\\":\\\"pissa_niter_16\\\"}",
         "is \"pissa_niter_16\": it goes with weights that were changed when its training began"},
        {"{\\\"transformer.r\\\":4,\\\"transformer.lora_alpha\\\":8,\\\"text_encoder.lora_alpha\\\":3,"
         "\\\"transformer.init_lora_weights\\\":\\\"gaussian\\\"}",
         NULL},
        {"{\\\"transformer.fan_in_fan_out\\\":true}", "'transformer.fan_in_fan_out'"},
        {"{\\\"transformer.bias\\\":\\\"all\\\"}", "is \"all\", want \"none\""},
        {"{", "lora_adapter_metadata: not valid JSON"},
    };
    const entry row = {
        "transformer.block.0.w3", ".lora_A.weight", ".lora_B.weight", TINY_HIDDEN, TINY_DIM, 0};
    const expected e = {0, TINY_HIDDEN, TINY_HIDDEN, 0, TINY_HIDDEN, 8.0 / RANK, false};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const oq_lora_request request = {write_file(f, "metadata.safetensors", &row, 1), 1};
        put_metadata(request.path, "lora_adapter_metadata", rows[i].text);
        if (!rows[i].error) {
            check_tiny(f, NULL, &request, 1, true, &e, 1);
            continue;
        }
        net n;
        net_plan(f, &tiny_module, "{}", NULL, &n);
        assert_int_not_equal(net_attach(f, &n, &request, 1), OQ_OK);
        if (!strstr(oq_env_error(f->env), rows[i].error)) fail_msg("%zu: %s", i, oq_env_error(f->env));
        net_free(f, &n);
    }
    oq_env_clear(f->env);
}

static void test_unmatched_keys_are_counted(void **state)
{
    fixture *f = *state;
    const entry entries[] = {
        {"transformer.block.0.w2", ".lora_A.weight", ".lora_B.weight", TINY_DIM, TINY_HIDDEN, 4},
        {"transformer.block.7.w2", ".lora_A.weight", ".lora_B.weight", TINY_DIM, TINY_HIDDEN, 0}};
    const oq_lora_request request = {write_file(f, "partly.safetensors", entries, 2), 1};
    net n;
    net_plan(f, &tiny_module, "{}", NULL, &n);
    const size_t bytes = n.plan->weights_bytes;
    assert_int_equal(net_attach(f, &n, &request, 1), OQ_OK);
    const oq_lora_summary s = oq_loras_summary(n.loras, 0);
    assert_int_equal(s.layers, 1);
    assert_int_equal(s.matched, 3);
    assert_int_equal(s.keys, 5);
    assert_string_equal(s.first_unmatched, "transformer.block.7.w2.lora_A.weight");
    assert_int_equal(n.plan->n_warnings, 1);
    assert_non_null(
        strstr(n.plan->warnings[0], "3 of 5 tensors fit; the others (first 'transformer.block.7.w2."));
    assert_true(n.plan->weights_bytes >= bytes + 4 * RANK * (TINY_DIM + TINY_HIDDEN));
    net_free(f, &n);
}

static void test_requests(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *text, *path;
        double scale;
    } rows[] = {{"a.safetensors", "a.safetensors", 1},
                {"a.safetensors:0.5", "a.safetensors", 0.5},
                {"x:y/a", "x:y/a", 1},
                {"a:-1e-1", "a", -0.1}};
    oq_lora_request r;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", rows[i].text);
        assert_int_equal(oq_lora_parse(f->env, text, &r), OQ_OK);
        assert_string_equal(r.path, rows[i].path);
        assert_true(fabs(r.scale - rows[i].scale) < 1e-15);
    }
    char wrong[] = "a.safetensors:big";
    assert_int_equal(oq_lora_parse(f->env, wrong, &r), OQ_E_ARG);
    assert_string_equal(oq_env_error(f->env),
                        "--lora 'a.safetensors:big': 'big' is no scale (FILE or FILE:SCALE)");
    oq_env_clear(f->env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_effect_beside_quantized_weights),
        cmocka_unit_test(test_several_files),
        cmocka_unit_test(test_original_names),

        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unmatched_keys_are_counted),
        cmocka_unit_test(test_rank_of_nothing),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_rows_twice_in_one_file),
        cmocka_unit_test(test_alpha_in_metadata),
    };
    return cmocka_run_group_tests_name("lora", tests, setup, teardown);
}
