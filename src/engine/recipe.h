/* recipe.h -- which layer gets which method: what each choice costs in bytes and in error, and the best assignment within a
 * budget. */
#ifndef OQ_ENGINE_RECIPE_H
#define OQ_ENGINE_RECIPE_H

#include "engine/command.h"

enum { OQ_RECIPE_METHODS = 16 };

typedef struct oq_recipe_choice { /* one layer by one method */
    size_t bytes; /* of its weight at rest; 0: the method leaves it plain */
    double error; /* what it alone adds to the latents: sum of squared differences; plain: 0 */
    double noise; /* what it adds to the layer's own output */
} oq_recipe_choice;

typedef struct oq_recipe_layer {
    const char *component, *name;
    int64_t n, k;
    oq_recipe_choice choice[OQ_RECIPE_METHODS]; /* per method; the last used entry is plain BF16 */
    int chosen;
    double reach; /* latent error over output noise; 0: none measured */
    int reach_of; /* method by which it is exchanged alone; -1: none takes it */
} oq_recipe_layer;

typedef struct oq_recipe {
    oq_env *env;
    oq_arena arena;
    const char *method[OQ_RECIPE_METHODS]; /* as asked for; the last is "bf16" */
    const char *spec[OQ_RECIPE_METHODS];   /* the quantization it stands for; NULL: plain */
    int n_methods;
    oq_recipe_layer *layers;
    size_t n_layers;
    double weights; /* of all layers */
} oq_recipe;

/* recipe_solve.c: least total error with at most `budget` bytes of layers. Errors of layers add up (they are small and of
 * unrelated signs). Walks down the convex hull of each layer's choices by the best trade, then spends what is left.
 * OQ_E_ARG naming the smallest possible when the budget is below it. */
oq_status oq_recipe_solve(oq_recipe *recipe, size_t budget);
size_t oq_recipe_bytes(const oq_recipe *recipe); /* of the chosen */
double oq_recipe_error(const oq_recipe *recipe);

#endif
