/* noise.c -- torch's CPU randn, draw for draw. The draws are integers and agree exactly; the transcendental
 * functions are taken in double of the same float32 arguments, so that a seed gives the same picture with
 * every libm. */
#include "sched/noise.h"

#include <math.h>

enum { N = 624, M = 397, BLOCK = 16 };

static const double TWO_PI = 6.283185307179586476925286766559;

void oq_rng_seed(oq_rng *rng, uint64_t seed)
{
    rng->state[0] = (uint32_t)seed; /* torch keeps the low 32 bits as well */
    for (uint32_t i = 1; i < N; i++) {
        const uint32_t before = rng->state[i - 1];
        rng->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    rng->at = N;
    rng->next_normal = 0;
    rng->has_next = 0;
}

static uint32_t twist(uint32_t high, uint32_t low)
{
    const uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
}

static void next_state(oq_rng *rng)
{
    uint32_t *s = rng->state;
    for (int i = 0; i < N - M; i++) s[i] = s[i + M] ^ twist(s[i], s[i + 1]);
    for (int i = N - M; i < N - 1; i++) s[i] = s[i + M - N] ^ twist(s[i], s[i + 1]);
    s[N - 1] = s[M - 1] ^ twist(s[N - 1], s[0]);
    rng->at = 0;
}

uint32_t oq_rng_u32(oq_rng *rng)
{
    if (rng->at >= N) next_state(rng);
    uint32_t y = rng->state[rng->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* [0, 1) with 24 bits. */
static void fill_uniform(oq_rng *rng, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) dst[i] = (float)(oq_rng_u32(rng) & 0xffffffu) * 0x1p-24f;
}

/* Box-Muller in place: 8 radii in the first half of the block, 8 angles in the second. */
static void normal_block(float *block)
{
    for (int i = 0; i < BLOCK / 2; i++) {
        const float u = 1.0f - block[i]; /* (0, 1] */
        const float angle = (float)TWO_PI * block[i + BLOCK / 2];
        const float radius = (float)sqrt((double)(-2.0f * (float)log((double)u)));
        block[i] = radius * (float)cos((double)angle);
        block[i + BLOCK / 2] = radius * (float)sin((double)angle);
    }
}

/* [0, 1) with 53 bits of two words, the first above the second. */
static double uniform_53(oq_rng *rng)
{
    const uint64_t high = oq_rng_u32(rng);
    const uint64_t both = high << 32 | oq_rng_u32(rng);
    return (double)(both & ((1ull << 53) - 1)) * 0x1p-53;
}

static float normal_scalar(oq_rng *rng)
{
    if (rng->has_next) {
        rng->has_next = 0;
        return (float)rng->next_normal;
    }
    const double u1 = uniform_53(rng), u2 = uniform_53(rng);
    const double radius = sqrt(-2.0 * log1p(-u2)), angle = TWO_PI * u1;
    rng->next_normal = radius * sin(angle);
    rng->has_next = 1;
    return (float)(radius * cos(angle));
}

void oq_rng_normal(oq_rng *rng, float *dst, size_t n)
{
    if (n < BLOCK) {
        for (size_t i = 0; i < n; i++) dst[i] = normal_scalar(rng);
        return;
    }
    fill_uniform(rng, dst, n);
    for (size_t i = 0; i + BLOCK <= n; i += BLOCK) normal_block(dst + i);
    if (n % BLOCK == 0) return;
    fill_uniform(rng, dst + n - BLOCK, BLOCK);
    normal_block(dst + n - BLOCK);
}
