/* nunchaku_writer.h -- a transformer of FLUX.1 as nunchaku's files hold it, made from a folder's plain weights: places follow
 * from what a lane of a warp takes, in the order in which a writer fills them (src/quant/nunchaku_tiles.h goes the other
 * way). Failures abort the test. */
#ifndef OQ_TESTS_NUNCHAKU_WRITER_H
#define OQ_TESTS_NUNCHAKU_WRITER_H

#include "ckpt/ckpt.h"

typedef enum nunchaku_precision { NUNCHAKU_INT4, NUNCHAKU_NVFP4 } nunchaku_precision;

typedef struct nunchaku_layer { /* what was written: the values that a reader must get */
    char name[96];              /* in the file */
    int64_t n, k;
    float *values;              /* [n, k] of the codes alone */
    float *folded;              /* the same with factors and branch; of modulations the same numbers */
    float *bias;                /* [n], in the order of rows; NULL: none */
} nunchaku_layer;

typedef struct nunchaku_file {
    nunchaku_layer *layers;
    size_t n_layers;
} nunchaku_file;

/* Writes all of `plain` (FLUX.1 in diffusers' names) to `path`: products of the blocks in four bits with a branch of rank 16,
 * modulation layers as AWQ, the rest as BF16. `later`: the spelling of diffusers' modules rather than the C++ ones. */
nunchaku_file nunchaku_write(const oq_ckpt *plain, const char *path, nunchaku_precision precision, bool later);
void nunchaku_free(nunchaku_file *file);

#endif
