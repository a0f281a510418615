/* family_folder.h -- a small model folder of a family, made from tests/data/families/NAME: configurations and tokenizer are
 * copied, weights are written from the manifests. A tensor needs no file: its values follow from its name,
 *
 *   h = FNV-1a 64 of the name; z = splitmix64 of h + (i + 1) * golden; w = offset + scale * ((z >> 48) / 32768 - 1)
 *
 * with the manifest's scale and offset, as the original implementation was given them. */
#ifndef OQ_TESTS_FAMILY_FOLDER_H
#define OQ_TESTS_FAMILY_FOLDER_H

#include "base/env.h"
#include "format/dtype.h"

/* w[i] for i in [0, n) */
void family_weights(const char *name, float scale, float offset, float *dst, size_t n);

/* Writes the folder below the build folder's families/`use` (a word for this test program) and gives its path, to be
 * freed. `dtype`: F32 or BF16, of all weights. Aborts the test program when it cannot. */
char *family_folder(oq_env *env, const char *family, const oq_dtype *dtype, const char *use);

#endif
