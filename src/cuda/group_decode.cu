/* group_decode.cu -- compressed weights to bf16 or f32 rows in scratch, for products of many rows. */
#include "cuda/group.cuh"

#define THREADS 256

/* Item: sixteen bytes of codes. Its columns are 16 j + 4 q .. + 3 of a block: runs of four, each within one group. */
template <int BITS>
__global__ void __launch_bounds__(THREADS) decode_kernel(oq_cu_view dst, oq_cu_group w, int64_t first)
{
    constexpr int ENTRIES = BITS == 4 ? 16 : 256, RUNS = BITS == 4 ? 8 : 4, PIECES = 8 * BITS;
    __shared__ float table[ENTRIES];
    for (int i = (int)threadIdx.x; i < ENTRIES; i += THREADS) table[i] = number_of(w.code, i);
    __syncthreads();
    const int64_t per_row = w.blocks * (PIECES / 8), n = dst.rows * per_row;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        const int64_t r = i / per_row, piece = i - r * per_row, row = first + r;
        const int64_t block = piece / (PIECES / 8);
        const int part = (int)(piece % (PIECES / 8)), q = BITS == 4 ? part : part / 2,
                  j0 = BITS == 4 ? 0 : part % 2 * 4;
        const uint4 u = *(const uint4 *)(w.codes + part_at(w, row, block) * (16 * BITS) + part * 16);
        const uint32_t words[4] = {u.x, u.y, u.z, u.w};
        float scale = 0.0f, zero = 0.0f;
        int64_t known = -1;
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            const int64_t col = block * BLOCK_K + (j0 + j) * 16 + q * 4;
            if (col >= w.k) break;
            const int64_t at = col / w.group;
            if (at != known) scale = scale_of(w, row, at), zero = zero_of(w, row, at), known = at;
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t code =
                    BITS == 4 ? words[j / 2] >> (j % 2 * 16 + e * 4) & 15u : words[j] >> (e * 8) & 255u;
                v[e] = (table[code] - zero) * scale;
            }
            const int64_t to = r * dst.ld + col;
            if (col + 4 <= w.k && dst.type == OQ_CU_BF16 && dst.ld % 4 == 0) {
                *(uint2 *)((__nv_bfloat16 *)dst.data + to) =
                    make_uint2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]));
            } else {
                for (int e = 0; e < 4 && col + e < w.k; e++) {
                    const float one[1] = {v[e]};
                    store<1>(dst, to + e, one);
                }
            }
        }
    }
}

extern "C" void oq_cu_group_decode(cudaStream_t stream, oq_cu_view dst, const oq_cu_group *w, int64_t first)
{
    if (dst.rows <= 0) return;
    const unsigned grid = blocks_for(dst.rows * w->blocks * w->bits, THREADS, 132 * 16);
    if (w->bits == 4)
        decode_kernel<4><<<grid, THREADS, 0, stream>>>(dst, *w, first);
    else
        decode_kernel<8><<<grid, THREADS, 0, stream>>>(dst, *w, first);
}
