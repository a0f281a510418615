/* quality_rows.c -- quantizations of the demo model that docs/QUALITY.md tells of, and their measurement. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/quality_rows.h"
#include "support/scratch.h"

#include "compare/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

const char *const quality_prompts[QUALITY_PROMPTS] = {
    "a large red ball to the left of a small blue star on a cream background",
    "a small striped green triangle above a large yellow heart on a white background",
    "a large dotted orange square to the right of a small teal ring on a navy background",
    "a small pink diamond below a large gray cross on a mint background",
    "a large purple heart to the left of a small yellow ball on a white background",
    "a small black star above a large striped red square on a gray background",
};
const char *const quality_seeds[QUALITY_PROMPTS] = {"42", "7", "1", "2", "3", "4"};

/* None of those above. */
static const char *const calibration_prompts[] = {
    "a large blue cross to the right of a small orange heart on a white background",
    "a small dotted purple ball below a large green star on a cream background",
    "a large teal triangle above a small red diamond on a gray background",
    "a small striped yellow square to the left of a large black ring on a mint background",
    "a large pink ball on a navy background",
    "a small gray star above a large dotted yellow heart on a mint background",
    "a large striped orange diamond to the left of a small purple square on a cream background",
    "a small red ring below a large blue triangle on a white background",
};

#define FP8_CHANNEL        "{\"method\":\"fp8\",\"weight_strategy\":\"channel\"}"
#define FP8_BLOCK          "{\"method\":\"fp8\",\"weight_strategy\":\"block\"}"
#define GROUPS(bits, size) "{\"method\":\"w4a16\",\"bits\":" bits ",\"group_size\":" size "}"
#define STATIC             .option = "activation-scheme", .value = "static"
#define DB(mean)           .emulated_db = (mean)
#define GGUF(type)                                                                                           \
    {                                                                                                        \
        "gguf " type, "{\"method\":\"gguf\",\"type\":\"" type "\"}", NULL, DB(0)                             \
    }

/* Emulated means: six prompts, 8 steps, float32 but for the transformer's linear layers. */
const quality_row quality_rows[] = {
    {"bf16", "null", NULL, DB(0)},
    {"fp8, a scale a tensor", "{\"method\":\"fp8\"}", NULL, DB(44.05)},
    {"fp8, a scale a row", FP8_CHANNEL, NULL, DB(40.05)},
    {"fp8, 128x128 blocks", FP8_BLOCK, NULL, DB(40.86)},
    {"int8", "{\"method\":\"int8\"}", NULL, DB(50.88)},
    {"bitsandbytes nf4, nested scales", "{\"method\":\"bitsandbytes\"}", NULL, DB(34.19)},
    {"bitsandbytes nf4", "{\"method\":\"bitsandbytes\",\"compress_statistics\":false}", NULL, DB(34.19)},
    {"bitsandbytes fp4", "{\"method\":\"bitsandbytes\",\"quant_type\":\"fp4\"}", NULL, DB(0)},
    {"mxfp8", "{\"method\":\"mxfp8\"}", NULL, DB(39.94)},
    {"mxfp4", "{\"method\":\"mxfp4\"}", NULL, DB(29.87)},
    {"mxfp4, 8-bit activations in steps 0 and 1", "{\"method\":\"mxfp4\",\"w4a8_fallback_steps\":[0,1]}",
     NULL, DB(0)},
    {"mxfp4_dualscale", "{\"method\":\"mxfp4_dualscale\"}", NULL, DB(0)},
    {"modelopt_fp4, plain activations", "{\"method\":\"nvfp4\"}", NULL, DB(33.22)},
    {"modelopt_fp4, 4-bit activations", "{\"method\":\"nvfp4\",\"activations\":\"dynamic\"}", NULL,
     DB(32.67)},
    {"w4a16, 8 bits, groups of 128", GROUPS("8", "128"), NULL, DB(0)},
    {"w4a16, 4 bits, groups of 32", GROUPS("4", "32"), NULL, DB(32.32)},
    {"w4a16, 4 bits, groups of 64", GROUPS("4", "64"), NULL, DB(29.68)},
    {"w4a16, 4 bits, groups of 128", GROUPS("4", "128"), NULL, DB(0)},
    {"w4a16, 4 bits with zero points, groups of 32",
     "{\"method\":\"w4a16\",\"bits\":4,\"group_size\":32,\"sym\":false}", NULL, DB(0)},
    {"w4a16, 3 bits, groups of 32", GROUPS("3", "32"), NULL, DB(0)},
    {"w4a16, 2 bits, groups of 32", GROUPS("2", "32"), NULL, DB(0)},
    GGUF("Q8_0"),
    GGUF("Q6_K"),
    GGUF("Q5_K"),
    GGUF("Q4_K"),
    GGUF("Q3_K"),
    GGUF("Q2_K"),
    GGUF("Q5_1"),
    GGUF("Q5_0"),
    GGUF("Q4_1"),
    GGUF("Q4_0"),
    GGUF("IQ4_NL"),
    GGUF("IQ4_XS"),
    GGUF("MXFP4"),
    GGUF("NVFP4"),
    GGUF("TQ2_0"),
    GGUF("TQ1_0"),
    GGUF("Q8_K"),
    GGUF("F16"),
    GGUF("BF16"),
    {"fp8, a scale a row", FP8_CHANNEL, "compressed-tensors", DB(40.05)},
    {"int8", "{\"method\":\"int8\"}", "compressed-tensors", DB(50.88)},
    {"int8, static activations", "{\"method\":\"int8\"}", "compressed-tensors", DB(0), STATIC},
    {"w4a16, 4 bits, groups of 64", GROUPS("4", "64"), "compressed-tensors", DB(29.68)},
    {"w4a16, 4 bits, groups of 64, compensated rounding", GROUPS("4", "64"), "compressed-tensors", DB(0),
     .option = "gptq", .value = "true"},
    {"mxfp8", "{\"method\":\"mxfp8\"}", "compressed-tensors", DB(39.94)},
    {"bitsandbytes nf4, nested scales", "{\"method\":\"bitsandbytes\"}", "bitsandbytes", DB(34.19)},
    {"fp8, a scale a row", FP8_CHANNEL, "modelopt", DB(40.05)},
    {"fp8, a scale a tensor, static activations", "{\"method\":\"fp8\"}", "modelopt", DB(0), STATIC},
    {"int8, smoothed, static activations", "{\"method\":\"int8\"}", "modelopt", DB(0),
     .option = "smoothquant", .value = "true"},
    {"modelopt_fp4, plain activations", "{\"method\":\"nvfp4\"}", "modelopt", DB(33.22)},
    {"modelopt_fp4, static 4-bit activations", "{\"method\":\"nvfp4\"}", "modelopt", DB(0), STATIC},
    {"mxfp8", "{\"method\":\"mxfp8\"}", "modelopt", DB(39.94)},
    {"fp8, a scale a tensor", "{\"method\":\"fp8\"}", "comfy", DB(44.05)},
    {"modelopt_fp4, plain activations", "{\"method\":\"nvfp4\"}", "comfy", DB(33.22)},
    {"mxfp8", "{\"method\":\"mxfp8\"}", "comfy", DB(39.94)},
    {"w4a16, 4 bits, groups of 64", GROUPS("4", "64"), "auto-round", DB(29.68)},
    {"w4a16, 4 bits, groups of 64", GROUPS("4", "64"), "gptq", DB(29.68)},
    {"mxfp4", "{\"method\":\"mxfp4\"}", "auto-round", DB(29.87)},
    {"w4a16, 4 bits with zero points, groups of 32",
     "{\"method\":\"w4a16\",\"bits\":4,\"group_size\":32,\"sym\":false}", "auto-round-awq", DB(0)},
    {"fp8, a scale a tensor", "{\"method\":\"fp8\"}", "fp8", DB(44.05)},
    {"int8", "{\"method\":\"int8\"}", "int8", DB(50.88)},
    {"int8", "{\"method\":\"int8\"}", "quanto", DB(50.88)},
    {"int8", "{\"method\":\"int8\"}", "torchao", DB(50.88)},
    {"modelopt_fp4, plain activations", "{\"method\":\"nvfp4\"}", "torchao", DB(33.22)},
    {"gguf Q4_0", "{\"method\":\"gguf\",\"type\":\"Q4_0\"}", "gguf", DB(0)},
    {0},
};

static void must(oq_env *env, const quality_row *row, oq_status st)
{
    if (st != OQ_OK) fail_msg("%s: %s", row->name, oq_env_error(env));
}

static void set(oq_env *env, const quality_row *row, oq_options *o, const char *name, const char *value)
{
    must(env, row, oq_options_set(o, name, value));
}

static void set_quantization(oq_env *env, const quality_row *row, oq_options *o)
{
    char spec[256];
    snprintf(spec, sizeof spec, "{\"transformer\":%s,\"default\":null}", row->spec);
    set(env, row, o, "quantization", spec);
}

const char *quality_folder(oq_env *env, const quality_row *row, char folder[static 500])
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    snprintf(folder, 500, "%s", MODEL);
    if (!row->layout) return folder;
    snprintf(folder, 500, "%s/model", scratch_dir(OMNIQ_BINARY_DIR, "quality"));
    must(env, row, oq_options_new(env, "quantize", &o));
    must(env, row, oq_options_add_argument(o, MODEL));
    set_quantization(env, row, o);
    set(env, row, o, "layout", row->layout);
    set(env, row, o, "output", folder);
    if (row->option) {
        set(env, row, o, row->option, row->value);
        for (size_t i = 0; i < OQ_COUNT(calibration_prompts); i++)
            set(env, row, o, "prompt", calibration_prompts[i]);
        set(env, row, o, "seed", "100");
    }
    must(env, row, oq_run(o, &report));
    oq_report_free(report);
    oq_options_free(o);
    return folder;
}

oq_options *quality_options(oq_env *env, const quality_row *row, const char *folder, const char *dtype,
                            int prompt)
{
    oq_options *o = NULL;
    must(env, row, oq_options_new(env, "generate", &o));
    set(env, row, o, "model", folder);
    set(env, row, o, "dtype", dtype);
    set(env, row, o, "prompt", quality_prompts[prompt]);
    set(env, row, o, "seed", quality_seeds[prompt]);
    if (!row->layout) set_quantization(env, row, o);
    return o;
}

quality_size quality_size_of(oq_env *env, const quality_row *row, const char *folder)
{
    oq_options *o = quality_options(env, row, folder, "bf16", 0);
    oq_model *model = NULL;
    double bytes = 0, weights = 0;
    must(env, row, oq_model_prepare(env, o, &model));
    const oq_plan_component *c = oq_plan_find(model->plan, "transformer");
    assert_non_null(c);
    for (size_t i = 0; i < c->n_layers; i++) {
        const oq_linear_spec *s = &c->layers[i].linear->spec;
        if (c->layers[i].linear->keep) continue;
        for (int p = 0; p < OQ_N_PLANES; p++)
            bytes += (double)oq_scheme_plane_bytes(&s->scheme, (oq_plane)p, s->n, s->k);
        weights += (double)s->n * (double)s->k;
    }
    const quality_size size = {.bits = 8 * bytes / weights, .mb = (double)c->bytes / 1e6};
    oq_model_close(model);
    oq_options_free(o);
    return size;
}

void quality_pictures(oq_env *env, const quality_row *row, const char *folder, int n, oq_media **media)
{
    oq_model *model = NULL;
    for (int i = 0; i < n; i++) {
        oq_options *o = quality_options(env, row, folder, "fp32", i);
        if (!model) must(env, row, oq_model_open(env, o, &model));
        must(env, row, oq_generate(env, model, o, &media[i]));
        oq_options_free(o);
    }
    oq_model_close(model);
}

static bool keeps(const oq_policy *policy, const oq_metrics *m)
{
    bool passed = false;
    oq_json_free(oq_policy_judge(policy, m, &passed));
    return passed;
}

quality_psnr quality_compare(oq_media *const *a, oq_media *const *b, int n)
{
    quality_psnr out = {.worst_db = INFINITY, .strict = true, .smoke = true};
    for (int i = 0; i < n; i++) {
        const int64_t bytes = oq_media_width(a[i]) * oq_media_height(a[i]) * oq_media_frames(a[i]) * 3;
        oq_metrics m;
        oq_metrics_u8(oq_media_pixels(a[i], 0), oq_media_pixels(b[i], 0), (size_t)bytes, &m);
        out.mean_db += m.psnr_db / n;
        out.worst_db = fmin(out.worst_db, m.psnr_db);
        out.smoke = keeps(oq_policy_list[0], &m) && out.smoke;
        out.strict = keeps(oq_policy_list[1], &m) && out.strict;
    }
    return out;
}

void quality_free(oq_media **media, int n)
{
    for (int i = 0; i < n; i++) oq_media_free(media[i]);
}

const char *quality_verdict(const quality_row *row, const quality_psnr *psnr)
{
    if (row->emulated_db > 0)
        return psnr->mean_db > row->emulated_db + 4   ? "above its band"
               : psnr->mean_db < row->emulated_db - 4 ? "below its band"
                                                      : "in its band";
    if (psnr->strict) return "keeps strict";
    return psnr->smoke ? "keeps smoke" : "misses smoke";
}
