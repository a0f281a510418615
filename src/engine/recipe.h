/* recipe.h -- which layer gets which method: what each choice costs in bytes and in error, the best assignment within a
 * budget, and how its pictures turn out. Errors are those of what the last step leaves, beside the plain run's: what a layer
 * adds in a step goes through all later ones, as it does in a picture. */
#ifndef OQ_ENGINE_RECIPE_H
#define OQ_ENGINE_RECIPE_H

#include "engine/command.h"

#define OQ_RECIPE_BUDGET "4.5bpw" /* where none is given */
enum { OQ_RECIPE_METHODS = 32, OQ_RECIPE_FORWARDS = 3 /* in which a layer is exchanged, where not in whole runs */ };

typedef struct oq_recipe_choice { /* one layer by one method */
    size_t bytes; /* of its weight at rest; 0: the method leaves it plain */
    double noise; /* what it adds to the layer's own output: sum of squared differences a forward */
    double error; /* what it alone adds to what is left: squared difference over squares; plain: 0 */
} oq_recipe_choice;

typedef struct oq_recipe_layer {
    const char *component, *name;
    bool every_step; /* runs in each forward of its denoiser; else in an encoder, once before them */
    int64_t n, k;
    oq_recipe_choice choice[OQ_RECIPE_METHODS]; /* per method; the last used entry is plain BF16 */
    int chosen;
    double reach; /* error over output noise; 0: none measured */
    int reach_of; /* method by which it is exchanged alone; -1: none takes it */
} oq_recipe_layer;

typedef struct oq_recipe_forward { /* of a plain run */
    const char *component;
    uint8_t *y; /* the prediction: rows of its last layer's output, as they are */
    double signal;
} oq_recipe_forward;

typedef struct oq_recipe_set { /* prompts, and what the plain model makes of them */
    oq_request request;
    oq_recipe_forward *forwards; /* in their order */
    size_t n_forwards;
    float *latents; /* of all items, behind the last step */
    size_t n_latents, n_steps;
    oq_media *plain; /* the pictures */
} oq_recipe_set;

typedef struct oq_recipe {
    oq_env *env;
    oq_arena arena;
    const oq_options *options; /* of the command */
    const char *method[OQ_RECIPE_METHODS]; /* as asked for; the last is "bf16" */
    const char *spec[OQ_RECIPE_METHODS];   /* the quantization it stands for; NULL: plain */
    int n_methods;
    bool by_forward;                /* layers are measured in single forwards, not in whole runs */
    oq_model *reference;            /* plain */
    oq_recipe_set search, held_out; /* what is measured on; what the result is judged by */
    oq_recipe_layer *layers;
    size_t n_layers;
    double weights; /* of all layers */
} oq_recipe;

/* ---- recipe_words.c ------------------------------------------------------------------------------------ */

/* Methods of --methods, with plain BF16 behind them. */
oq_status oq_recipe_read_methods(oq_recipe *recipe, const char *csv);
/* Is it searched? --components names some of them. */
bool oq_recipe_has_component(const oq_recipe *recipe, const char *component);
/* Method m for all layers that are searched; lives in the arena. */
oq_status oq_recipe_uniform(oq_recipe *recipe, int m, const char **spec);
/* "4.5bpw", "6GB", "700MiB", or bytes; of recipe->weights. */
oq_status oq_recipe_read_budget(const oq_recipe *recipe, const char *text, size_t *bytes);
/* The chosen assignment as a quantization. NULL: no memory. */
oq_json *oq_recipe_json(const oq_recipe *recipe);

/* ---- recipe_run.c -------------------------------------------------------------------------------------- */

/* The command's model in a quantization of its own (NULL: plain), loaded. */
oq_status oq_recipe_open(const oq_recipe *recipe, const char *spec, oq_model **out);
/* The same without its weights. */
oq_status oq_recipe_prepare(const oq_recipe *recipe, const char *spec, oq_model **out);
/* Fills the set from a plain run. */
oq_status oq_recipe_record(oq_recipe *recipe, oq_recipe_set *set);
void oq_recipe_set_free(oq_recipe_set *set);
int oq_recipe_items(const oq_recipe_set *set); /* pictures */
/* The layer of that name; NULL: there is none. */
const oq_plan_layer *oq_recipe_find(const oq_model *model, const char *component, const char *name);
/* Ends forward *at of a run of `model` if `layer` is the last of its denoiser: the error of y goes to *error, the plain
 * prediction to y, and *at is counted up; *ended says whether. After it, no error grows on another. */
oq_status oq_recipe_end_forward(const oq_recipe_set *set, const oq_model *model, const oq_linear *layer, oq_tensor y,
                                size_t *at, bool *ended, double *error);
/* Runs the set's prompts up to the last step; errors[items]: of what that leaves, squared difference over squares. observer may
 * be NULL; media NULL: no pictures. */
oq_status oq_recipe_run_whole(const oq_recipe_set *set, const oq_model *model, oq_layer_observer observer, void *user,
                              double *errors, oq_media **media);

typedef struct oq_recipe_outcome { /* of one assignment, when it runs */
    size_t bytes;
    double error;              /* of what the last step leaves: geometric mean over the items */
    double mean_db, worst_db;  /* PSNR of pictures, where they were asked for */
} oq_recipe_outcome;
/* Error, and with `pictures` their PSNR, of the command's model in that quantization. */
oq_status oq_recipe_try(const oq_recipe *recipe, const oq_recipe_set *set, const char *spec, bool pictures,
                        oq_recipe_outcome *out);

/* ---- recipe_measure.c ---------------------------------------------------------------------------------- */

/* Lists the layers that some method takes, with their bytes by each. Needs no weights but the plain model's plan. */
oq_status oq_recipe_list(oq_recipe *recipe);
/* Fills noise and reach. */
oq_status oq_recipe_measure(oq_recipe *recipe);
/* Runs of the prompts that a search takes at most. */
size_t oq_recipe_runs(const oq_recipe *recipe);

/* ---- recipe_solve.c ------------------------------------------------------------------------------------ */

/* Errors of all choices from noise and reach. A single layer's reach is uncertain: `trust` 1 takes it as it is, 0 the mean of
 * all. */
void oq_recipe_set_errors(oq_recipe *recipe, double trust);
/* Least total error with at most `budget` bytes of layers. Errors of layers add up (they are small and of unrelated
 * signs). Walks down by the best trade, then spends what is left. OQ_E_ARG naming the smallest possible when the budget is
 * below it. */
oq_status oq_recipe_solve(oq_recipe *recipe, size_t budget);
size_t oq_recipe_bytes(const oq_recipe *recipe); /* of the chosen */
double oq_recipe_error(const oq_recipe *recipe);

/* ---- recipe_search.c ----------------------------------------------------------------------------------- */

/* Methods, the plain model's plan, the list of layers, the prompts: everything of the options but the budget, without a run.
 * env and options are set before; end in any case. */
oq_status oq_recipe_begin(oq_recipe *recipe);
/* Loads the plain model, runs it, and measures. */
oq_status oq_recipe_look(oq_recipe *recipe);
/* Solves with more and less trust in the measurement, runs each on the search's prompts, and leaves the best chosen. Any
 * number of budgets, one after the other. */
oq_status oq_recipe_search(oq_recipe *recipe, size_t budget);
/* The chosen assignment; method m wherever it can. */
oq_status oq_recipe_try_chosen(const oq_recipe *recipe, const oq_recipe_set *set, bool pictures, oq_recipe_outcome *out);
oq_status oq_recipe_try_uniform(oq_recipe *recipe, int m, const oq_recipe_set *set, oq_recipe_outcome *out);
size_t oq_recipe_uniform_bytes(const oq_recipe *recipe, int m);
void oq_recipe_end(oq_recipe *recipe);

#endif
