/* normalizer.c -- the normalizers of this build, by the name that tokenizer.json uses; Sequence becomes a
 * flat list. */
#include "text/normalizer.h"

#include "base/unicode.h"

#include <string.h>

static const struct {
    const char *name;
    oq_normalize_fn run;
} TYPES[] = {
    {"NFC", oq_utf8_nfc},
};

static oq_status parse_component(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                                 oq_normalizer *out)
{
    bool is_there = false;
    OQ_TRY(oq_component_check(env, file, component, "normalizer", &is_there));
    if (!is_there) return OQ_OK;
    const char *type = oq_component_type(component);
    if (strcmp(type, "Sequence") == 0) {
        const oq_json *list = oq_json_get(component, "normalizers");
        for (size_t i = 0; i < oq_json_size(list); i++)
            OQ_TRY(parse_component(env, file, oq_json_at(list, i), out));
        return OQ_OK;
    }
    if (out->n_steps == OQ_NORMALIZER_MAX_STEPS)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: more than %d normalizers", file->path,
                       OQ_NORMALIZER_MAX_STEPS);
    for (size_t i = 0; i < OQ_COUNT(TYPES); i++) {
        if (strcmp(type, TYPES[i].name) != 0) continue;
        out->steps[out->n_steps++] = TYPES[i].run;
        return OQ_OK;
    }
    return oq_component_unsupported(env, file, "normalizer", type);
}

oq_status oq_normalizer_parse(oq_env *env, const oq_tokenizer_file *file, oq_normalizer *out)
{
    *out = (oq_normalizer){0};
    return parse_component(env, file, oq_json_get(file->tree, "normalizer"), out);
}

oq_status oq_normalizer_run(oq_env *env, const oq_normalizer *normalizer, const char *text, size_t n,
                            char **out, size_t *out_n)
{
    char *now = oq_alloc_raw(env, n + 1);
    if (!now) return oq_fail(env, OQ_E_NOMEM, "text to tokenize: no memory for %zu bytes", n);
    if (n) memcpy(now, text, n);
    now[n] = '\0';
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        char *next = NULL;
        size_t next_n = 0;
        const oq_status st = normalizer->steps[i](env, now, n, &next, &next_n);
        oq_free(env, now);
        if (st != OQ_OK) return st;
        now = next;
        n = next_n;
    }
    *out = now;
    *out_n = n;
    return OQ_OK;
}
