/* image_read.c -- a picture of any type that this build reads. */
#include "media/image.h"

oq_status oq_image_read(oq_env *env, const char *path, oq_image *out)
{
    return oq_png_read(env, path, out);
}
