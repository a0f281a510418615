/* mutant.h -- a quantized component's folder in memory, to be spoilt in one place and written again. */
#ifndef OQ_TESTS_MUTANT_H
#define OQ_TESTS_MUTANT_H

#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mutant_tensor {
    char name[192], type[16]; /* safetensors' name of the type; empty name: left out */
    int n_dims;
    int64_t dim[8];
    uint8_t *data; /* of its own */
    size_t bytes;
} mutant_tensor;

typedef struct mutant {
    oq_env *env;
    mutant_tensor *tensors;
    size_t n_tensors, cap_tensors;
    oq_json *config;   /* config.json; NULL: none */
    oq_json *metadata; /* of the header; NULL: none */
} mutant;

/* One way to spoil a tensor; false: it does not apply. The list ends with what NULL. */
typedef struct mutant_spoil {
    bool (*spoil)(mutant_tensor *t);
    const char *what;
} mutant_spoil;
extern const mutant_spoil mutant_spoils[];

/* All shards of `folder` as one. Failures abort the test. */
void mutant_read(mutant *m, oq_env *env, const char *folder);
/* One weight file without a configuration. */
void mutant_read_file(mutant *m, oq_env *env, const char *path);
void mutant_copy(mutant *m, const mutant *from);
void mutant_free(mutant *m);
/* `folder`/diffusion_pytorch_model.safetensors and, where there is one, config.json. */
void mutant_write(const mutant *m, const char *folder);

mutant_tensor *mutant_find(const mutant *m, const char *name); /* NULL: none */
/* A copy of `bytes` at `data`. */
mutant_tensor *mutant_add(mutant *m, const char *name, const char *type, const int64_t *dim, int n_dims,
                          const void *data, size_t bytes);
void mutant_drop(mutant_tensor *t);

/* How many places a tree of JSON has that can be changed (each leaf) or left out (each member). */
size_t mutant_json_places(const oq_json *json);
/* The tree with place `at` changed: numbers doubled, words turned, texts to nonsense; or without it. `what` [n] says which.
 * NULL: nothing there to change. The caller's. */
oq_json *mutant_json(const oq_json *json, size_t at, int left_out, char *what, size_t n);

#endif
