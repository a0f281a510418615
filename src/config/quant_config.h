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

typedef enum oq_quant_form { OQ_QUANT_NONE, OQ_QUANT_SINGLE, OQ_QUANT_COMPONENTS } oq_quant_form;

typedef struct oq_quant_config {
    oq_arena arena;
    oq_quant_form form;
    oq_quant_spec single;    /* OQ_QUANT_SINGLE */
    oq_quant_entry *entries; /* OQ_QUANT_COMPONENTS */
    size_t n_entries;
    bool has_default;
    oq_quant_spec fallback; /* key "default" */
    oq_json *source;        /* the value as parsed (owned; the specs' options point into it or the arena) */
    const char *from;       /* "flag", "config", "checkpoint" */
} oq_quant_config;

/* NAME, JSON text, YAML text, or @FILE (JSON or YAML by content). known_components: names that make a map of
 * plain strings a component map. Errors: OQ_E_CONFIG (the specification's cases 6, 9, 10, 14, 15, 17, 23). */
oq_status oq_quant_config_parse(oq_env *env, const char *text, const char *const *known_components,
                                size_t n_known, oq_quant_config **out);
oq_status oq_quant_config_from_json(oq_env *env, const oq_json *json, const char *const *known_components,
                                    size_t n_known, oq_quant_config **out);
oq_status oq_quant_config_add_component(oq_env *env, oq_quant_config *config, const char *key,
                                        const char *spec);
void oq_quant_config_free(oq_quant_config *config);
/* The value as JSON (parses back to an equal one: case 27). */
oq_json *oq_quant_config_to_json(const oq_quant_config *config);

/* Boundary-aware longest prefix over "component.layer" names; falls back to `default`; NULL: no entry at all.
 * A returned spec with method NULL is an explicit "unquantized". */
const oq_quant_spec *oq_quant_config_route(const oq_quant_config *config, const char *prefix);

/* YAML (libfyaml) or JSON text to a JSON value; duplicate keys, anchors beyond reason and depth > 64 are
 * errors. */
oq_status oq_yaml_parse(oq_env *env, const char *text, size_t n, const char *source, oq_json **out);

#endif
