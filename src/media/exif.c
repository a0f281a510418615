/* exif.c -- EXIF blocks: written with two texts, read with every offset checked. */
#include "media/exif.h"

#include "base/unicode.h"

#include <string.h>

enum { TAG_DESCRIPTION = 0x010e, TAG_ORIENTATION = 0x0112, TAG_EXIF = 0x8769, TAG_COMMENT = 0x9286 };
enum { TYPE_ASCII = 2, TYPE_SHORT = 3, TYPE_LONG = 4, TYPE_UNDEFINED = 7, ENTRY_BYTES = 12 };

/* ---- writing (big-endian) ------------------------------------------------------------------------------ */

static void put16(oq_strbuf *out, unsigned x)
{
    oq_strbuf_putc(out, (char)(x >> 8 & 255));
    oq_strbuf_putc(out, (char)(x & 255));
}

static void put32(oq_strbuf *out, uint32_t x)
{
    put16(out, x >> 16);
    put16(out, x & 0xffff);
}

static void put_entry(oq_strbuf *out, unsigned tag, unsigned type, uint32_t count, uint32_t value)
{
    put16(out, tag);
    put16(out, type);
    put32(out, count);
    put32(out, value);
}

static uint32_t codepoint_at(const char *at, size_t *length)
{
    const uint8_t *b = (const uint8_t *)at;
    const size_t n = *length = oq_utf8_length(at);
    uint32_t c = n == 1 ? b[0] : b[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (b[i] & 0x3f);
    return c;
}

/* "UNICODE\0" and UTF-16, big-endian. */
static void put_comment(oq_strbuf *out, const char *text)
{
    oq_strbuf_add(out, "UNICODE", 8);
    for (size_t n; *text; text += n) {
        const uint32_t c = codepoint_at(text, &n);
        if (c >= 0x10000) put16(out, 0xd800 + ((c - 0x10000) >> 10));
        put16(out, c >= 0x10000 ? 0xdc00 + ((c - 0x10000) & 0x3ff) : c);
    }
}

static const char *text_of(const oq_image_text *texts, size_t n_texts, const char *key)
{
    for (size_t i = 0; i < n_texts; i++)
        if (strcmp(texts[i].key, key) == 0) return texts[i].text;
    return "";
}

oq_status oq_exif_make(oq_env *env, const oq_image_text *texts, size_t n_texts, oq_strbuf *out)
{
    enum {
        IFD0 = 8,
        IFD0_BYTES = 2 + 2 * ENTRY_BYTES + 4,
        SUB = IFD0 + IFD0_BYTES,
        SUB_BYTES = 2 + ENTRY_BYTES + 4
    };
    oq_strbuf comment;
    size_t n = 0;
    char *own =
        oq_utf8_repair(env, text_of(texts, n_texts, "omniq"), strlen(text_of(texts, n_texts, "omniq")), &n);
    char *words = oq_utf8_repair(env, text_of(texts, n_texts, "parameters"),
                                 strlen(text_of(texts, n_texts, "parameters")), &n);
    oq_strbuf_init(&comment, env);
    if (words) put_comment(&comment, words);
    const uint32_t own_n = own ? (uint32_t)strlen(own) + 1 : 1, at = SUB + SUB_BYTES;
    oq_strbuf_add(out, "MM\0*", 4);
    put32(out, IFD0);
    put16(out, 2);
    put_entry(out, TAG_DESCRIPTION, TYPE_ASCII, own_n, at);
    put_entry(out, TAG_EXIF, TYPE_LONG, 1, SUB);
    put32(out, 0);
    put16(out, 1);
    put_entry(out, TAG_COMMENT, TYPE_UNDEFINED, (uint32_t)comment.size, at + own_n);
    put32(out, 0);
    if (own) oq_strbuf_add(out, own, own_n);
    oq_strbuf_add(out, oq_strbuf_text(&comment), comment.size);
    const bool lost = !own || !words || comment.failed || out->failed;
    oq_strbuf_deinit(&comment);
    oq_free(env, words);
    oq_free(env, own);
    return lost ? oq_fail(env, OQ_E_NOMEM, "texts of a picture: no memory") : OQ_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

typedef struct block {
    const uint8_t *bytes;
    size_t n;
    bool big;
} block;

static bool get(const block *b, size_t at, size_t size, uint32_t *out)
{
    if (at > b->n || b->n - at < size) return false;
    *out = 0;
    for (size_t i = 0; i < size; i++) {
        const uint32_t byte = b->bytes[at + i];
        *out |= byte << 8 * (b->big ? size - 1 - i : i);
    }
    return true;
}

static bool open_block(const uint8_t *bytes, size_t n, block *b, uint32_t *ifd)
{
    uint32_t magic;
    if (n >= 6 && memcmp(bytes, "Exif\0\0", 6) == 0) bytes += 6, n -= 6;
    if (n < 8 || (memcmp(bytes, "MM", 2) != 0 && memcmp(bytes, "II", 2) != 0)) return false;
    *b = (block){.bytes = bytes, .n = n, .big = bytes[0] == 'M'};
    return get(b, 2, 2, &magic) && magic == 42 && get(b, 4, 4, ifd);
}

typedef struct entry {
    uint32_t type, count, value;
    size_t at; /* of the value field */
} entry;

static bool find(const block *b, uint32_t ifd, uint32_t tag, entry *out)
{
    uint32_t n, t;
    if (!get(b, ifd, 2, &n)) return false;
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = (size_t)ifd + 2 + (size_t)i * ENTRY_BYTES;
        if (!get(b, at, 2, &t) || !get(b, at + 2, 2, &out->type) || !get(b, at + 4, 4, &out->count) ||
            !get(b, at + 8, 4, &out->value))
            return false;
        out->at = at + 8;
        if (t == tag) return true;
    }
    return false;
}

int oq_exif_orientation(const uint8_t *bytes, size_t n)
{
    block b;
    uint32_t ifd, value;
    entry e;
    if (!open_block(bytes, n, &b, &ifd) || !find(&b, ifd, TAG_ORIENTATION, &e) || e.type != TYPE_SHORT ||
        e.count != 1 || !get(&b, e.at, 2, &value))
        return 1;
    return value >= 1 && value <= 8 ? (int)value : 1;
}

/* Bytes of an entry of single bytes. */
static bool bytes_of(const block *b, const entry *e, const uint8_t **out)
{
    if (e->type != TYPE_ASCII && e->type != TYPE_UNDEFINED) return false;
    if (e->count <= 4) {
        *out = b->bytes + e->at;
        return true;
    }
    if (e->value > b->n || b->n - e->value < e->count) return false;
    *out = b->bytes + e->value;
    return true;
}

static void put_utf8(oq_strbuf *out, uint32_t c)
{
    const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    oq_strbuf_putc(out, (char)(lead[more] | c >> 6 * more));
    for (int i = more - 1; i >= 0; i--) oq_strbuf_putc(out, (char)(0x80 | (c >> 6 * i & 0x3f)));
}

static void put_utf16(oq_strbuf *out, const uint8_t *at, size_t n)
{
    for (size_t i = 0; i + 1 < n; i += 2) {
        uint32_t c = (uint32_t)at[i] << 8 | at[i + 1];
        if (c >= 0xd800 && c < 0xdc00 && i + 3 < n) {
            const uint32_t low = (uint32_t)at[i + 2] << 8 | at[i + 3];
            if (low >= 0xdc00 && low < 0xe000) c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00), i += 2;
        }
        put_utf8(out, (c >= 0xd800 && c < 0xe000) || c == 0 ? 0xfffd : c);
    }
}

oq_status oq_exif_text(oq_env *env, const uint8_t *bytes, size_t n, const char *name, const char *key,
                       char **out)
{
    const bool own = strcmp(key, "omniq") == 0;
    block b;
    uint32_t ifd;
    entry e;
    const uint8_t *at = NULL;
    oq_strbuf text;
    *out = NULL;
    bool found = open_block(bytes, n, &b, &ifd);
    if (found && own) found = find(&b, ifd, TAG_DESCRIPTION, &e);
    if (found && !own)
        found = find(&b, ifd, TAG_EXIF, &e) && e.type == TYPE_LONG && find(&b, e.value, TAG_COMMENT, &e);
    if (!found || !bytes_of(&b, &e, &at) || (!own && (e.count < 8 || memcmp(at, "UNICODE", 8) != 0)))
        return oq_fail(env, OQ_E_NOTFOUND, "%s: holds no text '%s'", name, key);
    oq_strbuf_init(&text, env);
    if (own)
        for (uint32_t i = 0; i < e.count && at[i]; i++) oq_strbuf_putc(&text, (char)at[i]);
    else
        put_utf16(&text, at + 8, e.count - 8);
    size_t length = 0;
    if (!text.failed) *out = oq_utf8_repair(env, oq_strbuf_text(&text), text.size, &length);
    oq_strbuf_deinit(&text);
    return *out ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory for a text", name);
}

/* ---- orientation --------------------------------------------------------------------------------------- */

/* Where pixel (x, y) of the upright picture comes from. */
static int64_t source_of(const oq_image *image, int orientation, int64_t x, int64_t y)
{
    const int64_t w = image->width, h = image->height;
    const int64_t sx = orientation > 4 ? y : x, sy = orientation > 4 ? x : y; /* 5 to 8: lines are columns */
    const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    return (flip_y ? h - 1 - sy : sy) * w + (flip_x ? w - 1 - sx : sx);
}

oq_status oq_image_upright(oq_env *env, oq_image *image, int orientation)
{
    oq_image turned;
    if (orientation < 2 || orientation > 8) return OQ_OK;
    const bool sides = orientation > 4;
    OQ_TRY(oq_image_new(env, sides ? image->height : image->width, sides ? image->width : image->height,
                        &turned));
    for (int64_t y = 0; y < turned.height; y++)
        for (int64_t x = 0; x < turned.width; x++)
            memcpy(turned.pixels + (y * turned.width + x) * 3,
                   image->pixels + source_of(image, orientation, x, y) * 3, 3);
    oq_image_deinit(env, image);
    *image = turned;
    return OQ_OK;
}
