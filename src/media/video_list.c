/* video_list.c -- the ways to write a video: one line each, the preferred first. */
#include "media/video.h"

#include "media/ending.h"

#include <string.h>

extern const oq_video_type oq_video_folder, oq_video_mp4, oq_video_webp, oq_video_y4m;

/* clang-format off */
const oq_video_type *const oq_video_list[] = {
    &oq_video_mp4,
    &oq_video_webp,
    &oq_video_y4m,
    &oq_video_folder,
    NULL,
};
/* clang-format on */

static oq_status unknown(oq_env *env, const char *path, const char *ending)
{
    oq_strbuf known;
    oq_strbuf_init(&known, env);
    for (size_t i = 0; oq_video_list[i]; i++)
        if (!oq_video_list[i]->missing) oq_endings_put(&known, oq_video_list[i]->endings);
    const oq_status st =
        oq_fail(env, OQ_E_ARG,
                "output '%s': this build writes videos as %s, or a folder of pictures (no ending), not '%s'",
                path, oq_strbuf_text(&known), ending);
    oq_strbuf_deinit(&known);
    return st;
}

oq_status oq_video_find(oq_env *env, const char *path, const oq_video_type **out)
{
    const char *ending = oq_ending_of(path);
    *out = &oq_video_y4m;
    if (strcmp(path, "-") == 0) return OQ_OK;
    *out = &oq_video_folder;
    if (!*ending) return OQ_OK;
    for (size_t i = 0; oq_video_list[i]; i++) {
        if (!oq_ending_among(ending, oq_video_list[i]->endings)) continue;
        if (oq_video_list[i]->missing)
            return oq_fail(env, OQ_E_UNSUPPORTED, "output '%s': %s", path, oq_video_list[i]->missing);
        *out = oq_video_list[i];
        return OQ_OK;
    }
    *out = NULL;
    return unknown(env, path, ending);
}

const char *oq_video_ending(void)
{
    static const char *const endings[] = {".mp4", ".webp"};
    for (size_t i = 0; i < OQ_COUNT(endings); i++)
        for (size_t j = 0; oq_video_list[j]; j++)
            if (oq_ending_among(endings[i], oq_video_list[j]->endings) && !oq_video_list[j]->missing)
                return endings[i];
    return ".y4m";
}
