/* test_lora_kinds.c -- LoHa and LoKr: the effect is x times the whole difference, computed here by its definition, in each of the
 * forms that run (a product, the whole, a Kronecker product), beside plain and quantized weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define LORA_SCRATCH "lora-kinds"
#include "unit/lora/lora_net.h"

typedef struct factor { /* [n, k], values u(its end) */
    const char *end;
    int64_t n, k;
} factor;

static void write_factors(fixture *f, const char *name, const char *layer, const factor *factors, size_t n,
                          const float *alpha)
{
    static char names[8][200];
    st_tensor t[8];
    char path[600];
    for (size_t i = 0; i < n; i++)
        add_tensor(&t[i], names[i], layer, factors[i].end, factors[i].n, factors[i].k,
                   values(factors[i].end, 0.5f, factors[i].n * factors[i].k));
    if (alpha) add_tensor(&t[n], names[n], layer, ".alpha", 0, 0, alpha);
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    st_write(path, t, n + (alpha != NULL));
    for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)t[i].data);
}

/* a b of the factors with these ends, or the one of `whole`; columns of the result in *k */
static double *multiplied(const factor *factors, size_t n, const char *whole, int64_t *rows, int64_t *k)
{
    const factor *a = NULL, *b = NULL;
    char end[32];
    for (size_t i = 0; i < n; i++) {
        if (strcmp(factors[i].end, whole) == 0) a = &factors[i];
        snprintf(end, sizeof end, "%s_a", whole);
        if (strcmp(factors[i].end, end) == 0) a = &factors[i];
        snprintf(end, sizeof end, "%s_b", whole);
        if (strcmp(factors[i].end, end) == 0) b = &factors[i];
    }
    assert_non_null(a);
    *rows = a->n;
    *k = b ? b->k : a->k;
    double *out = calloc((size_t)(*rows * *k), sizeof *out);
    float *x = values(a->end, 0.5f, a->n * a->k), *y = b ? values(b->end, 0.5f, b->n * b->k) : NULL;
    for (int64_t i = 0; i < *rows; i++)
        for (int64_t j = 0; j < *k; j++) {
            if (!b) out[i * *k + j] = (double)x[i * *k + j];
            for (int64_t p = 0; b && p < b->n; p++)
                out[i * *k + j] += (double)x[i * a->k + p] * (double)y[p * *k + j];
        }
    free(x);
    free(y);
    return out;
}

/* The whole difference [n, k] of a file, by its definition. */
static double *difference_of(const factor *factors, size_t n_factors, bool kron, int64_t n, int64_t k)
{
    int64_t a, b, c, d;
    double *one = multiplied(factors, n_factors, kron ? ".lokr_w1" : ".hada_w1", &a, &b),
           *two = multiplied(factors, n_factors, kron ? ".lokr_w2" : ".hada_w2", &c, &d),
           *out = calloc((size_t)(n * k), sizeof *out);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++)
            out[i * k + j] =
                kron ? one[i / c * b + j / d] * two[i % c * d + j % d] : one[i * b + j] * two[i * d + j];
    free(one);
    free(two);
    return out;
}

/* with - plain equals x times rows [from, from + n) of the difference [all, k], times scale. */
static void check_difference(fixture *f, const oq_linear *with, const oq_linear *plain,
                             const double *difference, int64_t all, int64_t from, bool swapped, double scale)
{
    const int64_t n = with->spec.n, k = with->spec.k;
    float *x = values("x", 1, ROWS * k), *y = values("y", 1, ROWS * n), *base = values("y", 1, ROWS * n);
    double error = 0, length = 0;
    product(f, with, x, y);
    product(f, plain, x, base);
    for (int64_t i = 0; i < ROWS * n; i++) {
        const int64_t row = (from + i % n + (swapped ? all / 2 : 0)) % all;
        double want = 0;
        for (int64_t j = 0; j < k; j++) want += (double)x[i / n * k + j] * difference[row * k + j];
        const double off = (double)y[i] - (double)base[i] - scale * want;
        error += off * off;
        length += scale * want * scale * want;
    }
    if (!(length > 0 && sqrt(error / length) < 1e-5)) fail_msg("relative error %g", sqrt(error / length));
    free(x);
    free(y);
    free(base);
}

enum { N = TINY_DIM, K = TINY_HIDDEN };

static const struct product_kind {
    factor factors[4];
    size_t n;
    bool kron;
    oq_lora_form form;
    float alpha;
    double scale; /* alpha over the rank that it belongs to */
} product_kinds[] = {
    {{{".hada_w1_a", N, 2}, {".hada_w1_b", 2, K}, {".hada_w2_a", N, 2}, {".hada_w2_b", 2, K}},
     4,
     false,
     OQ_LORA_PRODUCT,
     1,
     0.5},
    {{{".hada_w1_a", N, 2}, {".hada_w1_b", 2, K}, {".hada_w2_a", N, 3}, {".hada_w2_b", 3, K}},
     4,
     false,
     OQ_LORA_PRODUCT,
     0,
     1},
    {{{".hada_w1_a", N, 8}, {".hada_w1_b", 8, K}, {".hada_w2_a", N, 8}, {".hada_w2_b", 8, K}},
     4,
     false,
     OQ_LORA_WHOLE,
     4,
     0.5},
    {{{".lokr_w1", 8, 5}, {".lokr_w2", 12, 32}}, 2, true, OQ_LORA_KRONECKER, 7, 1},
    {{{".lokr_w1", 8, 5}, {".lokr_w2_a", 12, 3}, {".lokr_w2_b", 3, 32}}, 3, true, OQ_LORA_KRONECKER, 6, 2},
    {{{".lokr_w1_a", 4, 2}, {".lokr_w1_b", 2, 10}, {".lokr_w2", 24, 16}}, 3, true, OQ_LORA_KRONECKER, 1, 0.5},
    {{{".lokr_w1_a", 4, 2}, {".lokr_w1_b", 2, 10}, {".lokr_w2_a", 24, 4}, {".lokr_w2_b", 4, 16}},
     4,
     true,
     OQ_LORA_KRONECKER,
     1,
     0.25},
};

static void check_product(fixture *f, const struct product_kind *kind, const char *name,
                          const char *quantization)
{
    char path[600];
    net with, plain;
    write_factors(f, "kinds.safetensors", name, kind->factors, kind->n,
                  kind->alpha > 0 ? &kind->alpha : NULL);
    snprintf(path, sizeof path, "%s/kinds.safetensors", f->dir);
    const oq_lora_request request = {path, 0.8};
    net_plan(f, &tiny_module, "{}", quantization, &with);
    net_plan(f, &tiny_module, "{}", quantization, &plain);
    if (net_attach(f, &with, &request, 1) != OQ_OK) fail_msg("%s: %s", name, oq_env_error(f->env));
    assert_int_equal(oq_loras_summary(with.loras, 0).matched, kind->n + (kind->alpha > 0));
    net_load(f, &with);
    net_load(f, &plain);
    const tiny_net *a = with.plan->components[0].self, *b = plain.plan->components[0].self;
    assert_int_equal(a->w2.lora->form, kind->form);
    double *difference = difference_of(kind->factors, kind->n, kind->kron, N, K);
    check_difference(f, &a->w2, &b->w2, difference, N, 0, false, 0.8 * kind->scale);
    free(difference);
    net_free(f, &with);
    net_free(f, &plain);
}

static void test_products_of_products(void **state)
{
    static const char *const names[] = {"lycoris_block_0_w2", "transformer.block.0.w2",
                                        "base_model.model.block.0.w2"};
    for (size_t i = 0; i < OQ_COUNT(product_kinds); i++)
        for (int quantized = 0; quantized < 2; quantized++)
            check_product(*state, &product_kinds[i], names[i % OQ_COUNT(names)], quantized ? "int8" : NULL);
}

/* Thirds of a fused product that are Kronecker products together, rows in the other order. */
static void test_kronecker_of_original_names(void **state)
{
    fixture *f = *state;
    enum { D = 32, F = 4 * D };
    static const factor in[] = {{".lokr_w1", 7, 4}, {".lokr_w2", 32, 8}},
                        last[] = {{".lokr_w1", 4, 4}, {".lokr_w2", 16, 8}},
                        odd[] = {{".lokr_w1", 1, 4}, {".lokr_w2", 64, 8}};
    char path[600];
    const oq_lora_request request = {path, 1};
    net with, plain;
    for (int i = 0; i < 2; i++) {
        write_factors(f, "kron.safetensors",
                      i ? "lycoris_final_layer_adaLN_modulation_1" : "lora_unet_single_blocks_0_linear1",
                      i ? last : in, 2, NULL);
        snprintf(path, sizeof path, "%s/kron.safetensors", f->dir);
        net_plan(f, &oq_module_dit_flux1, LORA_FLUX, NULL, &with);
        net_plan(f, &oq_module_dit_flux1, LORA_FLUX, NULL, &plain);
        if (net_attach(f, &with, &request, 1) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
        net_load(f, &with);
        net_load(f, &plain);
        const oq_dit_flux1 *a = with.plan->components[0].self, *b = plain.plan->components[0].self;
        const int64_t all = i ? 2 * D : 3 * D + F;
        double *difference = difference_of(i ? last : in, 2, true, all, D);
        if (i) {
            check_difference(f, &a->final_mod, &b->final_mod, difference, all, 0, true, 1);
        } else {
            check_difference(f, &a->singles[0].qkv, &b->singles[0].qkv, difference, all, 0, false, 1);
            check_difference(f, &a->singles[0].mlp, &b->singles[0].mlp, difference, all, 3 * D, false, 1);
        }
        free(difference);
        net_free(f, &with);
        net_free(f, &plain);
    }
    write_factors(f, "kron.safetensors", "lycoris_final_layer_adaLN_modulation_1", odd, 2, NULL);
    net_plan(f, &oq_module_dit_flux1, LORA_FLUX, NULL, &with);
    assert_int_equal(net_attach(f, &with, &request, 1), OQ_E_UNSUPPORTED);
    assert_non_null(strstr(oq_env_error(f->env), "is a Kronecker product whose rows have no halves (1)"));
    oq_env_clear(f->env);
    net_free(f, &with);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products_of_products),
                                       cmocka_unit_test(test_kronecker_of_original_names)};
    return cmocka_run_group_tests_name("kinds of adapters", tests, setup, teardown);
}
