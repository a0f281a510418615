/* iq_points.h -- the code books of GGUF's index types: point number i of each, ascending. */
#ifndef OQ_FORMAT_IQ_POINTS_H
#define OQ_FORMAT_IQ_POINTS_H

#include <stdint.h>

/* Eight coordinates of 0, 1, 2: digits to base 3, the first the lowest. */
extern const uint16_t oq_iq_points_2_xxs[256], oq_iq_points_2_xs[512], oq_iq_points_2_s[1024], oq_iq_points_1_s[2048];
/* Four coordinates of 0 .. 7: digits to base 8. */
extern const uint16_t oq_iq_points_3_xxs[256], oq_iq_points_3_s[512];

#endif
