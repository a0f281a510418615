/* gguf_writer.h -- GGUF files that tests make: tensors of a checkpoint under other names and in other types. */
#ifndef OQ_TESTS_GGUF_WRITER_H
#define OQ_TESTS_GGUF_WRITER_H

#include "base/strbuf.h"
#include "ckpt/ckpt.h"
#include "format/gguf_type.h"

typedef struct gguf_writer {
    oq_strbuf keys, infos, data;
    uint64_t n_keys, n_tensors;
} gguf_writer;

void gguf_begin(gguf_writer *w, oq_env *env);
void gguf_key_text(gguf_writer *w, const char *key, const char *text);
/* Rows of the parts, which have one width, one behind the other; vectors and singletons stay F32 whatever `type` is. */
void gguf_tensor(gguf_writer *w, const char *name, const oq_ckpt_tensor *const *parts, int n_parts,
                 const oq_gguf_type *type);
/* Writes the file and frees the writer; the path is scratch_path's. */
const char *gguf_finish(gguf_writer *w, const char *dir, const char *leaf);

#endif
