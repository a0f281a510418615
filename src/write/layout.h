/* layout.h -- how a producer's files spell quantized layers, for writing: what dialects read. One file layout_<name>.c
 * and one line in layout_list.c each. */
#ifndef OQ_WRITE_LAYOUT_H
#define OQ_WRITE_LAYOUT_H

#include "base/arena.h"
#include "base/json.h"
#include "format/format.h"
#include "write/container.h"

typedef struct oq_write_layer { /* one layer as it will stand in the file */
    const char *name;           /* without ".weight" */
    int64_t n, k;
    oq_scheme scheme;
    float input_scale; /* static activation scale; 0: none. Any number above until it was measured */
    bool zeros_beside; /* some layer of the component has zero points */
    const float *smooth; /* factors of the columns of x [k], bf16 numbers; the weights are divided by them. NULL: none, or not
                          * measured yet */
} oq_write_layer;

typedef struct oq_spelled { /* one tensor of a layer */
    const char *suffix;     /* behind the layer's name: ".weight_scale" */
    const char *type;       /* safetensors' spelling; NULL: no such tensor */
    int n_dims;
    int64_t dim[3];
    size_t bytes;
    oq_plane plane; /* its bytes are this plane's as they are ... */
    void (*put)(void *dst, const oq_write_layer *layer, const oq_planes *planes); /* ... unless this makes them */
} oq_spelled;

enum { OQ_LAYOUT_MAX = 8 };

typedef struct oq_write_component { /* what a component's metadata tells */
    oq_env *env;
    const oq_write_layer *layers;
    size_t n_layers;
    const char *const *plain; /* linear layers that stay unquantized */
    size_t n_plain;
    const char *const *tensors; /* names of all other tensors */
    size_t n_tensors;
    const char *architecture; /* the network's word in GGUF files */
} oq_write_component;

typedef struct oq_layout {
    const char *name; /* "modelopt" */
    const char *help; /* what it holds */
    const char *producer; /* who reads it, for the report */
    const oq_write_container *container; /* NULL: safetensors */
    bool in_file; /* a single file tells by itself what it is; false: its header carries the metadata for us */
    /* The format that its reader takes such a weight for, where its bytes mean the last bit otherwise; NULL: the same. */
    const oq_format *(*own)(const oq_format *f);
    /* The tensors of one layer, their number; 0: the layout does not hold this scheme or shape. */
    int (*spell)(const oq_write_layer *layer, oq_spelled out[OQ_LAYOUT_MAX]);
    /* "quantization_config" of config.json; NULL: none. */
    oq_json *(*config)(const oq_write_component *c);
    /* Entries of the weight file's own header; NULL: none. */
    void (*metadata)(const oq_write_component *c, oq_json *header);
} oq_layout;

extern const oq_layout *const oq_layout_list[]; /* NULL-terminated, in the order in which defaults are looked for */
const oq_layout *oq_layout_find(const char *name); /* NULL: unknown */
/* The layout's tensors of the layer, and their number; 0: it does not hold this scheme, or what belongs to it. */
int oq_layout_spell(const oq_layout *layout, const oq_write_layer *layer, oq_spelled out[OQ_LAYOUT_MAX]);

/* ---- layout_common.c: what several spell alike --------------------------------------------------------- */

/* A plane as it is. dims: -1 ends them. */
oq_spelled oq_spell_plane(const oq_write_layer *l, const char *suffix, const char *type, oq_plane plane, int64_t d0,
                          int64_t d1);
/* Made by `put`. */
oq_spelled oq_spell_made(const char *suffix, const char *type, size_t bytes, int64_t d0, int64_t d1,
                         void (*put)(void *dst, const oq_write_layer *layer, const oq_planes *planes));
oq_spelled oq_spell_input_scale(const char *suffix); /* F32 [] */
oq_spelled oq_spell_smooth(const oq_write_layer *l, const char *suffix); /* BF16 [k] */
/* Codes of four bits with the first of a byte high. */
void oq_put_nibbles_swapped(void *dst, const oq_write_layer *layer, const oq_planes *planes);
bool oq_write_symmetric(const oq_format *f); /* codes around zero: no zero points */
/* The code of a weight of an integer format in groups. */
unsigned oq_write_int_code(const oq_write_layer *layer, const oq_planes *planes, int64_t row, int64_t column);
/* The zero point of an integer format in whole groups; half of the codes where it has none. */
unsigned oq_write_int_zero(const oq_write_layer *layer, const oq_planes *planes, int64_t row, int64_t group);
/* Scales of such a format as [groups, n]. */
void oq_put_column_scales(void *dst, const oq_write_layer *layer, const oq_planes *planes);
/* layout_gptq.c: qweight, qzeros and scales; 0: codes do not fill words. Columns in the order of the model where the planes have
 * another. Zero points are stored less by one where no layer of the component has any, as all readers know it; else as they are, since
 * readers disagree about one less than 0. */
int oq_spell_gptq(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX]);
/* The names, as a JSON list. */
oq_json *oq_write_names(const char *const *names, size_t n);
/* Do all layers have the first one's scheme? */
bool oq_write_uniform(const oq_write_component *c);

#endif
