/* noise.h -- torch's CPU generator: the same draws for the same seed (mt19937 of the seed's low 32 bits). */
#ifndef OQ_SCHED_NOISE_H
#define OQ_SCHED_NOISE_H

#include <stddef.h>
#include <stdint.h>

typedef struct oq_rng {
    uint32_t state[624];
    int at;             /* next word of state; 624: twist first */
    double next_normal; /* torch's cached second normal of the scalar path */
    int has_next;
} oq_rng;

void oq_rng_seed(oq_rng *rng, uint64_t seed);
uint32_t oq_rng_u32(oq_rng *rng);
/* torch.randn(n), within 5e-7 of torch's vectorised logarithm and cosine. n >= 16: blocks of 16 (the last 16
 * redrawn if n % 16); below: one pair of doubles per two values, the second kept for the next short call.
 * Calls continue one stream. */
void oq_rng_normal(oq_rng *rng, float *dst, size_t n);

#endif
