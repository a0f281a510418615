/* options.h -- parsed option values of one command, from the one table in options_table.c. */
#ifndef OQ_CONFIG_OPTIONS_H
#define OQ_CONFIG_OPTIONS_H

#include "base/env.h"
#include "base/json.h"
#include "base/names.h"

struct oq_options;

extern const char *const oq_option_commands; /* comma separated names of all commands */

typedef struct oq_option_later { /* a name people know from elsewhere, and why it cannot be used now */
    const char *name, *why;
} oq_option_later;
const oq_option_later *oq_option_later_find(const char *name); /* NULL: not one of them */

const char *oq_options_command(const oq_options *o);
bool oq_options_given(const oq_options *o, const char *name);
/* Fallbacks are the callers': the model folder's and the family's defaults come in between. The names must
 * exist. */
const char *oq_options_text(const oq_options *o, const char *name, const char *fallback);
int64_t oq_options_int(const oq_options *o, const char *name, int64_t fallback);
double oq_options_real(const oq_options *o, const char *name, double fallback);
bool oq_options_flag(const oq_options *o, const char *name);
size_t oq_options_count(const oq_options *o, const char *name);               /* LIST: how often */
const char *oq_options_item(const oq_options *o, const char *name, size_t i); /* LIST */
size_t oq_options_n_arguments(const oq_options *o);
const char *oq_options_argument(const oq_options *o, size_t i);
oq_env *oq_options_env(const oq_options *o);
/* Fills options that were not given from a JSON object (omniq.json of a model folder); unknown keys are
 * errors. */
oq_status oq_options_set_defaults(oq_options *o, const oq_json *defaults, const char *source);
/* oq_options_copy for the options of one group ("request", "run"). */
oq_status oq_options_copy_group(const oq_options *from, oq_options *to, const char *group);

/* Every given option by its long name, typed: numbers, booleans, texts, lists. The caller's (oq_json_free).
 */
oq_json *oq_options_to_json(const oq_options *o);

#endif
