/* decode_wan.h -- latents of the video autoencoder to the frames of a request (Wan), or to its pictures (Qwen-Image), piece by
 * piece, whole or in blended tiles. */
#ifndef OQ_PIPELINES_DECODE_WAN_H
#define OQ_PIPELINES_DECODE_WAN_H

#include "base/arena.h"
#include "modules/vae_wan/vae_wan.h"
#include "pipelines/pipeline.h"

typedef struct oq_wan_decoding {
    const oq_vae_wan *vae;
    const oq_request *request;     /* its vae_piece and vae_tile */
    bool video;                    /* traces and messages speak of frames */
    int64_t n_items, frames, h, w; /* latents of an item */
    const float *planes;           /* host [n_items, channels, frames, h, w], as the autoencoder takes them; NULL while measuring */
    oq_output *out;                /* its pixels and decode_s; NULL while measuring */
} oq_wan_decoding;

/* In ex->compute, one item after the other; measuring walks one. Traces "vae.in" and "vae.out" of an item, "image" of all. */
oq_status oq_decode_wan(oq_exec *ex, oq_arena *arena, const oq_wan_decoding *decoding);

#endif
