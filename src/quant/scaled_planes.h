/* scaled_planes.h -- what the dialects of 8-bit weights share: a tensor of codes beside a scale tensor, per tensor,
 * per output row or per 128x128 block, and an optional static scale of the activations. Private to this room. */
#ifndef OQ_QUANT_SCALED_PLANES_H
#define OQ_QUANT_SCALED_PLANES_H

#include "quant/dialect.h"

typedef struct oq_scaled_spelling {
    const oq_dtype *code;                      /* element type of the weight; also of quantized activations */
    const oq_format *tensor, *channel, *block; /* block NULL: none */
    const char *weight_name;                   /* suffix of the codes; NULL: "weight" */
    const char *scale_names;    /* csv of suffixes; the first is the one that messages ask for */
    const char *input_names;    /* csv of suffixes of static activation scales; NULL: "input_scale" */
    const char *spare_names;    /* csv of suffixes that may stand beside and are no planes; NULL: none */
    bool unit_input_means_none; /* a static activation scale of exactly 1 was never measured: there is none */
} oq_scaled_spelling;

typedef enum oq_scaled_act {                     /* what is known about the activations of a layer */
                             OQ_SCALED_ACT_FILE, /* nothing: static where the file has their scale, else a scale per token */
                             OQ_SCALED_ACT_NONE, /* not quantized; a scale in the file is left unused */
                             OQ_SCALED_ACT_DYNAMIC, /* a scale per token, or per 128 columns of one beside block scales */
                             OQ_SCALED_ACT_STATIC /* the file must have their scale */
} oq_scaled_act;

typedef struct oq_scaled_rules { /* what the metadata says about a layer's planes */
    oq_scaled_act act;
    const oq_format *format; /* NULL: the shape of the scale says it */
} oq_scaled_rules;

/* "name.suffix"; NULL: none. */
const oq_ckpt_tensor *oq_scaled_find(const oq_ckpt *ckpt, const char *name, const char *suffix);
/* Floating weights without a scale beside them; also a layer that the checkpoint does not have at all. */
bool oq_scaled_is_plain(const oq_ckpt *ckpt, const char *name);
/* The first tensor directly beside ("name.x", not "name.x.y") that the csv does not list; NULL: none. */
const oq_ckpt_tensor *oq_scaled_stranger(const oq_ckpt *ckpt, const char *name, const char *known);
/* True if some tensor "X.weight" holds codes and has its scale beside it. */
bool oq_scaled_detect(const oq_scaled_spelling *spelling, const oq_ckpt *ckpt);
/* oq_dialect.locate for such a spelling. */
oq_status oq_scaled_locate(oq_env *env, const oq_scaled_spelling *spelling, const oq_scaled_rules *rules,
                           const oq_declared *declared, const oq_ckpt *ckpt, const char *name, int64_t n,
                           int64_t k, oq_part_source *out, bool *found);
/* The rules in metadata of fp8's and int8's own shape: activation_scheme and weight_block_size. */
oq_status oq_scaled_declared_rules(oq_env *env, const oq_scaled_spelling *spelling,
                                   const oq_declared *declared, const char *name, oq_scaled_rules *out);

/* None of a finite scale's values is below zero; `whose` names the producer that never writes one. */
oq_status oq_scale_not_below_zero(oq_env *env, const oq_ckpt_tensor *t, const char *whose);

/* A static scale of activations, x: positive and finite, and neither so small that its inverse is infinite (what is quantized is
 * multiplied by that) nor so large that its largest code stands for no float. OQ_E_FORMAT names the tensor. */
oq_status oq_scaled_check_input(oq_env *env, const oq_ckpt_tensor *tensor, float x);

#endif
