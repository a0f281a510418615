/* method.h -- policy: what a quantization method wants done to which layer. */
#ifndef OQ_QUANT_METHOD_H
#define OQ_QUANT_METHOD_H

#include "base/arena.h"
#include "base/json.h"
#include "format/format.h"

typedef struct oq_layer_desc { /* a layer as methods and patterns see it: after name mapping */
    const char        *component; /* "transformer" */
    const char        *name;      /* "layers.0.attention.to_qkv" */
    const char *const *parts;     /* part names; n_parts 1: the name itself */
    const int64_t     *part_n;
    int                n_parts;
    int64_t            n, k;
    const char        *keep;      /* the network's own reason to stay plain; NULL: quantizable */
} oq_layer_desc;

typedef struct oq_method oq_method;

typedef struct oq_method_args { /* a method with validated options */
    const oq_method *method;
    const oq_json   *options;    /* canonical keys with defaults filled in (owned by the resolved value) */
    bool             serialized; /* the checkpoint holds quantized planes */
} oq_method_args;

typedef enum oq_method_option_type {
    OQ_METHOD_BOOL, OQ_METHOD_INT, OQ_METHOD_REAL, OQ_METHOD_STRING, OQ_METHOD_CHOICE, OQ_METHOD_NAMES /* list of strings */,
    OQ_METHOD_INTS, OQ_METHOD_ANY
} oq_method_option_type;

typedef struct oq_method_option {
    const char           *name;      /* "activation_scheme" */
    const char           *aliases;   /* comma separated; NULL: none */
    oq_method_option_type type;
    double                min, max;
    const char           *choices;   /* comma separated */
    const char           *fallback;  /* JSON text of the default; NULL: absent */
    const char           *help;
} oq_method_option;

struct oq_method {
    const char             *name;     /* canonical: "fp8" */
    const char             *aliases;  /* comma separated; compared case-blind, '-' equals '_' */
    const char             *help;     /* one sentence */
    const oq_method_option *options;  /* ends with name NULL */
    bool                    online;   /* may quantize plain weights while loading */
    bool                    serialized; /* may come from a checkpoint */
    const char             *missing;  /* "not in this build yet": why the plan refuses it; NULL: runs */
    /* Checks between options (after types and bounds); NULL: none. OQ_E_CONFIG. */
    oq_status (*validate)(oq_env *env, const oq_method_args *args);
    /* Online: the scheme of one layer that is neither kept nor ignored. weight NULL in *out: the method leaves it plain. */
    oq_status (*choose)(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out);
};

extern const oq_method *const oq_method_list[]; /* NULL-terminated; method_list.c */
/* Canonical method by name or alias, also those registered in env; NULL: unknown. */
const oq_method *oq_method_find(oq_env *env, const char *name);
/* "fp8, int8, …" for messages; and the nearest name. */
oq_status oq_method_unknown(oq_env *env, const char *name);
/* Parses and validates: `options` may be NULL. Unknown option: OQ_E_CONFIG naming the nearest. */
oq_status oq_method_args_parse(oq_env *env, oq_arena *arena, const oq_method *method, const oq_json *options,
                               bool serialized, oq_method_args **out);

#endif
