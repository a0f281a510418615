/* bench_blocks.c -- one transformer block of each family at its published size, with made-up weights: declared, given
 * kernels and filled without a model folder. A call is one step of a transformer that has this block alone, its text
 * embedded anew each time, so that the peer's same module does the same work. */
#include "engine/bench.h"

#include "base/pool.h"
#include "cpu/cpu.h"
#include "modules/dit_flux1/dit_flux1.h"
#include "modules/dit_qwen_image/dit_qwen_image.h"
#include "modules/dit_wan/dit_wan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_PAIRS = 3, TIMED = 3 }; /* a call takes seconds */

typedef struct block_run {
    oq_bench *b;
    oq_arena arena;
    oq_exec ex;
    void *self; /* the module */
    const struct block_case *what;
    oq_tensor x, y, text, pooled;
} block_run;

typedef struct block_case {
    const char *name, *config; /* "flux1-double"; what differs from the published config.json */
    const oq_module_type *module;
    int layers;                            /* of the published model */
    int64_t n_text, frames, rows, columns; /* text rows; tokens */
    int64_t in, out, text_dim, pooled_dim;
    bool planes; /* the module takes [channels, pixels], not tokens */
    oq_status (*step)(block_run *r);
} block_case;

static oq_status flux1_step(block_run *r)
{
    oq_dit_flux1_condition c;
    const block_case *const w = r->what;
    OQ_TRY(oq_dit_flux1_condition_new(&r->ex, r->self, w->n_text, w->rows, w->columns, &c));
    OQ_TRY(oq_dit_flux1_condition_run(&r->ex, r->self, r->text, r->pooled, &c, NULL));
    return oq_dit_flux1_forward(&r->ex, r->self, &c, r->x, 0.5f, 3.5f, r->y, NULL);
}

static oq_status qwen_image_step(block_run *r)
{
    oq_dit_qwen_image_condition c;
    const block_case *const w = r->what;
    OQ_TRY(oq_dit_qwen_image_condition_new(&r->ex, r->self, w->n_text, w->rows, w->columns, &c));
    OQ_TRY(oq_dit_qwen_image_condition_run(&r->ex, r->self, r->text, &c, NULL));
    return oq_dit_qwen_image_forward(&r->ex, r->self, &c, r->x, 0.5f, r->y, NULL);
}

static oq_status wan_step(block_run *r)
{
    oq_dit_wan_condition c;
    oq_dit_wan_grid g;
    const block_case *const w = r->what;
    const oq_dit_wan_time time = {500.0f, w->frames * w->rows * w->columns};
    OQ_TRY(oq_dit_wan_grid_new(&r->ex, r->self, w->frames, 2 * w->rows, 2 * w->columns, &g));
    OQ_TRY(oq_dit_wan_condition_new(&r->ex, r->self, w->n_text, w->n_text, &c));
    OQ_TRY(oq_dit_wan_condition_run(&r->ex, r->self, r->text, w->n_text, &c));
    return oq_dit_wan_forward(&r->ex, r->self, &g, &c, r->x, &time, 1, r->y, NULL);
}

/* 1024 tokens in the attention of each. */
static const block_case cases[] = {
    {"flux1-double", "{\"num_layers\":1,\"num_single_layers\":0,\"guidance_embeds\":true}",
     &oq_module_dit_flux1, 19, 512, 1, 16, 32, 64, 64, 4096, 768, false, flux1_step},
    {"flux1-single", "{\"num_layers\":0,\"num_single_layers\":1,\"guidance_embeds\":true}",
     &oq_module_dit_flux1, 38, 512, 1, 16, 32, 64, 64, 4096, 768, false, flux1_step},
    {"qwen-image", "{\"num_layers\":1}", &oq_module_dit_qwen_image, 60, 128, 1, 28, 32, 64, 64, 3584, 1,
     false, qwen_image_step},
    {"wan2.2-a14b", "{\"num_layers\":1}", &oq_module_dit_wan, 40, 512, 4, 16, 16, 16, 16, 4096, 1, true,
     wan_step},
};

/* ---- weights ------------------------------------------------------------------------------------------- */

/* Even in (-scale, scale) around `center`, the same on each machine. */
static void fill(float *x, size_t n, float center, float scale)
{
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = center + ((float)(int32_t)(state >> 8) / 8388608.0f - 1.0f) * scale;
    }
}

static oq_status make(block_run *r, size_t bytes, void **out)
{
    OQ_TRY(oq_arena_new(&r->arena, bytes + 64, 1, "bench", out));
    *out = (void *)(((uintptr_t)*out + 63) & ~(uintptr_t)63);
    return OQ_OK;
}

static oq_status make_input(block_run *r, int64_t rows, int64_t cols, oq_tensor *out)
{
    const size_t n = (size_t)(rows * cols);
    void *data = NULL;
    float *values = NULL;
    OQ_TRY(make(r, n * 2, &data));
    OQ_TRY(oq_new(r->b->env, n, sizeof *values, "bench", &values));
    fill(values, n, 0, 1);
    oq_dtype_bf16.from_f32(data, values, n);
    oq_free(r->b->env, values);
    *out = oq_tensor_make(data, &oq_dtype_bf16, rows, cols);
    return OQ_OK;
}

static oq_status encode(oq_env *env, const oq_linear *l, oq_planes_mut *planes, float *values)
{
    const oq_format *const f = l->spec.scheme.weight;
    fill(values, (size_t)(l->spec.n * l->spec.k), 0, 0.03f);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        if (!(f->planes & 1u << p)) continue;
        char *bytes = NULL;
        OQ_TRY(oq_new(env, f->plane_bytes(f, (oq_plane)p, l->spec.n, l->spec.k), 1, l->name, &bytes));
        planes->plane[p] = bytes;
    }
    f->encode(f, planes, values, l->spec.n, l->spec.k);
    return OQ_OK;
}

static oq_status fill_linear(block_run *r, oq_linear *l, bool int8)
{
    oq_env *const env = r->b->env;
    const oq_scheme quantized = {
        .weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN};
    oq_planes_mut planes = {{NULL}};
    float *values = NULL, *bias = NULL;
    void *packed = NULL;
    l->spec.scheme =
        int8 && !l->keep ? quantized : (oq_scheme){.weight = l->wide ? &oq_format_f32 : &oq_format_bf16};
    l->kernel = oq_backend_cpu.find_linear(r->ex.device, &l->spec);
    l->fused = l->kernel->fuses ? l->kernel->fuses(&l->spec) & l->wants : 0;
    OQ_TRY(make(r, l->kernel->packed_bytes(&l->spec), &packed));
    OQ_TRY(oq_new(env, (size_t)(l->spec.n * l->spec.k), sizeof *values, l->name, &values));
    oq_status st = encode(env, l, &planes, values);
    if (st == OQ_OK) {
        oq_planes whole;
        for (int p = 0; p < OQ_N_PLANES; p++) whole.plane[p] = planes.plane[p];
        l->kernel->pack(packed, &whole, &l->spec);
    }
    for (int p = 0; p < OQ_N_PLANES; p++) oq_free(env, planes.plane[p]);
    oq_free(env, values);
    l->packed = packed;
    if (st != OQ_OK || !l->has_bias) return st;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)l->spec.n, sizeof *bias, l->name, &bias));
    fill(bias, (size_t)l->spec.n, 0, 0.03f);
    l->bias = bias;
    return OQ_OK;
}

static oq_status fill_item(block_run *r, const oq_item *item, bool int8)
{
    float *values = NULL;
    switch (item->kind) {
    case OQ_ITEM_LINEAR:
        return fill_linear(r, item->u.linear, int8);
    case OQ_ITEM_VECTOR:
        OQ_TRY(oq_arena_new(&r->arena, (size_t)item->u.vector->n, sizeof *values, "bench", &values));
        fill(values, (size_t)item->u.vector->n, 1, 0.1f);
        item->u.vector->data = values;
        return OQ_OK;
    case OQ_ITEM_ATTENTION:
        item->u.attention->kernel = oq_backend_cpu.find_attention(r->ex.device, &item->u.attention->spec);
        return OQ_OK;
    case OQ_ITEM_TABLE:
    case OQ_ITEM_CONV2D:
        break;
    }
    return oq_fail(r->b->env, OQ_E_ARG, "bench: '%s' is not part of a block", oq_item_name(item));
}

/* ---- running ------------------------------------------------------------------------------------------- */

static oq_status run_step(void *user)
{
    block_run *const r = user;
    r->ex.used = 0;
    return r->what->step(r);
}

static oq_status make_module(block_run *r, bool int8)
{
    const block_case *const w = r->what;
    oq_env *const env = r->b->env;
    oq_json *config = NULL;
    oq_builder b = {.env = env, .arena = &r->arena, .component = "transformer", .scope = (char[1]){""}};
    OQ_TRY(oq_arena_new(&r->arena, 1, w->module->self_bytes, "bench", &r->self));
    memset(r->self, 0, w->module->self_bytes);
    OQ_TRY(oq_json_parse(env, w->config, strlen(w->config), w->name, &config));
    const oq_status st = w->module->describe(env, config, r->self);
    oq_json_free(config);
    if (st != OQ_OK) return st;
    OQ_TRY(w->module->declare(&b, r->self));
    for (size_t i = 0; i < b.n_items; i++) OQ_TRY(fill_item(r, &b.items[i], int8));
    return OQ_OK;
}

static oq_status make_inputs(block_run *r)
{
    const block_case *const w = r->what;
    const int64_t n = w->frames * w->rows * w->columns;
    OQ_TRY(make_input(r, w->n_text, w->text_dim, &r->text));
    OQ_TRY(make_input(r, 1, w->pooled_dim, &r->pooled));
    OQ_TRY(make_input(r, w->planes ? w->in : n, w->planes ? 4 * n : w->in, &r->x));
    return make_input(r, w->planes ? w->out : n, w->planes ? 4 * n : w->out, &r->y);
}

static oq_status prepare(block_run *r, bool int8)
{
    void *scratch = NULL;
    OQ_TRY(make_module(r, int8));
    OQ_TRY(make_inputs(r));
    r->ex.measure = true;
    OQ_TRY(run_step(r));
    r->ex.measure = false;
    OQ_TRY(make(r, r->ex.peak, &scratch));
    r->ex.base = scratch;
    r->ex.size = r->ex.peak;
    return OQ_OK;
}

static oq_status time_block(block_run *r, oq_bench_peer *peer, const char *dtype)
{
    const block_case *const w = r->what;
    char shape[96], order[96], name[64];
    bool absent = false;
    snprintf(shape, sizeof shape, "%s, %d of them", w->name, w->layers);
    if (!peer) {
        double ms[TIMED];
        OQ_TRY(run_step(r));
        for (int i = 0; i < TIMED; i++) {
            const double start = oq_now_s();
            OQ_TRY(run_step(r));
            ms[i] = (oq_now_s() - start) * 1e3;
        }
        return oq_bench_add(r->b, &(oq_bench_row){"block", shape, dtype, w->name, 0}, ms, TIMED, NULL);
    }
    snprintf(order, sizeof order, "block %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " bf16", w->name,
             w->n_text, w->frames, w->rows, w->columns);
    OQ_TRY(oq_bench_peer_order(r->b, peer, order, name, sizeof name, &absent));
    if (absent) return OQ_OK;
    OQ_TRY(run_step(r));
    const oq_bench_pairing p = {.b = r->b,
                                .peer = peer,
                                .run = run_step,
                                .user = r,
                                .cold = true,
                                .pairs = BLOCK_PAIRS,
                                .pool = r->b->env->pool};
    return oq_bench_turns(
        &p, &(oq_bench_pair_row){"block", shape, dtype, w->name, name, oq_pool_threads(r->b->env->pool), 0});
}

static oq_status bench_block(oq_bench *b, oq_bench_peer *peer, oq_device *device, const block_case *what,
                             bool int8)
{
    block_run r = {.b = b, .what = what};
    r.ex = (oq_exec){.env = b->env,
                     .backend = &oq_backend_cpu,
                     .device = device,
                     .ops = oq_backend_cpu.ops(device),
                     .compute = &oq_dtype_bf16,
                     .step = 1};
    oq_arena_init(&r.arena, b->env);
    oq_pool_hot_begin(b->env->pool);
    oq_status st = prepare(&r, int8);
    if (st == OQ_OK) st = time_block(&r, peer, int8 ? "int8" : "bf16");
    oq_pool_hot_end(b->env->pool);
    oq_arena_deinit(&r.arena);
    return st;
}

oq_status oq_bench_blocks(oq_bench *b, oq_bench_peer *peer)
{
    oq_device *device = NULL;
    OQ_TRY(oq_backend_cpu.open(b->env, 0, oq_options_text(b->options, "cpu", NULL), &device));
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < OQ_COUNT(cases); i++)
        for (int int8 = 0; st == OQ_OK && int8 < (peer ? 1 : 2); int8++) /* peers have BF16 */
            if (!b->filter || oq_glob_match(b->filter, cases[i].name))
                st = bench_block(b, peer, device, &cases[i], int8);
    oq_backend_cpu.close(b->env, device);
    return st;
}
