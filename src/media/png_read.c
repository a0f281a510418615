/* png_read.c -- any PNG upright to RGB, and its texts. A file is read whole, then decoded from memory; what it claims
 * is checked against what it can hold before its pixels are allocated. */
#include "base/file.h"
#include "base/strbuf.h"
#include "media/exif.h"
#include "media/image.h"
#include "media/png_guard.h"

#include <string.h>

enum { MAX_FILE_BYTES = 512 << 20, MAX_PIXELS = 1 << 28, MAX_CHUNK_BYTES = 8 << 20, MAX_CHUNKS = 1000 };
/* Deflate shrinks by no more than this. */
enum { MAX_RATIO = 1040 };

#define UNREADABLE "is not a readable PNG"

typedef struct png_reader {
    oq_png_guard guard;
    png_structp png;
    png_infop info;
    const uint8_t *bytes;
    size_t n, at;
    oq_image image;  /* for pixels */
    const char *key; /* for texts */
    uint8_t *row;    /* one, for texts behind the pixels */
    char *text;
} png_reader;

static void get_bytes(png_structp png, png_bytep dst, size_t n)
{
    png_reader *r = png_get_io_ptr(png);
    if (n > r->n - r->at) png_error(png, "it ends too early");
    memcpy(dst, r->bytes + r->at, n);
    r->at += n;
}

static void read_header(void *user)
{
    png_reader *r = user;
    png_set_user_limits(r->png, OQ_IMAGE_MAX_PX, OQ_IMAGE_MAX_PX);
    png_set_chunk_malloc_max(r->png, MAX_CHUNK_BYTES);
    png_set_chunk_cache_max(r->png, MAX_CHUNKS);
    png_read_info(r->png, r->info);
}

static oq_status check_size(png_reader *r)
{
    const uint64_t w = png_get_image_width(r->png, r->info), h = png_get_image_height(r->png, r->info);
    const uint64_t raw = h * (png_get_rowbytes(r->png, r->info) + 1);
    if (w * h > MAX_PIXELS)
        return oq_fail(r->guard.env, OQ_E_FORMAT, "%s: %llu x %llu pixels, at most %d pixels are read",
                       r->guard.name, (unsigned long long)w, (unsigned long long)h, MAX_PIXELS);
    if (raw / MAX_RATIO > r->n)
        return oq_fail(r->guard.env, OQ_E_FORMAT,
                       "%s: %llu x %llu pixels are claimed, %zu bytes cannot hold them", r->guard.name,
                       (unsigned long long)w, (unsigned long long)h, r->n);
    return OQ_OK;
}

/* Chunks lie within the file, so libpng makes no room for one that cannot be there. */
static oq_status check_chunks(const png_reader *r)
{
    for (size_t at = 8; at < r->n;) {
        const size_t left = r->n - at;
        const uint8_t *p = r->bytes + at;
        const size_t length =
            left < 12 ? 0 : (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
        if (left < 12 || length > left - 12)
            return oq_fail(r->guard.env, OQ_E_FORMAT,
                           "%s: " UNREADABLE ": the chunk at byte %zu does not fit into its %zu bytes",
                           r->guard.name, at, r->n);
        if (memcmp(p + 4, "IEND", 4) == 0) break; /* what follows is not the picture's */
        at += 12 + length;
    }
    return OQ_OK;
}

static oq_status start(png_reader *r)
{
    if (r->n < 8 || png_sig_cmp(r->bytes, 0, 8) != 0)
        return oq_fail(r->guard.env, OQ_E_FORMAT, "%s: is not a PNG", r->guard.name);
    OQ_TRY(check_chunks(r));
    r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r->guard, oq_png_on_error, oq_png_on_warning,
                                      &r->guard, oq_png_allocate, oq_png_release);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info) return oq_fail(r->guard.env, OQ_E_NOMEM, "%s: no memory for the picture", r->guard.name);
    png_set_read_fn(r->png, r, get_bytes);
    if (!oq_png_guarded(r->png, read_header, r)) return oq_png_failure(&r->guard, UNREADABLE);
    return check_size(r);
}

static void finish(png_reader *r)
{
    if (r->png) png_destroy_read_struct(&r->png, &r->info, NULL);
    oq_free(r->guard.env, r->row);
}

/* ---- pixels -------------------------------------------------------------------------------------------- */

static void read_pixels(void *user)
{
    png_reader *r = user;
    const png_byte color = png_get_color_type(r->png, r->info);
    png_set_expand(r->png); /* palette and small gray to 8 bits, transparency to alpha */
    png_set_scale_16(r->png);
    if (!(color & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(r->png);
    png_set_strip_alpha(r->png);
    const int passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    const size_t row = (size_t)r->image.width * 3;
    if (png_get_rowbytes(r->png, r->info) != row) png_error(r->png, "its rows have an unexpected size");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < r->image.height; y++)
            png_read_row(r->png, r->image.pixels + (size_t)y * row, NULL);
    png_read_end(r->png, r->info);
}

/* By its EXIF block, which may stand behind the pixels too; 1: as it is. */
static int orientation_of(const png_reader *r)
{
    int orientation = 1;
#ifdef PNG_eXIf_SUPPORTED
    png_uint_32 n = 0;
    png_bytep block = NULL;
    if (png_get_eXIf_1(r->png, r->info, &n, &block) && block) orientation = oq_exif_orientation(block, n);
#else
    (void)r;
#endif
    return orientation;
}

oq_status oq_png_decode(oq_env *env, const void *bytes, size_t n, const char *name, oq_image *out)
{
    png_reader r = {.guard = {.env = env, .name = name}, .bytes = bytes, .n = n};
    *out = (oq_image){0};
    oq_status st = start(&r);
    if (st == OQ_OK)
        st = oq_image_new(env, png_get_image_width(r.png, r.info), png_get_image_height(r.png, r.info),
                          &r.image);
    if (st == OQ_OK && !oq_png_guarded(r.png, read_pixels, &r)) st = oq_png_failure(&r.guard, UNREADABLE);
    if (st == OQ_OK) st = oq_image_upright(env, &r.image, orientation_of(&r));
    finish(&r);
    if (st == OQ_OK)
        *out = r.image;
    else
        oq_image_deinit(env, &r.image);
    return st;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static void put_latin1(oq_strbuf *buf, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x80) oq_strbuf_putc(buf, (char)(0xc0 | c >> 6));
        oq_strbuf_putc(buf, (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c));
    }
}

/* The entry's value as UTF-8 into r->text. */
static void take_text(png_reader *r, const png_text *entry)
{
    oq_strbuf buf;
    oq_strbuf_init(&buf, r->guard.env);
    if (entry->compression >= PNG_ITXT_COMPRESSION_NONE)
        oq_strbuf_puts(&buf, entry->text ? entry->text : "");
    else
        put_latin1(&buf, entry->text, entry->text ? strlen(entry->text) : 0);
    r->text = oq_strbuf_take(&buf);
    if (!r->text) r->guard.no_memory = true;
    oq_strbuf_deinit(&buf);
}

static void find_text(png_reader *r)
{
    png_textp texts = NULL;
    int n = 0;
    png_get_text(r->png, r->info, &texts, &n);
    for (int i = 0; i < n && !r->text; i++)
        if (strcmp(texts[i].key, r->key) == 0) take_text(r, &texts[i]);
}

/* Some writers put texts behind the pixels: those are read past. */
static void read_to_end(void *user)
{
    png_reader *r = user;
    const int passes = png_set_interlace_handling(r->png);
    const png_uint_32 height = png_get_image_height(r->png, r->info);
    png_read_update_info(r->png, r->info);
    r->row = oq_png_allocate(r->png, png_get_rowbytes(r->png, r->info));
    if (!r->row) png_error(r->png, "no memory");
    for (int pass = 0; pass < passes; pass++)
        for (png_uint_32 y = 0; y < height; y++) png_read_row(r->png, r->row, NULL);
    png_read_end(r->png, r->info);
}

static oq_status search_text(png_reader *r)
{
    OQ_TRY(start(r));
    find_text(r);
    if (!r->text && !r->guard.no_memory) {
        if (!oq_png_guarded(r->png, read_to_end, r)) return oq_png_failure(&r->guard, UNREADABLE);
        find_text(r);
    }
    if (r->guard.no_memory) return oq_png_failure(&r->guard, UNREADABLE);
    if (r->text) return OQ_OK;
    return oq_fail(r->guard.env, OQ_E_NOTFOUND, "%s: has no text '%s'", r->guard.name, r->key);
}

oq_status oq_png_decode_text(oq_env *env, const void *bytes, size_t n, const char *name, const char *key,
                             char **out)
{
    png_reader r = {.guard = {.env = env, .name = name}, .bytes = bytes, .n = n, .key = key};
    const oq_status st = search_text(&r);
    finish(&r);
    *out = r.text;
    return st;
}

/* ---- files --------------------------------------------------------------------------------------------- */

oq_status oq_png_read(oq_env *env, const char *path, oq_image *out)
{
    char *bytes = NULL;
    size_t n = 0;
    *out = (oq_image){0};
    OQ_TRY(oq_file_read_fetched(env, path, MAX_FILE_BYTES, &bytes, &n));
    const oq_status st = oq_png_decode(env, bytes, n, path, out);
    oq_free(env, bytes);
    return st;
}

oq_status oq_png_read_text(oq_env *env, const char *path, const char *key, char **out)
{
    char *bytes = NULL;
    size_t n = 0;
    *out = NULL;
    OQ_TRY(oq_file_read_fetched(env, path, MAX_FILE_BYTES, &bytes, &n));
    const oq_status st = oq_png_decode_text(env, bytes, n, path, key, out);
    oq_free(env, bytes);
    return st;
}
