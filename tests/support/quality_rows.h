/* quality_rows.h -- the rows of docs/QUALITY.md: which quantizations of the demo model's transformer are measured, and how.
 * quality_doc writes the tables from them, test_quality_doc holds the committed tables to them. Failures abort the test. */
#ifndef OQ_TESTS_QUALITY_ROWS_H
#define OQ_TESTS_QUALITY_ROWS_H

#include "engine/engine.h"

enum { QUALITY_PROMPTS = 6 };
extern const char *const quality_prompts[QUALITY_PROMPTS], *const quality_seeds[QUALITY_PROMPTS];

typedef struct quality_row {
    const char *name;   /* as the table spells it */
    const char *spec;   /* of the transformer */
    const char *layout; /* quantize writes it so, and what it wrote is run; NULL: while loading */
    double emulated_db; /* mean PSNR that an emulation of its arithmetic in torch gives over the same prompts; 0: none made */
    const char *option, *value; /* of quantize, which calibrates by prompts of its own then; NULL: none */
} quality_row;
extern const quality_row quality_rows[]; /* ended by name NULL; the first is BF16 */

/* The model folder of a row: the demo model, or what quantize wrote into the test program's scratch. */
const char *quality_folder(oq_env *env, const quality_row *row, char folder[static 500]);
/* generate's options for one prompt (0 .. QUALITY_PROMPTS - 1). */
oq_options *quality_options(oq_env *env, const quality_row *row, const char *folder, const char *dtype, int prompt);

typedef struct quality_size {
    double bits; /* a weight of the quantized layers, scales included */
    double mb;   /* of the whole transformer at rest, 10^6 bytes */
} quality_size;
quality_size quality_size_of(oq_env *env, const quality_row *row, const char *folder);

typedef struct quality_psnr {
    double mean_db, worst_db;
    bool strict, smoke; /* does every picture keep the built-in policy? */
} quality_psnr;
/* The first n prompts' pictures in float32, one after the other. */
void quality_pictures(oq_env *env, const quality_row *row, const char *folder, int n, oq_media **media);
quality_psnr quality_compare(oq_media *const *a, oq_media *const *b, int n);
void quality_free(oq_media **media, int n);

/* In, above or below the band of 4 dB around the emulation's mean; without one, the strictest built-in policy that is kept. */
const char *quality_verdict(const quality_row *row, const quality_psnr *psnr);

#endif
