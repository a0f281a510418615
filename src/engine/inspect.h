/* inspect.h -- what the files of the inspect command say to each other. */
#ifndef OQ_ENGINE_INSPECT_H
#define OQ_ENGINE_INSPECT_H

#include "engine/command.h"

typedef struct oq_inspect_layer { /* one quantized product as it stands in the file */
    const char *name;             /* without ".weight" */
    int64_t n, k;
    oq_part_source source;
} oq_inspect_layer;

typedef struct oq_inspect_part { /* one component of a model, or the one thing that was given */
    const char *name;            /* "transformer"; NULL: the path itself */
    const char *library, *class_name;
    const oq_folder_component *component; /* its folder: config, quantization metadata; NULL: none */
    oq_ckpt *ckpt;                        /* NULL: no weights here */
    oq_resolved *resolved;       /* what the checkpoint alone asks for; NULL: nothing, or it failed */
    const oq_dialect *dialect;   /* NULL: nothing quantized was recognised */
    const oq_declared *declared; /* NULL: plain */
    oq_inspect_layer *layers;
    size_t n_layers;
    const char **unclaimed; /* tensors that belong to quantization, but to no layer */
    size_t n_unclaimed;
} oq_inspect_part;

typedef struct oq_inspect {
    oq_env *env;
    oq_arena arena;
    const char *path;
    const char *variant;       /* of the weights in folders; NULL: the plain ones */
    const char *format;        /* "safetensors", "folder", "model" */
    oq_folder *folder;         /* whole models */
    oq_folder_component alone; /* a component folder, or the folder of a single file */
    oq_inspect_part *parts;
    size_t n_parts;
    const char *model;         /* --model: whose component a lone file or folder would be; NULL: not given */
    oq_json *problems; /* in the report's form */
    bool planned;      /* the plan took it: what else is found does not stop generate */
    const char *judged; /* "model", "component": by the plan of generate; "tensors": by them alone */
    oq_json *verified; /* --verify-against's report; NULL: not asked for */
    char *verified_text;
} oq_inspect;

/* ---- layer_values.c: what a layer's planes stand for --------------------------------------------------- */
typedef struct oq_layer_planes { /* zero before */
    oq_planes planes;
    void *owned[OQ_N_PLANES]; /* NULL: the file's own bytes */
} oq_layer_planes;
/* Canonical planes of all of the layer's rows. Free in any case. */
oq_status oq_layer_planes_read(oq_env *env, const oq_inspect_layer *layer, oq_layer_planes *out);
oq_status oq_layer_planes_own(oq_env *env, oq_layer_planes *p, int plane, size_t bytes);
void oq_layer_planes_free(oq_env *env, oq_layer_planes *p);
/* Pages of the file that hold the layer may leave memory; reading them again brings them back. */
void oq_inspect_layer_forget(const oq_ckpt *ckpt, const oq_inspect_layer *layer);
/* A decoded row [k] with what stands around the product (rotation, order, factors, low rank) folded in; spare [k]. */
void oq_layer_fold_row(const oq_scheme *s, const oq_planes *p, float *row, float *spare, int64_t r, int64_t k);
/* f32 [n, k], folded. */
oq_status oq_layer_values(oq_env *env, const oq_inspect_layer *layer, float *dst);

/* ---- inspect_open.c: a path to parts ------------------------------------------------------------------- */
/* `variant` may be NULL. Deinit in any case. */
oq_status oq_inspect_open(oq_env *env, const char *path, const char *variant, oq_inspect *out);
void oq_inspect_deinit(oq_inspect *inspect);
/* One line of "problems"; `tensor` may be NULL. A sentence that stands there already is not said again. */
void oq_inspect_problem(oq_inspect *inspect, const oq_inspect_part *part, const char *severity,
                        const char *tensor, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Bad data becomes a problem and work goes on; what is no fact about the file (memory, cancellation) is
 * passed on. */
oq_status oq_inspect_note(oq_inspect *inspect, const oq_inspect_part *part, const char *tensor, oq_status st);

/* What keeps a file from running when no plan was made: "error"; under a plan that took it: "warning". */
const char *oq_inspect_severity(const oq_inspect *inspect);
bool oq_inspect_refused(const oq_inspect *inspect); /* is there an error among the problems? */

/* ---- inspect_picture.c: a picture, and what it remembers of its run ----------------------------------------------- */
bool oq_inspect_is_picture(const char *path);
oq_status oq_inspect_picture(oq_env *env, const char *path, oq_report **out);

/* ---- inspect_judge.c: what generate would say ---------------------------------------------------------- */
/* Plans the model, or the component alone where its class or --model tells the network; the plan's refusal becomes an
 * error, its warnings warnings. */
oq_status oq_inspect_judge(oq_inspect *inspect);

/* ---- inspect_quant.c: dialect, layers, leftovers ------------------------------------------------------- */
oq_status oq_inspect_quant(oq_inspect *inspect, oq_inspect_part *part);

/* ---- inspect_health.c: values that no weight should have ----------------------------------------------- */
oq_status oq_inspect_health(oq_inspect *inspect);

/* ---- inspect_values.c: --tensor and --layer ------------------------------------------------------------ */
oq_status oq_inspect_tensor(const oq_inspect *inspect, const char *name, int64_t limit, oq_report **out);
oq_status oq_inspect_layer_values(const oq_inspect *inspect, const char *name, int64_t limit,
                                  oq_report **out);

/* ---- inspect_report.c: the report as JSON and as text -------------------------------------------------- */
oq_status oq_inspect_report(oq_inspect *inspect, oq_report **out);

#endif
