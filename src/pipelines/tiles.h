/* tiles.h -- decoding in tiles: the autoencoder works on parts of the latents that overlap, and their pixels are blended by
 * weights that add up to one at every pixel. Memory goes with the tile, not with the picture. */
#ifndef OQ_PIPELINES_TILES_H
#define OQ_PIPELINES_TILES_H

#include "base/arena.h"
#include "nn/nn.h"

/* Finished pixels of a tile: [n * rows * columns, 3], n frames from `first` on. */
typedef oq_status (*oq_tile_take)(oq_exec *ex, void *user, oq_tensor frames, int64_t first, int64_t n);
/* Decodes z [frames * h * w, channels] and hands the pixels to `take`; also called in measure mode. `whole`: there is one
 * tile (a trace of its stages means something). */
typedef oq_status (*oq_tile_decode)(oq_exec *ex, void *user, oq_tensor z, int64_t h, int64_t w, bool whole,
                                    oq_tile_take take, void *take_user);

typedef struct oq_tiling {
    int64_t frames, h, w, channels; /* of the latents, or of the features that they became */
    int64_t scale;                  /* pixels of a latent's side */
    int64_t tile;                   /* latents of a tile's side; 0: the whole */
    int64_t most_frames;            /* that `take` gets at a time */
    oq_tile_decode decode;
    void *user;
} oq_tiling;

/* Latents of a tile of `tile_px` pixels (0: the whole): four at least. */
int64_t oq_tile_latents(int64_t tile_px, int64_t scale);

/* rows: host [frames * h * w, channels]; sum: host [out frames, h * scale, w * scale, 3], zeros before. Both NULL in measure
 * mode, where one tile is walked. */
oq_status oq_decode_tiles(oq_exec *ex, oq_arena *arena, const oq_tiling *t, const float *rows, float *sum);

#endif
