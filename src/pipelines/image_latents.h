/* image_latents.h -- pictures that a request begins with, through an autoencoder to latents. Resizing is Pillow's LANCZOS
 * as the pipelines have it; arithmetic is rounded where a model in the compute type rounds. */
#ifndef OQ_PIPELINES_IMAGE_LATENTS_H
#define OQ_PIPELINES_IMAGE_LATENTS_H

#include "base/arena.h"
#include "media/image.h"
#include "modules/vae_kl/vae_kl.h"
#include "modules/vae_wan/vae_wan.h"
#include "pipelines/pipeline.h"

/* An autoencoder as these functions see it. */
typedef struct oq_image_vae {
    const void *self;
    int64_t scale, channels; /* pixels of a latent's side; of latents */
    int64_t band;            /* the request's vae_tile */
    /* x: [h w, 3] in [-1, 1]; y: [h/scale w/scale, 2 channels], mean then log variance */
    oq_status (*encode)(oq_exec *ex, const struct oq_image_vae *vae, oq_tensor x, int64_t h, int64_t w, oq_tensor y);
    /* The latent of one value of a sample, rounded to dtype after each operation. */
    float (*normalize)(const oq_dtype *dtype, const void *self, int64_t channel, float sample);
} oq_image_vae;
oq_image_vae oq_image_vae_kl(const oq_vae_kl *vae, int64_t band);
oq_image_vae oq_image_vae_wan(const oq_vae_wan *vae); /* one frame */

/* moments: host [2 channels, height/scale * width/scale] planes, mean then log variance, in `arena`. In measure
 * mode `image` may be NULL: the size is given. trace: key of the picture ("input.0"), or NULL. */
oq_status oq_image_encode(oq_exec *ex, oq_arena *arena, const oq_image_vae *vae, const oq_image *image, int64_t width,
                          int64_t height, const char *trace, float **moments);
/* The picture in another size; middle true: cut out of the middle instead. `out` is the caller's (oq_image_deinit). */
oq_status oq_image_fit(oq_env *env, const oq_image *image, int64_t width, int64_t height, bool middle, oq_image *out);

/* The request's first picture, resized to the request's size, as oq_image_encode gives it. */
oq_status oq_image_encode_first(oq_exec *ex, oq_arena *arena, const oq_image_vae *vae, const oq_request *request,
                                float **moments);
/* Where denoising begins: sigma * noise + (1 - sigma) * x, x the normalized sample, planes of n values for each
 * item, handed to `put`. An item's generator draws the sample (mean + exp(log variance / 2) * …) first, then the
 * noise; a shared one draws the sample once. `shape` is for the trace of x. */
typedef struct oq_image_begin {
    const oq_image_vae *vae;
    const oq_request *request;
    const float *moments;
    int64_t n_items, n, shape[4];
    float sigma;
    void (*put)(void *user, int64_t item, float *planes);
    void *user;
} oq_image_begin;
oq_status oq_image_begin_latents(oq_exec *ex, oq_arena *arena, const oq_image_begin *begin);
/* The first step that runs of n: the others are left out, by how much of the picture stays. */
int oq_image_first_step(int n, double strength);

#endif
