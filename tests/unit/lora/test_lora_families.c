/* test_lora_families.c -- adapters on every family's transformer: a file that changes every linear layer, in diffusers' spelling, kohya's
 * and the original release's (fused thirds, swapped halves), beside weights of every method that quantizes while loading. No key is left
 * over, and each layer's product moves by scale * up(down(x)), whatever its weights became. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/names.h"
#define LORA_SCRATCH "lora-families"
#include "unit/lora/lora_net.h"

enum { RANK = 3, MOST_PARTS = 4, MOST_ROWS = 256, NAME = 160 };

typedef struct family {
    const char *name, *config; /* config.json of a small transformer */
    const char *table;         /* the original's names below tests/data/names; NULL: they are diffusers' */
} family;

#define GOLDEN OMNIQ_SOURCE_DIR "/tests/data/golden/"
static const family families[] = {
    {"flux1", GOLDEN "flux1/transformer", "flux1_transformer"},
    {"flux2-klein", GOLDEN "flux2-klein/transformer", "flux2_transformer"},
    {"flux2-dev", GOLDEN "flux2-dev/transformer", "flux2_dev_transformer"},
    {"qwen-image", GOLDEN "qwen-image/transformer", NULL},
    {"qwen-image-edit-plus", GOLDEN "qwen-image-edit-plus/transformer", NULL},
    {"wan2.2-t2v", GOLDEN "wan2.2/t2v-a14b/transformer", "wan_transformer"},
    {"wan2.2-i2v", GOLDEN "wan2.2/i2v-a14b/transformer", "wan_transformer"},
    {"wan2.2-5b", GOLDEN "wan2.2/ti2v-5b/transformer", "wan_5b_transformer"},
    {"z-image", OMNIQ_SOURCE_DIR "/models/toybox/transformer", NULL},
};

/* ---- what a file holds --------------------------------------------------------------------------------- */

typedef struct
    row { /* one adapter: its name in the file, the layers whose rows it changes, one behind the other */
    char name[NAME];
    char parts[MOST_PARTS][NAME];
    int n_parts;
    bool swapped;
    int64_t n, k; /* all rows; columns */
} row;

typedef struct adapter {
    row rows[MOST_ROWS];
    int n;
} adapter;

/* Size and place of a part among the plan's layers; false: it is none. */
static bool find(const oq_plan *plan, const char *name, int64_t *n, int64_t *k)
{
    const oq_plan_component *c = &plan->components[0];
    for (size_t i = 0; i < c->n_layers; i++)
        for (int p = 0; p < c->layers[i].linear->n_parts; p++)
            if (strcmp(c->layers[i].linear->parts[p].name, name) == 0) {
                *n = c->layers[i].linear->parts[p].n;
                *k = c->layers[i].linear->spec.k;
                return true;
            }
    return false;
}

static void add_parts(adapter *a, const oq_plan *plan)
{
    const oq_plan_component *c = &plan->components[0];
    for (size_t i = 0; i < c->n_layers; i++)
        for (int p = 0; p < c->layers[i].linear->n_parts; p++) {
            row *r = &a->rows[a->n++];
            assert_true(a->n <= MOST_ROWS);
            *r = (row){.n_parts = 1, .n = c->layers[i].linear->parts[p].n, .k = c->layers[i].linear->spec.k};
            snprintf(r->name, NAME, "%s", c->layers[i].linear->parts[p].name);
            snprintf(r->parts[0], NAME, "%s", c->layers[i].linear->parts[p].name);
        }
}

static bool cut_weight(char *name)
{
    const size_t n = strlen(name);
    if (n < 7 || strcmp(name + n - 7, ".weight") != 0) return false;
    name[n - 7] = '\0';
    return true;
}

/* One line of a table: "name part,part" or "~name part" for swapped halves. Vectors, biases and kernels are none of ours. */
static void add_line(adapter *a, const oq_plan *plan, char *line)
{
    row r = {.swapped = *line == '~'};
    char *ours = strchr(line, ' ');
    assert_non_null(ours);
    *ours++ = '\0';
    snprintf(r.name, NAME, "%s", line + r.swapped);
    if (!cut_weight(r.name)) return;
    for (char word[NAME]; oq_csv_word(ours, (size_t)r.n_parts, word, sizeof word); r.n_parts++) {
        int64_t n = 0;
        assert_true(r.n_parts < MOST_PARTS);
        snprintf(r.parts[r.n_parts], NAME, "%s", word);
        if (!cut_weight(r.parts[r.n_parts]) || !find(plan, r.parts[r.n_parts], &n, &r.k)) return;
        r.n += n;
    }
    assert_true(a->n < MOST_ROWS);
    a->rows[a->n++] = r;
}

static void add_table(oq_env *env, adapter *a, const oq_plan *plan, const char *table)
{
    char path[512], *text = NULL, *rest = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "/tests/data/names/%s.txt", table);
    assert_int_equal(oq_file_read(env, path, 1 << 20, &text, &n), OQ_OK);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        add_line(a, plan, line);
    oq_free(env, text);
}

static float *down_of(const adapter *a, int i)
{
    char word[24];
    snprintf(word, sizeof word, "down%d", i);
    return values(word, 0.25f, RANK * a->rows[i].k);
}

static float *up_of(const adapter *a, int i)
{
    char word[24];
    snprintf(word, sizeof word, "up%d", i);
    return values(word, 0.25f, a->rows[i].n * RANK);
}

typedef struct spelling {
    const char *before, *down, *up;
    bool underlines; /* for dots, as kohya's */
} spelling;

static void write_adapter(const char *path, const adapter *a, const spelling *s)
{
    static char names[2 * MOST_ROWS][200];
    static st_tensor t[2 * MOST_ROWS];
    static float *owned[2 * MOST_ROWS];
    for (int i = 0; i < a->n; i++) {
        char layer[200];
        snprintf(layer, sizeof layer, "%s%s", s->before, a->rows[i].name);
        for (char *at = layer; s->underlines && *at; at++)
            if (*at == '.') *at = '_';
        owned[2 * i] = down_of(a, i);
        owned[2 * i + 1] = up_of(a, i);
        add_tensor(&t[2 * i], names[2 * i], layer, s->down, RANK, a->rows[i].k, owned[2 * i]);
        add_tensor(&t[2 * i + 1], names[2 * i + 1], layer, s->up, a->rows[i].n, RANK, owned[2 * i + 1]);
    }
    st_write(path, t, 2 * (size_t)a->n);
    for (int i = 0; i < 2 * a->n; i++) free(owned[i]);
}

/* ---- what it must do ----------------------------------------------------------------------------------- */

/* want[ROWS, width] at columns [at, at + n) += scale * rows [from, from + n) of up(down(x)) */
static void add_expected(const adapter *a, int i, int64_t from, int64_t n, const float *x, double scale,
                         double *want, int64_t width, int64_t at)
{
    const row *r = &a->rows[i];
    float *down = down_of(a, i), *up = up_of(a, i);
    for (int64_t m = 0; m < ROWS; m++) {
        double inner[RANK] = {0};
        for (int q = 0; q < RANK; q++)
            for (int64_t j = 0; j < r->k; j++)
                inner[q] += (double)x[m * r->k + j] * (double)down[q * r->k + j];
        for (int64_t o = 0; o < n; o++) {
            const int64_t of = (from + o + (r->swapped ? r->n / 2 : 0)) % r->n;
            for (int q = 0; q < RANK; q++)
                want[m * width + at + o] += scale * inner[q] * (double)up[of * RANK + q];
        }
    }
    free(down);
    free(up);
}

static bool expect_part(const adapter *a, const oq_plan *plan, const char *part, const float *x, double scale,
                        double *want, int64_t width, int64_t at)
{
    for (int i = 0; i < a->n; i++) {
        int64_t from = 0, n = 0, k = 0;
        for (int p = 0; p < a->rows[i].n_parts; p++, from += n) {
            assert_true(find(plan, a->rows[i].parts[p], &n, &k));
            if (strcmp(a->rows[i].parts[p], part) != 0) continue;
            add_expected(a, i, from, n, x, scale, want, width, at);
            return true;
        }
    }
    return false;
}

/* The number of the layer's parts that the file changes. */
static int check_layer(fixture *f, const adapter *a, const oq_plan *plan, const oq_linear *with,
                       const oq_linear *plain, double scale)
{
    const int64_t n = with->spec.n, k = with->spec.k;
    float *x = values("x", 1, ROWS * k), *y = values("y", 1, ROWS * n), *base = values("y", 1, ROWS * n);
    double *want = calloc((size_t)(ROWS * n), sizeof *want), difference = 0, length = 0, size = 0;
    int reached = 0;
    int64_t at = 0;
    if (!want) abort();
    for (int p = 0; p < with->n_parts; at += with->parts[p++].n)
        reached += expect_part(a, plan, with->parts[p].name, x, scale, want, n, at);
    product(f, with, x, y);
    product(f, plain, x, base);
    for (int64_t i = 0; i < ROWS * n; i++) {
        const double error = (double)y[i] - (double)base[i] - want[i];
        difference += error * error;
        length += want[i] * want[i];
        size += (double)base[i] * (double)base[i];
    }
    /* The difference of two float32 outputs carries their roundings. */
    if (!(sqrt(difference) <= 1e-5 * sqrt(length) + 1e-6 * sqrt(size)) || (reached && !(length > 0)))
        fail_msg("'%s': off by %g, the adapter gives %g", with->name, sqrt(difference), sqrt(length));
    free(want);
    free(base);
    free(y);
    free(x);
    return reached;
}

static void check_network(fixture *f, const adapter *a, const oq_module_type *module, const char *config,
                          const char *method, const char *path, double scale)
{
    net with, plain;
    const oq_lora_request request = {path, scale};
    int reached = 0, parts = 0;
    net_plan(f, module, config, method, &with);
    net_plan(f, module, config, method, &plain);
    if (net_attach(f, &with, &request, 1) != OQ_OK) fail_msg("%s: %s", path, oq_env_error(f->env));
    const oq_lora_summary s = oq_loras_summary(with.loras, 0);
    if (s.first_unmatched) fail_msg("%s: '%s' fits no layer", path, s.first_unmatched);
    assert_int_equal(s.keys, 2 * (size_t)a->n);
    assert_int_equal(s.matched, s.keys);
    net_load(f, &with);
    net_load(f, &plain);
    const oq_plan_component *c = &with.plan->components[0];
    for (size_t i = 0; i < c->n_layers; i++)
        reached += check_layer(f, a, with.plan, c->layers[i].linear,
                               plain.plan->components[0].layers[i].linear, scale);
    for (int i = 0; i < a->n; i++) parts += a->rows[i].n_parts;
    assert_int_equal(reached, parts);
    net_free(f, &with);
    net_free(f, &plain);
}

/* ---- the families -------------------------------------------------------------------------------------- */

static const char *const methods[] = {
    NULL,    "fp8",
    "int8",  "mxfp8",
    "mxfp4", "{\"method\":\"mxfp4_dualscale\",\"num_bf16_fallback_layers\":0}",
    "nvfp4", "bitsandbytes",
    "w4a16", "{\"method\":\"gguf\",\"type\":\"Q4_0\"}",
};

static char *read_config(oq_env *env, const family *f, const oq_module_type **module)
{
    char path[512], *text = NULL;
    size_t n = 0;
    oq_json *json = NULL;
    snprintf(path, sizeof path, "%s/config.json", f->config);
    assert_int_equal(oq_file_read(env, path, 1 << 20, &text, &n), OQ_OK);
    assert_int_equal(oq_json_parse(env, text, n, path, &json), OQ_OK);
    *module = oq_module_find(oq_json_string(oq_json_get(json, "_class_name")));
    assert_non_null(*module);
    oq_json_free(json);
    return text;
}

static void check_family(fixture *f, const family *what)
{
    static const spelling diffusers = {"transformer.", ".lora_A.weight", ".lora_B.weight", false},
                          kohya = {"lora_unet_", ".lora_down.weight", ".lora_up.weight", true},
                          comfy = {"diffusion_model.", ".lora_A.weight", ".lora_B.weight", false};
    static adapter plain, original;
    const oq_module_type *module = NULL;
    char *config = read_config(f->env, what, &module), path[600];
    net n;
    plain.n = original.n = 0;
    net_plan(f, module, config, NULL, &n);
    add_parts(&plain, n.plan);
    if (what->table) add_table(f->env, &original, n.plan, what->table);
    net_free(f, &n);
    snprintf(path, sizeof path, "%s/family.safetensors", f->dir);
    write_adapter(path, &plain, &diffusers);
    for (size_t i = 0; i < OQ_COUNT(methods); i++) {
        check_network(f, &plain, module, config, methods[i], path, 0.5);
        check_network(f, &plain, module, config, methods[i], path, -2);
    }
    const adapter *const theirs = what->table ? &original : &plain;
    const struct {
        const adapter *rows;
        const spelling *spelling;
    } others[] = {{&plain, &kohya}, {theirs, &comfy}, {theirs, &kohya}};
    for (size_t i = 0; i < OQ_COUNT(others); i++) {
        write_adapter(path, others[i].rows, others[i].spelling);
        check_network(f, others[i].rows, module, config, "bitsandbytes", path, 1);
    }
    printf("%s: %d layers, %d in the original's names\n", what->name, plain.n, original.n);
    oq_free(f->env, config);
}

static void test_families(void **state)
{
    for (size_t i = 0; i < OQ_COUNT(families); i++) check_family(*state, &families[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_families, setup, teardown)};
    return cmocka_run_group_tests_name("adapters on every family", tests, NULL, NULL);
}
