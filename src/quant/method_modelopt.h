/* method_modelopt.h -- what the four ModelOpt methods share: metadata in two shapes and the algorithm's name.
 */
#ifndef OQ_QUANT_METHOD_MODELOPT_H
#define OQ_QUANT_METHOD_MODELOPT_H

#include "quant/method.h"

extern const oq_method oq_method_modelopt, oq_method_modelopt_fp4, oq_method_modelopt_mixed,
    oq_method_modelopt_mxfp8;

/* The method that metadata of this family really means: by quant_algo (flat or under "quantization");
 * `method` itself where that says nothing or `method` is not of the family. */
const oq_method *oq_modelopt_refine(const oq_method *method, const oq_json *options);

/* Layers of quant_algo MXFP4, and nobody says whether their activations are quantized: two recipes of the producer write the same
 * words. */
bool oq_modelopt_is_ambiguous(const oq_method_args *args);

#endif
