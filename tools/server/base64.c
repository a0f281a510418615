/* base64.c -- RFC 4648, for pictures within JSON. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *base64_encode(const uint8_t *bytes, size_t n)
{
    char *text = malloc((n + 2) / 3 * 4 + 1), *at = text;
    if (!text) return NULL;
    for (size_t i = 0; i < n; i += 3) {
        const unsigned b = i + 1 < n ? bytes[i + 1] : 0, c = i + 2 < n ? bytes[i + 2] : 0;
        const unsigned word = (unsigned)bytes[i] << 16 | b << 8 | c;
        *at++ = digits[word >> 18];
        *at++ = digits[word >> 12 & 63];
        *at++ = i + 1 < n ? digits[word >> 6 & 63] : '=';
        *at++ = i + 2 < n ? digits[word & 63] : '=';
    }
    *at = '\0';
    return text;
}

/* "data:image/png;base64," in front is passed over. */
static const char *content_of(const char *text)
{
    const char *comma = strncmp(text, "data:", 5) == 0 ? strchr(text, ',') : NULL;
    if (!comma) return text;
    return comma - text > 7 && strncmp(comma - 7, ";base64", 7) == 0 ? comma + 1 : NULL;
}

uint8_t *base64_decode(const char *text, size_t *n)
{
    const char *at = content_of(text);
    uint8_t *bytes = at ? malloc(strlen(at) / 4 * 3 + 3) : NULL;
    unsigned word = 0, held = 0;
    *n = 0;
    if (!bytes) return NULL;
    for (; *at && *at != '='; at++) {
        const char *digit = strchr(digits, *at);
        if (!digit) return free(bytes), NULL;
        word = word << 6 | (unsigned)(digit - digits);
        if (++held < 4) continue;
        for (int shift = 16; shift >= 0; shift -= 8) bytes[(*n)++] = (uint8_t)(word >> shift);
        word = held = 0;
    }
    const size_t padding = strspn(at, "=");
    if (at[padding] || held == 1 || (padding && held + padding != 4)) return free(bytes), NULL;
    for (unsigned i = 1; i < held; i++) bytes[(*n)++] = (uint8_t)(word << (24 - 6 * held) >> (24 - 8 * i));
    return bytes;
}
