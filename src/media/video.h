/* video.h -- videos on disk: a list of writers, chosen by the ending of the file's name. */
#ifndef OQ_MEDIA_VIDEO_H
#define OQ_MEDIA_VIDEO_H

#include "media/image.h"

typedef struct oq_video {
    int64_t width, height, frames;
    double fps;
    const uint8_t *pixels; /* [frames, height, width, 3] */
} oq_video;

typedef struct oq_video_type { /* one way to write a video: one file each, one row in video_list.c */
    const char *name;      /* "MP4" */
    const char *endings;   /* csv: ".mp4,.mov"; "": a folder of pictures */
    const char *missing;   /* NULL: in this build; else what it would need */
    /* `path` appears whole or not at all; texts go where the type has a place for them. */
    oq_status (*write)(oq_env *env, const char *path, const oq_video *video, const oq_image_text *texts, size_t n_texts);
} oq_video_type;

extern const oq_video_type *const oq_video_list[]; /* NULL-terminated */
/* The type that `path` asks for ("-": Y4M); OQ_E_ARG where it is unknown, OQ_E_UNSUPPORTED where this build lacks it. */
oq_status oq_video_find(oq_env *env, const char *path, const oq_video_type **out);
/* The ending of a name that nobody chose: that of the first type in this build. */
const char *oq_video_ending(void);

#endif
