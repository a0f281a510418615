/* rewrite_run.c -- the bytes of one output layer: read or decode, encode, spell; measured on the way. Runs on any worker
 * and writes no error text. */
#include "engine/rewrite.h"

#include "base/size.h"

#include <math.h>
#include <string.h>

/* y = W S (x + shift) + U D x + b is a plain layer with b + W S shift. */
oq_status oq_rewrite_bias_values(oq_env *env, const oq_inspect_layer *layer, float *dst)
{
    oq_layer_planes p = {0};
    oq_scheme scheme;
    const oq_format *f = layer->source.format;
    oq_plane_read(&layer->source.bias, dst, (size_t)layer->n * sizeof *dst, layer->n, layer->k);
    oq_part_scheme(&layer->source, &scheme);
    if (!(scheme.shift != 0)) return OQ_OK;
    float *row = oq_alloc_raw(env, (size_t)layer->k * sizeof *row);
    const oq_status st = row ? oq_layer_planes_read(env, layer, &p) : OQ_E_NOMEM;
    const float *smooth = p.planes.plane[OQ_PLANE_SMOOTH];
    for (int64_t r = 0; st == OQ_OK && r < layer->n; r++) {
        double sum = 0.0;
        f->decode_row(f, row, &p.planes, r, layer->n, layer->k);
        for (int64_t c = 0; c < layer->k; c++) sum += (double)row[c] * (smooth ? (double)smooth[c] : 1.0);
        dst[r] += (float)(sum * (double)scheme.shift);
    }
    oq_layer_planes_free(env, &p);
    oq_free(env, row);
    return st == OQ_OK ? OQ_OK : oq_fail(env, st, "layer '%s': its bias cannot be read", layer->name);
}

static oq_status source_values(oq_env *env, const oq_inspect_layer *layer, const oq_ckpt_tensor *t,
                               float *dst)
{
    if (!t) return oq_layer_values(env, layer, dst);
    const oq_planes blocks = {.plane = {[OQ_PLANE_DATA] = t->data}};
    if (t->format)
        t->format->decode_row(t->format, dst, &blocks, 0, 1, t->elems);
    else
        t->dtype->to_f32(dst, t->data, (size_t)t->elems);
    return OQ_OK;
}

static void swap_halves(float *x, int64_t n)
{
    for (int64_t i = 0; i < n / 2; i++) {
        const float first = x[i];
        x[i] = x[n / 2 + i];
        x[n / 2 + i] = first;
    }
}

oq_status oq_rewrite_values(oq_env *env, const oq_rewrite_job *job, float *dst)
{
    int64_t at = job->n * job->k;
    for (int i = 0; i < job->n_more; i++) at -= job->more[i].n * job->k;
    OQ_TRY(source_values(env, job->layer, job->plain, dst));
    for (int i = 0; i < job->n_more; i++) {
        OQ_TRY(source_values(env, job->more[i].layer, job->more[i].plain, dst + at));
        at += job->more[i].n * job->k;
    }
    if (job->swap_halves) swap_halves(dst, at);
    return OQ_OK;
}

/* FNV-1a over the values' bits, 64 of them at a time; zeros of both signs are one. */
static uint64_t hash_values(uint64_t hash, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float value = x[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    return hash;
}

#define HASH_SEED 0xcbf29ce484222325u

oq_status oq_rewrite_layer_hash(oq_env *env, const oq_inspect_layer *layer, uint64_t *hash)
{
    oq_layer_planes p = {0};
    const oq_format *f = layer->source.format;
    float *row = oq_alloc_raw(env, (size_t)layer->k * sizeof *row);
    oq_status st = row ? oq_layer_planes_read(env, layer, &p) : OQ_E_NOMEM;
    *hash = HASH_SEED;
    for (int64_t r = 0; st == OQ_OK && r < layer->n; r++) {
        f->decode_row(f, row, &p.planes, r, layer->n, layer->k);
        *hash = hash_values(*hash, row, layer->k);
    }
    oq_layer_planes_free(env, &p);
    oq_free(env, row);
    return st;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

static oq_status encode(oq_env *env, oq_rewrite_job *job, const float *values, oq_layer_planes *p)
{
    const oq_format *f = job->to.scheme.weight;
    oq_planes_mut to = {0};
    for (int i = 0; i < OQ_N_PLANES; i++) {
        if (!(f->planes & 1u << i)) continue;
        OQ_TRY(oq_layer_planes_own(env, p, i, f->plane_bytes(f, (oq_plane)i, job->n, job->k)));
        to.plane[i] = p->owned[i];
    }
    int32_t *order = NULL;
    if (job->to.scheme.order) {
        OQ_TRY(oq_layer_planes_own(env, p, OQ_PLANE_ORDER, (size_t)job->k * sizeof *order));
        order = p->owned[OQ_PLANE_ORDER];
        for (int32_t c = 0; c < job->k; c++) order[c] = c;
    }
    if (!job->seen) {
        f->encode(f, &to, values, job->n, job->k);
        return OQ_OK;
    }
    const oq_compensation how = {.format = f, .order = job->column_order, .damping = job->damping};
    return oq_compensate(env, &how, values, job->seen->products, job->n, job->k, &to, order,
                         &job->compensation);
}

/* Weights for an x that is multiplied by the factors first. */
static void divide_columns(const oq_rewrite_job *job, float *values)
{
    for (int64_t r = 0; job->to.smooth && r < job->n; r++)
        for (int64_t c = 0; c < job->k; c++) values[r * job->k + c] /= job->to.smooth[c];
}

/* What a reader will get, against what was there. */
static oq_status measure(oq_env *env, oq_rewrite_job *job, const float *values, const oq_planes *planes)
{
    const oq_format *f = job->to.scheme.weight;
    const int32_t *order = planes->plane[OQ_PLANE_ORDER];
    float *row = oq_alloc_raw(env, (size_t)job->k * sizeof *row);
    if (!row) return OQ_E_NOMEM;
    job->hash = HASH_SEED;
    job->signal = job->noise = 0;
    for (int64_t r = 0; r < job->n; r++) {
        const float *x = values + r * job->k, *smooth = job->to.smooth;
        f->decode_row(f, row, planes, r, job->n, job->k);
        job->hash = hash_values(job->hash, row, job->k);
        for (int64_t c = 0; c < job->k; c++) {
            const double by = smooth ? (double)smooth[c] : 1.0;
            const double was = (double)x[order ? order[c] : c] * by;
            const double d = (double)row[c] * by - was;
            job->signal += was * was;
            job->noise += d * d;
        }
    }
    oq_free(env, row);
    return isfinite(job->noise) ? OQ_OK : OQ_E_FORMAT;
}

static oq_status put_spelled(oq_env *env, const oq_rewrite_job *job, const oq_planes *planes,
                             oq_rewrite_put put, void *user)
{
    for (int i = 0; i < job->n_out; i++) {
        const oq_spelled *s = &job->spelled[i];
        if (!s->put) {
            if (!put(user, job->out[i], planes->plane[s->plane])) return OQ_E_IO;
            continue;
        }
        void *bytes = oq_alloc(env, s->bytes);
        if (!bytes) return OQ_E_NOMEM;
        s->put(bytes, &job->to, planes);
        const bool ok = put(user, job->out[i], bytes);
        oq_free(env, bytes);
        if (!ok) return OQ_E_IO;
    }
    return OQ_OK;
}

static oq_status run_encode(oq_env *env, oq_rewrite_job *job, float *values, oq_rewrite_put put, void *user)
{
    oq_layer_planes p = {0};
    divide_columns(job, values);
    oq_status st = encode(env, job, values, &p);
    if (st == OQ_OK) st = measure(env, job, values, &p.planes);
    if (st == OQ_OK) st = put_spelled(env, job, &p.planes, put, user);
    oq_layer_planes_free(env, &p);
    return st;
}

/* Codes that are infinities or NaN, or scales that make them: a plain weight has none. */
static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static oq_status run_decode(oq_env *env, oq_rewrite_job *job, const float *values, oq_rewrite_put put,
                            void *user)
{
    const size_t elems = (size_t)(job->n * job->k);
    if (!all_finite(values, elems)) return OQ_E_FORMAT;
    void *bytes = oq_alloc_raw(env, elems * job->as->bytes);
    if (!bytes) return OQ_E_NOMEM;
    job->as->from_f32(bytes, values, elems);
    const bool ok = put(user, job->out[0], bytes);
    oq_free(env, bytes);
    return ok ? OQ_OK : OQ_E_IO;
}

oq_status oq_rewrite_run(oq_env *env, oq_rewrite_job *job, oq_rewrite_put put, void *user)
{
    if (!job->to.scheme.weight && !job->as) return put(user, job->out[0], job->plain->data) ? OQ_OK : OQ_E_IO;
    float *values = oq_alloc_raw(env, (size_t)(job->n * job->k) * sizeof *values);
    if (!values) return OQ_E_NOMEM;
    oq_status st = oq_rewrite_values(env, job, values);
    if (st == OQ_OK)
        st = job->as ? run_decode(env, job, values, put, user) : run_encode(env, job, values, put, user);
    oq_free(env, values);
    return st;
}
