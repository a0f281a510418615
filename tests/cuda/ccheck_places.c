/* ccheck_places.c -- what the backend does beside kernels: weights that stream through a window, steps that are recorded,
 * dummy weights that are made on the card. */
#include "ccheck.h"

#include "base/size.h"
#include "load/load.h"

#include <math.h>

/* ---- window --------------------------------------------------------------------------------------------- */

/* Pieces of many sizes, three rounds in one order and one in another, through a window that holds a few: each is copied out
 * by the stream that computes, and compared at the end. */
static void check_window(ccheck *c, size_t window_bytes, cc_row *row)
{
    enum { PIECES = 40, ROUNDS = 4 };
    const oq_backend *b = &oq_backend_cuda;
    size_t at[PIECES + 1] = {0}, most = 0;
    void *host = NULL;
    oq_window *window = NULL;
    for (int i = 0; i < PIECES; i++) {
        const size_t bytes = 1000 + (size_t)cc_u32(c) % 300000;
        at[i + 1] = at[i] + (bytes + 255) / 256 * 256;
        if (at[i + 1] - at[i] > most) most = at[i + 1] - at[i];
    }
    cc_ok(c, b->host_new(c->env, c->gpu, at[PIECES], &host));
    for (size_t i = 0; i < at[PIECES] / 4; i++) ((uint32_t *)host)[i] = cc_u32(c);
    cc_ok(c, b->window_new(c->env, c->gpu, window_bytes, &window));
    char *out = cc_device(c, at[PIECES]), *got = cc_new(c, at[PIECES]);
    bool same = window_bytes >= most;
    for (int r = 0; r < ROUNDS; r++) {
        cudaMemsetAsync(out, 0, at[PIECES], c->gpu->stream);
        for (int i = 0; i < PIECES; i++) {
            const int j = r < ROUNDS - 1 ? i : (i * 7 + 3) % PIECES;
            const void *piece = b->window_get(window, (char *)host + at[j], at[j + 1] - at[j]);
            cudaMemcpyAsync(out + at[j], piece, at[j + 1] - at[j], cudaMemcpyDeviceToDevice, c->gpu->stream);
        }
        cc_ok(c, b->download(c->env, c->gpu, got, out, at[PIECES]));
        same = memcmp(got, host, at[PIECES]) == 0 && same;
    }
    cc_case(c, row, same, "window of %zu bytes", window_bytes);
    b->window_free(c->env, window);
    b->host_free(c->env, c->gpu, host);
    cc_release(c, out);
    oq_free(c->env, got);
}

/* ---- recorded steps ------------------------------------------------------------------------------------- */

static void check_graph(ccheck *c, cc_row *row)
{
    enum { N = 1000, RUNS = 6 };
    const oq_backend *b = &oq_backend_cuda;
    float x[N], got[N];
    int recorded = 0, replayed = 0;
    for (int i = 0; i < N; i++) x[i] = (float)i;
    cc_tensor t = cc_tensor_new(c, &oq_dtype_f32, 10, N / 10, 0, x);
    for (int run = 0; run < RUNS; run++) {
        if (b->graph_replay(c->gpu, 7)) {
            replayed++;
            continue;
        }
        const bool recording = b->graph_begin(c->gpu, 7);
        b->ops(c->gpu)->axpby(c->gpu, t.device, 1.0f, t.device, 1.0f); /* doubles it */
        if (recording) b->graph_end(c->gpu, 7), recorded++;
    }
    cc_ok(c, b->sync(c->env, c->gpu));
    b->graph_clear(c->gpu);
    bool same = cc_tensor_read(c, &t, got) && recorded == 1 && replayed == RUNS - 2;
    for (int i = 0; i < N; i++) same = same && got[i] == x[i] * (1 << RUNS);
    cc_case(c, row, same, "recorded %d, replayed %d", recorded, replayed);
    cc_tensor_free(c, &t);
}

/* ---- dummy weights -------------------------------------------------------------------------------------- */

static void check_dummy(ccheck *c, oq_scheme scheme, cc_row *row)
{
    enum { K = 320, PARTS = 2 };
    static const struct {
        const char *name;
        int64_t rows;
    } parts[PARTS] = {{"layers.0.attention.to_q.weight", 96}, {"layers.0.attention.to_k.weight", 33}};
    const oq_linear_spec spec = {.scheme = scheme, .n = parts[0].rows + parts[1].rows, .k = K};
    const oq_format *f = scheme.weight;
    const oq_linear_kernel *kernel = oq_backend_cuda.find_linear(c->gpu, &spec);
    float *w = cc_new(c, (size_t)(spec.n * K) * sizeof *w), *at = w;
    oq_dummy_part rules[PARTS];
    for (int i = 0; i < PARTS; i++, at += parts[i - 1].rows * K) {
        const int64_t dim[2] = {parts[i].rows, K};
        oq_dummy_fill(at, parts[i].name, dim, 2);
        rules[i] = (oq_dummy_part){.seed = oq_dummy_seed(parts[i].name), .rows = dim[0]};
        oq_dummy_rule(parts[i].name, dim, 2, &rules[i].scale, &rules[i].offset);
    }
    oq_planes_mut made = {{NULL}};
    oq_planes planes = {{NULL}};
    for (int p = 0; p < OQ_PLANE_INPUT_SCALE; p++)
        if (f->planes >> p & 1u)
            planes.plane[p] = made.plane[p] = cc_new(c, f->plane_bytes(f, (oq_plane)p, spec.n, K));
    f->encode(f, &made, w, spec.n, K);
    const size_t bytes = kernel->packed_bytes(&spec);
    char *want = cc_new(c, bytes), *got = cc_new(c, bytes);
    memset(want, 0, bytes);
    kernel->pack(want, &planes, &spec);
    void *packed = cc_device(c, bytes);
    cudaMemsetAsync(packed, 0, bytes, c->gpu->stream);
    const bool filled = oq_backend_cuda.fill_linear(c->gpu, &spec, packed, rules, PARTS);
    cc_ok(c, oq_backend_cuda.download(c->env, c->gpu, got, packed, bytes));
    size_t first = 0;
    while (first < bytes && got[first] == want[first]) first++;
    cc_case(c, row, filled && first == bytes, "%s: byte %zu of %zu", f->name, first, bytes);
    for (int p = 0; p < OQ_PLANE_INPUT_SCALE; p++) oq_free(c->env, made.plane[p]);
    cc_release(c, packed);
    oq_free(c->env, want);
    oq_free(c->env, got);
    oq_free(c->env, w);
}

void ccheck_places(ccheck *c)
{
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_f32},
        {.weight = &oq_format_bf16},
        {.weight = &oq_format_fp8_e4m3_tensor, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN}};
    cc_row window = {.kernel = "window"}, graph = {.kernel = "graph"}, dummy = {.kernel = "dummy weights"};
    if (c->bench_ms > 0 || !cc_wants(c, "places") || !cc_mine(c)) return;
    for (size_t bytes = 301056; bytes < 20000000; bytes *= 3) check_window(c, bytes, &window);
    check_graph(c, &graph);
    for (size_t i = 0; i < OQ_COUNT(schemes); i++) check_dummy(c, schemes[i], &dummy);
    cc_row_print(&window);
    cc_row_print(&graph);
    cc_row_print(&dummy);
}
