/* reader.h -- what the files of this room say to each other: container detection, one container's reader, the
 * shard index. Private to ckpt/ (and to its tests and fuzz targets). */
#ifndef OQ_CKPT_READER_H
#define OQ_CKPT_READER_H

#include "ckpt/ckpt.h"

/* Headers and index files beyond this are refused: the limit of the safetensors library itself. */
#define OQ_SAFETENSORS_HEADER_MAX 100000000u

typedef enum oq_container {
    OQ_CONTAINER_SAFETENSORS,
    OQ_CONTAINER_SHARD_INDEX,
    OQ_CONTAINER_GGUF,
    OQ_CONTAINER_TORCH /* a zip archive: torch.save's */
} oq_container;

/* By content alone. Everything that is not one of these fails with one sentence that says what the bytes
 * are. */
oq_status oq_container_detect(oq_env *env, const char *path, const oq_mapping *map, oq_container *out);

typedef struct oq_ckpt_part { /* what one weight file holds */
    oq_ckpt_tensor *tensors;  /* in file order; names live in the arena, data in the mapping */
    size_t n_tensors;
    oq_json *metadata; /* the caller's; NULL: none */
    const char *header_hash;
} oq_ckpt_part;

typedef struct oq_header_cursor { /* zero `at` is the beginning */
    const char *text;
    size_t n, at;
} oq_header_cursor;

typedef struct
    oq_header_member { /* offsets into the text: "key" with its quotes, {value} with its brackets */
    size_t key, key_end, value, value_end;
    bool nested; /* the value holds a list or an object */
} oq_header_member;

/* The next member of a header's outermost object, unparsed; *more false behind the last. */
oq_status oq_header_next(oq_env *env, const char *path, oq_header_cursor *c, oq_header_member *out,
                         bool *more);

/* The header's length as the first 8 bytes tell it; the mapping holds that many. */
uint64_t oq_safetensors_header_bytes(const oq_mapping *map);
/* `path` is for messages. Nothing is read behind the header. On failure `out` is zero. */
oq_status oq_safetensors_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map,
                               oq_ckpt_part *out);

/* FNV-1a of 64 bits as 16 digits: a name for a header, no protection against anyone. NULL: no memory. */
const char *oq_header_hash(oq_arena *arena, const uint8_t *text, size_t n);

/* The same as oq_safetensors_parse for a GGUF file; its metadata are the key-value store, where lists of more than 64
 * elements are {"array_of": type, "length": n}. */
oq_status oq_gguf_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map,
                        oq_ckpt_part *out);

/* The same for a file of torch.save (zip archive with a pickle): tensor subclasses come as TorchAO's safetensors have them,
 * "module._weight_qdata" with a metadata entry "module.weight" (text of a JSON object). Tensors that are not contiguous are
 * copied into the arena. */
oq_status oq_torch_file_parse(oq_env *env, oq_arena *arena, const char *path, const oq_mapping *map,
                              oq_ckpt_part *out);

typedef struct oq_gguf_split_info {
    int count, no;     /* parts, and which of them this is, from 0 on; 1 and 0: the file is whole */
    int stem;          /* length of the path up to "-00001-of-…" */
    int64_t n_tensors; /* of all parts; -1: not told */
} oq_gguf_split_info;
/* What the metadata of one part say, checked against its name. */
oq_status oq_gguf_split(oq_env *env, const char *path, const oq_ckpt_part *part, oq_gguf_split_info *out);

typedef struct oq_shard_entry {
    const char *name;  /* of the tensor; borrowed from the index's JSON */
    const char *shard; /* file name; the same pointer for the same file once the index is parsed */
} oq_shard_entry;

typedef struct oq_shard_index {
    oq_json *json;
    const char *path;        /* of the index file; borrowed */
    oq_shard_entry *entries; /* sorted by tensor name */
    size_t n_entries;
    const char **shards; /* distinct file names, sorted */
    size_t n_shards;
    int64_t total_size; /* metadata.total_size; -1: not told */
} oq_shard_index;

/* Names that leave the folder are refused. Arrays live in `arena`, strings in `out->json`. */
oq_status oq_shard_index_parse(oq_env *env, oq_arena *arena, const char *path, const char *text, size_t n,
                               oq_shard_index *out);
void oq_shard_index_deinit(oq_shard_index *index);
/* Every shard is there, or OQ_E_NOTFOUND naming those that are not. */
oq_status oq_shard_index_check_files(oq_env *env, const oq_shard_index *index, const char *folder);
/* `ckpt` (tensors sorted by name, files in the order of `shards`) holds exactly what the index says, where it
 * says. */
oq_status oq_shard_index_check(oq_env *env, const oq_shard_index *index, const oq_ckpt *ckpt);

/* Smoothed layers lose their wrapper: "X.linear.weight" beside "X.div.mul_scale" are "X.weight" and "X.mul_scale". */
oq_status oq_ckpt_unwrap(oq_env *env, oq_ckpt *ckpt);

/* The snapshot folder of "org/name" in the Hugging Face cache (read only; HF_HUB_CACHE, HF_HOME,
 * XDG_CACHE_HOME, HOME). The path is the caller's (oq_free). OQ_E_NOTFOUND says where was looked and how to
 * get the model. */
oq_status oq_hf_cache_find(oq_env *env, const char *repo, char **out);
bool oq_hf_repo_name_valid(const char *text); /* "org/name" of the allowed characters */

#endif
