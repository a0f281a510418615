/* dialect.h -- spelling: how one producer writes quantized layers into files. Decides per layer which tensors
 * hold which plane, and turns stored bytes into canonical ones. */
#ifndef OQ_QUANT_DIALECT_H
#define OQ_QUANT_DIALECT_H

#include "ckpt/ckpt.h"
#include "quant/method.h"

typedef struct oq_plane_source {
    const oq_ckpt_tensor *tensor; /* NULL: the plane has no tensor */
    /* Stored bytes -> canonical plane bytes (dst has canonical size); NULL: they are canonical already. */
    void (*fix)(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k);
    /* The same for bytes that the tensor alone does not explain: `self` has it, the dialect's own numbers, and `of`,
     * which lives as long as the declaration. NULL: `fix` does it. */
    void (*make)(void *dst, const struct oq_plane_source *self, int64_t n, int64_t k);
    const void *of;
    int64_t arg[3];
} oq_plane_source;

/* Canonical bytes of one plane of W[n, k], which has a tensor. `bytes`: its canonical size. */
void oq_plane_read(const oq_plane_source *source, void *dst, size_t bytes, int64_t n, int64_t k);

enum { OQ_MAX_BESIDE = 6 };
typedef struct oq_part_source { /* one part of one layer as it stands in the file */
    const oq_format *format;    /* canonical format of its planes */
    const oq_dtype *act;        /* NULL: weight only */
    oq_act_scale act_scale;
    int32_t act_min_rows, rotate, rank; /* oq_scheme's; smooth and order are there where their planes are */
    float outlier, shift;
    oq_plane_source plane[OQ_N_PLANES]; /* one that the format does not have claims its tensor alone */
    oq_plane_source bias; /* f32 [n] out of a stored bias in another order; tensor NULL: "name.bias" is read as it is */
    const oq_ckpt_tensor *beside[OQ_MAX_BESIDE]; /* tensors whose meaning went into the above; NULL: no more */
    /* The planes are those of `whole` rows, of which this part is n from `first` on; whole 0: its own. */
    int64_t first, whole;
    bool halves_swapped; /* the second half of the rows stands first */
} oq_part_source;

/* How such a part would be multiplied alone. */
void oq_part_scheme(const oq_part_source *part, oq_scheme *out);

typedef struct oq_declared { /* what a checkpoint says about its quantization as a whole */
    const oq_method *method;
    const oq_json *options;     /* with canonical keys, as far as given: no defaults */
    const char *const *ignored; /* patterns of layers that stay plain */
    size_t n_ignored;
    const void *file;      /* the same as a value of the dialect's own; NULL: nothing */
    const oq_json *layers; /* what the dialect's `read` keeps per layer for its `locate`; NULL: nothing */
    bool encoder;          /* of a text encoder, which some producers run otherwise than a transformer */
} oq_declared;

typedef struct oq_declare_input {
    oq_arena *arena;          /* the declaration's texts live here */
    oq_json *held;            /* a JSON list that owns its options */
    const oq_method *method;  /* named by `quant`; NULL: found by the tensors alone */
    const oq_json *quant;     /* the component's metadata: a mapping, a method's name, or NULL */
    const char *quant_source; /* file that it came from */
    const oq_ckpt *ckpt;
} oq_declare_input;

/* The declaration as the method's own option rows read it; dialects without peculiarities use it as their
 * `read`. */
oq_status oq_declared_read(oq_env *env, const oq_declare_input *in, oq_declared *out);

typedef struct oq_dialect {
    const char *name; /* "fp8", "int8", "modelopt", "comfy", … */
    const char *help;
    const oq_method *method; /* what it writes down */
    /* By evidence: the method that the metadata names (NULL: no metadata) and the tensors themselves. */
    bool (*detect)(const oq_method *named, const oq_ckpt *ckpt);
    oq_status (*read)(oq_env *env, const oq_declare_input *in, oq_declared *out);
    /* The planes of one part. `name` is the part's name in the checkpoint's spelling. *found false: this part
     * is plain in the file. Half-present planes (a code without its scale) are OQ_E_FORMAT naming both
     * tensors. */
    oq_status (*locate)(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found);
    /* Tensors that no layer needs and that are harmless ("scaled_fp8" marker); NULL: none. */
    bool (*harmless)(const oq_ckpt_tensor *tensor);
    /* The layer that this tensor tells of (mostly its codes), for reports that have no network to ask: the length of its name within the
     * tensor's, and its shape. False with a length that is not 0 (it comes as 0): these are codes, but nothing tells their layer's
     * shape. NULL: every matrix "X.weight" may be layer X. */
    bool (*layer_of)(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *tensor,
                     size_t *name_length, int64_t *n, int64_t *k);
    const char *shape_from; /* where `layer_of` finds that shape, for a message; NULL: in the tensor's dimensions */
    /* A part that becomes rows of a product with others, or is rows of a larger layer: where its format does not stand so, the
     * same numbers in one that does. NULL: all formats do. */
    void (*join)(oq_part_source *part);
    /* Each tensor tells its own type: parts of one product may differ (they are multiplied one by one then), and plain
     * layers need no list that names them. */
    bool types_of_their_own;
    bool values_in_codes; /* 8-bit floats outside of layers (norms, biases) are values as they stand */
} oq_dialect;

/* The dialect's `layer_of`, or what stands for it. */
bool oq_dialect_layer_of(const oq_dialect *dialect, const oq_declared *declared, const oq_ckpt *ckpt,
                         const oq_ckpt_tensor *tensor, size_t *name_length, int64_t *n, int64_t *k);

/* The dialect's `locate`, and what holds for all of them: scales that are zero throughout, beside codes that are not, are
 * OQ_E_FORMAT. */
oq_status oq_dialect_locate(oq_env *env, const oq_dialect *dialect, const oq_declared *declared,
                            const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k, oq_part_source *out,
                            bool *found);

extern const oq_dialect *const oq_dialect_list[]; /* NULL-terminated, in detection order; dialect_list.c */

/* Does a dialect read checkpoints that name this method? */
bool oq_dialect_reads(const oq_method *method);

#endif
