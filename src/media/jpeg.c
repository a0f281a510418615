/* jpeg.c -- JPEG by libjpeg-turbo: read upright to RGB, written at quality 95 with full colour resolution and an EXIF block.
 * libjpeg leaves by longjmp: all state that a step changes lives in the struct of its caller. Damage that libjpeg would
 * paper over is an error. */
#include "media/image_type.h"

#include "base/size.h"
#include "media/exif.h"

#include <string.h>

#ifdef OMNIQ_HAVE_JPEG
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#define MISSING        NULL
#define HAVE(function) function
enum { QUALITY = 95, MARKER_BYTES = 65533, EXIF_MARKER = JPEG_APP0 + 1 };
enum { MAX_RATIO = 2048 }; /* a block of 64 pixels takes one bit at least */

typedef struct jpeg_job {
    struct jpeg_error_mgr error; /* first: libjpeg hands its address back */
    jmp_buf jump;
    oq_env *env;
    const char *name;
    oq_status status; /* set by a step that knows better */
    char message[JMSG_LENGTH_MAX];
    struct jpeg_decompress_struct in;
    struct jpeg_compress_struct out;
    struct jpeg_destination_mgr to;
    JOCTET buffer[1 << 14];
    oq_strbuf bytes; /* written */
    const uint8_t *source;
    size_t n;
    oq_image image; /* read */
    int orientation;
    const char *key; /* of the text wanted, NULL: pixels */
    char *text;
    int64_t width, height;
    const uint8_t *pixels;
    const oq_strbuf *exif;
} jpeg_job;

static void on_error(j_common_ptr common)
{
    jpeg_job *j = (jpeg_job *)(void *)common->err;
    common->err->format_message(common, j->message);
    longjmp(j->jump, 1);
}

/* Level -1 is damage in the picture's data. */
static void on_message(j_common_ptr common, int level)
{
    if (level < 0) on_error(common);
}

static bool guarded(jpeg_job *j, void (*step)(jpeg_job *j))
{
    if (setjmp(j->jump)) return false;
    step(j);
    return true;
}

static oq_status failure(const jpeg_job *j, const char *what)
{
    return j->status != OQ_OK ? j->status
                              : oq_fail(j->env, OQ_E_FORMAT, "%s: %s: %s", j->name, what, j->message);
}

static void start_job(jpeg_job *j, oq_env *env, const char *name)
{
    j->env = env;
    j->name = name;
    jpeg_std_error(&j->error);
    j->error.error_exit = on_error;
    j->error.emit_message = on_message;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static void give_up(jpeg_job *j, oq_status status)
{
    j->status = status;
    longjmp(j->jump, 1);
}

static void check_claim(jpeg_job *j)
{
    const uint64_t w = j->in.image_width, h = j->in.image_height;
    if (w * h > OQ_IMAGE_MAX_PIXELS)
        give_up(j, oq_fail(j->env, OQ_E_FORMAT, "%s: %llu x %llu pixels, at most %d pixels are read", j->name,
                           (unsigned long long)w, (unsigned long long)h, OQ_IMAGE_MAX_PIXELS));
    if (w * h * 3 / MAX_RATIO > j->n)
        give_up(j,
                oq_fail(j->env, OQ_E_FORMAT, "%s: %llu x %llu pixels are claimed, %zu bytes cannot hold them",
                        j->name, (unsigned long long)w, (unsigned long long)h, j->n));
    if (j->in.jpeg_color_space == JCS_CMYK || j->in.jpeg_color_space == JCS_YCCK)
        give_up(j, oq_fail(j->env, OQ_E_UNSUPPORTED, "%s: is a CMYK picture, RGB and gray ones are read",
                           j->name));
}

static void read_marker(jpeg_job *j)
{
    for (jpeg_saved_marker_ptr m = j->in.marker_list; m; m = m->next) {
        if (m->marker != EXIF_MARKER || m->data_length < 6 || memcmp(m->data, "Exif\0\0", 6) != 0) continue;
        j->orientation = oq_exif_orientation(m->data, m->data_length);
        if (!j->key) return;
        j->status = oq_exif_text(j->env, m->data, m->data_length, j->name, j->key, &j->text);
        return;
    }
}

static void read_header(jpeg_job *j)
{
    jpeg_create_decompress(&j->in);
    jpeg_mem_src(&j->in, j->source, j->n);
    jpeg_save_markers(&j->in, EXIF_MARKER, 0xffff);
    jpeg_read_header(&j->in, TRUE);
    read_marker(j);
}

static void read_pixels(jpeg_job *j)
{
    read_header(j);
    check_claim(j);
    j->in.out_color_space = JCS_RGB;
    jpeg_start_decompress(&j->in);
    j->status = oq_image_new(j->env, j->in.output_width, j->in.output_height, &j->image);
    if (j->status != OQ_OK) longjmp(j->jump, 1);
    while (j->in.output_scanline < j->in.output_height) {
        JSAMPROW row = j->image.pixels + (size_t)j->in.output_scanline * j->in.output_width * 3;
        jpeg_read_scanlines(&j->in, &row, 1);
    }
    jpeg_finish_decompress(&j->in);
}

static oq_status decode(oq_env *env, const uint8_t *bytes, size_t n, const char *name, oq_image *out)
{
    jpeg_job j = {.source = bytes, .n = n, .orientation = 1};
    start_job(&j, env, name);
    j.in.err = &j.error;
    oq_status st = guarded(&j, read_pixels) ? OQ_OK : failure(&j, "is not a readable JPEG");
    jpeg_destroy_decompress(&j.in);
    if (st == OQ_OK) st = oq_image_upright(env, &j.image, j.orientation);
    if (st == OQ_OK)
        *out = j.image;
    else
        oq_image_deinit(env, &j.image);
    return st;
}

static oq_status decode_text(oq_env *env, const uint8_t *bytes, size_t n, const char *name, const char *key,
                             char **out)
{
    jpeg_job j = {.source = bytes, .n = n, .orientation = 1, .key = key};
    start_job(&j, env, name);
    j.in.err = &j.error;
    oq_status st = guarded(&j, read_header) ? j.status : failure(&j, "is not a readable JPEG");
    jpeg_destroy_decompress(&j.in);
    if (st == OQ_OK && !j.text) st = oq_fail(env, OQ_E_NOTFOUND, "%s: holds no text '%s'", name, key);
    *out = j.text;
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void fresh_buffer(j_compress_ptr c)
{
    jpeg_job *j = (jpeg_job *)(void *)c->err;
    j->to.next_output_byte = j->buffer;
    j->to.free_in_buffer = sizeof j->buffer;
}

static boolean full_buffer(j_compress_ptr c)
{
    jpeg_job *j = (jpeg_job *)(void *)c->err;
    oq_strbuf_add(&j->bytes, j->buffer, sizeof j->buffer);
    fresh_buffer(c);
    return TRUE;
}

static void last_buffer(j_compress_ptr c)
{
    jpeg_job *j = (jpeg_job *)(void *)c->err;
    oq_strbuf_add(&j->bytes, j->buffer, sizeof j->buffer - j->to.free_in_buffer);
}

static void write_all(jpeg_job *j)
{
    jpeg_create_compress(&j->out);
    j->to = (struct jpeg_destination_mgr){.init_destination = fresh_buffer,
                                          .empty_output_buffer = full_buffer,
                                          .term_destination = last_buffer};
    j->out.dest = &j->to;
    j->out.image_width = (JDIMENSION)j->width;
    j->out.image_height = (JDIMENSION)j->height;
    j->out.input_components = 3;
    j->out.in_color_space = JCS_RGB;
    jpeg_set_defaults(&j->out);
    jpeg_set_quality(&j->out, QUALITY, TRUE);
    for (int i = 0; i < 3; i++) j->out.comp_info[i].h_samp_factor = j->out.comp_info[i].v_samp_factor = 1;
    j->out.optimize_coding = TRUE;
    jpeg_start_compress(&j->out, TRUE);
    if (j->exif->size)
        jpeg_write_marker(&j->out, EXIF_MARKER, (const JOCTET *)oq_strbuf_text(j->exif),
                          (unsigned)j->exif->size);
    while (j->out.next_scanline < j->out.image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(j->pixels + (size_t)j->out.next_scanline * (size_t)j->width * 3);
        jpeg_write_scanlines(&j->out, &row, 1);
    }
    jpeg_finish_compress(&j->out);
}

static oq_status make_marker(oq_env *env, const oq_image_text *texts, size_t n_texts, const char *name,
                             oq_strbuf *exif)
{
    if (n_texts == 0) return OQ_OK;
    oq_strbuf_add(exif, "Exif\0", 6);
    OQ_TRY(oq_exif_make(env, texts, n_texts, exif));
    if (exif->size <= MARKER_BYTES) return OQ_OK;
    oq_log(env, OQ_LOG_WARN, "%s: its texts take %zu bytes, a JPEG has room for %d: they are left out", name,
           exif->size, (int)MARKER_BYTES);
    oq_strbuf_clear(exif);
    return OQ_OK;
}

static oq_status encode(oq_env *env, int64_t width, int64_t height, const uint8_t *pixels,
                        const oq_image_text *texts, size_t n_texts, const char *name, char **bytes, size_t *n)
{
    oq_strbuf exif;
    *bytes = NULL;
    if (width < 1 || height < 1 || width > JPEG_MAX_DIMENSION || height > JPEG_MAX_DIMENSION)
        return oq_fail(env, OQ_E_ARG, "%s: a picture of %lld x %lld pixels, sides of a JPEG are 1 to %ld",
                       name, (long long)width, (long long)height, (long)JPEG_MAX_DIMENSION);
    oq_strbuf_init(&exif, env);
    jpeg_job j = {.width = width, .height = height, .pixels = pixels, .exif = &exif};
    start_job(&j, env, name);
    oq_strbuf_init(&j.bytes, env);
    j.out.err = &j.error;
    oq_status st = make_marker(env, texts, n_texts, name, &exif);
    if (st == OQ_OK && !guarded(&j, write_all)) st = failure(&j, "cannot be encoded");
    jpeg_destroy_compress(&j.out);
    if (st == OQ_OK) st = oq_strbuf_check(&j.bytes, name);
    if (st == OQ_OK) {
        *n = j.bytes.size;
        *bytes = oq_strbuf_take(&j.bytes);
    }
    oq_strbuf_deinit(&j.bytes);
    oq_strbuf_deinit(&exif);
    return st;
}
#else
#define MISSING        "this build has no JPEG: install libjpeg62-turbo-dev and build again"
#define HAVE(function) NULL
#endif

static bool is_jpeg(const uint8_t *bytes, size_t n)
{
    return n >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0;
}

const oq_image_type oq_image_jpeg = {.name = "JPEG",
                                     .endings = ".jpg,.jpeg",
                                     .missing = MISSING,
                                     .is = is_jpeg,
                                     .decode = HAVE(decode),
                                     .decode_text = HAVE(decode_text),
                                     .encode = HAVE(encode)};
