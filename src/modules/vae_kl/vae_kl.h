/* vae_kl.h -- AutoencoderKL (FLUX.1, Z-Image) and AutoencoderKLFlux2: latents to pictures and back. Pictures are rows of
 * pixels (NHWC). See MODEL.md. */
#ifndef OQ_MODULES_VAE_KL_H
#define OQ_MODULES_VAE_KL_H

#include "nn/module.h"

enum { OQ_VAE_KL_MAX_BLOCKS = 8 };

typedef struct oq_vae_kl_resnet {
    oq_vector norm1_weight, norm1_bias, norm2_weight, norm2_bias;
    oq_conv2d conv1, conv2, shortcut;
    bool has_shortcut;
} oq_vae_kl_resnet;

typedef struct oq_vae_kl_mid { /* resnet, attention over all pixels, resnet */
    oq_vae_kl_resnet resnets[2];
    oq_vector norm_weight, norm_bias;
    oq_linear qkv, out;
    oq_attention attention;
} oq_vae_kl_mid;

typedef struct oq_vae_kl_stage { /* resnets of one resolution, then a change of resolution but for the last
                                    stage */
    oq_vae_kl_resnet *resnets;
    int64_t n_resnets;
    oq_conv2d resample;
    bool has_resample;
} oq_vae_kl_stage;

typedef struct oq_vae_kl_side { /* encoder or decoder */
    oq_conv2d conv_in, conv_out;
    oq_vector norm_weight, norm_bias;
    oq_vae_kl_mid mid;
    oq_vae_kl_stage stages[OQ_VAE_KL_MAX_BLOCKS]; /* [n_blocks] */
} oq_vae_kl_side;

typedef struct oq_vae_kl {
    int64_t in_channels, out_channels, latent_channels, layers_per_block, n_groups, sample_size, n_blocks;
    int64_t channels[OQ_VAE_KL_MAX_BLOCKS];         /* of the encoder */
    int64_t decoder_channels[OQ_VAE_KL_MAX_BLOCKS]; /* the same unless the configuration says otherwise */
    double scaling_factor, shift_factor;
    bool mid_attention, has_quant_conv, has_post_quant_conv;
    oq_vae_kl_side encoder, decoder;
    oq_conv2d quant_conv, post_quant_conv;
    /* AutoencoderKLFlux2: statistics of each channel of the latents' 2x2 patches, [4 latent_channels] */
    bool has_statistics;
    double statistics_eps;
    oq_vector mean, variance;
} oq_vae_kl;

/* Pixels per latent: 2^(blocks - 1). */
int64_t oq_vae_kl_scale(const oq_vae_kl *s);
/* Elements of the two work buffers that decoding h x w latents takes; false: beyond int64. */
bool oq_vae_kl_decode_elems(const oq_vae_kl *s, int64_t h, int64_t w, int64_t *out);

/* z: [h * w, latent_channels] (latents / scaling + shift); y: [scale h * scale w, out_channels]. One picture.
 * band: resolutions with more rows than this are computed in bands of as many (rounded up to 16), with the
 * same result; 0: the whole at once. trace: key prefix ("vae") or NULL. */
oq_status oq_vae_kl_decode(oq_exec *ex, const oq_vae_kl *s, oq_tensor z, int64_t h, int64_t w, int64_t band, oq_tensor y,
                           const char *trace);
/* x: [h * w, in_channels] in [-1, 1], h and w multiples of the scale; y: [h/scale * w/scale, 2
 * latent_channels], mean then log variance. */
oq_status oq_vae_kl_encode(oq_exec *ex, const oq_vae_kl *s, oq_tensor x, int64_t h, int64_t w, int64_t band, oq_tensor y);

/* Host copies of the statistics, [4 latent_channels] each: the mean and the root of variance + eps, both rounded to the
 * compute type. No-op in measure mode. */
oq_status oq_vae_kl_statistics(oq_exec *ex, const oq_vae_kl *s, float *mean, float *std);

extern const oq_module_type oq_module_vae_kl;
extern const oq_module_type oq_module_vae_kl_flux2;

#endif
