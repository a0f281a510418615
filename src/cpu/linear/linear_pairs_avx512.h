/* linear_pairs_avx512.h -- pieces of panels of bf16 pairs, for engines of 512 bits over weights in their format's own planes.
 * Included behind NR, the columns of a panel, linear_micro_avx512.h and linear_any_pairs.h. */

/* dst[i][j] = src[j][i] for 16 x 16 dwords; rows of src are PAIR_ROW numbers apart, those of dst NR dwords. */
static void transpose16(uint32_t *dst, const uint16_t *src)
{
    __m512i r[16];
    OQ_UNROLL
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(src + i * PAIR_ROW);
    v_transpose16(dst, NR, r);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return pairs_decode(job, buffer, panel, first, count, transpose16);
}
