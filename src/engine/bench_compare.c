/* bench_compare.c -- ours beside torch and diffusers: which operations, and whole pictures. */
#include "engine/bench.h"

#include "base/pool.h"
#include "engine/bench_cases.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { FRESH_PAIRS = 3 };

/* ---- operations ---------------------------------------------------------------------------------------- */

typedef enum case_kind { LINEAR, ATTENTION, CONV, CONV3D, GROUP_NORM, MODULATE } case_kind;
typedef enum case_type { F32, BF16, INT8, FP8 } case_type; /* FP8: beside our own BF16 */

static const struct compare_case {
    case_kind kind;
    case_type type;
    int64_t a, b, c,
        d; /* LINEAR m n k; ATTENTION heads tokens width; CONV in out side x; CONV3D in out side frames;
                           norms: two sizes. MODULATE of INT8: with the quantization of its rows */
} cases[] = {
    {LINEAR, BF16, 512, 2048, 2048, 0}, {LINEAR, BF16, 1024, 3072, 3072, 0},
    {LINEAR, BF16, 256, 192, 192, 0},   {LINEAR, BF16, 288, 576, 192, 0},
    {LINEAR, BF16, 288, 1024, 192, 0},  {LINEAR, BF16, 288, 192, 512, 0},
    {LINEAR, INT8, 512, 2048, 2048, 0}, {LINEAR, INT8, 288, 1024, 192, 0},
    {LINEAR, INT8, 288, 192, 512, 0},   {LINEAR, FP8, 512, 2048, 2048, 0},
    {LINEAR, FP8, 288, 1024, 192, 0},   {LINEAR, F32, 512, 2048, 2048, 0},
    {LINEAR, F32, 288, 1024, 192, 0},   {LINEAR, F32, 288, 192, 512, 0},
    {LINEAR, BF16, 1, 18432, 3072, 0},  {LINEAR, BF16, 8, 18432, 3072, 0},
    {ATTENTION, BF16, 3, 288, 64, 0},   {ATTENTION, BF16, 12, 1024, 64, 0},
    {ATTENTION, BF16, 8, 1024, 128, 0}, {ATTENTION, BF16, 2, 4096, 128, 0},
    {ATTENTION, FP8, 8, 1024, 128, 0},  {ATTENTION, FP8, 2, 4096, 128, 0},
    {ATTENTION, F32, 8, 1024, 128, 0},  {CONV, BF16, 64, 64, 256, 1},
    {CONV, BF16, 128, 128, 128, 1},     {CONV, BF16, 256, 256, 64, 1},
    {CONV, BF16, 512, 512, 32, 1},      {CONV, BF16, 128, 128, 64, 2},
    {CONV, F32, 64, 64, 256, 1},        {CONV, F32, 128, 128, 128, 1},
    {CONV, F32, 256, 256, 64, 1},       {CONV, F32, 512, 512, 32, 1},
    {GROUP_NORM, BF16, 128, 128, 0, 0}, {GROUP_NORM, F32, 128, 128, 0, 0},
    {MODULATE, BF16, 1024, 3072, 0, 0}, {MODULATE, INT8, 1024, 3072, 0, 0},
    {CONV3D, F32, 96, 96, 64, 4},       {CONV3D, F32, 192, 192, 32, 4},
    {CONV3D, F32, 384, 384, 16, 4},     {CONV3D, BF16, 96, 96, 64, 4},
};

static const char *type_name(case_type t)
{
    static const char *const names[] = {"f32", "bf16", "int8", "fp8"};
    return names[t];
}

static const oq_dtype *element(case_type t)
{
    return t == F32 ? &oq_dtype_f32 : &oq_dtype_bf16;
}

static oq_scheme scheme_of(case_type t)
{
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_f32, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_bf16, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
    };
    return schemes[t];
}

static oq_status make_case(const struct compare_case *k, case_type type, oq_env *env, oq_device *device,
                           oq_bench_case *out)
{
    oq_conv2d_spec conv = oq_conv2d_same(k->b, k->a, 3);
    conv.upsample = (int)k->d;
    switch (k->kind) {
    case LINEAR:
        return oq_bench_case_linear(out, env, device, NULL, (oq_linear_spec){scheme_of(type), k->b, k->c},
                                    k->a, element(type));
    case ATTENTION:
        return oq_bench_case_attention(
            out, env, device, NULL,
            (oq_attention_spec){.head_dim = k->c,
                                .n_heads = k->a,
                                .n_kv_heads = k->a,
                                .precision = type == FP8 ? OQ_ATTENTION_FP8 : OQ_ATTENTION_PLAIN},
            k->b, element(type));
    case CONV:
        return oq_bench_case_conv(out, env, device, NULL, conv, k->c, 1, element(type));
    case CONV3D:
        conv.upsample = 1, conv.kt = 3, conv.stride_t = 1, conv.pad_front = 2;
        return oq_bench_case_conv(out, env, device, NULL, conv, k->c, k->d, element(type));
    case GROUP_NORM:
        return oq_bench_case_group_norm(out, env, device, k->a, k->b, element(type));
    case MODULATE:
        break;
    }
    return type == INT8 ? oq_bench_case_quantize(out, env, device, k->a, k->b)
                        : oq_bench_case_modulate(out, env, device, k->a, k->b, element(type));
}

/* The order for the peer is the row's shape in its own words. */
static void describe(const struct compare_case *k, char *shape, char *order, size_t n)
{
    const char *const type = type_name(k->type);
    switch (k->kind) {
    case LINEAR:
        snprintf(shape, n, "m%" PRId64 " n%" PRId64 " k%" PRId64, k->a, k->b, k->c);
        snprintf(order, n, "linear %" PRId64 " %" PRId64 " %" PRId64 " %s", k->a, k->b, k->c, type);
        return;
    case ATTENTION:
        snprintf(shape, n, "h%" PRId64 " s%" PRId64 " d%" PRId64, k->a, k->b, k->c);
        snprintf(order, n, "attention %" PRId64 " %" PRId64 " %" PRId64 " %s", k->a, k->b, k->c, type);
        return;
    case CONV:
        snprintf(shape, n, "%" PRId64 "->%" PRId64 " 3x3 %" PRId64 "px%s", k->a, k->b, k->c,
                 k->d == 2 ? " x2" : "");
        snprintf(order, n, "conv %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %s", k->a, k->b, k->c, k->d,
                 type);
        return;
    case CONV3D:
        snprintf(shape, n, "%" PRId64 "->%" PRId64 " 3x3x3 %" PRId64 "px %" PRId64 "fr", k->a, k->b, k->c,
                 k->d);
        snprintf(order, n, "conv3d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %s", k->a, k->b, k->c,
                 k->d, type);
        return;
    case GROUP_NORM:
        snprintf(shape, n, "%" PRId64 "ch %" PRId64 "px silu", k->a, k->b);
        snprintf(order, n, "group_norm %" PRId64 " %" PRId64 " %s", k->a, k->b, type);
        return;
    case MODULATE:
        break;
    }
    snprintf(shape, n, "%" PRId64 "x%" PRId64, k->a, k->b);
    snprintf(order, n, "modulate %" PRId64 " %" PRId64 " %s", k->a, k->b, type);
}

oq_status oq_bench_peer_order(oq_bench *b, oq_bench_peer *peer, const char *order, char *name, size_t n,
                              bool *absent)
{
    oq_json *answer = NULL;
    OQ_TRY(oq_bench_peer_ask(peer, &answer, "%s", order));
    const char *const why = oq_json_string(oq_json_get(answer, "absent"));
    const char *const who = oq_json_string(oq_json_get(answer, "peer"));
    *absent = why != NULL;
    if (why) oq_log(b->env, OQ_LOG_WARN, "bench: the peer has no '%s': %s", order, why);
    if (who) snprintf(name, n, "%s", who);
    oq_json_free(answer);
    return OQ_OK;
}

/* A row is asked for by its kernel or by its operation. */
static bool is_wanted(const oq_bench *b, const char *op, const char *kernel)
{
    return !b->filter || oq_glob_match(b->filter, kernel) || oq_glob_match(b->filter, op);
}

static oq_status compare_case_with(oq_bench *b, oq_bench_peer *peer, oq_device *device,
                                   const struct compare_case *k)
{
    static const char *const ops[] = {"linear", "attention", "conv2d", "conv3d", "group_norm", "modulate"};
    char shape[64], order[64], name[96] = "own bf16";
    bool absent = false;
    oq_bench_case ours, other;
    describe(k, shape, order, sizeof shape);
    OQ_TRY(make_case(k, k->type, b->env, device, &ours));
    if (!is_wanted(b, ops[k->kind], ours.kernel)) {
        oq_bench_case_free(&ours);
        return OQ_OK;
    }
    oq_status st = OQ_OK;
    if (k->type == FP8)
        st = make_case(k, BF16, b->env, device, &other);
    else
        st = oq_bench_peer_order(b, peer, order, name, sizeof name, &absent);
    if (st != OQ_OK || absent) {
        oq_bench_case_free(&ours);
        return st;
    }
    oq_bench_pairing p = {.b = b,
                          .peer = peer,
                          .run = oq_bench_case_call,
                          .user = &ours,
                          .pairs = OQ_BENCH_PAIRS,
                          .pool = device->pool};
    if (k->type == FP8) p.peer = NULL, p.other = oq_bench_case_call, p.other_user = &other;
    const oq_bench_pair_row row = {ops[k->kind], shape, type_name(k->type),
                                   ours.kernel,  name,  oq_pool_threads(device->pool),
                                   ours.flops};
    st = oq_bench_turns(&p, &row);
    oq_bench_case_free(&ours);
    if (k->type == FP8) oq_bench_case_free(&other);
    return st;
}

static oq_status compare_operations(oq_bench *b, oq_bench_peer *peer, oq_device *device)
{
    for (size_t i = 0; i < OQ_COUNT(cases); i++) OQ_TRY(compare_case_with(b, peer, device, &cases[i]));
    return OQ_OK;
}

/* `compare` on all threads, then on one. */
static oq_status on_threads(oq_bench *b, oq_bench_peer *peer,
                            oq_status (*compare)(oq_bench *b, oq_bench_peer *peer, oq_device *device))
{
    oq_device *device = NULL;
    OQ_TRY(oq_backend_cpu.open(b->env, 0, oq_options_text(b->options, "cpu", NULL), &device));
    oq_device single = *device;
    single.pool = NULL;
    const bool several = oq_pool_threads(device->pool) > 1;
    oq_status st = OQ_OK;
    for (int on_one = several ? 0 : 1; st == OQ_OK && on_one < 2; on_one++) {
        oq_device *const d = on_one ? &single : device;
        char order[32], name[64];
        bool absent;
        snprintf(order, sizeof order, "threads %d", oq_pool_threads(d->pool));
        st = oq_bench_peer_order(b, peer, order, name, sizeof name, &absent);
        if (st == OQ_OK) st = compare(b, peer, d);
    }
    oq_backend_cpu.close(b->env, device);
    return st;
}

/* ---- whole pictures ------------------------------------------------------------------------------------ */

typedef struct whole { /* one picture by a loaded model, or by a new process */
    oq_bench *b;
    const oq_model *model;
    const oq_request *request;
    char *argv[12];
} whole;

static oq_status run_whole(void *user)
{
    const whole *w = user;
    oq_media *media = NULL;
    OQ_TRY(oq_generate_request(w->b->env, w->model, w->request, NULL, &media));
    oq_media_free(media);
    return OQ_OK;
}

static oq_status run_fresh(void *user)
{
    const whole *w = user;
    pid_t pid;
    int status = 0;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int e = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, w->argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (e) return oq_fail(w->b->env, OQ_E_IO, "omniq cannot start itself: %s", strerror(e));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OQ_OK;
    return oq_fail(w->b->env, OQ_E_IO, "a process of omniq that makes a picture has failed");
}

/* Ours in `method`, the peer in `type`. */
static oq_status compare_whole(oq_bench *b, oq_bench_peer *peer, whole *w, const char *method,
                               const char *type, bool fresh)
{
    const oq_request *const r = w->request;
    char order[160], shape[64], dtype[64], name[64], full[96];
    bool absent = false;
    snprintf(full, sizeof full, "%s %s %s", fresh ? "fresh" : "generate", method, type);
    if (!is_wanted(b, fresh ? "fresh" : "generate", full)) return OQ_OK;
    snprintf(order, sizeof order, "%s %" PRId64 " %" PRId64 " %d %g %s", fresh ? "fresh" : "picture",
             r->width, r->height, r->steps, r->guidance, type);
    snprintf(shape, sizeof shape, "%" PRId64 "x%" PRId64 " %d steps", r->width, r->height, r->steps);
    snprintf(dtype, sizeof dtype, "%s", strcmp(method, "none") == 0 ? "bf16" : method);
    OQ_TRY(oq_bench_peer_order(b, peer, order, name, sizeof name, &absent));
    if (absent) return OQ_OK;
    snprintf(full, sizeof full, "diffusers %s, %s", type, name);
    const oq_bench_pairing p = {.b = b,
                                .peer = peer,
                                .run = fresh ? run_fresh : run_whole,
                                .user = w,
                                .cold = fresh,
                                .pairs = fresh ? FRESH_PAIRS : OQ_BENCH_PAIRS,
                                .pool = b->env->pool};
    const oq_bench_pair_row row = {fresh ? "fresh" : "generate",  shape, dtype, "whole", full,
                                   oq_pool_threads(b->env->pool), 0};
    return oq_bench_turns(&p, &row);
}

static oq_status compare_model(oq_bench *b, oq_bench_peer *peer, const char *method)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    oq_request request;
    oq_arena arena;
    const char *const folder = getenv("TMPDIR");
    char threads[16], order[32], name[64];
    bool absent;
    oq_arena_init(&arena, b->env);
    snprintf(threads, sizeof threads, "%d", oq_pool_threads(b->env->pool));
    char *const png = oq_arena_printf(&arena, "%s/omniq-bench-%ld.png", folder && *folder ? folder : "/tmp",
                                      (long)getpid());
    snprintf(order, sizeof order, "threads %s", threads);
    oq_status st = png ? OQ_OK : oq_fail(b->env, OQ_E_NOMEM, "bench: no memory");
    if (st == OQ_OK) st = oq_bench_peer_order(b, peer, order, name, sizeof name, &absent);
    if (st == OQ_OK) st = oq_bench_open_model(b, method, &arena, &options, &model, &request);
    if (st == OQ_OK) {
        const char *const path = oq_options_text(b->options, "model", "");
        whole w = {b,
                   model,
                   &request,
                   {"omniq", "generate", "-q", "-m", (char *)(uintptr_t)path, "-p", "a large red ball", "-o",
                    png, "--threads", threads, NULL}};
        st = compare_whole(b, peer, &w, method, "bf16", false);
        if (st == OQ_OK) st = compare_whole(b, peer, &w, method, "f32", false);
        if (st == OQ_OK && strcmp(method, "none") == 0) st = compare_whole(b, peer, &w, method, "bf16", true);
        unlink(png);
    }
    oq_model_close(model);
    oq_options_free(options);
    oq_arena_deinit(&arena);
    return st;
}

oq_status oq_bench_compare(oq_bench *b)
{
    const char *const only = oq_options_text(b->options, "only", NULL);
    oq_bench_peer *peer = NULL;
    OQ_TRY(oq_bench_peer_start(b, &peer));
    oq_strbuf_printf(b->text, "%-11s %-24s %-12s %-31s %s %10s %10s %6s  %s\n", "op", "shape", "dtype",
                     "kernel", "T", "ms", "peer ms", "ratio", "spread     peer");
    oq_status st = OQ_OK;
    if (!only || strcmp(only, "kernels") == 0) st = on_threads(b, peer, compare_operations);
    if (st == OQ_OK && only && strcmp(only, "formats") == 0) st = on_threads(b, peer, oq_bench_formats);
    if (oq_options_given(b->options, "model") && (!only || strcmp(only, "whole") == 0)) {
        if (st == OQ_OK) st = compare_model(b, peer, "none");
        if (st == OQ_OK) st = compare_model(b, peer, "int8");
    }
    if (st == OQ_OK && only && strcmp(only, "blocks") == 0) st = oq_bench_blocks(b, peer);
    oq_bench_peer_stop(peer);
    return st;
}
