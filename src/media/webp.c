/* webp.c -- still pictures as WebP by libwebp: read upright to RGB, written without loss and with an EXIF chunk. */
#include "media/image_type.h"

#include "base/strbuf.h"
#include "media/exif.h"
#include "media/webp_mux.h"

#include <string.h>

#ifdef OMNIQ_HAVE_WEBP
#include <webp/decode.h>
#include <webp/demux.h>
#include <webp/encode.h>
#include <webp/mux.h>

#define MISSING        NULL
#define HAVE(function) function

/* ---- reading ------------------------------------------------------------------------------------------- */

static oq_status check_features(oq_env *env, const uint8_t *bytes, size_t n, const char *name,
                                WebPBitstreamFeatures *features)
{
    const VP8StatusCode code = WebPGetFeatures(bytes, n, features);
    if (code != VP8_STATUS_OK)
        return oq_fail(env, OQ_E_FORMAT, "%s: is not a readable WebP (code %d)", name, (int)code);
    if (features->has_animation)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: is an animation, still pictures are read", name);
    return OQ_OK; /* sides are at most 16383 by the format, so pixels within bounds */
}

/* The EXIF chunk of a file that decodes; false: none. */
static bool find_exif(WebPDemuxer *demuxer, WebPChunkIterator *chunk)
{
    return demuxer && WebPDemuxGetChunk(demuxer, "EXIF", 1, chunk);
}

static int orientation_of(const uint8_t *bytes, size_t n)
{
    const WebPData data = {bytes, n};
    WebPDemuxer *demuxer = WebPDemux(&data);
    WebPChunkIterator chunk;
    int orientation = 1;
    if (find_exif(demuxer, &chunk)) {
        orientation = oq_exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
        WebPDemuxReleaseChunkIterator(&chunk);
    }
    WebPDemuxDelete(demuxer);
    return orientation;
}

static oq_status decode(oq_env *env, const uint8_t *bytes, size_t n, const char *name, oq_image *out)
{
    WebPBitstreamFeatures features;
    oq_image image = {0};
    OQ_TRY(check_features(env, bytes, n, name, &features));
    OQ_TRY(oq_image_new(env, features.width, features.height, &image));
    const size_t row = (size_t)image.width * 3;
    oq_status st = OQ_OK;
    if (!WebPDecodeRGBInto(bytes, n, image.pixels, row * (size_t)image.height, (int)row))
        st = oq_fail(env, OQ_E_FORMAT, "%s: is not a readable WebP: its data are damaged or end too early",
                     name);
    if (st == OQ_OK) st = oq_image_upright(env, &image, orientation_of(bytes, n));
    if (st == OQ_OK)
        *out = image;
    else
        oq_image_deinit(env, &image);
    return st;
}

static oq_status decode_text(oq_env *env, const uint8_t *bytes, size_t n, const char *name, const char *key,
                             char **out)
{
    const WebPData data = {bytes, n};
    WebPDemuxer *demuxer = WebPDemux(&data);
    WebPChunkIterator chunk;
    oq_status st = OQ_OK;
    *out = NULL;
    if (find_exif(demuxer, &chunk)) {
        st = oq_exif_text(env, chunk.chunk.bytes, chunk.chunk.size, name, key, out);
        WebPDemuxReleaseChunkIterator(&chunk);
    } else {
        st = oq_fail(env, demuxer ? OQ_E_NOTFOUND : OQ_E_FORMAT, "%s: %s '%s'", name,
                     demuxer ? "holds no text" : "is not a readable WebP; wanted was its text", key);
    }
    WebPDemuxDelete(demuxer);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static oq_status take(oq_env *env, const uint8_t *data, size_t data_n, const char *name, char **bytes,
                      size_t *n)
{
    *bytes = oq_alloc_raw(env, data_n);
    if (!*bytes) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for %zu bytes", name, data_n);
    memcpy(*bytes, data, data_n);
    *n = data_n;
    return OQ_OK;
}

oq_status oq_webp_add_texts(oq_env *env, const uint8_t *data, size_t data_n, const oq_image_text *texts,
                            size_t n_texts, const char *name, char **bytes, size_t *n)
{
    if (n_texts == 0) return take(env, data, data_n, name, bytes, n);
    const WebPData file = {data, data_n};
    WebPData whole = {0};
    oq_strbuf exif;
    oq_strbuf_init(&exif, env);
    oq_status st = oq_exif_make(env, texts, n_texts, &exif);
    WebPMux *mux = st == OQ_OK ? WebPMuxCreate(&file, 0) : NULL;
    const WebPData chunk = {(const uint8_t *)oq_strbuf_text(&exif), exif.size};
    if (st == OQ_OK && (!mux || WebPMuxSetChunk(mux, "EXIF", &chunk, 0) != WEBP_MUX_OK ||
                        WebPMuxAssemble(mux, &whole) != WEBP_MUX_OK))
        st = oq_fail(env, OQ_E_NOMEM, "%s: its texts could not be added", name);
    if (st == OQ_OK) st = take(env, whole.bytes, whole.size, name, bytes, n);
    WebPDataClear(&whole);
    WebPMuxDelete(mux);
    oq_strbuf_deinit(&exif);
    return st;
}

static oq_status encode(oq_env *env, int64_t width, int64_t height, const uint8_t *pixels,
                        const oq_image_text *texts, size_t n_texts, const char *name, char **bytes, size_t *n)
{
    uint8_t *data = NULL;
    *bytes = NULL;
    if (width < 1 || height < 1 || width > WEBP_MAX_DIMENSION || height > WEBP_MAX_DIMENSION)
        return oq_fail(env, OQ_E_ARG, "%s: a picture of %lld x %lld pixels, sides of a WebP are 1 to %d",
                       name, (long long)width, (long long)height, WEBP_MAX_DIMENSION);
    const size_t data_n = WebPEncodeLosslessRGB(pixels, (int)width, (int)height, (int)width * 3, &data);
    if (data_n == 0) return oq_fail(env, OQ_E_NOMEM, "%s: the picture could not be encoded", name);
    const oq_status st = oq_webp_add_texts(env, data, data_n, texts, n_texts, name, bytes, n);
    WebPFree(data);
    return st;
}
#else
#define MISSING        "this build has no WebP: install libwebp-dev and build again"
#define HAVE(function) NULL
#endif

static bool is_webp(const uint8_t *bytes, size_t n)
{
    return n >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0;
}

const oq_image_type oq_image_webp = {.name = "WebP",
                                     .endings = ".webp",
                                     .missing = MISSING,
                                     .is = is_webp,
                                     .decode = HAVE(decode),
                                     .decode_text = HAVE(decode_text),
                                     .encode = HAVE(encode)};
