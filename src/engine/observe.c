/* observe.c -- a request that runs for what its layers take in and give, and their rows in host memory: what compare, recipe and
 * calibration share. */
#include "engine/engine.h"

#include "base/size.h"

oq_status oq_observe(const oq_model *model, const oq_request *request, oq_layer_observer observer, void *user)
{
    oq_media *media = NULL;
    const oq_run_hooks hooks = {.observer = observer, .observer_user = user};
    const oq_status st = oq_generate_request(model->env, model, request, &hooks, &media);
    oq_media_free(media);
    return st == OQ_E_CANCELED ? oq_check_canceled(model->env) : st;
}

/* Rows that follow each other are one copy. */
static oq_status copy_rows(const oq_model *m, oq_tensor t, uint8_t *host, bool back)
{
    const bool dense = t.ld == t.cols;
    const size_t bytes = (size_t)t.cols * t.dtype->bytes * (size_t)(dense ? t.rows : 1);
    for (int64_t i = 0; i < (dense ? oq_min_i64(t.rows, 1) : t.rows); i++) {
        void *at = oq_tensor_rows(t, i, 1).data;
        uint8_t *to = host + (size_t)i * bytes;
        OQ_TRY(back ? m->backend->upload(m->env, m->device, at, to, bytes)
                    : m->backend->download(m->env, m->device, to, at, bytes));
    }
    return OQ_OK;
}

oq_status oq_rows_download(const oq_model *model, oq_tensor rows, void *host)
{
    return copy_rows(model, rows, host, false);
}

oq_status oq_rows_upload(const oq_model *model, oq_tensor rows, const void *host)
{
    return copy_rows(model, rows, (uint8_t *)host, true);
}
