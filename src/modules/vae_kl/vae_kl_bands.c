/* vae_kl_bands.c -- stages of an autoencoder at high resolution, in bands of rows.
 *
 * Group norm looks at the whole picture, so a band cannot go through the network by itself. What can: the way from one
 * norm to the next, for its statistics alone. Of each resolution one picture is kept, which each residual block updates
 * in place; its two norms ask for two passes over the bands:
 *
 *     1. conv1(silu(norm1 x)), of which the statistics for norm2 are all that stays
 *     2. the same again, then x + conv2(silu(norm2 ...)), band by band over x; statistics for the next block's norm1
 *
 * A convolution sees one row beyond its output, so a band is computed with some rows more on either side. The rows of x
 * above a band were overwritten by the band before; they are kept aside.
 *
 * Where the largest stage leaves room to a smaller one, what lies between its norms is kept whole and computed once.
 *
 * The first block of a stage reads the picture of the resolution before it, which lies at the end of the store while
 * the new one grows from its start, and enlarges it as it goes (a pass more, for the statistics of the enlarged
 * picture). All of it together computes a decoder's products about 1.3 times, and the margins once more.
 *
 * Results are those of the whole picture up to the rounding of statistics. On the CPU they are the same bits where a
 * band's pixels are a multiple of 64: sums of bands are added in double, and bands of a multiple of 16 rows let the kernels'
 * tiles fall as they do in the whole. */
#include "modules/vae_kl/vae_kl_bands.h"

#include "base/size.h"

static const float EPS = 1e-6f;

enum {
    MARGIN = 4
}; /* rows beyond a band: what two convolutions see, and their kernels' tiles lie as in the whole */
enum { ALIGNED = 128 }; /* elements: where a buffer begins */

/* ---- sizes --------------------------------------------------------------------------------------------- */

typedef struct layout { /* of a stage; elements, one part behind the other in `all` */
    int64_t store, first, second, kept;
} layout;

typedef struct map { /* a picture in the store */
    int64_t at, h, w, c;
} map;

/* First row of a source that rows [lo, ...) of its enlargement see. */
static int64_t first_row(bool enlarged, int64_t lo)
{
    return !enlarged ? oq_max_i64(lo, 0) : lo > 0 ? (lo - 1) / 2 : 0;
}

/* Room for `to` growing from the start while `from` is read at the end: no band reaches what the next one reads. */
static int64_t store_for(map to, map from, bool enlarged, int64_t rows)
{
    const int64_t new_row = to.w * to.c, old_row = from.w * from.c, old = from.h * old_row;
    int64_t room = oq_max_i64(to.h * new_row, old);
    for (int64_t end = rows; end < to.h; end += rows)
        room = oq_max_i64(room, end * new_row + old - first_row(enlarged, end - MARGIN) * old_row);
    return room;
}

static int64_t aligned(int64_t elems)
{
    return oq_ceil_div(elems, ALIGNED) * ALIGNED;
}

static bool in_place(const oq_vae_kl_stage *stage, bool enlarged)
{
    return !enlarged && !stage->resnets[0].has_shortcut;
}

/* Of a stage at h x w; `enlarged`: its first block reads a picture of half the side. */
static layout layout_of(const oq_vae_kl_stage *stage, bool enlarged, int64_t h, int64_t w, int64_t rows)
{
    const oq_conv2d_spec *const spec = &stage->resnets[0].conv1.spec;
    const int64_t up = enlarged ? 2 : 1, height = oq_min_i64(rows, h);
    const map to = {0, h, w, spec->c_out}, from = {0, h / up, w / up, spec->c_in};
    layout l = {.store = h * w * to.c};
    if (!in_place(stage, enlarged)) l.store = store_for(to, from, enlarged, rows);
    l.store = aligned(l.store);
    l.first = aligned((height + 2 * MARGIN + 4) * w * oq_max_i64(to.c, from.c));
    l.second = aligned((height + 2 * MARGIN) * w * to.c);
    l.kept = aligned(MARGIN * w * to.c);
    return l;
}

static int64_t layout_elems(const layout *l)
{
    return l->store + l->first + l->second + l->kept;
}

int64_t oq_vae_kl_decode_first(const oq_vae_kl *s, int64_t h, int64_t rows)
{
    int64_t first = 0;
    while (first < s->n_blocks && (rows <= 0 || (h << first) <= rows)) first++;
    return first;
}

int64_t oq_vae_kl_encode_count(const oq_vae_kl *s, int64_t h, int64_t rows)
{
    int64_t count = 0;
    while (count < s->n_blocks && rows > 0 && (h >> count) > rows) count++;
    return count;
}

int64_t oq_vae_kl_decode_bands_elems(const oq_vae_kl *s, int64_t first, int64_t h, int64_t w, int64_t rows)
{
    int64_t most = 0;
    for (int64_t i = first; i < s->n_blocks; i++) {
        const layout l = layout_of(&s->decoder.stages[i], i > 0, h << i, w << i, rows);
        most = oq_max_i64(most, layout_elems(&l));
    }
    return most;
}

int64_t oq_vae_kl_encode_bands_elems(const oq_vae_kl *s, int64_t count, int64_t h, int64_t w, int64_t rows)
{
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        const layout l = layout_of(&s->encoder.stages[i], false, h >> i, w >> i, rows);
        most = oq_max_i64(most, layout_elems(&l));
    }
    return most;
}

/* ---- pictures and bands -------------------------------------------------------------------------------- */

typedef struct work {
    oq_exec *ex;
    const oq_vae_kl *s;
    int64_t rows;  /* of a band */
    oq_tensor all; /* [1, elems] */
    bool roomy;    /* the stage's `mid` has a place: conv1's output need not be computed twice */
    map mid;
    oq_tensor first, second, kept; /* the stage's buffers behind its store, [1, ...] */
    oq_group_moments x, between,
        next; /* of the picture, of what lies between its norms, of the picture to come */
} work;

typedef struct band { /* rows [at, end) of a picture, computed from rows [lo, hi) */
    int64_t at, end, lo, hi;
} band;

typedef struct source { /* what a stage's first block reads */
    map m;
    const oq_conv2d *enlarge; /* NULL: x is the picture itself */
} source;

static oq_tensor view(oq_tensor buffer, int64_t at, int64_t rows, int64_t cols)
{
    return oq_tensor_reshape(oq_tensor_cols(buffer, at, rows * cols), rows, cols);
}

/* Rows [from, end) of a picture. */
static oq_tensor lines(const work *k, const map *m, int64_t from, int64_t end)
{
    return view(k->all, m->at + from * m->w * m->c, (end - from) * m->w, m->c);
}

static bool next_band(band *b, int64_t rows, int64_t h, int64_t beyond)
{
    b->at = b->end;
    b->end = oq_min_i64(h, b->at + rows);
    b->lo = oq_max_i64(0, b->at - beyond);
    b->hi = oq_min_i64(h, b->end + beyond);
    return b->at < h;
}

/* The band's own rows of what was computed from lo on. */
static oq_tensor own(oq_tensor t, const band *b, int64_t w)
{
    return oq_tensor_rows(t, (b->at - b->lo) * w, (b->end - b->at) * w);
}

static void set_buffers(work *k, const layout *l)
{
    k->first = oq_tensor_cols(k->all, l->store, l->first);
    k->second = oq_tensor_cols(k->all, l->store + l->first, l->second);
    k->kept = oq_tensor_cols(k->all, l->store + l->first + l->second, l->kept);
}

static void take_next(work *k)
{
    const oq_group_moments spent = k->x;
    k->x = k->next;
    k->next = spent;
    k->next.n = k->between.n = 0;
}

static oq_status new_moments(work *k, int64_t h)
{
    const int64_t n = oq_ceil_div(h, k->rows);
    OQ_TRY(oq_group_moments_new(k->ex, k->s->n_groups, n, &k->x));
    OQ_TRY(oq_group_moments_new(k->ex, k->s->n_groups, n, &k->between));
    return oq_group_moments_new(k->ex, k->s->n_groups, n, &k->next);
}

/* The picture to another place of the store, which may overlap it. */
static oq_status move(work *k, map *m, int64_t to)
{
    const int64_t row = m->w * m->c, step = oq_min_i64(k->first.cols / row, m->h);
    const int64_t n = oq_ceil_div(m->h, step);
    map target = *m;
    target.at = to;
    for (int64_t i = 0; i < n; i++) {
        const int64_t piece = to > m->at ? n - 1 - i : i, from = piece * step,
                      end = oq_min_i64(m->h, from + step);
        const oq_tensor between = view(k->first, 0, (end - from) * m->w, m->c);
        OQ_TRY(oq_copy_forward(k->ex, between, lines(k, m, from, end)));
        OQ_TRY(oq_copy_forward(k->ex, lines(k, &target, from, end), between));
    }
    *m = target;
    return OQ_OK;
}

/* ---- residual blocks ----------------------------------------------------------------------------------- */

/* Rows [lo, hi) of the enlarged source, in the first buffer. */
static oq_status enlarge(work *k, const source *src, const band *b, oq_tensor *x)
{
    const int64_t from = first_row(true, b->lo), end = oq_min_i64(src->m.h, b->hi / 2 + 1), w = 2 * src->m.w;
    const oq_tensor out = view(k->first, 0, 2 * (end - from) * w, src->m.c);
    OQ_TRY(
        oq_conv2d_forward(k->ex, src->enlarge, out, lines(k, &src->m, from, end), 1, end - from, src->m.w));
    *x = oq_tensor_rows(out, (b->lo - 2 * from) * w, (b->hi - b->lo) * w);
    return OQ_OK;
}

static oq_status norm1(work *k, const oq_vae_kl_resnet *r, oq_tensor y, oq_tensor x)
{
    return oq_group_norm_rows_forward(k->ex, y, x, &r->norm1_weight, &r->norm1_bias, EPS, &k->x, true);
}

/* silu(norm1 x) of rows [lo, hi). `overwritten`: those above the band are the kept ones. */
static oq_status norm_band(work *k, const oq_vae_kl_resnet *r, const source *src, const band *b,
                           bool overwritten, oq_tensor *y)
{
    const int64_t w = src->m.w, c = src->m.c, above = overwritten ? b->at - b->lo : 0;
    *y = view(k->first, 0, (b->hi - b->lo) * w, c);
    if (above)
        OQ_TRY(norm1(k, r, oq_tensor_rows(*y, 0, above * w),
                     view(k->kept, (MARGIN - above) * w * c, above * w, c)));
    return norm1(k, r, oq_tensor_rows(*y, above * w, (b->hi - b->lo - above) * w),
                 lines(k, &src->m, b->lo + above, b->hi));
}

static oq_status conv_band(work *k, const oq_conv2d *c, oq_tensor y, oq_tensor x, const band *b, int64_t w)
{
    return oq_conv2d_forward(k->ex, c, y, x, 1, b->hi - b->lo, w);
}

/* x' of the band: the input itself, or its shortcut where the width changes. */
static oq_status shortcut(work *k, const oq_vae_kl_resnet *r, oq_tensor y, oq_tensor x, const band *b,
                          int64_t w)
{
    if (!r->has_shortcut) return oq_copy_forward(k->ex, y, x);
    return oq_conv2d_forward(k->ex, &r->shortcut, y, x, 1, b->end - b->at, w);
}

/* silu(norm1 x) of rows [lo, hi) from a source that is not overwritten. `ahead`: x' of the band goes to `to`, which may lie over
 * what no other band reads. */
static oq_status read_source(work *k, const oq_vae_kl_resnet *r, const source *src, const map *to,
                             const band *b, bool ahead, oq_tensor *x)
{
    const oq_tensor y = lines(k, to, b->at, b->end);
    if (src->enlarge) {
        OQ_TRY(enlarge(k, src, b, x));
        if (ahead) OQ_TRY(shortcut(k, r, y, own(*x, b, to->w), b, to->w));
        return norm1(k, r, *x, *x);
    }
    OQ_TRY(norm_band(k, r, src, b, false, x));
    if (!ahead || !r->has_shortcut) return OQ_OK; /* x is where it stays */
    const oq_tensor old = view(k->second, 0, (b->end - b->at) * to->w, to->c);
    OQ_TRY(shortcut(k, r, old, lines(k, &src->m, b->at, b->end), b, to->w));
    return oq_copy_forward(k->ex, y, old);
}

/* Pass 1: statistics of conv1(silu(norm1 x)), and all of it where there is room. */
static oq_status look(work *k, const oq_vae_kl_resnet *r, const source *src, const map *to)
{
    for (band b = {0}; next_band(&b, k->rows, to->h, MARGIN);) {
        oq_tensor x;
        const oq_tensor mid = view(k->second, 0, (b.hi - b.lo) * to->w, to->c);
        OQ_TRY(oq_check_canceled(k->ex->env));
        OQ_TRY(read_source(k, r, src, to, &b, k->roomy, &x));
        OQ_TRY(conv_band(k, &r->conv1, mid, x, &b, to->w));
        OQ_TRY(oq_group_moments_add(k->ex, &k->between, own(mid, &b, to->w)));
        if (k->roomy) OQ_TRY(oq_copy_forward(k->ex, lines(k, &k->mid, b.at, b.end), own(mid, &b, to->w)));
    }
    return OQ_OK;
}

/* One band of pass 2 where pass 1 has left conv1's output, and x' in its place. */
static oq_status write_kept(work *k, const oq_vae_kl_resnet *r, const map *to, const band *b)
{
    const oq_tensor mid = view(k->first, 0, (b->hi - b->lo) * to->w, to->c),
                    out = view(k->second, 0, (b->hi - b->lo) * to->w, to->c), y = lines(k, to, b->at, b->end);
    OQ_TRY(oq_group_norm_rows_forward(k->ex, mid, lines(k, &k->mid, b->lo, b->hi), &r->norm2_weight,
                                      &r->norm2_bias, EPS, &k->between, true));
    OQ_TRY(conv_band(k, &r->conv2, out, mid, b, to->w));
    return oq_add_forward(k->ex, y, y, own(out, b, to->w));
}

/* conv2(silu(norm2(conv1 x))) of the band, in the first buffer, where x may be. */
static oq_status residual(work *k, const oq_vae_kl_resnet *r, const map *to, const band *b, oq_tensor x,
                          oq_tensor *out)
{
    const oq_tensor mid = view(k->second, 0, (b->hi - b->lo) * to->w, to->c),
                    all = view(k->first, 0, (b->hi - b->lo) * to->w, to->c);
    OQ_TRY(conv_band(k, &r->conv1, mid, x, b, to->w));
    OQ_TRY(oq_group_norm_rows_forward(k->ex, mid, mid, &r->norm2_weight, &r->norm2_bias, EPS, &k->between,
                                      true));
    OQ_TRY(conv_band(k, &r->conv2, all, mid, b, to->w));
    *out = own(all, b, to->w);
    return OQ_OK;
}

/* One band of pass 2 where the source is enlarged: it is spent before `to` is written. */
static oq_status write_enlarged(work *k, const oq_vae_kl_resnet *r, const source *src, const map *to,
                                const band *b)
{
    oq_tensor x, out;
    const oq_tensor y = lines(k, to, b->at, b->end);
    OQ_TRY(read_source(k, r, src, to, b, true, &x));
    OQ_TRY(residual(k, r, to, b, x, &out));
    return oq_add_forward(k->ex, y, y, out);
}

/* Another source of the same size: its rows may lie where `to` is written. */
static oq_status write_apart(work *k, const oq_vae_kl_resnet *r, const source *src, const map *to,
                             const band *b)
{
    oq_tensor x, out;
    OQ_TRY(norm_band(k, r, src, b, false, &x));
    OQ_TRY(residual(k, r, to, b, x, &out));
    const oq_tensor old = view(k->second, 0, (b->end - b->at) * to->w, to->c);
    OQ_TRY(shortcut(k, r, old, lines(k, &src->m, b->at, b->end), b, to->w));
    return oq_add_forward(k->ex, lines(k, to, b->at, b->end), out, old);
}

static oq_status write_in_place(work *k, const oq_vae_kl_resnet *r, const source *src, const map *to,
                                const band *b)
{
    oq_tensor x, out;
    const oq_tensor y = lines(k, to, b->at, b->end);
    OQ_TRY(norm_band(k, r, src, b, true, &x));
    if (b->end < to->h)
        OQ_TRY(oq_copy_forward(k->ex, view(k->kept, 0, MARGIN * to->w, to->c),
                               lines(k, to, b->end - MARGIN, b->end)));
    OQ_TRY(residual(k, r, to, b, x, &out));
    return oq_add_forward(k->ex, y, y, out);
}

/* The block's output becomes `to`, its statistics those of the picture. */
static oq_status resnet_bands(work *k, const oq_vae_kl_resnet *r, const source *src, const map *to)
{
    OQ_TRY(look(k, r, src, to));
    for (band b = {0}; next_band(&b, k->rows, to->h, MARGIN);) {
        OQ_TRY(oq_check_canceled(k->ex->env));
        if (k->roomy)
            OQ_TRY(write_kept(k, r, to, &b));
        else if (src->enlarge)
            OQ_TRY(write_enlarged(k, r, src, to, &b));
        else if (r->has_shortcut)
            OQ_TRY(write_apart(k, r, src, to, &b));
        else
            OQ_TRY(write_in_place(k, r, src, to, &b));
        OQ_TRY(oq_group_moments_add(k->ex, &k->next, lines(k, to, b.at, b.end)));
    }
    take_next(k);
    return OQ_OK;
}

/* ---- stages -------------------------------------------------------------------------------------------- */

/* Statistics of the picture that the first block reads. */
static oq_status look_at_source(work *k, const source *src, int64_t h)
{
    for (band b = {0}; next_band(&b, k->rows, h, 0);) {
        oq_tensor x;
        if (src->enlarge)
            OQ_TRY(enlarge(k, src, &b, &x));
        else
            x = lines(k, &src->m, b.at, b.end);
        OQ_TRY(oq_group_moments_add(k->ex, &k->next, x));
    }
    take_next(k);
    return OQ_OK;
}

/* The picture m becomes the stage's output. The statistics of m are known unless it is enlarged first. */
static oq_status stage_bands(work *k, const oq_vae_kl_stage *stage, const oq_conv2d *enlarge_by, map *m)
{
    const int64_t up = enlarge_by ? 2 : 1;
    const layout l = layout_of(stage, enlarge_by != NULL, m->h * up, m->w * up, k->rows);
    set_buffers(k, &l);
    k->mid = (map){layout_elems(&l), m->h * up, m->w * up, stage->resnets[0].conv1.spec.c_out};
    k->roomy = k->mid.at + k->mid.h * k->mid.w * k->mid.c <= k->all.cols;
    if (!in_place(stage, enlarge_by != NULL)) OQ_TRY(move(k, m, l.store - m->h * m->w * m->c));
    const map to = {.h = m->h * up, .w = m->w * up, .c = stage->resnets[0].conv1.spec.c_out};
    const source src = {*m, enlarge_by};
    if (enlarge_by) OQ_TRY(look_at_source(k, &src, to.h));
    OQ_TRY(resnet_bands(k, &stage->resnets[0], &src, &to));
    *m = to;
    for (int64_t i = 1; i < stage->n_resnets; i++)
        OQ_TRY(resnet_bands(k, &stage->resnets[i], &(source){*m, NULL}, m));
    return OQ_OK;
}

/* conv_out(silu(norm x)) */
static oq_status out_bands(work *k, const oq_vae_kl_side *side, const map *m, oq_tensor y)
{
    const oq_conv2d *const c = &side->conv_out;
    for (band b = {0}; next_band(&b, k->rows, m->h, MARGIN);) {
        const oq_tensor x = view(k->first, 0, (b.hi - b.lo) * m->w, m->c),
                        out = view(k->second, 0, (b.hi - b.lo) * m->w, c->spec.c_out);
        OQ_TRY(oq_check_canceled(k->ex->env));
        OQ_TRY(oq_group_norm_rows_forward(k->ex, x, lines(k, m, b.lo, b.hi), &side->norm_weight,
                                          &side->norm_bias, EPS, &k->x, true));
        OQ_TRY(conv_band(k, c, out, x, &b, m->w));
        OQ_TRY(oq_copy_forward(k->ex, oq_tensor_rows(y, b.at * m->w, (b.end - b.at) * m->w),
                               own(out, &b, m->w)));
    }
    return OQ_OK;
}

oq_status oq_vae_kl_decode_bands(oq_exec *ex, const oq_vae_kl *s, int64_t first, int64_t rows, oq_tensor all,
                                 int64_t h, int64_t w, oq_tensor y)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_vae_kl_stage *const stages = s->decoder.stages;
    const int64_t before = first ? first - 1 : 0; /* the stage that left the picture, or the middle block */
    work k = {.ex = ex, .s = s, .rows = rows, .all = all};
    map m = {.h = h << before, .w = w << before, .c = stages[first].resnets[0].conv1.spec.c_in};
    OQ_TRY(new_moments(&k, h << (s->n_blocks - 1)));
    if (first == 0) OQ_TRY(look_at_source(&k, &(source){m, NULL}, m.h));
    for (int64_t i = first; i < s->n_blocks; i++)
        OQ_TRY(stage_bands(&k, &stages[i], i ? &stages[i - 1].resample : NULL, &m));
    OQ_TRY(out_bands(&k, &s->decoder, &m, y));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- the encoder --------------------------------------------------------------------------------------- */

/* m = conv_in x */
static oq_status in_bands(work *k, oq_tensor x, const map *m)
{
    for (band b = {0}; next_band(&b, k->rows, m->h, MARGIN);) {
        const oq_tensor out = view(k->first, 0, (b.hi - b.lo) * m->w, m->c);
        OQ_TRY(oq_check_canceled(k->ex->env));
        OQ_TRY(conv_band(k, &k->s->encoder.conv_in, out, oq_tensor_rows(x, b.lo * m->w, (b.hi - b.lo) * m->w),
                         &b, m->w));
        OQ_TRY(oq_copy_forward(k->ex, lines(k, m, b.at, b.end), own(out, &b, m->w)));
        OQ_TRY(oq_group_moments_add(k->ex, &k->next, own(out, &b, m->w)));
    }
    take_next(k);
    return OQ_OK;
}

/* Halved in place: what is written ends before what the next band reads. An output row sees three rows, from twice its own on. */
static oq_status halve_bands(work *k, const oq_conv2d *c, map *m)
{
    const map to = {.h = m->h / 2, .w = m->w / 2, .c = m->c};
    for (band b = {0}; next_band(&b, k->rows, to.h, 0);) {
        const int64_t from = 2 * b.at, end = oq_min_i64(m->h, 2 * b.end + 1);
        const oq_tensor out = view(k->second, 0, (b.end - b.at) * to.w, to.c);
        OQ_TRY(oq_check_canceled(k->ex->env));
        OQ_TRY(oq_conv2d_forward(k->ex, c, out, lines(k, m, from, end), 1, end - from, m->w));
        OQ_TRY(oq_copy_forward(k->ex, lines(k, &to, b.at, b.end), out));
        OQ_TRY(oq_group_moments_add(k->ex, &k->next, out));
    }
    take_next(k);
    *m = to;
    return OQ_OK;
}

oq_status oq_vae_kl_encode_bands(oq_exec *ex, const oq_vae_kl *s, int64_t count, int64_t rows, oq_tensor all,
                                 oq_tensor x, int64_t h, int64_t w)
{
    const oq_mark mark = oq_mark_get(ex);
    const layout l = layout_of(&s->encoder.stages[0], false, h, w, rows);
    work k = {.ex = ex, .s = s, .rows = rows, .all = all};
    map m = {.h = h, .w = w, .c = s->channels[0]};
    OQ_TRY(new_moments(&k, h));
    set_buffers(&k, &l);
    OQ_TRY(in_bands(&k, x, &m));
    for (int64_t i = 0; i < count; i++) {
        const oq_vae_kl_stage *const stage = &s->encoder.stages[i];
        OQ_TRY(stage_bands(&k, stage, NULL, &m));
        if (stage->has_resample) OQ_TRY(halve_bands(&k, &stage->resample, &m));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
