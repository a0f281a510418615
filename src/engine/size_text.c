/* size_text.c -- sizes of memory as people write them: digits, then B, K, M, G or T in powers of 1024. */
#include "engine/engine.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

oq_status oq_size_parse(oq_env *env, const char *option, const char *text, size_t *bytes)
{
    static const char units[] = "BKMGT";
    char *end = NULL;
    const double number = strtod(text, &end);
    const char *const unit = *end ? strchr(units, toupper((unsigned char)*end)) : units;
    const char *const rest = *end ? end + 1 : end;
    if (end == text || !unit || !(number > 0) ||
        (*rest && strcasecmp(rest, "B") != 0 && strcasecmp(rest, "iB") != 0))
        return oq_fail(env, OQ_E_ARG, "--%s '%s': want a size such as 12GiB, 800M or 8589934592", option,
                       text);
    const double size = number * exp2(10.0 * (double)(unit - units));
    if (size >= 0x1p62) return oq_fail(env, OQ_E_ARG, "--%s '%s' is larger than any memory", option, text);
    *bytes = (size_t)size;
    return OQ_OK;
}
