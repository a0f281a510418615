/* word_codes.h -- codes of 2 to 8 bits in words of 32: in a stream, in planes, or in AWQ's order. Private to this room. */
#ifndef OQ_QUANT_WORD_CODES_H
#define OQ_QUANT_WORD_CODES_H

#include "base/size.h"
#include "ckpt/ckpt.h"

#include <string.h>

static inline uint32_t word_at(const oq_ckpt_tensor *t, int64_t i)
{
    uint32_t word;
    memcpy(&word, t->data + i * 4, sizeof word);
    return word;
}

/* Number i of a stream of codes in words that stand `step` apart, the first of them at word `first`. */
static inline uint32_t code_at(const oq_ckpt_tensor *t, int64_t first, int64_t step, int64_t i, int64_t bits)
{
    const int64_t bit = i * bits, at = bit / 32, shift = bit % 32;
    uint64_t word = word_at(t, first + at * step);
    if (shift + bits > 32) word |= (uint64_t)word_at(t, first + (at + 1) * step) << 32;
    return (uint32_t)(word >> shift) & ((1u << bits) - 1);
}

/* Words of a whole stream of n codes. */
static inline int64_t words_of(int64_t n, int64_t bits)
{
    return oq_ceil_div(n * bits, 32);
}

/* The same where each run of 32 codes stands in planes: of its lower four bits (two of codes below four), then of the next two, then
 * of one; a plane's words hold whole parts of codes. */
static inline uint32_t plane_code_at(const oq_ckpt_tensor *t, int64_t first, int64_t step, int64_t i, int64_t bits)
{
    int64_t at = i / 32 * bits, done = 0;
    uint32_t code = 0;
    while (done < bits) {
        const int64_t left = bits - done, width = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        const int64_t each = 32 / width, j = i % 32;
        const uint32_t word = word_at(t, first + (at + j / each) * step);
        code |= (word >> j % each * width & ((1u << width) - 1u)) << done;
        at += width, done += width;
    }
    return code;
}

/* Nibble of a word in which AWQ has column c of eight. */
static inline int64_t awq_nibble(int64_t c)
{
    return c % 2 ? 4 + c / 2 : c / 2;
}

static inline uint32_t awq_code(const oq_ckpt_tensor *t, int64_t column, int64_t row, int64_t bits)
{
    (void)bits; /* four */
    const uint32_t word = word_at(t, row * t->dim[1] + column / 8);
    return word >> 4 * awq_nibble(column % 8) & 15;
}

#endif
