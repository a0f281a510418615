/* scratch.h -- folders and files that a test makes for itself, below the build folder. Failures abort the
 * test. */
#ifndef OQ_TESTS_SCRATCH_H
#define OQ_TESTS_SCRATCH_H

#include <stddef.h>

/* An empty folder `root`/scratch-`name`; what an earlier run left in it is removed. Valid until the next call
 * with the same slot order: four results live at a time. */
const char *scratch_dir(const char *root, const char *name);
const char *scratch_path(const char *dir, const char *name); /* dir/name, from the same ring of texts */
void scratch_subdir(const char *dir, const char *name);
void scratch_write(const char *dir, const char *name, const void *bytes, size_t n);
void scratch_text(const char *dir, const char *name, const char *text);
/* A safetensors file: the length in front, the header as given, then the data. */
void scratch_safetensors(const char *dir, const char *name, const char *header, const void *data, size_t n);
void scratch_remove(const char *dir, const char *name);

#endif
