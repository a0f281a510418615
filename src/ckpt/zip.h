/* zip.h -- the archive around torch.save's files: names and places of its entries. Private to ckpt/ (and to its tests
 * and fuzz targets). */
#ifndef OQ_CKPT_ZIP_H
#define OQ_CKPT_ZIP_H

#include "base/arena.h"
#include "base/file.h"

typedef struct oq_zip_entry {
    const char *name;
    const uint8_t *data; /* inside the mapping */
    size_t bytes;
    size_t header; /* offset of the entry's own header */
} oq_zip_entry;

typedef struct oq_zip {
    oq_zip_entry *entries; /* sorted by name */
    size_t n;
} oq_zip;

/* Every entry must be stored as it is, lie inside the file and share no byte with another; also beyond 4 GiB (zip64).
 * Checksums are not computed: whoever changes a byte could change them too. `path` is for messages; OQ_E_FORMAT, or
 * OQ_E_UNSUPPORTED for what is legal and not read (compressed, encrypted, split archives). */
oq_status oq_zip_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map, oq_zip *out);
const oq_zip_entry *oq_zip_find(const oq_zip *zip, const char *name); /* NULL: none */

#endif
