/* recipe.h -- which layer gets which method: what each choice costs in bytes and in error, the best assignment within a
 * budget, and how its pictures turn out. Errors are those of the denoiser's predictions on the plain run's own inputs: after
 * each forward the plain prediction is put back, so every forward is a measurement of its own and no error grows on another. */
#ifndef OQ_ENGINE_RECIPE_H
#define OQ_ENGINE_RECIPE_H

#include "engine/command.h"

enum { OQ_RECIPE_METHODS = 16 };

typedef struct oq_recipe_choice { /* one layer by one method */
    size_t bytes; /* of its weight at rest; 0: the method leaves it plain */
    double noise; /* what it adds to the layer's own output: sum of squared differences a forward */
    double error; /* what it alone adds to the predictions: squared difference over squared prediction; plain: 0 */
} oq_recipe_choice;

typedef struct oq_recipe_layer {
    const char *component, *name;
    bool every_step; /* runs in each forward of its denoiser; else in an encoder, once before them */
    int64_t n, k;
    oq_recipe_choice choice[OQ_RECIPE_METHODS]; /* per method; the last used entry is plain BF16 */
    int chosen;
    double reach; /* error of predictions over output noise; 0: none measured */
    int reach_of; /* method by which it is exchanged alone; -1: none takes it */
} oq_recipe_layer;

typedef struct oq_recipe_forward { /* of a plain run */
    const char *component;
    uint8_t *y; /* the prediction: rows of its last layer's output, as they are */
    double signal;
} oq_recipe_forward;

typedef struct oq_recipe_set { /* prompts, and what the plain model predicts for them */
    oq_request request;
    oq_recipe_forward *forwards; /* in their order */
    size_t n_forwards;
} oq_recipe_set;

typedef struct oq_recipe {
    oq_env *env;
    oq_arena arena;
    const oq_options *options; /* of the command */
    const char *method[OQ_RECIPE_METHODS]; /* as asked for; the last is "bf16" */
    const char *spec[OQ_RECIPE_METHODS];   /* the quantization it stands for; NULL: plain */
    int n_methods;
    oq_model *reference;            /* plain */
    oq_recipe_set search, held_out; /* what is measured on; what the result is judged by */
    oq_recipe_layer *layers;
    size_t n_layers;
    double weights; /* of all layers */
} oq_recipe;

/* ---- recipe_run.c -------------------------------------------------------------------------------------- */

/* The command's model in a quantization of its own (NULL: plain), loaded. */
oq_status oq_recipe_open(const oq_recipe *recipe, const char *spec, oq_model **out);
/* Fills the set's forwards from a plain run. */
oq_status oq_recipe_record(oq_recipe *recipe, oq_recipe_set *set);
/* The layer of that name; NULL: there is none. */
const oq_plan_layer *oq_recipe_find(const oq_model *model, const char *component, const char *name);
/* Ends forward *at of a run of `model` if `layer` is the last of its denoiser: the error of y goes to *error, the plain
 * prediction to y, and *at is counted up; *ended says whether. */
oq_status oq_recipe_end_forward(const oq_recipe_set *set, const oq_model *model, const oq_linear *layer, oq_tensor y,
                                size_t *at, bool *ended, double *error);
/* Mean error of the model's predictions over all forwards. */
oq_status oq_recipe_model_error(const oq_recipe_set *set, const oq_model *model, double *error);

typedef struct oq_recipe_quality { /* pictures against the plain model's */
    double mean_db, worst_db;      /* PSNR */
} oq_recipe_quality;
oq_status oq_recipe_judge(const oq_recipe_set *set, const oq_model *model, const oq_media *plain, oq_recipe_quality *out);

/* ---- recipe_measure.c ---------------------------------------------------------------------------------- */

/* Lists the layers that some method takes, and fills bytes, noise and reach. */
oq_status oq_recipe_measure(oq_recipe *recipe);

/* ---- recipe_solve.c ------------------------------------------------------------------------------------ */

/* Errors of all choices from noise and reach. Single layers' reach is measured in few forwards: `trust` 1 takes it as it is,
 * 0 the mean of all. */
void oq_recipe_set_errors(oq_recipe *recipe, double trust);
/* Least total error with at most `budget` bytes of layers. Errors of layers add up (they are small and of unrelated
 * signs). Walks down by the best trade, then spends what is left. OQ_E_ARG naming the smallest possible when the budget is
 * below it. */
oq_status oq_recipe_solve(oq_recipe *recipe, size_t budget);
size_t oq_recipe_bytes(const oq_recipe *recipe); /* of the chosen */
double oq_recipe_error(const oq_recipe *recipe);

#endif
