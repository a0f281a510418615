/* normalizer.c -- the normalizers of this build, by the name that tokenizer.json uses; Sequence becomes a
 * flat list. */
#include "text/normalizer.h"

#include "base/regex.h"
#include "base/unicode.h"
#include "text/charsmap.h"
#include "text/split_pattern.h"

#include <string.h>

enum { MAX_OUT_BYTES = 64 << 20, MAX_PATTERN_BYTES = 16384 };

typedef oq_status (*normalize_fn)(oq_env *env, const oq_normalize_step *step, const char *text, size_t n,
                                  oq_strbuf *out);

struct oq_normalize_step {
    normalize_fn run;
    oq_status (*form)(oq_env *env, const char *text, size_t n, char **out, size_t *out_n);
    oq_charsmap *map; /* Precompiled */
    oq_regex *regex;  /* Replace: this, */
    char *literal;    /* or this; Prepend: what is put in front */
    char *content;    /* what Replace puts there */
    bool left, right; /* Strip */
};

/* ---- running ------------------------------------------------------------------------------------------- */

static oq_status run_form(oq_env *env, const oq_normalize_step *step, const char *text, size_t n,
                          oq_strbuf *out)
{
    char *formed = NULL;
    size_t formed_n = 0;
    OQ_TRY(step->form(env, text, n, &formed, &formed_n));
    oq_strbuf_add(out, formed, formed_n);
    oq_free(env, formed);
    return OQ_OK;
}

static oq_status run_charsmap(oq_env *env, const oq_normalize_step *step, const char *text, size_t n,
                              oq_strbuf *out)
{
    return oq_charsmap_run(env, step->map, text, n, out);
}

static oq_status run_strip(oq_env *env, const oq_normalize_step *step, const char *text, size_t n,
                           oq_strbuf *out)
{
    (void)env;
    size_t begin = 0, end = n;
    while (step->left && begin < end) {
        const size_t length = oq_utf8_length(text + begin);
        if (!oq_utf8_is_space(text + begin, length)) break;
        begin += length;
    }
    while (step->right && end > begin) {
        size_t last = end - 1;
        while (last > begin && ((unsigned char)text[last] & 0xc0) == 0x80) last--;
        if (!oq_utf8_is_space(text + last, end - last)) break;
        end = last;
    }
    oq_strbuf_add(out, text + begin, end - begin);
    return OQ_OK;
}

static oq_status run_prepend(oq_env *env, const oq_normalize_step *step, const char *text, size_t n,
                             oq_strbuf *out)
{
    (void)env;
    if (n) oq_strbuf_puts(out, step->literal);
    oq_strbuf_add(out, text, n);
    return OQ_OK;
}

typedef struct replacing {
    const oq_normalize_step *step;
    const char *text;
    size_t done;
    oq_strbuf *out;
} replacing;

static bool on_match(void *user, size_t begin, size_t end)
{
    replacing *r = user;
    oq_strbuf_add(r->out, r->text + r->done, begin - r->done);
    oq_strbuf_puts(r->out, r->step->content);
    r->done = end;
    return !r->out->failed && r->out->size <= MAX_OUT_BYTES;
}

static oq_status run_replace(oq_env *env, const oq_normalize_step *step, const char *text, size_t n,
                             oq_strbuf *out)
{
    replacing r = {.step = step, .text = text, .out = out};
    if (step->regex) {
        OQ_TRY(oq_regex_each(env, step->regex, text, n, on_match, &r));
    } else {
        const size_t length = strlen(step->literal);
        for (const char *at = text; (at = memmem(at, n - (size_t)(at - text), step->literal, length));
             at += length)
            if (!on_match(&r, (size_t)(at - text), (size_t)(at - text) + length)) break;
    }
    if (out->size > MAX_OUT_BYTES)
        return oq_fail(env, OQ_E_UNSUPPORTED, "the normalizer makes more than %d bytes of the text",
                       MAX_OUT_BYTES);
    oq_strbuf_add(out, text + r.done, n - r.done);
    return OQ_OK;
}

/* ---- parsing ------------------------------------------------------------------------------------------- */

static oq_status own(oq_env *env, const oq_tokenizer_file *file, const oq_json *value, const char *what,
                     char **out)
{
    const char *text = oq_json_string(value);
    if (!text)
        return oq_fail(env, OQ_E_FORMAT, "%s: %s of the normalizer is %s, a string is needed", file->path,
                       what, oq_json_type_name(value));
    *out = oq_strdup(env, text);
    return *out ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", file->path);
}

static oq_status parse_charsmap(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                                oq_normalize_step *step)
{
    const oq_json *map = oq_json_get(component, "precompiled_charsmap");
    const char *text = oq_json_type(map) == OQ_JSON_NULL ? "" : oq_json_string(map);
    step->run = run_charsmap;
    if (text) return oq_charsmap_new(env, file->path, text, &step->map);
    return oq_fail(env, OQ_E_FORMAT, "%s: 'precompiled_charsmap' is %s, a string is needed", file->path,
                   oq_json_type_name(map));
}

static oq_status parse_strip(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                             oq_normalize_step *step)
{
    step->run = run_strip;
    OQ_TRY(oq_component_flag(env, file, component, "normalizer Strip", "strip_left", true, &step->left));
    return oq_component_flag(env, file, component, "normalizer Strip", "strip_right", true, &step->right);
}

static oq_status parse_prepend(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                               oq_normalize_step *step)
{
    step->run = run_prepend;
    return own(env, file, oq_json_get(component, "prepend"), "'prepend'", &step->literal);
}

static oq_status parse_replace(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                               oq_normalize_step *step)
{
    const oq_json *pattern = oq_json_get(component, "pattern");
    const char *regex = oq_json_string(oq_json_get(pattern, "Regex"));
    step->run = run_replace;
    OQ_TRY(own(env, file, oq_json_get(component, "content"), "'content'", &step->content));
    if (!regex) {
        OQ_TRY(own(env, file, oq_json_get(pattern, "String"), "the pattern", &step->literal));
        if (step->literal[0]) return OQ_OK;
        return oq_fail(env, OQ_E_FORMAT, "%s: the pattern of the normalizer Replace is empty", file->path);
    }
    if (strlen(regex) > MAX_PATTERN_BYTES)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: a pattern of %zu bytes, at most %d are read", file->path,
                       strlen(regex), MAX_PATTERN_BYTES);
    oq_strbuf translated;
    oq_strbuf_init(&translated, env);
    oq_status st = oq_split_pattern(env, file->path, regex, &translated);
    if (st == OQ_OK) st = oq_regex_new(env, oq_strbuf_text(&translated), &step->regex);
    oq_strbuf_deinit(&translated);
    return st;
}

static const struct {
    const char *name;
    oq_status (*form)(oq_env *env, const char *text, size_t n, char **out, size_t *out_n); /* that alone, */
    oq_status (*parse)(oq_env *env, const oq_tokenizer_file *file, const oq_json *component,
                       oq_normalize_step *step); /* or its fields */
} TYPES[] = {
    {"NFC", oq_utf8_nfc, NULL},   {"NFD", oq_utf8_nfd, NULL},         {"NFKC", oq_utf8_nfkc, NULL},
    {"NFKD", oq_utf8_nfkd, NULL}, {"Lowercase", oq_utf8_lower, NULL}, {"Precompiled", NULL, parse_charsmap},
    {"Strip", NULL, parse_strip}, {"Replace", NULL, parse_replace},   {"Prepend", NULL, parse_prepend},
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
        oq_normalize_step *step = &out->steps[out->n_steps++];
        step->run = run_form;
        step->form = TYPES[i].form;
        return TYPES[i].parse ? TYPES[i].parse(env, file, component, step) : OQ_OK;
    }
    return oq_component_unsupported(env, file, "normalizer", type);
}

oq_status oq_normalizer_parse(oq_env *env, const oq_tokenizer_file *file, oq_normalizer *out)
{
    *out = (oq_normalizer){0};
    OQ_TRY(oq_new(env, OQ_NORMALIZER_MAX_STEPS, sizeof *out->steps, "normalizer", &out->steps));
    const oq_status st = parse_component(env, file, oq_json_get(file->tree, "normalizer"), out);
    if (st != OQ_OK) oq_normalizer_deinit(env, out);
    return st;
}

void oq_normalizer_deinit(oq_env *env, oq_normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        oq_charsmap_free(env, normalizer->steps[i].map);
        oq_regex_free(env, normalizer->steps[i].regex);
        oq_free(env, normalizer->steps[i].literal);
        oq_free(env, normalizer->steps[i].content);
    }
    oq_free(env, normalizer->steps);
    *normalizer = (oq_normalizer){0};
}

static oq_status run_step(oq_env *env, const oq_normalize_step *step, char **text, size_t *n)
{
    oq_strbuf out;
    oq_strbuf_init(&out, env);
    oq_status st = step->run(env, step, *text, *n, &out);
    if (st == OQ_OK) st = oq_strbuf_check(&out, "text to tokenize");
    const size_t size = out.size;
    char *next = st == OQ_OK ? oq_strbuf_take(&out) : NULL;
    oq_strbuf_deinit(&out);
    if (st != OQ_OK) return st;
    if (!next) return oq_fail(env, OQ_E_NOMEM, "text to tokenize: no memory");
    oq_free(env, *text);
    *text = next;
    *n = size;
    return OQ_OK;
}

oq_status oq_normalizer_run(oq_env *env, const oq_normalizer *normalizer, const char *text, size_t n,
                            char **out, size_t *out_n)
{
    char *now = oq_alloc_raw(env, n + 1);
    if (!now) return oq_fail(env, OQ_E_NOMEM, "text to tokenize: no memory for %zu bytes", n);
    if (n) memcpy(now, text, n);
    now[n] = '\0';
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        const oq_status st = run_step(env, &normalizer->steps[i], &now, &n);
        if (st == OQ_OK) continue;
        oq_free(env, now);
        return st;
    }
    *out = now;
    *out_n = n;
    return OQ_OK;
}
