/* report.c -- what a verb returns: one JSON value and the same as text for people. */
#include "engine/engine.h"

#include <string.h>

/* An object is one line; a list (benchmarks) is one line per element. */
static oq_status dump_lines(oq_env *env, const oq_json *json, char **out)
{
    if (oq_json_type(json) != OQ_JSON_ARRAY) return oq_json_dump(env, json, OQ_JSON_COMPACT, out);
    oq_strbuf buf;
    oq_status st = OQ_OK;
    oq_strbuf_init(&buf, env);
    for (size_t i = 0; st == OQ_OK && i < oq_json_size(json); i++) {
        char *line = NULL;
        st = oq_json_dump(env, oq_json_at(json, i), OQ_JSON_COMPACT, &line);
        if (i) oq_strbuf_putc(&buf, '\n');
        if (line) oq_strbuf_puts(&buf, line);
        oq_free(env, line);
    }
    if (st == OQ_OK) oq_strbuf_puts(&buf, "");
    if (st == OQ_OK) st = oq_strbuf_check(&buf, "report");
    *out = st == OQ_OK ? oq_strdup(env, oq_strbuf_text(&buf)) : NULL;
    oq_strbuf_deinit(&buf);
    return st == OQ_OK && !*out ? oq_fail(env, OQ_E_NOMEM, "report: no memory") : st;
}

oq_status oq_report_new(oq_env *env, oq_json *json, char *text, bool passed, oq_report **out)
{
    oq_report *r = NULL;
    *out = NULL;
    oq_status st = json && text ? oq_new(env, 1, sizeof *r, "report", &r)
                                : oq_fail(env, OQ_E_NOMEM, "report: no memory");
    if (st != OQ_OK) {
        oq_json_free(json);
        oq_free(env, text);
        return st;
    }
    *r = (oq_report){.env = env, .json = json, .text = text, .passed = passed};
    st = dump_lines(env, json, &r->json_text);
    if (st != OQ_OK) {
        oq_report_free(r);
        return st;
    }
    *out = r;
    return OQ_OK;
}

const char *oq_report_json(const oq_report *r)
{
    return r ? r->json_text : "{}";
}

const char *oq_report_text(const oq_report *r)
{
    return r ? r->text : "";
}

bool oq_report_passed(const oq_report *r)
{
    return r && r->passed;
}

void oq_report_free(oq_report *r)
{
    if (!r) return;
    oq_json_free(r->json);
    oq_free(r->env, r->json_text);
    oq_free(r->env, r->text);
    oq_free(r->env, r);
}
