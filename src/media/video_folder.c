/* video_folder.c -- a folder of pictures, one per frame. It appears whole or not at all: frames go to a folder beside it,
 * which then takes its name. */
#include "base/file.h"
#include "base/strbuf.h"
#include "media/video.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void remove_frames(const char *folder, int64_t frames)
{
    char path[4200];
    for (int64_t i = 0; i < frames; i++) {
        snprintf(path, sizeof path, "%s/frame_%05lld.png", folder, (long long)i + 1);
        unlink(path);
    }
    rmdir(folder);
}

static oq_status write_frames(oq_env *env, const char *folder, const oq_video *video,
                              const oq_image_text *texts, size_t n_texts)
{
    const size_t frame = (size_t)(video->width * video->height * 3);
    char path[4200];
    for (int64_t i = 0; i < video->frames; i++) {
        OQ_TRY(oq_check_canceled(env));
        snprintf(path, sizeof path, "%s/frame_%05lld.png", folder, (long long)i + 1);
        OQ_TRY(oq_png_write(env, path, video->width, video->height, video->pixels + (size_t)i * frame, texts,
                            n_texts));
    }
    return OQ_OK;
}

static oq_status write_folder(oq_env *env, const char *path, const oq_video *video,
                              const oq_image_text *texts, size_t n_texts)
{
    char part[4100];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n + 16 > sizeof part) return oq_fail(env, OQ_E_ARG, "output '%.64s...': the name is too long", path);
    snprintf(part, sizeof part, "%.*s.part", (int)n, path);
    OQ_TRY(oq_dir_make(env, part));
    oq_status st = write_frames(env, part, video, texts, n_texts);
    char target[4100];
    snprintf(target, sizeof target, "%.*s", (int)n, path);
    if (st == OQ_OK && rename(part, target) != 0)
        st = oq_fail(env, OQ_E_IO, "output '%s': %s", target, strerror(errno));
    if (st != OQ_OK) remove_frames(part, video->frames);
    return st;
}

const oq_video_type oq_video_folder = {.name = "folder", .endings = "", .write = write_folder};
