/* tiles.cuh -- which tiles of 128 keys a block of 128 queries goes through: all, or those that a block map names. */
#ifndef OQ_CUDA_TILES_CUH
#define OQ_CUDA_TILES_CUH

#include "cuda/device.cuh"

#define MAX_CHOSEN 2048 /* tiles of a row of the map */

struct tile_list {
    const uint16_t *chosen; /* in shared memory; NULL: all */
    int n;
    __device__ __forceinline__ int at(int i) const
    {
        return chosen ? (int)chosen[i] : i;
    }
};

/* By all threads of the block; `chosen` and `count` in shared memory. */
static __device__ __forceinline__ tile_list list_tiles(const uint8_t *map, int n_tiles, uint16_t *chosen,
                                                       int *count)
{
    if (!map) return {nullptr, n_tiles};
    if (threadIdx.x < 32) {
        const int lane = (int)threadIdx.x;
        int n = 0;
        for (int first = 0; first < n_tiles; first += 32) {
            const bool take = first + lane < n_tiles && map[first + lane];
            const unsigned vote = __ballot_sync(0xffffffffu, take);
            if (take) chosen[n + __popc(vote & ((1u << lane) - 1))] = (uint16_t)(first + lane);
            n += __popc(vote);
        }
        if (lane == 0) *count = n;
    }
    __syncthreads();
    return {chosen, *count};
}

#endif
