/* text_states.h -- text encoders as families call them: `what` ("prompt 1") is named with the layer where values stop being
 * finite. The run that looks for it traces nothing. */
#ifndef OQ_PIPELINES_TEXT_STATES_H
#define OQ_PIPELINES_TEXT_STATES_H

#include "modules/te_qwen3/te_qwen3.h"
#include "modules/te_t5/te_t5.h"

/* y: [args->n, hidden_size] */
oq_status oq_text_states_qwen3(oq_exec *ex, const oq_te_qwen3 *encoder, const oq_te_qwen3_args *args, oq_tensor y,
                               const char *what);
/* component: "text_encoder" or "text_encoder_2" */
oq_status oq_text_states_t5(oq_exec *ex, const oq_te_t5 *encoder, const oq_te_t5_args *args, oq_tensor y,
                            const char *component, const char *what);

#endif
