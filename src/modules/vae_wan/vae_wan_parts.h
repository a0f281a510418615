/* vae_wan_parts.h -- what the files of this network share: the walk over a piece, and the shortcuts of Wan 2.2. */
#ifndef OQ_MODULES_VAE_WAN_PARTS_H
#define OQ_MODULES_VAE_WAN_PARTS_H

#include "modules/vae_wan/vae_wan.h"

enum {
    OQ_VAE_WAN_KEPT = 2, /* frames that a window of three needs from the piece before */
    OQ_VAE_WAN_MAX_SLOTS = 6 + OQ_VAE_WAN_MAX_BLOCKS * (2 * OQ_VAE_WAN_MAX_RESNETS + 1)
};

typedef struct oq_vae_slot { /* last input frames of one convolution over time */
    oq_tensor frames;        /* [OQ_VAE_WAN_KEPT * pixels, c] */
    int64_t n;               /* of them filled, from the first row on */
} oq_vae_slot;

/* The frames of a piece live at the start of one buffer ("here"), the other is free; whoever needs a new shape writes
 * it to the free one and swaps. A residual block without a change of width works in place. */
typedef struct oq_vae_walk {
    const oq_vae_wan *s;
    oq_tensor here, free;   /* [1, elems] each */
    int64_t t, h, w, c;     /* of the frames in `here` */
    bool first;             /* the piece begins with the video's first frame */
    bool keep;              /* more pieces follow or came before: slots are in use */
    oq_vae_slot slots[OQ_VAE_WAN_MAX_SLOTS];
    int n_slots, at;        /* made; next in this piece */
    const char *trace;      /* NULL: nothing */
    int64_t n_pieces, piece;
} oq_vae_walk;

static inline oq_tensor oq_vae_view(oq_tensor buffer, int64_t at, int64_t rows, int64_t cols)
{
    return oq_tensor_reshape(oq_tensor_cols(buffer, at, rows * cols), rows, cols);
}
static inline oq_tensor oq_vae_here(const oq_vae_walk *p)
{
    return oq_vae_view(p->here, 0, p->t * p->h * p->w, p->c);
}
static inline void oq_vae_swap(oq_vae_walk *p)
{
    const oq_tensor t = p->here;
    p->here = p->free;
    p->free = t;
}

/* Frames of a stage's input, kept for its shortcut. */
typedef struct oq_vae_block_input {
    oq_tensor x; /* [t * h * w, c] */
    int64_t t, h, w;
} oq_vae_block_input;

/* p->here += the input enlarged: each output pixel (frame f of ft, sy, sx of 2) takes a channel of the pixel it came
 * from; the first piece drops ft - 1 frames. p->free is overwritten. */
oq_status oq_vae_wan_duplicate(oq_exec *ex, oq_vae_walk *p, const oq_vae_block_input *in, int64_t ft);
/* p->here += means over groups of the input's channels, frames (ft) and pixels (fs x fs); the first piece has a frame
 * of zeros before it where ft is 2. */
oq_status oq_vae_wan_average(oq_exec *ex, oq_vae_walk *p, const oq_vae_block_input *in, int64_t ft, int64_t fs);

#endif
