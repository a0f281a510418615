/* video_mp4.c -- MP4, MOV and MKV by the FFmpeg libraries: H.264 where they have an encoder for it, else MPEG-4; 4:2:0,
 * BT.709. The file is made in memory, so that it appears whole or not at all. */
#include "base/file.h"
#include "media/video.h"

#include <string.h>

#ifdef OMNIQ_HAVE_FFMPEG
#include <dlfcn.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>

#define MISSING        NULL
#define HAVE(function) function

/* The functions that are used, by library. They are looked up when a video is written: linked, the libraries and all that
 * they need would cost every run of omniq 25 MB and their loading. */
#define FUNCTIONS(X)                                                                                         \
    X(avutil, av_d2q)                                                                                        \
    X(avutil, av_dict_set)                                                                                   \
    X(avutil, av_frame_alloc)                                                                                \
    X(avutil, av_frame_free)                                                                                 \
    X(avutil, av_frame_get_buffer)                                                                           \
    X(avutil, av_frame_make_writable)                                                                        \
    X(avutil, av_free)                                                                                       \
    X(avutil, av_log_get_level)                                                                              \
    X(avutil, av_log_set_level)                                                                              \
    X(avutil, av_opt_set)                                                                                    \
    X(avutil, av_strerror)                                                                                   \
    X(avcodec, av_packet_alloc)                                                                              \
    X(avcodec, av_packet_free)                                                                               \
    X(avcodec, av_packet_rescale_ts)                                                                         \
    X(avcodec, avcodec_alloc_context3)                                                                       \
    X(avcodec, avcodec_find_encoder)                                                                         \
    X(avcodec, avcodec_find_encoder_by_name)                                                                 \
    X(avcodec, avcodec_free_context)                                                                         \
    X(avcodec, avcodec_open2)                                                                                \
    X(avcodec, avcodec_parameters_from_context)                                                              \
    X(avcodec, avcodec_receive_packet)                                                                       \
    X(avcodec, avcodec_send_frame)                                                                           \
    X(avformat, av_interleaved_write_frame)                                                                  \
    X(avformat, av_write_trailer)                                                                            \
    X(avformat, avformat_alloc_output_context2)                                                              \
    X(avformat, avformat_free_context)                                                                       \
    X(avformat, avformat_new_stream)                                                                         \
    X(avformat, avformat_write_header)                                                                       \
    X(avformat, avio_close_dyn_buf)                                                                          \
    X(avformat, avio_open_dyn_buf)                                                                           \
    X(swscale, sws_freeContext)                                                                              \
    X(swscale, sws_getCoefficients)                                                                          \
    X(swscale, sws_getContext)                                                                               \
    X(swscale, sws_scale)                                                                                    \
    X(swscale, sws_setColorspaceDetails)

#define MEMBER(library, function) __typeof__(function) *function;
typedef struct functions {
    FUNCTIONS(MEMBER)
} functions;

typedef struct mp4 {
    functions ff;
    oq_env *env;
    const char *name;
    const oq_video *video;
    AVFormatContext *format;
    AVCodecContext *codec;
    AVStream *stream;
    AVFrame *frame;
    AVPacket *packet;
    struct SwsContext *scale;
    uint8_t *bytes; /* of the finished file, FFmpeg's */
    int n;
} mp4;

/* The libraries stay: FFmpeg does not promise that it can be unloaded. */
static oq_status load(mp4 *m)
{
    enum { avutil, avcodec, avformat, swscale, LIBRARIES };
    static const char *const names[LIBRARIES] = {"libavutil.so." AV_STRINGIFY(LIBAVUTIL_VERSION_MAJOR),
                                                 "libavcodec.so." AV_STRINGIFY(LIBAVCODEC_VERSION_MAJOR),
                                                 "libavformat.so." AV_STRINGIFY(LIBAVFORMAT_VERSION_MAJOR),
                                                 "libswscale.so." AV_STRINGIFY(LIBSWSCALE_VERSION_MAJOR)};
    void *objects[LIBRARIES], *function = NULL;
    for (int i = 0; i < LIBRARIES; i++)
        if (!(objects[i] = dlopen(names[i], RTLD_NOW | RTLD_LOCAL)))
            return oq_fail(m->env, OQ_E_UNSUPPORTED, "%s: FFmpeg's %s is not here: %s", m->name, names[i],
                           dlerror());
#define FIND(library, symbol)                                                                                \
    if (!(function = dlsym(objects[library], #symbol)))                                                      \
        return oq_fail(m->env, OQ_E_UNSUPPORTED, "%s: %s: %s", m->name, names[library], dlerror());          \
    memcpy(&m->ff.symbol, &function, sizeof function);
    FUNCTIONS(FIND)
#undef FIND
    return OQ_OK;
}

static oq_status failed(const mp4 *m, const char *what, int code)
{
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    m->ff.av_strerror(code, text, sizeof text);
    return oq_fail(m->env, code == AVERROR(ENOMEM) ? OQ_E_NOMEM : OQ_E_UNSUPPORTED, "%s: %s: %s", m->name,
                   what, text);
}

static const AVCodec *find_encoder(const mp4 *m)
{
    static const char *const names[] = {"libx264", "libopenh264"};
    const AVCodec *found = NULL;
    for (size_t i = 0; !found && i < OQ_COUNT(names); i++)
        found = m->ff.avcodec_find_encoder_by_name(names[i]);
    return found ? found : m->ff.avcodec_find_encoder(AV_CODEC_ID_MPEG4);
}

static oq_status open_codec(mp4 *m, const AVCodec *encoder)
{
    const oq_video *v = m->video;
    m->codec = m->ff.avcodec_alloc_context3(encoder);
    if (!m->codec) return failed(m, "encoder", AVERROR(ENOMEM));
    m->codec->width = (int)v->width;
    m->codec->height = (int)v->height;
    m->codec->time_base = av_inv_q(m->ff.av_d2q(v->fps, 1000));
    m->codec->framerate = m->ff.av_d2q(v->fps, 1000);
    m->codec->pix_fmt = AV_PIX_FMT_YUV420P;
    m->codec->color_primaries = AVCOL_PRI_BT709;
    m->codec->color_trc = AVCOL_TRC_BT709;
    m->codec->colorspace = AVCOL_SPC_BT709;
    m->codec->color_range = AVCOL_RANGE_MPEG;
    m->codec->flags |= m->format->oformat->flags & AVFMT_GLOBALHEADER ? AV_CODEC_FLAG_GLOBAL_HEADER : 0;
    if (encoder->id == AV_CODEC_ID_MPEG4) {
        m->codec->flags |= AV_CODEC_FLAG_QSCALE;
        m->codec->global_quality = FF_QP2LAMBDA * 2;
    } else {
        m->codec->bit_rate =
            (int64_t)((double)(v->width * v->height) * v->fps / 4); /* where there is no crf */
        (void)m->ff.av_opt_set(m->codec->priv_data, "crf", "16", 0);
    }
    const int code = m->ff.avcodec_open2(m->codec, encoder, NULL);
    return code < 0 ? failed(m, encoder->name, code) : OQ_OK;
}

static oq_status open_container(mp4 *m, const oq_image_text *texts, size_t n_texts)
{
    int code = m->ff.avformat_alloc_output_context2(&m->format, NULL, NULL, m->name);
    if (code < 0) return failed(m, "container", code);
    OQ_TRY(open_codec(m, find_encoder(m)));
    m->stream = m->ff.avformat_new_stream(m->format, NULL);
    if (!m->stream) return failed(m, "container", AVERROR(ENOMEM));
    m->stream->time_base = m->codec->time_base;
    m->stream->avg_frame_rate = m->codec->framerate;
    code = m->ff.avcodec_parameters_from_context(m->stream->codecpar, m->codec);
    for (size_t i = 0; code >= 0 && i < n_texts; i++) /* the words that players show */
        code = m->ff.av_dict_set(&m->format->metadata,
                                 strcmp(texts[i].key, "omniq") == 0 ? "description" : "comment",
                                 texts[i].text, 0);
    if (code >= 0) code = m->ff.avio_open_dyn_buf(&m->format->pb);
    if (code >= 0) code = m->ff.avformat_write_header(m->format, NULL);
    return code < 0 ? failed(m, "container", code) : OQ_OK;
}

static oq_status open_frame(mp4 *m)
{
    m->frame = m->ff.av_frame_alloc();
    m->packet = m->ff.av_packet_alloc();
    const int w = (int)m->video->width, h = (int)m->video->height;
    m->scale = m->ff.sws_getContext(w, h, AV_PIX_FMT_RGB24, w, h, AV_PIX_FMT_YUV420P,
                                    SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP, NULL, NULL, NULL);
    if (!m->frame || !m->packet || !m->scale) return failed(m, "frame", AVERROR(ENOMEM));
    m->ff.sws_setColorspaceDetails(m->scale, m->ff.sws_getCoefficients(SWS_CS_ITU709), 1,
                                   m->ff.sws_getCoefficients(SWS_CS_ITU709), 0, 0, 1 << 16, 1 << 16);
    m->frame->format = AV_PIX_FMT_YUV420P;
    m->frame->width = w;
    m->frame->height = h;
    const int code = m->ff.av_frame_get_buffer(m->frame, 0);
    return code < 0 ? failed(m, "frame", code) : OQ_OK;
}

/* Hands a frame (NULL: the end) to the encoder and what comes out to the container. */
static oq_status encode(mp4 *m, AVFrame *frame)
{
    int code = m->ff.avcodec_send_frame(m->codec, frame);
    if (code < 0) return failed(m, "encoding", code);
    while ((code = m->ff.avcodec_receive_packet(m->codec, m->packet)) >= 0) {
        m->ff.av_packet_rescale_ts(m->packet, m->codec->time_base, m->stream->time_base);
        m->packet->stream_index = m->stream->index;
        code = m->ff.av_interleaved_write_frame(m->format, m->packet);
        if (code < 0) return failed(m, "container", code);
    }
    return code == AVERROR(EAGAIN) || code == AVERROR_EOF ? OQ_OK : failed(m, "encoding", code);
}

static oq_status encode_all(mp4 *m)
{
    const size_t bytes = (size_t)(m->video->width * m->video->height * 3);
    for (int64_t i = 0; i < m->video->frames; i++) {
        const uint8_t *rows[] = {m->video->pixels + (size_t)i * bytes};
        const int step[] = {(int)m->video->width * 3};
        OQ_TRY(oq_check_canceled(m->env));
        const int code = m->ff.av_frame_make_writable(m->frame);
        if (code < 0) return failed(m, "frame", code);
        m->ff.sws_scale(m->scale, rows, step, 0, (int)m->video->height, m->frame->data, m->frame->linesize);
        m->frame->pts = i;
        OQ_TRY(encode(m, m->frame));
    }
    OQ_TRY(encode(m, NULL));
    const int code = m->ff.av_write_trailer(m->format);
    return code < 0 ? failed(m, "container", code) : OQ_OK;
}

static void close_all(mp4 *m)
{
    if (m->format && m->format->pb) m->n = m->ff.avio_close_dyn_buf(m->format->pb, &m->bytes);
    m->ff.sws_freeContext(m->scale);
    m->ff.av_packet_free(&m->packet);
    m->ff.av_frame_free(&m->frame);
    m->ff.avcodec_free_context(&m->codec);
    m->ff.avformat_free_context(m->format);
}

static oq_status write_mp4(oq_env *env, const char *path, const oq_video *video, const oq_image_text *texts,
                           size_t n_texts)
{
    mp4 m = {.env = env, .name = path, .video = video};
    if (video->width % 2 || video->height % 2 || video->width > 16384 || video->height > 16384)
        return oq_fail(env, OQ_E_ARG,
                       "%s: frames of %lld x %lld pixels, sides must be even and at most 16384", path,
                       (long long)video->width, (long long)video->height);
    OQ_TRY(load(&m));
    const int level = m.ff.av_log_get_level();
    m.ff.av_log_set_level(AV_LOG_QUIET); /* encoders would print */
    oq_status st = open_container(&m, texts, n_texts);
    if (st == OQ_OK) st = open_frame(&m);
    if (st == OQ_OK) st = encode_all(&m);
    close_all(&m);
    m.ff.av_log_set_level(level);
    if (st == OQ_OK) st = oq_file_write_all(env, path, m.bytes, (size_t)m.n);
    m.ff.av_free(m.bytes);
    return st;
}
#else
#define MISSING                                                                                              \
    "this build has no MP4: install libavformat-dev, libavcodec-dev and libswscale-dev and build again"
#define HAVE(function) NULL
#endif

const oq_video_type oq_video_mp4 = {
    .name = "MP4", .endings = ".mp4,.mov,.mkv", .missing = MISSING, .write = HAVE(write_mp4)};
