/* pipeline_parts.h -- what families do alike in init and check: scheduler class, tokenizer, bounds of a request. */
#ifndef OQ_PIPELINES_PIPELINE_PARTS_H
#define OQ_PIPELINES_PIPELINE_PARTS_H

#include "pipelines/pipeline.h"
#include "text/tokenizer.h"

/* model_index.json must name `class_name`, and scheduler_config.json be there. `family` is for the message. */
oq_status oq_setup_check_scheduler(oq_env *env, const oq_pipeline_setup *setup, const char *family,
                                   const char *class_name);
/* The tokenizer in the folder's `component`, with the template's marks as tokens. *out NULL: dummy weights without a
 * tokenizer, one token per byte (a warning says so). */
oq_status oq_setup_tokenizer(oq_env *env, const oq_pipeline_setup *setup, const char *component, const char *before,
                             const char *after, oq_tokenizer **out);

typedef struct oq_sides {
    int64_t multiple;     /* both sides are multiples of it */
    int64_t bytes_per_px; /* of decoding, for the message about sides beyond the limit */
} oq_sides;
/* Each refuses with OQ_E_ARG and the numbers. */
oq_status oq_request_check_sides(oq_env *env, const oq_request *r, const oq_sides *sides);
oq_status oq_request_check_schedule(oq_env *env, const oq_request *r);
oq_status oq_request_check_guidance(oq_env *env, const oq_request *r);
/* For families that know neither cfg-normalization nor cfg-truncation. */
oq_status oq_request_check_plain_guidance(oq_env *env, const oq_request *r, const char *family);
/* Of a request that begins with a picture: strength within (0, 1], and a step left to run. */
oq_status oq_request_check_strength(oq_env *env, const oq_request *r);
oq_status oq_request_check_texts(oq_env *env, const oq_request *r, int64_t max_tokens);

#endif
