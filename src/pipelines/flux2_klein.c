/* flux2_klein.c -- the FLUX.2-klein family (4B, 9B; distilled and base): Qwen3 with its chat template, guidance by a second
 * forward where the model is not distilled. The rest is flux2.c's. */
#include "pipelines/flux2.h"

/* Qwen's chat template around a prompt, with the assistant's turn begun and its thinking skipped. */
#define BEFORE "<|im_start|>user\n"
#define AFTER  "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

static const oq_flux2_words words = {
    .family = "FLUX.2-klein", .before = BEFORE, .after = AFTER, .pad = "<|endoftext|>"};

typedef struct flux2_klein {
    oq_flux2 base; /* first: oq_flux2_deinit */
    bool is_distilled;
} flux2_klein;

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    flux2_klein *f = self;
    const oq_json *distilled = oq_json_get(setup->model_index, "is_distilled");
    f->is_distilled = oq_json_bool(distilled, oq_json_bool(oq_json_at(distilled, 1), false));
    return oq_flux2_init(env, setup, &words, &f->base);
}

/* Base models are not distilled: more steps, and guidance. */
static void defaults_for(const void *self, oq_pipeline_defaults *d)
{
    const flux2_klein *f = self;
    if (f->is_distilled) return;
    d->steps = 50;
    d->guidance = 4;
}

static bool is_guided(const flux2_klein *f, const oq_request *r)
{
    return !f->is_distilled && r->guidance > 1;
}

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    const flux2_klein *f = self;
    if (request->negative && request->negative[0] && !is_guided(f, request))
        return oq_fail(env, OQ_E_ARG, "a negative prompt has no effect: %s",
                       f->is_distilled ? "this FLUX.2-klein is distilled and runs without guidance"
                                       : "it needs a guidance scale above 1");
    return oq_flux2_check(env, &f->base, request);
}

static oq_status run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    const flux2_klein *f = self;
    return oq_flux2_run(ex, &f->base, request, is_guided(f, request), out);
}

static const oq_pipeline_component components[] = {
    {.name = "text_encoder", .quantizable = true, .encoder = true, .trim = oq_flux2_trim_encoder},
    {.name = "transformer", .quantizable = true},
    {.name = "vae"},
};

/* ---- recipes: docs/QUALITY.md has the figures ---------------------------------------------------------- */

static const oq_pipeline_recipe recipes[] = {
    {"careful8", "{\"transformer\":{\"method\":\"int8\",\"ignored_layers\":[\"linear_out\"]}}",
     "int8, the feed-forward outputs of double blocks BF16: a small model with made weights goes "
     "from 51.9 to 53.0 dB. Not measured on the published weights."},
    {"careful4", "{\"transformer\":{\"method\":\"nvfp4\",\"ignored_layers\":[\"transformer_blocks.0\"]}}",
     "nvfp4, the first double block BF16: a small model with made weights, where it is one of "
     "four, goes from 34.5 to 36.6 dB."},
    {0},
};

const oq_pipeline_type oq_pipeline_flux2_klein = {
    .name = "flux2-klein",
    .class_name = "Flux2KleinPipeline",
    .task = "text-to-image, image editing",
    .help = "FLUX.2-klein 4B and 9B: distilled (4 steps, no guidance) and base (50 steps; the guidance scale "
            "works against "
            "the negative prompt, at the cost of two forward passes a step).",
    .components = components,
    .n_components = OQ_COUNT(components),
    .recipes = recipes,
    .defaults = {.width = 1024,
                 .height = 1024,
                 .steps = 4,
                 .guidance = 1.0,
                 .max_sequence_length = OQ_FLUX2_MAX_TOKENS,
                 .multiple_px = 16},
    .takes = OQ_TAKES_IMAGE | OQ_TAKES_IMAGES | OQ_SIZED_BY_IMAGE,
    .prompt_before = BEFORE,
    .prompt_after = AFTER,
    .self_bytes = sizeof(flux2_klein),
    .init = init,
    .deinit = oq_flux2_deinit,
    .defaults_for = defaults_for,
    .check = check,
    .run = run,
};
