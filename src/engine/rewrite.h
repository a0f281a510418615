/* rewrite.h -- weight files made from weight files: which tensors the output has, who makes their bytes, and where they
 * go. Streams: a worker holds one layer at a time. Shared by quantize and dequantize. */
#ifndef OQ_ENGINE_REWRITE_H
#define OQ_ENGINE_REWRITE_H

#include "engine/calibrate.h"
#include "engine/inspect.h"
#include "write/compensate.h"
#include "write/container.h"
#include "write/layout.h"

enum { OQ_REWRITE_MORE = 7 };
typedef struct oq_rewrite_source { /* rows that follow those before */
    const oq_ckpt_tensor *plain;
    const oq_inspect_layer *layer;
    int64_t n;
} oq_rewrite_source;

typedef struct oq_rewrite_job { /* one tensor or layer of the source and what becomes of it */
    const char *name;
    const oq_ckpt_tensor *plain;   /* the source where it is not quantized: its values, or its bytes */
    const oq_inspect_layer *layer; /* the source where it is */
    oq_rewrite_source more[OQ_REWRITE_MORE]; /* what stands behind it in the output */
    int n_more;
    bool swap_halves; /* the second half of the rows goes first */
    int64_t n, k;
    oq_write_layer to;  /* scheme.weight NULL: not encoded */
    const oq_dtype *as; /* decoded to this type; NULL: encoded, or copied */
    oq_spelled spelled[OQ_LAYOUT_MAX];
    oq_write_tensor *out[OQ_LAYOUT_MAX];
    int n_out;
    int turn; /* 0: whenever a worker is free; else alone, in its turn, with all threads */
    bool compensate; /* rounding errors shall make up for each other on the layer's input ... */
    const oq_calibration_layer *seen; /* ... which is this; NULL: each weight by itself */
    double damping;                   /* of oq_compensation, */
    oq_column_order column_order;     /* likewise */
    /* Filled by the run. */
    oq_compensation_result compensation;
    double signal, noise; /* sums of squares: of the source's values, of what encoding changed */
    uint64_t hash;        /* of the values that a reader must get */
    oq_status status;
} oq_rewrite_job;

typedef struct oq_rewrite { /* one component */
    oq_env *env;
    oq_arena *arena;
    const oq_inspect_part *part;
    const oq_write_container *container;
    const char **file_names; /* of the output, in its folder */
    int n_files;
    oq_rewrite_job *jobs;
    size_t n_jobs, cap_jobs;
    size_t bytes; /* of all tensors */
    int n_turns;  /* of jobs with turns; before each, from 1 on: */
    oq_status (*begin_turn)(void *user, int turn);
    void *turn_user;
} oq_rewrite;

/* single_name NULL: the source's files keep their tensors and, but for what tells another kind of file, their names (a
 * container of one file: the first one's); else one file of that name. */
oq_status oq_rewrite_begin(oq_env *env, oq_arena *arena, const oq_inspect_part *part,
                           const oq_write_container *container, const char *single_name, oq_rewrite *out);
/* As it is, or as the container needs it; or as `as` (NULL: no wish). */
oq_status oq_rewrite_copy(oq_rewrite *rw, const char *name, const oq_ckpt_tensor *tensor, const oq_dtype *as);
/* Rows of another tensor or layer behind those of the job that was added last; what is encoded counts them already. */
oq_status oq_rewrite_also(oq_rewrite *rw, const oq_inspect_layer *layer, const oq_ckpt_tensor *plain);
/* That job's second half of rows goes first. */
void oq_rewrite_swap_halves(oq_rewrite *rw);
/* name.bias of such a layer, in the order of its rows; what a shift of x was made up by is taken off again. */
oq_status oq_rewrite_bias(oq_rewrite *rw, const oq_inspect_layer *layer, const oq_dtype *as);
oq_status oq_rewrite_bias_values(oq_env *env, const oq_inspect_layer *layer, float *dst);
/* name.weight in a plain type. */
oq_status oq_rewrite_decode(oq_rewrite *rw, const char *name, const oq_inspect_layer *layer, const oq_dtype *as);
/* The layer's tensors as the layout spells them; from a quantized layer or a plain tensor. */
oq_status oq_rewrite_encode(oq_rewrite *rw, const oq_layout *layout, const oq_write_layer *to,
                            const oq_inspect_layer *layer, const oq_ckpt_tensor *plain);
void oq_rewrite_end(oq_rewrite *rw);

/* rewrite_file.c: headers, offsets; writes all files of the component into `folder`, and the index of several.
 * metadata: entries of each file's header beside "format"; may be NULL. */
oq_status oq_rewrite_write(oq_rewrite *rw, const char *folder, const oq_json *metadata);

/* rewrite_run.c: the bytes. Any thread. */
typedef struct oq_rewrite_buffers oq_rewrite_buffers;
/* Values of the source as f32 [n, k]. */
oq_status oq_rewrite_values(oq_env *env, const oq_rewrite_job *job, float *dst);
/* Everything of one job, into buffers that `put` takes one after the other (false: it failed). */
typedef bool (*oq_rewrite_put)(void *user, const oq_write_tensor *tensor, const void *bytes);
oq_status oq_rewrite_run(oq_env *env, oq_rewrite_job *job, oq_rewrite_put put, void *user);
/* f32 values of a quantized layer, row by row; hash of them all. */
oq_status oq_rewrite_layer_hash(oq_env *env, const oq_inspect_layer *layer, uint64_t *hash);

double oq_rewrite_snr_db(const oq_rewrite_job *job); /* INFINITY: nothing was lost */

/* rewrite_output.c: where the output goes, as a whole or not at all. */
typedef struct oq_output_place {
    const char *path;  /* as given */
    char *staged;      /* folder that is filled; the caller's */
    bool is_file;      /* one weight file rather than a folder */
} oq_output_place;
/* Refuses an existing output without `force`, and a file where the source is a whole model. */
oq_status oq_output_begin(oq_env *env, const char *source, const char *path, bool force, bool whole_model,
                          oq_output_place *out);
oq_status oq_output_commit(oq_env *env, oq_output_place *place);
void oq_output_abort(oq_env *env, oq_output_place *place);
/* Files of a folder that are no weights and not in `except` (csv), copied. */
oq_status oq_output_copy_files(oq_env *env, const char *from, const char *to, const char *except);

#endif
