/* finite_probe.c -- names the layer in which values stopped being finite. */
#include "pipelines/finite_probe.h"

static oq_status look(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    oq_finite_probe *probe = user;
    oq_exec *ex = probe->ex;
    if (probe->layer || !ex->ops->all_finite) return OQ_OK;
    if (ex->ops->all_finite(ex->device, y)) return OQ_OK;
    probe->layer = layer->name;
    probe->in_input = !ex->ops->all_finite(ex->device, x);
    return OQ_OK;
}

void oq_finite_probe_begin(oq_finite_probe *probe, oq_exec *ex)
{
    *probe = (oq_finite_probe){.ex = ex, .observer = ex->observer, .user = ex->observer_user};
    ex->observer = look;
    ex->observer_user = probe;
}

void oq_finite_probe_end(oq_finite_probe *probe)
{
    probe->ex->observer = probe->observer;
    probe->ex->observer_user = probe->user;
}

oq_status oq_finite_probe_fail(const oq_finite_probe *probe, const char *component, const char *what)
{
    if (!probe->layer)
        return oq_fail(probe->ex->env, OQ_E_NUMERIC,
                       "%s: non-finite values, but in no linear layer of the %s", what, component);
    return oq_fail(probe->ex->env, OQ_E_NUMERIC, "%s: non-finite values, first in the %s of %s layer '%s'",
                   what, probe->in_input ? "input" : "output", component, probe->layer);
}
