/* quant_config.h -- the forms of `quantization_config` that people write, as one value. Text to value only:
 * whether a method exists and what its options mean is quant/'s business. */
#ifndef OQ_CONFIG_QUANT_CONFIG_H
#define OQ_CONFIG_QUANT_CONFIG_H

#include "base/arena.h"
#include "base/json.h"

typedef struct oq_quant_spec { /* one request */
    const char *method;        /* as written; NULL: unquantized (null, "none") */
    const oq_json *options;    /* the mapping without its method keys (owned by the config); NULL: none */
    bool serialized_form;      /* written with `quant_method`: checkpoint metadata, not a wish */
} oq_quant_spec;

typedef struct oq_quant_entry {
    const char *component; /* prefix: "transformer", "transformer.layers.0"; "default" is stored apart */
    oq_quant_spec spec;
} oq_quant_entry;

typedef struct oq_attention_entry { /* runtime attention quantization: quant_attention.h */
    const char *component;          /* NULL: every transformer */
    oq_json *options;               /* owned by the config's `held` */
} oq_attention_entry;

/* NONE: the word none and null. null is no wish at all (a checkpoint's own quantization is adopted); the word
 * asks for unquantized layers and has that as its `fallback`. */
typedef enum oq_quant_form { OQ_QUANT_NONE, OQ_QUANT_SINGLE, OQ_QUANT_COMPONENTS } oq_quant_form;

typedef struct oq_quant_config {
    oq_arena arena;
    oq_quant_form form;
    oq_quant_spec single;    /* OQ_QUANT_SINGLE */
    oq_quant_entry *entries; /* OQ_QUANT_COMPONENTS */
    size_t n_entries, cap_entries;
    bool has_default;
    oq_quant_spec fallback; /* key "default"; also what the word none asks for */
    oq_attention_entry *attention; /* in any form, NONE too: weights and attention are asked for separately */
    size_t n_attention, cap_attention;
    const oq_json *common_ignored; /* --ignored-layers' words, which all requests got; NULL: none (owned by `held`) */
    oq_json *held;          /* a list that owns every `options` */
    const char *file;       /* that it was read from; NULL: none */
    const char *from;       /* "flag" after parse, "config" after from_json; the caller may say better */
} oq_quant_config;

/* NAME, JSON text, YAML text, or @FILE (JSON or YAML by content). known_components: names that make a map of
 * plain strings a component map. Errors are OQ_E_CONFIG, OQ_E_FORMAT for text that is neither JSON nor YAML,
 * OQ_E_IO for files. A mapping whose one key is `quantization_config` (or its older spellings `quantization`
 * and `diffusion_quantization_config`) stands for its value. */
oq_status oq_quant_config_parse(oq_env *env, const char *text, const char *const *known_components,
                                size_t n_known, oq_quant_config **out);
/* `json` is read, never changed or kept. */
oq_status oq_quant_config_from_json(oq_env *env, const oq_json *json, const char *const *known_components,
                                    size_t n_known, oq_quant_config **out);
/* "--component KEY=SPEC": a single config becomes the map's default. A key given twice is OQ_E_CONFIG. */
oq_status oq_quant_config_add_component(oq_env *env, oq_quant_config *config, const char *key,
                                        const char *spec);
/* "--ignored-layers a,b": appends to the ignored_layers of every request in the config. */
oq_status oq_quant_config_add_ignored(oq_env *env, oq_quant_config *config, const char *csv);
void oq_quant_config_free(oq_quant_config *config);
/* The value as JSON (parses back to an equal one); NULL: no memory. */
oq_json *oq_quant_config_to_json(const oq_quant_config *config);

/* Boundary-aware longest prefix over "component.layer" names; falls back to `default`; NULL: no entry at all.
 * A returned spec with method NULL is an explicit "unquantized". */
const oq_quant_spec *oq_quant_config_route(const oq_quant_config *config, const char *prefix);

/* YAML (libfyaml) or JSON text to a JSON value; duplicate keys, anchors beyond reason and depth > 64 are
 * errors. */
oq_status oq_yaml_parse(oq_env *env, const char *text, size_t n, const char *source, oq_json **out);

#endif
