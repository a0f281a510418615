/* ckpt.h -- named bytes and metadata of one component's weight files, without interpretation.
 * Immutable once open; whoever uses tensors keeps the account of which were claimed (load/claims.h). */
#ifndef OQ_CKPT_CKPT_H
#define OQ_CKPT_CKPT_H

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "format/format.h"

#define OQ_CKPT_MAX_DIMS 8

typedef struct oq_ckpt_tensor {
    const char *name;   /* as in the file */
    const char *origin; /* the tensor that this was taken out of (torch's subclasses); NULL: it stands for itself */
    const oq_dtype
        *dtype; /* NULL: a type that only the container knows (F8_E8M0, F4, GGUF's blocks): see type_name */
    const oq_format *format; /* GGUF's block types that are read: decodes the tensor's bytes by themselves; else NULL */
    const char *type_name; /* the file's spelling of the type */
    int n_dims;
    int64_t dim[OQ_CKPT_MAX_DIMS]; /* row-major, as torch prints it */
    int64_t elems;
    const uint8_t *data; /* any alignment; NULL when bytes == 0 or the header alone was read */
    size_t bytes;
    int file; /* index into oq_ckpt.files */
} oq_ckpt_tensor;

typedef struct oq_ckpt_file {
    const char *path;
    oq_mapping map;
    oq_json *metadata;       /* "__metadata__" (safetensors) or the key-value store (GGUF); NULL: none */
    const char *header_hash; /* 16 hex digits, FNV-1a 64 of the header bytes */
} oq_ckpt_file;

typedef struct oq_ckpt {
    oq_arena arena;
    const char *path;      /* the file, or the folder of a sharded checkpoint */
    const char *container; /* "safetensors", "gguf", "torch" */
    oq_ckpt_file *files;
    int n_files;
    oq_ckpt_tensor *tensors; /* sorted by name (bytewise) */
    size_t n_tensors;
    size_t bytes; /* of all files */
    const char *prefix; /* what oq_ckpt_narrow took off the names; NULL: they are as in the file */
} oq_ckpt;

/* A single weight file (safetensors, GGUF, or torch.save's), the index file of a sharded checkpoint
 * (*.safetensors.index.json, *.bin.index.json), or the first part of a split GGUF file (NAME-00001-of-0000N.gguf). The container is detected by content, not by name. Errors name the file, the tensor and the numbers (OQ_E_FORMAT). */
oq_status oq_ckpt_open(oq_env *env, const char *path, oq_ckpt **out);
/* The weights of a component folder: diffusion_pytorch_model, model or quant_model_weights, [.variant], single or sharded;
 * without them the one GGUF file (or set of parts) that it holds, or the same as .bin (model's is pytorch_model). */
oq_status oq_ckpt_open_folder(oq_env *env, const char *folder, const char *variant, oq_ckpt **out);
void oq_ckpt_close(oq_ckpt *ckpt);
/* The path that "PATH", "owner/repo/file.gguf" or "owner/repo:TYPE" means (the latter two in the Hugging Face cache);
 * the caller's (oq_free). */
oq_status oq_gguf_find(oq_env *env, const char *text, char **out);

/* Tells the system that the tensor's bytes will not be read again. */
void oq_ckpt_forget(const oq_ckpt *ckpt, const oq_ckpt_tensor *tensor);
/* "[192, 64]" in out[size], cut where that is too small. */
void oq_ckpt_put_shape(const oq_ckpt_tensor *t, char *out, size_t size);
const oq_ckpt_tensor *oq_ckpt_find(const oq_ckpt *ckpt, const char *name); /* NULL: none */
/* Does any name begin with `prefix` as whole dotted components? */
bool oq_ckpt_any_below(const oq_ckpt *ckpt, const char *prefix);
/* Names lose `prefix` (which ends with a dot). Those without it stay as they are, or are left out where `elsewhere`
 * says so: an all-in-one file's other networks. */
oq_status oq_ckpt_narrow(oq_env *env, oq_ckpt *ckpt, const char *prefix, bool (*elsewhere)(const char *name));
/* A name out of the file's own metadata, as its tensors are named now. */
const char *oq_ckpt_inside(const oq_ckpt *ckpt, const char *name);
/* Value of a metadata key of the first file that has it; NULL: none. */
const oq_json *oq_ckpt_metadata(const oq_ckpt *ckpt, const char *key);

/* ---- a model folder in diffusers' layout --------------------------------------------------------------- */

typedef struct oq_folder_component {
    const char *name;         /* "transformer" */
    const char *library;      /* "diffusers" */
    const char *class_name;   /* "ZImageTransformer2DModel"; NULL: null in model_index.json */
    const char *path;         /* folder; it need not exist */
    oq_json *config;          /* config.json (scheduler_config.json for schedulers); NULL: none */
    /* Its "quantization_config", else hf_quant_config.json or quantization_config.json whole, else msModelSlim's
     * description; NULL: none. */
    oq_json *quant;
    const char *quant_source; /* path of the file that `quant` came from */
} oq_folder_component;

typedef struct oq_folder {
    oq_arena arena;
    const char *path;
    const char *class_name; /* "ZImagePipeline" */
    oq_json *index;         /* model_index.json */
    oq_json *defaults;      /* omniq.json; NULL: none */
    oq_folder_component *components;
    size_t n_components;
} oq_folder;

/* `model` is a folder, or "org/name" looked up in the Hugging Face cache (HF_HUB_CACHE, HF_HOME,
 * ~/.cache/huggingface; refs/main or the only snapshot). Not found: OQ_E_NOTFOUND with what to download and
 * where to put it. */
oq_status oq_folder_open(oq_env *env, const char *model, oq_folder **out);
void oq_folder_close(oq_folder *folder);
const oq_folder_component *oq_folder_find(const oq_folder *folder, const char *name); /* NULL: none */

/* One component's folder without a model around it: fills path, config, quant and quant_source of a zeroed
 * `c`. Strings live in `arena`; deinit in any case, also after a failure. */
oq_status oq_folder_component_read(oq_env *env, oq_arena *arena, const char *path, oq_folder_component *c);
/* What a weight file's own header says about its quantization ("quantization_config", JSON as text): fills quant and
 * quant_source, in place of what stands beside the file, which may be of another one; warns where the two differ. */
oq_status oq_folder_component_read_header(oq_env *env, const oq_ckpt *ckpt, oq_folder_component *c);
void oq_folder_component_deinit(oq_folder_component *c);

#endif
