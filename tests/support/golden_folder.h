/* golden_folder.h -- a tiny model as the folder that people download, made from its configurations and from manifests of
 * weights: tests/data holds no weights. Failures abort the test. */
#ifndef OQ_TESTS_GOLDEN_FOLDER_H
#define OQ_TESTS_GOLDEN_FOLDER_H

#include "format/dtype.h"
#include "base/json.h"
#include "media/image.h"

/* Copies the files of `data` (one level of component folders) to `out`, which exists, and writes the weights that each
 * component's weights.json lists: {"tensors": [{"name", "shape", "scale", "offset"} | {"name", "tied_to"}]}, value i
 * of a tensor being offset + scale * u(name, i) (oq_dummy_fill_as), rounded to `dtype` (F32 or BF16). */
void golden_folder_make(oq_env *env, const char *data, const char *out, const oq_dtype *dtype);

/* A tokenizer.json that knows only the given ids, each spelled "<id>", and puts `after` (-1: nothing) behind a text and
 * `before` in front of it: prompts of a test are ids, so no published vocabulary is needed. */
void golden_ids_tokenizer(oq_env *env, const char *folder, const int32_t *ids, size_t n, int32_t before, int32_t after);

/* values[i] = scale * u(name, i): inputs that goldens give by formula. */
void golden_uniform(const char *name, float scale, float *values, int64_t n);
/* The picture that a golden gives by formula: bytes floor((u + 1) * 128) in the order row, column, channel. The caller frees
 * `pixels`. */
oq_image golden_picture(const char *name, int64_t width, int64_t height);

#endif
