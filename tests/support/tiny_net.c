/* tiny_net.c -- see tiny_net.h. */
#include "support/tiny_net.h"

static const char *const class_names[] = {"TinyNet", NULL};

static const oq_name_rule names[] = {
    {.from = "model", .to = ""},
    {.from = "lm", .why = "a head that this network does not use"},
    {.from = "blocks.*.w13", .to = "block.*.w1,block.*.w3"},
    {.from = "blocks.*.w2", .to = "block.*.w2"},
    {.from = "blocks.*.norm", .to = "block.*.norm"},
    {.from = "swapped_head", .to = "head", .halves_swapped = true},
    {0},
};

static oq_status tiny_describe(oq_env *env, const oq_json *config, void *self)
{
    (void)env;
    ((tiny_net *)self)->twice = oq_json_bool(oq_json_get(config, "twice"), false);
    return OQ_OK;
}

static oq_status tiny_declare(oq_builder *b, void *self)
{
    tiny_net *s = self;
    oq_scope saved;
    OQ_TRY(oq_declare_table(b, &s->embed, "embed.weight", TINY_VOCAB, TINY_DIM));
    OQ_TRY(oq_scope_enter(b, &saved, "block.%d", 0));
    OQ_TRY(oq_declare_vector(b, &s->norm, "norm.weight", TINY_DIM));
    const oq_part parts[] = {{"w1", TINY_HIDDEN}, {"w3", TINY_HIDDEN}};
    OQ_TRY(oq_declare_fused(b, &s->w13, "w13", TINY_DIM, 0, parts, 2, NULL));
    OQ_TRY(oq_declare_linear(b, &s->w2, "w2", TINY_DIM, TINY_HIDDEN, 0, NULL));
    if (s->twice) OQ_TRY(oq_declare_linear(b, &s->w2, "w2", TINY_DIM, TINY_HIDDEN, 0, NULL));
    oq_scope_leave(b, saved);
    return oq_declare_linear(b, &s->head, "head", TINY_DIM, TINY_DIM, OQ_BIAS, "final layer");
}

const oq_module_type tiny_module = {.name = "tiny",
                                    .class_names = class_names,
                                    .self_bytes = sizeof(tiny_net),
                                    .names = names,
                                    .describe = tiny_describe,
                                    .declare = tiny_declare};

oq_status tiny_forward(oq_exec *ex, const tiny_net *s, oq_tensor y, const int32_t *ids)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor id, x, h, u, g;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_i32, y.rows, 1, &id));
    OQ_TRY(oq_tmp(ex, y.rows, TINY_DIM, &x));
    OQ_TRY(oq_tmp(ex, y.rows, TINY_DIM, &h));
    OQ_TRY(oq_tmp(ex, y.rows, 2 * TINY_HIDDEN, &u));
    OQ_TRY(oq_tmp(ex, y.rows, TINY_HIDDEN, &g));
    OQ_TRY(oq_upload(ex, id, ids));
    OQ_TRY(oq_embed_forward(ex, x, &s->embed, id));
    OQ_TRY(oq_rms_norm_forward(ex, h, x, &s->norm, 1e-5f, 0));
    OQ_TRY(oq_linear_forward(ex, &s->w13, u, h));
    OQ_TRY(oq_glu_forward(ex, OQ_SILU, g, oq_tensor_cols(u, 0, TINY_HIDDEN),
                          oq_tensor_cols(u, TINY_HIDDEN, TINY_HIDDEN)));
    OQ_TRY(oq_linear_forward(ex, &s->w2, h, g));
    OQ_TRY(oq_linear_forward(ex, &s->head, y, h));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
