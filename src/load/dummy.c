/* dummy.c -- weights that need no file: a tensor's values are a function of its name and the element's index,
 * so any published config runs at its real size without a download, and two implementations can be compared.
 *
 *   h = FNV-1a 64 of the name; z = splitmix64 of h + (i + 1) * golden; u = (z >> 48) / 32768 - 1; w = offset
 * + scale * u
 */
#include "load/load.h"

#include "base/names.h"

#include <math.h>
#include <string.h>

static uint64_t fnv1a64(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return h;
}

static bool is_embedding(const char *name)
{
    static const char *const words[] = {"embed_tokens",       "shared.weight", "token_embedding",
                                        "position_embedding", "wte.",          "relative_attention_bias"};
    for (size_t i = 0; i < OQ_COUNT(words); i++)
        if (strstr(name, words[i])) return true;
    return false;
}

/* Magnitudes that keep activations of deep networks in range: powers of two, so that f32 values are exact. */
void oq_dummy_rule(const char *name, const int64_t *dim, int n_dims, float *scale, float *offset)
{
    const char *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    double fan_in = 1;
    for (int i = 1; i < n_dims; i++) fan_in *= (double)dim[i];
    *offset = 0.0f;
    if (strstr(name, "running_mean") || oq_name_ends(leaf, "_mean")) {
        *scale = 0.25f;
    } else if (strstr(name, "running_var") || oq_name_ends(leaf, "_std")) {
        *scale = 0.25f, *offset = 1.0f;
    } else if (is_embedding(name)) {
        *scale = 1.0f;
    } else if (strstr(name, "scale_shift_table") || strcmp(leaf, "modulation") == 0) {
        *scale = 0.25f;
    } else if (n_dims >= 2 && fan_in > 1) {
        *scale = (float)exp2(nearbyint(log2(sqrt(3.0 / fan_in))));
    } else if (strcmp(leaf, "weight") == 0 || strcmp(leaf, "gamma") == 0 || strcmp(leaf, "scale") == 0) {
        *scale = 0.25f, *offset = 1.0f;
    } else {
        *scale = 0.125f;
    }
}

uint64_t oq_dummy_seed(const char *name)
{
    return fnv1a64(name);
}

void oq_dummy_fill_as(float *dst, const char *name, int64_t n, float scale, float offset)
{
    const uint64_t h = fnv1a64(name);
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = h + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        dst[i] = offset + scale * ((float)(z >> 48) / 32768.0f - 1.0f);
    }
}

void oq_dummy_fill(float *dst, const char *name, const int64_t *dim, int n_dims)
{
    float scale, offset;
    oq_dummy_rule(name, dim, n_dims, &scale, &offset);
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= dim[i];
    oq_dummy_fill_as(dst, name, n, scale, offset);
}
