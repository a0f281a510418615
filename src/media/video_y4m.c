/* video_y4m.c -- YUV4MPEG2: raw frames that every video tool reads, also from a pipe. Colours at full resolution (4:4:4),
 * BT.601, limited range. */
#include "base/file.h"
#include "media/video.h"

#include <math.h>
#include <stdio.h>

/* Rows of planes y, u, v. */
static void convert(const uint8_t *rgb, int64_t n, uint8_t *planes)
{
    for (int64_t i = 0; i < n; i++) {
        const double r = rgb[3 * i], g = rgb[3 * i + 1], b = rgb[3 * i + 2];
        planes[i] = (uint8_t)lrint(16 + (65.481 * r + 128.553 * g + 24.966 * b) / 255);
        planes[n + i] = (uint8_t)lrint(128 + (-37.797 * r - 74.203 * g + 112.0 * b) / 255);
        planes[2 * n + i] = (uint8_t)lrint(128 + (112.0 * r - 93.786 * g - 18.214 * b) / 255);
    }
}

static oq_status write_frames(oq_env *env, oq_file_writer *file, const oq_video *video)
{
    const int64_t n = video->width * video->height;
    uint8_t *planes = NULL;
    char header[160];
    const int length =
        snprintf(header, sizeof header, "YUV4MPEG2 W%lld H%lld F%lld:1000 Ip A1:1 C444 XCOLORRANGE=LIMITED\n",
                 (long long)video->width, (long long)video->height, llround(video->fps * 1000));
    OQ_TRY(oq_new(env, (size_t)n, 3, "frame", &planes));
    oq_status st = oq_file_write(file, header, (size_t)length);
    for (int64_t i = 0; st == OQ_OK && i < video->frames; i++) {
        st = oq_check_canceled(env);
        convert(video->pixels + i * n * 3, n, planes);
        if (st == OQ_OK) st = oq_file_write(file, "FRAME\n", 6);
        if (st == OQ_OK) st = oq_file_write(file, planes, (size_t)(3 * n));
    }
    oq_free(env, planes);
    return st;
}

static oq_status write_y4m(oq_env *env, const char *path, const oq_video *video, const oq_image_text *texts,
                           size_t n_texts)
{
    oq_file_writer *file = NULL;
    (void)texts; /* the type has no place for them */
    (void)n_texts;
    OQ_TRY(oq_file_create(env, path, &file));
    const oq_status st = write_frames(env, file, video);
    if (st == OQ_OK) return oq_file_finish(file);
    oq_file_abort(file);
    return st;
}

const oq_video_type oq_video_y4m = {.name = "Y4M", .endings = ".y4m", .write = write_y4m};
