/* test_parity_flux_parts.c -- single networks of the FLUX line against the original implementation (diffusers; float32, CPU):
 * the transformers without and with a guidance embedder (schnell; FLUX.2-dev), both autoencoders there and back. Inputs
 * are given by formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "modules/dit_flux1/dit_flux1.h"
#include "modules/dit_flux2/dit_flux2.h"
#include "modules/vae_kl/vae_kl.h"
#include "parity/network.h"
#include "support/golden_folder.h"
#include "support/scratch.h"

typedef struct part { /* one component of a family's folder, loaded alone */
    oq_env *env;
    oq_ckpt *golden;
    network_part network;
} part;

static void part_open(part *p, const char *family, const char *component, const char *class_name)
{
    char path[1024], folder[600];
    *p = (part){0};
    assert_int_equal(oq_env_new(NULL, &p->env), OQ_OK);
    snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "/tests/data/golden/%s/golden.safetensors", family);
    assert_int_equal(oq_ckpt_open(p->env, path, &p->golden), OQ_OK);
    snprintf(folder, sizeof folder, "%s", scratch_dir(OMNIQ_BINARY_DIR, "parity-flux-parts"));
    snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", family);
    golden_folder_make(p->env, path, folder, &oq_dtype_f32);
    network_part_open(&p->network, p->env, folder, component, class_name);
}

static void part_close(part *p)
{
    network_part_close(&p->network);
    oq_ckpt_close(p->golden);
    oq_env_free(p->env);
}

/* What is traced is compared with golden tensors RUN.KEY, KEY without its prefix. */
static void run_part(part *p, network_call call, const char *run, double bound, size_t expected)
{
    stages kept = {0};
    network_part_run(&p->network, call, p->network.self, &kept);
    size_t compared = 0;
    for (size_t i = 0; i < kept.n; i++) {
        stage *s = &kept.at[i];
        distance d;
        char key[96];
        snprintf(key, sizeof key, "%s", strchr(s->key, '.') + 1);
        memcpy(s->key, key, sizeof key);
        if (!stage_compare(p->golden, run, s, &d)) continue;
        printf("%s%s: %.2e\n", run, s->key, distance_relative(&d));
        if (!(d.n > 0 && distance_relative(&d) <= bound))
            fail_msg("%s%s diverges: %.3e", run, s->key, distance_relative(&d));
        compared++;
    }
    assert_int_equal(compared, expected);
    stages_free(&kept);
}

/* [rows, cols] = scale * u(name, i) */
static oq_status formula(oq_exec *ex, const char *name, float scale, int64_t rows, int64_t cols,
                         oq_tensor *out)
{
    OQ_TRY(oq_tmp(ex, rows, cols, out));
    if (ex->measure) return OQ_OK;
    float *values = malloc((size_t)(rows * cols) * sizeof *values);
    if (!values) abort();
    golden_uniform(name, scale, values, rows * cols);
    const oq_status st = oq_upload(ex, *out, values);
    free(values);
    return st;
}

enum { N_TEXT = 19, ROWS = 6, COLUMNS = 7 };

static oq_status schnell(oq_exec *ex, void *self)
{
    const oq_dit_flux1 *s = self;
    const float t = 0.71f;
    const oq_dit_flux1_moment when = {.t = &t, .n_steps = 1, .guidance = 99};
    oq_dit_flux1_condition c;
    oq_tensor x, text, pooled, y;
    OQ_TRY(oq_dit_flux1_condition_new(ex, s, N_TEXT, ROWS, COLUMNS, 1, &c));
    OQ_TRY(formula(ex, "schnell.hidden_states", 2, ROWS * COLUMNS, s->in_channels, &x));
    OQ_TRY(formula(ex, "schnell.encoder_hidden_states", 2, N_TEXT, s->text_dim, &text));
    OQ_TRY(formula(ex, "schnell.pooled", 2, 1, s->pooled_dim, &pooled));
    OQ_TRY(oq_tmp(ex, ROWS * COLUMNS, s->out_channels, &y));
    OQ_TRY(oq_dit_flux1_condition_run(ex, s, text, pooled, &c, "x"));
    OQ_TRY(oq_dit_flux1_forward(ex, s, &c, x, &when, y, "x"));
    return oq_trace_put(ex, y, NULL, 0, "x.noise_pred");
}

static void test_schnell(void **state)
{
    part p;
    (void)state;
    part_open(&p, "flux1", "transformer_schnell", "FluxTransformer2DModel");
    run_part(&p, schnell, "schnell.", 1e-4, 11);
    part_close(&p);
}

static oq_status dev(oq_exec *ex, void *self)
{
    const oq_dit_flux2 *s = self;
    const oq_dit_flux2_grid grid = {.rows = ROWS, .columns = COLUMNS};
    oq_dit_flux2_condition c;
    oq_tensor x, text, y;
    OQ_TRY(oq_dit_flux2_condition_new(ex, s, N_TEXT, &grid, 1, &c));
    OQ_TRY(formula(ex, "dev.hidden_states", 2, ROWS * COLUMNS, s->in_channels, &x));
    OQ_TRY(formula(ex, "dev.encoder_hidden_states", 2, N_TEXT, s->text_dim, &text));
    OQ_TRY(oq_tmp(ex, ROWS * COLUMNS, s->out_channels, &y));
    OQ_TRY(oq_dit_flux2_condition_run(ex, s, text, &grid, 1, &c, "x"));
    OQ_TRY(oq_dit_flux2_forward(ex, s, &c, x, 0.71f, 3.7f, y, "x"));
    return oq_trace_put(ex, y, NULL, 0, "x.noise_pred");
}

static void test_flux2_dev(void **state)
{
    part p;
    (void)state;
    part_open(&p, "flux2-klein", "transformer_dev", "Flux2Transformer2DModel");
    run_part(&p, dev, "dev.", 1e-4, 14);
    part_close(&p);
}

/* ---- autoencoders -------------------------------------------------------------------------------------- */

enum { HEIGHT = 64, WIDTH = 80 };

static oq_status there_and_back(oq_exec *ex, void *self)
{
    const oq_vae_kl *s = self;
    const int64_t scale = oq_vae_kl_scale(s), h = HEIGHT / scale, w = WIDTH / scale, n = HEIGHT * WIDTH;
    oq_tensor planes, x, moments, mean, y;
    OQ_TRY(formula(ex, "image", 1, 3, n, &planes));
    OQ_TRY(oq_tmp(ex, n, 3, &x));
    OQ_TRY(oq_tmp(ex, h * w, 2 * s->latent_channels, &moments));
    OQ_TRY(oq_tmp(ex, h * w, s->latent_channels, &mean));
    OQ_TRY(oq_tmp(ex, n, 3, &y));
    const int64_t dim[6] = {1, 1, 1, 1, n, 3}, to[6] = {0, 0, 0, 0, 3, 1}, from[6] = {0, 0, 0, 0, 1, n};
    OQ_TRY(oq_permute_forward(ex, x, planes, dim, to, from));
    OQ_TRY(oq_vae_kl_encode(ex, s, x, HEIGHT, WIDTH, 0, moments));
    OQ_TRY(network_trace_planes(ex, moments, "vae.moments"));
    OQ_TRY(oq_copy_forward(ex, mean, oq_tensor_cols(moments, 0, s->latent_channels)));
    OQ_TRY(oq_vae_kl_decode(ex, s, mean, h, w, 0, y, "vae.dec"));
    return network_trace_planes(ex, y, "vae.decoded");
}

static void test_autoencoder_flux1(void **state)
{
    part p;
    (void)state;
    part_open(&p, "flux1", "vae", "AutoencoderKL");
    run_part(&p, there_and_back, "vae.", 1e-4, 4);
    part_close(&p);
}

static void test_autoencoder_flux2(void **state)
{
    part p;
    (void)state;
    part_open(&p, "flux2-klein", "vae", "AutoencoderKLFlux2");
    run_part(&p, there_and_back, "vae.", 1e-4, 4);
    part_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schnell),
        cmocka_unit_test(test_flux2_dev),
        cmocka_unit_test(test_autoencoder_flux1),
        cmocka_unit_test(test_autoencoder_flux2),
    };
    return cmocka_run_group_tests_name("parts of the FLUX line", tests, NULL, NULL);
}
