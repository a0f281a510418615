/* flux2_dev.c -- the FLUX.2-dev family: Mistral 3 with a system message, the guidance scale embedded by the transformer. The
 * rest is flux2.c's. */
#include "pipelines/flux2.h"

#include "base/file.h"
#include "base/strbuf.h"

#include <string.h>

/* Mistral's chat template with the system message that the model was trained with. */
#define BEFORE                                                                                               \
    "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses "     \
    "focusing on object relationships, object\nattribution and actions without speculation."                 \
    "[/SYSTEM_PROMPT][INST]"
#define AFTER "[/INST]"

static const oq_flux2_words words = {.family = "FLUX.2-dev",
                                     .before = BEFORE,
                                     .after = AFTER,
                                     .first = "<s>",
                                     .pad = "<pad>",
                                     .left_out = "[IMG]",
                                     .embeds_guidance = true};

/* Pads stand in front of a prompt unless tokenizer_config.json has them behind it. */
static oq_status read_padding(oq_env *env, const oq_pipeline_setup *setup, oq_flux2 *f)
{
    oq_strbuf path;
    oq_json *config = NULL;
    oq_strbuf_init(&path, env);
    oq_strbuf_printf(&path, "%s/tokenizer/tokenizer_config.json", setup->folder);
    oq_status st = oq_strbuf_check(&path, "tokenizer path");
    f->pads_before = true;
    if (st == OQ_OK && oq_file_exists(oq_strbuf_text(&path)))
        st = oq_json_parse_file(env, oq_strbuf_text(&path), 1 << 22, &config);
    oq_strbuf_deinit(&path);
    const char *side = oq_json_string(oq_json_get(config, "padding_side"));
    if (st == OQ_OK && side && strcmp(side, "left") != 0 && strcmp(side, "right") != 0)
        st = oq_fail(env, OQ_E_FORMAT,
                     "tokenizer_config.json: 'padding_side' is '%s', left or right is needed", side);
    if (side) f->pads_before = strcmp(side, "left") == 0;
    oq_json_free(config);
    return st;
}

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    OQ_TRY(read_padding(env, setup, self));
    return oq_flux2_init(env, setup, &words, self);
}

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    if (request->negative && request->negative[0])
        return oq_fail(env, OQ_E_ARG, "a negative prompt has no effect: FLUX.2-dev embeds its guidance");
    return oq_flux2_check(env, self, request);
}

static oq_status run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    return oq_flux2_run(ex, self, request, false, out);
}

static const oq_pipeline_component components[] = {
    {.name = "text_encoder", .quantizable = true, .encoder = true, .trim = oq_flux2_trim_encoder},
    {.name = "transformer", .quantizable = true},
    {.name = "vae"},
};

/* ---- recipes: docs/QUALITY.md has the figures ---------------------------------------------------------- */

static const oq_pipeline_recipe recipes[] = {
    {"careful8", "{\"transformer\":{\"method\":\"int8\",\"ignored_layers\":[\"linear_out\"]}}",
     "int8, the feed-forward outputs of double blocks BF16, as for FLUX.2-klein, whose blocks these are: a "
     "small model with made weights goes from 47.9 to 49.2 dB. Not measured on the published weights."},
    {"careful4", "{\"transformer\":{\"method\":\"nvfp4\",\"ignored_layers\":[\"transformer_blocks.0\"]}}",
     "nvfp4, the first double block BF16 (one of 56 blocks), as for FLUX.2-klein: a small model with made "
     "weights, where it is one of four, goes from 29.9 to 32.5 dB. Not measured on the published weights."},
    {0},
};

const oq_pipeline_type oq_pipeline_flux2_dev = {
    .name = "flux2-dev",
    .class_name = "Flux2Pipeline",
    .task = "text-to-image, image editing",
    .help = "FLUX.2-dev (50 steps; the guidance scale is embedded and costs nothing).",
    .components = components,
    .n_components = OQ_COUNT(components),
    .recipes = recipes,
    .defaults = {.width = 1024,
                 .height = 1024,
                 .steps = 50,
                 .guidance = 4.0,
                 .max_sequence_length = OQ_FLUX2_MAX_TOKENS,
                 .multiple_px = 16},
    .takes = OQ_TAKES_IMAGE | OQ_TAKES_IMAGES | OQ_SIZED_BY_IMAGE,
    .prompt_before = BEFORE,
    .prompt_after = AFTER,
    .self_bytes = sizeof(oq_flux2),
    .init = init,
    .deinit = oq_flux2_deinit,
    .check = check,
    .run = run,
};
