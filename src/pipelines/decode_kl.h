/* decode_kl.h -- latents of an AutoencoderKL to the pictures of a request. */
#ifndef OQ_PIPELINES_DECODE_KL_H
#define OQ_PIPELINES_DECODE_KL_H

#include "base/arena.h"
#include "modules/vae_kl/vae_kl.h"
#include "pipelines/pipeline.h"

typedef struct oq_kl_decoding {
    const oq_vae_kl *vae;
    int64_t n_items, h, w;  /* latents of an item */
    int64_t band;           /* the request's vae_tile */
    const float *planes;    /* host [n_items, channels, h, w], as the autoencoder takes them; NULL while measuring */
    oq_output *out;         /* its pixels and decode_s; NULL while measuring */
} oq_kl_decoding;

/* One item after the other; measuring walks one. Traces "vae.in", "vae.out" and "image" of all items. */
oq_status oq_decode_kl(oq_exec *ex, oq_arena *arena, const oq_kl_decoding *decoding);

#endif
