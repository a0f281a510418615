/* vae_wan_forward.c -- the causal video autoencoder: decoding and encoding piece by piece. A window over time sees the
 * past alone, so a piece needs no more of the rest than the last two input frames of each convolution: with these
 * (oq_vae_slot) any cut gives the values of the whole. The video's first frame is special: resolution in time changes
 * behind it, and windows of the time convolutions begin after it. */
#include "modules/vae_wan/vae_wan_parts.h"

#include "base/size.h"

#include <stdio.h>

static const float EPS = 1e-30f; /* the original divides by the length, at least 1e-12 */

/* ---- slots --------------------------------------------------------------------------------------------- */

static oq_status add_slot(oq_exec *ex, oq_vae_walk *p, int64_t c)
{
    oq_vae_slot *slot = &p->slots[p->n_slots++];
    slot->n = 0;
    return oq_tmp(ex, OQ_VAE_WAN_KEPT * p->h * p->w, c, &slot->frames);
}

static oq_status add_resnet_slots(oq_exec *ex, oq_vae_walk *p, const oq_vae_wan_resnet *r)
{
    OQ_TRY(add_slot(ex, p, r->conv1.spec.c_in));
    return add_slot(ex, p, r->conv2.spec.c_in);
}

static oq_status add_stage_slots(oq_exec *ex, oq_vae_walk *p, const oq_vae_wan_stage *stage, bool up)
{
    for (int64_t i = 0; i < stage->n_resnets; i++) OQ_TRY(add_resnet_slots(ex, p, &stage->resnets[i]));
    if (stage->has_resample && !up) p->h /= 2, p->w /= 2;
    if (stage->has_time) OQ_TRY(add_slot(ex, p, stage->time_conv.spec.c_in));
    if (stage->has_resample && up) p->h *= 2, p->w *= 2;
    return OQ_OK;
}

/* Slots in the order of the walk; p->h, p->w are the input's and come back. head: of the decoder's head alone, since the
 * tail's are as large as the video's frames. */
static oq_status add_slots(oq_exec *ex, oq_vae_walk *p, const oq_vae_wan_side *side, bool up, bool head)
{
    const int64_t h = p->h, w = p->w;
    OQ_TRY(add_slot(ex, p, side->conv_in.spec.c_in));
    for (int i = 0; up && i < 2; i++) OQ_TRY(add_resnet_slots(ex, p, &side->mid.resnets[i]));
    if (head) return OQ_OK;
    for (int64_t i = 0; i < p->s->n_blocks; i++) OQ_TRY(add_stage_slots(ex, p, &side->stages[i], up));
    for (int i = 0; !up && i < 2; i++) OQ_TRY(add_resnet_slots(ex, p, &side->mid.resnets[i]));
    OQ_TRY(add_slot(ex, p, side->conv_out.spec.c_in));
    p->h = h;
    p->w = w;
    return OQ_OK;
}

/* The last `depth` frames of everything seen so far. */
static oq_status remember(oq_exec *ex, oq_vae_slot *slot, oq_tensor x, int64_t pixels, int64_t depth)
{
    const int64_t t = x.rows / pixels;
    if (t >= depth) {
        slot->n = depth;
        return oq_copy_forward(ex, oq_tensor_rows(slot->frames, 0, depth * pixels),
                               oq_tensor_rows(x, (t - depth) * pixels, depth * pixels));
    }
    for (; slot->n + t > depth; slot->n--) /* one frame of two: the older one goes */
        OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(slot->frames, 0, pixels),
                               oq_tensor_rows(slot->frames, pixels, pixels)));
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(slot->frames, slot->n * pixels, x.rows), x));
    slot->n += t;
    return OQ_OK;
}

static oq_tensor remembered(const oq_vae_slot *slot, int64_t pixels)
{
    return slot->n ? oq_tensor_rows(slot->frames, 0, slot->n * pixels) : oq_absent();
}

/* y = conv(x) with the frames of the piece before */
static oq_status causal(oq_exec *ex, oq_vae_walk *p, const oq_conv2d *c, oq_tensor y, oq_tensor x)
{
    const int64_t pixels = p->h * p->w, t = x.rows / pixels;
    if (!p->keep) return oq_conv3d_forward(ex, c, y, x, oq_absent(), 1, t, p->h, p->w);
    oq_vae_slot *slot = &p->slots[p->at++];
    OQ_TRY(oq_conv3d_forward(ex, c, y, x, remembered(slot, pixels), 1, t, p->h, p->w));
    return remember(ex, slot, x, pixels, OQ_VAE_WAN_KEPT);
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

static oq_status norm_silu(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *gamma)
{
    OQ_TRY(oq_rms_norm_forward(ex, y, x, gamma, EPS, 0));
    return oq_unary_forward(ex, OQ_SILU, y, y);
}

/* x' + conv2(silu(norm2(conv1(silu(norm1(x)))))), x' = shortcut(x) where the width changes */
static oq_status resnet_forward(oq_exec *ex, const oq_vae_wan_resnet *r, oq_vae_walk *p)
{
    OQ_TRY(oq_check_canceled(ex->env));
    const int64_t n = p->t * p->h * p->w, c_out = r->conv1.spec.c_out;
    const oq_tensor x = oq_vae_here(p), first = oq_vae_view(p->free, 0, n, c_out),
                    second = oq_vae_view(p->free, n * c_out, n, c_out);
    if (!r->has_shortcut) {
        OQ_TRY(norm_silu(ex, first, x, &r->norm1));
        OQ_TRY(causal(ex, p, &r->conv1, second, first));
        OQ_TRY(norm_silu(ex, second, second, &r->norm2));
        OQ_TRY(causal(ex, p, &r->conv2, first, second));
        return oq_add_forward(ex, x, x, first);
    }
    const oq_tensor out = oq_vae_view(p->here, 0, n, c_out); /* where x was, once it is spent */
    OQ_TRY(oq_linear_forward(ex, &r->shortcut, first, x));
    OQ_TRY(norm_silu(ex, x, x, &r->norm1));
    OQ_TRY(causal(ex, p, &r->conv1, second, x));
    OQ_TRY(norm_silu(ex, second, second, &r->norm2));
    OQ_TRY(causal(ex, p, &r->conv2, out, second));
    OQ_TRY(oq_add_forward(ex, out, out, first));
    p->c = c_out;
    return OQ_OK;
}

/* x += proj(attention(to_qkv(norm(x)))), each frame for itself; one head as wide as the frame is deep */
static oq_status attention_forward(oq_exec *ex, const oq_vae_wan_mid *m, oq_vae_walk *p)
{
    OQ_TRY(oq_check_canceled(ex->env));
    const int64_t pixels = p->h * p->w, n = p->t * pixels, c = p->c;
    const oq_tensor x = oq_vae_here(p), h = oq_vae_view(p->free, 0, n, c),
                    qkv = oq_vae_view(p->free, n * c, n, 3 * c);
    OQ_TRY(oq_rms_norm_forward(ex, h, x, &m->norm, EPS, 0));
    OQ_TRY(oq_linear_forward(ex, &m->qkv, qkv, h));
    for (int64_t t = 0; t < p->t; t++) {
        const oq_tensor frame = oq_tensor_rows(qkv, t * pixels, pixels);
        OQ_TRY(oq_attention_forward(ex, &m->attention, oq_tensor_rows(h, t * pixels, pixels),
                                    oq_tensor_cols(frame, 0, c), oq_tensor_cols(frame, c, c),
                                    oq_tensor_cols(frame, 2 * c, c), NULL));
    }
    const oq_tensor o = oq_tensor_cols(qkv, 0, c); /* spent */
    OQ_TRY(oq_linear_forward(ex, &m->proj, o, h));
    return oq_add_forward(ex, x, x, o);
}

static oq_status mid_forward(oq_exec *ex, const oq_vae_wan_mid *m, oq_vae_walk *p)
{
    OQ_TRY(resnet_forward(ex, &m->resnets[0], p));
    OQ_TRY(attention_forward(ex, m, p));
    return resnet_forward(ex, &m->resnets[1], p);
}

/* Frame t becomes frames 2t and 2t + 1, but for the video's first, which stays one. */
static oq_status double_time(oq_exec *ex, const oq_conv2d *c, oq_vae_walk *p)
{
    const int64_t pixels = p->h * p->w, skip = p->first ? 1 : 0, t = p->t - skip, C = p->c;
    oq_vae_slot *slot = p->keep ? &p->slots[p->at++] : NULL;
    if (t > 0) {
        const oq_tensor x = oq_tensor_rows(oq_vae_here(p), skip * pixels, t * pixels);
        const oq_tensor y = oq_vae_view(p->free, 0, t * pixels, 2 * C);
        OQ_TRY(
            oq_conv3d_forward(ex, c, y, x, slot ? remembered(slot, pixels) : oq_absent(), 1, t, p->h, p->w));
        if (slot) OQ_TRY(remember(ex, slot, x, pixels, OQ_VAE_WAN_KEPT));
        const oq_tensor out = oq_vae_view(p->here, skip * pixels * C, 2 * t * pixels, C);
        const int64_t dim[6] = {1, 1, t, pixels, 2, C}, to[6] = {0, 0, 2 * pixels * C, C, pixels * C, 1},
                      from[6] = {0, 0, pixels * 2 * C, 2 * C, C, 1};
        OQ_TRY(oq_permute_forward(ex, out, y, dim, to, from));
    }
    p->t = skip + 2 * t;
    return OQ_OK;
}

/* Pairs of frames behind the video's first become one; a window of three ends with the pair. */
static oq_status halve_time(oq_exec *ex, const oq_conv2d *c, oq_vae_walk *p)
{
    const int64_t pixels = p->h * p->w, skip = p->first ? 1 : 0, t = p->t - skip;
    const oq_tensor x = oq_vae_here(p), out = oq_vae_view(p->free, 0, (skip + t / 2) * pixels, p->c);
    oq_vae_slot *slot = p->keep ? &p->slots[p->at++] : NULL;
    if (skip) OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(out, 0, pixels), oq_tensor_rows(x, 0, pixels)));
    if (t > 0)
        OQ_TRY(oq_conv3d_forward(ex, c, oq_tensor_rows(out, skip * pixels, t / 2 * pixels),
                                 oq_tensor_rows(x, skip * pixels, t * pixels),
                                 skip ? oq_tensor_rows(x, 0, pixels) : remembered(slot, pixels), 1, t, p->h,
                                 p->w));
    if (slot) OQ_TRY(remember(ex, slot, x, pixels, 1));
    p->t = skip + t / 2;
    oq_vae_swap(p);
    return OQ_OK;
}

static oq_status upsample_forward(oq_exec *ex, const oq_vae_wan_stage *stage, oq_vae_walk *p)
{
    if (stage->has_time) OQ_TRY(double_time(ex, &stage->time_conv, p));
    const int64_t c = stage->resample.spec.c_out;
    const oq_tensor large = oq_vae_view(p->free, 0, 4 * p->t * p->h * p->w, c);
    OQ_TRY(oq_conv2d_forward(ex, &stage->resample, large, oq_vae_here(p), p->t, p->h, p->w));
    p->h *= 2;
    p->w *= 2;
    p->c = c;
    oq_vae_swap(p);
    return OQ_OK;
}

static oq_status downsample_forward(oq_exec *ex, const oq_vae_wan_stage *stage, oq_vae_walk *p)
{
    const oq_tensor small = oq_vae_view(p->free, 0, p->t * (p->h / 2) * (p->w / 2), p->c);
    OQ_TRY(oq_conv2d_forward(ex, &stage->resample, small, oq_vae_here(p), p->t, p->h, p->w));
    p->h /= 2;
    p->w /= 2;
    oq_vae_swap(p);
    return stage->has_time ? halve_time(ex, &stage->time_conv, p) : OQ_OK;
}

static oq_status keep_input(oq_exec *ex, const oq_vae_walk *p, oq_vae_block_input *in)
{
    const oq_tensor x = oq_vae_here(p);
    *in = (oq_vae_block_input){.t = p->t, .h = p->h, .w = p->w};
    OQ_TRY(oq_tmp(ex, x.rows, x.cols, &in->x));
    return oq_copy_forward(ex, in->x, x);
}

static oq_status stage_forward(oq_exec *ex, const oq_vae_wan_stage *stage, oq_vae_walk *p, bool up)
{
    const oq_mark mark = oq_mark_get(ex);
    const bool around = p->s->residual && (stage->has_resample || !up);
    oq_vae_block_input in;
    if (around) OQ_TRY(keep_input(ex, p, &in));
    for (int64_t r = 0; r < stage->n_resnets; r++) OQ_TRY(resnet_forward(ex, &stage->resnets[r], p));
    if (stage->has_resample) OQ_TRY(up ? upsample_forward(ex, stage, p) : downsample_forward(ex, stage, p));
    const int64_t ft = stage->has_time ? 2 : 1;
    if (around)
        OQ_TRY(up ? oq_vae_wan_duplicate(ex, p, &in, ft)
                  : oq_vae_wan_average(ex, p, &in, ft, stage->has_resample ? 2 : 1));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* conv_out(silu(norm(x))) */
static oq_status out_forward(oq_exec *ex, const oq_vae_wan_side *side, oq_vae_walk *p, oq_tensor y)
{
    const oq_tensor x = oq_vae_here(p);
    OQ_TRY(norm_silu(ex, x, x, &side->norm_out));
    return causal(ex, p, &side->conv_out, y, x);
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

static bool grow(int64_t pixels, int64_t width, int64_t *elems)
{
    int64_t n;
    if (!oq_i64_mul(pixels, width, &n)) return false;
    *elems = oq_max_i64(*elems, n);
    return true;
}

static bool grow_stage(int64_t pixels, const oq_vae_wan_stage *stage, int64_t *elems)
{
    bool ok = true;
    for (int64_t i = 0; ok && i < stage->n_resnets; i++)
        ok = grow(pixels,
                  oq_max_i64(stage->resnets[i].conv1.spec.c_in, 2 * stage->resnets[i].conv1.spec.c_out),
                  elems);
    return ok;
}

/* Elements of each of the two buffers for t frames of h x w at the input of the side. */
static bool decode_elems(const oq_vae_wan *s, int64_t t, int64_t h, int64_t w, int64_t *elems)
{
    int64_t pixels;
    *elems = 0;
    if (!oq_i64_mul(h, w, &pixels) || !oq_i64_mul(pixels, t, &pixels) ||
        !grow(pixels, 4 * s->decoder.conv_in.spec.c_out, elems) || !grow(pixels, s->z_dim, elems))
        return false;
    for (int64_t i = 0; i < s->n_blocks; i++) {
        const oq_vae_wan_stage *stage = &s->decoder.stages[i];
        if (!grow_stage(pixels, stage, elems)) return false;
        if (!stage->has_resample) continue;
        if (!oq_i64_mul(pixels, stage->has_time ? 2 : 1, &pixels) || !grow(pixels, stage->c_out, elems) ||
            !oq_i64_mul(pixels, 4, &pixels) || !grow(pixels, stage->resample.spec.c_out, elems))
            return false;
    }
    return true;
}

static bool encode_elems(const oq_vae_wan *s, int64_t t, int64_t h, int64_t w, int64_t *elems)
{
    int64_t pixels;
    *elems = 0;
    if (!oq_i64_mul(h, w, &pixels) || !oq_i64_mul(pixels, t, &pixels) || !grow(pixels, s->base_dim, elems))
        return false;
    for (int64_t i = 0; i < s->n_blocks; i++) {
        if (!grow_stage(pixels, &s->encoder.stages[i], elems)) return false;
        if (s->encoder.stages[i].has_resample) pixels /= 4;
    }
    return grow(pixels, 4 * s->encoder.conv_out.spec.c_in, elems);
}

static oq_status new_walk(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *a, bool fits,
                          int64_t elems, int64_t n_pieces, oq_vae_walk *p)
{
    if (!fits)
        return oq_fail(ex->env, OQ_E_NOMEM, "autoencoder: %lld frames of %lld x %lld do not fit in memory",
                       (long long)a->frames, (long long)a->w, (long long)a->h);
    *p = (oq_vae_walk){.s = s, .keep = n_pieces > 1, .trace = a->trace, .n_pieces = n_pieces};
    OQ_TRY(oq_tmp(ex, 1, elems, &p->here));
    return oq_tmp(ex, 1, elems, &p->free);
}

/* ---- the two directions -------------------------------------------------------------------------------- */

/* The frames as [1, C, t, h, w] under "vae.key", or "vae.chunkN.key" for the first two of several pieces. */
static oq_status trace_frames(oq_exec *ex, const oq_vae_walk *p, const char *key, oq_tensor x)
{
    if (!p->trace || !ex->trace || ex->measure || p->piece > 1) return OQ_OK;
    const oq_mark mark = oq_mark_get(ex);
    const int64_t shape[5] = {1, x.cols, p->t, p->h, p->w}, n = x.rows, c = x.cols;
    char chunk[32] = "";
    oq_tensor planes;
    if (p->n_pieces > 1) snprintf(chunk, sizeof chunk, "chunk%lld.", (long long)p->piece);
    if (n * c > p->free.cols) return OQ_OK; /* never larger than what was measured */
    planes = oq_vae_view(p->free, 0, c, n);
    const int64_t dim[6] = {1, 1, 1, 1, c, n}, to[6] = {0, 0, 0, 0, n, 1}, from[6] = {0, 0, 0, 0, 1, c};
    OQ_TRY(oq_permute_forward(ex, planes, x, dim, to, from));
    OQ_TRY(oq_trace_put(ex, planes, shape, 5, "%s.%s%s", p->trace, chunk, key));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* y: [t * ph * pw, c] pixels of patches [t * h * w, c * P * P], channel (c * P + px) * P + py */
static oq_status fold_patches(oq_exec *ex, const oq_vae_walk *p, oq_tensor y, oq_tensor x)
{
    const int64_t P = p->s->patch, c = y.cols, k = x.cols;
    const int64_t dim[6] = {p->t * p->h, P, p->w, P, c, 1},
                  to[6] = {P * P * p->w * c, P * p->w * c, P * c, c, 1, 0},
                  from[6] = {p->w * k, 1, k, P, P * P, 0};
    return oq_permute_forward(ex, y, x, dim, to, from);
}

enum { HEAD = 1, TAIL = 2 }; /* halves of the decoder */

typedef struct decoding {
    int halves;
    oq_tensor features; /* what the head alone gives, or the tail alone takes */
    oq_vae_wan_sink sink;
    void *user;
} decoding;

static oq_status decode_head(oq_exec *ex, const oq_vae_wan *s, oq_vae_walk *p, oq_tensor z)
{
    const oq_vae_wan_side *d = &s->decoder;
    const oq_tensor mixed = oq_vae_view(p->free, 0, z.rows, s->z_dim);
    OQ_TRY(oq_linear_forward(ex, &s->post_quant, mixed, z));
    p->c = d->conv_in.spec.c_out;
    OQ_TRY(causal(ex, p, &d->conv_in, oq_vae_here(p), mixed));
    OQ_TRY(trace_frames(ex, p, "conv_in", oq_vae_here(p)));
    OQ_TRY(mid_forward(ex, &d->mid, p));
    return trace_frames(ex, p, "mid", oq_vae_here(p));
}

static oq_status decode_tail(oq_exec *ex, const oq_vae_wan *s, oq_vae_walk *p, const decoding *how,
                             int64_t first)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor raw, y;
    char key[32];
    for (int64_t i = 0; i < s->n_blocks; i++) {
        OQ_TRY(stage_forward(ex, &s->decoder.stages[i], p, true));
        snprintf(key, sizeof key, "up%lld", (long long)i);
        OQ_TRY(trace_frames(ex, p, key, oq_vae_here(p)));
    }
    OQ_TRY(oq_tmp(ex, p->t * p->h * p->w, s->out_channels, &raw));
    OQ_TRY(out_forward(ex, &s->decoder, p, raw));
    y = raw;
    if (s->patch > 1) {
        OQ_TRY(oq_tmp(ex, raw.rows * s->patch * s->patch, 3, &y));
        OQ_TRY(fold_patches(ex, p, y, raw));
    }
    OQ_TRY(how->sink(ex, how->user, y, first, p->t));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status decode_piece(oq_exec *ex, const oq_vae_wan *s, oq_vae_walk *p, const decoding *how,
                              oq_tensor z, oq_tensor features, int64_t first)
{
    p->c = s->decoder.conv_in.spec.c_out;
    if (how->halves & HEAD) {
        OQ_TRY(decode_head(ex, s, p, z));
        if (!(how->halves & TAIL)) return oq_copy_forward(ex, features, oq_vae_here(p));
    } else {
        p->at = 5; /* slots of the head: conv_in and two resnets */
        OQ_TRY(oq_copy_forward(ex, oq_vae_here(p), features));
    }
    return decode_tail(ex, s, p, how, first);
}

static oq_tensor rows_if(oq_tensor t, int64_t first, int64_t n)
{
    return t.rows ? oq_tensor_rows(t, first, n) : t;
}

static oq_status decode_halves(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *a, oq_tensor z,
                               const decoding *how)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t piece = a->piece > 0 && a->piece < a->frames ? a->piece : a->frames;
    const int64_t pixels = a->h * a->w;
    int64_t elems, done = 0;
    oq_vae_walk p;
    bool fits = decode_elems(s, piece, a->h, a->w, &elems);
    if (!(how->halves & TAIL))
        elems = 4 * piece * pixels * s->decoder.conv_in.spec.c_out; /* fits if the whole does */
    OQ_TRY(new_walk(ex, s, a, fits, elems, (a->frames + piece - 1) / piece, &p));
    p.h = a->h;
    p.w = a->w;
    if (p.keep) OQ_TRY(add_slots(ex, &p, &s->decoder, true, how->halves == HEAD));
    for (int64_t at = 0; at < a->frames; at += piece, p.piece++) {
        p.t = at + piece < a->frames ? piece : a->frames - at;
        p.h = a->h;
        p.w = a->w;
        p.first = at == 0;
        p.at = 0;
        OQ_TRY(decode_piece(ex, s, &p, how, rows_if(z, at * pixels, p.t * pixels),
                            rows_if(how->features, at * pixels, p.t * pixels), done));
        done += p.t;
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

oq_status oq_vae_wan_decode(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *a, oq_tensor z,
                            oq_vae_wan_sink sink, void *user)
{
    return decode_halves(ex, s, a, z, &(decoding){.halves = HEAD | TAIL, .sink = sink, .user = user});
}

int64_t oq_vae_wan_features(const oq_vae_wan *s)
{
    return s->decoder.conv_in.spec.c_out;
}

oq_status oq_vae_wan_decode_head(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *a, oq_tensor z,
                                 oq_tensor features)
{
    return decode_halves(ex, s, a, z, &(decoding){.halves = HEAD, .features = features});
}

oq_status oq_vae_wan_decode_tail(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *a,
                                 oq_tensor features, oq_vae_wan_sink sink, void *user)
{
    return decode_halves(ex, s, a, oq_absent(),
                         &(decoding){.halves = TAIL, .features = features, .sink = sink, .user = user});
}

/* x: [t * H * W, 3] -> patches [t * h * w, 3 * P * P] */
static oq_status unfold_patches(oq_exec *ex, const oq_vae_walk *p, oq_tensor y, oq_tensor x)
{
    const int64_t P = p->s->patch, c = x.cols, k = y.cols;
    const int64_t dim[6] = {p->t * p->h, P, p->w, P, c, 1},
                  from[6] = {P * P * p->w * c, P * p->w * c, P * c, c, 1, 0},
                  to[6] = {p->w * k, 1, k, P, P * P, 0};
    return oq_permute_forward(ex, y, x, dim, to, from);
}

static oq_status encode_piece(oq_exec *ex, const oq_vae_wan *s, oq_vae_walk *p, oq_tensor x, oq_tensor y,
                              int64_t *rows)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_vae_wan_side *e = &s->encoder;
    oq_tensor patches = x, moments;
    if (s->patch > 1) {
        OQ_TRY(oq_tmp(ex, p->t * p->h * p->w, s->in_channels, &patches));
        OQ_TRY(unfold_patches(ex, p, patches, x));
    }
    p->c = s->base_dim;
    OQ_TRY(causal(ex, p, &e->conv_in, oq_vae_here(p), patches));
    for (int64_t i = 0; i < s->n_blocks; i++) {
        char key[32];
        OQ_TRY(stage_forward(ex, &e->stages[i], p, false));
        snprintf(key, sizeof key, "stage%lld", (long long)i);
        OQ_TRY(trace_frames(ex, p, key, oq_vae_here(p)));
    }
    OQ_TRY(mid_forward(ex, &e->mid, p));
    OQ_TRY(trace_frames(ex, p, "mid", oq_vae_here(p)));
    OQ_TRY(oq_tmp(ex, p->t * p->h * p->w, 2 * s->z_dim, &moments));
    OQ_TRY(out_forward(ex, e, p, moments));
    OQ_TRY(oq_linear_forward(ex, &s->quant, oq_tensor_rows(y, *rows, moments.rows), moments));
    *rows += moments.rows;
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status check_encode(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *a)
{
    const int64_t scale = oq_vae_wan_scale(s), ft = oq_vae_wan_time_scale(s);
    if (a->h % scale == 0 && a->w % scale == 0 && a->frames >= 1 && (a->frames - 1) % ft == 0) return OQ_OK;
    return oq_fail(
        ex->env, OQ_E_ARG,
        "autoencoder: %lld frames of %lld x %lld pixels: sides are multiples of %lld, frames 1 + a "
        "multiple of %lld",
        (long long)a->frames, (long long)a->w, (long long)a->h, (long long)scale, (long long)ft);
}

oq_status oq_vae_wan_encode(oq_exec *ex, const oq_vae_wan *s, const oq_vae_wan_args *a, oq_tensor x,
                            oq_tensor y)
{
    OQ_TRY(check_encode(ex, s, a));
    const oq_mark mark = oq_mark_get(ex);
    const int64_t ft = oq_vae_wan_time_scale(s), pixels = a->h * a->w, h = a->h / s->patch,
                  w = a->w / s->patch;
    const int64_t piece = a->piece > 0 ? a->piece : oq_vae_wan_latent_frames(s, a->frames), most = piece * ft;
    int64_t elems, rows = 0;
    oq_vae_walk p;
    const int64_t first = oq_vae_wan_frames(s, piece) < a->frames ? oq_vae_wan_frames(s, piece) : a->frames;
    const bool several = first < a->frames, fits = encode_elems(s, several ? most : first, h, w, &elems);
    OQ_TRY(new_walk(ex, s, a, fits, elems, several ? 1 + (a->frames - first + most - 1) / most : 1, &p));
    p.h = h;
    p.w = w;
    if (p.keep) OQ_TRY(add_slots(ex, &p, &s->encoder, false, false));
    for (int64_t at = 0; at < a->frames; p.piece++) {
        const int64_t want = at == 0 ? first : most, t = want < a->frames - at ? want : a->frames - at;
        p.t = t;
        p.h = h;
        p.w = w;
        p.first = at == 0;
        p.at = 0;
        OQ_TRY(encode_piece(ex, s, &p, oq_tensor_rows(x, at * pixels, t * pixels), y, &rows));
        at += t;
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
