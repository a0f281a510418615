/* vae_wan.h -- the causal video autoencoder of Wan 2.1, Wan 2.2 and Qwen-Image (one frame of the first): latents to
 * frames and back, piece by piece. Frames are rows of pixels (frame, row, column), columns are channels. See MODEL.md. */
#ifndef OQ_MODULES_VAE_WAN_H
#define OQ_MODULES_VAE_WAN_H

#include "nn/module.h"

enum { OQ_VAE_WAN_MAX_BLOCKS = 8, OQ_VAE_WAN_MAX_RESNETS = 8, OQ_VAE_WAN_MAX_Z = 256 };

typedef struct oq_vae_wan_resnet {
    oq_vector norm1, norm2;
    oq_conv2d conv1, conv2; /* causal over frames */
    oq_linear shortcut;     /* 1 x 1 x 1 */
    bool has_shortcut;
} oq_vae_wan_resnet;

typedef struct oq_vae_wan_mid { /* resnet, attention inside each frame, resnet */
    oq_vae_wan_resnet resnets[2];
    oq_vector norm;
    oq_linear qkv, proj;
    oq_attention attention;
} oq_vae_wan_mid;

typedef struct oq_vae_wan_stage { /* resnets of one resolution, then a change of resolution but for the last stage */
    oq_vae_wan_resnet *resnets;
    int64_t n_resnets, c_in, c_out;
    oq_conv2d resample, time_conv;
    bool has_resample, has_time;
} oq_vae_wan_stage;

typedef struct oq_vae_wan_side { /* encoder or decoder */
    oq_conv2d conv_in, conv_out;
    oq_vector norm_out;
    oq_vae_wan_mid mid;
    oq_vae_wan_stage stages[OQ_VAE_WAN_MAX_BLOCKS]; /* [n_blocks] */
} oq_vae_wan_side;

typedef struct oq_vae_wan {
    int64_t base_dim, decoder_dim, z_dim, n_res_blocks, in_channels, out_channels, patch, n_blocks;
    int64_t multiplier[OQ_VAE_WAN_MAX_BLOCKS];
    bool halves_time[OQ_VAE_WAN_MAX_BLOCKS]; /* [n_blocks - 1], of the encoder; the decoder goes the other way */
    bool encoder_unused; /* nothing is encoded; set between describe and declare */
    bool residual;                           /* Wan 2.2: shortcuts around the stages */
    float mean[OQ_VAE_WAN_MAX_Z], std[OQ_VAE_WAN_MAX_Z]; /* of the latents, per channel */
    oq_vae_wan_side encoder, decoder;
    oq_linear quant, post_quant;
} oq_vae_wan;

int64_t oq_vae_wan_scale(const oq_vae_wan *s);      /* pixels per latent of a side */
int64_t oq_vae_wan_time_scale(const oq_vae_wan *s); /* frames per latent frame after the first */
/* Frames of n latent frames, and back: the first stands for itself. */
int64_t oq_vae_wan_frames(const oq_vae_wan *s, int64_t latent_frames);
int64_t oq_vae_wan_latent_frames(const oq_vae_wan *s, int64_t frames);

/* Receives finished frames of a piece: [n * H * W, 3], n frames from `first` on. Also called in measure mode. */
typedef oq_status (*oq_vae_wan_sink)(oq_exec *ex, void *user, oq_tensor frames, int64_t first, int64_t n);

typedef struct oq_vae_wan_args {
    int64_t frames, h, w; /* of the input: latents to decode, pixels to encode */
    int64_t piece;        /* latent frames at a time; 0: all at once. Memory grows with it, values do not change */
    const char *trace;    /* key prefix ("vae"); NULL: nothing is traced */
} oq_vae_wan_args;

/* z: [frames * h * w, z_dim], scaled back already. */
oq_status oq_vae_wan_decode(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *args, oq_tensor z,
                            oq_vae_wan_sink sink, void *user);
/* The same in two halves: the head (conv_in and the middle, whose attention sees the whole frame) gives features
 * [frames * h * w, oq_vae_wan_features]; the tail takes them from there and sees no farther than its convolutions do. */
int64_t oq_vae_wan_features(const oq_vae_wan *s);
oq_status oq_vae_wan_decode_head(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *args, oq_tensor z,
                                 oq_tensor features);
oq_status oq_vae_wan_decode_tail(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *args, oq_tensor features,
                                 oq_vae_wan_sink sink, void *user);
/* x: [frames * h * w, 3] in [-1, 1], frames 1 + time_scale * n; y: [latents, 2 z_dim], mean then log variance. */
oq_status oq_vae_wan_encode(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *args, oq_tensor x, oq_tensor y);

extern const oq_module_type oq_module_vae_wan;

#endif
