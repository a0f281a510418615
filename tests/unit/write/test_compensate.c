/* test_compensate.c -- error-compensated rounding: codes, scales and errors of an independent emulation
 * (tests/reference/compensation.py); better than to nearest on every kind of matrix; named ways out where nothing can be
 * compensated; the same bits for any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/env_setup.h"

#include "write/compensate.h"

#include "compensate_golden.h"

#include "base/pool.h"
#include "base/size.h"
#include "format/format_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs, by the emulation's rule ------------------------------------------------------------------- */

static double number(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 58) - 32;
    }
    return sum;
}

/* The sum of x x^T over n_x inputs. */
static float *hessian_of(int64_t n_x, int64_t k, int64_t dead)
{
    double *sum = calloc((size_t)(k * k), sizeof *sum), *raw = malloc((size_t)(k + 1) * sizeof *raw);
    double *x = malloc((size_t)k * sizeof *x);
    float *h = malloc((size_t)(k * k) * sizeof *h);
    uint64_t own_state = 5, state = 11;
    assert_true(sum && raw && x && h);
    for (int64_t t = 0; t < n_x; t++) {
        const double own = number(&own_state);
        for (int64_t c = 0; c <= k; c++) raw[c] = number(&state);
        for (int64_t c = 0; c < k; c++) {
            const double loud = 1 + 3 * (c % 7 == 3) + 5 * (c % 23 == 11);
            x[c] = c == dead ? 0 : (raw[c + 1] + raw[c] + own) * loud / 64;
        }
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < k; j++) sum[i * k + j] += x[i] * x[j];
    }
    for (int64_t i = 0; i < k * k; i++) h[i] = (float)sum[i];
    free(x), free(raw), free(sum);
    return h;
}

static float *weights_of(int64_t n, int64_t k)
{
    float *w = malloc((size_t)(n * k) * sizeof *w);
    uint64_t state = 77;
    assert_non_null(w);
    for (int64_t i = 0; i < n * k; i++) w[i] = (float)(number(&state) / 1024);
    return w;
}

/* ---- a rounded layer ----------------------------------------------------------------------------------- */

typedef struct rounded {
    oq_planes_mut planes;
    int32_t *order;
    oq_compensation_result result;
    oq_status status;
} rounded;

static rounded compensate_damped(oq_env *env, const oq_format *f, oq_column_order how, double damping,
                                 const float *w, const float *h, int64_t n, int64_t k)
{
    const oq_compensation c = {.format = f, .order = how, .damping = damping};
    rounded out = {.order = malloc((size_t)k * sizeof(int32_t))};
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, n, k);
        if (bytes) out.planes.plane[p] = malloc(bytes);
        if (bytes) memset(out.planes.plane[p], 0xa5, bytes);
    }
    out.status = oq_compensate(env, &c, w, h, n, k, &out.planes,
                               how == OQ_COLUMNS_REGROUPED ? out.order : NULL, &out.result);
    return out;
}

static rounded compensate(oq_env *env, const oq_format *f, oq_column_order how, const float *w,
                          const float *h, int64_t n, int64_t k)
{
    return compensate_damped(env, f, how, 0.01, w, h, n, k);
}

static void drop(rounded *r)
{
    for (int p = 0; p < OQ_N_PLANES; p++) free(r->planes.plane[p]);
    free(r->order);
}

static oq_planes view(const rounded *r)
{
    oq_planes out = {{NULL}};
    for (int p = 0; p < OQ_N_PLANES; p++) out.plane[p] = r->planes.plane[p];
    return out;
}

/* Sum over rows of e h e^T, by what readers decode. order NULL: columns as they are. */
static double noise_of(const rounded *r, const oq_format *f, const int32_t *order, const float *w,
                       const float *h, int64_t n, int64_t k)
{
    const oq_planes planes = view(r);
    float *row = malloc((size_t)k * sizeof *row);
    double *e = malloc((size_t)k * sizeof *e), sum = 0;
    for (int64_t i = 0; i < n; i++) {
        f->decode_row(f, row, &planes, i, n, k);
        for (int64_t s = 0; s < k; s++) {
            const int64_t c = order ? order[s] : s;
            e[c] = (double)w[i * k + c] - (double)row[s];
        }
        for (int64_t a = 0; a < k; a++)
            for (int64_t b = 0; b < k; b++) sum += e[a] * e[b] * (double)h[a * k + b];
    }
    free(e), free(row);
    return sum;
}

static void expect_near(double got, double want, double share, const char *what, size_t at)
{
    if (!(fabs(got - want) <= share * fabs(want)))
        fail_msg("case %zu, %s: %.9g, not %.9g", at, what, got, want);
}

/* ---- beside the emulation ------------------------------------------------------------------------------ */

/* Sums in float may decide a tie otherwise than in double, and the rest of that row then follows: one row may differ. */
static void expect_codes(const rounded *r, const struct golden *g, size_t at)
{
    const oq_format *f = g->format;
    const int64_t groups = oq_ceil_div(g->k, f->block_k);
    const float *scale = r->planes.plane[OQ_PLANE_SCALE];
    const uint8_t *zero = r->planes.plane[OQ_PLANE_ZERO];
    const oq_planes planes = view(r);
    float *row = malloc((size_t)g->k * sizeof *row);
    int64_t other = 0;
    for (int64_t i = 0; i < g->n; i++) {
        bool same = true;
        f->decode_row(f, row, &planes, i, g->n, g->k);
        for (int64_t s = 0; s < g->k; s++) {
            const int64_t group = i * groups + s / f->block_k;
            const float z = zero ? (float)oq_int_zero(zero, f->int_bits, i, s / f->block_k, groups)
                                 : (float)(1 << (f->int_bits - 1));
            assert_true(isfinite(scale[group]) && scale[group] != 0.0f);
            same &= fabsf(scale[group] - g->scales[group]) <= 1e-5f * fabsf(g->scales[group]) &&
                    z == (float)g->zeros[group] &&
                    lrintf(row[s] / scale[group] + z) == (long)g->codes[i * g->k + s];
        }
        other += !same;
    }
    free(row);
    if (other > 1)
        fail_msg("case %zu: %lld of %lld rows are not the emulation's", at, (long long)other,
                 (long long)g->n);
}

static void test_emulation(void **state)
{
    for (size_t i = 0; i < OQ_COUNT(golden); i++) {
        const struct golden *g = &golden[i];
        float *h = hessian_of(g->n_x, g->k, g->dead), *w = weights_of(g->n, g->k);
        rounded r = compensate(*state, g->format, g->order, w, h, g->n, g->k);
        assert_int_equal(r.status, OQ_OK);
        assert_int_equal(r.result.how, OQ_COMPENSATED);
        assert_true(r.result.damping == 0.01);
        assert_int_equal(r.result.nearest_rows, 0);
        expect_codes(&r, g, i);
        const bool regrouped = g->order == OQ_COLUMNS_REGROUPED;
        if (regrouped) assert_memory_equal(r.order, g->stored, (size_t)g->k * sizeof *r.order);
        const double noise = noise_of(&r, g->format, regrouped ? r.order : NULL, w, h, g->n, g->k);
        expect_near(noise, g->noise, 0.02, "noise by decoding", i);
        expect_near(r.result.noise, noise, 1e-3, "noise as told", i);
        expect_near(r.result.nearest_noise, g->nearest_noise, 1e-3, "noise of rounding to nearest", i);
        expect_near(r.result.signal, g->signal, 1e-3, "signal", i);
        drop(&r);
        free(w), free(h);
    }
}

/* ---- every format, every order ------------------------------------------------------------------------- */

static void test_better_than_nearest(void **state)
{
    enum { LEN = 6, K = 200, INPUTS = 120 }; /* last groups are short */
    float *h = hessian_of(INPUTS, K, 3), *w = weights_of(LEN, K);
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *f = oq_format_list[i];
        if (!f->int_bits) continue;
        for (int order = OQ_COLUMNS_AS_THEY_ARE; order <= OQ_COLUMNS_REGROUPED; order++) {
            rounded r = compensate(*state, f, (oq_column_order)order, w, h, LEN, K);
            const int32_t *columns = order == OQ_COLUMNS_REGROUPED ? r.order : NULL;
            const double noise = noise_of(&r, f, columns, w, h, LEN, K);
            if (!(noise < 0.7 * r.result.nearest_noise) || r.result.how != OQ_COMPENSATED)
                fail_msg("%s, order %d: %g beside %g to nearest", f->name, order, noise,
                         r.result.nearest_noise);
            bool seen[K] = {false};
            for (int s = 0; columns && s < K; s++) seen[columns[s]] = true;
            for (int c = 0; columns && c < K; c++) assert_true(seen[c]);
            for (int s = 1; columns && s < K; s++)
                assert_true(s % f->block_k == 0 || columns[s] > columns[s - 1]);
            drop(&r);
        }
    }
    free(w), free(h);
}

static void test_few_columns(void **state)
{
    static const int64_t sizes[] = {1, 2, 31, 33};
    for (size_t i = 0; i < OQ_COUNT(sizes); i++) {
        const int64_t k = sizes[i];
        float *h = hessian_of(50, k, -1), *w = weights_of(1, k);
        rounded r = compensate(*state, &oq_format_int2z_g32, OQ_COLUMNS_REGROUPED, w, h, 1, k);
        const double noise = noise_of(&r, &oq_format_int2z_g32, r.order, w, h, 1, k);
        assert_int_equal(r.status, OQ_OK);
        assert_true(noise <= r.result.nearest_noise * (1 + 1e-5));
        drop(&r);
        free(w), free(h);
    }
}

/* ---- where nothing is compensated ---------------------------------------------------------------------- */

/* All planes are encode's. */
static void expect_nearest(oq_env *env, const float *w, const float *h, int64_t n, int64_t k,
                           oq_compensated how)
{
    const oq_format *f = &oq_format_int4z_g32;
    rounded r = compensate(env, f, OQ_COLUMNS_REGROUPED, w, h, n, k), plain = {0};
    assert_int_equal(r.status, OQ_OK);
    assert_int_equal(r.result.how, how);
    assert_true(r.result.noise == 0 && r.result.signal == 0);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, n, k);
        if (bytes) plain.planes.plane[p] = malloc(bytes);
    }
    f->encode(f, &plain.planes, w, n, k);
    for (int p = 0; p < OQ_N_PLANES; p++)
        if (plain.planes.plane[p])
            assert_memory_equal(r.planes.plane[p], plain.planes.plane[p],
                                f->plane_bytes(f, (oq_plane)p, n, k));
    for (int32_t s = 0; s < k; s++) assert_int_equal(r.order[s], s);
    drop(&plain);
    drop(&r);
}

static void test_ways_out(void **state)
{
    enum { LEN = 4, K = 64 };
    float *h = calloc((size_t)K * K, sizeof *h), *w = weights_of(LEN, K);
    expect_nearest(*state, w, h, LEN, K, OQ_NEAREST_NO_INPUTS);
    h[1] = h[K] = 1; /* eigenvalues of both signs, and no diagonal */
    expect_nearest(*state, w, h, LEN, K, OQ_NEAREST_INDEFINITE);
    for (int i = 0; i < K; i++) h[i * K + i] = 1e-6f;
    expect_nearest(*state, w, h, LEN, K, OQ_NEAREST_INDEFINITE);
    h[7] = INFINITY;
    expect_nearest(*state, w, h, LEN, K, OQ_NEAREST_NOT_FINITE);
    h[7] = NAN;
    expect_nearest(*state, w, h, LEN, K, OQ_NEAREST_NOT_FINITE);
    free(w), free(h);
}

/* A matrix that float made slightly indefinite gets more damping, and says so. */
static void test_more_damping(void **state)
{
    enum { LEN = 4, K = 64 };
    float *h = calloc((size_t)K * K, sizeof *h), *w = weights_of(LEN, K);
    for (int i = 0; i < K; i++) h[i * K + i] = 1;
    h[1] = h[K] = 1.05f; /* an eigenvalue of -0.05 */
    rounded r = compensate(*state, &oq_format_int4_g32, OQ_COLUMNS_AS_THEY_ARE, w, h, LEN, K);
    assert_int_equal(r.result.how, OQ_COMPENSATED);
    assert_true(fabs(r.result.damping - 0.1) < 1e-12);
    drop(&r);
    r = compensate_damped(*state, &oq_format_int4_g32, OQ_COLUMNS_AS_THEY_ARE, 0, w, h, LEN,
                          K); /* from none as well */
    assert_int_equal(r.result.how, OQ_COMPENSATED);
    assert_true(r.result.damping > 0.05 && r.result.damping <= 1);
    drop(&r);
    free(w), free(h);
}

/* A weight that is not finite poisons its group and nothing else; its row goes to nearest. */
static void test_not_finite(void **state)
{
    enum { LEN = 3, K = 96 };
    const oq_format *f = &oq_format_int4_g32;
    float *h = hessian_of(200, K, -1), *w = weights_of(LEN, K), row[K];
    w[K + 40] = INFINITY;
    rounded r = compensate(*state, f, OQ_COLUMNS_AS_THEY_ARE, w, h, LEN, K);
    const oq_planes planes = view(&r);
    assert_int_equal(r.result.nearest_rows, 1);
    assert_true(isfinite(r.result.noise) && r.result.noise > 0 && r.result.noise < r.result.nearest_noise);
    for (int i = 0; i < LEN; i++) {
        f->decode_row(f, row, &planes, i, LEN, K);
        for (int c = 0; c < K; c++) assert_int_equal(!isnan(row[c]), !(i == 1 && c / 32 == 1));
    }
    drop(&r);
    free(w), free(h);
}

/* ---- threads ------------------------------------------------------------------------------------------- */

static void test_threads(void **state)
{
    enum { LEN = 70, K = 320 };
    oq_env *one = NULL;
    const oq_env_params params = {.size = sizeof params, .n_threads = 1};
    const oq_format *f = &oq_format_int4z_g64;
    float *h = hessian_of(150, K, -1), *w = weights_of(LEN, K);
    assert_int_equal(oq_env_new(&params, &one), OQ_OK);
    rounded a = compensate(*state, f, OQ_COLUMNS_BY_ACTIVITY, w, h, LEN, K);
    rounded b = compensate(one, f, OQ_COLUMNS_BY_ACTIVITY, w, h, LEN, K);
    for (int p = 0; p < OQ_N_PLANES; p++)
        if (a.planes.plane[p])
            assert_memory_equal(a.planes.plane[p], b.planes.plane[p], f->plane_bytes(f, (oq_plane)p, LEN, K));
    assert_memory_equal(&a.result.noise, &b.result.noise, sizeof a.result.noise);
    drop(&a);
    drop(&b);
    oq_env_free(one);
    free(w), free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_emulation),    cmocka_unit_test(test_better_than_nearest),
        cmocka_unit_test(test_few_columns),  cmocka_unit_test(test_ways_out),
        cmocka_unit_test(test_more_damping), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, env_setup, env_teardown);
}
