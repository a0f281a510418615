/* bench_blocks.c -- one transformer block of each family at its published size, with made-up weights: declared, given
 * kernels and filled without a model folder. A call is one step of a transformer that has this block alone, its text
 * embedded anew each time, so that the peer's same module does the same work. Behind them a step of each whole
 * transformer: layers times their block. What surrounds the blocks is counted with each, so it is an upper bound. */
#include "engine/bench.h"

#include "base/pool.h"
#include "cpu/cpu.h"
#include "modules/dit_flux1/dit_flux1.h"
#include "modules/dit_flux2/dit_flux2.h"
#include "modules/dit_qwen_image/dit_qwen_image.h"
#include "modules/dit_wan/dit_wan.h"
#include "modules/dit_zimage/dit_zimage.h"

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
    const char *name, *model; /* "flux1-double"; whose step it is a part of: equal names stand together */
    const char *config;       /* what differs from the published config.json */
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
    const float t = 0.5f;
    const oq_dit_flux1_moment when = {.t = &t, .n_steps = 1, .guidance = 3.5f};
    OQ_TRY(oq_dit_flux1_condition_new(&r->ex, r->self, w->n_text, w->rows, w->columns, 1, &c));
    OQ_TRY(oq_dit_flux1_condition_run(&r->ex, r->self, r->text, r->pooled, &c, NULL));
    return oq_dit_flux1_forward(&r->ex, r->self, &c, r->x, &when, r->y, NULL);
}

static oq_status flux2_step(block_run *r)
{
    oq_dit_flux2_condition c;
    const block_case *const w = r->what;
    const oq_dit_flux2_grid grid = {.rows = w->rows, .columns = w->columns};
    OQ_TRY(oq_dit_flux2_condition_new(&r->ex, r->self, w->n_text, &grid, 1, &c));
    OQ_TRY(oq_dit_flux2_condition_run(&r->ex, r->self, r->text, &grid, 1, &c, NULL));
    return oq_dit_flux2_forward(&r->ex, r->self, &c, r->x, 0.5f, 4.0f, r->y, NULL);
}

static oq_status zimage_step(block_run *r)
{
    oq_dit_zimage_condition c;
    oq_dit_zimage_steps steps;
    const block_case *const w = r->what;
    const float t = 0.5f;
    OQ_TRY(oq_dit_zimage_condition_new(&r->ex, r->self, w->n_text, 2 * w->rows, 2 * w->columns, &c));
    OQ_TRY(oq_dit_zimage_condition_run(&r->ex, r->self, r->text, &c, NULL));
    OQ_TRY(oq_dit_zimage_steps_new(&r->ex, r->self, 1, &steps));
    OQ_TRY(oq_dit_zimage_steps_run(&r->ex, r->self, &t, &steps, NULL, 0));
    return oq_dit_zimage_forward(&r->ex, r->self, &c, &steps, 0, r->x, r->y, NULL);
}

static oq_status qwen_image_step(block_run *r)
{
    oq_dit_qwen_image_condition c;
    const block_case *const w = r->what;
    const oq_dit_qwen_image_grid grid = {.rows = w->rows, .columns = w->columns};
    OQ_TRY(oq_dit_qwen_image_condition_new(&r->ex, r->self, w->n_text, &grid, 1, &c));
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

#define KLEIN_4B "\"num_attention_heads\":24,\"joint_attention_dim\":7680,\"guidance_embeds\":false"
#define KLEIN_9B "\"num_attention_heads\":32,\"joint_attention_dim\":12288,\"guidance_embeds\":false"
#define DOUBLE   "{\"num_layers\":1,\"num_single_layers\":0"
#define SINGLE   "{\"num_layers\":0,\"num_single_layers\":1"
#define WAN_5B   "\"num_attention_heads\":24,\"ffn_dim\":14336,\"in_channels\":48,\"out_channels\":48"

/* 1024 tokens in the attention of each; FLUX.2's and Z-Image's beside a picture of 512 x 512 pixels. Z-Image's two refiners of
 * noise cost what its layers do and are counted with them. */
static const block_case cases[] = {
    {"flux1-double", "FLUX.1", DOUBLE ",\"guidance_embeds\":true}", &oq_module_dit_flux1, 19, 512, 1, 16, 32,
     64, 64, 4096, 768, false, flux1_step},
    {"flux1-single", "FLUX.1", SINGLE ",\"guidance_embeds\":true}", &oq_module_dit_flux1, 38, 512, 1, 16, 32,
     64, 64, 4096, 768, false, flux1_step},
    {"flux2-klein-4b-double", "FLUX.2-klein 4B", DOUBLE "," KLEIN_4B "}", &oq_module_dit_flux2, 5, 512, 1, 32,
     32, 128, 128, 7680, 1, false, flux2_step},
    {"flux2-klein-4b-single", "FLUX.2-klein 4B", SINGLE "," KLEIN_4B "}", &oq_module_dit_flux2, 20, 512, 1,
     32, 32, 128, 128, 7680, 1, false, flux2_step},
    {"flux2-klein-9b-double", "FLUX.2-klein 9B", DOUBLE "," KLEIN_9B "}", &oq_module_dit_flux2, 8, 512, 1, 32,
     32, 128, 128, 12288, 1, false, flux2_step},
    {"flux2-klein-9b-single", "FLUX.2-klein 9B", SINGLE "," KLEIN_9B "}", &oq_module_dit_flux2, 24, 512, 1,
     32, 32, 128, 128, 12288, 1, false, flux2_step},
    {"flux2-dev-double", "FLUX.2-dev", DOUBLE "}", &oq_module_dit_flux2, 8, 512, 1, 32, 32, 128, 128, 15360,
     1, false, flux2_step},
    {"flux2-dev-single", "FLUX.2-dev", SINGLE "}", &oq_module_dit_flux2, 48, 512, 1, 32, 32, 128, 128, 15360,
     1, false, flux2_step},
    {"qwen-image", "Qwen-Image", "{\"num_layers\":1}", &oq_module_dit_qwen_image, 60, 128, 1, 28, 32, 64, 64,
     3584, 1, false, qwen_image_step},
    {"wan2.2-a14b", "Wan 2.2 A14B", "{\"num_layers\":1}", &oq_module_dit_wan, 40, 512, 4, 16, 16, 16, 16,
     4096, 1, true, wan_step},
    {"wan2.2-5b", "Wan 2.2 TI2V-5B", "{\"num_layers\":1," WAN_5B "}", &oq_module_dit_wan, 30, 512, 4, 16, 16,
     48, 48, 4096, 1, true, wan_step},
    {"z-image", "Z-Image", "{\"n_layers\":1,\"n_refiner_layers\":0}", &oq_module_dit_zimage, 32, 128, 1, 32,
     32, 16, 16, 2560, 1, true, zimage_step},
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

/* "ms" or "peer_ms" of the last row */
static double last(const oq_bench *b, const char *what)
{
    return oq_json_real(oq_json_get(oq_json_at(b->rows, oq_json_size(b->rows) - 1), what), 0);
}

/* torch's faster one: without products of bf16 pairs it multiplies BF16 through f32, several times slower than f32. */
static const char *peer_type(void)
{
    return oq_cpu_probe() & (OQ_CPU_AVX512BF16 | OQ_CPU_AMX | OQ_CPU_BF16) ? "bf16" : "f32";
}

static oq_status time_block(block_run *r, oq_bench_peer *peer, const char *dtype)
{
    const block_case *const w = r->what;
    char shape[96], order[96], name[64], full[80];
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
    snprintf(order, sizeof order, "block %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %s", w->name,
             w->n_text, w->frames, w->rows, w->columns, peer_type());
    OQ_TRY(oq_bench_peer_order(r->b, peer, order, name, sizeof name, &absent));
    if (absent) return OQ_OK;
    snprintf(full, sizeof full, "%s, %s", name, peer_type());
    OQ_TRY(run_step(r));
    const oq_bench_pairing p = {.b = r->b,
                                .peer = peer,
                                .run = run_step,
                                .user = r,
                                .cold = true,
                                .pairs = BLOCK_PAIRS,
                                .pool = r->b->env->pool};
    return oq_bench_turns(
        &p, &(oq_bench_pair_row){"block", shape, dtype, w->name, full, oq_pool_threads(r->b->env->pool), 0});
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

static bool chosen(const oq_bench *b, const block_case *what)
{
    return !b->filter || oq_glob_match(b->filter, what->name);
}

typedef struct model_step { /* of the cases that bear one model's name */
    size_t n;               /* cases; of them measured: */
    size_t n_timed;
    double ms[2]; /* bf16, int8 */
    double peer_ms;
} model_step;

/* The whole step, where each kind of block of the model was measured. */
static oq_status add_step(oq_bench *b, bool peer, const block_case *first, const model_step *s)
{
    char shape[96];
    if (s->n_timed < s->n) return OQ_OK;
    snprintf(shape, sizeof shape, "%s at 1024 tokens", first->model);
    if (peer) {
        const oq_bench_pair_row row = {
            "step", shape, "bf16", "layers x block", "the peer's blocks", oq_pool_threads(b->env->pool), 0};
        oq_bench_add_pair(b, &row, (double[]){s->ms[0]}, (double[]){s->peer_ms},
                          (double[]){s->peer_ms / s->ms[0]}, 1);
        return OQ_OK;
    }
    for (int int8 = 0; int8 < 2; int8++)
        OQ_TRY(oq_bench_add(b, &(oq_bench_row){"step", shape, int8 ? "int8" : "bf16", "layers x block", 0},
                            (double[]){s->ms[int8]}, 1, NULL));
    return OQ_OK;
}

/* The cases of one model, from `first` on; *end: behind them. */
static oq_status bench_model(oq_bench *b, oq_bench_peer *peer, oq_device *device, size_t first, size_t *end)
{
    model_step s = {0};
    size_t i = first;
    for (; i < OQ_COUNT(cases) && strcmp(cases[i].model, cases[first].model) == 0; i++) {
        s.n++;
        if (!chosen(b, &cases[i])) continue;
        const size_t n_rows = oq_json_size(b->rows);
        for (int int8 = 0; int8 < (peer ? 1 : 2); int8++) { /* peers have no int8 */
            OQ_TRY(bench_block(b, peer, device, &cases[i], int8));
            if (oq_json_size(b->rows) == n_rows) break; /* the peer lacks it */
            s.ms[int8] += cases[i].layers * last(b, "ms");
        }
        if (oq_json_size(b->rows) == n_rows) continue;
        if (peer) s.peer_ms += cases[i].layers * last(b, "peer_ms");
        s.n_timed++;
    }
    *end = i;
    return add_step(b, peer != NULL, &cases[first], &s);
}

oq_status oq_bench_blocks(oq_bench *b, oq_bench_peer *peer)
{
    oq_device *device = NULL;
    OQ_TRY(oq_backend_cpu.open(b->env, 0, oq_options_text(b->options, "cpu", NULL), &device));
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < OQ_COUNT(cases);) st = bench_model(b, peer, device, i, &i);
    oq_backend_cpu.close(b->env, device);
    return st;
}
