/* text_states.c -- text encoders as families call them. */
#include "pipelines/text_states.h"

#include "pipelines/run_parts.h"

typedef struct qwen3_call {
    const oq_te_qwen3 *encoder;
    oq_te_qwen3_args args;
    oq_tensor y;
} qwen3_call;

static oq_status qwen3_again(oq_exec *ex, void *user)
{
    qwen3_call *c = user;
    if (!ex->trace) c->args.trace = NULL;
    return oq_te_qwen3_forward(ex, c->encoder, &c->args, c->y);
}

oq_status oq_text_states_qwen3(oq_exec *ex, const oq_te_qwen3 *encoder, const oq_te_qwen3_args *args,
                               oq_tensor y, const char *what)
{
    qwen3_call c = {encoder, *args, y};
    return oq_run_checked(ex, qwen3_again, &c, y, "text_encoder", what);
}

typedef struct t5_call {
    const oq_te_t5 *encoder;
    oq_te_t5_args args;
    oq_tensor y;
} t5_call;

static oq_status t5_again(oq_exec *ex, void *user)
{
    t5_call *c = user;
    if (!ex->trace) c->args.trace = NULL;
    return oq_te_t5_forward(ex, c->encoder, &c->args, c->y);
}

oq_status oq_text_states_t5(oq_exec *ex, const oq_te_t5 *encoder, const oq_te_t5_args *args, oq_tensor y,
                            const char *component, const char *what)
{
    t5_call c = {encoder, *args, y};
    return oq_run_checked(ex, t5_again, &c, y, component, what);
}
