/* test_modules.c -- promises of src/modules: configurations are read or refused by key and value, and what is
 * declared is what the published checkpoints hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "modules/dit_flux1/dit_flux1.h"
#include "modules/dit_flux2/dit_flux2.h"
#include "modules/dit_qwen_image/dit_qwen_image.h"
#include "modules/dit_wan/dit_wan.h"
#include "modules/dit_zimage/dit_zimage.h"
#include "modules/te_clip/te_clip.h"
#include "modules/te_qwen3/te_qwen3.h"
#include "modules/te_t5/te_t5.h"
#include "modules/vae_kl/vae_kl.h"
#include "modules/vae_wan/vae_wan.h"
#include "pipelines/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA    OMNIQ_SOURCE_DIR "/tests/data/modules/"
#define ZIMAGE  DATA "z_image_transformer.json"
#define QWEN3   DATA "qwen3_4b.json"
#define VAE     DATA "flux_vae.json"
#define QWENI   DATA "qwen_image_transformer.json"
#define FLUX1   DATA "flux1_dev_transformer.json"
#define KLEIN   DATA "flux2_klein_4b_transformer.json"
#define T5      DATA "t5_xxl.json"
#define CLIP    DATA "clip_l.json"
#define VAE2    DATA "flux2_vae.json"
#define QWEN25  DATA "qwen25_vl_7b.json"
#define MISTRAL DATA "mistral_small_24b.json"

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

static oq_json *read_config(oq_env *env, const char *path)
{
    oq_json *config = NULL;
    if (oq_json_parse_file(env, path, 1 << 20, &config) != OQ_OK) fail_msg("%s", oq_env_error(env));
    return config;
}

/* ---- what is declared ---------------------------------------------------------------------------------- */

typedef struct contents {
    int64_t params, tensors, quantizable;
} contents;

static void count_linear(const oq_linear *l, contents *c)
{
    int64_t n = 0;
    for (int i = 0; i < l->n_parts; i++) n += l->parts[i].n;
    assert_int_equal(n, l->spec.n);
    c->params += n * l->spec.k + (l->has_bias ? n : 0);
    c->tensors += l->n_parts * (l->has_bias ? 2 : 1);
    c->quantizable += l->keep == NULL;
}

static contents count(const oq_builder *b)
{
    contents c = {0};
    for (size_t i = 0; i < b->n_items; i++) {
        const oq_item *item = &b->items[i];
        switch (item->kind) {
        case OQ_ITEM_LINEAR:
            count_linear(item->u.linear, &c);
            break;
        case OQ_ITEM_VECTOR:
            c.params += item->u.vector->n, c.tensors++;
            break;
        case OQ_ITEM_TABLE:
            c.params += item->u.table->rows * item->u.table->cols, c.tensors++;
            break;
        case OQ_ITEM_CONV2D: {
            const oq_conv2d_spec *s = &item->u.conv2d->spec;
            c.params += s->c_out * s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw + s->c_out;
            c.tensors += 2;
            break;
        }
        case OQ_ITEM_ATTENTION:
            break;
        }
    }
    return c;
}

static contents declare(oq_env *env, const oq_module_type *module, const char *path)
{
    oq_json *config = read_config(env, path);
    void *self = calloc(1, module->self_bytes);
    char no_scope[] = "";
    oq_arena arena;
    oq_arena_init(&arena, env);
    oq_builder b = {.env = env, .arena = &arena, .component = "x", .scope = no_scope};
    if (module->describe(env, config, self) != OQ_OK || module->declare(&b, self) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    assert_string_equal(b.scope, "");
    const contents c = count(&b);
    oq_arena_deinit(&arena);
    free(self);
    oq_json_free(config);
    return c;
}

/* Numbers of the published models, from their own classes' parameter lists. */
static void test_published_models_are_whole(void **state)
{
    const contents dit = declare(*state, &oq_module_dit_zimage, ZIMAGE);
    assert_int_equal(dit.params, 6154908736);
    assert_int_equal(dit.tensors, 521);
    assert_int_equal(dit.quantizable, 34 * 4);
    const contents encoder = declare(*state, &oq_module_te_qwen3, QWEN3);
    assert_int_equal(encoder.params, 4022468096);
    assert_int_equal(encoder.tensors, 398);
    assert_int_equal(encoder.quantizable, 36 * 4);
    const contents vae = declare(*state, &oq_module_vae_kl, VAE);
    assert_int_equal(vae.params, 83819683);
    assert_int_equal(vae.tensors, 244);
    assert_int_equal(vae.quantizable, 0);
}

static void test_published_qwen_image_is_whole(void **state)
{
    const contents dit = declare(*state, &oq_module_dit_qwen_image, QWENI);
    assert_int_equal(dit.params, 20430401088);
    assert_int_equal(dit.tensors, 1933);
    assert_int_equal(dit.quantizable, 60 * 8);
    const contents encoder = declare(*state, &oq_module_te_qwen25_vl, QWEN25);
    assert_int_equal(encoder.params, 7070619136);
    assert_int_equal(encoder.tensors, 338);
    assert_int_equal(encoder.quantizable, 28 * 4);
}

static void test_published_wan_is_whole(void **state)
{
    static const struct {
        const char *path;
        int64_t params, tensors, layers;
    } rows[] = {{DATA "wan_t2v_14b.json", 14288491584, 1095, 40},
                {DATA "wan_i2v_14b.json", 14288901184, 1095, 40}, /* 20 more channels of 2 x 2 to 5120 */
                {DATA "wan_ti2v_5b.json", 4999787712, 825, 30}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const contents dit = declare(*state, &oq_module_dit_wan, rows[i].path);
        assert_int_equal(dit.params, rows[i].params);
        assert_int_equal(dit.tensors, rows[i].tensors);
        assert_int_equal(dit.quantizable, rows[i].layers * 8);
    }
}

static void test_published_video_autoencoders_are_whole(void **state)
{
    static const struct {
        const char *path;
        int64_t params, tensors;
    } rows[] = {{DATA "qwen_image_vae.json", 126892531, 194},
                {DATA "wan21_vae.json", 126892531, 194},
                {DATA "wan22_vae.json", 704688668, 196}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const contents vae = declare(*state, &oq_module_vae_wan, rows[i].path);
        assert_int_equal(vae.params, rows[i].params);
        assert_int_equal(vae.tensors, rows[i].tensors);
        assert_int_equal(vae.quantizable, 0);
    }
}

static void check_contents(oq_env *env, const oq_module_type *module, const char *path, contents want)
{
    const contents have = declare(env, module, path);
    assert_int_equal(have.params, want.params);
    assert_int_equal(have.tensors, want.tensors);
    assert_int_equal(have.quantizable, want.quantizable);
}

static void test_published_flux_is_whole(void **state)
{
    oq_env *env = *state;
    const int64_t double_layers = 8, flux1_single = 3, flux2_single = 2;
    check_contents(env, &oq_module_dit_flux1, FLUX1,
                   (contents){11901408320, 1160, 19 * double_layers + 38 * flux1_single});
    check_contents(env, &oq_module_dit_flux1, DATA "flux1_schnell_transformer.json",
                   (contents){11891178560, 1156, 19 * double_layers + 38 * flux1_single});
    check_contents(env, &oq_module_dit_flux2, KLEIN,
                   (contents){3875544576, 169, 5 * double_layers + 20 * flux2_single});
    check_contents(env, &oq_module_dit_flux2, DATA "flux2_klein_9b_transformer.json",
                   (contents){9078581248, 233, 8 * double_layers + 24 * flux2_single});
    check_contents(env, &oq_module_dit_flux2, DATA "flux2_dev_transformer.json",
                   (contents){32223281152, 331, 8 * double_layers + 48 * flux2_single});
    check_contents(env, &oq_module_te_mistral, MISTRAL, (contents){22901314560, 362, 40 * 4});
    check_contents(env, &oq_module_te_t5, DATA "umt5_xxl.json", (contents){5680910336, 242, 24 * 4});
    check_contents(env, &oq_module_te_qwen3, DATA "qwen3_8b.json", (contents){7568405504, 398, 36 * 4});
    check_contents(env, &oq_module_te_t5, T5, (contents){4762310656, 219, 24 * 4});
    check_contents(env, &oq_module_te_clip, CLIP, (contents){123060480, 196, 12 * 4});
    check_contents(env, &oq_module_vae_kl_flux2, VAE2, (contents){84046371, 250, 0});
}

static void test_toybox_is_whole(void **state)
{
    static const char *const folders[] = {"transformer", "text_encoder", "vae"};
    static const oq_module_type *const modules[] = {&oq_module_dit_zimage, &oq_module_te_qwen3,
                                                    &oq_module_vae_kl};
    static const int64_t tensors[] = {223, 35, 184};
    for (size_t i = 0; i < OQ_COUNT(folders); i++) {
        char path[512];
        snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "/models/toybox/%s/config.json", folders[i]);
        assert_int_equal(declare(*state, modules[i], path).tensors, tensors[i]);
    }
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

typedef struct refusal {
    const oq_module_type *module;
    const char *path, *key, *value; /* value NULL: the key is removed */
    oq_status status;
    const char *text;
} refusal;

#define Z &oq_module_dit_zimage, ZIMAGE
#define Q &oq_module_te_qwen3, QWEN3
#define V &oq_module_vae_kl, VAE
#define F &oq_module_dit_flux1, FLUX1
#define K &oq_module_dit_flux2, KLEIN
#define E &oq_module_te_t5, T5
#define C &oq_module_te_clip, CLIP
#define B &oq_module_vae_kl_flux2, VAE2
#define I &oq_module_dit_qwen_image, QWENI
#define T &oq_module_te_qwen25_vl, QWEN25
#define W &oq_module_vae_wan, DATA "wan22_vae.json"
#define X &oq_module_dit_wan, DATA "wan_t2v_14b.json"
static const refusal refusals[] = {
    {Z, "siglip_feat_dim", "1152", OQ_E_UNSUPPORTED,
     "config.json of ZImageTransformer2DModel: 'siglip_feat_dim' is 1152, only null is supported"},
    {Z, "all_patch_size", "[2,4]", OQ_E_UNSUPPORTED, "'all_patch_size' is [2, 4], only [2] is supported"},
    {Z, "all_f_patch_size", "[2]", OQ_E_UNSUPPORTED, "'all_f_patch_size' is [2], only [1] is supported"},
    {Z, "n_kv_heads", "10", OQ_E_UNSUPPORTED, "'n_kv_heads' is 10, only 'n_heads' (30) is supported"},
    {Z, "axes_dims", "[32,48,47]", OQ_E_FORMAT, "'axes_dims' holds the odd 47"},
    {Z, "axes_dims", "[32,48,46]", OQ_E_FORMAT,
     "3 'axes_dims' with sum 126 do not fit 30 heads over 'dim' 3840"},
    {Z, "axes_dims", "[64,64]", OQ_E_FORMAT, "2 'axes_dims' with sum 128 do not fit"},
    {Z, "axes_dims", "[32,32,32,32]", OQ_E_UNSUPPORTED, "'axes_dims' has 4 entries, 1 to 3 are supported"},
    {Z, "axes_dims", "\"x\"", OQ_E_FORMAT, "'axes_dims' is a string, an array of whole numbers is needed"},
    {Z, "dim", "0", OQ_E_FORMAT, "'dim' is 0, it must be between 8 and 131072"},
    {Z, "dim", "3840.5", OQ_E_FORMAT, "'dim' is a number, a whole number is needed"},
    {Z, "dim", "true", OQ_E_FORMAT, "a whole number is needed"},
    {Z, "n_heads", "7", OQ_E_UNSUPPORTED, "'n_kv_heads' is 30, only 'n_heads' (7) is supported"},
    {Z, "norm_eps", "\"1\"", OQ_E_FORMAT, "'norm_eps' is a string, a number is needed"},
    {Z, "qk_norm", "1", OQ_E_FORMAT, "'qk_norm' is a whole number, true or false is needed"},
    {Z, "controlnet_layers", "[0]", OQ_E_UNSUPPORTED, "'controlnet_layers' is [0], which is not known here"},
    {Q, "attention_bias", "true", OQ_E_UNSUPPORTED,
     "config.json of Qwen3: 'attention_bias' is true, only false is supported"},
    {Q, "use_sliding_window", "true", OQ_E_UNSUPPORTED,
     "'use_sliding_window' is true, only false is supported"},
    {Q, "hidden_act", "\"gelu\"", OQ_E_UNSUPPORTED, "'hidden_act' is \"gelu\", only \"silu\" is supported"},
    {Q, "model_type", "\"qwen3_moe\"", OQ_E_UNSUPPORTED,
     "'model_type' is \"qwen3_moe\", only \"qwen3\" is supported"},
    {Q, "rope_scaling", "{\"type\":\"yarn\"}", OQ_E_UNSUPPORTED,
     "'rope_scaling' is {\"type\": \"yarn\"}, only null is supported"},
    {Q, "rope_parameters", "{\"rope_type\":\"yarn\",\"rope_theta\":1}", OQ_E_UNSUPPORTED,
     "'rope_parameters.rope_type' is 'yarn', only 'default' is supported"},
    {Q, "rope_parameters", "7", OQ_E_FORMAT, "'rope_parameters' is a whole number, an object is needed"},
    {Q, "rope_theta", NULL, OQ_E_FORMAT, "'rope_theta' is missing"},
    {Q, "layer_types", "[\"sliding_attention\"]", OQ_E_UNSUPPORTED,
     "'layer_types[0]' is 'sliding_attention', only 'full_attention' is supported"},
    {Q, "hidden_size", NULL, OQ_E_FORMAT, "'hidden_size' is missing"},
    {Q, "num_key_value_heads", "5", OQ_E_FORMAT,
     "32 heads over 5 key heads of width 128 do not fit together"},
    {Q, "head_dim", "127", OQ_E_FORMAT, "of width 127 do not fit together"},
    {Q, "num_experts", "8", OQ_E_UNSUPPORTED, "'num_experts' is 8, which is not known here"},
    {I, "zero_cond_t", "1", OQ_E_FORMAT,
     "config.json of QwenImageTransformer2DModel: 'zero_cond_t' is a whole number, true or false is needed"},
    {I, "use_layer3d_rope", "true", OQ_E_UNSUPPORTED,
     "config.json of QwenImageTransformer2DModel: 'use_layer3d_rope' is true, only false is supported"},
    {I, "patch_size", "1", OQ_E_UNSUPPORTED, "'patch_size' is 1, only 2 is supported"},
    {I, "axes_dims_rope", "[16,56,54]", OQ_E_FORMAT,
     "3 'axes_dims_rope' with sum 126 do not fit 'attention_head_dim' 128"},
    {I, "axes_dims_rope", "[16,55,57]", OQ_E_FORMAT, "'axes_dims_rope' holds the odd 55"},
    {T, "model_type", "\"qwen3_vl\"", OQ_E_UNSUPPORTED,
     "config.json of Qwen2.5-VL: 'model_type' is 'qwen3_vl', only 'qwen2_5_vl_text' is supported"},
    {T, "rope_scaling", "{\"type\":\"yarn\"}", OQ_E_UNSUPPORTED,
     "'rope_scaling.type' is 'yarn', only 'default' and 'mrope' are supported"},
    {T, "rope_scaling", "1", OQ_E_FORMAT, "'rope_scaling' is a whole number, an object is needed"},
    {T, "rope_theta", NULL, OQ_E_FORMAT, "'rope_theta' is missing"},
    {T, "num_key_value_heads", "5", OQ_E_FORMAT,
     "28 heads over 5 key heads of width 128 do not fit together"},
    {T, "use_sliding_window", "true", OQ_E_UNSUPPORTED, "'use_sliding_window' is true"},
    {X, "image_dim", "1280", OQ_E_UNSUPPORTED,
     "config.json of WanTransformer3DModel: 'image_dim' is 1280, only null is supported"},
    {X, "qk_norm", "\"rms_norm\"", OQ_E_UNSUPPORTED,
     "'qk_norm' is \"rms_norm\", only \"rms_norm_across_heads\" is supported"},
    {X, "patch_size", "[2,2,2]", OQ_E_UNSUPPORTED, "'patch_size' is [2, 2, 2], only [1,2,2] is supported"},
    {X, "attention_head_dim", "127", OQ_E_FORMAT, "'attention_head_dim' 127 and 'freq_dim' 256 must be even"},
    {W, "attn_scales", "[0.5]", OQ_E_UNSUPPORTED, "'attn_scales' is [0.5], only [] is supported"},
    {W, "dim_mult", "[1,3,4,4]", OQ_E_UNSUPPORTED, "a shortcut from 1 to 3 channels by 4 is not supported"},
    {W, "temperal_downsample", "[true]", OQ_E_FORMAT,
     "'temperal_downsample' has 1 entries, 'dim_mult' has 4"},
    {W, "temperal_downsample", "[1,0,0]", OQ_E_FORMAT,
     "'temperal_downsample[0]' is a whole number, true or false is needed"},
    {W, "z_dim", "16", OQ_E_FORMAT, "'latents_mean' has 48 numbers, 'z_dim' is 16"},
    {W, "latents_std", NULL, OQ_E_FORMAT, "'latents_std' is missing, 'z_dim' is 48"},
    {W, "patch_size", "1", OQ_E_UNSUPPORTED, "12 channels in and 12 out of patches of 1: pictures have 3"},
    {W, "scale_factor_spatial", "8", OQ_E_FORMAT, "'scale_factor_spatial' is 8, the blocks give 16"},
    {W, "scale_factor_temporal", "2", OQ_E_FORMAT, "'scale_factor_temporal' is 2, the blocks give 4"},
    {F, "axes_dims_rope", "[16,56,54]", OQ_E_FORMAT,
     "config.json of FluxTransformer2DModel: 3 'axes_dims_rope' with sum 126 do not fit 'attention_head_dim' "
     "128"},
    {F, "axes_dims_rope", "[16,55,57]", OQ_E_FORMAT, "'axes_dims_rope' holds the odd 55"},
    {F, "patch_size", "2", OQ_E_UNSUPPORTED, "'patch_size' is 2, only 1 is supported"},
    {K, "axes_dims_rope", "[64,64]", OQ_E_FORMAT,
     "config.json of Flux2Transformer2DModel: 2 'axes_dims_rope' with sum 128 do not fit "
     "'attention_head_dim' 128"},
    {K, "axes_dims_rope", "[31,33,32,32]", OQ_E_FORMAT, "'axes_dims_rope' holds the odd 31"},
    {K, "timestep_guidance_channels", "128", OQ_E_UNSUPPORTED,
     "'timestep_guidance_channels' is 128, only 256"},
    {K, "mlp_ratio", "0", OQ_E_FORMAT, "'mlp_ratio' is 0, it must be between 0.01 and 64"},
    {E, "feed_forward_proj", "\"relu\"", OQ_E_UNSUPPORTED,
     "config.json of T5: 'feed_forward_proj' is \"relu\", only \"gated-gelu\" is supported"},
    {E, "model_type", "\"mt5\"", OQ_E_UNSUPPORTED,
     "'model_type' is 'mt5', only 't5' and 'umt5' are supported"},
    {E, "relative_attention_num_buckets", "6", OQ_E_FORMAT, "6 relative_attention_num_buckets do not fit"},
    {E, "is_decoder", "true", OQ_E_UNSUPPORTED, "'is_decoder' is true, only false is supported"},
    {C, "hidden_act", "\"relu\"", OQ_E_UNSUPPORTED,
     "config.json of CLIP: 'hidden_act' is 'relu', only 'quick_gelu' and 'gelu' are supported"},
    {C, "num_attention_heads", "7", OQ_E_FORMAT, "7 heads do not divide 'hidden_size' 768"},
    {B, "patch_size", "[4,4]", OQ_E_UNSUPPORTED, "'patch_size' is [4, 4], only [2,2] is supported"},
    {B, "decoder_block_out_channels", "[32,64]", OQ_E_FORMAT,
     "'decoder_block_out_channels' has 2 entries, 'block_out_channels' has 4"},
    {B, "scaling_factor", "0.3", OQ_E_UNSUPPORTED, "'scaling_factor' is 0.3, which is not known here"},
    {V, "act_fn", "\"mish\"", OQ_E_UNSUPPORTED,
     "config.json of AutoencoderKL: 'act_fn' is \"mish\", only \"silu\" is supported"},
    {V, "latents_mean", "[0.5]", OQ_E_UNSUPPORTED, "'latents_mean' is [0.5], only null is supported"},
    {V, "norm_num_groups", "48", OQ_E_FORMAT, "'norm_num_groups' 48 does not divide 128 channels"},
    {V, "block_out_channels", "[]", OQ_E_UNSUPPORTED, "'block_out_channels' has 0 entries"},
    {V, "block_out_channels", "[128,256,512]", OQ_E_FORMAT,
     "'down_block_types' has 4 entries, 'block_out_channels' has 3"},
    {V, "up_block_types",
     "[\"UpDecoderBlock2D\",\"AttnUpDecoderBlock2D\",\"UpDecoderBlock2D\",\"UpDecoderBlock2D\"]",
     OQ_E_UNSUPPORTED, "'up_block_types[1]' is 'AttnUpDecoderBlock2D', only 'UpDecoderBlock2D' is supported"},
    {V, "scaling_factor", "0", OQ_E_FORMAT, "'scaling_factor' is 0, it must be between"},
};

/* A copy of the object with one member replaced, or without it. */
static oq_json *changed(oq_env *env, const oq_json *config, const char *key, const char *value)
{
    oq_json *out = oq_json_new_object(), *member = NULL;
    for (size_t i = 0; i < oq_json_size(config); i++) {
        const char *name = NULL;
        const oq_json *old = oq_json_member(config, i, &name);
        if (strcmp(name, key) != 0) oq_json_set(out, name, oq_json_copy(old));
    }
    if (value) {
        if (oq_json_parse(env, value, strlen(value), key, &member) != OQ_OK)
            fail_msg("%s", oq_env_error(env));
        oq_json_set(out, key, member);
    }
    return out;
}

static void test_configurations_are_refused(void **state)
{
    oq_env *env = *state;
    for (size_t i = 0; i < OQ_COUNT(refusals); i++) {
        const refusal *r = &refusals[i];
        oq_json *published = read_config(env, r->path), *config = changed(env, published, r->key, r->value);
        void *self = calloc(1, r->module->self_bytes);
        const oq_status st = r->module->describe(env, config, self);
        if (st != r->status || !strstr(oq_env_error(env), r->text))
            fail_msg("%s = %s: %s, '%s'; expected %s, '%s'", r->key, r->value ? r->value : "(absent)",
                     oq_status_name(st), oq_env_error(env), oq_status_name(r->status), r->text);
        oq_env_clear(env);
        free(self);
        oq_json_free(config);
        oq_json_free(published);
    }
}

/* What is switched off, private or about training does not matter. */
static void test_harmless_keys_pass(void **state)
{
    oq_env *env = *state;
    static const char *const rows[][2] = {{"some_new_switch", "false"}, {"some_new_table", "null"},
                                          {"_note", "\"x\""},           {"quantization_config", "{}"},
                                          {"axes_lens", "[9,9,9]"},     {"qk_norm", "null"}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_json *published = read_config(env, ZIMAGE),
                *config = changed(env, published, rows[i][0], rows[i][1]);
        oq_dit_zimage s = {0};
        if (oq_module_dit_zimage.describe(env, config, &s) != OQ_OK) fail_msg("%s", oq_env_error(env));
        assert_int_equal(s.ffn_dim, 10240);
        assert_int_equal(s.head_dim, 128);
        assert_int_equal(s.patch_dim, 64);
        assert_int_equal(s.t_dim, 256);
        assert_true(s.qk_norm);
        oq_json_free(config);
        oq_json_free(published);
    }
}

static void test_rope_in_both_spellings(void **state)
{
    oq_env *env = *state;
    oq_json *published = read_config(env, QWEN3), *bare = changed(env, published, "rope_theta", NULL);
    oq_json *config = changed(env, bare, "rope_parameters", "{\"rope_theta\":5e5,\"rope_type\":\"default\"}");
    oq_te_qwen3 s = {0};
    assert_int_equal(oq_module_te_qwen3.describe(env, published, &s), OQ_OK);
    assert_true(s.rope_theta == 1e6);
    assert_int_equal(oq_module_te_qwen3.describe(env, config, &s), OQ_OK);
    assert_true(s.rope_theta == 5e5);
    oq_json_free(config);
    oq_json_free(bare);
    oq_json_free(published);
}

/* ---- lists --------------------------------------------------------------------------------------------- */

static void test_lists_are_walkable(void **state)
{
    (void)state;
    for (size_t i = 0; oq_module_list[i]; i++) {
        const oq_module_type *m = oq_module_list[i];
        assert_non_null(m->describe);
        assert_non_null(m->declare);
        assert_true(m->self_bytes > 0);
        for (size_t j = 0; m->class_names[j]; j++) assert_ptr_equal(oq_module_find(m->class_names[j]), m);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(m->name, oq_module_list[j]->name);
        for (const oq_name_rule *r = m->names; r && r->from; r++) assert_true(r->to || r->why);
    }
    for (size_t i = 0; oq_pipeline_list[i]; i++) {
        const oq_pipeline_type *p = oq_pipeline_list[i];
        assert_ptr_equal(oq_pipeline_find(p->class_name), p);
        assert_true(p->help[0] && p->task[0] && p->n_components > 0);
        assert_non_null(p->init);
        assert_non_null(p->deinit);
        assert_non_null(p->check);
        assert_non_null(p->run);
    }
    assert_null(oq_module_find("UNet2DConditionModel"));
    assert_null(oq_pipeline_find("StableDiffusionPipeline"));
}

/* Sizes that no machine has are noticed before they wrap. */
static void test_vae_sizes_do_not_wrap(void **state)
{
    oq_env *env = *state;
    oq_json *config = read_config(env, VAE);
    oq_vae_kl s = {0};
    char no_scope[] = "";
    oq_arena arena;
    oq_arena_init(&arena, env);
    oq_builder b = {.env = env, .arena = &arena, .component = "vae", .scope = no_scope};
    assert_int_equal(oq_module_vae_kl.describe(env, config, &s), OQ_OK);
    assert_int_equal(oq_module_vae_kl.declare(&b, &s), OQ_OK);
    int64_t elems = 0;
    assert_true(oq_vae_kl_decode_elems(&s, 128, 128, &elems));
    assert_int_equal(elems, (int64_t)256 * 1024 * 1024); /* 256 channels of 1024 x 1024 pixels */
    assert_false(oq_vae_kl_decode_elems(&s, (int64_t)1 << 40, (int64_t)1 << 40, &elems));
    assert_false(oq_vae_kl_decode_elems(&s, (int64_t)1 << 27, (int64_t)1 << 27, &elems));
    oq_arena_deinit(&arena);
    oq_json_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_models_are_whole),
        cmocka_unit_test(test_published_qwen_image_is_whole),
        cmocka_unit_test(test_published_wan_is_whole),
        cmocka_unit_test(test_published_video_autoencoders_are_whole),
        cmocka_unit_test(test_published_flux_is_whole),
        cmocka_unit_test(test_toybox_is_whole),
        cmocka_unit_test(test_configurations_are_refused),
        cmocka_unit_test(test_harmless_keys_pass),
        cmocka_unit_test(test_rope_in_both_spellings),
        cmocka_unit_test(test_lists_are_walkable),
        cmocka_unit_test(test_vae_sizes_do_not_wrap),
    };
    return cmocka_run_group_tests_name("modules", tests, setup, teardown);
}
