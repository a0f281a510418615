/* ending.c -- what the end of an output's name asks for. */
#include "media/ending.h"

#include "base/file.h"
#include "base/names.h"
#include "media/image_type.h"
#include "media/video.h"

#include <string.h>

const char *oq_ending_of(const char *path)
{
    const char *leaf = oq_path_leaf(path), *dot = strrchr(leaf, '.');
    return dot && dot != leaf ? dot : "";
}

bool oq_ending_among(const char *ending, const char *csv)
{
    char word[16];
    for (size_t i = 0; oq_csv_word(csv, i, word, sizeof word); i++)
        if (oq_name_equal(ending, word)) return true;
    return false;
}

void oq_endings_put(oq_strbuf *list, const char *csv)
{
    char word[16];
    for (size_t i = 0; oq_csv_word(csv, i, word, sizeof word); i++)
        oq_strbuf_printf(list, "%s%s", list->size ? ", " : "", word);
}

static bool known(const char *ending)
{
    for (size_t i = 0; oq_image_list[i]; i++)
        if (oq_ending_among(ending, oq_image_list[i]->endings)) return true;
    for (size_t i = 0; oq_video_list[i]; i++)
        if (oq_ending_among(ending, oq_video_list[i]->endings)) return true;
    return false;
}

oq_status oq_ending_check(oq_env *env, const char *path)
{
    const char *ending = oq_ending_of(path);
    oq_strbuf pictures, videos;
    if (!*ending || known(ending)) return OQ_OK; /* without one it may be a folder of frames */
    oq_strbuf_init(&pictures, env);
    oq_strbuf_init(&videos, env);
    for (size_t i = 0; oq_image_list[i]; i++)
        if (!oq_image_list[i]->missing) oq_endings_put(&pictures, oq_image_list[i]->endings);
    for (size_t i = 0; oq_video_list[i]; i++)
        if (!oq_video_list[i]->missing) oq_endings_put(&videos, oq_video_list[i]->endings);
    const oq_status st =
        oq_fail(env, OQ_E_ARG, "output '%s': this build writes pictures as %s and videos as %s, not '%s'",
                path, oq_strbuf_text(&pictures), oq_strbuf_text(&videos), ending);
    oq_strbuf_deinit(&videos);
    oq_strbuf_deinit(&pictures);
    return st;
}
