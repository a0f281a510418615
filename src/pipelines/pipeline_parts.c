/* pipeline_parts.c -- what families do alike in init and check. */
#include "pipelines/pipeline_parts.h"

#include "base/strbuf.h"
#include "pipelines/image_latents.h"
#include "pipelines/prompt_ids.h"

#include <math.h>
#include <string.h>

enum { MAX_SIDE_PX = 16384, MAX_ITEMS = 4096, MAX_STEPS = 1000 };

oq_status oq_setup_check_scheduler(oq_env *env, const oq_pipeline_setup *setup, const char *family,
                                   const char *class_name)
{
    const oq_json *entry = oq_json_get(setup->model_index, "scheduler");
    const char *name = oq_json_string(oq_json_at(entry, 1));
    if (setup->model_index && !name)
        return oq_fail(env, OQ_E_FORMAT, "model_index.json names no scheduler (a pair of library and class)");
    if (name && strcmp(name, class_name) != 0)
        return oq_fail(env, OQ_E_UNSUPPORTED, "scheduler '%s' is not supported; %s runs with %s", name,
                       family, class_name);
    if (!setup->scheduler)
        return oq_fail(env, OQ_E_NOTFOUND, "%s/scheduler/scheduler_config.json is missing", setup->folder);
    return OQ_OK;
}

oq_status oq_setup_tokenizer(oq_env *env, const oq_pipeline_setup *setup, const char *component,
                             const char *before, const char *after, oq_tokenizer **out)
{
    oq_strbuf path;
    *out = NULL;
    oq_strbuf_init(&path, env);
    oq_strbuf_printf(&path, "%s/%s", setup->folder, component);
    oq_status st = oq_strbuf_check(&path, "tokenizer path");
    if (st == OQ_OK) st = oq_tokenizer_open(env, oq_strbuf_text(&path), out);
    oq_strbuf_deinit(&path);
    if (st == OQ_OK) return oq_prompt_ids_check(env, *out, before, after);
    if (!setup->dummy) return st;
    oq_env_clear(env);
    oq_log(env, OQ_LOG_WARN, "%s has no %s: each byte of a prompt becomes a token", setup->folder, component);
    return OQ_OK;
}

oq_status oq_request_check_sides(oq_env *env, const oq_request *r, const oq_sides *sides)
{
    const int64_t multiple = sides->multiple;
    if (r->width < multiple || r->height < multiple || r->width % multiple || r->height % multiple)
        return oq_fail(env, OQ_E_ARG, "a picture of %lld x %lld pixels: both sides must be multiples of %lld",
                       (long long)r->width, (long long)r->height, (long long)multiple);
    if (r->width <= MAX_SIDE_PX && r->height <= MAX_SIDE_PX) return OQ_OK;
    const double bytes = (double)sides->bytes_per_px * (double)r->width * (double)r->height;
    return oq_fail(
        env, OQ_E_ARG,
        "a picture of %lld x %lld pixels: a side may have %d at most (decoding this one would take about "
        "%.0f GiB)",
        (long long)r->width, (long long)r->height, (int)MAX_SIDE_PX, bytes / 1073741824.0);
}

oq_status oq_request_check_schedule(oq_env *env, const oq_request *r)
{
    if (r->steps < 1 || r->steps > MAX_STEPS)
        return oq_fail(env, OQ_E_ARG, "%d steps: 1 to %d are possible", r->steps, (int)MAX_STEPS);
    if (!r->sigmas) return OQ_OK;
    if (r->n_sigmas != r->steps)
        return oq_fail(env, OQ_E_ARG, "%d sigmas are given for %d steps", r->n_sigmas, r->steps);
    for (int i = 0; i < r->n_sigmas; i++)
        if (!(r->sigmas[i] > 0.0f && r->sigmas[i] <= 1.0f))
            return oq_fail(env, OQ_E_ARG, "sigma %d is %g: sigmas are above 0 and at most 1", i + 1,
                           (double)r->sigmas[i]);
    return OQ_OK;
}

oq_status oq_request_check_guidance(oq_env *env, const oq_request *r)
{
    if (!isfinite(r->guidance) || r->guidance < 0)
        return oq_fail(env, OQ_E_ARG, "guidance scale %g: it must be a number of 0 (off) or more",
                       r->guidance);
    if (!isfinite(r->cfg_normalization) || r->cfg_normalization < 0)
        return oq_fail(env, OQ_E_ARG, "cfg normalization %g: it must be a number of 0 (off) or more",
                       r->cfg_normalization);
    if (isnan(r->cfg_truncation)) return oq_fail(env, OQ_E_ARG, "cfg truncation is not a number");
    return OQ_OK;
}

oq_status oq_request_check_plain_guidance(oq_env *env, const oq_request *r, const char *family)
{
    if (r->cfg_normalization > 0)
        return oq_fail(env, OQ_E_ARG, "cfg normalization %g: %s does not take it", r->cfg_normalization,
                       family);
    if (r->cfg_truncation < 1)
        return oq_fail(env, OQ_E_ARG, "cfg truncation %g: %s does not take it", r->cfg_truncation, family);
    return OQ_OK;
}

oq_status oq_request_check_strength(oq_env *env, const oq_request *r)
{
    if (r->n_images == 0) return OQ_OK;
    if (!(r->strength >= 0 && r->strength <= 1))
        return oq_fail(env, OQ_E_ARG, "strength %g: it must be between 0 and 1", r->strength);
    if (oq_image_first_step(r->steps, r->strength) < r->steps) return OQ_OK;
    return oq_fail(env, OQ_E_ARG, "strength %g leaves none of %d steps to run", r->strength, r->steps);
}

oq_status oq_request_check_texts(oq_env *env, const oq_request *r, int64_t max_tokens)
{
    if (r->n_prompts < 1 || r->images_per_prompt < 1 ||
        (int64_t)r->n_prompts * r->images_per_prompt > MAX_ITEMS)
        return oq_fail(env, OQ_E_ARG, "%d prompts with %d pictures each: 1 to %d pictures are possible",
                       r->n_prompts, r->images_per_prompt, (int)MAX_ITEMS);
    for (int i = 0; i < r->n_prompts; i++)
        if (!r->prompts || !r->prompts[i]) return oq_fail(env, OQ_E_ARG, "prompt %d is missing", i + 1);
    if (r->max_sequence_length < 1 || r->max_sequence_length > max_tokens)
        return oq_fail(env, OQ_E_ARG, "max sequence length %d: the text encoder takes 1 to %lld tokens",
                       r->max_sequence_length, (long long)max_tokens);
    return OQ_OK;
}
