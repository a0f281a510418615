/* vae_kl_forward.c -- AutoencoderKL: decoding and encoding of one picture in two work buffers; what is larger than a band
 * goes to vae_kl_bands.c.
 *
 * The picture lives at the start of one buffer ("here"), the other is free; whoever needs a new shape writes
 * it to the free one and swaps. A residual block without a change of width works in place. This keeps the
 * peak at two copies of the widest picture, which decides whether a large decode fits in memory. */
#include "modules/vae_kl/vae_kl.h"

#include "base/size.h"
#include "modules/vae_kl/vae_kl_bands.h"

#include <math.h>

static const float EPS = 1e-6f;

typedef struct canvas {
    oq_tensor here, free; /* [1, elems] each */
    int64_t h, w, c;      /* of the picture in `here` */
} canvas;

static oq_tensor view(oq_tensor buffer, int64_t at, int64_t rows, int64_t cols)
{
    return oq_tensor_reshape(oq_tensor_cols(buffer, at, rows * cols), rows, cols);
}

static oq_tensor picture(const canvas *p)
{
    return view(p->here, 0, p->h * p->w, p->c);
}

static void swap(canvas *p)
{
    const oq_tensor t = p->here;
    p->here = p->free;
    p->free = t;
}

int64_t oq_vae_kl_scale(const oq_vae_kl *s)
{
    return (int64_t)1 << (s->n_blocks - 1);
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

static int64_t resnet_width(const oq_vae_kl_resnet *r)
{
    return oq_max_i64(r->conv1.spec.c_in, 2 * r->conv1.spec.c_out);
}

/* Elements per pixel of a stage at its own resolution. */
static int64_t stage_width(const oq_vae_kl_stage *stage)
{
    int64_t width = 0;
    for (int64_t i = 0; i < stage->n_resnets; i++)
        width = oq_max_i64(width, resnet_width(&stage->resnets[i]));
    return width;
}

static bool grow(int64_t pixels, int64_t width, int64_t *elems)
{
    int64_t n;
    if (!oq_i64_mul(pixels, width, &n)) return false;
    *elems = oq_max_i64(*elems, n);
    return true;
}

/* Of the middle block and the first n stages; without the change of resolution behind the last where more would follow. */
static bool decode_elems(const oq_vae_kl *s, int64_t n, int64_t h, int64_t w, int64_t *out)
{
    int64_t pixels, elems = 0;
    if (!oq_i64_mul(h, w, &pixels) || !grow(pixels, 4 * s->decoder_channels[s->n_blocks - 1], &elems) ||
        !grow(pixels, s->latent_channels, &elems))
        return false;
    for (int64_t i = 0; i < n; i++) {
        const oq_vae_kl_stage *stage = &s->decoder.stages[i];
        if (!grow(pixels, stage_width(stage), &elems)) return false;
        if (i + 1 < n &&
            (!oq_i64_mul(pixels, 4, &pixels) || !grow(pixels, stage->resample.spec.c_in, &elems)))
            return false;
    }
    *out = elems;
    return true;
}

bool oq_vae_kl_decode_elems(const oq_vae_kl *s, int64_t h, int64_t w, int64_t *out)
{
    return decode_elems(s, s->n_blocks, h, w, out);
}

/* Of the stages from `first` on and the middle block; h x w: the picture at that stage. */
static bool encode_elems(const oq_vae_kl *s, int64_t first, int64_t h, int64_t w, int64_t *out)
{
    int64_t pixels, elems = 0;
    if (!oq_i64_mul(h, w, &pixels)) return false;
    for (int64_t i = first; i < s->n_blocks; i++) {
        const oq_vae_kl_stage *stage = &s->encoder.stages[i];
        if (!grow(pixels, stage_width(stage), &elems)) return false;
        if (stage->has_resample) pixels /= 4;
    }
    *out = elems;
    return grow(pixels, 4 * s->channels[s->n_blocks - 1], out) && grow(pixels, 2 * s->latent_channels, out);
}

/* Two buffers out of `all`. `first`: the picture begins in the first of them. */
static void set_canvas(canvas *p, oq_tensor all, bool first)
{
    const int64_t elems = all.cols / 2;
    p->here = oq_tensor_cols(all, first ? 0 : elems, elems);
    p->free = oq_tensor_cols(all, first ? elems : 0, elems);
}

/* Elements of `all`. */
static int64_t canvas_elems(int64_t elems)
{
    enum { ALIGNED = 128 };
    return 2 * ALIGNED * oq_ceil_div(elems, ALIGNED);
}

static oq_status check_size(oq_exec *ex, bool fits, int64_t elems)
{
    if (fits && elems <= INT64_MAX / 4) return OQ_OK;
    return oq_fail(ex->env, OQ_E_NOMEM, "autoencoder: the picture does not fit in memory");
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

static oq_status conv(oq_exec *ex, const oq_conv2d *c, oq_tensor y, oq_tensor x, const canvas *p)
{
    return oq_conv2d_forward(ex, c, y, x, 1, p->h, p->w);
}

/* x' + conv2(silu(norm2(conv1(silu(norm1(x)))))), x' = shortcut(x) where the width changes */
static oq_status resnet_forward(oq_exec *ex, const oq_vae_kl *s, const oq_vae_kl_resnet *r, canvas *p)
{
    OQ_TRY(oq_check_canceled(ex->env));
    const int64_t n = p->h * p->w, c_out = r->conv1.spec.c_out;
    const oq_tensor x = picture(p), first = view(p->free, 0, n, c_out),
                    second = view(p->free, n * c_out, n, c_out);
    if (!r->has_shortcut) {
        OQ_TRY(
            oq_group_norm_forward(ex, first, x, &r->norm1_weight, &r->norm1_bias, EPS, s->n_groups, 1, true));
        OQ_TRY(conv(ex, &r->conv1, second, first, p));
        OQ_TRY(oq_group_norm_forward(ex, second, second, &r->norm2_weight, &r->norm2_bias, EPS, s->n_groups,
                                     1, true));
        OQ_TRY(conv(ex, &r->conv2, first, second, p));
        return oq_add_forward(ex, x, x, first);
    }
    const oq_tensor out = view(p->here, 0, n, c_out); /* where x was, once it is spent */
    OQ_TRY(conv(ex, &r->shortcut, first, x, p));
    OQ_TRY(oq_group_norm_forward(ex, x, x, &r->norm1_weight, &r->norm1_bias, EPS, s->n_groups, 1, true));
    OQ_TRY(conv(ex, &r->conv1, second, x, p));
    OQ_TRY(oq_group_norm_forward(ex, second, second, &r->norm2_weight, &r->norm2_bias, EPS, s->n_groups, 1,
                                 true));
    OQ_TRY(conv(ex, &r->conv2, out, second, p));
    OQ_TRY(oq_add_forward(ex, out, out, first));
    p->c = c_out;
    return OQ_OK;
}

/* x += to_out(attention(to_q(h), to_k(h), to_v(h))), h = norm(x); one head as wide as the picture is deep */
static oq_status mid_attention_forward(oq_exec *ex, const oq_vae_kl *s, const oq_vae_kl_mid *m, canvas *p)
{
    OQ_TRY(oq_check_canceled(ex->env));
    const int64_t n = p->h * p->w, c = p->c;
    const oq_tensor x = picture(p), h = view(p->free, 0, n, c), qkv = view(p->free, n * c, n, 3 * c);
    const oq_tensor q = oq_tensor_cols(qkv, 0, c), k = oq_tensor_cols(qkv, c, c),
                    v = oq_tensor_cols(qkv, 2 * c, c);
    OQ_TRY(oq_group_norm_forward(ex, h, x, &m->norm_weight, &m->norm_bias, EPS, s->n_groups, 1, false));
    OQ_TRY(oq_linear_forward(ex, &m->qkv, qkv, h));
    OQ_TRY(oq_attention_forward(ex, &m->attention, h, q, k, v, NULL));
    OQ_TRY(oq_linear_forward(ex, &m->out, q, h)); /* q is spent */
    return oq_add_forward(ex, x, x, q);
}

static oq_status mid_forward(oq_exec *ex, const oq_vae_kl *s, const oq_vae_kl_mid *m, canvas *p)
{
    OQ_TRY(resnet_forward(ex, s, &m->resnets[0], p));
    if (s->mid_attention) OQ_TRY(mid_attention_forward(ex, s, m, p));
    return resnet_forward(ex, s, &m->resnets[1], p);
}

static oq_status upsample_forward(oq_exec *ex, const oq_conv2d *c, canvas *p)
{
    OQ_TRY(conv(ex, c, view(p->free, 0, 4 * p->h * p->w, p->c), picture(p), p));
    p->h *= 2;
    p->w *= 2;
    swap(p);
    return OQ_OK;
}

static oq_status downsample_forward(oq_exec *ex, const oq_conv2d *c, canvas *p)
{
    OQ_TRY(conv(ex, c, view(p->free, 0, p->h / 2 * (p->w / 2), p->c), picture(p), p));
    p->h /= 2;
    p->w /= 2;
    swap(p);
    return OQ_OK;
}

/* conv_out(silu(norm(x))) */
static oq_status out_forward(oq_exec *ex, const oq_vae_kl *s, const oq_vae_kl_side *side, canvas *p,
                             oq_tensor y)
{
    const oq_tensor x = picture(p);
    OQ_TRY(oq_group_norm_forward(ex, x, x, &side->norm_weight, &side->norm_bias, EPS, s->n_groups, 1, true));
    return conv(ex, &side->conv_out, y, x, p);
}

/* ---- the two directions -------------------------------------------------------------------------------- */

/* The picture as [1, C, h, w]; costs nothing without a trace. */
static oq_status trace_picture(oq_exec *ex, const canvas *p, const char *trace, const char *key)
{
    if (!trace || !ex->trace || ex->measure) return OQ_OK;
    const int64_t n = p->h * p->w, shape[4] = {1, p->c, p->h, p->w};
    const oq_tensor planes = view(p->free, 0, p->c, n);
    const int64_t dim[6] = {1, 1, 1, 1, p->c, n}, to[6] = {0, 0, 0, 0, n, 1}, from[6] = {0, 0, 0, 0, 1, p->c};
    OQ_TRY(oq_permute_forward(ex, planes, picture(p), dim, to, from));
    return oq_trace_put(ex, planes, shape, 4, "%s.%s", trace, key);
}

static int64_t band_rows(int64_t band)
{
    return band <= 0 ? 0 : oq_ceil_div(band, OQ_VAE_KL_LEAST_ROWS) * OQ_VAE_KL_LEAST_ROWS;
}

/* Latents through the middle block and the first n stages. */
static oq_status decode_whole(oq_exec *ex, const oq_vae_kl *s, oq_tensor z, int64_t n, canvas *p,
                              const char *trace)
{
    if (s->has_post_quant_conv) {
        const oq_tensor mixed = view(p->free, 0, p->h * p->w, s->latent_channels);
        OQ_TRY(conv(ex, &s->post_quant_conv, mixed, z, p));
        z = mixed;
    }
    p->c = s->decoder_channels[s->n_blocks - 1];
    OQ_TRY(conv(ex, &s->decoder.conv_in, picture(p), z, p));
    OQ_TRY(mid_forward(ex, s, &s->decoder.mid, p));
    OQ_TRY(trace_picture(ex, p, trace, "mid"));
    for (int64_t i = 0; i < n; i++) {
        const oq_vae_kl_stage *stage = &s->decoder.stages[i];
        for (int64_t r = 0; r < stage->n_resnets; r++) OQ_TRY(resnet_forward(ex, s, &stage->resnets[r], p));
        if (i + 1 < n) OQ_TRY(upsample_forward(ex, &stage->resample, p));
        if (i == 0) OQ_TRY(trace_picture(ex, p, trace, "up0"));
    }
    return OQ_OK;
}

oq_status oq_vae_kl_decode(oq_exec *ex, const oq_vae_kl *s, oq_tensor z, int64_t h, int64_t w, int64_t band,
                           oq_tensor y, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t rows = band_rows(band), n = oq_vae_kl_decode_first(s, h, rows);
    int64_t elems = 0;
    oq_tensor all;
    canvas p = {.h = h, .w = w};
    OQ_TRY(check_size(ex, decode_elems(s, n, h, w, &elems), elems));
    OQ_TRY(oq_tmp(ex, 1, canvas_elems(elems), &all));
    /* every change of resolution swaps the buffers: the bands find the picture at the start */
    set_canvas(&p, all, n % 2 != 0 || n == 0);
    OQ_TRY(decode_whole(ex, s, z, n, &p, trace));
    if (n < s->n_blocks) {
        const int64_t bands = oq_vae_kl_decode_bands_elems(s, n, h, w, rows);
        OQ_TRY(oq_tmp_resize(ex, oq_max_i64(all.cols, bands), &all));
        OQ_TRY(oq_vae_kl_decode_bands(ex, s, n, rows, all, h, w, y));
    } else {
        OQ_TRY(out_forward(ex, s, &s->decoder, &p, y));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* The picture x of h x w through the first n stages in bands, or through conv_in where there are none; then p, of `elems`
 * in each buffer, holds it. */
static oq_status encode_input(oq_exec *ex, const oq_vae_kl *s, int64_t n, int64_t rows, int64_t elems,
                              oq_tensor x, int64_t h, int64_t w, canvas *p)
{
    const int64_t bands = oq_vae_kl_encode_bands_elems(s, n, h, w, rows), canvases = canvas_elems(elems);
    oq_tensor all;
    OQ_TRY(oq_tmp(ex, 1, n ? bands : canvases, &all));
    if (n) {
        OQ_TRY(oq_vae_kl_encode_bands(ex, s, n, rows, all, x, h, w));
        OQ_TRY(oq_tmp_resize(ex, canvases, &all));
    }
    set_canvas(p, all, true);
    p->c = s->channels[n ? n - 1 : 0];
    return n ? OQ_OK : conv(ex, &s->encoder.conv_in, picture(p), x, p);
}

oq_status oq_vae_kl_encode(oq_exec *ex, const oq_vae_kl *s, oq_tensor x, int64_t h, int64_t w, int64_t band,
                           oq_tensor y)
{
    if (h % oq_vae_kl_scale(s) || w % oq_vae_kl_scale(s))
        return oq_fail(ex->env, OQ_E_ARG, "autoencoder: %lld x %lld pixels are not multiples of %lld",
                       (long long)w, (long long)h, (long long)oq_vae_kl_scale(s));
    const oq_mark mark = oq_mark_get(ex);
    const int64_t rows = band_rows(band), n = oq_vae_kl_encode_count(s, h, rows),
                  halvings = n < s->n_blocks ? n : s->n_blocks - 1;
    int64_t elems = 0, whole = 0;
    canvas p = {.h = h >> halvings, .w = w >> halvings};
    const bool fits = encode_elems(s, 0, h, w, &whole) && encode_elems(s, n, p.h, p.w, &elems);
    OQ_TRY(check_size(ex, fits, whole));
    OQ_TRY(encode_input(ex, s, n, rows, elems, x, h, w, &p));
    for (int64_t i = n; i < s->n_blocks; i++) {
        const oq_vae_kl_stage *stage = &s->encoder.stages[i];
        for (int64_t r = 0; r < stage->n_resnets; r++) OQ_TRY(resnet_forward(ex, s, &stage->resnets[r], &p));
        if (stage->has_resample) OQ_TRY(downsample_forward(ex, &stage->resample, &p));
    }
    OQ_TRY(mid_forward(ex, s, &s->encoder.mid, &p));
    if (!s->has_quant_conv) {
        OQ_TRY(out_forward(ex, s, &s->encoder, &p, y));
    } else {
        const oq_tensor moments = view(p.free, 0, p.h * p.w, 2 * s->latent_channels);
        OQ_TRY(out_forward(ex, s, &s->encoder, &p, moments));
        OQ_TRY(conv(ex, &s->quant_conv, y, moments, &p));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static float rounded(const oq_dtype *type, float x)
{
    uint32_t bits = 0; /* room for either type */
    float y;
    type->from_f32(&bits, &x, 1);
    type->to_f32(&y, &bits, 1);
    return y;
}

oq_status oq_vae_kl_statistics(oq_exec *ex, const oq_vae_kl *s, float *mean, float *std)
{
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_download(ex, mean, oq_vector_tensor(&s->mean)));
    OQ_TRY(oq_download(ex, std, oq_vector_tensor(&s->variance)));
    for (int64_t i = 0; i < 4 * s->latent_channels; i++) {
        const float sum = rounded(ex->compute, std[i] + (float)s->statistics_eps);
        std[i] = rounded(ex->compute, sqrtf(sum));
    }
    return OQ_OK;
}
