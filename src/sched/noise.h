/* noise.h -- torch's CPU generator: the same draws for the same seed (mt19937 of the seed's low 32 bits). */
#ifndef OQ_SCHED_NOISE_H
#define OQ_SCHED_NOISE_H

#include <stddef.h>
#include <stdint.h>

typedef struct oq_rng {
    uint32_t state[624];
    int      at;
    double   next_normal; /* torch's cached second normal of the scalar path */
    int      has_next;
} oq_rng;

void oq_rng_seed(oq_rng *rng, uint64_t seed);
uint32_t oq_rng_u32(oq_rng *rng);
/* torch.randn(n): blocks of 16 for n >= 16 (the last 16 redrawn if n % 16), the scalar double path below. */
void oq_rng_normal(oq_rng *rng, float *dst, size_t n);

#endif
