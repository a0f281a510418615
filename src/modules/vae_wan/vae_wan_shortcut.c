/* vae_wan_shortcut.c -- the ways around the stages of Wan 2.2: pixels doubled on the way up, averaged on the way
 * down. Channel r of the unfolded input is ((c * ft + f) * fs + sy) * fs + sx. */
#include "modules/vae_wan/vae_wan_parts.h"

/* Copies the pixels of frame offset f: y[t * ft + f, 2y + sy, 2x + sx, o] = x[t, y, x, o * per_out + its own part]. */
static oq_status duplicate_frames(oq_exec *ex, oq_tensor y, const oq_vae_block_input *in, oq_tensor x,
                                  int64_t t, int64_t ft, int64_t repeats)
{
    const int64_t c = in->x.cols, o = y.cols, per_out = 4 * ft / repeats;
    const int64_t sy = repeats <= 2 ? 2 / repeats : 0, sx = repeats <= 1 ? 1 : 0;
    const int64_t dim[6] = {t, in->h, 2, in->w, 2, o};
    const int64_t ys[6] = {ft * 4 * in->h * in->w * o, 4 * in->w * o, 2 * in->w * o, 2 * o, o, 1};
    const int64_t xs[6] = {in->h * in->w * c, in->w * c, sy, c, sx, per_out};
    return oq_permute_forward(ex, y, x, dim, ys, xs);
}

oq_status oq_vae_wan_duplicate(oq_exec *ex, oq_vae_walk *p, const oq_vae_block_input *in, int64_t ft)
{
    const oq_tensor here = oq_vae_here(p), all = oq_vae_view(p->free, 0, here.rows, here.cols);
    const int64_t repeats = here.cols * 4 * ft / in->x.cols, pixels = in->h * in->w;
    const int64_t per_frame = repeats <= 4 ? 4 / repeats : 0, dropped = p->first ? ft - 1 : 0;
    for (int64_t f = 0; f < ft; f++) {
        const int64_t skip = f < dropped ? 1 : 0, t = in->t - skip;
        if (t == 0) continue;
        const int64_t frame = skip * ft + f - dropped;
        const oq_tensor y = oq_tensor_rows(all, frame * 4 * pixels, all.rows - frame * 4 * pixels);
        oq_tensor x = oq_tensor_rows(in->x, skip * pixels, t * pixels);
        x = oq_tensor_cols(x, f * per_frame, x.cols - f * per_frame);
        OQ_TRY(duplicate_frames(ex, y, in, x, t, ft, repeats));
    }
    return oq_add_forward(ex, here, here, all);
}

/* The input with a frame of zeros before it where that makes its frames even. */
static oq_status pad_front(oq_exec *ex, const oq_vae_block_input *in, int64_t ft, oq_vae_block_input *out)
{
    *out = *in;
    if (in->t % ft == 0) return OQ_OK;
    const int64_t pixels = in->h * in->w;
    OQ_TRY(oq_tmp(ex, (in->t + 1) * pixels, in->x.cols, &out->x));
    out->t = in->t + 1;
    const oq_tensor first = oq_tensor_rows(out->x, 0, pixels);
    OQ_TRY(oq_copy_forward(ex, first, oq_tensor_rows(in->x, 0, pixels)));
    OQ_TRY(oq_axpby_forward(ex, first, -1.0f, oq_tensor_rows(in->x, 0, pixels), 1.0f));
    return oq_copy_forward(ex, oq_tensor_rows(out->x, pixels, in->t * pixels), in->x);
}

typedef struct average {
    const oq_vae_block_input *in;
    int64_t ft, fs, factor, group;
    oq_tensor part; /* [outputs, c_out]: one member of each group */
} average;

/* Output channels o_first, o_first + o_step, ... take unfolded position `index` of channels c_first, + c_step, ... */
static oq_status gather(oq_exec *ex, const average *a, int64_t index, int64_t o_first, int64_t o_step,
                        int64_t c_first, int64_t c_step)
{
    const oq_vae_block_input *in = a->in;
    const int64_t c = in->x.cols, o = a->part.cols, fs = a->fs;
    const int64_t f = index / (fs * fs), sy = index / fs % fs, sx = index % fs,
                  row = (f * in->h + sy) * in->w + sx;
    const int64_t oh = in->h / fs, ow = in->w / fs;
    const int64_t dim[6] = {1, 1, in->t / a->ft, oh, ow, o / o_step};
    const int64_t ys[6] = {0, 0, oh * ow * o, ow * o, o, o_step};
    const int64_t xs[6] = {0, 0, a->ft * in->h * in->w * c, fs * in->w * c, fs * c, c_step};
    oq_tensor x = oq_tensor_rows(in->x, row, in->x.rows - row);
    x = oq_tensor_cols(x, c_first, c - c_first);
    return oq_permute_forward(ex, oq_tensor_cols(a->part, o_first, o - o_first), x, dim, ys, xs);
}

/* Member j of every output channel's group: unfolded channel o * group + j. */
static oq_status gather_member(oq_exec *ex, const average *a, int64_t j)
{
    if (a->group >= a->factor) return gather(ex, a, j % a->factor, 0, 1, j / a->factor, a->group / a->factor);
    const int64_t lows = a->factor / a->group; /* neighbours that share a channel */
    for (int64_t low = 0; low < lows; low++) OQ_TRY(gather(ex, a, low * a->group + j, low, lows, 0, 1));
    return OQ_OK;
}

oq_status oq_vae_wan_average(oq_exec *ex, oq_vae_walk *p, const oq_vae_block_input *in, int64_t ft,
                             int64_t fs)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_tensor here = oq_vae_here(p);
    oq_vae_block_input padded;
    oq_tensor sum;
    OQ_TRY(pad_front(ex, in, ft, &padded));
    average a = {.in = &padded, .ft = ft, .fs = fs, .factor = ft * fs * fs};
    a.group = in->x.cols * a.factor / here.cols;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, here.rows, here.cols, &sum));
    OQ_TRY(oq_tmp(ex, here.rows, here.cols, &a.part));
    for (int64_t j = 0; j < a.group; j++) {
        OQ_TRY(gather_member(ex, &a, j));
        OQ_TRY(j ? oq_add_forward(ex, sum, sum, a.part) : oq_copy_forward(ex, sum, a.part));
    }
    OQ_TRY(oq_axpby_forward(ex, here, 1.0f / (float)a.group, sum, 1.0f));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
