/* omniq.h -- the manual and the whole public interface of libomniq.
 *
 * Simple first, expert last. One complete loop:
 *
 *     oq_env *env = NULL;
 *     oq_options *o = NULL;
 *     oq_report *r = NULL;
 *     if (oq_env_new(NULL, &env) == OQ_OK && oq_options_new(env, "generate", &o) == OQ_OK &&
 *         oq_options_set(o, "model", "models/toybox") == OQ_OK &&
 *         oq_options_set(o, "prompt", "a small blue star on a white background") == OQ_OK &&
 *         oq_options_set(o, "quantization", "fp8") == OQ_OK && oq_run(o, &r) == OQ_OK)
 *         puts(oq_report_json(r));
 *     else
 *         fprintf(stderr, "%s\n", oq_env_error(env));
 *     oq_report_free(r); oq_options_free(o); oq_env_free(env);
 *
 * Rules that hold everywhere:
 *  - every fallible function returns oq_status; on failure its out-parameters are untouched or NULL and
 *    oq_env_error() is one sentence naming the subject and the numbers;
 *  - every *_free accepts NULL; a string handed out belongs to the object it came from;
 *  - one oq_env serves one thread at a time; only oq_env_cancel() and oq_env_file_lost() may be called from anywhere,
 *    also from a signal handler. Nothing in the library exits, aborts, prints or handles signals.
 */
#ifndef OMNIQ_H
#define OMNIQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define OQ_API
#else
#define OQ_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define OQ_VERSION_MAJOR  0
#define OQ_VERSION_MINOR  1
#define OQ_VERSION_PATCH  0
#define OQ_VERSION_STRING "0.1.0"

/* ---- status -------------------------------------------------------------------------------------------- */

/* X(name, value, text); values are never reused. A wish that is wrong in itself is E_ARG or E_CONFIG, a wish that a
 * checkpoint contradicts E_MISMATCH; files that are damaged or do not fit their own network are E_FORMAT. */
#define OQ_STATUS_MAP(X)                                        \
    X(OK, 0, "ok")                                              \
    X(E_ARG, -1, "invalid argument")                            \
    X(E_NOMEM, -2, "out of memory")                             \
    X(E_IO, -3, "input or output failed")                       \
    X(E_FORMAT, -4, "malformed file")                           \
    X(E_CONFIG, -5, "invalid configuration")                    \
    X(E_MISMATCH, -6, "configuration and checkpoint disagree")  \
    X(E_UNSUPPORTED, -7, "not supported by this build or device") \
    X(E_NOTFOUND, -8, "not found")                              \
    X(E_DEVICE, -9, "device failure")                           \
    X(E_CANCELED, -10, "canceled")                              \
    X(E_NUMERIC, -11, "non-finite values")

typedef enum oq_status {
#define X(name, value, text) OQ_##name = value,
    OQ_STATUS_MAP(X)
#undef X
} oq_status;

OQ_API const char *oq_status_name(oq_status status); /* "E_CONFIG"; "E_UNKNOWN" for a value not in the map */
OQ_API const char *oq_status_text(oq_status status);
OQ_API const char *oq_version(void);

/* ---- environment --------------------------------------------------------------------------------------- */

typedef struct oq_env oq_env;

typedef enum oq_log_level {
    OQ_LOG_RESULT = -1, /* a line of a result that is still being made, such as a measured case */
    OQ_LOG_WARN = 0,
    OQ_LOG_INFO = 1,
    OQ_LOG_DEBUG = 2
} oq_log_level;

/* Progress of one phase ("load", "text", "denoise", "decode", "save"): `done` of `total` units. */
typedef struct oq_progress {
    const char *phase;
    int64_t     done, total;
    double      elapsed_s;
} oq_progress;

typedef struct oq_media oq_media; /* pictures or videos: 8 bit RGB, row-major, interleaved */

/* What a request's pictures would be if the work ended after `step` of `steps`: 'previews' of them are made for a request. */
typedef struct oq_preview {
    const oq_media *media; /* all items; gone when the callback returns */
    int step, steps;
} oq_preview;

/* All members may be zero: malloc, silence, the cores this process may use. */
typedef struct oq_env_params {
    size_t size; /* sizeof(oq_env_params): old callers keep working */
    /* Returns `bytes` bytes aligned to 64, or NULL; `release` gets the same pointer back. Both or neither. */
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *ptr);
    void *alloc_user;
    void (*log)(void *user, oq_log_level level, const char *message); /* one line without line feed */
    void *log_user;
    void (*progress)(void *user, const oq_progress *progress);
    void *progress_user;
    int   n_threads; /* 0: the cores this process may use */
    void (*preview)(void *user, const oq_preview *preview); /* called by the thread that generates */
    void *preview_user;
} oq_env_params;
#define OQ_ENV_PARAMS_INIT {.size = sizeof(oq_env_params)}

/* params may be NULL. Where it fails, `log` gets the sentence that oq_env_error would give. */
OQ_API oq_status   oq_env_new(const oq_env_params *params, oq_env **out);
OQ_API void        oq_env_free(oq_env *env);                              /* last of all: objects point into it */
OQ_API const char *oq_env_error(const oq_env *env);                       /* "" if nothing failed */
OQ_API void        oq_env_clear(oq_env *env);                             /* forgets error and cancellation */
OQ_API void        oq_env_cancel(oq_env *env); /* work stops at its next layer with OQ_E_CANCELED */
/* Weight files are read as mapped memory. One that is written to meanwhile makes the work fail with OQ_E_IO; but where one is cut
 * short, or its disk fails, under the very read, the system raises SIGBUS, which ends a program that has no handler for it. This
 * is for such a handler (sigaction with SA_SIGINFO, si_code BUS_ADRERR), which may call it on any thread: true if `address`
 * (si_addr) lies in a file that `env` has open. Zeros stand in place of the file's rest then, the handler returns, and the work
 * ends with OQ_E_IO and a sentence. false: the signal means something else. tools/cli/main.c has the handler of the command. */
OQ_API bool        oq_env_file_lost(oq_env *env, const void *address);

/* ---- options: one table of rows serves the command line, JSON, the server and the documentation -------- */

typedef enum oq_option_type {
    OQ_OPTION_FLAG,   /* true or false */
    OQ_OPTION_INT,    /* within [min, max] */
    OQ_OPTION_REAL,   /* finite, within [min, max] */
    OQ_OPTION_STRING, /* any text */
    OQ_OPTION_CHOICE, /* one of `choices`, comma separated */
    OQ_OPTION_LIST,   /* a string that may be given several times */
    OQ_OPTION_SPEC    /* a quantization: NAME, JSON, @FILE */
} oq_option_type;

typedef struct oq_option_info {
    const char    *name;      /* "guidance-scale": the flag without dashes; JSON accepts '_' for '-' */
    const char    *aliases;   /* comma separated: "cfg-scale"; one letter is a short flag: "p" */
    oq_option_type type;
    double         min, max;  /* bounds of numbers */
    const char    *choices;   /* OQ_OPTION_CHOICE */
    const char    *fallback;  /* printed default: "the family's", "42"; NULL: none */
    const char    *commands;  /* comma separated commands that take it */
    const char    *group;     /* heading in help: "model", "request", "quantization", "output", "run" */
    const char    *value;     /* placeholder in help: "TEXT"; NULL for flags */
    const char    *help;      /* one sentence */
} oq_option_info;

typedef struct oq_command_info {
    const char *name, *usage, *help; /* "generate", "-m MODEL -p TEXT [flags]", one sentence */
} oq_command_info;

OQ_API const oq_command_info *oq_command_at(size_t index); /* in the order of the help; NULL past the last */
OQ_API const oq_option_info  *oq_option_list(size_t *count);
/* The row that a command knows by this name or alias, read as oq_options_set reads it: case and '_' do not matter. NULL: none. */
OQ_API const oq_option_info  *oq_option_find(const char *command, const char *name);

typedef struct oq_options oq_options;

/* An empty set of options for one command ("generate", "plan", …). Unknown command: OQ_E_ARG, nearest named. */
OQ_API oq_status oq_options_new(oq_env *env, const char *command, oq_options **out);
OQ_API void      oq_options_free(oq_options *options);
/* `name` is an option's name or alias; `value` is its text ("true" for flags). A value replaces the earlier one;
 * LIST options append. OQ_E_ARG names the nearest option or the bound that was missed. */
OQ_API oq_status oq_options_set(oq_options *options, const char *name, const char *value);
/* The same from one JSON object: numbers, booleans, strings, arrays (LIST), objects (SPEC). */
OQ_API oq_status oq_options_set_json(oq_options *options, const char *json);
/* A positional argument ("inspect PATH", "compare A B"). */
OQ_API oq_status oq_options_add_argument(oq_options *options, const char *text);
/* The text that was set last, NULL: not given, or no option of this command. The options'. */
OQ_API const char *oq_options_get(const oq_options *options, const char *name);
/* Every given option of `from` that `to`'s command takes as well: LIST options append, others replace. */
OQ_API oq_status oq_options_copy(const oq_options *from, oq_options *to);

/* ---- reports: what every verb returns ------------------------------------------------------------------ */

typedef struct oq_report oq_report;

OQ_API const char *oq_report_json(const oq_report *report); /* one JSON object, one line */
OQ_API const char *oq_report_text(const oq_report *report); /* the same for people: tables; ends in a line feed */
OQ_API bool        oq_report_passed(const oq_report *report); /* false: a comparison missed its policy */
OQ_API void        oq_report_free(oq_report *report);

/* Runs the options' command from beginning to end and writes its files: the command line in one call. */
OQ_API oq_status oq_run(oq_options *options, oq_report **out);

/* ---- the verbs one by one, for programs that keep a model ---------------------------------------------- */

typedef struct oq_model oq_model; /* plan + packed weights; read-only after opening, shareable between threads */

/* Resolves, plans and loads what `options` (of "generate") name. `env` outlives the model. */
OQ_API oq_status oq_model_open(oq_env *env, const oq_options *options, oq_model **out);
OQ_API void      oq_model_close(oq_model *model);
OQ_API oq_status oq_model_plan(oq_env *env, const oq_model *model, oq_report **out);
OQ_API bool      oq_model_makes_video(const oq_model *model);
/* Whether this build writes what the model makes under a name with this ending: asked before the work. */
OQ_API oq_status oq_model_check_output(oq_env *env, const oq_model *model, const char *path);
/* Generates with the options' request; model and quantization flags in `options` are ignored here. */
OQ_API oq_status oq_generate(oq_env *env, const oq_model *model, const oq_options *options, oq_media **out);

OQ_API int            oq_media_count(const oq_media *media);
OQ_API int64_t        oq_media_width(const oq_media *media);
OQ_API int64_t        oq_media_height(const oq_media *media);
OQ_API int64_t        oq_media_frames(const oq_media *media); /* of each item: 1 for pictures */
OQ_API uint64_t       oq_media_seed(const oq_media *media, int index);
OQ_API const uint8_t *oq_media_pixels(const oq_media *media, int index); /* [frames, height, width, 3] */
OQ_API double         oq_media_fps(const oq_media *media);    /* frames a second; 0 for pictures */
/* As the name's ending says: .png, .jpg, .webp; videos .mp4, .webp, .y4m, a folder of frames where there is none; OQ_E_ARG for
 * others. The file appears whole or not at all, and remembers its run ('generate --from FILE') unless no-metadata was among the options. */
OQ_API oq_status      oq_media_save(oq_env *env, const oq_media *media, int index, const char *path);
OQ_API void           oq_media_free(oq_media *media);

/* ---- comparison ---------------------------------------------------------------------------------------- */

typedef struct oq_metrics { /* on uint8-range values, in double precision; a: reference, b: candidate, d = b - a */
    double mse, rmse, mae, max_abs, l2;
    double relative_l2;       /* l2 / |a|; 0 if both are zero, +inf if only |a| is */
    double cosine_similarity; /* in [-1, 1]; 1 if both are zero, 0 if exactly one is */
    double psnr_db;           /* 20 log10 255 - 10 log10 mse; +inf for equal inputs */
} oq_metrics;

OQ_API void oq_metrics_u8(const uint8_t *a, const uint8_t *b, size_t n, oq_metrics *out);

/* ---- methods registered from outside ------------------------------------------------------------------- */

/* A method of the caller's own: a name and, per layer, the name of a built-in method that treats it (or "none").
 * `choose` sees the layer's full name ("transformer.layers.0.attention.to_qkv") and its sizes; it returns the
 * built-in method's name, or NULL to refuse the layer. */
typedef struct oq_custom_method {
    size_t      size; /* sizeof(oq_custom_method) */
    const char *name;
    const char *(*choose)(void *user, const char *layer, int64_t n, int64_t k);
    void       *user;
} oq_custom_method;
OQ_API oq_status oq_method_register(oq_env *env, const oq_custom_method *method);

#ifdef __cplusplus
}
#endif
#endif
