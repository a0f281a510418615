/* tokenizer.c -- a tokenizer.json put together: normalizer, added tokens, pre-tokenizer, model,
 * post-processor. A text goes through them in this order: repair, raw tokens, normalize, normalized tokens,
 * cut, encode. */
#include "text/tokenizer.h"

#include "base/unicode.h"
#include "text/added_tokens.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/text_model.h"

#include <string.h>

struct oq_tokenizer {
    oq_normalizer normalizer;
    oq_added_tokens added;
    oq_pre_tokenizer pre;
    oq_post_processor post;
    oq_vocab vocab;
    const oq_text_model_type *model;
    void *model_self;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Old files do not name the model's type: with merges it is BPE. */
static oq_status find_model(oq_env *env, const oq_tokenizer_file *file, const oq_text_model_type **out)
{
    const oq_json *model = oq_json_get(file->tree, "model");
    if (oq_json_type(model) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_FORMAT, "%s: has no model, so it is not a tokenizer", file->path);
    const char *type = oq_json_string(oq_json_get(model, "type"));
    if (!type) type = file->merges ? "BPE" : "?";
    for (size_t i = 0; oq_text_model_list[i]; i++) {
        *out = oq_text_model_list[i];
        if (strcmp(type, (*out)->name) == 0) return OQ_OK;
    }
    return oq_component_unsupported(env, file, "model", type);
}

static oq_status build(oq_env *env, const oq_tokenizer_file *file, oq_tokenizer *t)
{
    const oq_text_model_type *model = NULL;
    if (oq_json_type(file->tree) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_FORMAT, "%s: is %s, an object is needed", file->path,
                       oq_json_type_name(file->tree));
    OQ_TRY(find_model(env, file, &model));
    OQ_TRY(oq_normalizer_parse(env, file, &t->normalizer));
    OQ_TRY(oq_pre_tokenizer_parse(env, file, &t->pre));
    OQ_TRY(oq_new(env, 1, model->self_bytes, "tokenizer", &t->model_self));
    t->model = model;
    const oq_text_model_setup setup = {.file = file, .byte_level = t->pre.byte_level};
    OQ_TRY(model->init(env, &setup, &t->vocab, t->model_self));
    OQ_TRY(oq_added_tokens_parse(env, file, &t->normalizer, &t->vocab, &t->added));
    return oq_post_processor_parse(env, file, &t->vocab, &t->post);
}

/* Frees `file` in any case. */
static oq_status open_file(oq_env *env, oq_tokenizer_file *file, oq_tokenizer **out)
{
    oq_tokenizer *t = NULL;
    oq_status st = oq_new(env, 1, sizeof *t, "tokenizer", &t);
    if (st == OQ_OK) st = build(env, file, t);
    oq_tokenizer_file_deinit(env, file);
    if (st != OQ_OK) {
        oq_tokenizer_close(env, t);
        return st;
    }
    *out = t;
    return OQ_OK;
}

oq_status oq_tokenizer_open(oq_env *env, const char *path, oq_tokenizer **out)
{
    oq_tokenizer_file file;
    *out = NULL;
    OQ_TRY(oq_tokenizer_file_open(env, path, &file));
    return open_file(env, &file, out);
}

oq_status oq_tokenizer_parse(oq_env *env, const char *name, const char *text, size_t n, oq_tokenizer **out)
{
    oq_tokenizer_file file;
    *out = NULL;
    OQ_TRY(oq_tokenizer_file_parse(env, name, text, n, &file));
    return open_file(env, &file, out);
}

void oq_tokenizer_close(oq_env *env, oq_tokenizer *t)
{
    if (!t) return;
    oq_added_tokens_deinit(env, &t->added);
    if (t->model) t->model->deinit(env, t->model_self);
    oq_free(env, t->model_self);
    oq_vocab_deinit(env, &t->vocab);
    oq_normalizer_deinit(env, &t->normalizer);
    oq_pre_tokenizer_deinit(env, &t->pre);
    oq_free(env, t);
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* Plain text, already normalized; at_start: nothing stood before it. */
static oq_status encode_plain(const oq_tokenizer *t, const char *text, size_t n, bool at_start,
                              oq_text_work *work)
{
    if (n == 0) return OQ_OK;
    oq_pieces pieces = {.env = work->env, .n = n, .at_start = at_start};
    pieces.text = oq_alloc_raw(work->env, n + 1);
    if (!pieces.text) return oq_fail(work->env, OQ_E_NOMEM, "text to tokenize: no memory for %zu bytes", n);
    memcpy(pieces.text, text, n);
    oq_status st = oq_pieces_push(&pieces, (oq_piece){.end = n});
    if (st == OQ_OK) st = oq_pre_tokenizer_run(&t->pre, &pieces);
    for (size_t i = 0; st == OQ_OK && i < pieces.count; i++) {
        const oq_piece *p = &pieces.list[i];
        st = t->model->encode(t->model_self, &t->vocab, pieces.text + p->begin, p->end - p->begin, work);
    }
    oq_pieces_deinit(&pieces);
    return st;
}

static oq_status encode_normalized(const oq_tokenizer *t, const char *text, size_t n, bool at_start,
                                   oq_text_work *work)
{
    oq_token_walk walk = {.trie = t->added.normalized, .text = text, .n = n};
    for (oq_token_span span; oq_token_walk_next(&walk, &span);) {
        if (span.id >= 0)
            OQ_TRY(oq_text_work_push(work, span.id));
        else
            OQ_TRY(
                encode_plain(t, text + span.begin, span.end - span.begin, at_start && span.begin == 0, work));
    }
    return OQ_OK;
}

static oq_status encode_span(const oq_tokenizer *t, const char *text, size_t n, bool at_start,
                             oq_text_work *work)
{
    char *normalized = NULL;
    size_t normalized_n = 0;
    OQ_TRY(oq_normalizer_run(work->env, &t->normalizer, text, n, &normalized, &normalized_n));
    const oq_status st = encode_normalized(t, normalized, normalized_n, at_start, work);
    oq_free(work->env, normalized);
    return st;
}

static oq_status encode_repaired(const oq_tokenizer *t, const char *text, size_t n, oq_text_work *work)
{
    oq_token_walk walk = {.trie = t->added.raw, .text = text, .n = n};
    for (oq_token_span span; oq_token_walk_next(&walk, &span);) {
        if (span.id >= 0)
            OQ_TRY(oq_text_work_push(work, span.id));
        else
            OQ_TRY(encode_span(t, text + span.begin, span.end - span.begin, span.begin == 0, work));
    }
    return OQ_OK;
}

static oq_status push_all(oq_text_work *work, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) OQ_TRY(oq_text_work_push(work, ids[i]));
    return OQ_OK;
}

oq_status oq_tokenizer_encode(oq_env *env, const oq_tokenizer *t, const char *text, size_t n,
                              bool add_special, int32_t **ids, size_t *count)
{
    *ids = NULL;
    *count = 0;
    if (n > OQ_TEXT_MAX_BYTES)
        return oq_fail(env, OQ_E_ARG, "a text of %zu bytes, at most %d are tokenized", n, OQ_TEXT_MAX_BYTES);
    size_t repaired_n = 0;
    char *repaired = oq_utf8_repair(env, text, n, &repaired_n);
    if (!repaired) return oq_fail(env, OQ_E_NOMEM, "text to tokenize: no memory for %zu bytes", n);
    oq_text_work work = {.env = env};
    oq_status st = OQ_OK;
    if (add_special) st = push_all(&work, t->post.before, t->post.n_before);
    if (st == OQ_OK) st = encode_repaired(t, repaired, repaired_n, &work);
    if (st == OQ_OK && add_special) st = push_all(&work, t->post.after, t->post.n_after);
    oq_free(env, repaired);
    if (st == OQ_OK && !work.ids) st = oq_new(env, 1, sizeof *work.ids, "token ids", &work.ids);
    if (st == OQ_OK) {
        *ids = work.ids;
        *count = work.n_ids;
        work.ids = NULL;
    }
    oq_text_work_deinit(&work);
    return st;
}

const char *oq_tokenizer_piece(const oq_tokenizer *t, int32_t id)
{
    return oq_vocab_piece(&t->vocab, id, NULL);
}

int32_t oq_tokenizer_find(const oq_tokenizer *t, const char *piece)
{
    return oq_vocab_find(&t->vocab, piece, strlen(piece));
}

size_t oq_tokenizer_size(const oq_tokenizer *t)
{
    return t->vocab.n_ids;
}
