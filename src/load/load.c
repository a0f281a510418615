/* load.c -- walks the plan and fills every handle: one block of backend memory per component, items packed
 * into it by several workers where the memory is the host's own, one after the other through a staging buffer
 * where it is not. */
#include "load/load_internal.h"

#include "base/pool.h"
#include "base/size.h"

#include <string.h>

#define BLOCK_ALIGNMENT 256
#define MAX_STAGING     8 /* items packed side by side for a device; more would only take memory */

typedef struct slot {           /* where one item's bytes go */
    bool streamed;              /* into the component's host block */
    bool filled;                /* the device makes the weights itself */
    size_t at, bytes;           /* packed weights */
    size_t bias_at, bias_bytes; /* 0: none */
} slot;

typedef struct sizes {
    size_t block, host, largest; /* of the two blocks, and of the largest item of the first */
} sizes;

typedef struct job {
    oq_loading ld;
    char *block; /* backend memory of the component */
    char *host;  /* pinned host memory of its streamed layers; NULL: none */
    oq_window *window;
    char *staging; /* n_staging places of staging_bytes in host memory; NULL: the block is host memory */
    size_t staging_bytes;
    int n_staging;
    int64_t first;                /* item in the first place */
    slot *slots;                  /* per item */
    const oq_plan_layer **layers; /* per item; NULL unless linear */
    oq_status *status;            /* per item */
    atomic_llong done;
    int64_t done_before, total;
    double started_s;
} job;

static size_t item_bytes(const oq_item *item)
{
    switch (item->kind) {
    case OQ_ITEM_LINEAR:
        return item->u.linear->kernel->packed_bytes(&item->u.linear->spec);
    case OQ_ITEM_CONV2D:
        return item->u.conv2d->kernel->packed_bytes(&item->u.conv2d->spec);
    case OQ_ITEM_VECTOR:
        return (size_t)item->u.vector->n * sizeof(float);
    case OQ_ITEM_TABLE:
        return oq_tensor_bytes(item->u.table->tensor);
    case OQ_ITEM_ATTENTION:
        break;
    }
    return 0;
}

static size_t item_bias_bytes(const oq_item *item)
{
    if (item->kind == OQ_ITEM_LINEAR && item->u.linear->has_bias)
        return (size_t)item->u.linear->spec.n * sizeof(float);
    if (item->kind == OQ_ITEM_CONV2D && item->u.conv2d->has_bias)
        return (size_t)item->u.conv2d->spec.c_out * sizeof(float);
    return 0;
}

/* Places all items one behind the other, in the block or among the streamed ones. */
static sizes place_items(const oq_plan_component *c, slot *slots)
{
    sizes z = {0};
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item *item = &c->builder.items[i];
        slot *s = &slots[i];
        s->streamed = item->kind == OQ_ITEM_LINEAR && item->u.linear->streamed;
        size_t *const at = s->streamed ? &z.host : &z.block;
        s->bytes = item_bytes(item);
        s->bias_bytes = item_bias_bytes(item);
        s->at = *at;
        s->bias_at = s->at + oq_align_up(s->bytes, BLOCK_ALIGNMENT);
        *at = s->bias_at + oq_align_up(s->bias_bytes, BLOCK_ALIGNMENT);
        if (!s->streamed && *at - s->at > z.largest) z.largest = *at - s->at;
    }
    return z;
}

/* Host bytes of one item at `to`, its bias behind them. */
static oq_status fill_item(job *j, size_t i, char *to)
{
    const oq_item *item = &j->ld.c->builder.items[i];
    float *bias = (float *)(void *)(to + (j->slots[i].bias_at - j->slots[i].at));
    switch (item->kind) {
    case OQ_ITEM_LINEAR:
        return j->slots[i].filled ? oq_load_linear_bias(&j->ld, j->layers[i], bias)
                                  : oq_load_linear(&j->ld, j->layers[i], to, bias);
    case OQ_ITEM_CONV2D:
        return oq_load_conv2d(&j->ld, item->u.conv2d, to, bias);
    case OQ_ITEM_VECTOR:
        return oq_load_vector(&j->ld, item->u.vector, (float *)(void *)to);
    case OQ_ITEM_TABLE:
        return oq_load_table(&j->ld, item->u.table, to);
    case OQ_ITEM_ATTENTION:
        break;
    }
    return OQ_OK;
}

/* From the weights to the end of the bias. */
static size_t slot_bytes(const slot *s)
{
    return s->bias_bytes ? s->bias_at - s->at + s->bias_bytes : s->bytes;
}

static void publish(job *j, size_t i)
{
    const oq_item *item = &j->ld.c->builder.items[i];
    const slot *s = &j->slots[i];
    char *const block = s->streamed ? j->host : j->block;
    const void *packed = block + s->at;
    const float *bias = s->bias_bytes ? (const float *)(const void *)(block + s->bias_at) : NULL;
    switch (item->kind) {
    case OQ_ITEM_LINEAR:
        item->u.linear->packed = packed, item->u.linear->bias = bias;
        item->u.linear->stream_bytes = slot_bytes(s), item->u.linear->window = j->window;
        break;
    case OQ_ITEM_CONV2D:
        item->u.conv2d->packed = packed, item->u.conv2d->bias = bias;
        break;
    case OQ_ITEM_VECTOR:
        item->u.vector->data = packed;
        break;
    case OQ_ITEM_TABLE:
        item->u.table->tensor.data = j->block + s->at;
        break;
    case OQ_ITEM_ATTENTION:
        break;
    }
}

static char *staging_of(const job *j, int64_t i)
{
    return j->staging + (size_t)(i - j->first) * j->staging_bytes;
}

static void load_task(void *user, int64_t i, int worker)
{
    job *j = user;
    if (atomic_load_explicit(&j->ld.env->canceled, memory_order_relaxed)) {
        j->status[i] = OQ_E_CANCELED;
        return;
    }
    char *to = j->staging ? staging_of(j, i) : j->block + j->slots[i].at;
    if (j->slots[i].streamed) to = j->host + j->slots[i].at;
    j->status[i] = fill_item(j, (size_t)i, to);
    if (j->status[i] == OQ_OK) publish(j, (size_t)i);
    const int64_t done = atomic_fetch_add(&j->done, 1) + 1;
    if (worker == 0) /* progress belongs to the caller's thread */
        oq_report_progress(j->ld.env, "load", j->done_before + done, j->total, oq_now_s() - j->started_s);
}

/* Uploads the items of one round in their order; stops at the first that failed, which the caller names. */
static oq_status upload_round(job *j, size_t first, size_t n)
{
    const oq_plan *plan = j->ld.plan;
    for (size_t i = first; i < first + n && j->status[i] == OQ_OK; i++) {
        const slot *s = &j->slots[i];
        const size_t bytes = slot_bytes(s);
        const size_t skip = s->filled ? s->bias_at - s->at : 0;
        if (s->filled) oq_load_fill(&j->ld, j->ld.c->builder.items[i].u.linear, j->block + s->at);
        if (bytes <= skip || s->streamed) continue;
        OQ_TRY(plan->backend->upload(j->ld.env, plan->device, j->block + s->at + skip,
                                     staging_of(j, (int64_t)i) + skip, bytes - skip));
    }
    return OQ_OK;
}

static void staged_task(void *user, int64_t i, int worker)
{
    job *j = user;
    load_task(j, j->first + i, worker);
}

/* Rounds of one item per worker: packed side by side, then uploaded one after the other. */
static oq_status load_staged(job *j)
{
    const size_t n = j->ld.c->builder.n_items;
    for (size_t first = 0; first < n; first += (size_t)j->n_staging) {
        const size_t count = n - first < (size_t)j->n_staging ? n - first : (size_t)j->n_staging;
        j->first = (int64_t)first;
        oq_pool_run(j->ld.env->pool, (int64_t)count, staged_task, j);
        OQ_TRY(upload_round(j, first, count));
        for (size_t i = first; i < first + count; i++)
            if (j->status[i] != OQ_OK) return OQ_OK; /* named by the caller */
    }
    return j->ld.plan->backend->sync(j->ld.env, j->ld.plan->device);
}

static oq_status first_failure(const job *j)
{
    for (size_t i = 0; i < j->ld.c->builder.n_items; i++) {
        const char *name = oq_item_name(&j->ld.c->builder.items[i]);
        if (j->status[i] == OQ_OK) continue;
        if (j->status[i] == OQ_E_CANCELED)
            return oq_fail(j->ld.env, OQ_E_CANCELED, "interrupted while loading '%s'", name);
        if (j->status[i] == OQ_E_NOMEM)
            return oq_fail(j->ld.env, OQ_E_NOMEM,
                           "%s: loading '%s': no memory for its temporaries (up to %zu bytes)", j->ld.c->name,
                           name, j->ld.c->load_bytes);
        return oq_fail(j->ld.env, j->status[i], "%s: loading '%s' failed%s", j->ld.c->name, name,
                       j->status[i] == OQ_E_FORMAT
                           ? ": it holds values that are not finite, or planes of another size"
                           : "");
    }
    return OQ_OK;
}

static oq_status prepare_job(job *j, void **block, void **host)
{
    oq_env *env = j->ld.env;
    const oq_plan *plan = j->ld.plan;
    const size_t n = j->ld.c->builder.n_items;
    size_t i_layer = 0;
    OQ_TRY(oq_new(env, n, sizeof *j->slots, "loading", &j->slots));
    OQ_TRY(oq_new(env, n, sizeof *j->layers, "loading", &j->layers));
    OQ_TRY(oq_new(env, n, sizeof *j->status, "loading", &j->status));
    for (size_t i = 0; i < n; i++)
        if (j->ld.c->builder.items[i].kind == OQ_ITEM_LINEAR) j->layers[i] = &j->ld.c->layers[i_layer++];
    const sizes z = place_items(j->ld.c, j->slots);
    for (size_t i = 0; i < n; i++)
        j->slots[i].filled = j->layers[i] && !j->slots[i].streamed &&
                             oq_load_fill(&j->ld, j->ld.c->builder.items[i].u.linear, NULL);
    OQ_TRY(plan->backend->buffer_new(env, plan->device, z.block, block));
    if (z.host) OQ_TRY(plan->backend->host_new(env, plan->device, z.host, host));
    j->block = *block;
    j->host = *host;
    if (plan->backend->host_memory) return OQ_OK;
    const int workers = oq_pool_threads(env->pool);
    j->n_staging = workers < MAX_STAGING ? workers : MAX_STAGING;
    j->staging_bytes = z.largest;
    return oq_new(env, (size_t)j->n_staging, z.largest, "staging buffer", &j->staging);
}

static oq_status load_component(oq_weights *w, oq_env *env, oq_plan *plan, size_t i, int64_t done_before,
                                int64_t total, double started_s)
{
    oq_plan_component *c = &plan->components[i];
    job j = {.ld = {.env = env, .plan = plan, .c = c},
             .window = w->window,
             .done_before = done_before,
             .total = total,
             .started_s = started_s};
    oq_status st = prepare_job(&j, &w->blocks[i], &w->hosts[i]);
    if (st == OQ_OK) {
        if (j.staging)
            st = load_staged(&j);
        else
            oq_pool_run(env->pool, (int64_t)c->builder.n_items, load_task, &j);
    }
    if (st == OQ_OK) st = first_failure(&j);
    oq_free(env, j.staging);
    oq_free(env, j.status);
    oq_free(env, j.layers);
    oq_free(env, j.slots);
    return st;
}

oq_status oq_load(oq_env *env, oq_plan *plan, oq_weights **out)
{
    *out = NULL;
    oq_weights *w = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *w, "weights", &w));
    *w = (oq_weights){.backend = plan->backend, .device = plan->device};
    oq_status st = oq_new(env, plan->n_components, sizeof *w->blocks, "weights", &w->blocks);
    if (st == OQ_OK) st = oq_new(env, plan->n_components, sizeof *w->hosts, "weights", &w->hosts);
    if (st == OQ_OK) w->n_blocks = plan->n_components;
    if (st == OQ_OK && plan->window_bytes)
        st = w->backend->window_new(env, w->device, plan->window_bytes, &w->window);

    int64_t total = 0, done = 0;
    const double started_s = oq_now_s();
    for (size_t i = 0; i < plan->n_components; i++) total += (int64_t)plan->components[i].builder.n_items;
    for (size_t i = 0; st == OQ_OK && i < plan->n_components; i++) {
        st = load_component(w, env, plan, i, done, total, started_s);
        done += (int64_t)plan->components[i].builder.n_items;
    }
    if (st == OQ_OK) {
        oq_report_progress(env, "load", total, total, oq_now_s() - started_s);
        *out = w;
    } else {
        oq_weights_free(env, w);
    }
    return st;
}

void oq_weights_free(oq_env *env, oq_weights *weights)
{
    if (!weights) return;
    if (weights->window) weights->backend->window_free(env, weights->window); /* waits for what still reads */
    for (size_t i = weights->n_blocks; i-- > 0;) {
        if (weights->blocks[i]) weights->backend->buffer_free(env, weights->device, weights->blocks[i]);
        if (weights->hosts[i]) weights->backend->host_free(env, weights->device, weights->hosts[i]);
    }
    oq_free(env, weights->hosts);
    oq_free(env, weights->blocks);
    oq_free(env, weights);
}
