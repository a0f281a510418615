/* command_devices.c -- the backends that could be opened here and their devices. */
#include "backend/plugin.h"
#include "engine/backend_list.h"
#include "engine/command.h"

static oq_status put_device(oq_env *env, const oq_backend *b, int index, oq_json *list, oq_strbuf *out)
{
    oq_device *device = NULL;
    oq_device_info info = {.name = ""};
    OQ_TRY(b->open(env, index, NULL, &device));
    b->info(device, &info);
    b->close(env, device);
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "backend", oq_json_new_string(b->name));
    oq_json_set(json, "index", oq_json_new_int(index));
    oq_json_set(json, "name", oq_json_new_string(info.name));
    oq_json_set(json, "detail", oq_json_new_string(info.detail));
    oq_json_set(json, "rates", info.rates[0] ? oq_json_new_string(info.rates) : oq_json_new_null());
    oq_json_set(json, "memory_bytes", oq_json_new_int((int64_t)info.memory_bytes));
    oq_json_append(list, json);
    oq_strbuf_printf(out, "%s", b->name);
    if (b->count() > 1) oq_strbuf_printf(out, ":%d", index);
    oq_strbuf_printf(out, ": %s; %s; ", info.name, info.detail);
    oq_strbuf_put_bytes(out, info.memory_bytes);
    oq_strbuf_printf(out, " memory%s%s\n", info.rates[0] ? "; " : "", info.rates);
    return OQ_OK;
}

static oq_status devices(oq_env *env, oq_options *options, oq_report **out)
{
    oq_strbuf text;
    OQ_TRY(oq_command_no_arguments(env, options, NULL));
    oq_strbuf_init(&text, env);
    oq_json *json = oq_json_new_object(), *list = oq_json_new_array(), *absent = oq_json_new_array();
    oq_status st = OQ_OK;
    for (const oq_backend_row *row = oq_backend_list; st == OQ_OK && row->name; row++) {
        char why[1024] = "no device is present";
        const oq_backend *b = row->built_in ? row->built_in : oq_plugin_open(row->name, why, sizeof why);
        const int n = b ? b->count() : 0;
        for (int i = 0; st == OQ_OK && i < n; i++) st = put_device(env, b, i, list, &text);
        if (n > 0) continue;
        oq_strbuf_printf(&text, "%s: not here: %s\n", row->name, why);
        oq_json *gap = oq_json_new_object();
        oq_json_set(gap, "backend", oq_json_new_string(row->name));
        oq_json_set(gap, "reason", oq_json_new_string(why));
        oq_json_append(absent, gap);
    }
    oq_json_set(json, "devices", list);
    oq_json_set(json, "absent", absent);
    if (st == OQ_OK) return oq_report_finish(env, json, &text, true, out);
    oq_json_free(json);
    oq_strbuf_deinit(&text);
    return st;
}

const oq_command oq_command_devices = {
    .info = {"devices", "", "list the devices found here"},
    .run = devices,
};
