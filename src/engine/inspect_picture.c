/* inspect_picture.c -- a picture under the inspect command: its type and size, and the run that it remembers, whoever made it. */
#include "engine/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool oq_inspect_is_picture(const char *path)
{
    uint8_t head[16];
    FILE *f =
        oq_file_is_dir(path) || oq_file_is_special(path) ? NULL : fopen(path, "rb"); /* a pipe would wait */
    const size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    if (f) fclose(f);
    return n && oq_image_type_of(head, n);
}

/* A text of the picture, NULL where it has none of that name. */
static oq_status find_text(oq_env *env, const char *bytes, size_t n, const char *path, const char *key,
                           char **out)
{
    const oq_status st = oq_image_decode_text(env, bytes, n, path, key, out);
    if (st != OQ_E_NOTFOUND) return st;
    OQ_TRY(oq_check_canceled(env)); /* clearing would forget it */
    oq_env_clear(env);
    return OQ_OK;
}

/* What a stranger's picture says reaches a terminal: no control characters but ends of lines and tabs. */
static void put_parameters(oq_strbuf *text, const char *parameters)
{
    for (const char *at = parameters; *at; at++) {
        const unsigned char c = (unsigned char)*at;
        oq_strbuf_putc(text, (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ? '?' : *at);
    }
    oq_strbuf_putc(text, '\n');
}

static void describe(oq_strbuf *text, const char *path, const char *type, const oq_image *image,
                     const char *parameters, const oq_json *run)
{
    oq_strbuf_printf(text, "%s: %s picture, %" PRId64 " x %" PRId64 " pixels\n", path, type, image->width,
                     image->height);
    if (parameters && *parameters) put_parameters(text, parameters);
    if (run)
        oq_strbuf_printf(text, "'omniq generate --from %s' makes it again\n", path);
    else if (!parameters)
        oq_strbuf_puts(text, "it remembers no run\n");
}

static oq_json *picture_json(const char *path, const char *type, size_t bytes, const oq_image *image,
                             const char *parameters, const oq_json *run)
{
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "path", oq_json_new_string(path));
    oq_json_set(o, "format", oq_json_new_string("picture"));
    oq_json_set(o, "type", oq_json_new_string(type));
    oq_json_set(o, "bytes", oq_json_new_int((int64_t)bytes));
    oq_json_set(o, "width", oq_json_new_int(image->width));
    oq_json_set(o, "height", oq_json_new_int(image->height));
    if (parameters) oq_json_set(o, "parameters", oq_json_new_string(parameters));
    if (run) oq_json_set(o, "omniq", oq_json_ref(run));
    return o;
}

oq_status oq_inspect_picture(oq_env *env, const char *path, oq_report **out)
{
    char *bytes = NULL, *parameters = NULL, *remembered = NULL;
    size_t n = 0;
    oq_image image = {0};
    oq_json *run = NULL;
    oq_strbuf text;
    oq_strbuf_init(&text, env);
    oq_status st = oq_file_read_fetched(env, path, (size_t)512 << 20, &bytes, &n);
    if (st == OQ_OK) st = oq_image_decode(env, bytes, n, path, &image);
    if (st == OQ_OK) st = find_text(env, bytes, n, path, "parameters", &parameters);
    if (st == OQ_OK) st = find_text(env, bytes, n, path, "omniq", &remembered);
    if (st == OQ_OK && remembered) st = oq_json_parse(env, remembered, strlen(remembered), path, &run);
    if (st == OQ_OK) {
        const char *const type = oq_image_type_of(bytes, n);
        describe(&text, path, type, &image, parameters, run);
        st = oq_report_finish(env, picture_json(path, type, n, &image, parameters, run), &text, true, out);
    } else {
        oq_strbuf_deinit(&text);
    }
    oq_json_free(run);
    oq_image_deinit(env, &image);
    oq_free(env, remembered);
    oq_free(env, parameters);
    oq_free(env, bytes);
    return st;
}
