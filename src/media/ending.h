/* ending.h -- what the end of an output's name asks for: one reading of it for pictures, videos, and who does not know yet. */
#ifndef OQ_MEDIA_ENDING_H
#define OQ_MEDIA_ENDING_H

#include "base/strbuf.h"

/* ".png" of "a/b.png"; "" where the name has none ("frames", ".hidden"). Part of `path`. */
const char *oq_ending_of(const char *path);
bool oq_ending_among(const char *ending, const char *csv); /* of ".jpg,.jpeg"; case does not matter */
void oq_endings_put(oq_strbuf *list, const char *csv);     /* ", .jpg, .jpeg": behind what stands there already */
/* Before anybody knows whether pictures or videos come: OQ_E_ARG where neither are written so. "-" is fine. */
oq_status oq_ending_check(oq_env *env, const char *path);

#endif
