/* quant_attention.h -- runtime attention quantization inside `quantization_config`, in every spelling: a mapping
 * `attention`, and the flat names that people know (`diffusion_kv_cache_dtype`, `kv_cache_skip_steps`, ...). Text to
 * value only: what the options mean is quant/'s business. */
#ifndef OQ_CONFIG_QUANT_ATTENTION_H
#define OQ_CONFIG_QUANT_ATTENTION_H

#include "config/quant_config.h"

/* The options by their one name: dtype, skip_steps, skip_layers, backend, sparsity, start_step, end_step,
 * sparse_skip_layers. */
extern const char *const oq_attention_options[];

/* Takes the attention options that stand in `json` itself into `config`; *rest is the caller's: what stays of it, null when
 * nothing does. Errors are OQ_E_CONFIG. */
oq_status oq_quant_attention_take(oq_env *env, oq_quant_config *config, const oq_json *json, oq_json **rest);
/* The same for the mappings inside `json`, which are components' when it names no method itself. */
oq_status oq_quant_attention_take_inner(oq_env *env, oq_quant_config *config, const oq_json *json, oq_json **rest);

/* Adds options (an object with the names above) for a component, NULL: for all; what was there under the same name is
 * replaced. `options` is read alone. */
oq_status oq_quant_attention_add(oq_env *env, oq_quant_config *config, const char *component,
                                 const oq_json *options);

/* The same for every entry and for all components: what the command line says stands above a configuration. */
oq_status oq_quant_attention_override(oq_env *env, oq_quant_config *config, const oq_json *options);

/* Puts the entries into a value that oq_quant_config_to_json made; takes `json`. NULL: no memory. */
oq_json *oq_quant_attention_join(const oq_quant_config *config, oq_json *json);

/* A component's options: its own over those for all. *out is the caller's object, NULL: none are given. */
oq_status oq_quant_attention_of(oq_env *env, const oq_quant_config *config, const char *component,
                                oq_json **out);

#endif
