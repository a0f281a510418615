/* png_write.c -- RGB to PNG: into memory first, so that a file appears whole or not at all. */
#include "base/file.h"
#include "base/strbuf.h"
#include "base/unicode.h"
#include "media/image.h"
#include "media/png_guard.h"

#include <string.h>

typedef struct png_writer {
    oq_png_guard guard;
    png_structp png;
    png_infop info;
    int64_t width, height;
    const uint8_t *pixels;
    png_text *texts;
    int n_texts;
    oq_strbuf out;
} png_writer;

static void put_bytes(png_structp png, png_bytep bytes, size_t n)
{
    png_writer *w = png_get_io_ptr(png);
    oq_strbuf_add(&w->out, bytes, n);
    if (!w->out.failed) return;
    w->guard.no_memory = true;
    png_error(png, "no memory");
}

static void flush_nothing(png_structp png)
{
    (void)png;
}

static void write_all(void *user)
{
    png_writer *w = user;
    png_set_IHDR(w->png, w->info, (png_uint_32)w->width, (png_uint_32)w->height, 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (w->n_texts) png_set_text(w->png, w->info, w->texts, w->n_texts);
    png_write_info(w->png, w->info);
    for (int64_t y = 0; y < w->height; y++)
        png_write_row(w->png, w->pixels + (size_t)y * (size_t)w->width * 3);
    png_write_end(w->png, w->info);
}

static bool is_ascii(const char *text)
{
    while (*text && (unsigned char)*text < 0x80) text++;
    return *text == '\0';
}

static oq_status fill_text(oq_env *env, const char *name, const oq_image_text *text, png_text *out)
{
    const size_t key_n = strlen(text->key);
    if (key_n < 1 || key_n > 79 || !is_ascii(text->key))
        return oq_fail(env, OQ_E_ARG, "%s: '%s' cannot be the key of a text, 1 to 79 ASCII characters can",
                       name, text->key);
    size_t n = 0;
    char *value = oq_utf8_repair(env, text->text, strlen(text->text), &n);
    if (!value) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for a text", name);
    *out = (png_text){
        .compression = PNG_TEXT_COMPRESSION_NONE, .key = (char *)(uintptr_t)text->key, .text = value};
    if (!is_ascii(value)) {
        out->compression = PNG_ITXT_COMPRESSION_NONE;
        out->itxt_length = n;
    } else {
        out->text_length = n;
    }
    return OQ_OK;
}

static oq_status encode(png_writer *w, const oq_image_text *texts, size_t n_texts)
{
    oq_env *env = w->guard.env;
    if (w->width < 1 || w->height < 1 || w->width > OQ_IMAGE_MAX_PX || w->height > OQ_IMAGE_MAX_PX ||
        n_texts > 1024)
        return oq_fail(env, OQ_E_ARG, "%s: a picture of %lld x %lld pixels with %zu texts, sides are 1 to %d",
                       w->guard.name, (long long)w->width, (long long)w->height, n_texts, OQ_IMAGE_MAX_PX);
    OQ_TRY(oq_new(env, n_texts, sizeof *w->texts, "texts of a picture", &w->texts));
    for (; w->n_texts < (int)n_texts; w->n_texts++)
        OQ_TRY(fill_text(env, w->guard.name, &texts[w->n_texts], &w->texts[w->n_texts]));
    w->png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, &w->guard, oq_png_on_error, oq_png_on_warning,
                                       &w->guard, oq_png_allocate, oq_png_release);
    w->info = w->png ? png_create_info_struct(w->png) : NULL;
    if (!w->info) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for the picture", w->guard.name);
    png_set_write_fn(w->png, w, put_bytes, flush_nothing);
    return oq_png_guarded(w->png, write_all, w) ? OQ_OK : oq_png_failure(&w->guard, "cannot be encoded");
}

oq_status oq_png_encode(oq_env *env, int64_t width, int64_t height, const uint8_t *pixels,
                        const oq_image_text *texts, size_t n_texts, const char *name, char **bytes, size_t *n)
{
    png_writer w = {.guard = {.env = env, .name = name}, .width = width, .height = height, .pixels = pixels};
    oq_strbuf_init(&w.out, env);
    *bytes = NULL;
    const oq_status st = encode(&w, texts, n_texts);
    if (w.png) png_destroy_write_struct(&w.png, &w.info);
    for (int i = 0; i < w.n_texts; i++) oq_free(env, w.texts[i].text);
    oq_free(env, w.texts);
    if (st == OQ_OK) {
        *n = w.out.size;
        *bytes = oq_strbuf_take(&w.out);
    }
    oq_strbuf_deinit(&w.out);
    return st;
}

oq_status oq_png_write(oq_env *env, const char *path, int64_t width, int64_t height, const uint8_t *pixels,
                       const oq_image_text *texts, size_t n_texts)
{
    char *bytes = NULL;
    size_t n = 0;
    OQ_TRY(oq_png_encode(env, width, height, pixels, texts, n_texts, path, &bytes, &n));
    const oq_status st = oq_file_write_all(env, path, bytes, n);
    oq_free(env, bytes);
    return st;
}
