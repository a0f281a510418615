/* sha256.c -- FIPS 180-4, plain. Constants are the fractional parts of roots of primes, computed here. */
#include "support/sha256.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, int by)
{
    return x >> by | x << (32 - by);
}

/* First 32 bits behind the point of x's root. */
static uint32_t fraction(long double x)
{
    return (uint32_t)((x - floorl(x)) * 4294967296.0L);
}

static void constants(uint32_t h[8], uint32_t k[64])
{
    for (int n = 0, p = 2; n < 64; p++) {
        int d = 2;
        while (d * d <= p && p % d) d++;
        if (d * d <= p) continue;
        if (n < 8) h[n] = fraction(sqrtl((long double)p));
        k[n++] = fraction(cbrtl((long double)p));
    }
}

static void block(uint32_t h[8], const uint32_t k[64], const uint8_t *at)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)at[4 * i] << 24 | (uint32_t)at[4 * i + 1] << 16 | (uint32_t)at[4 * i + 2] << 8 |
               at[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t t =
            v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t u =
            (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void sha256_hex(const void *bytes, size_t n, char out[65])
{
    uint32_t h[8], k[64];
    uint8_t tail[128] = {0};
    const uint8_t *at = bytes;
    const size_t whole = n / 64 * 64, rest = n - whole, tail_bytes = rest < 56 ? 64 : 128;
    constants(h, k);
    for (size_t i = 0; i < whole; i += 64) block(h, k, at + i);
    if (rest) memcpy(tail, at + whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) tail[tail_bytes - 1 - (size_t)i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < tail_bytes; i += 64) block(h, k, tail + i);
    for (int i = 0; i < 8; i++) snprintf(out + 8 * i, 9, "%08x", h[i]);
}
