/* plan_limit.c -- a limit of the device's memory: which products' weights stay in host memory and come over when they are
 * used. Networks that run once before the steps (text encoders) go first, since they pay once; then the layers of the
 * denoiser evenly, so that those between them hide the copies. */
#include "plan/plan_internal.h"

#include "base/size.h"

#include <string.h>

enum {
    ALIGNMENT = 256,
    WINDOW_LAYERS = 4
}; /* the window holds the largest layer so often: what follows is on its way */

static size_t rest_bytes(const oq_plan_layer *layer)
{
    return oq_align_up(layer->bytes, ALIGNMENT) + ALIGNMENT; /* weights and bias begin aligned */
}

static bool is_denoiser(const oq_plan_component *c)
{
    return strncmp(c->name, "transformer", strlen("transformer")) == 0;
}

typedef struct movable {
    size_t bytes[2], largest; /* of products outside the denoisers, and of the denoisers' */
} movable;

static movable movable_of(const oq_plan *plan)
{
    movable m = {0};
    for (size_t i = 0; i < plan->n_components; i++)
        for (size_t j = 0; j < plan->components[i].n_layers; j++) {
            const size_t bytes = rest_bytes(&plan->components[i].layers[j]);
            m.bytes[is_denoiser(&plan->components[i])] += bytes;
            if (bytes > m.largest) m.largest = bytes;
        }
    return m;
}

/* Streams about `wanted` of `all` bytes of the components' products, evenly. */
static void stream_evenly(oq_plan *plan, bool denoisers, size_t wanted, size_t all)
{
    size_t seen = 0, taken = 0;
    for (size_t i = 0; i < plan->n_components; i++) {
        oq_plan_component *c = &plan->components[i];
        for (size_t j = 0; is_denoiser(c) == denoisers && j < c->n_layers; j++) {
            oq_plan_layer *layer = &c->layers[j];
            seen += rest_bytes(layer);
            if ((double)taken >= (double)wanted * (double)seen / (double)all) continue;
            layer->linear->streamed = true;
            taken += rest_bytes(layer);
        }
    }
    plan->stream_bytes += taken;
}

oq_status oq_plan_limit(oq_plan *plan, size_t limit_bytes)
{
    const movable m = movable_of(plan);
    const size_t all = m.bytes[0] + m.bytes[1], window = WINDOW_LAYERS * m.largest;
    size_t need = 0, slack = m.largest; /* what is taken evenly may end one layer short */
    plan->limit_bytes = limit_bytes;
    if (!plan->backend->window_new)
        return oq_fail(plan->env, OQ_E_ARG,
                       "--max-memory limits a device's own memory: backend '%s' works in the host's",
                       plan->backend->name);
    if (!oq_size_add(plan->weights_bytes, plan->scratch_bytes, &need))
        return oq_fail(plan->env, OQ_E_NOMEM, "the model and its scratch do not fit into a size");
    if (need <= limit_bytes) return OQ_OK;
    const size_t least = need - oq_min_size(need, all) + window;
    if (least > limit_bytes)
        return oq_fail(
            plan->env, OQ_E_NOMEM,
            "--max-memory %zu bytes are too few: this request needs %zu, of which scratch takes %zu and the "
            "window for streamed layers %zu",
            limit_bytes, least, plan->scratch_bytes, window);
    const size_t wanted = need + window + slack - limit_bytes, first = oq_min_size(wanted, m.bytes[0]);
    if (first) stream_evenly(plan, false, first, m.bytes[0]);
    if (wanted > plan->stream_bytes && m.bytes[1])
        stream_evenly(plan, true, oq_min_size(wanted - plan->stream_bytes, m.bytes[1]), m.bytes[1]);
    plan->window_bytes = window;
    return OQ_OK;
}

size_t oq_plan_device_bytes(const oq_plan *plan)
{
    return plan->weights_bytes - oq_min_size(plan->weights_bytes, plan->stream_bytes) + plan->window_bytes;
}
