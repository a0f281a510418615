/* command_tokenize.c -- the ids and pieces of texts, as the model's text encoder gets them.
 * Texts come from -p or from standard input: one text, or with --jsonl a JSON string on each line. */
#include "engine/command.h"

#include "text/json_scan.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_INPUT_BYTES = 256 << 20 };

typedef struct tokenize {
    oq_env *env;
    const oq_options *options;
    oq_tokenizer *tokenizer;
    const char *before, *after; /* the template; "" without one */
    bool jsonl;
    size_t n_texts;
    oq_json *texts, *last; /* list of {"ids","pieces"} or, with jsonl, of lists of ids; its last */
    oq_strbuf text;        /* the report */
} tokenize;

/* ---- which tokenizer ----------------------------------------------------------------------------------- */

static oq_status open_of_model(tokenize *t, const char *model)
{
    oq_folder *folder = NULL;
    OQ_TRY(oq_folder_open(t->env, model, &folder));
    const oq_folder_component *c = oq_folder_find(folder, "tokenizer");
    const oq_pipeline_type *pipeline = oq_pipeline_find(folder->class_name);
    oq_status st = OQ_OK;
    if (!c || !c->path)
        st = oq_fail(t->env, OQ_E_NOTFOUND, "%s: its model_index.json names no tokenizer", model);
    else if (oq_options_flag(t->options, "template") && !pipeline)
        st = oq_fail(t->env, OQ_E_UNSUPPORTED, "%s: the template of '%s' is not known", model,
                     folder->class_name);
    else
        st = oq_tokenizer_open(t->env, c->path, &t->tokenizer);
    if (st == OQ_OK && oq_options_flag(t->options, "template")) {
        t->before = pipeline->prompt_before ? pipeline->prompt_before : "";
        t->after = pipeline->prompt_after ? pipeline->prompt_after : "";
    }
    oq_folder_close(folder);
    return st;
}

static oq_status open_tokenizer(tokenize *t)
{
    const char *model = oq_options_text(t->options, "model", NULL);
    const char *path = oq_options_text(t->options, "tokenizer", NULL);
    if (!model && !path) return oq_fail(t->env, OQ_E_ARG, "tokenize needs --model DIR or --tokenizer PATH");
    if (model && path) return oq_fail(t->env, OQ_E_ARG, "tokenize takes --model or --tokenizer, not both");
    if (model) return open_of_model(t, model);
    if (oq_options_flag(t->options, "template"))
        return oq_fail(t->env, OQ_E_ARG, "--template needs --model DIR: a tokenizer alone has no pipeline");
    return oq_tokenizer_open(t->env, path, &t->tokenizer);
}

/* ---- one text ------------------------------------------------------------------------------------------ */

static oq_json *ids_json(const int32_t *ids, size_t n)
{
    oq_json *list = oq_json_new_array();
    for (size_t i = 0; i < n; i++) oq_json_append(list, oq_json_new_int(ids[i]));
    return list;
}

static void put_line(tokenize *t, const int32_t *ids, size_t n)
{
    oq_strbuf_putc(&t->text, '[');
    for (size_t i = 0; i < n; i++) oq_strbuf_printf(&t->text, i ? ", %d" : "%d", ids[i]);
    oq_strbuf_puts(&t->text, "]\n");
    oq_json_append(t->texts, ids_json(ids, n));
}

static void put_table(tokenize *t, const int32_t *ids, size_t n)
{
    oq_json *entry = oq_json_new_object(), *pieces = oq_json_new_array();
    if (t->n_texts) oq_strbuf_putc(&t->text, '\n');
    for (size_t i = 0; i < n; i++) {
        const char *piece = oq_tokenizer_piece(t->tokenizer, ids[i]);
        oq_json_append(pieces, oq_json_new_string(piece ? piece : ""));
        oq_strbuf_printf(&t->text, "%8d  %s\n", ids[i], piece ? piece : "");
    }
    oq_strbuf_printf(&t->text, "%zu token%s\n", n, n == 1 ? "" : "s");
    oq_json_set(entry, "ids", ids_json(ids, n));
    oq_json_set(entry, "pieces", pieces);
    oq_json_append(t->texts, oq_json_ref(entry));
    oq_json_free(t->last);
    t->last = entry;
}

static oq_status add_text(tokenize *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    size_t count = 0;
    oq_strbuf whole;
    oq_strbuf_init(&whole, t->env);
    oq_strbuf_puts(&whole, t->before);
    oq_strbuf_add(&whole, text, n);
    oq_strbuf_puts(&whole, t->after);
    oq_status st = oq_check_canceled(t->env);
    if (st == OQ_OK) st = oq_strbuf_check(&whole, "text to tokenize");
    if (st == OQ_OK)
        st =
            oq_tokenizer_encode(t->env, t->tokenizer, oq_strbuf_text(&whole), whole.size, true, &ids, &count);
    oq_strbuf_deinit(&whole);
    if (st != OQ_OK) return st;
    if (t->jsonl)
        put_line(t, ids, count);
    else
        put_table(t, ids, count);
    t->n_texts++;
    oq_free(t->env, ids);
    return OQ_OK;
}

/* ---- standard input ------------------------------------------------------------------------------------ */

static oq_status read_input(oq_env *env, oq_strbuf *out)
{
    char block[65536];
    for (;;) {
        const ssize_t got = read(STDIN_FILENO, block, sizeof block);
        OQ_TRY(oq_check_canceled(env));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return oq_fail(env, OQ_E_IO, "standard input cannot be read: %s", strerror(errno));
        if (got == 0) return oq_strbuf_check(out, "standard input");
        oq_strbuf_add(out, block, (size_t)got);
        if (out->size > MAX_INPUT_BYTES)
            return oq_fail(env, OQ_E_ARG, "standard input has more than %d bytes", MAX_INPUT_BYTES);
    }
}

/* One line: a JSON string and nothing else. */
static oq_status add_line(tokenize *t, const char *line, size_t n, size_t number)
{
    char source[48];
    const char *text = NULL;
    size_t text_n = 0;
    snprintf(source, sizeof source, "standard input, line %zu", number);
    oq_json_scan scan;
    oq_json_scan_init(&scan, t->env, source, line, n);
    oq_status st = oq_json_scan_string(&scan, &text, &text_n);
    if (st == OQ_OK && oq_json_scan_peek(&scan))
        st = oq_fail(t->env, OQ_E_FORMAT, "%s: text behind the string at byte %zu", source, scan.at);
    if (st == OQ_OK) st = add_text(t, text, text_n);
    oq_json_scan_deinit(&scan);
    return st;
}

static oq_status add_lines(tokenize *t, const char *text, size_t n)
{
    size_t number = 1;
    for (size_t at = 0; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t length = end ? (size_t)(end - text) - at : n - at;
        OQ_TRY(add_line(t, text + at, length, number));
        at += length + 1;
    }
    return OQ_OK;
}

static oq_status add_input(tokenize *t)
{
    oq_strbuf input;
    oq_strbuf_init(&input, t->env);
    oq_status st = read_input(t->env, &input);
    if (st == OQ_OK && t->jsonl)
        st = add_lines(t, oq_strbuf_text(&input), input.size);
    else if (st == OQ_OK)
        st = add_text(t, oq_strbuf_text(&input), input.size);
    oq_strbuf_deinit(&input);
    return st;
}

/* ---- command ------------------------------------------------------------------------------------------- */

static oq_status add_texts(tokenize *t)
{
    const size_t n = oq_options_count(t->options, "prompt");
    if (n == 0) return add_input(t);
    for (size_t i = 0; i < n; i++) {
        const char *text = oq_options_item(t->options, "prompt", i);
        OQ_TRY(add_text(t, text, strlen(text)));
    }
    return OQ_OK;
}

static oq_status finish(tokenize *t, oq_report **out)
{
    oq_json *json = oq_json_new_object();
    if (t->n_texts == 1 && t->last) { /* the common case without an index */
        oq_json_set(json, "ids", oq_json_ref(oq_json_get(t->last, "ids")));
        oq_json_set(json, "pieces", oq_json_ref(oq_json_get(t->last, "pieces")));
    }
    oq_json_set(json, "texts", oq_json_ref(t->texts));
    return oq_report_finish(t->env, json, &t->text, true, out);
}

static oq_status run(oq_env *env, oq_options *options, oq_report **out)
{
    tokenize t = {.env = env, .options = options, .before = "", .after = "", .texts = oq_json_new_array()};
    t.jsonl = oq_options_flag(options, "jsonl");
    oq_strbuf_init(&t.text, env);
    oq_status st = oq_command_no_arguments(env, options, "a text is given by -p TEXT");
    if (st == OQ_OK) st = open_tokenizer(&t);
    if (st == OQ_OK) st = add_texts(&t);
    if (st == OQ_OK)
        st = finish(&t, out);
    else
        oq_strbuf_deinit(&t.text);
    oq_tokenizer_close(env, t.tokenizer);
    oq_json_free(t.last);
    oq_json_free(t.texts);
    return st;
}

const oq_command oq_command_tokenize = {
    .info = {"tokenize", "-m DIR | --tokenizer PATH [-p TEXT] [--template] [--jsonl]",
             "turn texts into the ids and pieces of a tokenizer"},
    .run = run,
};
