/* resolve_world.h -- a model of three components in memory, what is declared about it and asked of it, and what is decided: for
 * the tests of resolve, each of which begins with a world of its own. */
#ifndef OQ_TESTS_RESOLVE_WORLD_H
#define OQ_TESTS_RESOLVE_WORLD_H

#include "format/float4.h"
#include "quant/resolve.h"

#include "support/memory_ckpt.h"

#include <stdio.h>
#include <string.h>

enum { D = 128 };

static const char *const components[] = {"transformer", "text_encoder", "vae"};
static uint8_t codes[2 * D * D];
static uint16_t plain[2 * D * D];
static float scales[2 * D];

typedef struct world { /* a model of three components and what was decided about it */
    oq_env *env;
    memory_ckpt ckpt[3];
    oq_json *quant[3];
    oq_resolve_input in[3];
    oq_quant_config *config;
    oq_resolved *resolved;
    char names[16][96];
    const char *name_list[16];
    size_t n_names;
} world;

static const oq_layer_desc layers[] = {
    {"transformer", "layers.0.attention.to_qkv",
     (const char *const[]){"layers.0.attention.to_q", "layers.0.attention.to_k", "layers.0.attention.to_v"},
     (const int64_t[]){D, D, D}, 3, 3 * D, D, NULL, false},
    {"transformer", "layers.0.attention.to_out.0", (const char *const[]){"layers.0.attention.to_out.0"},
     (const int64_t[]){D}, 1, D, D, NULL, false},
    {"transformer", "layers.0.feed_forward.w13",
     (const char *const[]){"layers.0.feed_forward.w1", "layers.0.feed_forward.w3"},
     (const int64_t[]){2 * D, 2 * D}, 2, 4 * D, D, NULL, false},
    {"transformer", "layers.1.feed_forward.w2", (const char *const[]){"layers.1.feed_forward.w2"},
     (const int64_t[]){D}, 1, D, D, NULL, false},
    {"transformer", "t_embedder", (const char *const[]){"t_embedder"}, (const int64_t[]){D}, 1, D, D,
     "embedder", false},
    {"text_encoder", "layers.0.mlp.down_proj", (const char *const[]){"layers.0.mlp.down_proj"},
     (const int64_t[]){D}, 1, D, D, NULL, false},
};
enum { QKV, OUT, W13, W2, EMBEDDER, DOWN };

static inline int setup(void **state)
{
    static world w;
    memset(&w, 0, sizeof w);
    if (oq_env_new(NULL, &w.env) != OQ_OK) return -1;
    for (int i = 0; i < 2 * D; i++) scales[i] = (float)(i + 1) / 32;
    memset(codes, 0x38, sizeof codes);
    for (int i = 0; i < 3; i++) {
        memory_ckpt_init(&w.ckpt[i]);
        w.in[i] = (oq_resolve_input){.name = components[i],
                                     .class_name = i == 2 ? "AutoencoderKL" : "Net",
                                     .quantizable = i != 2,
                                     .encoder = i == 1,
                                     .ckpt = &w.ckpt[i].ckpt};
    }
    for (size_t i = 0; i < OQ_COUNT(layers); i++) {
        for (int j = 0; j < layers[i].n_parts; j++) {
            static char names[32][96];
            static size_t n;
            char *name = names[n++ % 32];
            snprintf(name, 96, "%s.weight", layers[i].parts[j]);
            memory_ckpt_add(&w.ckpt[i == DOWN], name, &oq_dtype_bf16, plain, layers[i].part_n[j], D);
        }
        snprintf(w.names[i], sizeof w.names[i], "%s.%s", layers[i].component, layers[i].name);
        w.name_list[i] = w.names[i];
        w.n_names++;
    }
    *state = &w;
    return 0;
}

static inline void clear(world *w)
{
    oq_quant_config_free(w->config);
    oq_resolved_free(w->resolved);
    w->config = NULL;
    w->resolved = NULL;
    oq_env_clear(w->env);
}

static inline int teardown(void **state)
{
    world *w = *state;
    clear(w);
    for (int i = 0; i < 3; i++) oq_json_free(w->quant[i]);
    oq_env_free(w->env);
    return 0;
}

/* The metadata of component i; NULL: none. */
static inline void declare(world *w, int i, const char *json)
{
    oq_json_free(w->quant[i]);
    w->quant[i] = NULL;
    if (json) assert_int_equal(oq_json_parse(w->env, json, strlen(json), "t", &w->quant[i]), OQ_OK);
    w->in[i].quant = w->quant[i];
    w->in[i].quant_source = json ? "net/config.json" : NULL;
}

/* Weight and scale of one part as a quantized file has them; scale_rows 0: a single number. */
static inline void quantize(world *w, const char *part, int64_t n, int64_t scale_rows, const oq_dtype *type)
{
    static char names[64][96];
    static size_t used;
    char *weight = names[used++ % 64], *scale = names[used++ % 64];
    snprintf(weight, 96, "%s.weight", part);
    snprintf(scale, 96, "%s.weight_scale", part);
    memory_ckpt_add(&w->ckpt[0], weight, type, codes, n, D);
    memory_ckpt_add(&w->ckpt[0], scale, &oq_dtype_f32, scales, scale_rows ? scale_rows : -1, -1);
}

/* All layers of the transformer but the embedder, per row. */
static inline void quantize_all(world *w, const oq_dtype *type)
{
    for (int i = 0; i < EMBEDDER; i++)
        for (int j = 0; j < layers[i].n_parts; j++)
            quantize(w, layers[i].parts[j], layers[i].part_n[j], layers[i].part_n[j], type);
}

static inline void ask(world *w, const char *request)
{
    clear(w);
    if (request) assert_int_equal(oq_quant_config_parse(w->env, request, components, 3, &w->config), OQ_OK);
}

static inline oq_status resolve(world *w, const char *request)
{
    ask(w, request);
    return oq_resolve(w->env, w->config, w->in, 3, &w->resolved);
}

static inline oq_status choose(world *w, int i, oq_layer_choice *out)
{
    const int c = i == DOWN;
    return oq_resolve_layer(w->env, w->resolved, &w->resolved->components[c], &layers[i], w->in[c].ckpt, NULL,
                            NULL, out);
}

/* Resolves the configuration at hand and goes through all layers, as the plan does; stops at the first error. */
static inline oq_status plan_config(world *w, oq_layer_choice *choices)
{
    oq_layer_choice local[OQ_COUNT(layers)];
    if (!choices) choices = local;
    OQ_TRY(oq_resolve(w->env, w->config, w->in, 3, &w->resolved));
    for (size_t i = 0; i < OQ_COUNT(layers); i++) OQ_TRY(choose(w, (int)i, &choices[i]));
    return oq_resolve_finish(w->env, w->resolved, w->name_list, w->n_names);
}

static inline oq_status plan(world *w, const char *request, oq_layer_choice *choices)
{
    ask(w, request);
    return plan_config(w, choices);
}

static inline void accept(world *w, const char *request, oq_layer_choice *choices)
{
    if (plan(w, request, choices) != OQ_OK) fail_msg("%s: %s", request ? request : "-", oq_env_error(w->env));
}

static inline void check_refusal(world *w, const char *request, oq_status st, oq_status status, const char *words)
{
    if (st != status)
        fail_msg("%s: %s instead of %s: %s", request ? request : "-", oq_status_name(st),
                 oq_status_name(status), oq_env_error(w->env));
    char copy[256];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = NULL, *word = strtok_r(copy, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        if (!strstr(oq_env_error(w->env), word))
            fail_msg("'%s' does not hold '%s'", oq_env_error(w->env), word);
}

static inline void refuse(world *w, const char *request, oq_status status, const char *words)
{
    check_refusal(w, request, resolve(w, request), status, words);
    assert_null(w->resolved);
}

static inline void refuse_plan(world *w, const char *request, oq_status status, const char *words)
{
    check_refusal(w, request, plan(w, request, NULL), status, words);
}

static inline const oq_resolved_component *component(const world *w, int i)
{
    return &w->resolved->components[i];
}

static inline const oq_json *option(const world *w, int i, const char *key)
{
    return oq_json_get(component(w, i)->routes[0].args->options, key);
}

static inline void expect_layer(const oq_layer_choice *c, const oq_format *format, const char *reason)
{
    if (c->scheme.weight != format || strcmp(c->reason, reason) != 0)
        fail_msg("%s '%s' instead of %s '%s'", c->scheme.weight ? c->scheme.weight->name : "plain", c->reason,
                 format ? format->name : "plain", reason);
    assert_int_equal(c->quantized, format != NULL);
}

#endif
