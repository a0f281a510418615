/* image_list.c -- pictures by their type: one line each; reading goes by the first bytes, writing by the name's ending. */
#include "media/image_type.h"

#include "base/file.h"
#include "media/ending.h"

#include <string.h>

extern const oq_image_type oq_image_jpeg, oq_image_webp;

static bool is_png(const uint8_t *bytes, size_t n)
{
    return n >= 4 && memcmp(bytes, "\x89PNG", 4) == 0;
}

static oq_status decode_png(oq_env *env, const uint8_t *bytes, size_t n, const char *name, oq_image *out)
{
    return oq_png_decode(env, bytes, n, name, out);
}

static oq_status decode_png_text(oq_env *env, const uint8_t *bytes, size_t n, const char *name,
                                 const char *key, char **out)
{
    return oq_png_decode_text(env, bytes, n, name, key, out);
}

static const oq_image_type oq_image_png = {.name = "PNG",
                                           .endings = ".png",
                                           .is = is_png,
                                           .decode = decode_png,
                                           .decode_text = decode_png_text,
                                           .encode = oq_png_encode};

/* clang-format off */
const oq_image_type *const oq_image_list[] = {
    &oq_image_png,
    &oq_image_jpeg,
    &oq_image_webp,
    NULL,
};
/* clang-format on */

static oq_status unreadable(oq_env *env, const char *name)
{
    oq_strbuf known;
    oq_strbuf_init(&known, env);
    for (size_t i = 0; oq_image_list[i]; i++)
        if (!oq_image_list[i]->missing)
            oq_strbuf_printf(&known, "%s%s", known.size ? ", " : "", oq_image_list[i]->name);
    const oq_status st =
        oq_fail(env, OQ_E_FORMAT, "%s: this build reads pictures as %s", name, oq_strbuf_text(&known));
    oq_strbuf_deinit(&known);
    return st;
}

static oq_status type_of(oq_env *env, const uint8_t *bytes, size_t n, const char *name,
                         const oq_image_type **out)
{
    for (size_t i = 0; oq_image_list[i]; i++) {
        if (!oq_image_list[i]->is(bytes, n)) continue;
        *out = oq_image_list[i];
        if (!(*out)->missing) return OQ_OK;
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: is a %s picture; %s", name, (*out)->name, (*out)->missing);
    }
    return unreadable(env, name);
}

const char *oq_image_type_of(const void *bytes, size_t n)
{
    for (size_t i = 0; oq_image_list[i]; i++)
        if (oq_image_list[i]->is(bytes, n)) return oq_image_list[i]->name;
    return NULL;
}

oq_status oq_image_decode(oq_env *env, const void *bytes, size_t n, const char *name, oq_image *out)
{
    const oq_image_type *type = NULL;
    *out = (oq_image){0};
    OQ_TRY(type_of(env, bytes, n, name, &type));
    return type->decode(env, bytes, n, name, out);
}

oq_status oq_image_decode_text(oq_env *env, const void *bytes, size_t n, const char *name, const char *key,
                               char **out)
{
    const oq_image_type *type = NULL;
    *out = NULL;
    OQ_TRY(type_of(env, bytes, n, name, &type));
    return type->decode_text(env, bytes, n, name, key, out);
}

oq_status oq_image_read(oq_env *env, const char *path, oq_image *out)
{
    char *bytes = NULL;
    size_t n = 0;
    OQ_TRY(oq_file_read_fetched(env, path, OQ_IMAGE_MAX_BYTES, &bytes, &n));
    const oq_status st = oq_image_decode(env, bytes, n, path, out);
    oq_free(env, bytes);
    return st;
}

oq_status oq_image_read_text(oq_env *env, const char *path, const char *key, char **out)
{
    char *bytes = NULL;
    size_t n = 0;
    OQ_TRY(oq_file_read_fetched(env, path, OQ_IMAGE_MAX_BYTES, &bytes, &n));
    const oq_status st = oq_image_decode_text(env, bytes, n, path, key, out);
    oq_free(env, bytes);
    return st;
}

static oq_status unwritable(oq_env *env, const char *path, const char *ending)
{
    oq_strbuf known;
    oq_strbuf_init(&known, env);
    for (size_t i = 0; oq_image_list[i]; i++)
        if (!oq_image_list[i]->missing) oq_endings_put(&known, oq_image_list[i]->endings);
    const oq_status st = oq_fail(env, OQ_E_ARG, "output '%s': this build writes pictures as %s, %s%s%s", path,
                                 oq_strbuf_text(&known), *ending ? "not '" : "and the name has no ending",
                                 ending, *ending ? "'" : "");
    oq_strbuf_deinit(&known);
    return st;
}

static oq_status writer_of(oq_env *env, const char *path, const oq_image_type **out)
{
    const char *ending = strcmp(path, "-") == 0 ? ".png" : oq_ending_of(path);
    for (size_t i = 0; oq_image_list[i]; i++) {
        if (!oq_ending_among(ending, oq_image_list[i]->endings)) continue;
        *out = oq_image_list[i];
        if (!(*out)->missing) return OQ_OK;
        return oq_fail(env, OQ_E_UNSUPPORTED, "output '%s': %s", path, (*out)->missing);
    }
    return unwritable(env, path, ending);
}

oq_status oq_image_check_output(oq_env *env, const char *path)
{
    const oq_image_type *type = NULL;
    return writer_of(env, path, &type);
}

oq_status oq_image_write(oq_env *env, const char *path, int64_t width, int64_t height, const uint8_t *pixels,
                         const oq_image_text *texts, size_t n_texts)
{
    const oq_image_type *type = NULL;
    char *bytes = NULL;
    size_t n = 0;
    OQ_TRY(writer_of(env, path, &type));
    OQ_TRY(type->encode(env, width, height, pixels, texts, n_texts, path, &bytes, &n));
    const oq_status st = oq_file_write_all(env, path, bytes, n);
    oq_free(env, bytes);
    return st;
}
