/* text_work.c -- the growing memory of one encode call. */
#include "text/text_model.h"

#include <string.h>

void oq_text_work_deinit(oq_text_work *work)
{
    oq_free(work->env, work->scratch);
    oq_free(work->env, work->ids);
    *work = (oq_text_work){.env = work->env};
}

oq_status oq_text_work_push(oq_text_work *work, int32_t id)
{
    if (work->n_ids == work->ids_capacity) {
        const size_t capacity = work->ids_capacity ? work->ids_capacity * 2 : 64;
        int32_t *grown = NULL;
        OQ_TRY(oq_new(work->env, capacity, sizeof *grown, "token ids", &grown));
        if (work->n_ids) memcpy(grown, work->ids, work->n_ids * sizeof *grown);
        oq_free(work->env, work->ids);
        work->ids = grown;
        work->ids_capacity = capacity;
    }
    work->ids[work->n_ids++] = id;
    return OQ_OK;
}

oq_status oq_text_work_reserve(oq_text_work *work, size_t bytes)
{
    if (bytes <= work->scratch_bytes) return OQ_OK;
    oq_free(work->env, work->scratch);
    work->scratch_bytes = 0;
    work->scratch = oq_alloc_raw(work->env, bytes);
    if (!work->scratch) return oq_fail(work->env, OQ_E_NOMEM, "tokenizer: no memory for %zu bytes", bytes);
    work->scratch_bytes = bytes;
    return OQ_OK;
}
