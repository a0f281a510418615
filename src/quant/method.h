/* method.h -- policy: what a quantization method wants done to which layer. */
#ifndef OQ_QUANT_METHOD_H
#define OQ_QUANT_METHOD_H

#include "base/arena.h"
#include "base/json.h"
#include "format/format.h"

typedef struct oq_layer_desc { /* a layer as methods and patterns see it: after name mapping */
    const char *component;     /* "transformer" */
    const char *name;          /* "layers.0.attention.to_qkv" */
    const char *const *parts;  /* part names; n_parts 1: the name itself */
    const int64_t *part_n;
    int n_parts;
    int64_t n, k;
    const char *keep; /* the network's own reason to stay plain; NULL: quantizable */
    bool unused;      /* the pipeline never runs it: a file may lack it */
} oq_layer_desc;

typedef struct oq_method oq_method;

typedef struct oq_method_args { /* a method with validated options */
    const oq_method *method;
    const oq_json *options; /* canonical keys with defaults filled in (owned by the list given to parse) */
    bool serialized;        /* the checkpoint holds quantized planes */
    bool pretended;         /* it would, but its weights are made up: the method's `pretend` decides */
    bool calibrated;        /* static scales of activations will be measured: plain weights may have them */
} oq_method_args;

typedef enum oq_method_option_type {
    OQ_METHOD_BOOL,
    OQ_METHOD_INT, /* a whole number within [min, max]; 2.0 and true are not */
    OQ_METHOD_REAL,
    OQ_METHOD_STRING,
    OQ_METHOD_CHOICE, /* one of `choices`; case and '-' / '_' do not matter */
    OQ_METHOD_NAMES,  /* a list of strings */
    OQ_METHOD_CSV,    /* a list of strings, or one string of comma separated words */
    OQ_METHOD_INTS,   /* a list of whole numbers within [min, max] */
    OQ_METHOD_INT_SET, /* the same, kept in ascending order, each once */
    OQ_METHOD_OBJECT,
    OQ_METHOD_ANY
} oq_method_option_type;

/* Whose value counts where a request meets a checkpoint that was quantized beforehand. */
typedef enum oq_option_side {
    OQ_SIDE_FILE,    /* a fact of the file: a request may repeat it, a different value is an error */
    OQ_SIDE_REQUEST, /* says how to run: the request's value, never the file's */
    OQ_SIDE_EITHER,  /* true when one of the two says so */
    OQ_SIDE_ONLINE /* means something for plain weights alone: a request's value has no effect, with a warning
                    */
} oq_option_side;

typedef struct oq_method_option {
    const char *name;    /* "activation_scheme" */
    const char *aliases; /* comma separated; NULL: none */
    oq_method_option_type type;
    double min, max;      /* both 0: no bounds */
    const char *choices;  /* comma separated */
    const char *fallback; /* JSON text of the default; NULL: absent */
    oq_option_side side;
    const char *help;
} oq_method_option;

/* The row that nearly every method has. */
#define OQ_METHOD_IGNORED_ROW(more_aliases)                                                                  \
    {                                                                                                        \
        .name = "ignored_layers", .aliases = "modules_to_not_convert" more_aliases, .type = OQ_METHOD_CSV,   \
        .fallback = "[]", .help = "names, dotted runs, globs or re: patterns of layers that stay plain"      \
    }
/* "is_checkpoint_<x>_serialized": the file holds quantized planes. */
#define OQ_METHOD_SERIALIZED_ROW(key)                                                                        \
    {                                                                                                        \
        .name = key, .type = OQ_METHOD_BOOL, .help = "the checkpoint holds quantized weights"                \
    }
#define OQ_METHOD_MISSING "not in this build yet"

struct oq_method {
    const char *name;                /* canonical: "fp8" */
    const char *aliases;             /* comma separated; compared case-blind, '-' equals '_'; NULL: none */
    const char *help;                /* one sentence */
    const oq_method_option *options; /* ends with name NULL */
    bool online;                     /* may quantize plain weights while loading */
    bool serialized;                 /* may come from a checkpoint */
    bool producer; /* a producer's layout of transformers: a global wish does not cover text encoders */
    const char
        *tolerated; /* csv of a checkpoint's keys that change nothing; "*": every unknown one; NULL: none */
    const char *unread;    /* csv of keys that change what a checkpoint's layers compute, in ways that are not read: refused;
                              NULL: none */
    const char *file_keys; /* csv of keys that only a checkpoint's metadata has; NULL: none */
    const char *missing;   /* OQ_METHOD_MISSING: why the plan refuses it; NULL: runs */
    /* Rewrites a producer's shape into the rows' before they are read; NULL: none. */
    oq_status (*prepare)(oq_env *env, oq_json *options);
    /* Checks between options (after types and bounds); NULL: none. OQ_E_CONFIG. */
    oq_status (*validate)(oq_env *env, const oq_method_args *args);
    /* Online: the scheme of one layer that is neither kept nor ignored. weight NULL in *out: the method
     * leaves it plain. NULL where `missing` says why. */
    oq_status (*choose)(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out);
    /* Made-up weights of a checkpoint that declares the method (dummy loading): the scheme that a layer's planes would
     * have, as far as weights can be encoded to it; static scales of activations become dynamic. NULL: `choose`. */
    oq_status (*pretend)(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out);
    /* Serialized: what the request says of a layer whose planes are in the file; *scheme is the file's. NULL: nothing. */
    oq_status (*adjust)(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *scheme);
    /* Steps of a request (ascending, from 0) in which a layer of `scheme` is multiplied by another: a JSON list, and that
     * scheme in *out. NULL: none. */
    const oq_json *(*steps)(const oq_method_args *args, const oq_layer_desc *layer, const oq_scheme *scheme, oq_scheme *out);
};

extern const oq_method *const oq_method_list[]; /* NULL-terminated; method_list.c */
/* Canonical method by name or alias, also those registered in env (may be NULL); NULL: unknown ("none" too).
 */
const oq_method *oq_method_find(const oq_env *env, const char *name);
/* Fails with OQ_E_CONFIG: names the method, the nearest and all known ones. `where` says who asked. */
oq_status oq_method_unknown(oq_env *env, const char *where, const char *name);

/* `options` (may be NULL) with canonical keys and checked values, without defaults, as a new object. strict:
 * unknown keys are OQ_E_CONFIG naming the nearest; otherwise the method's `tolerated` ones are dropped and its
 * `unread` ones OQ_E_UNSUPPORTED, unless they are null, false or empty. Keys
 * that begin with
 * '_' always are. `where` ("quantization_config", a file) begins the messages. */
oq_status oq_method_options_read(oq_env *env, const char *where, const oq_method *method,
                                 const oq_json *options, bool strict, oq_json **out);
/* Reads, fills in defaults and validates. The args live in `arena`, their options in the JSON list `held`. */
oq_status oq_method_args_parse(oq_env *env, const char *where, oq_arena *arena, oq_json *held,
                               const oq_method *method, const oq_json *options, bool serialized,
                               oq_method_args **out);

#endif
