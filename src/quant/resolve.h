/* resolve.h -- wishes meet facts: per component one method, one dialect, one source; every conflict is an
 * error here. */
#ifndef OQ_QUANT_RESOLVE_H
#define OQ_QUANT_RESOLVE_H

#include "config/quant_config.h"
#include "quant/dialect.h"

typedef enum oq_quant_source { OQ_SOURCE_NONE, OQ_SOURCE_ONLINE, OQ_SOURCE_SERIALIZED } oq_quant_source;
const char *oq_quant_source_name(oq_quant_source s); /* "none", "online", "serialized" */

typedef struct oq_pattern { /* one entry of ignored_layers; one value for all components that share the
                               request */
    const char *text;
    bool user;       /* the user's (no match: error) or the checkpoint's (no match: warning) */
    bool common;     /* the user's for all components: a match in any of them will do */
    int64_t matches; /* layers it matched; counted while planning */
} oq_pattern;

/* One route inside a component: layers whose full name begins with `prefix` are treated by `args`. */
typedef struct oq_route {
    const char *prefix;         /* "transformer", "transformer.layers.0" */
    const oq_method_args *args; /* NULL: unquantized */
    oq_pattern *ignored;
    size_t n_ignored;
    int64_t layers; /* that it is for; counted while planning */
} oq_route;

typedef struct oq_resolved_component {
    const char *name; /* "transformer" */
    const char *class_name;
    oq_quant_source source;
    const char *from;          /* "flag", "config", "checkpoint", "default": where the decision came from */
    bool named;                /* the request names this component; false: it is covered by a global one */
    const oq_dialect *dialect; /* serialized only; NULL: its spelling is not in this build yet */
    oq_declared declared;      /* serialized only */
    const char *declared_in;   /* file that declares it; NULL: found by the tensors */
    oq_route *routes;          /* longest prefix first; n 0: unquantized */
    size_t n_routes;
    /* Counted while planning. */
    int64_t n_layers, n_quantized,
        n_unlisted;       /* unlisted: plain in a quantized file, though no list names them */
    const char *unlisted; /* the first of those */
} oq_resolved_component;

typedef struct oq_resolved {
    oq_arena arena;
    oq_json *held; /* a list that owns every args' options */
    oq_resolved_component *components;
    size_t n_components;
    const char **warnings;
    size_t n_warnings, cap_warnings;
    const char **parts; /* full names of all parts seen while planning, for messages */
    size_t n_parts, cap_parts;
} oq_resolved;

typedef struct oq_resolve_input { /* one component of the model, as facts */
    const char *name, *class_name;
    bool quantizable;     /* false: VAE and the like: plain whatever a global wish says; named wish: error */
    bool encoder;         /* text encoder: pre-quantized producer formats do not cover it */
    const oq_json *quant; /* quantization metadata of its folder; NULL: none */
    const char *quant_source; /* file it came from */
    const oq_ckpt *ckpt;      /* NULL: dummy loading */
    bool calibrated;          /* its static activation scales will be measured */
} oq_resolve_input;

/* config NULL: no wish. Rules of the specification's section 1.7 per component. */
oq_status oq_resolve(oq_env *env, const oq_quant_config *config, const oq_resolve_input *inputs,
                     size_t n_inputs, oq_resolved **out);
void oq_resolved_free(oq_resolved *resolved);
oq_json *oq_resolved_to_json(const oq_resolved *resolved); /* printable: the golden tests' seam */

typedef struct oq_layer_choice {
    oq_scheme scheme; /* weight NULL: plain (the plan takes the file's or the compute type) */
    bool quantized;
    const char
        *reason; /* "fp8", "ignored by 'to_out'", "embedder", "no method for this component", … (arena) */
    bool serialized;      /* planes come from part[] */
    oq_part_source *part; /* serialized: one per part of the layer (arena) */
    oq_scheme at_steps; /* the scheme in the steps of `steps` */
    const oq_json *steps; /* whole numbers from 0; NULL: none */
    bool together;        /* the file holds the fused product as one, its parts in the layer's order */
} oq_layer_choice;

/* The decision for one layer, in this order: the network's own `keep` -> ignored names -> method (online) or
 * planes in the file (serialized). Fused parts that disagree are OQ_E_MISMATCH naming both. Counts pattern
 * matches. map_name says where the checkpoint holds a part. */
typedef struct oq_place {
    const char *name;    /* in the checkpoint's spelling; never NULL */
    int64_t first, whole; /* rows from `first` on of `whole` ones; whole 0: all of them */
    bool halves_swapped;  /* the second half of the rows stands first */
} oq_place;
typedef oq_place (*oq_map_name)(void *user, const char *name);
oq_status oq_resolve_layer(oq_env *env, oq_resolved *resolved, const oq_resolved_component *component,
                           const oq_layer_desc *layer, const oq_ckpt *ckpt, oq_map_name map_name,
                           void *map_user, oq_layer_choice *out);
/* Does the file store the parts of this product so differently that each must be multiplied by itself: in formats of their
 * own, some plain, activations treated in another way, factors or branches of their own? Counts nothing. */
oq_status oq_resolve_apart(oq_env *env, oq_resolved *resolved, const oq_resolved_component *component,
                           const oq_layer_desc *layer, const oq_ckpt *ckpt, oq_map_name map_name,
                           void *map_user, bool *out);
/* After all layers: a user's pattern without a match is OQ_E_CONFIG naming it and the nearest layers; a
 * checkpoint's becomes a warning. A method that quantized no layer at all is an error too. `names`: all layer
 * names seen. */
oq_status oq_resolve_finish(oq_env *env, oq_resolved *resolved, const char *const *names, size_t n_names);

#endif
