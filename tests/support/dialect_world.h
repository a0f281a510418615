/* dialect_world.h -- one component over a checkpoint in memory, resolved by its own metadata: what tests of dialects ask. */
#ifndef OQ_TESTS_DIALECT_WORLD_H
#define OQ_TESTS_DIALECT_WORLD_H

#include "quant/resolve.h"

#include "support/memory_ckpt.h"

#include <string.h>

typedef struct world {
    oq_env *env;
    memory_ckpt ckpt;
    oq_json *quant;
    oq_resolved *resolved;
    bool encoder; /* the component is a text encoder */
} world;

/* One for the whole program, empty again; -1: no memory. */
static inline int world_setup(void **state)
{
    static world w;
    memset(&w, 0, sizeof w);
    if (oq_env_new(NULL, &w.env) != OQ_OK) return -1;
    memory_ckpt_init(&w.ckpt);
    *state = &w;
    return 0;
}

static inline void world_forget(world *w)
{
    oq_resolved_free(w->resolved);
    oq_json_free(w->quant);
    w->resolved = NULL, w->quant = NULL;
}

static inline int world_teardown(void **state)
{
    world *w = *state;
    world_forget(w);
    oq_env_free(w->env);
    return 0;
}

/* The word of the header of `file`, which becomes the only one, for the weight of "a". */
static inline void world_set_class(world *w, oq_ckpt_file *file, const char *text)
{
    oq_json_free(file->metadata);
    file->metadata = oq_json_new_object();
    assert_true(oq_json_set(file->metadata, "a.weight", oq_json_new_string(text)));
    w->ckpt.ckpt.files = file, w->ckpt.ckpt.n_files = 1;
}

/* `config` NULL: the tensors alone. */
static inline oq_status world_resolve(world *w, const char *config)
{
    world_forget(w);
    oq_env_clear(w->env);
    if (config) assert_int_equal(oq_json_parse(w->env, config, strlen(config), "t", &w->quant), OQ_OK);
    const oq_resolve_input in = {.name = "transformer",
                                 .class_name = "Net",
                                 .quantizable = true,
                                 .encoder = w->encoder,
                                 .quant = w->quant,
                                 .quant_source = "net/config.json",
                                 .ckpt = &w->ckpt.ckpt};
    return oq_resolve(w->env, NULL, &in, 1, &w->resolved);
}

/* Layer "a", [n, k], as the dialect finds it. */
static inline oq_status world_locate(world *w, const char *config, int64_t n, int64_t k, oq_part_source *part,
                                     bool *found)
{
    *found = false;
    OQ_TRY(world_resolve(w, config));
    const oq_resolved_component *c = &w->resolved->components[0];
    assert_non_null(c->dialect);
    return c->dialect->locate(w->env, &c->declared, &w->ckpt.ckpt, "a", n, k, part, found);
}

#endif
