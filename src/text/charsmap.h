/* charsmap.h -- the character map of a SentencePiece model ("Precompiled"): which characters become which text. */
#ifndef OQ_TEXT_CHARSMAP_H
#define OQ_TEXT_CHARSMAP_H

#include "base/strbuf.h"

typedef struct oq_charsmap oq_charsmap;

/* From base64 text: the bytes of a double-array trie behind their 32-bit count, then texts with a NUL each. An empty
 * text is a map that changes nothing. `source` names the file in errors. */
oq_status oq_charsmap_new(oq_env *env, const char *source, const char *base64, oq_charsmap **out);
void oq_charsmap_free(oq_env *env, oq_charsmap *map);
/* Appends `text` (valid UTF-8) as the map has it, grapheme by grapheme. */
oq_status oq_charsmap_run(oq_env *env, const oq_charsmap *map, const char *text, size_t n, oq_strbuf *out);

#endif
