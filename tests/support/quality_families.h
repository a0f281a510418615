/* quality_families.h -- tables of docs/QUALITY.md that go over families: the demo model, and small models whose weights follow
 * from their names. */
#ifndef OQ_TESTS_QUALITY_FAMILIES_H
#define OQ_TESTS_QUALITY_FAMILIES_H

#include "engine/engine.h"

typedef struct quality_family {
    const char *name;                  /* as the tables spell it */
    const char *data;                  /* below tests/data/golden; NULL: the demo model */
    const char *pipeline;              /* row of oq_pipeline_list */
    const char *width, *height, *frames, *steps; /* frames NULL: pictures */
    const char *ends_steps, *ends_layers; /* first and last, as --attention-skip-* takes them */
    int n_pictures;
    bool second; /* a second transformer, transformer_2 */
    bool begins_with_image;
} quality_family;
extern const quality_family quality_families[]; /* ended by name NULL */

/* The family's folder, made in the test program's scratch. */
const char *quality_family_folder(oq_env *env, const quality_family *family, char folder[static 500]);
/* A model of the family, open: pictures that are given are small. Failures abort the test. */
oq_model *quality_family_open(oq_env *env, oq_options *options);
/* Options of picture i; `quantization` NULL: none. */
oq_options *quality_family_options(oq_env *env, const quality_family *family, const char *folder, const char *quantization,
                                   int i);

/* Markdown tables. Families that have rows in `known` (a table of before) are not measured again; NULL: all are. */
void quality_attention_table(oq_env *env, const char *known, oq_strbuf *out);
void quality_recipe_table(oq_env *env, const char *known, oq_strbuf *out);

#endif
