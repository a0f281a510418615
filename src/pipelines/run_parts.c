/* run_parts.c -- what families do alike while they run. */
#include "pipelines/run_parts.h"

#include "pipelines/finite_probe.h"
#include "pipelines/latents.h"

#include <stdio.h>

void oq_run_tell(const oq_exec *ex, const char *phase, int64_t done, int64_t total, double started_s)
{
    if (!ex->measure) oq_report_progress(ex->env, phase, done, total, oq_now_s() - started_s);
}

oq_status oq_run_walk(oq_exec *ex, oq_arena *arena, oq_status (*walk)(void *user), void *user)
{
    oq_arena_init(arena, ex->env);
    const oq_mark mark = oq_mark_get(ex);
    const oq_status st = walk(user);
    oq_mark_reset(ex, mark);
    oq_arena_deinit(arena);
    return st;
}

oq_status oq_run_phase_walk(const oq_exec *ex, const oq_run_phase *p)
{
    const double started_s = oq_now_s();
    oq_run_tell(ex, p->name, 0, p->end - p->first, started_s);
    for (int64_t i = p->first; i < p->end; i++) {
        const double one_started_s = oq_now_s();
        OQ_TRY(p->step(p->user, i));
        oq_run_tell(ex, p->name, i + 1 - p->first, p->end - p->first, started_s);
        if (p->each_s) p->each_s[i] = oq_now_s() - one_started_s;
    }
    if (p->seconds) *p->seconds = oq_now_s() - started_s;
    return OQ_OK;
}

static bool look_due(const oq_exec *ex, const oq_request *request, const oq_run_look *l)
{
    const int64_t parts = (int64_t)request->previews + 1;
    if (request->previews == 0) return false;
    if (ex->measure) return true;
    return ex->preview && l->step < l->steps && l->step * parts / l->steps > (l->step - 1) * parts / l->steps;
}

static oq_status make_look(const oq_exec *ex, const oq_request *request, const oq_run_look *l,
                           oq_arena *arena, oq_output *out)
{
    const int64_t frames = request->frames > 1 ? request->frames : 1;
    const int64_t bytes = (int64_t)request->n_prompts * request->images_per_prompt * frames *
                          request->height * request->width * 3;
    float *latents = NULL;
    if (ex->measure) return l->decode(l->run, NULL, NULL);
    OQ_TRY(oq_arena_new(arena, (size_t)l->elems, sizeof *latents, "a preview", &latents));
    OQ_TRY(oq_arena_new(arena, (size_t)bytes, 1, "a preview", &out->pixels));
    l->aim(l->run, l->index, latents);
    return l->decode(l->run, latents, out);
}

/* Neither progress nor trace nor recorded steps know of it. */
oq_status oq_run_look_at(oq_exec *ex, const oq_request *request, const oq_run_look *l)
{
    const oq_exec before = *ex; /* as the step left it */
    oq_arena arena;
    oq_output out = {0};
    if (!look_due(ex, request, l)) return OQ_OK;
    oq_arena_init(&arena, ex->env);
    oq_progress_within(ex->env, true);
    ex->trace = NULL;
    ex->step = 0;
    oq_status st = make_look(ex, request, l, &arena, &out);
    oq_mark_reset(ex, before.used);
    oq_phase_begin(ex, before.phase);
    ex->trace = before.trace;
    ex->step = before.step;
    oq_progress_within(ex->env, false);
    if (st == OQ_OK && !ex->measure) st = ex->preview(ex->preview_user, out.pixels, l->step, l->steps);
    oq_arena_deinit(&arena);
    return st;
}

oq_status oq_run_times_new(oq_arena *arena, int n, oq_run_times *out)
{
    OQ_TRY(oq_arena_new(arena, (size_t)n + 1, sizeof(float), "sigmas", &out->sigmas));
    OQ_TRY(oq_arena_new(arena, (size_t)n, sizeof(float), "timesteps", &out->timesteps));
    return oq_arena_new(arena, (size_t)n, sizeof(float), "timesteps", &out->model_t);
}

oq_status oq_run_times_trace(oq_exec *ex, int n, const oq_run_times *t)
{
    OQ_TRY(oq_trace_host(ex, "sigmas", &oq_dtype_f32, t->sigmas, (int64_t[]){n + 1}, 1));
    OQ_TRY(oq_trace_host(ex, "timesteps", &oq_dtype_f32, t->timesteps, (int64_t[]){n}, 1));
    return oq_trace_host(ex, "model_t", &oq_dtype_f32, t->model_t, (int64_t[]){n}, 1);
}

oq_run_words oq_run_describe(int64_t n_prompts, int64_t index)
{
    oq_run_words w;
    if (index < n_prompts) {
        snprintf(w.what, sizeof w.what, "prompt %lld", (long long)index + 1);
        snprintf(w.side, sizeof w.side, "pos.%lld", (long long)index);
    } else {
        snprintf(w.what, sizeof w.what, "the negative prompt");
        snprintf(w.side, sizeof w.side, "neg.0");
    }
    return w;
}

const char *oq_run_prefix(const oq_exec *ex, const char *name, int64_t item, char out[OQ_RUN_PREFIX_MAX])
{
    if (!ex->trace) return NULL;
    if (item == 0)
        snprintf(out, OQ_RUN_PREFIX_MAX, "%s", name);
    else
        snprintf(out, OQ_RUN_PREFIX_MAX, "%s.%lld", name, (long long)item);
    return out;
}

oq_status oq_run_not_finite(oq_exec *ex, oq_run_again again, void *user, const char *component,
                            const char *what)
{
    oq_finite_probe probe;
    const oq_trace_sink sink = ex->trace;
    oq_finite_probe_begin(&probe, ex);
    ex->trace = NULL;
    const oq_status st = again(ex, user);
    ex->trace = sink;
    oq_finite_probe_end(&probe);
    return st == OQ_OK ? oq_finite_probe_fail(&probe, component, what) : st;
}

oq_status oq_run_checked(oq_exec *ex, oq_run_again again, void *user, oq_tensor y, const char *component,
                         const char *what)
{
    OQ_TRY(again(ex, user));
    if (ex->measure || !ex->ops->all_finite || ex->ops->all_finite(ex->device, y)) return OQ_OK;
    return oq_run_not_finite(ex, again, user, component, what);
}

void oq_values_transpose(float *dst, const float *src, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) dst[j * rows + i] = src[i * cols + j];
}
