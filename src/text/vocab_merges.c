/* vocab_merges.c -- vocab.json and merges.txt, the older pair of files of a BPE tokenizer, written as the
 * tokenizer.json that they stand for. What a tokenizer.json says beside them is the class's: CLIP's words end in
 * "</w>" and are in lower case, Qwen2's are cut by its published pattern. */
#include "text/sentencepiece.h"

#include <stdio.h>
#include <string.h>

static void put_string(oq_strbuf *out, const char *text, size_t n)
{
    oq_strbuf_putc(out, '"');
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"' || text[i] == '\\') oq_strbuf_putc(out, '\\');
        if ((unsigned char)text[i] < 0x20)
            oq_strbuf_printf(out, "\\u%04x", (unsigned char)text[i]);
        else
            oq_strbuf_putc(out, text[i]);
    }
    oq_strbuf_putc(out, '"');
}

/* Lines "a b"; the first may be a comment that tells the version. */
static void put_merges(oq_strbuf *out, const char *merges)
{
    bool is_first = true;
    oq_strbuf_putc(out, '[');
    for (const char *line = merges; *line;) {
        const size_t whole = strcspn(line, "\n");
        const size_t n = whole && line[whole - 1] == '\r' ? whole - 1 : whole;
        const bool is_header = line == merges && strncmp(line, "#version", 8) == 0;
        if (n && !is_header) {
            if (!is_first) oq_strbuf_putc(out, ',');
            put_string(out, line, n);
            is_first = false;
        }
        line += whole + (line[whole] == '\n');
    }
    oq_strbuf_putc(out, ']');
}

static void put_added(oq_strbuf *out, const char *id, size_t id_n, const char *content, const oq_json *entry)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    if (out->text[out->size - 1] != '[') oq_strbuf_putc(out, ',');
    oq_strbuf_printf(out, "{\"id\":%.*s,\"content\":", (int)id_n, id);
    put_string(out, content, strlen(content));
    for (size_t i = 0; i < OQ_COUNT(flags); i++)
        oq_strbuf_printf(out, ",\"%s\":%s", flags[i],
                         oq_json_bool(oq_json_get(entry, flags[i]), false) ? "true" : "false");
    oq_strbuf_printf(out, ",\"special\":%s}",
                     oq_json_bool(oq_json_get(entry, "special"), true) ? "true" : "false");
}

/* added_tokens_decoder: {"151643": {"content": …, flags}}. */
static void put_added_tokens(oq_strbuf *out, const oq_json *config)
{
    const oq_json *list = oq_json_get(config, "added_tokens_decoder");
    for (size_t i = 0; i < oq_json_size(list); i++) {
        const char *id = NULL;
        const oq_json *entry = oq_json_member(list, i, &id);
        const char *content = oq_json_string(oq_json_get(entry, "content"));
        if (content && id && id[0] && strspn(id, "0123456789") == strlen(id))
            put_added(out, id, strlen(id), content, entry);
    }
}

/* The id that `vocab`, a JSON object's text, gives to a spelling without escapes; 0 digits: none. */
static const char *id_in_vocab(const char *vocab, const char *spelling, size_t *n)
{
    char key[64];
    *n = 0;
    snprintf(key, sizeof key, "\"%s\"", spelling);
    const char *at = strstr(vocab, key);
    if (!at) return "";
    at += strlen(key);
    at += strspn(at, " \t\r\n:");
    *n = strspn(at, "0123456789");
    return at;
}

static void put_clip(oq_strbuf *out, const char *start, size_t start_n, const char *end, size_t end_n)
{
    put_added(out, start, start_n, "<|startoftext|>", NULL);
    put_added(out, end, end_n, "<|endoftext|>", NULL);
    oq_strbuf_puts(
        out, "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
             "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"content\":\" \"},"
             "{\"type\":\"Lowercase\"}]},"
             "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
             "\"pattern\":{\"Regex\":\"<\\\\|startoftext\\\\|>|<\\\\|endoftext\\\\|>|'s|'t|'re|'ve|'m|'ll|'d|"
             "[\\\\p{L}]+|[\\\\p{N}]|[^\\\\s\\\\p{L}\\\\p{N}]+\"},"
             "\"behavior\":\"Removed\",\"invert\":true},"
             "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]},");
    oq_strbuf_printf(out,
                     "\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"<|endoftext|>\",%.*s],"
                     "\"cls\":[\"<|startoftext|>\",%.*s]},",
                     (int)end_n, end, (int)start_n, start);
    oq_strbuf_puts(
        out, "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<|endoftext|>\",\"end_of_word_suffix\":\"</w>\"");
}

static void put_qwen2(oq_strbuf *out, const oq_json *config)
{
    put_added_tokens(out, config);
    oq_strbuf_puts(
        out,
        "],\"normalizer\":{\"type\":\"NFC\"},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
        "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        "\"behavior\":\"Isolated\",\"invert\":false},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
        "\"model\":{\"type\":\"BPE\"");
}

oq_status oq_vocab_merges_to_json(oq_env *env, const char *source, const char *vocab, const char *merges,
                                  const oq_json *config, oq_strbuf *out)
{
    size_t start_n = 0, end_n = 0;
    const char *start = id_in_vocab(vocab, "<|startoftext|>", &start_n);
    const char *end = id_in_vocab(vocab, "<|endoftext|>", &end_n);
    const char *class_name = oq_json_string(oq_json_get(config, "tokenizer_class"));
    const bool is_clip = start_n && end_n && strstr(vocab, "</w>\"");
    const bool is_qwen2 = class_name && strncmp(class_name, "Qwen2Tokenizer", 14) == 0;
    if (!is_clip && !is_qwen2)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "%s: vocab.json and merges.txt of neither CLIP nor Qwen2: a tokenizer.json is needed",
                       source);
    oq_strbuf_puts(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    if (is_clip)
        put_clip(out, start, start_n, end, end_n);
    else
        put_qwen2(out, config);
    oq_strbuf_puts(out, ",\"vocab\":");
    oq_strbuf_puts(out, vocab);
    oq_strbuf_puts(out, ",\"merges\":");
    put_merges(out, merges);
    oq_strbuf_puts(out, "}}");
    return oq_strbuf_check(out, source);
}
