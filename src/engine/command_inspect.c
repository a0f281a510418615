/* command_inspect.c -- what is in a weight file, a component folder or a whole model: tensors, quantization,
 * health, and whether generate would take it (exit code 3: no); or the values of one tensor or layer; or how a picture was
 * made. Loads no model. */
#include "engine/verify.h"

static oq_status verify(oq_inspect *inspect, const oq_options *options)
{
    oq_verify v;
    oq_strbuf text;
    oq_strbuf_init(&text, inspect->env);
    oq_status st = oq_verify_inspected(inspect, oq_options_text(options, "verify-against", NULL), &v);
    if (st == OQ_OK) st = oq_verify_run(&v);
    if (st == OQ_OK) {
        oq_verify_print(&v, oq_options_flag(options, "verbose"), &text);
        inspect->verified = oq_verify_json(&v);
        inspect->verified_text = oq_strbuf_take(&text);
    }
    oq_strbuf_deinit(&text);
    oq_verify_deinit(&v);
    return st;
}

static oq_status run(oq_inspect *inspect, const oq_options *options, oq_report **out)
{
    const char *tensor = oq_options_text(options, "tensor", NULL);
    const char *layer = oq_options_text(options, "layer", NULL);
    const int64_t limit = oq_options_int(options, "limit", 16);
    if (tensor) return oq_inspect_tensor(inspect, tensor, limit, out);
    if (!layer) OQ_TRY(oq_inspect_judge(inspect));
    for (size_t i = 0; i < inspect->n_parts; i++) OQ_TRY(oq_inspect_quant(inspect, &inspect->parts[i]));
    if (layer) return oq_inspect_layer_values(inspect, layer, limit, out);
    if (oq_options_given(options, "verify-against")) OQ_TRY(verify(inspect, options));
    OQ_TRY(oq_inspect_health(inspect));
    return oq_inspect_report(inspect, out);
}

static oq_status picture(oq_env *env, const oq_options *options, oq_report **out)
{
    static const char *const of_weights[] = {"model", "tensor", "layer", "verify-against", "variant"};
    const char *path = oq_options_argument(options, 0);
    for (size_t i = 0; i < OQ_COUNT(of_weights); i++)
        if (oq_options_given(options, of_weights[i]))
            return oq_fail(env, OQ_E_ARG, "--%s is about weights; %s is a picture", of_weights[i], path);
    return oq_inspect_picture(env, path, out);
}

static oq_status command_inspect(oq_env *env, oq_options *options, oq_report **out)
{
    oq_inspect inspect;
    const size_t n = oq_options_n_arguments(options);
    if (n != 1)
        return oq_fail(
            env, OQ_E_ARG,
            "inspect needs one path (a weight file, a component folder, a model or a picture), %zu are given",
            n);
    if (oq_options_given(options, "tensor") && oq_options_given(options, "layer"))
        return oq_fail(env, OQ_E_ARG, "--tensor and --layer exclude each other");
    if (oq_inspect_is_picture(oq_options_argument(options, 0))) return picture(env, options, out);
    oq_status st = oq_inspect_open(env, oq_options_argument(options, 0),
                                   oq_options_text(options, "variant", NULL), &inspect);
    inspect.model = oq_options_text(options, "model", NULL);
    if (st == OQ_OK && inspect.model && inspect.folder)
        st =
            oq_fail(env, OQ_E_ARG, "--model goes with a lone file or component; %s is a model", inspect.path);
    if (st == OQ_OK) st = run(&inspect, options, out);
    oq_inspect_deinit(&inspect);
    return st;
}

const oq_command oq_command_inspect = {
    .info = {"inspect", "PATH [flags]",
             "show what a weight file, a component folder, a model or a picture holds"},
    .run = command_inspect,
};
