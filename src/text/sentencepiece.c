/* sentencepiece.c -- the protobuf of a SentencePiece model, field by field; only wire types are known to the reader,
 * every length is checked against what is left. */
#include "text/sentencepiece.h"

#include "base/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct wire { /* one message */
    oq_env *env;
    const char *source;
    const uint8_t *at, *end;
} wire;

typedef struct field {
    uint32_t number;
    uint64_t value;       /* of a varint or of 4 or 8 bytes */
    const uint8_t *bytes; /* of a length-delimited field; NULL: it is a number */
    size_t n;
} field;

static oq_status broken(const wire *w, const char *what)
{
    return oq_fail(w->env, OQ_E_FORMAT, "%s: is not a SentencePiece model: %s", w->source, what);
}

static oq_status read_varint(wire *w, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (w->at == w->end) return broken(w, "a number is cut off");
        const uint8_t byte = *w->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return OQ_OK;
    }
    return broken(w, "a number of more than 64 bits");
}

static oq_status read_fixed(wire *w, int n, uint64_t *out)
{
    if (w->end - w->at < n) return broken(w, "a number is cut off");
    *out = 0;
    for (int i = 0; i < n; i++) *out |= (uint64_t)*w->at++ << (8 * i);
    return OQ_OK;
}

/* The next field; *more false at the end. */
static oq_status next_field(wire *w, field *out, bool *more)
{
    uint64_t key = 0;
    *more = w->at < w->end;
    if (!*more) return OQ_OK;
    OQ_TRY(read_varint(w, &key));
    *out = (field){.number = (uint32_t)(key >> 3)};
    if (key >> 3 == 0 || key >> 3 > UINT32_MAX >> 3) return broken(w, "a field without a number");
    switch (key & 7) {
    case 0:
        return read_varint(w, &out->value);
    case 1:
        return read_fixed(w, 8, &out->value);
    case 5:
        return read_fixed(w, 4, &out->value);
    case 2:
        OQ_TRY(read_varint(w, &out->value));
        if (out->value > (uint64_t)(w->end - w->at)) return broken(w, "a field is longer than the file");
        out->bytes = w->at;
        out->n = (size_t)out->value;
        w->at += out->n;
        return OQ_OK;
    default:
        return broken(w, "a field of an unknown kind");
    }
}

static wire inside(const wire *w, const field *f)
{
    return (wire){.env = w->env, .source = w->source, .at = f->bytes, .end = f->bytes + f->n};
}

/* ---- the model's messages ------------------------------------------------------------------------------ */

enum { TYPE_UNIGRAM = 1, PIECE_NORMAL = 1, PIECE_UNKNOWN = 2, PIECE_CONTROL = 3, PIECE_USER = 4 };

typedef struct spec { /* what the trainer and normalizer messages say */
    uint64_t model_type, add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
    int64_t unk_id, eos_id;
    const uint8_t *charsmap;
    size_t n_charsmap;
} spec;

static oq_status read_trainer(wire w, spec *s)
{
    field f;
    for (bool more = true;;) {
        OQ_TRY(next_field(&w, &f, &more));
        if (!more) return OQ_OK;
        if (f.bytes) continue;
        if (f.number == 3) s->model_type = f.value;
        if (f.number == 40) s->unk_id = (int64_t)f.value;
        if (f.number == 42) s->eos_id = (int64_t)f.value;
    }
}

static oq_status read_normalizer(wire w, spec *s)
{
    field f;
    for (bool more = true;;) {
        OQ_TRY(next_field(&w, &f, &more));
        if (!more) return OQ_OK;
        if (f.number == 2 && f.bytes) s->charsmap = f.bytes, s->n_charsmap = f.n;
        if (f.number == 3 && !f.bytes) s->add_dummy_prefix = f.value;
        if (f.number == 4 && !f.bytes) s->remove_extra_whitespaces = f.value;
        if (f.number == 5 && !f.bytes) s->escape_whitespaces = f.value;
    }
}

typedef struct piece {
    const uint8_t *text;
    size_t n;
    double score;
    uint64_t type;
} piece;

static oq_status read_piece(wire w, piece *out)
{
    field f;
    *out = (piece){.text = (const uint8_t *)"", .type = PIECE_NORMAL};
    for (bool more = true;;) {
        OQ_TRY(next_field(&w, &f, &more));
        if (!more) break;
        if (f.number == 1 && f.bytes) out->text = f.bytes, out->n = f.n;
        if (f.number == 3 && !f.bytes) out->type = f.value;
        if (f.number == 2 && !f.bytes) {
            const uint32_t bits = (uint32_t)f.value;
            float score;
            memcpy(&score, &bits, sizeof score);
            out->score = (double)score;
        }
    }
    if (!oq_utf8_valid((const char *)out->text, out->n)) return broken(&w, "a piece is not UTF-8");
    return isfinite(out->score) ? OQ_OK : broken(&w, "a score is not finite");
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void put_string(oq_strbuf *out, const uint8_t *text, size_t n)
{
    oq_strbuf_putc(out, '"');
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"' || text[i] == '\\') oq_strbuf_putc(out, '\\');
        if (text[i] < 0x20)
            oq_strbuf_printf(out, "\\u%04x", text[i]);
        else
            oq_strbuf_putc(out, (char)text[i]);
    }
    oq_strbuf_putc(out, '"');
}

static void put_base64(oq_strbuf *out, const uint8_t *bytes, size_t n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t left = (uint32_t)(n - i);
        const uint32_t three = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                               (left > 2 ? bytes[i + 2] : 0);
        for (uint32_t k = 0; k < 4; k++)
            oq_strbuf_putc(out, k > left ? '=' : letters[three >> (18 - 6 * k) & 63]);
    }
}

typedef struct listing { /* the parts of the file that grow with its pieces */
    oq_strbuf vocab, added;
    size_t count;
} listing;

static void put_entry(oq_strbuf *list, size_t count, const uint8_t *text, size_t n, double score)
{
    oq_strbuf_puts(list, count ? ",[" : "[");
    put_string(list, text, n);
    oq_strbuf_printf(list, ",%.17g]", score);
}

static void put_added(listing *l, const uint8_t *text, size_t n, bool special)
{
    if (n == 0) return;
    oq_strbuf_printf(&l->added, "%s{\"id\":%zu,\"content\":", l->added.size ? "," : "", l->count);
    put_string(&l->added, text, n);
    oq_strbuf_printf(&l->added, ",\"normalized\":false,\"special\":%s}", special ? "true" : "false");
}

static oq_status list_pieces(wire w, listing *l, spec *s)
{
    field f;
    for (bool more = true;;) {
        OQ_TRY(next_field(&w, &f, &more));
        if (!more) break;
        if (f.number == 2 && f.bytes) OQ_TRY(read_trainer(inside(&w, &f), s));
        if (f.number == 3 && f.bytes) OQ_TRY(read_normalizer(inside(&w, &f), s));
        if (f.number != 1 || !f.bytes) continue;
        piece p;
        OQ_TRY(read_piece(inside(&w, &f), &p));
        put_entry(&l->vocab, l->count, p.text, p.n, p.score);
        if (p.type == PIECE_UNKNOWN && s->unk_id < 0) s->unk_id = (int64_t)l->count;
        if (p.type == PIECE_CONTROL && p.n == 4 && memcmp(p.text, "</s>", 4) == 0)
            s->eos_id = (int64_t)l->count;
        if (p.type >= PIECE_UNKNOWN && p.type <= PIECE_USER) put_added(l, p.text, p.n, p.type != PIECE_USER);
        l->count++;
    }
    return l->count ? OQ_OK : broken(&w, "it holds no pieces");
}

static void list_extra(listing *l, int n_extra)
{
    for (int i = n_extra - 1; i >= 0; i--) {
        char text[32];
        const int n = snprintf(text, sizeof text, "<extra_id_%d>", i);
        put_entry(&l->vocab, l->count, (const uint8_t *)text, (size_t)n, 0);
        put_added(l, (const uint8_t *)text, (size_t)n, true);
        l->count++;
    }
}

static void put_normalizer(oq_strbuf *out, const spec *s)
{
    const char *before = "";
    oq_strbuf_puts(out, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (s->n_charsmap) {
        oq_strbuf_puts(out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        put_base64(out, s->charsmap, s->n_charsmap);
        oq_strbuf_puts(out, "\"}");
        before = ",";
    }
    if (s->remove_extra_whitespaces)
        oq_strbuf_printf(
            out,
            "%s{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true},"
            "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"\xe2\x96\x81\"}",
            before);
    oq_strbuf_puts(out, "]},");
}

static oq_status put_file(const wire *w, const listing *l, const spec *s, oq_strbuf *out)
{
    if (s->model_type != TYPE_UNIGRAM)
        return oq_fail(w->env, OQ_E_UNSUPPORTED,
                       "%s: a SentencePiece model of type %llu, only unigram models (1) are read", w->source,
                       (unsigned long long)s->model_type);
    if (!s->escape_whitespaces)
        return oq_fail(w->env, OQ_E_UNSUPPORTED, "%s: a SentencePiece model that does not escape spaces",
                       w->source);
    oq_strbuf_puts(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    oq_strbuf_puts(out, oq_strbuf_text(&l->added));
    oq_strbuf_puts(out, "],");
    put_normalizer(out, s);
    oq_strbuf_printf(out,
                     "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\","
                     "\"prepend_scheme\":\"%s\"},",
                     s->add_dummy_prefix ? "first" : "never");
    if (s->eos_id >= 0)
        oq_strbuf_printf(out,
                         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                         "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"end\"}}],"
                         "\"special_tokens\":{\"end\":{\"ids\":[%lld]}}},",
                         (long long)s->eos_id);
    oq_strbuf_printf(out, "\"model\":{\"type\":\"Unigram\",\"unk_id\":");
    if (s->unk_id >= 0)
        oq_strbuf_printf(out, "%lld", (long long)s->unk_id);
    else
        oq_strbuf_puts(out, "null");
    oq_strbuf_puts(out, ",\"vocab\":[");
    oq_strbuf_add(out, oq_strbuf_text(&l->vocab), l->vocab.size);
    oq_strbuf_puts(out, "]}}");
    OQ_TRY(oq_strbuf_check(&l->vocab, w->source));
    OQ_TRY(oq_strbuf_check(&l->added, w->source));
    return oq_strbuf_check(out, w->source);
}

oq_status oq_sentencepiece_to_json(oq_env *env, const char *source, const uint8_t *bytes, size_t n,
                                   int n_extra, oq_strbuf *out)
{
    const wire w = {.env = env, .source = source, .at = bytes, .end = bytes + n};
    /* Fields that are absent have these values; T5's end token is found by its spelling. */
    spec s = {.model_type = TYPE_UNIGRAM,
              .add_dummy_prefix = 1,
              .remove_extra_whitespaces = 1,
              .escape_whitespaces = 1,
              .unk_id = -1,
              .eos_id = -1};
    listing l = {.count = 0};
    oq_strbuf_init(&l.vocab, env);
    oq_strbuf_init(&l.added, env);
    oq_status st = list_pieces(w, &l, &s);
    if (st == OQ_OK) {
        list_extra(&l, n_extra);
        st = put_file(&w, &l, &s, out);
    }
    oq_strbuf_deinit(&l.added);
    oq_strbuf_deinit(&l.vocab);
    return st;
}
