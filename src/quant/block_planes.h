/* block_planes.h -- what dialects of NVFP4, MXFP8 and MXFP4 share: codes beside block scales of one byte, in rows or in the
 * tiles of 128 x 4 that GPUs take them in. Private to this room. */
#ifndef OQ_QUANT_BLOCK_PLANES_H
#define OQ_QUANT_BLOCK_PLANES_H

#include "quant/dialect.h"

typedef enum oq_block_kind {
    OQ_BLOCK_NVFP4, /* e2m1 under e4m3 per 16 columns and one f32 */
    OQ_BLOCK_MXFP8, /* e4m3 under E8M0 per 32 columns */
    OQ_BLOCK_MXFP4  /* e2m1 under the same; codes in `weight_packed` */
} oq_block_kind;

typedef struct oq_block_names { /* suffixes of the tensors */
    const char *codes, *scale;
    const char *global, *input; /* nvfp4's f32 of the weight and of the activations */
    bool inverse;               /* they divide */
} oq_block_names;
/* weight_packed, weight_global_scale, input_global_scale: llm-compressor's and AutoRound's nvfp4. */
extern const oq_block_names oq_block_names_global;

typedef struct oq_block_layout {
    oq_block_kind kind;
    const oq_block_names *names; /* NULL: weight (mxfp4: weight_packed), weight_scale, weight_scale_2, input_scale */
    bool high_first;        /* nvfp4: the first code of a byte is in its high nibble */
    bool tiled;             /* scales that may be either are tiled; false: in rows */
    bool told;              /* the file says which by `tiled`: scales that fit the other order alone are an error */
    bool weight_only;       /* activations stay as they are; else those of nvfp4 need their scale in the file, unless
                               act_scale is OQ_ACT_DYNAMIC_NVFP4 */
    oq_act_scale act_scale; /* MX: how activations choose their powers of two; OQ_ACT_NONE: OQ_ACT_DYNAMIC_MX.
                               OQ_ACT_STATIC_TENSOR (also NVFP4's): one scale, which the file must have */
    const oq_dtype *act;    /* NULL: the weights' own type */
} oq_block_layout;

/* oq_dialect.locate for such a layer, which the metadata says is one: a missing plane is an error. Scales whose shape
 * fits one order alone are read in that order. `spare`: csv of suffixes that may stand beside; NULL: none. */
oq_status oq_block_locate(oq_env *env, const oq_block_layout *layout, const char *spare, const oq_ckpt *ckpt,
                          const char *name, int64_t n, int64_t k, oq_part_source *out);
/* "name.suffix", which must be there as one positive F32. */
oq_status oq_block_number(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *suffix,
                          const oq_ckpt_tensor **out);
/* "name.weight_dual_scale" of an MXFP4 layer, F32 [n, ceil(k/512)] (or with axes of length 1 behind); NULL in *out: none. */
oq_status oq_block_dual(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                        const oq_ckpt_tensor **out);
/* oq_dialect.layer_of: "X.weight" or "X.weight_packed", codes of four bits two to a byte. */
bool oq_block_layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                       size_t *name_length, int64_t *n, int64_t *k);

typedef struct oq_block_evidence { /* nvfp4 layers in a file that says nothing about itself */
    bool any, rows, tiles;         /* there are some; all their scales may be in rows; all may be tiled */
} oq_block_evidence;
oq_block_evidence oq_block_look(const oq_ckpt *ckpt);

#endif
