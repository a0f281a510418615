/* unicode.h -- UTF-8: validity, repair, normalisation (a small layer over utf8proc). */
#ifndef OQ_BASE_UNICODE_H
#define OQ_BASE_UNICODE_H

#include "base/env.h"

bool   oq_utf8_valid(const char *text, size_t n);
/* Copies with each maximal invalid sequence replaced by U+FFFD (as Python's errors="replace"); caller frees. */
char  *oq_utf8_repair(oq_env *env, const char *text, size_t n, size_t *out_n);
/* NFC of valid UTF-8; caller frees; OQ_E_NOMEM. NUL bytes inside are kept. */
oq_status oq_utf8_nfc(oq_env *env, const char *text, size_t n, char **out, size_t *out_n);
/* The other normal forms, and lower case character by character (no final sigma), on the same terms. */
oq_status oq_utf8_nfd(oq_env *env, const char *text, size_t n, char **out, size_t *out_n);
oq_status oq_utf8_nfkc(oq_env *env, const char *text, size_t n, char **out, size_t *out_n);
oq_status oq_utf8_nfkd(oq_env *env, const char *text, size_t n, char **out, size_t *out_n);
oq_status oq_utf8_lower(oq_env *env, const char *text, size_t n, char **out, size_t *out_n);
/* Bytes of the character and of the extended grapheme cluster that begin at valid UTF-8 (n >= 1 bytes left). */
size_t oq_utf8_length(const char *text);
size_t oq_utf8_grapheme(const char *text, size_t n);
/* Of one character's bytes: Unicode's White_Space; letters, marks, decimal and letter numbers, connectors. */
bool oq_utf8_is_space(const char *character, size_t n);
bool oq_utf8_is_word(const char *character, size_t n);

#endif
