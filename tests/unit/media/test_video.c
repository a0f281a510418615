/* test_video.c -- promises of the video writers: what the file's name asks for, frames that come back, nothing half-written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "media/video.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OMNIQ_HAVE_WEBP
#include <webp/demux.h>
#endif
#ifdef OMNIQ_HAVE_FFMPEG
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#endif

enum { W = 16, H = 12, F = 5 };

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

static uint8_t pixels[F * W * H * 3];
static oq_video make_video(void)
{
    for (int i = 0; i < F * W * H * 3; i++) pixels[i] = (uint8_t)(i * 7 + i / 91);
    return (oq_video){.width = W, .height = H, .frames = F, .fps = 12.5, .pixels = pixels};
}

static void test_a_folder_of_pictures(void **state)
{
    oq_env *env = *state;
    const oq_video video = make_video();
    const oq_video_type *type = NULL;
    const oq_image_text text = {"parameters", "a prompt"};
    char *path = oq_path_join(env, scratch_dir(OMNIQ_BINARY_DIR, "video_folder"), "frames/");
    assert_int_equal(oq_video_find(env, path, &type), OQ_OK);
    assert_string_equal(type->name, "folder");
    if (type->write(env, path, &video, &text, 1) != OQ_OK) fail_msg("%s", oq_env_error(env));
    for (int i = 0; i < F; i++) {
        char name[64], *words = NULL;
        oq_image image = {0};
        snprintf(name, sizeof name, "frame_%05d.png", i + 1);
        char *file = oq_path_join(env, path, name);
        if (oq_png_read(env, file, &image) != OQ_OK) fail_msg("%s", oq_env_error(env));
        assert_memory_equal(image.pixels, pixels + i * W * H * 3, W * H * 3);
        assert_int_equal(oq_png_read_text(env, file, "parameters", &words), OQ_OK);
        assert_string_equal(words, "a prompt");
        oq_free(env, words);
        oq_image_deinit(env, &image);
        oq_free(env, file);
    }
    /* a folder that is there and not empty is not overwritten, and nothing is left beside it */
    assert_int_equal(type->write(env, path, &video, NULL, 0), OQ_E_IO);
    oq_env_clear(env);
    path[strlen(path) - 1] = '\0';
    char *part = oq_path_join(env, path, "");
    part[strlen(part) - 1] = '\0';
    oq_free(env, part);
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.part", path);
    assert_false(oq_file_exists(beside));
    oq_free(env, path);
}

/* Header, then "FRAME" and three planes for each; gray stays gray. */
static void test_y4m(void **state)
{
    oq_env *env = *state;
    oq_video video = make_video();
    const oq_video_type *type = NULL;
    char *path = oq_path_join(env, scratch_dir(OMNIQ_BINARY_DIR, "video_y4m"), "x.y4m"), *bytes = NULL;
    size_t n = 0;
    memset(pixels, 255, W * H * 3);           /* white */
    memset(pixels + W * H * 3, 0, W * H * 3); /* black */
    assert_int_equal(oq_video_find(env, path, &type), OQ_OK);
    if (type->write(env, path, &video, NULL, 0) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(oq_file_read(env, path, 1 << 20, &bytes, &n), OQ_OK);
    const char header[] = "YUV4MPEG2 W16 H12 F12500:1000 Ip A1:1 C444 XCOLORRANGE=LIMITED\n";
    const size_t h = sizeof header - 1, frame = 6 + W * H * 3;
    assert_int_equal(n, h + F * frame);
    assert_memory_equal(bytes, header, h);
    for (int i = 0; i < 2; i++) {
        const unsigned char *at = (const unsigned char *)bytes + h + (size_t)i * frame;
        assert_memory_equal(at, "FRAME\n", 6);
        assert_int_equal(at[6], i ? 16 : 235);
        assert_int_equal(at[6 + W * H], 128);
        assert_int_equal(at[6 + 2 * W * H], 128);
    }
    oq_free(env, bytes);
    oq_free(env, path);
}

/* Moving shades that a lossy encoder keeps well. */
static void fill_smooth(void)
{
    for (int f = 0; f < F; f++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                uint8_t *p = pixels + ((f * H + y) * W + x) * 3;
                p[0] = (uint8_t)(60 + 4 * x + 6 * f), p[1] = (uint8_t)(80 + 5 * y),
                p[2] = (uint8_t)(200 - 3 * x - 4 * f);
            }
}

static const oq_video_type *type_of(oq_env *env, const char *name, const oq_video *video, char **path)
{
    const oq_video_type *type = NULL;
    char folder[64];
    snprintf(folder, sizeof folder, "video_%s", name);
    *path = oq_path_join(env, scratch_dir(OMNIQ_BINARY_DIR, folder), name);
    const oq_status st = oq_video_find(env, *path, &type);
    if (st == OQ_E_UNSUPPORTED) { /* a build without the library names the package */
        assert_non_null(strstr(oq_env_error(env), "install lib"));
        oq_env_clear(env);
        return NULL;
    }
    assert_int_equal(st, OQ_OK);
    const oq_image_text texts[] = {{"parameters", "a prompt"}, {"omniq", "{}"}};
    if (type->write(env, *path, video, texts, 2) != OQ_OK) fail_msg("%s", oq_env_error(env));
    return type;
}

#ifdef OMNIQ_HAVE_WEBP
static void check_webp(const char *bytes, size_t n)
{
    const WebPData data = {(const uint8_t *)bytes, n};
    WebPAnimDecoderOptions options;
    WebPAnimInfo info;
    assert_true(WebPAnimDecoderOptionsInit(&options));
    WebPAnimDecoder *decoder = WebPAnimDecoderNew(&data, &options);
    assert_non_null(decoder);
    assert_true(WebPAnimDecoderGetInfo(decoder, &info));
    assert_int_equal(info.frame_count, F);
    assert_int_equal(info.canvas_width, W);
    assert_int_equal(info.loop_count, 0);
    uint8_t *rgba;
    int at_ms = 0;
    for (int f = 0; f < F; f++) {
        double squares = 0;
        assert_true(WebPAnimDecoderGetNext(decoder, &rgba, &at_ms));
        assert_int_equal(at_ms, 80 * (f + 1)); /* its end, 12.5 frames a second */
        for (int i = 0; i < W * H; i++)
            for (int c = 0; c < 3; c++) {
                const double d = (double)rgba[4 * i + c] - pixels[(f * W * H + i) * 3 + c];
                squares += d * d;
            }
        assert_true(squares / (W * H * 3) < 20); /* 35 dB */
    }
    WebPAnimDecoderDelete(decoder);
}
#else
static void check_webp(const char *bytes, size_t n)
{
    (void)bytes, (void)n;
}
#endif

static void test_animated_webp(void **state)
{
    oq_env *env = *state;
    oq_video video = make_video();
    char *path = NULL, *bytes = NULL, *text = NULL;
    size_t n = 0;
    fill_smooth();
    if (type_of(env, "x.webp", &video, &path)) {
        assert_int_equal(oq_file_read(env, path, 1 << 20, &bytes, &n), OQ_OK);
        check_webp(bytes, n);
        assert_int_equal(oq_image_read_text(env, path, "parameters", &text), OQ_OK);
        assert_string_equal(text, "a prompt");
    }
    oq_free(env, text);
    oq_free(env, bytes);
    oq_free(env, path);
}

#ifdef OMNIQ_HAVE_FFMPEG
typedef struct decoded {
    int frames;
    double squares; /* of the luma's differences */
} decoded;

static void take_frames(AVCodecContext *codec, AVFrame *frame, decoded *d)
{
    while (avcodec_receive_frame(codec, frame) >= 0) {
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                const uint8_t *p = pixels + ((d->frames * H + y) * W + x) * 3;
                const double luma = 16 + 219 * (0.2126 * p[0] + 0.7152 * p[1] + 0.0722 * p[2]) / 255;
                const double apart = luma - frame->data[0][y * frame->linesize[0] + x];
                d->squares += apart * apart;
            }
        d->frames++;
    }
}

static void check_mp4(const char *path)
{
    AVFormatContext *format = NULL;
    decoded d = {0};
    assert_true(avformat_open_input(&format, path, NULL, NULL) >= 0);
    assert_true(avformat_find_stream_info(format, NULL) >= 0);
    const AVStream *stream = format->streams[0];
    assert_int_equal(stream->codecpar->width, W);
    assert_true(fabs(av_q2d(stream->avg_frame_rate) - 12.5) < 0.01);
    const AVDictionaryEntry *comment = av_dict_get(format->metadata, "comment", NULL, 0);
    assert_non_null(comment);
    assert_string_equal(comment->value, "a prompt");
    AVCodecContext *codec = avcodec_alloc_context3(NULL);
    avcodec_parameters_to_context(codec, stream->codecpar);
    assert_true(avcodec_open2(codec, avcodec_find_decoder(codec->codec_id), NULL) >= 0);
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    while (av_read_frame(format, packet) >= 0) {
        avcodec_send_packet(codec, packet);
        take_frames(codec, frame, &d);
        av_packet_unref(packet);
    }
    avcodec_send_packet(codec, NULL);
    take_frames(codec, frame, &d);
    assert_int_equal(d.frames, F);
    printf("%s: luma %.1f dB\n", avcodec_get_name(codec->codec_id),
           10 * log10(255.0 * 255.0 * F * W * H / d.squares));
    assert_true(d.squares / (F * W * H) < 6.5); /* 40 dB */
    av_frame_free(&frame);
    av_packet_free(&packet);
    avcodec_free_context(&codec);
    avformat_close_input(&format);
}
#else
static void check_mp4(const char *path)
{
    (void)path;
}
#endif

static void test_mp4(void **state)
{
    oq_env *env = *state;
    oq_video video = make_video();
    static const char *const names[] = {"x.mp4", "x.mkv"};
    fill_smooth();
    for (size_t i = 0; i < 2; i++) {
        char *path = NULL;
        if (type_of(env, names[i], &video, &path) && i == 0) check_mp4(path);
        oq_free(env, path);
    }
    const oq_video_type *type = NULL;
    if (oq_video_find(env, "y.mp4", &type) == OQ_OK) {
        video.width = 15;
        assert_int_equal(type->write(env, "y.mp4", &video, NULL, 0), OQ_E_ARG);
        assert_non_null(strstr(oq_env_error(env), "frames of 15 x 12 pixels, sides must be even"));
    }
    oq_env_clear(env);
}

static void test_names(void **state)
{
    oq_env *env = *state;
    const oq_video_type *type = NULL;
    assert_int_equal(oq_video_find(env, "-", &type), OQ_OK);
    assert_string_equal(type->name, "Y4M");
    assert_int_equal(oq_video_find(env, "a.Y4M", &type), OQ_OK);
    assert_int_equal(oq_video_find(env, "some.dir/frames", &type), OQ_OK);
    assert_string_equal(type->name, "folder");
    assert_int_equal(oq_video_find(env, "x.gif", &type), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "output 'x.gif': this build writes videos as "));
    assert_non_null(strstr(oq_env_error(env), "or a folder of pictures (no ending), not '.gif'"));
    oq_env_clear(env);
    assert_int_equal(oq_video_find(env, "x.png", &type), OQ_E_ARG); /* one frame would pass for the video */
    oq_env_clear(env);
    assert_int_equal(oq_video_find(env, oq_video_ending(), &type),
                     OQ_OK); /* a bare ".mp4" is a folder's name */
    for (size_t i = 0; oq_video_list[i]; i++)
        assert_true(oq_video_list[i]->write || oq_video_list[i]->missing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_folder_of_pictures),
                                       cmocka_unit_test(test_y4m), cmocka_unit_test(test_animated_webp),
                                       cmocka_unit_test(test_mp4), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests_name("video", tests, setup, teardown);
}
