/* plan.h -- every decision, before the first weight byte is read: scheme and kernel of each layer, bytes of every
 * buffer. Printable: `omniq plan` is this value. */
#ifndef OQ_PLAN_PLAN_H
#define OQ_PLAN_PLAN_H

#include "nn/module.h"
#include "base/strbuf.h"
#include "quant/attention_policy.h"
#include "quant/resolve.h"

typedef struct oq_plan_layer { /* one row of `omniq plan`: a linear product */
    oq_linear      *linear;
    oq_layer_choice choice;
    const oq_dtype *stored;    /* type in the file of a plain layer; NULL: quantized planes or dummy */
    size_t          bytes;     /* packed + bias, at rest */
} oq_plan_layer;

typedef struct oq_plan_attention { /* one attention layer */
    oq_attention *attention;
    int64_t       index;         /* of the layer, for selectors; -1: its name has none */
    const char   *plain, *dense; /* why its operands stay plain, its blocks dense, against the policy; NULL: they don't */
} oq_plan_attention;

typedef struct oq_plan_unused { /* what the pipeline never runs: claimed and checked where the file has it, not loaded */
    const char **names;              /* of its linear layers, [n_layers]: rules may name them */
    size_t       n_layers, n_tensors, file_bytes;
    size_t       n_absent;           /* tensors that the file lacks */
    int64_t      params;
    const char  *first, *last;       /* items, in declaration order; NULL: there are none */
} oq_plan_unused;

typedef struct oq_plan_component {
    const char                  *name, *class_name;
    const oq_module_type        *module;
    void                        *self;
    const oq_ckpt               *ckpt;     /* borrowed until load; NULL: dummy */
    const oq_resolved_component *resolved;
    oq_builder                   builder;  /* its items, in declaration order */
    oq_plan_layer               *layers;   /* behind the n_layers those of `unused` */
    size_t                       n_layers;
    oq_plan_attention           *attentions;
    size_t                       n_attentions;
    oq_attention_policy          attention_policy;
    oq_attention_steps           attention_steps;
    size_t                       bytes;    /* all weights at rest */
    size_t                       file_bytes; /* of the tensors it claims; 0: dummy */
    size_t                       load_bytes; /* largest temporary of one layer while loading */
    int64_t                      params;   /* number of weights */
    size_t                       n_tensors;/* tensors the component claims */
    oq_plan_unused               unused;   /* a part of params, n_tensors and file_bytes, and of nothing else above */
    const oq_dtype              *compute;  /* the plan's, or F32 */
} oq_plan_component;

typedef struct oq_plan {
    oq_arena           arena;      /* names, module state, everything that dies with the model */
    oq_env            *env;
    const oq_backend  *backend;
    oq_device         *device;     /* borrowed */
    const oq_dtype    *compute;
    oq_resolved       *resolved;   /* owned */
    oq_plan_component *components;
    size_t             n_components;
    size_t             weights_bytes;
    size_t             load_bytes;    /* temporaries while loading: the largest layer, per worker */
    size_t             scratch_bytes; /* of the request; measured by the engine */
    size_t             phase_bytes[OQ_N_PHASES]; /* of it, what each phase takes at most */
    size_t             limit_bytes;   /* of the device's memory; 0: all there is */
    size_t             stream_bytes;  /* of weights that stay in host memory and pass through a window */
    size_t             window_bytes;  /* of device memory; 0: nothing is streamed */
    const char       **warnings;
    size_t             n_warnings, cap_warnings;
} oq_plan;

typedef struct oq_plan_input {
    const char           *name, *class_name;
    const oq_module_type *module;
    const oq_json        *config;   /* config.json */
    /* Tells the network, between describe and declare, what of it is never run; NULL: all of it is. */
    void                (*trim)(const oq_json *model_index, void *self);
    const oq_json        *model_index;
    const oq_ckpt        *ckpt;     /* NULL: dummy */
    bool                  wide;     /* float32 in every run */
    bool                  denoiser; /* takes runtime attention quantization */
} oq_plan_input;

typedef struct oq_plan_params {
    const oq_backend    *backend;
    oq_device           *device;
    const oq_dtype      *compute;
    oq_resolved         *resolved;  /* ownership passes to the plan, also on failure */
    const oq_plan_input *inputs;    /* same order as resolved->components */
    size_t               n_inputs;
    const oq_quant_config *config;  /* the wish about attention; NULL: none */
} oq_plan_params;

oq_status oq_plan_build(oq_env *env, const oq_plan_params *params, oq_plan **out);
void      oq_plan_free(oq_plan *plan);
/* After scratch_bytes is known: decides which layers are streamed so that weights, window and scratch keep the limit.
 * OQ_E_NOMEM with the numbers where even that does not. */
oq_status oq_plan_limit(oq_plan *plan, size_t limit_bytes);
size_t    oq_plan_device_bytes(const oq_plan *plan); /* of weights and window in the device's memory */
/* Can a run of so many steps keep what the plan says about steps? OQ_E_CONFIG naming the valid range. */
oq_status oq_plan_check_steps(const oq_plan *plan, int64_t steps);
/* Equal for steps in which every layer is computed alike. */
uint64_t  oq_plan_step_kind(const oq_plan *plan, int64_t step);
const oq_plan_component *oq_plan_find(const oq_plan *plan, const char *component);
oq_status oq_plan_warn(oq_plan *plan, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
oq_json  *oq_plan_to_json(const oq_plan *plan);                     /* the contract of `plan --json` */
oq_status oq_plan_print(const oq_plan *plan, bool all_layers, oq_strbuf *out);

/* Where the file holds a module's layer or tensor, by the module's name rules; `component` is an oq_plan_component. For
 * oq_resolve_layer. */
oq_place oq_plan_place(void *component, const char *name);

/* If `name` fits the name rule's `pattern`, the same name as `other` spells it, in `out`. False: it does not, or is too
 * long. */
bool oq_plan_respell(const char *pattern, const char *name, const char *other, char *out, size_t n);

typedef struct oq_plan_values { /* plain values in the file */
    const oq_ckpt_tensor *tensor; /* NULL: none, or dummy */
    const uint8_t        *data;   /* of the rows that are meant */
    int64_t               first, whole; /* rows from `first` on of `whole`; whole 0: all of the tensor */
    bool                  halves_swapped;
} oq_plan_values;
/* The file's values of module name + suffix (".weight", ".bias", ""). Any thread. */
oq_plan_values oq_plan_find_values(const oq_plan_component *c, const char *name, const char *suffix);

#endif
