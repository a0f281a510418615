/* charsmap.c -- reads the double-array trie of SentencePiece models. Looked up as Hugging Face's tokenizers do, from
 * whose files it comes: a grapheme of less than 6 bytes as a whole, else character by character, and of the keys that
 * fit the shortest. Every index of the trie is foreign and checked. */
#include "text/charsmap.h"

#include "base/unicode.h"

#include <string.h>

enum { MAX_WHOLE_GRAPHEME = 5, MAX_OUT_BYTES = 64 << 20 };

struct oq_charsmap {
    uint32_t *units; /* 0 and NULL: changes nothing */
    size_t n_units;
    char *texts; /* n_texts bytes and a NUL */
    size_t n_texts;
};

/* ---- reading ------------------------------------------------------------------------------------------- */

static int sextet(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Bytes of base64 text into dst, which has room for 3/4 of its length; false: it is not base64. */
static bool decode_base64(const char *text, uint8_t *dst, size_t *n)
{
    const size_t length = strlen(text);
    uint32_t bits = 0;
    int have = 0;
    *n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '=' && length - i <= 2) break;
        const int six = sextet(text[i]);
        if (six < 0) return false;
        bits = bits << 6 | (uint32_t)six;
        if ((have += 6) < 8) continue;
        have -= 8;
        dst[(*n)++] = (uint8_t)(bits >> have);
    }
    return length % 4 == 0;
}

static uint32_t little_endian(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static oq_status take(oq_env *env, const char *source, const uint8_t *bytes, size_t n, oq_charsmap *map)
{
    const size_t trie = n >= 4 ? little_endian(bytes) : 0;
    if (n < 8 || trie % 4 || trie < 4 || trie > n - 4)
        return oq_fail(env, OQ_E_FORMAT, "%s: a character map of %zu bytes whose trie has %zu", source, n,
                       trie);
    map->n_units = trie / 4;
    map->n_texts = n - 4 - trie;
    OQ_TRY(oq_new(env, map->n_units, sizeof *map->units, "character map", &map->units));
    OQ_TRY(oq_new(env, map->n_texts + 1, 1, "character map", &map->texts));
    for (size_t i = 0; i < map->n_units; i++) map->units[i] = little_endian(bytes + 4 + 4 * i);
    memcpy(map->texts, bytes + 4 + trie, map->n_texts);
    if (oq_utf8_valid(map->texts, map->n_texts)) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "%s: the character map's texts are not UTF-8", source);
}

oq_status oq_charsmap_new(oq_env *env, const char *source, const char *base64, oq_charsmap **out)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *out = NULL;
    oq_charsmap *map = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *map, "character map", &map));
    oq_status st = oq_new(env, strlen(base64) / 4 * 3 + 4, 1, "character map", &bytes);
    if (st == OQ_OK && !decode_base64(base64, bytes, &n))
        st = oq_fail(env, OQ_E_FORMAT, "%s: 'precompiled_charsmap' is not base64", source);
    if (st == OQ_OK && n) st = take(env, source, bytes, n, map);
    oq_free(env, bytes);
    if (st != OQ_OK) {
        oq_charsmap_free(env, map);
        return st;
    }
    *out = map;
    return OQ_OK;
}

void oq_charsmap_free(oq_env *env, oq_charsmap *map)
{
    if (!map) return;
    oq_free(env, map->texts);
    oq_free(env, map->units);
    oq_free(env, map);
}

/* ---- looking up ---------------------------------------------------------------------------------------- */

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The text of the shortest key that `key` begins with; NULL: none. */
static const char *find(const oq_charsmap *map, const char *key, size_t n)
{
    size_t at = 0;
    if (map->n_units == 0) return NULL;
    at ^= offset_of(map->units[0]);
    for (size_t i = 0; i < n && key[i]; i++) {
        const uint8_t byte = (uint8_t)key[i];
        at ^= byte;
        if (at >= map->n_units || (map->units[at] & (1u << 31 | 0xffu)) != byte) return NULL;
        const uint32_t unit = map->units[at];
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1)) continue;
        const size_t text = at < map->n_units ? map->units[at] & ((1u << 31) - 1) : SIZE_MAX;
        return text < map->n_texts && oq_utf8_valid(map->texts + text, strlen(map->texts + text))
                   ? map->texts + text
                   : NULL;
    }
    return NULL;
}

static void put_characters(const oq_charsmap *map, const char *text, size_t n, oq_strbuf *out)
{
    for (size_t i = 0; i < n;) {
        const size_t length = oq_utf8_length(text + i);
        const char *found = find(map, text + i, length);
        if (found)
            oq_strbuf_puts(out, found);
        else
            oq_strbuf_add(out, text + i, length);
        i += length;
    }
}

oq_status oq_charsmap_run(oq_env *env, const oq_charsmap *map, const char *text, size_t n, oq_strbuf *out)
{
    for (size_t i = 0; i < n && !out->failed;) {
        const size_t length = oq_utf8_grapheme(text + i, n - i);
        const char *whole = length <= MAX_WHOLE_GRAPHEME ? find(map, text + i, length) : NULL;
        if (whole)
            oq_strbuf_puts(out, whole);
        else
            put_characters(map, text + i, length, out);
        i += length;
        if (out->size > MAX_OUT_BYTES)
            return oq_fail(env, OQ_E_UNSUPPORTED, "the normalizer makes more than %d bytes of the text",
                           MAX_OUT_BYTES);
    }
    return oq_strbuf_check(out, "text to tokenize");
}
