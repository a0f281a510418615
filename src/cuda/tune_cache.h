/* tune_cache.h -- the tuner's choices between processes. */
#ifndef OQ_CUDA_TUNE_CACHE_H
#define OQ_CUDA_TUNE_CACHE_H

#include "cuda/cuda.h"

enum { OQ_TUNE_KEY_BYTES = 96 }; /* at most */

/* Reads the file of this device, library and driver, if there is one. */
oq_status oq_tune_cache_open(oq_env *env, const oq_device *d, size_t key_bytes, oq_tune_cache **out);
void oq_tune_cache_close(oq_env *env, oq_tune_cache *cache);
/* The algorithm that was chosen for the key (key_bytes without padding of its own); NULL: none. */
const cublasLtMatmulAlgo_t *oq_tune_cache_find(const oq_tune_cache *cache, const void *key);
/* Remembers a choice, here and in the file. */
void oq_tune_cache_put(oq_env *env, oq_tune_cache *cache, const void *key, const cublasLtMatmulAlgo_t *algo, double us);

#endif
