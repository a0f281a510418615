/* post_processor.c -- TemplateProcessing and its two older forms for one text; ByteLevel only moves offsets, which nobody asks for
 * here. */
#include "text/post_processor.h"

#include <string.h>

static oq_status fail_template(oq_env *env, const oq_tokenizer_file *file, const char *what)
{
    return oq_fail(env, OQ_E_FORMAT, "%s: the post-processor TemplateProcessing %s", file->path, what);
}

static oq_status put_ids(oq_env *env, const oq_tokenizer_file *file, const oq_vocab *vocab,
                         const oq_json *ids, int32_t *dst, size_t *n)
{
    for (size_t i = 0; i < oq_json_size(ids); i++) {
        const int64_t id = oq_json_int(oq_json_at(ids, i), -1);
        if (!oq_vocab_piece(vocab, id, NULL))
            return fail_template(env, file, "adds an id that the vocabulary lacks");
        if (*n == OQ_POST_MAX_IDS) return fail_template(env, file, "adds more than 64 ids on one side");
        dst[(*n)++] = (int32_t)id;
    }
    return OQ_OK;
}

static oq_status parse_template(oq_env *env, const oq_tokenizer_file *file, const oq_vocab *vocab,
                                const oq_json *component, oq_post_processor *out)
{
    const oq_json *single = oq_json_get(component, "single"),
                  *known = oq_json_get(component, "special_tokens");
    if (oq_json_type(single) != OQ_JSON_ARRAY) return fail_template(env, file, "has no list 'single'");
    bool seen_text = false;
    for (size_t i = 0; i < oq_json_size(single); i++) {
        const oq_json *item = oq_json_at(single, i), *token = oq_json_get(item, "SpecialToken");
        const char *name = oq_json_string(oq_json_get(token, "id"));
        const char *sequence = oq_json_string(oq_json_get(oq_json_get(item, "Sequence"), "id"));
        if (sequence && strcmp(sequence, "A") == 0 && !seen_text) {
            seen_text = true;
            continue;
        }
        const oq_json *ids = name ? oq_json_get(oq_json_get(known, name), "ids") : NULL;
        if (oq_json_type(ids) != OQ_JSON_ARRAY)
            return fail_template(env, file, "holds an item that is neither the text nor a known token");
        if (seen_text)
            OQ_TRY(put_ids(env, file, vocab, ids, out->after, &out->n_after));
        else
            OQ_TRY(put_ids(env, file, vocab, ids, out->before, &out->n_before));
    }
    return seen_text ? OQ_OK : fail_template(env, file, "leaves the text out");
}

/* RobertaProcessing, BertProcessing: "cls" before the text, "sep" behind it, each a spelling and an id. */
static oq_status parse_pair(oq_env *env, const oq_tokenizer_file *file, const oq_vocab *vocab,
                            const oq_json *component, const char *type, oq_post_processor *out)
{
    static const char *const keys[] = {"cls", "sep"};
    int32_t *const ids[] = {out->before, out->after};
    for (int i = 0; i < 2; i++) {
        const oq_json *id = oq_json_at(oq_json_get(component, keys[i]), 1);
        if (!oq_json_is_int(id) || !oq_vocab_piece(vocab, oq_json_int(id, -1), NULL))
            return oq_fail(env, OQ_E_FORMAT,
                           "%s: '%s' of the post-processor %s names no id of the vocabulary", file->path,
                           keys[i], type);
        ids[i][0] = (int32_t)oq_json_int(id, -1);
    }
    out->n_before = out->n_after = 1;
    return OQ_OK;
}

static oq_status parse_component(oq_env *env, const oq_tokenizer_file *file, const oq_vocab *vocab,
                                 const oq_json *component, oq_post_processor *out)
{
    bool is_there = false;
    OQ_TRY(oq_component_check(env, file, component, "post-processor", &is_there));
    if (!is_there) return OQ_OK;
    const char *type = oq_component_type(component);
    if (strcmp(type, "ByteLevel") == 0) return OQ_OK;
    const bool is_first = out->n_before + out->n_after == 0;
    if (strcmp(type, "TemplateProcessing") == 0 && is_first)
        return parse_template(env, file, vocab, component, out);
    if ((strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) && is_first)
        return parse_pair(env, file, vocab, component, type, out);
    if (strcmp(type, "Sequence") != 0) return oq_component_unsupported(env, file, "post-processor", type);
    const oq_json *list = oq_json_get(component, "processors");
    for (size_t i = 0; i < oq_json_size(list); i++)
        OQ_TRY(parse_component(env, file, vocab, oq_json_at(list, i), out));
    return OQ_OK;
}

oq_status oq_post_processor_parse(oq_env *env, const oq_tokenizer_file *file, const oq_vocab *vocab,
                                  oq_post_processor *out)
{
    *out = (oq_post_processor){0};
    return parse_component(env, file, vocab, oq_json_get(file->tree, "post_processor"), out);
}
