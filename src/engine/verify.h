/* verify.h -- quantized layers beside the plain weights that they were made from: signal to noise of each, and what its
 * format gives when it is used as it is meant. A layer far below is an error that names the likely cause. */
#ifndef OQ_ENGINE_VERIFY_H
#define OQ_ENGINE_VERIFY_H

#include "engine/inspect.h"

typedef struct oq_verify_base { /* rows of a plain layer */
    const oq_ckpt_tensor *tensor;
    int64_t first, rows;
    int64_t column, columns; /* of its `columns` those from `column` on; columns 0: the layer's are all */
    bool halves_swapped;
} oq_verify_base;

enum { OQ_VERIFY_PARTS = 8 };
typedef struct oq_verify_layer {
    const char *component, *name;
    int64_t n, k; /* rows that are compared */
    oq_part_source source;
    oq_verify_base base[OQ_VERIFY_PARTS]; /* their rows one behind the other */
    int n_base;
    /* Filled by the run. */
    double snr_db, promised_db; /* promised NAN: the format is not made here */
    const char *cause;          /* of a layer that is far below; else NULL */
    double mended_db;           /* without that cause */
    oq_status status;
} oq_verify_layer;

typedef struct oq_verify {
    oq_env *env;
    oq_arena arena;
    const char *path; /* of the base */
    oq_folder *folder; /* NULL: one component's folder or file */
    oq_ckpt **ckpts;   /* of the base, opened as they are asked for */
    size_t n_ckpts;
    oq_verify_layer *layers;
    size_t n_layers, cap_layers;
} oq_verify;

/* verify_open.c: which base weights belong to which layer. Deinit in any case. */
oq_status oq_verify_model(oq_env *env, const oq_model *model, const char *path, oq_verify *out);
oq_status oq_verify_inspected(oq_inspect *inspect, const char *path, oq_verify *out);
void oq_verify_deinit(oq_verify *v);

/* Every layer; the error names the first of those that are far below, and how many there are. */
oq_status oq_verify_run(oq_verify *v);
/* {"base", "layers": [{"name", "snr_db", "promised_db"}]} and its text. */
oq_json *oq_verify_json(const oq_verify *v);
void oq_verify_print(const oq_verify *v, bool all, oq_strbuf *text);

#endif
