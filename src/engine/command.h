/* command.h -- what commands share: small refusals, the report's last lines, outputs of generate. */
#ifndef OQ_ENGINE_COMMAND_H
#define OQ_ENGINE_COMMAND_H

#include "engine/engine.h"

extern const oq_command oq_command_generate, oq_command_plan, oq_command_inspect, oq_command_compare,
    oq_command_quantize, oq_command_dequantize, oq_command_recipe, oq_command_tokenize, oq_command_serve,
    oq_command_bench, oq_command_methods, oq_command_models, oq_command_devices;

/* A command without positional arguments refuses them, naming the flag that was probably meant. */
oq_status oq_command_no_arguments(oq_env *env, const oq_options *options, const char *hint);

/* The report from a JSON value and the text in `text` (deinitialised in any case). */
oq_status oq_report_finish(oq_env *env, oq_json *json, oq_strbuf *text, bool passed, oq_report **out);

/* A seed from the system's random numbers for options that have none (or -1). */
oq_status oq_seed_choose(oq_env *env, oq_options *options);

/* Refuses a path that cannot be written, before the work that would fill it. */
oq_status oq_output_probe(oq_env *env, const char *path);

/* Peak resident memory since the last reset; 0: the system does not tell. */
void oq_peak_memory_reset(void);
size_t oq_peak_memory_bytes(void);

/* ---- options of a run, as its pictures remember them (remembered.c) -------------------------------------- */

bool oq_remembered_never(const char *name); /* says where results go or how this machine works */
bool oq_remembered_reads(const oq_option_info *row, const char *text); /* a file that is read as settings */
/* A file's name without folders that only this machine has: a path below the working folder stays (`bare`: it does not), of
 * others their last part, "org/name" of a model in the Hugging Face cache. The arena's; NULL: no memory. */
const char *oq_remembered_name(oq_arena *arena, const char *path, bool bare);
typedef struct oq_remembering {
    oq_arena *arena;
    const oq_pipeline_type *family;
    bool bare;       /* names as above: for pictures that leave this machine at once */
    oq_json *inputs; /* gets {"image a.png": oq_file_sample_hash}, of each file that an option names */
} oq_remembering;
/* Of `all` (oq_options_to_json) what belongs to the request, or what does not, into the object `out`: names as above, files of
 * settings as their text. */
oq_status oq_remembered_options(const oq_remembering *r, const oq_json *all, bool request, oq_json *out);
/* OQ_E_NOTFOUND: `options` have a file's name from the remembered ones, and no such file is here; names the option to give. */
oq_status oq_remembered_check_files(oq_arena *arena, const char *picture, const oq_json *remembered,
                                    const oq_options *options);

/* ---- metadata of pictures (metadata.c) ----------------------------------------------------------------- */

typedef struct oq_metadata oq_metadata;
/* Everything about a run that its pictures remember (bare: see oq_remembered_name); made after prepare, before load closes the checkpoints.
 */
oq_status oq_metadata_new(oq_env *env, const oq_model *model, const oq_options *options,
                          const oq_request *request, bool bare, oq_metadata **out);
void oq_metadata_free(oq_metadata *metadata);
/* The two texts of picture `index`: "parameters" as other tools read it, "omniq" as JSON; both the caller's.
 */
oq_status oq_metadata_texts(const oq_metadata *metadata, int index, uint64_t seed, char **parameters,
                            char **omniq);
/* Options of the run that made a picture, into `options` where they were not given; warns when the model's
 * files are others now (after prepare: oq_metadata_check). */
oq_status oq_metadata_restore(oq_env *env, const char *path, oq_options *options, oq_json **remembered);
oq_status oq_metadata_check(oq_env *env, const oq_json *remembered, const oq_model *model,
                            const oq_options *options);

#endif
