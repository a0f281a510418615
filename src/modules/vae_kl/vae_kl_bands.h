/* vae_kl_bands.h -- the stages of an autoencoder at high resolution, in bands of rows: the same result in less memory. */
#ifndef OQ_MODULES_VAE_KL_BANDS_H
#define OQ_MODULES_VAE_KL_BANDS_H

#include "modules/vae_kl/vae_kl.h"

enum { OQ_VAE_KL_LEAST_ROWS = 16 }; /* of a band: each is computed with up to eight rows more */

/* The first stage of the decoder that is larger than a band, for h x w latents: those before it are computed whole.
 * n_blocks where none is, or rows is 0. */
int64_t oq_vae_kl_decode_first(const oq_vae_kl *s, int64_t h, int64_t rows);
/* The stages of the encoder that are, from the first on, for a picture of h rows. */
int64_t oq_vae_kl_encode_count(const oq_vae_kl *s, int64_t h, int64_t rows);

/* Elements of the buffer that the functions below work in. */
int64_t oq_vae_kl_decode_bands_elems(const oq_vae_kl *s, int64_t first, int64_t h, int64_t w, int64_t rows);
int64_t oq_vae_kl_encode_bands_elems(const oq_vae_kl *s, int64_t count, int64_t h, int64_t w, int64_t rows);

/* Stages from `first` on (their change of resolution before them included) and the output; what the stage before left
 * begins at the start of `all`. h, w: latents. */
oq_status oq_vae_kl_decode_bands(oq_exec *ex, const oq_vae_kl *s, int64_t first, int64_t rows, oq_tensor all, int64_t h,
                                 int64_t w, oq_tensor y);
/* The input and `count` stages (the change of resolution behind them included); what they leave begins at the start of
 * `all`. h, w: of the picture x. */
oq_status oq_vae_kl_encode_bands(oq_exec *ex, const oq_vae_kl *s, int64_t count, int64_t rows, oq_tensor all, oq_tensor x,
                                 int64_t h, int64_t w);

#endif
