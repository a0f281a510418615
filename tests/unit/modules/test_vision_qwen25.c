/* test_vision_qwen25.c -- promises of Qwen2.5-VL with its vision tower: what is declared is what the published checkpoint holds,
 * and the tower's configuration is refused by key and value where it is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "modules/te_qwen3/te_qwen3.h"

#include <stdlib.h>
#include <string.h>

#define PUBLISHED OMNIQ_SOURCE_DIR "/tests/data/modules/qwen25_vl_7b.json"

typedef struct world {
    oq_env *env;
    oq_arena arena;
    oq_te_qwen25_vl *net;
    oq_builder builder;
    char no_scope[1];
} world;

/* The published configuration with these members of vision_config in place of its own (NULL: with its own). */
static oq_status declare(world *w, const char *vision, bool sees)
{
    oq_json *config = NULL, *tower = NULL;
    assert_int_equal(oq_env_new(NULL, &w->env), OQ_OK);
    assert_int_equal(oq_json_parse_file(w->env, PUBLISHED, 1 << 20, &config), OQ_OK);
    if (vision) {
        assert_int_equal(oq_json_parse(w->env, vision, strlen(vision), "vision", &tower), OQ_OK);
        oq_json_set(config, "vision_config", tower);
    }
    oq_arena_init(&w->arena, w->env);
    w->net = calloc(1, sizeof *w->net);
    w->no_scope[0] = '\0';
    w->builder =
        (oq_builder){.env = w->env, .arena = &w->arena, .component = "text_encoder", .scope = w->no_scope};
    oq_status st = oq_module_te_qwen25_vl.describe(w->env, config, w->net);
    if (sees) oq_te_qwen25_vl_see(NULL, w->net);
    if (st == OQ_OK) st = oq_module_te_qwen25_vl.declare(&w->builder, w->net);
    oq_json_free(config);
    return st;
}

static void end(world *w)
{
    oq_arena_deinit(&w->arena);
    free(w->net);
    oq_env_free(w->env);
}

static int64_t tensors_of(const oq_item *item)
{
    if (item->kind == OQ_ITEM_ATTENTION) return 0;
    if (item->kind != OQ_ITEM_LINEAR) return 1;
    return item->u.linear->n_parts * (item->u.linear->has_bias ? 2 : 1);
}

static int64_t params_of(const oq_item *item)
{
    if (item->kind == OQ_ITEM_VECTOR) return item->u.vector->n;
    if (item->kind == OQ_ITEM_TABLE) return item->u.table->rows * item->u.table->cols;
    if (item->kind != OQ_ITEM_LINEAR) return 0;
    const oq_linear *l = item->u.linear;
    return l->spec.n * l->spec.k + (l->has_bias ? l->spec.n : 0);
}

/* The published index has 729 tensors: 338 of the text, 390 of the tower (676 550 144 parameters), and the output head. */
static void test_published_tower_is_whole(void **state)
{
    world w;
    int64_t tensors = 0, params = 0, visual = 0, plain = 0, windowed = 0;
    (void)state;
    if (declare(&w, NULL, true) != OQ_OK) fail_msg("%s", oq_env_error(w.env));
    for (size_t i = 0; i < w.builder.n_items; i++) {
        const oq_item *item = &w.builder.items[i];
        tensors += tensors_of(item);
        if (strncmp(oq_item_name(item), "visual.", 7) != 0) continue;
        visual += tensors_of(item);
        params += params_of(item);
        plain += item->kind == OQ_ITEM_LINEAR && item->u.linear->keep;
    }
    for (int64_t i = 0; i < w.net->vision.depth; i++) windowed += !w.net->vision.blocks[i].full;
    assert_int_equal(tensors, 728);
    assert_int_equal(visual, 390);
    assert_int_equal(params, 676550144);
    assert_int_equal(plain, 1); /* the patches' embedder */
    assert_int_equal(windowed, 28);
    end(&w);
}

static void test_tower_stays_away_from_text(void **state)
{
    world w;
    (void)state;
    assert_int_equal(declare(&w, "{\"depth\":\"none of our business\"}", false), OQ_OK);
    for (size_t i = 0; i < w.builder.n_items; i++)
        assert_true(strncmp(oq_item_name(&w.builder.items[i]), "visual.", 7) != 0);
    end(&w);
}

static void test_configurations_are_refused(void **state)
{
    static const struct {
        const char *vision;
        oq_status status;
        const char *text;
    } rows[] = {
        {"null", OQ_E_FORMAT, "'vision_config' is missing, and pictures are to be seen"},
        {"{}", OQ_E_FORMAT, "config.json of Qwen2.5-VL's vision tower: 'hidden_size' is missing"},
        {"{\"hidden_size\":1280,\"hidden_act\":\"quick_gelu\"}", OQ_E_UNSUPPORTED,
         "only \"silu\" is supported"},
        {"{\"hidden_size\":1280,\"in_channels\":4}", OQ_E_UNSUPPORTED,
         "'in_channels' is 4, only 3 is supported"},
        {"{\"hidden_size\":1280,\"fullatt_block_indexes\":[32]}", OQ_E_FORMAT,
         "'fullatt_block_indexes' holds 32, it must be between 0 and 31"},
        {"{\"hidden_size\":1280,\"num_heads\":24}", OQ_E_FORMAT, "does not divide into 24 heads"},
        {"{\"hidden_size\":1280,\"window_size\":20}", OQ_E_FORMAT,
         "a window of 20 pixels holds no state of 28"},
        {"{\"hidden_size\":1280,\"rope_parameters\":{\"rope_type\":\"yarn\"}}", OQ_E_UNSUPPORTED,
         "'rope_parameters.rope_type' is 'yarn', only 'axial' is supported"},
        {"{\"hidden_size\":1280,\"deepstack_visual_indexes\":[1]}", OQ_E_UNSUPPORTED,
         "which is not known here"},
        {"{\"hidden_size\":1280,\"out_hidden_size\":2048}", OQ_E_FORMAT,
         "the vision tower gives states of 2048, the text part takes 3584"},
    };
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        world w;
        const oq_status st = declare(&w, rows[i].vision, true);
        if (st != rows[i].status || !strstr(oq_env_error(w.env), rows[i].text))
            fail_msg("%s: %s, '%s'", rows[i].vision, oq_status_name(st), oq_env_error(w.env));
        end(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_tower_is_whole),
        cmocka_unit_test(test_tower_stays_away_from_text),
        cmocka_unit_test(test_configurations_are_refused),
    };
    return cmocka_run_group_tests_name("vision tower", tests, NULL, NULL);
}
