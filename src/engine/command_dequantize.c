/* command_dequantize.c -- any readable quantized weights as plain tensors: names as in the file, a layer's planes replaced
 * by its `.weight`. No network is needed, so parts of models are welcome. */
#include "engine/rewrite.h"

#include <string.h>

static oq_status first_error(const oq_inspect *source, const char *path)
{
    for (size_t i = 0; i < oq_json_size(source->problems); i++) {
        const oq_json *problem = oq_json_at(source->problems, i);
        if (strcmp(oq_json_string(oq_json_get(problem, "severity")), "error") == 0)
            return oq_fail(source->env, OQ_E_FORMAT, "%s: %s", path,
                           oq_json_string(oq_json_get(problem, "message")));
    }
    return OQ_OK;
}

/* What quantization left behind and no layer claims would be lost, or kept without a meaning. */
static oq_status check_claims(const oq_inspect *source, const oq_inspect_part *part)
{
    if (!part->n_unclaimed) return OQ_OK;
    return oq_fail(
        source->env, OQ_E_FORMAT,
        "%s: %zu tensors look quantized but belong to no layer that this build reads, the first is '%s'",
        source->path, part->n_unclaimed, part->unclaimed[0]);
}

static oq_status list_part(oq_inspect *source, const oq_inspect_part *part, const char *single_name,
                           const oq_dtype *as, oq_rewrite *rw)
{
    bool *claimed = NULL;
    OQ_TRY(check_claims(source, part));
    OQ_TRY(oq_rewrite_begin(source->env, &source->arena, part, &oq_container_safetensors, single_name, rw));
    OQ_TRY(oq_arena_new(&source->arena, part->ckpt->n_tensors + 1, sizeof *claimed, "claims", &claimed));
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_ckpt_tensor *bias = part->layers[i].source.bias.tensor;
        OQ_TRY(oq_rewrite_decode(rw, part->layers[i].name, &part->layers[i], as));
        if (bias) claimed[bias - part->ckpt->tensors] = true;
        if (bias && !(part->dialect->harmless && part->dialect->harmless(bias)))
            OQ_TRY(oq_rewrite_bias(rw, &part->layers[i], as));
        for (int plane = 0; plane < OQ_N_PLANES; plane++) {
            const oq_ckpt_tensor *t = part->layers[i].source.plane[plane].tensor;
            if (t) claimed[t - part->ckpt->tensors] = true;
        }
        for (int b = 0; b < OQ_MAX_BESIDE && part->layers[i].source.beside[b]; b++)
            claimed[part->layers[i].source.beside[b] - part->ckpt->tensors] = true;
    }
    for (size_t i = 0; i < part->ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &part->ckpt->tensors[i];
        if (claimed[i] || (part->dialect && part->dialect->harmless && part->dialect->harmless(t))) continue;
        OQ_TRY(oq_rewrite_copy(rw, t->name, t, NULL));
    }
    return OQ_OK;
}

static oq_status write_config(oq_env *env, const oq_folder_component *c, const char *folder)
{
    oq_json *config = oq_json_new_object();
    const oq_json *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    char *text = NULL, *path = oq_path_join(env, folder, "config.json");
    bool ok = path != NULL;
    while (ok && oq_json_next(c->config, &at, &key, &value))
        if (strcmp(key, "quantization_config") != 0) ok = oq_json_set(config, key, oq_json_copy(value));
    oq_status st = ok ? oq_json_dump(env, config, OQ_JSON_INDENT, &text)
                      : oq_fail(env, OQ_E_NOMEM, "%s: no memory for config.json", folder);
    if (st == OQ_OK && c->config) st = oq_file_write_all(env, path, text, strlen(text));
    oq_free(env, text);
    oq_free(env, path);
    oq_json_free(config);
    return st;
}

static oq_status write_part(oq_inspect *source, const oq_inspect_part *part, const char *folder,
                            const char *single_name, const oq_dtype *as, oq_json *out, oq_strbuf *text)
{
    oq_rewrite rw = {0};
    oq_status st = list_part(source, part, single_name, as, &rw);
    if (st == OQ_OK) st = oq_rewrite_write(&rw, folder, NULL);
    if (st == OQ_OK && !single_name) st = write_config(source->env, part->component, folder);
    if (st == OQ_OK && !single_name)
        st = oq_output_copy_files(source->env, part->component->path, folder,
                                  "config.json,hf_quant_config.json,quantization_config.json");
    if (st == OQ_OK) {
        oq_json *o = oq_json_new_object();
        oq_json_set(o, "layers", oq_json_new_int((int64_t)part->n_layers));
        oq_json_set(o, "bytes", oq_json_new_int((int64_t)rw.bytes));
        oq_json_set(out, part->name ? part->name : "weights", o);
        oq_strbuf_printf(text, "%s: %zu layers decoded to %s, ", part->name ? part->name : source->path,
                         part->n_layers, as->label);
        oq_strbuf_put_bytes(text, part->ckpt->bytes);
        oq_strbuf_puts(text, " -> ");
        oq_strbuf_put_bytes(text, rw.bytes);
        oq_strbuf_putc(text, '\n');
    }
    oq_rewrite_end(&rw);
    return st;
}

static oq_status write_model(oq_inspect *source, const char *staged, const oq_dtype *as, oq_json *out,
                             oq_strbuf *text)
{
    OQ_TRY(oq_output_copy_files(source->env, source->folder->path, staged, ""));
    for (size_t i = 0; i < source->n_parts; i++) {
        const oq_inspect_part *part = &source->parts[i];
        if (!part->class_name || !oq_file_is_dir(part->component->path)) continue;
        char *path = oq_path_join(source->env, staged, part->name);
        if (!path) return oq_fail(source->env, OQ_E_NOMEM, "%s: no memory", staged);
        const oq_status st = part->ckpt ? write_part(source, part, path, NULL, as, out, text)
                                        : oq_dir_copy_files(source->env, part->component->path, path);
        oq_free(source->env, path);
        OQ_TRY(st);
    }
    return OQ_OK;
}

static oq_status dequantize(oq_inspect *source, const oq_options *options, const char *path, oq_report **out)
{
    oq_env *env = source->env;
    const char *output = oq_options_text(options, "output", NULL);
    const bool f32 = strcmp(oq_options_text(options, "dtype", "bf16"), "f32") == 0;
    const oq_dtype *as = f32 ? &oq_dtype_f32 : &oq_dtype_bf16;
    oq_output_place place;
    oq_strbuf text;
    if (!output) return oq_fail(env, OQ_E_ARG, "dequantize needs a place for its output: --output PATH");
    if (oq_write_container_of(output) == &oq_container_gguf)
        return oq_fail(env, OQ_E_ARG, "%s: plain weights are written as .safetensors, or into a folder",
                       output);
    for (size_t i = 0; i < source->n_parts; i++) OQ_TRY(oq_inspect_quant(source, &source->parts[i]));
    OQ_TRY(first_error(source, path));
    OQ_TRY(oq_output_begin(env, path, output, oq_options_flag(options, "force"), source->folder != NULL,
                           &place));
    oq_json *json = oq_json_new_object(), *parts = oq_json_new_object();
    oq_strbuf_init(&text, env);
    oq_json_set(json, "output", oq_json_new_string(output));
    oq_status st = source->folder ? write_model(source, place.staged, as, parts, &text)
                                  : write_part(source, &source->parts[0], place.staged,
                                               place.is_file ? oq_path_leaf(output) : NULL, as, parts, &text);
    oq_json_set(json, "components", parts);
    if (st == OQ_OK) st = oq_output_commit(env, &place);
    oq_output_abort(env, &place);
    if (st == OQ_OK) return oq_report_finish(env, json, &text, true, out);
    oq_strbuf_deinit(&text);
    oq_json_free(json);
    return st;
}

static oq_status command_dequantize(oq_env *env, oq_options *options, oq_report **out)
{
    oq_inspect source;
    const size_t n = oq_options_n_arguments(options);
    if (n != 1)
        return oq_fail(
            env, OQ_E_ARG,
            "dequantize needs one source (a model, a component's folder or a weight file), %zu are given", n);
    const char *path = oq_options_argument(options, 0);
    oq_status st = oq_inspect_open(env, path, oq_options_text(options, "variant", NULL), &source);
    if (st == OQ_OK) st = dequantize(&source, options, path, out);
    oq_inspect_deinit(&source);
    return st;
}

const oq_command oq_command_dequantize = {
    .info = {"dequantize", "SOURCE --output PATH [flags]",
             "write quantized weights as plain BF16 or F32 tensors"},
    .run = command_dequantize,
};
