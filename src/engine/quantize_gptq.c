/* quantize_gptq.c -- layers of integers whose rounding errors make up for each other on the prompts: sums of products of each
 * layer's input are large, so that layers are written in turns, as many at a time as their sums fit into the memory given. */
#include "engine/quantize.h"

#include "base/size.h"

#include <string.h>
#include <unistd.h>

bool oq_quantize_compensates(const oq_quantize *q, const oq_scheme *scheme)
{
    return oq_options_flag(q->options, "gptq") && scheme->weight->int_bits;
}

/* Named as GPTQ's users know them: desc_act, and static_groups that go with it. */
oq_column_order oq_quantize_column_order(const oq_quantize *q)
{
    const char *word = oq_options_text(q->options, "desc-act", "static_groups");
    if (strcmp(word, "true") == 0) return OQ_COLUMNS_REGROUPED;
    return strcmp(word, "false") == 0 ? OQ_COLUMNS_AS_THEY_ARE : OQ_COLUMNS_BY_ACTIVITY;
}

oq_status oq_quantize_product_limit(const oq_quantize *q, size_t *bytes)
{
    const char *text = oq_options_text(q->options, "gptq-memory", NULL);
    if (text) return oq_size_parse(q->env, "gptq-memory", text, bytes);
    *bytes = (size_t)sysconf(_SC_PHYS_PAGES) / 4 * (size_t)sysconf(_SC_PAGESIZE);
    return OQ_OK;
}

static oq_status begin_turn(void *user, int turn)
{
    const oq_quantize_part *p = user;
    const oq_quantize_turn *t = &p->turns[turn - 1];
    return oq_calibration_products(p->calibration, p->turn_layers + t->first, t->n);
}

/* Layers in the order of the network, so that those of one product stand together and share their sums. */
static oq_status take_turns(oq_quantize *q, oq_quantize_part *p, size_t limit)
{
    size_t n = 0, done = 0;
    const double damping = oq_options_real(q->options, "gptq-damping", 0.01);
    size_t *index = NULL;
    OQ_TRY(oq_arena_new(&q->source.arena, p->n_layers + 1, sizeof *index, "layers", &index));
    OQ_TRY(
        oq_arena_new(&q->source.arena, p->n_layers + 1, sizeof *p->turn_layers, "layers", &p->turn_layers));
    OQ_TRY(oq_arena_new(&q->source.arena, p->n_layers + 1, sizeof *p->turns, "layers", &p->turns));
    for (size_t i = 0; i < p->n_layers; i++) {
        oq_rewrite_job *job = &p->rewrite.jobs[i];
        job->compensate = oq_quantize_compensates(q, &p->layers[i].scheme);
        job->compensation.how = OQ_NEAREST_NO_INPUTS; /* unless it is made */
        if (!job->compensate || !p->seen[i]) continue;
        index[n] = i;
        p->turn_layers[n++] = p->seen[i];
    }
    for (int turn = 1; done < n; turn++) {
        const size_t fit = oq_calibration_fit(p->turn_layers + done, n - done, limit);
        p->turns[turn - 1] = (oq_quantize_turn){done, fit};
        for (size_t i = done; i < done + fit; i++) {
            oq_rewrite_job *job = &p->rewrite.jobs[index[i]];
            job->turn = turn;
            job->seen = p->seen[index[i]];
            job->damping = damping;
            job->column_order = oq_quantize_column_order(q);
        }
        p->rewrite.n_turns = turn;
        q->calibrated.turns++;
        done += fit;
    }
    p->calibration = q->calibration;
    p->rewrite.begin_turn = begin_turn;
    p->rewrite.turn_user = p;
    return OQ_OK;
}

oq_status oq_quantize_take_turns(oq_quantize *q, size_t limit)
{
    for (size_t i = 0; i < q->n_parts; i++) OQ_TRY(take_turns(q, &q->parts[i], limit));
    return OQ_OK;
}
