/* verify.c -- the comparison of verify.h. What a format promises is measured on the layer itself: the base's weights are
 * brought into the frame in which the file holds them (factors, order, rotation, low rank taken out), encoded, decoded and
 * brought back. */
#include "engine/verify.h"

#include "base/pool.h"
#include "base/size.h"
#include "format/format_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Below what was promised: of any layer; of integers in groups where nothing explains it, since rounding that makes up for
 * errors on a layer's inputs (GPTQ) moves weights that meet small inputs far. And of any layer at all. */
enum { MARGIN_DB = 6, CALIBRATED_DB = 12, LEAST_DB = 1 };

typedef struct work { /* one layer's buffers */
    oq_env *env;
    const oq_verify_layer *l;
    oq_scheme scheme;
    oq_layer_planes planes;
    int64_t whole;      /* rows of the planes */
    float *base;        /* [n, k] */
    float *row, *spare; /* [k] */
} work;

/* ---- the base's values ----------------------------------------------------------------------------------- */

static void base_values(const oq_verify_layer *l, float *dst)
{
    for (int i = 0; i < l->n_base; i++) {
        const oq_verify_base *b = &l->base[i];
        const oq_ckpt_tensor *t = b->tensor;
        const int64_t columns = b->columns ? b->columns : l->k;
        for (int64_t r = 0; r < b->rows; r++) {
            const int64_t at = b->first + (b->halves_swapped ? (r + b->rows / 2) % b->rows : r);
            const size_t from = (size_t)(at * columns + b->column);
            t->dtype->to_f32(dst, t->data + from * t->dtype->bytes, (size_t)l->k);
            dst += l->k;
        }
    }
}

static double snr_of(double signal, double noise)
{
    return noise > 0      ? signal > 0 ? 10 * log10(signal / noise) : -INFINITY
           : isnan(noise) ? -INFINITY
                          : INFINITY;
}

/* ---- the file's values ----------------------------------------------------------------------------------- */

/* Row r of the layer among those of the planes. */
static int64_t row_of(const work *w, int64_t r)
{
    const oq_part_source *s = &w->l->source;
    return s->first + (s->halves_swapped ? (r + w->l->n / 2) % w->l->n : r);
}

/* Signal to noise of rows 0, step, 2 step, ... of these planes beside the base. `turned`: base rows from the other half. */
static double snr_of_planes(const work *w, const oq_planes *planes, int64_t step, bool turned)
{
    const oq_format *f = w->l->source.format;
    const int64_t n = w->l->n, k = w->l->k;
    double signal = 0, noise = 0;
    for (int64_t r = 0; r < n; r += step) {
        const float *x = w->base + (turned ? (r + n / 2) % n : r) * k;
        const int64_t at = row_of(w, r);
        f->decode_row(f, w->row, planes, at, w->whole, k);
        oq_layer_fold_row(&w->scheme, planes, w->row, w->spare, at, k);
        for (int64_t c = 0; c < k; c++) {
            const double d = (double)w->row[c] - (double)x[c];
            signal += (double)x[c] * (double)x[c];
            noise += d * d;
        }
    }
    return snr_of(signal, noise);
}

/* ---- what the format promises ---------------------------------------------------------------------------- */

/* The other way round than oq_layer_fold_row: a plain row as the file's codes have to stand for it. */
static void unfold_row(const work *w, float *row, int64_t r)
{
    const oq_scheme *s = &w->scheme;
    const oq_planes *p = &w->planes.planes;
    const int64_t k = w->l->k;
    const int32_t *order = p->plane[OQ_PLANE_ORDER];
    const float *smooth = p->plane[OQ_PLANE_SMOOTH];
    const float *down = p->plane[OQ_PLANE_DOWN], *up = p->plane[OQ_PLANE_UP];
    for (int64_t i = 0; i < s->rank; i++)
        for (int64_t c = 0; c < k; c++) row[c] -= up[r * s->rank + i] * down[i * k + c];
    for (int64_t c = 0; s->smooth && c < k; c++)
        if (smooth[c] != 0) row[c] /= smooth[c];
    if (s->order) {
        for (int64_t c = 0; c < k; c++) w->spare[c] = row[order[c]];
        memcpy(row, w->spare, (size_t)k * sizeof *row);
    }
    for (int64_t c = 0; s->rotate && c < k; c += s->rotate) oq_rotate(row + c, s->rotate);
}

static oq_status promised(const work *w, double *db)
{
    const oq_format *f = w->l->source.format;
    const int64_t n = w->l->n, k = w->l->k;
    oq_layer_planes own = {.planes = w->planes.planes};
    oq_planes_mut to = {0};
    float *x = oq_alloc_raw(w->env, (size_t)(n * k) * sizeof *x);
    oq_status st = x ? OQ_OK : OQ_E_NOMEM;
    *db = NAN;
    for (int i = 0; st == OQ_OK && i < OQ_N_PLANES; i++) {
        if (!(f->planes & 1u << i)) continue;
        st = oq_layer_planes_own(w->env, &own, i, f->plane_bytes(f, (oq_plane)i, n, k));
        to.plane[i] = own.owned[i];
    }
    if (st == OQ_OK) {
        double signal = 0, noise = 0;
        memcpy(x, w->base, (size_t)(n * k) * sizeof *x);
        for (int64_t r = 0; r < n; r++) unfold_row(w, x + r * k, row_of(w, r));
        f->encode(f, &to, x, n, k);
        for (int64_t r = 0; r < n; r++) {
            f->decode_row(f, w->row, &own.planes, r, n, k);
            oq_layer_fold_row(&w->scheme, &own.planes, w->row, w->spare, row_of(w, r), k);
            for (int64_t c = 0; c < k; c++) {
                const double want = (double)w->base[r * k + c], d = (double)w->row[c] - want;
                signal += want * want;
                noise += d * d;
            }
        }
        *db = snr_of(signal, noise);
    }
    oq_layer_planes_free(w->env, &own);
    oq_free(w->env, x);
    return st;
}

/* ---- causes ---------------------------------------------------------------------------------------------- */

/* Changes a copy of one plane as if the writer had done it the other way; false: does not apply. */
typedef bool (*mend)(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes);

static bool swap_nibbles(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes)
{
    const oq_format *f = w->l->source.format;
    if (f->block || bytes != (size_t)(w->whole * w->l->k / 2)) return false;
    for (size_t i = 0; i < bytes; i++) dst[i] = (uint8_t)(src[i] << 4 | src[i] >> 4);
    return true;
}

static bool invert(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes)
{
    const oq_format *f = w->l->source.format;
    const bool bytes_of_scales =
        !f->flat && f->block_k && f->block_k <= 32 && f->planes & 1u << OQ_PLANE_GLOBAL;
    const oq_dtype *const type = f->scale_type ? f->scale_type : &oq_dtype_f32;
    if (bytes % type->bytes != 0 || f->block || (bytes_of_scales && bytes > (size_t)w->whole * sizeof(float)))
        return false;
    for (size_t i = 0; i < bytes; i += type->bytes) {
        float x;
        type->to_f32(&x, src + i, 1);
        x = 1.0f / x;
        type->from_f32(dst + i, &x, 1);
    }
    return true;
}

/* Scales in tiles of 128 rows x 4 that were taken for rows (`into` false), or the other way. */
static bool retile(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes, bool into)
{
    const oq_format *f = w->l->source.format;
    const int64_t groups = f->block_k ? w->l->k / f->block_k : 0, across = groups / 4;
    if (!groups || groups % 4 || w->whole % 128 || bytes != (size_t)(w->whole * groups)) return false;
    for (int64_t r = 0; r < w->whole; r++)
        for (int64_t g = 0; g < groups; g++) {
            const int64_t tile = r / 128 * across + g / 4, in = r % 128, row_at = r * groups + g;
            const int64_t tile_at = tile * 512 + in % 32 * 16 + in / 32 * 4 + g % 4;
            if (into)
                dst[tile_at] = src[row_at];
            else
                dst[row_at] = src[tile_at];
        }
    return true;
}

static bool untile(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes)
{
    return retile(w, src, dst, bytes, false);
}

static bool tile(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes)
{
    return retile(w, src, dst, bytes, true);
}

static bool transpose(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes)
{
    const oq_format *f = w->l->source.format;
    const int64_t rows = f->block_n ? oq_ceil_div(w->whole, f->block_n) : 0;
    const int64_t cols = f->block_k ? oq_ceil_div(w->l->k, f->block_k) : 0;
    const size_t each = rows && cols ? bytes / (size_t)(rows * cols) : 0;
    if (f->block || rows < 2 || cols < 2 || bytes != (size_t)(rows * cols) * each) return false;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            memcpy(dst + (size_t)(r * cols + c) * each, src + (size_t)(c * rows + r) * each, each);
    return true;
}

/* Zero points that are whole numbers, moved within the bits in which they stand. */
static bool move_zeros(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes, unsigned by)
{
    const oq_format *f = w->l->source.format;
    if (!f->int_bits) return false;
    const int64_t groups = oq_ceil_div(w->l->k, f->block_k);
    const unsigned mask = (1u << oq_int_zero_bits(f->int_bits)) - 1u;
    memcpy(dst, src, bytes);
    for (int64_t r = 0; r < w->whole; r++)
        for (int64_t g = 0; g < groups; g++)
            oq_int_put_zero(dst, f->int_bits, r, g, groups,
                            (oq_int_zero(src, f->int_bits, r, g, groups) + by) & mask);
    return true;
}

static bool zero_up(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes)
{
    return move_zeros(w, src, dst, bytes, 1u);
}

static bool zero_down(const work *w, const uint8_t *src, uint8_t *dst, size_t bytes)
{
    return move_zeros(w, src, dst, bytes, ~0u);
}

static const struct {
    oq_plane plane;
    mend mend;
    const char *cause;
} causes[] = {
    {OQ_PLANE_DATA, swap_nibbles, "the two codes of each byte are swapped"},
    {OQ_PLANE_SCALE, untile, "its scales stand in tiles of 128 x 4, but are taken for rows"},
    {OQ_PLANE_SCALE, tile, "its scales stand in rows, but are taken for tiles of 128 x 4"},
    {OQ_PLANE_SCALE, invert, "its scales are the inverse of what they should be"},
    {OQ_PLANE_GLOBAL, invert, "its scale of the tensor is the inverse of what it should be"},
    {OQ_PLANE_SCALE, transpose, "the blocks of its scales stand in the other order"},
    {OQ_PLANE_ZERO, zero_up, "its zero points are one too small"},
    {OQ_PLANE_ZERO, zero_down, "its zero points are one too large"},
};

/* The factor by which all values are off; 1 where that explains nothing. */
static double common_factor(const work *w, double *db)
{
    const oq_format *f = w->l->source.format;
    double xx = 0, xy = 0, yy = 0;
    for (int64_t r = 0; r < w->l->n; r++) {
        const int64_t at = row_of(w, r);
        f->decode_row(f, w->row, &w->planes.planes, at, w->whole, w->l->k);
        oq_layer_fold_row(&w->scheme, &w->planes.planes, w->row, w->spare, at, w->l->k);
        for (int64_t c = 0; c < w->l->k; c++) {
            const double y = (double)w->row[c], x = (double)w->base[r * w->l->k + c];
            xx += x * x, xy += x * y, yy += y * y;
        }
    }
    const double factor = xx > 0 ? xy / xx : 1;
    *db = yy > 0 && factor != 0 ? snr_of(xx, xx - 2 * xy / factor + yy / (factor * factor)) : -INFINITY;
    return factor;
}

static oq_status find_cause(const work *w, double wanted_db, oq_verify_layer *l)
{
    for (size_t i = 0; i < OQ_COUNT(causes); i++) {
        oq_planes changed = w->planes.planes;
        const size_t bytes = oq_scheme_plane_bytes(&w->scheme, causes[i].plane, w->whole, w->l->k);
        const uint8_t *src = changed.plane[causes[i].plane];
        if (!src || bytes == 0) continue;
        uint8_t *copy = oq_alloc_raw(w->env, bytes);
        if (!copy) return OQ_E_NOMEM;
        changed.plane[causes[i].plane] = copy;
        const bool applies = causes[i].mend(w, src, copy, bytes);
        const double db = applies ? snr_of_planes(w, &changed, 1, false) : -INFINITY;
        oq_free(w->env, copy);
        if (db < wanted_db) continue;
        l->cause = causes[i].cause;
        l->mended_db = db;
        return OQ_OK;
    }
    l->mended_db = snr_of_planes(w, &w->planes.planes, 1, true);
    l->cause = "the two halves of its rows are exchanged";
    if (l->mended_db >= wanted_db) return OQ_OK;
    const double factor = common_factor(w, &l->mended_db);
    l->cause = factor > 1 ? "its scales are too large" : "its scales are too small, or of the other sign";
    if (l->mended_db >= wanted_db) return OQ_OK;
    l->mended_db = NAN;
    l->cause =
        l->snr_db < 0
            ? "its values have nothing to do with the base's: another layer, another model, or another "
              "order of its codes"
            : "its weights are of another model, or were changed after that one";
    return OQ_OK;
}

/* ---- one layer ------------------------------------------------------------------------------------------- */

static oq_status compare(work *w, oq_verify_layer *l)
{
    base_values(l, w->base);
    l->snr_db = snr_of_planes(w, &w->planes.planes, 1, false);
    l->promised_db = NAN;
    if (l->source.format->encode) OQ_TRY(promised(w, &l->promised_db));
    const double below = isfinite(l->promised_db) ? l->promised_db - MARGIN_DB : LEAST_DB;
    const double wanted = below > LEAST_DB ? below : LEAST_DB;
    if (l->snr_db >= wanted) return OQ_OK;
    OQ_TRY(find_cause(w, wanted, l));
    const bool unexplained = isnan(l->mended_db) && l->snr_db >= LEAST_DB;
    if (unexplained && l->source.format->int_bits && l->snr_db >= l->promised_db - CALIBRATED_DB)
        l->cause = NULL;
    return OQ_OK;
}

static oq_status run_layer(oq_env *env, oq_verify_layer *l)
{
    const int64_t whole = l->source.whole ? l->source.whole : l->n;
    const oq_inspect_layer stored = {.name = l->name, .n = whole, .k = l->k, .source = l->source};
    work w = {.env = env, .l = l, .whole = whole};
    oq_part_scheme(&l->source, &w.scheme);
    w.base = oq_alloc_raw(env, (size_t)(l->n * l->k) * sizeof *w.base);
    w.row = oq_alloc_raw(env, 2 * (size_t)l->k * sizeof *w.row);
    w.spare = w.row ? w.row + l->k : NULL;
    oq_status st = w.base && w.row ? oq_layer_planes_read(env, &stored, &w.planes) : OQ_E_NOMEM;
    if (st == OQ_OK) st = compare(&w, l);
    oq_layer_planes_free(env, &w.planes);
    oq_free(env, w.row);
    oq_free(env, w.base);
    return st;
}

static void run_job(void *user, int64_t i, int worker)
{
    oq_verify *v = user;
    (void)worker;
    v->layers[i].status = run_layer(v->env, &v->layers[i]);
}

static oq_status fail_layer(const oq_verify *v, const oq_verify_layer *l, size_t n_bad)
{
    char promise[48] = "", mended[64] = "";
    if (!isnan(l->promised_db))
        snprintf(promise, sizeof promise, ", %s gives %.1f", l->source.format->name, l->promised_db);
    if (!isnan(l->mended_db)) snprintf(mended, sizeof mended, " (%.1f dB without that)", l->mended_db);
    return oq_fail(
        v->env, OQ_E_MISMATCH,
        "%s%slayer '%s' holds the weights of '%s' with %.1f dB%s: %s%s; %zu of %zu layers are far below",
        l->component ? l->component : "", l->component ? ": " : "", l->name, v->path, l->snr_db, promise,
        l->cause, mended, n_bad, v->n_layers);
}

oq_status oq_verify_run(oq_verify *v)
{
    const oq_verify_layer *first = NULL;
    size_t n = 0;
    oq_pool_run(v->env->pool, (int64_t)v->n_layers, run_job, v);
    for (size_t i = 0; i < v->n_layers; i++) {
        const oq_verify_layer *l = &v->layers[i];
        if (l->status != OQ_OK)
            return oq_fail(v->env, l->status, "layer '%s' of [%lld, %lld]: %s", l->name, (long long)l->n,
                           (long long)l->k,
                           l->status == OQ_E_NOMEM ? "no memory to verify it"
                                                   : "its planes have another size");
        if (!l->cause) continue;
        if (!first) first = l;
        n++;
    }
    return first ? fail_layer(v, first, n) : OQ_OK;
}

/* ---- the report ------------------------------------------------------------------------------------------ */

oq_json *oq_verify_json(const oq_verify *v)
{
    oq_json *o = oq_json_new_object(), *layers = oq_json_new_array();
    for (size_t i = 0; i < v->n_layers; i++) {
        const oq_verify_layer *l = &v->layers[i];
        oq_json *row = oq_json_new_object();
        oq_json_set(row, "component", oq_json_new_string(l->component));
        oq_json_set(row, "name", oq_json_new_string(l->name));
        oq_json_set(row, "format", oq_json_new_string(l->source.format->name));
        oq_json_set(row, "snr_db", oq_json_new_real(l->snr_db));
        oq_json_set(row, "promised_db",
                    isnan(l->promised_db) ? oq_json_new_null() : oq_json_new_real(l->promised_db));
        oq_json_append(layers, row);
    }
    oq_json_set(o, "base", oq_json_new_string(v->path));
    oq_json_set(o, "layers", layers);
    return o;
}

void oq_verify_print(const oq_verify *v, bool all, oq_strbuf *text)
{
    const oq_verify_layer *worst = NULL;
    for (size_t i = 0; i < v->n_layers; i++) {
        const oq_verify_layer *l = &v->layers[i];
        if (!worst || l->snr_db - l->promised_db < worst->snr_db - worst->promised_db) worst = l;
        if (all)
            oq_strbuf_printf(text, "  %-48s %-22s %6.1f dB, %.1f promised\n", l->name, l->source.format->name,
                             l->snr_db, l->promised_db);
    }
    oq_strbuf_printf(text, "verified against %s: %zu layers", v->path, v->n_layers);
    if (worst)
        oq_strbuf_printf(text, ", the one furthest below what its format gives is '%s': %.1f dB of %.1f",
                         worst->name, worst->snr_db, worst->promised_db);
    oq_strbuf_putc(text, '\n');
}
