/* calibrate.h -- what a model's linear layers take in while it runs prompts: the largest magnitude of x, of each of its
 * columns, and sums of products of its columns, which error-compensated rounding needs. Rows are looked at as they stream by
 * and only these are kept; sums of products are k * k numbers a layer, so they are made for the layers that ask, in runs of
 * their own. Equal requests give equal bits, whatever the threads. */
#ifndef OQ_ENGINE_CALIBRATE_H
#define OQ_ENGINE_CALIBRATE_H

#include "engine/engine.h"

typedef struct oq_calibration_layer { /* one product of the network; fused parts share their x */
    const char *component;            /* "transformer" */
    const oq_linear *linear;
    int64_t k;
    int64_t rows;        /* of x that were seen in the first run; 0: the prompts do not reach this layer */
    float amax;          /* largest |x| */
    float *column_amax;  /* [k] */
    float *products;     /* [k, k], row-major and symmetric: sum of x[i] * x[j] over `product_rows` rows; NULL: not asked for */
    int64_t product_rows;
} oq_calibration_layer;

typedef struct oq_calibration oq_calibration;

typedef struct oq_calibration_source { /* the model that runs */
    const char *model;     /* its folder */
    const char *component; /* whose weights are `file`'s; NULL: all are the folder's */
    const char *file;
} oq_calibration_source;

/* Opens the model as generate does, with the request and the machine of `options` (of quantize): prompts, seed (42 where none
 * is given), steps, size. `dry`: as far as the plan, so that everything that can be refused is. OQ_E_ARG without prompts. */
oq_status oq_calibration_open(oq_env *env, const oq_options *options, const oq_calibration_source *source, bool dry,
                              oq_calibration **out);
void oq_calibration_close(oq_calibration *calibration);
const oq_request *oq_calibration_request(const oq_calibration *calibration);

/* Runs the prompts; fills rows, amax and column_amax of all layers. OQ_E_NUMERIC naming the layer whose x is not finite. */
oq_status oq_calibration_run(oq_calibration *calibration);
/* The layer that holds this part ("layers.0.attention.to_q", or the product's own name); NULL: the network has none. */
oq_calibration_layer *oq_calibration_find(const oq_calibration *calibration, const char *component, const char *part);

/* How many of the first layers have products that fit into so many bytes together; at least 1. A layer counts once. */
size_t oq_calibration_fit(oq_calibration_layer *const *layers, size_t n, size_t bytes);
/* Runs the prompts once more for the products of these n layers. Those of earlier calls are freed. */
oq_status oq_calibration_products(oq_calibration *calibration, oq_calibration_layer *const *layers, size_t n);

#endif
