/* test_round_trip.c -- plain weights into every layout and back, for the networks of every family: what comes back is each
 * format's own encode and decode, bit for bit. From a folder into a folder, into one file, from several files into several, and
 * in the names of the network's first release. */
#include "support/golden_folder.h"
#include "support/scratch.h"
#include "support/st_writer.h"
#include "support/toybox_run.h"

#include "write/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS(rest) "{\"method\": \"w4a16\", \"group_size\": 32" rest "}"
#define GGUF(type)   "{\"method\": \"gguf\", \"type\": \"" type "\"}"

/* Each layout with what it holds; a network takes them in turn, all of it over the families. */
enum { SPECS = 4 };
static const struct {
    const char *layout, *spec[SPECS];
} layouts[] = {
    {"compressed-tensors", {"fp8", GROUPS(""), "nvfp4", "mxfp8"}},
    {"bitsandbytes",
     {"bitsandbytes", "{\"method\": \"bitsandbytes\", \"quant_type\": \"fp4\"}",
      "{\"method\": \"bitsandbytes\", \"compress_statistics\": false}"}},
    {"modelopt", {"nvfp4", "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", "mxfp8"}},
    {"comfy", {"fp8", "nvfp4", "mxfp8"}},
    {"auto-round", {GROUPS(""), GROUPS(", \"sym\": false"), "mxfp4", GROUPS(", \"bits\": 3")}},
    {"gptq", {GROUPS(""), GROUPS(", \"sym\": false"), GROUPS(", \"bits\": 8")}},
    {"auto-round-awq", {GROUPS(", \"sym\": false"), GROUPS("")}},
    {"fp8", {"fp8", "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}"}},
    {"int8", {"int8"}},
    {"quanto", {"int8", "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}"}},
    {"torchao", {"int8", GROUPS(""), "nvfp4", "mxfp4"}},
    {"gguf", {GGUF("Q8_0"), GGUF("Q4_K"), GGUF("MXFP4"), GGUF("Q5_1")}},
};

static const struct {
    const char *model, *component; /* model NULL: the demo model */
    bool renamed;                  /* its first release has names of its own */
} networks[] = {
    {NULL, "transformer", true},
    {NULL, "text_encoder", false},
    {"flux1", "transformer", true},
    {"flux1", "text_encoder", false},
    {"flux1", "text_encoder_2", false},
    {"flux2-klein", "transformer", true},
    {"flux2-dev", "transformer", true},
    {"flux2-dev", "text_encoder", false},
    {"qwen-image", "transformer", false},
    {"wan2.2/t2v-a14b", "transformer", true},
    {"wan2.2/ti2v-5b", "transformer", true},
    {"wan2.2/i2v-a14b", "transformer", true},
};

typedef enum form { INTO_FOLDER, INTO_FILE, SEVERAL_FILES, ORIGINAL_NAMES, FORMS } form;

typedef struct world {
    oq_env *env;
    const char *component;
    char root[400], model[500], plain[600], shards[500], original[500];
} world;

/* ---- sources ------------------------------------------------------------------------------------------- */

/* Half of the tensors in each of two files, and their index. */
static void split(world *w)
{
    oq_ckpt *c = NULL;
    oq_strbuf index;
    st_tensor *list = NULL;
    assert_int_equal(oq_ckpt_open_folder(w->env, w->plain, NULL, &c), OQ_OK);
    list = calloc(c->n_tensors, sizeof *list);
    assert_non_null(list);
    oq_strbuf_init(&index, w->env);
    oq_strbuf_puts(&index, "{\"metadata\": {}, \"weight_map\": {");
    const size_t half = c->n_tensors / 2;
    for (size_t i = 0; i < c->n_tensors; i++) {
        const oq_ckpt_tensor *t = &c->tensors[i];
        list[i] = (st_tensor){.name = t->name, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data};
        assert_true(t->n_dims <= 6);
        for (int d = 0; d < t->n_dims; d++) list[i].dim[d] = t->dim[d];
        oq_strbuf_printf(&index, "%s\"%s\": \"model-0000%d-of-00002.safetensors\"", i ? ", " : "", t->name,
                         i < half ? 1 : 2);
    }
    oq_strbuf_puts(&index, "}}");
    st_write(scratch_path(w->shards, "model-00001-of-00002.safetensors"), list, half);
    st_write(scratch_path(w->shards, "model-00002-of-00002.safetensors"), list + half, c->n_tensors - half);
    scratch_text(w->shards, "model.safetensors.index.json", oq_strbuf_text(&index));
    oq_strbuf_deinit(&index);
    free(list);
    oq_ckpt_close(c);
    char *from = oq_path_join(w->env, w->plain, "config.json"),
         *to = oq_path_join(w->env, w->shards, "config.json");
    assert_int_equal(oq_file_copy(w->env, from, to), OQ_OK);
    oq_free(w->env, from);
    oq_free(w->env, to);
}

/* The plain weights in the first release's names: GGUF's BF16 is no more than that. */
static void rename_all(world *w)
{
    char gguf[600];
    snprintf(gguf, sizeof gguf, "%s/original.gguf", w->root);
    snprintf(w->original, sizeof w->original, "%s/original.safetensors", w->root);
    done(w->env, "quantize", w->plain,
         (const char *const[]){"quantization", GGUF("BF16"), "names", "original", "output", gguf, NULL},
         NULL);
    done(w->env, "dequantize", gguf, (const char *const[]){"output", w->original, "dtype", "f32", NULL},
         NULL);
}

static void make_world(oq_env *env, size_t i, world *w)
{
    char data[512];
    *w = (world){.env = env, .component = networks[i].component};
    snprintf(w->root, sizeof w->root, "%s", scratch_dir(OMNIQ_BINARY_DIR, "round-trip"));
    snprintf(w->model, sizeof w->model, "%s", MODEL);
    if (networks[i].model) {
        snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", networks[i].model);
        snprintf(w->model, sizeof w->model, "%s/model", w->root);
        scratch_subdir(w->root, "model");
        golden_folder_make(env, data, w->model, &oq_dtype_bf16);
    }
    snprintf(w->plain, sizeof w->plain, "%s/%s", w->model, w->component);
    snprintf(w->shards, sizeof w->shards, "%s/shards", w->root);
    scratch_subdir(w->root, "shards");
    split(w);
    if (networks[i].renamed) rename_all(w);
}

/* ---- there and back ------------------------------------------------------------------------------------ */

static int files_of(oq_env *env, const char *path)
{
    oq_ckpt *c = NULL;
    assert_int_equal(oq_ckpt_open_folder(env, path, NULL, &c), OQ_OK);
    const int n = c->n_files;
    oq_ckpt_close(c);
    return n;
}

static void there_and_back(world *w, const char *layout, const char *spec, form how)
{
    char out[600], back[600];
    oq_json *report = NULL;
    const bool gguf = strcmp(layout, "gguf") == 0;
    const bool file =
        how == INTO_FILE || how == ORIGINAL_NAMES; /* names are the file's: no folder has them */
    snprintf(out, sizeof out, "%s/out%s", w->root, !file ? "" : gguf ? ".gguf" : ".safetensors");
    snprintf(back, sizeof back, "%s/back%s", w->root, file ? ".safetensors" : "");
    const char *source = how == SEVERAL_FILES ? w->shards : w->plain;
    const char *const options[] = {"quantization", spec,     "layout",
                                   layout,         "output", out,
                                   "force",        "true",   how == ORIGINAL_NAMES ? "names" : NULL,
                                   "original",     NULL};
    done(w->env, "quantize", source, options, &report);
    const oq_json *part = oq_json_get(oq_json_get(report, "components"), w->component);
    if (!part) part = oq_json_member(oq_json_get(report, "components"), 0, NULL);
    assert_string_equal(oq_json_string(oq_json_get(part, "layout")), layout);
    assert_true(oq_json_size(oq_json_get(part, "layers")) > 4);
    if (how == SEVERAL_FILES) assert_int_equal(files_of(w->env, out), gguf ? 1 : 2);
    expect_encoded(w->env, how == ORIGINAL_NAMES ? w->original : w->plain, out, back,
                   oq_json_get(part, "layers"));
    oq_json_free(report);
}

static void test_network(void **state)
{
    const size_t i = *(const size_t *)*state;
    oq_env *env = NULL;
    const oq_env_params params = {.size = sizeof params, .n_threads = 2};
    world w;
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    make_world(env, i, &w);
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        size_t n = 0;
        while (n < SPECS && layouts[l].spec[n]) n++;
        form how = (form)((i + l) % FORMS);
        if (how == ORIGINAL_NAMES && !networks[i].renamed) how = INTO_FILE;
        const char *spec = layouts[l].spec[(i + i / FORMS + l) % n];
        print_message("%s: %s in %s, form %d\n", w.plain + strlen(w.root), spec, layouts[l].layout, (int)how);
        there_and_back(&w, layouts[l].layout, spec, how);
    }
    oq_env_free(env);
}

/* A new layout needs its line above, and a new family its network. */
static void test_lists_are_complete(void **state)
{
    (void)state;
    for (size_t i = 0; oq_layout_list[i]; i++) {
        size_t l = 0;
        while (l < sizeof layouts / sizeof *layouts && strcmp(layouts[l].layout, oq_layout_list[i]->name))
            l++;
        if (l == sizeof layouts / sizeof *layouts)
            fail_msg("no way there and back for '%s'", oq_layout_list[i]->name);
    }
}

int main(void)
{
    enum { N = sizeof networks / sizeof *networks };
    static size_t index[N];
    static char names[N][96];
    struct CMUnitTest tests[N + 1] = {cmocka_unit_test(test_lists_are_complete)};
    for (size_t i = 0; i < N; i++) {
        index[i] = i;
        snprintf(names[i], sizeof names[i], "%s/%s", networks[i].model ? networks[i].model : "toybox",
                 networks[i].component);
        tests[i + 1] =
            (struct CMUnitTest){.name = names[i], .test_func = test_network, .initial_state = &index[i]};
    }
    return cmocka_run_group_tests_name("round trip", tests, NULL, NULL);
}
