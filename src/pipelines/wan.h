/* wan.h -- what the files of the Wan families share. */
#ifndef OQ_PIPELINES_WAN_H
#define OQ_PIPELINES_WAN_H

#include "modules/dit_wan/dit_wan.h"
#include "modules/te_t5/te_t5.h"
#include "modules/vae_wan/vae_wan.h"
#include "pipelines/pipeline.h"
#include "sched/unipc.h"
#include "text/tokenizer.h"

enum { WAN_MAX_TOKENS = 1024, WAN_MASK_CHANNELS = 4 };

typedef struct wan {
    const oq_te_t5 *encoder;
    const oq_dit_wan *experts[2]; /* for high and low noise; the second may be NULL */
    const oq_vae_wan *vae;
    oq_unipc schedule;
    double boundary;         /* times the training steps: from here down the second expert; 0: never */
    bool expand_timesteps;   /* tokens have times of their own; a first frame is given as clean tokens */
    bool image_channels;     /* the transformer takes a mask and a condition video beside the latents */
    oq_tokenizer *tokenizer; /* NULL: one token per byte (dummy weights) */
} wan;

/* Does a request (or a family that needs a picture, while measuring) begin with a picture? */
static inline bool wan_has_image(const wan *w, const oq_request *r)
{
    return w->image_channels || (w->expand_timesteps && r->n_images > 0);
}

oq_status wan_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out);

#endif
