/* command_plan.c -- the dry run: every decision of generate, printed, without a weight being read. */
#include "engine/command.h"

static oq_status plan(oq_env *env, oq_options *options, oq_report **out)
{
    oq_model *model = NULL;
    oq_strbuf text;
    OQ_TRY(oq_command_no_arguments(env, options, "the model is given with --model"));
    if (!oq_options_given(options, "model")) return oq_fail(env, OQ_E_ARG, "plan needs a model: --model DIR");
    OQ_TRY(oq_model_prepare(env, options, &model));
    oq_strbuf_init(&text, env);
    oq_status st = model->lacks[0] ? oq_plan_warn(model->plan, "%s", model->lacks) : OQ_OK;
    if (st == OQ_OK) st = oq_plan_print(model->plan, oq_options_flag(options, "verbose"), &text);
    if (st == OQ_OK && model->verified_text) oq_strbuf_printf(&text, "\n%s", model->verified_text);
    oq_json *json = st == OQ_OK ? oq_plan_to_json(model->plan) : NULL;
    if (json && model->verified) oq_json_set(json, "verify", oq_json_ref(model->verified));
    if (st == OQ_OK)
        st = oq_report_finish(env, json, &text, true, out);
    else
        oq_strbuf_deinit(&text);
    oq_model_close(model);
    return st;
}

const oq_command oq_command_plan = {
    .info = {"plan", "-m MODEL [flags]", "show what would run, layer by layer, without loading a weight"},
    .run = plan,
};
