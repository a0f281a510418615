/* format_block.h -- shared by GGUF's formats: blocks that hold codes and scales together. */
#ifndef OQ_FORMAT_FORMAT_BLOCK_H
#define OQ_FORMAT_FORMAT_BLOCK_H

#include "format/float8.h"
#include "format/format_scaled.h"

size_t oq_block_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k);
void oq_block_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                          int64_t count, int64_t n, int64_t k);
void oq_block_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k);

/* A format of these blocks; `encoder` is oq_block_encode, or NULL for what is only read. */
#define OQ_BLOCK_FORMAT(label, word, blocks, size, encoder)                                                  \
    {                                                                                                        \
        .name = label, .kernel_name = word, .planes = 1u << OQ_PLANE_DATA, .block = &(blocks), .flat = true,      \
        .block_n = 1, .block_k = size, .plane_bytes = oq_block_plane_bytes, .decode_row = oq_span_decode_row,              \
        .decode_span = oq_block_decode_span, .encode = encoder                                               \
    }

/* Numbers inside blocks have any alignment; the machine is little-endian, as the files are. */
static inline uint16_t oq_block_u16(const uint8_t *at)
{
    uint16_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline uint32_t oq_block_u32(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline float oq_block_f16(const uint8_t *at)
{
    return oq_f16_to_f32(oq_block_u16(at));
}

/* Stores x as f16 and returns nothing of it: encoders that need the rounded number read it back. */
static inline void oq_block_put_f16(uint8_t *at, float x)
{
    const uint16_t h = oq_f16_from_f32(x);
    memcpy(at, &h, sizeof h);
}

/* Nearest even integer of |x| < 2^22. */
static inline int oq_block_nearest(float x)
{
    const float shifted = x + 12582912.0f;
    return (int)(oq_f32_bits(shifted) & 0x007fffffu) - 0x00400000;
}

static inline int oq_block_clamp(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

/* Levels of the two formats that place sixteen values unevenly: their list, and the index of the nearest (a tie goes
 * up). */
extern const int8_t oq_iq4_levels[16];
int oq_iq4_nearest(float x);
float oq_iq4_scale(const float *x); /* the scale that 32 numbers lose least under; 0: they are zero */

/* The eight scales and eight minima of Q4_K and Q5_K, six bits each in twelve bytes. */
void oq_k_scales_read(const uint8_t *packed, uint8_t *scale, uint8_t *min);
void oq_k_scales_write(uint8_t *packed, const uint8_t *scale, const uint8_t *min);
/* The sixteen scales of Q3_K, six bits each in twelve bytes; -32 .. 31. */
void oq_q3_scales_read(const uint8_t *packed, int8_t *scale);
void oq_q3_scales_write(uint8_t *packed, const int8_t *scale);

/* format_k_encode.c */
void oq_q2_k_encode(uint8_t *dst, const float *src);
void oq_q3_k_encode(uint8_t *dst, const float *src);
void oq_q4_k_encode(uint8_t *dst, const float *src);
void oq_q5_k_encode(uint8_t *dst, const float *src);
void oq_q6_k_encode(uint8_t *dst, const float *src);
void oq_q8_k_encode(uint8_t *dst, const float *src);

#endif
