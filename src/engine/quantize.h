/* quantize.h -- what the quantize command works on: a source, the network it belongs to, and a plan of what each layer
 * shall become. */
#ifndef OQ_ENGINE_QUANTIZE_H
#define OQ_ENGINE_QUANTIZE_H

#include "engine/rewrite.h"

enum { OQ_SPELLING_MAX = 8 };
typedef struct oq_spelling { /* a name of the output, and the source's that it holds one behind the other */
    const char *name, *from[OQ_SPELLING_MAX];
    int n_from;
    bool halves_swapped;
} oq_spelling;

typedef struct oq_quantize_turn { /* layers whose sums of products are in memory together */
    size_t first, n;
} oq_quantize_turn;

typedef struct oq_quantize_part { /* one component of the source that has a network */
    oq_inspect_part *part;
    const oq_module_type *module;
    const char *name;     /* "transformer" */
    const char *or_name;  /* of a lone file: another component of the base model that it may as well be; NULL: none */
    const oq_json *config;
    oq_plan_component *planned; /* target schemes; its names are looked up in the source's files */
    const oq_layout *layout;    /* NULL: nothing of it is quantized */
    oq_write_layer *layers;     /* as they will stand in the file */
    size_t n_layers;
    bool respell;               /* names of the network's first release */
    oq_spelling *spellings;     /* of each layer */
    const char **plain;         /* linear layers that stay as they are */
    size_t n_plain;
    oq_rewrite rewrite;
    oq_calibration_layer **seen; /* of each layer: what is known of its input; NULL entries: the model that ran has none */
    oq_calibration *calibration; /* borrowed */
    oq_calibration_layer **turn_layers; /* those whose rounding is compensated, in their order */
    oq_quantize_turn *turns;
    oq_json *quant;    /* quantization_config of the output; NULL: none */
    oq_json *metadata; /* entries of the weight files' headers; NULL: none */
} oq_quantize_part;

typedef struct oq_quantize {
    oq_env *env;
    const oq_options *options;
    oq_inspect source;
    oq_folder *base;         /* -m: gives the configuration of a lone file; NULL: none */
    oq_json *own_quant;      /* a lone file's own word about its quantization; NULL: none */
    const oq_backend *backend;
    oq_device *device;
    oq_quant_config *config; /* the wish */
    oq_plan *plan;
    const oq_write_container *container; /* that the output's name asks for; NULL: a folder */
    oq_quantize_part *parts;
    size_t n_parts;
    struct {              /* what it was calibrated by */
        int prompts, steps; /* 0 prompts: nothing asked for it */
        int64_t width, height;
        uint64_t seed;
        size_t scales, smoothed, compensated; /* layers with static activations, SmoothQuant's factors, GPTQ's rounding */
        int turns;                            /* runs that the last take */
    } calibrated;
    oq_calibration *calibration; /* while layers are written in turns; NULL: none is needed any more */
} oq_quantize;

/* Opens the source and its networks, resolves the wish as for plain weights, fills `planned`. Deinit in any case. */
oq_status oq_quantize_open(oq_env *env, const oq_options *options, const char *path, oq_quantize *out);
void oq_quantize_deinit(oq_quantize *q);
/* quantize_calibrate.c: what the command's own options make of a method's scheme: static activations, smoothing. */
void oq_quantize_refine(const oq_quantize *q, oq_scheme *scheme);
/* Fills in what prompts tell about the listed layers; nothing where none needs it. dry: everything but running the model. Fails
 * where prompts are given that nothing needs, or none where something does. */
oq_status oq_quantize_calibrate(oq_quantize *q, bool dry);
/* quantize_smooth.c: the factors of layers whose scheme is smooth, from weights and inputs. */
oq_status oq_quantize_smooth(oq_quantize *q, oq_quantize_part *p);
/* quantize_gptq.c: is the rounding of such a layer compensated; in which order of columns; how many bytes of sums may be held; which layers are written when. */
bool oq_quantize_compensates(const oq_quantize *q, const oq_scheme *scheme);
oq_column_order oq_quantize_column_order(const oq_quantize *q);
oq_status oq_quantize_product_limit(const oq_quantize *q, size_t *bytes);
oq_status oq_quantize_take_turns(oq_quantize *q, size_t limit);
/* quantize_layers.c: layers as they stand in files, a layout for each part, the list of what is written. */
oq_status oq_quantize_layers(oq_quantize *q);
/* quantize_names.c: --names; the spelling of a layer or tensor; of all layers, which may become one. */
oq_status oq_quantize_choose_names(oq_quantize *q, oq_quantize_part *p);
oq_status oq_quantize_spell(oq_quantize *q, const oq_quantize_part *p, const char *name, oq_spelling *out);
oq_status oq_quantize_spell_all(oq_quantize *q, oq_quantize_part *p);

#endif
