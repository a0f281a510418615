/* video_webp.c -- animated WebP by libwebp: lossy frames at quality 90, endless, with an EXIF chunk. */
#include "base/file.h"
#include "media/video.h"
#include "media/webp_mux.h"

#ifdef OMNIQ_HAVE_WEBP
#include <webp/encode.h>
#include <webp/mux.h>

#include <math.h>

#define MISSING        NULL
#define HAVE(function) function

static oq_status add_frames(oq_env *env, WebPAnimEncoder *encoder, const oq_video *video, const char *name)
{
    WebPConfig config;
    const size_t frame = (size_t)(video->width * video->height * 3);
    if (!WebPConfigInit(&config))
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: another version of libwebp", name);
    config.quality = 90;
    for (int64_t i = 0; i <= video->frames; i++) {
        const int at_ms = (int)lround((double)i * 1000.0 / video->fps);
        WebPPicture picture;
        OQ_TRY(oq_check_canceled(env));
        if (!WebPPictureInit(&picture))
            return oq_fail(env, OQ_E_UNSUPPORTED, "%s: another version of libwebp", name);
        picture.use_argb = 1;
        picture.width = (int)video->width;
        picture.height = (int)video->height;
        const bool end = i == video->frames; /* only its time counts */
        bool ok =
            end || WebPPictureImportRGB(&picture, video->pixels + (size_t)i * frame, (int)video->width * 3);
        ok = ok && WebPAnimEncoderAdd(encoder, end ? NULL : &picture, at_ms, end ? NULL : &config);
        WebPPictureFree(&picture);
        if (!ok)
            return oq_fail(env, OQ_E_NOMEM, "%s: frame %lld of %lld could not be encoded: %s", name,
                           (long long)i + 1, (long long)video->frames, WebPAnimEncoderGetError(encoder));
    }
    return OQ_OK;
}

static oq_status write_webp(oq_env *env, const char *path, const oq_video *video, const oq_image_text *texts,
                            size_t n_texts)
{
    WebPAnimEncoderOptions options;
    WebPData data = {0};
    char *bytes = NULL;
    size_t n = 0;
    if (video->width > WEBP_MAX_DIMENSION || video->height > WEBP_MAX_DIMENSION)
        return oq_fail(env, OQ_E_ARG, "%s: frames of %lld x %lld pixels, sides of a WebP are 1 to %d", path,
                       (long long)video->width, (long long)video->height, WEBP_MAX_DIMENSION);
    if (!WebPAnimEncoderOptionsInit(&options))
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: another version of libwebp", path);
    WebPAnimEncoder *encoder = WebPAnimEncoderNew((int)video->width, (int)video->height, &options);
    oq_status st =
        encoder ? add_frames(env, encoder, video, path) : oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    if (st == OQ_OK && !WebPAnimEncoderAssemble(encoder, &data))
        st = oq_fail(env, OQ_E_NOMEM, "%s: %s", path, WebPAnimEncoderGetError(encoder));
    if (st == OQ_OK) st = oq_webp_add_texts(env, data.bytes, data.size, texts, n_texts, path, &bytes, &n);
    if (st == OQ_OK) st = oq_file_write_all(env, path, bytes, n);
    oq_free(env, bytes);
    WebPDataClear(&data);
    WebPAnimEncoderDelete(encoder);
    return st;
}
#else
#define MISSING        "this build has no WebP: install libwebp-dev and build again"
#define HAVE(function) NULL
#endif

const oq_video_type oq_video_webp = {
    .name = "WebP", .endings = ".webp", .missing = MISSING, .write = HAVE(write_webp)};
