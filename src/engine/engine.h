/* engine.h -- the roof: knows all rooms, wires the flow, implements omniq.h. Private to this room. */
#ifndef OQ_ENGINE_ENGINE_H
#define OQ_ENGINE_ENGINE_H

#include "base/strbuf.h"
#include "ckpt/ckpt.h"
#include "config/options.h"
#include "load/load.h"
#include "lora/lora.h"
#include "media/image.h"
#include "pipelines/pipeline.h"

struct oq_report {
    oq_env  *env;
    oq_json *json;
    char    *json_text; /* made on demand when the report is built */
    char    *text;
    bool     passed;
};

/* Takes ownership of `json` and `text` (oq_free), also on failure. */
oq_status oq_report_new(oq_env *env, oq_json *json, char *text, bool passed, oq_report **out);

/* A command: one row in command_list.c, one file command_<name>.c. */
typedef struct oq_command {
    oq_command_info info;
    oq_status (*run)(oq_env *env, oq_options *options, oq_report **out);
} oq_command;
extern const oq_command *const oq_command_table[]; /* NULL-terminated */

/* A model opened as far as the plan (weights NULL) or loaded. */
struct oq_model {
    oq_env                 *env;
    oq_folder              *folder;
    oq_ckpt               **ckpts;   /* per component of the pipeline; closed after load; NULL entries for dummy */
    size_t                  n_ckpts;
    oq_folder_component    *files;   /* per component: what stands beside a file or folder given for it alone; zero: none */
    oq_json                *hashes;  /* {"transformer/model.safetensors": "HEADER-DATA"} for metadata: oq_file_sample_hash */
    const oq_backend       *backend;
    oq_device              *device;
    const oq_pipeline_type *type;
    void                   *self;    /* the pipeline's */
    oq_quant_config        *config;  /* the wish; NULL: none */
    oq_plan                *plan;
    oq_loras               *loras;    /* NULL: no adapters */
    oq_weights             *weights;
    oq_options             *defaults; /* omniq.json as options of "generate"; NULL: none */
    oq_json                *given;    /* the options it was opened with: its pictures remember them */
    double                  load_s;
    oq_json                *verified; /* --verify-against's report; NULL: not asked for */
    char                   *verified_text; /* the same for people */
    char                    lacks[192]; /* "": the request it was opened with fits into memory; else why it does not */
};
oq_status oq_model_prepare(oq_env *env, const oq_options *options, oq_model **out); /* resolve and plan */
oq_status oq_model_load(oq_env *env, oq_model *model);
/* Sentence about a component's folder that is missing: its path, its name. */
#define OQ_NO_FOLDER "%s: there is no such folder, which component '%s' is in"
/* Weights and configuration of component i: the model folder's, or of --transformer FILE and the like. *c is the folder's
 * component and may become the file's own. Dummy: no weights. */
oq_status oq_component_open(oq_env *env, oq_model *model, const oq_options *options, bool dummy, size_t i,
                            const oq_module_type *module, const oq_folder_component **c);
/* Refuses a file for a component that the model does not have. */
oq_status oq_component_check_options(oq_env *env, const oq_model *model, const oq_options *options);
/* The wish of --quantization, --quantization-config, --recipe, --ignored-layers and --component; *out NULL: none. `family`
 * has the named recipes; NULL: the model tells no family. */
oq_status oq_quant_request(oq_env *env, const oq_options *options, const oq_pipeline_type *family,
                           const char *const *components, size_t n, oq_quant_config **out);

/* "12GiB", "800M", "8589934592" of an option; OQ_E_ARG names it. */
oq_status oq_size_parse(oq_env *env, const char *option, const char *text, size_t *bytes);

/* The request with every default filled in: flag, else omniq.json, else the family's row. Strings live in `arena`. */
oq_status oq_request_make(oq_env *env, const oq_model *model, const oq_options *options, oq_arena *arena,
                          oq_request *out);
oq_status oq_request_measure(oq_env *env, const oq_model *model, const oq_request *request, size_t *scratch_bytes,
                             size_t *phases /* [OQ_N_PHASES] or NULL */);
/* Do weights and scratch fit into the device's memory? If not, the sentence with the numbers in why[size]. */
bool oq_request_fits(const oq_model *model, const oq_request *request, size_t scratch_bytes, char *why, size_t size);

struct oq_media {
    oq_env   *env;
    int64_t   width, height;
    int       count;
    int64_t   frames; /* of each item; pictures have 1 */
    double    fps; /* pictures: 0 */
    uint64_t *seeds;
    uint8_t  *pixels;
    oq_output timing;
    int       n_steps;
    size_t    scratch_bytes;
    char    **texts; /* of each item two, "parameters" and "omniq"; NULL: oq_media_save writes none */
};
/* One item as the name's ending says (video.h, image.h); texts go where the type has a place for them. */
oq_status oq_media_write(oq_env *env, const oq_media *media, int index, const char *path, const oq_image_text *texts,
                         size_t n_texts);

typedef struct oq_run_hooks { /* for compare --layers and --trace */
    oq_layer_observer observer;
    oq_attention_observer attention_observer;
    void             *observer_user; /* of both */
    oq_trace_sink     trace;
    void             *trace_user;
    void (*preview)(void *user, const oq_preview *preview); /* beside the environment's own; NULL: none */
    void             *preview_user;
} oq_run_hooks;
oq_status oq_generate_request(oq_env *env, const oq_model *model, const oq_request *request, const oq_run_hooks *hooks,
                              oq_media **out);
/* Runs it for what its layers see; an observer that returns OQ_E_CANCELED has seen enough. */
oq_status oq_observe(const oq_model *model, const oq_request *request, oq_layer_observer observer, void *user);
/* A tensor of the model's device to or from host memory, where its rows follow each other in the tensor's type. */
oq_status oq_rows_download(const oq_model *model, oq_tensor rows, void *host);
oq_status oq_rows_upload(const oq_model *model, oq_tensor rows, const void *host);

typedef struct oq_trace oq_trace;
/* --trace: tensors by name, written as one safetensors file. `globs`: comma separated patterns or NULL. */
oq_status oq_trace_new(oq_env *env, const char *globs, oq_trace **out);
oq_status oq_trace_sink_put(void *trace, const char *key, const oq_dtype *dtype, const void *data, const int64_t *shape,
                            int n_dims);
oq_status oq_trace_write(oq_trace *trace, const char *path);
void      oq_trace_free(oq_trace *trace);

#endif
