/* gguf_mutant.h -- a GGUF file in memory, to be spoilt in one place and written again: nothing here checks anything. */
#ifndef OQ_TESTS_GGUF_MUTANT_H
#define OQ_TESTS_GGUF_MUTANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64 };

typedef struct gguf_mutant_key {
    char name[192];
    uint32_t type;
    uint8_t *value; /* its own; as it stands in the file, without the type */
    size_t bytes;
    bool dropped;
} gguf_mutant_key;

typedef struct gguf_mutant_tensor {
    char name[192];
    uint32_t n_dims, type;
    uint64_t dim[12]; /* the innermost first */
    uint8_t *data; /* its own */
    size_t bytes;
    int64_t moved; /* its offset is told so many bytes too high */
    bool dropped;
} gguf_mutant_tensor;

typedef struct gguf_mutant {
    uint32_t version;
    uint64_t more_keys, more_tensors; /* that the header tells and the file has not */
    size_t alignment; /* as the data are laid out */
    size_t cut, added;  /* bytes that the end of the file lacks, or has too many */
    gguf_mutant_key *keys;
    gguf_mutant_tensor *tensors;
    size_t n_keys, n_tensors, cap_keys, cap_tensors;
} gguf_mutant;

/* A file as it should be. Failures abort the test. */
void gguf_mutant_read(gguf_mutant *m, const char *path);
void gguf_mutant_copy(gguf_mutant *m, const gguf_mutant *from);
void gguf_mutant_free(gguf_mutant *m);
void gguf_mutant_write(const gguf_mutant *m, const char *path);

gguf_mutant_key *gguf_mutant_find_key(const gguf_mutant *m, const char *name); /* NULL: none */
gguf_mutant_tensor *gguf_mutant_find(const gguf_mutant *m, const char *name);
/* Copies of the bytes. */
gguf_mutant_key *gguf_mutant_add_key(gguf_mutant *m, const char *name, uint32_t type, const void *value, size_t bytes);
gguf_mutant_tensor *gguf_mutant_add(gguf_mutant *m, const gguf_mutant_tensor *like, const char *name);
void gguf_mutant_set(gguf_mutant_key *k, uint32_t type, const void *value, size_t bytes);

#endif
