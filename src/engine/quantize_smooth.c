/* quantize_smooth.c -- SmoothQuant's factors: from the largest numbers of each column of a layer's input, and of the weights that
 * meet it. */
#include "engine/quantize.h"

#include "base/pool.h"

#include <math.h>

typedef struct smoothing {
    oq_quantize *q;
    oq_quantize_part *p;
    float **columns; /* per layer: largest |w| of each column; NULL: not smoothed */
    oq_status *status;
} smoothing;

static void look_at_weights(void *user, int64_t i, int worker)
{
    const smoothing *s = user;
    const oq_rewrite_job *job = &s->p->rewrite.jobs[i];
    (void)worker;
    if (!s->columns[i]) return;
    float *values = oq_alloc_raw(s->q->env, (size_t)(job->n * job->k) * sizeof *values);
    s->status[i] = values ? oq_rewrite_values(s->q->env, job, values) : OQ_E_NOMEM;
    for (int64_t r = 0; s->status[i] == OQ_OK && r < job->n; r++)
        for (int64_t c = 0; c < job->k; c++)
            s->columns[i][c] = fmaxf(s->columns[i][c], fabsf(values[r * job->k + c]));
    oq_free(s->q->env, values);
}

/* The factor of a column of x: what its numbers are too large by goes over to the weights, as far as alpha says. One that is
 * never used has none to give. A bf16 number, as the layout holds it, so that the weights are divided by what x is multiplied
 * by. */
static float factor(double x, double w, double alpha)
{
    if (!(x > 0) || !(w > 0)) return 1.0f;
    const float exact = (float)fmin(fmax(pow(w, 1 - alpha) / pow(x, alpha), 1e-4), 1e4);
    float rounded = 0;
    uint8_t bits[2];
    oq_dtype_bf16.from_f32(bits, &exact, 1);
    oq_dtype_bf16.to_f32(&rounded, bits, 1);
    return rounded;
}

/* Layers that take in the same x have the same factors: what fuses them multiplies once. */
static oq_status set_factors(smoothing *s)
{
    const double alpha = oq_options_real(s->q->options, "smoothquant-alpha", 0.5);
    oq_calibration_layer *const *seen = s->p->seen;
    for (size_t i = 0; i < s->p->n_layers; i++) {
        oq_write_layer *layer = &s->p->layers[i];
        float *smooth = NULL;
        if (!s->columns[i] || layer->smooth) continue;
        OQ_TRY(oq_arena_new(&s->q->source.arena, (size_t)layer->k, sizeof *smooth, layer->name, &smooth));
        for (size_t j = i; j < s->p->n_layers; j++)
            for (int64_t c = 0; s->columns[j] && seen[j] == seen[i] && c < layer->k; c++)
                smooth[c] = fmaxf(smooth[c], s->columns[j][c]);
        for (int64_t c = 0; c < layer->k; c++)
            smooth[c] = factor((double)seen[i]->column_amax[c], (double)smooth[c], alpha);
        for (size_t j = i; j < s->p->n_layers; j++)
            if (s->columns[j] && seen[j] == seen[i]) s->p->layers[j].smooth = smooth;
    }
    return OQ_OK;
}

oq_status oq_quantize_smooth(oq_quantize *q, oq_quantize_part *p)
{
    smoothing s = {.q = q, .p = p};
    oq_arena *arena = &q->source.arena;
    OQ_TRY(oq_arena_new(arena, p->n_layers + 1, sizeof *s.columns, "layers", &s.columns));
    OQ_TRY(oq_arena_new(arena, p->n_layers + 1, sizeof *s.status, "layers", &s.status));
    for (size_t i = 0; i < p->n_layers; i++) {
        if (!p->layers[i].scheme.smooth) continue;
        OQ_TRY(oq_arena_new(arena, (size_t)p->layers[i].k, sizeof(float), "layers", &s.columns[i]));
    }
    oq_pool_run(q->env->pool, (int64_t)p->n_layers, look_at_weights, &s);
    for (size_t i = 0; i < p->n_layers; i++)
        if (s.status[i] != OQ_OK)
            return oq_fail(q->env, s.status[i], "%s: the weights of layer '%s' cannot be read", p->name,
                           p->layers[i].name);
    return set_factors(&s);
}
