/* test_producer_cases.c -- checkpoints as producers' tools wrote them, with the values and the outputs that the tools
 * themselves give: every layer decodes to the same bits, and its product comes within the stated distance. Cases lie
 * under tests/data/quant/cases (leading rows of layers); a folder of whole ones is walked too where the environment's
 * OMNIQ_PRODUCERS names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/backend.h"
#include "ckpt/ckpt.h"
#include "cpu/cpu.h"
#include "format/float8.h"
#include "quant/resolve.h"

#include "support/sha256.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES OMNIQ_SOURCE_DIR "/tests/data/quant/cases"

/* Relative L2 distance of outputs, and why it is not zero. The first row whose beginning fits. */
static const struct {
    const char *name;
    double bound;
} bounds[] = {
    {"modelopt/", 1e-6}, /* f32 throughout */
    {"msmodelslim/", 1e-6},
    {"quark/", 1e-6},
    {"autoround/mx", 1e-6},
    {"autoround/nvfp4", 1e-6},
    {"sdnq/matmul_few", 1e-6}, /* not quantized below 32 rows */
    {"sdnq/matmul_floats_few", 1e-6},
    {"sdnq/matmul", 4e-3}, /* a quotient there: a code may be the next one */
    {"sdnq/", 1e-6},
    {"hqq/", 1e-6},
    {"quanto/q", 4e-3}, /* 16 bit products */
    {"quanto/", 1e-6},
    {"autoround/", 4e-3},               /* an input scale in BF16 */
    {"bitsandbytes/llm_int8", 5e-3},    /* x in F16 */
    {"comfy/", 1e-5},                   /* f32; x over a scale here, times its inverse there */
    {"torchao/float8_dyn", 2e-2},       /* its activation scale is BF16 */
    {"torchao/int8_dynamic", 6e-3},     /* amax / 127.5 there */
    {"torchao/classes_bin", 6e-3},      /* so there */
    {"torchao/affine_bin", 6e-3},       /* activations in BF16 */
    {"compressed-tensors/w4a16", 4e-3}, /* 16 bit products */
    {"compressed-tensors/mx", 4e-3},
    {"compressed-tensors/sparse", 1e-6},
    {"gptq/", 1e-6},
    {"awq/", 1e-6},
    {"compressed-tensors/", 3e-2}, /* scales, quotients and products of x rounded to BF16 */
    {"", 4e-3},
};

typedef struct run {
    oq_env *env;
    oq_device *device;
    const char *root, *name; /* "modelopt/fp8_toybox" */
    int cases, layers, outputs, refused, too_large;
} run;

typedef struct one_case {
    run *r;
    oq_arena arena;
    oq_folder_component folder;
    oq_json *json;
    oq_ckpt *ckpt, *expected;
    oq_resolved *resolved;
} one_case;

static int setup(void **state)
{
    static run r;
    const oq_env_params params = {.size = sizeof params, .n_threads = 2};
    memset(&r, 0, sizeof r);
    if (oq_env_new(&params, &r.env) != OQ_OK) return -1;
    if (oq_backend_cpu.open(r.env, 0, NULL, &r.device) != OQ_OK) return -1;
    *state = &r;
    return 0;
}

static int teardown(void **state)
{
    run *r = *state;
    oq_backend_cpu.close(r->env, r->device);
    oq_env_free(r->env);
    return 0;
}

static void *grab(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    return p;
}

static void close_case(one_case *c)
{
    oq_resolved_free(c->resolved);
    oq_ckpt_close(c->ckpt);
    oq_ckpt_close(c->expected);
    oq_json_free(c->json);
    oq_folder_component_deinit(&c->folder);
    oq_arena_deinit(&c->arena);
    oq_env_clear(c->r->env);
}

/* Of whole files, those that this build refuses are counted. */
static bool is_refused(const one_case *c, oq_status st)
{
    if (st == OQ_OK || strcmp(c->r->root, CASES) == 0) return false;
    print_message("%-44s refused: %s\n", c->r->name, oq_env_error(c->r->env));
    oq_env_clear(c->r->env);
    c->r->refused++;
    return true;
}

static bool open_case(one_case *c, run *r)
{
    char path[1200];
    *c = (one_case){.r = r};
    oq_arena_init(&c->arena, r->env);
    snprintf(path, sizeof path, "%s/%s", r->root, r->name);
    assert_int_equal(oq_folder_component_read(r->env, &c->arena, path, &c->folder), OQ_OK);
    snprintf(path, sizeof path, "%s/%s/case.json", r->root, r->name);
    assert_int_equal(oq_json_parse_file(r->env, path, 1 << 22, &c->json), OQ_OK);
    snprintf(path, sizeof path, "%s/%s/expected.safetensors", r->root, r->name);
    assert_int_equal(oq_ckpt_open(r->env, path, &c->expected), OQ_OK);
    snprintf(path, sizeof path, "%s/%s/%s", r->root, r->name,
             oq_json_string(oq_json_get(c->json, "checkpoint")));
    oq_status st = oq_ckpt_open(r->env, path, &c->ckpt);
    if (is_refused(c, st)) return false;
    if (st != OQ_OK) fail_msg("%s: %s", r->name, oq_env_error(r->env));
    const oq_resolve_input in = {.name = "transformer",
                                 .class_name = "Net",
                                 .quantizable = true,
                                 .quant = c->folder.quant,
                                 .quant_source = c->folder.quant_source,
                                 .ckpt = c->ckpt};
    st = oq_resolve(r->env, NULL, &in, 1, &c->resolved);
    if (is_refused(c, st)) return false;
    if (st != OQ_OK) fail_msg("%s: %s", r->name, oq_env_error(r->env));
    return true;
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

typedef struct layer { /* canonical planes of one layer */
    const char *name;
    int64_t n, k;
    oq_part_source part;
    oq_planes planes;
    void *owned[OQ_N_PLANES];
    float *values; /* [n, k] */
} layer;

static void free_layer(layer *l)
{
    for (int p = 0; p < OQ_N_PLANES; p++) free(l->owned[p]);
    free(l->values);
}

static void read_planes(layer *l)
{
    oq_linear_spec spec = {.n = l->n, .k = l->k};
    oq_part_scheme(&l->part, &spec.scheme);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = oq_scheme_plane_bytes(&spec.scheme, (oq_plane)p, l->n, l->k);
        if (!bytes) continue;
        assert_non_null(l->part.plane[p].tensor);
        l->owned[p] = grab(bytes);
        l->planes.plane[p] = l->owned[p];
        oq_plane_read(&l->part.plane[p], l->owned[p], bytes, l->n, l->k);
    }
    l->values = grab((size_t)(l->n * l->k) * sizeof *l->values);
    for (int64_t r = 0; r < l->n; r++)
        l->part.format->decode_row(l->part.format, l->values + r * l->k, &l->planes, r, l->n, l->k);
}

/* The rows that the producer's values give, and the hash of all of them. A producer that dequantizes to BF16 rounds
 * once. */
static void check_values(one_case *c, const layer *l, const oq_json *json)
{
    char key[300], hex[65];
    snprintf(key, sizeof key, "%s.dequant_rows", l->name);
    const oq_ckpt_tensor *t = oq_ckpt_find(c->expected, key);
    const oq_json *rows = oq_json_get(json, "rows");
    const size_t count = (size_t)(l->n * l->k);
    const bool bf16 = strcmp(oq_json_string(oq_json_get(json, "dtype")), "bfloat16") == 0;
    float *is = grab(count * sizeof *is), *wanted = grab((size_t)l->k * sizeof *wanted);
    assert_true(t && t->n_dims == 2 && t->dim[1] == l->k && t->dim[0] == (int64_t)oq_json_size(rows));
    for (size_t i = 0; i < count; i++) is[i] = (bf16 ? oq_bf16_round(l->values[i]) : l->values[i]) + 0.0f;
    for (int64_t i = 0; i < t->dim[0]; i++) {
        const int64_t row = oq_json_int(oq_json_at(rows, (size_t)i), -1);
        assert_true(row >= 0 && row < l->n);
        t->dtype->to_f32(wanted, t->data + (size_t)(i * l->k) * t->dtype->bytes, (size_t)l->k);
        for (int64_t j = 0; j < l->k; j++)
            if (is[row * l->k + j] < wanted[j] || is[row * l->k + j] > wanted[j])
                fail_msg("%s: '%s' row %d column %d is %.9g, the producer has %.9g", c->r->name, l->name,
                         (int)row, (int)j, (double)is[row * l->k + j], (double)wanted[j]);
    }
    const char *hash = oq_json_string(oq_json_get(json, "sha256_f32"));
    sha256_hex(is, count * sizeof *is, hex);
    if (hash && strcmp(hash, hex) != 0)
        fail_msg("%s: '%s' is %s as a whole, not %s", c->r->name, l->name, hex, hash);
    free(is);
    free(wanted);
    c->r->layers++;
}

static double bound_of(const char *name)
{
    size_t i = 0;
    while (strncmp(bounds[i].name, name, strlen(bounds[i].name)) != 0) i++;
    return bounds[i].bound;
}

static float *values_of(const oq_ckpt *ckpt, const char *name, int64_t *rows, int64_t *cols)
{
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, name);
    assert_true(t && t->n_dims == 2);
    float *x = grab((size_t)t->elems * sizeof *x);
    t->dtype->to_f32(x, t->data, (size_t)t->elems);
    *rows = t->dim[0], *cols = t->dim[1];
    return x;
}

static void multiply(one_case *c, const layer *l, const oq_linear_kernel *kernel, const oq_linear_spec *spec,
                     oq_tensor x, oq_tensor y)
{
    void *packed = NULL, *scratch = NULL;
    assert_int_equal(posix_memalign(&packed, 256, kernel->packed_bytes(spec) + 1), 0);
    assert_int_equal(posix_memalign(&scratch, 256, kernel->scratch_bytes(spec, x.rows) + 1), 0);
    kernel->pack(packed, &l->planes, spec);
    const oq_linear_args args = {.spec = spec, .packed = packed, .scratch = scratch, .x = x, .y = y};
    kernel->run(c->r->device, &args);
    free(packed);
    free(scratch);
}

/* The producer's own output for its own input. */
static void check_output(one_case *c, const layer *l, const oq_json *json)
{
    int64_t m, k, rows, n;
    oq_linear_spec spec = {.n = l->n, .k = l->k};
    oq_part_scheme(&l->part, &spec.scheme);
    if (strstr(oq_json_string(oq_json_get(json, "how")), "without the low-rank branch")) spec.scheme.rank = 0;
    float *x = values_of(c->expected, oq_json_string(oq_json_get(json, "x")), &m, &k);
    float *wanted = values_of(c->expected, oq_json_string(oq_json_get(json, "y")), &rows, &n);
    assert_true(k == l->k && n == l->n && rows == m);
    float *y = grab((size_t)(m * n) * sizeof *y);
    const oq_ckpt_tensor *stored = oq_ckpt_find(c->expected, oq_json_string(oq_json_get(json, "x")));
    const bool bf16 =
        stored->dtype == &oq_dtype_bf16 && !strstr(oq_json_string(oq_json_get(json, "how")), "float32 (with");
    const oq_linear_kernel *kernel = oq_backend_cpu.find_linear(c->r->device, &spec);
    assert_non_null(kernel);
    const oq_tensor x_view = bf16 ? oq_tensor_make((void *)(uintptr_t)stored->data, &oq_dtype_bf16, m, k)
                                  : oq_tensor_make(x, &oq_dtype_f32, m, k);
    multiply(c, l, kernel, &spec, x_view, oq_tensor_make(y, &oq_dtype_f32, m, n));
    double error = 0, size = 0;
    for (int64_t i = 0; i < m * n; i++) {
        const double e = (double)y[i] - (double)wanted[i];
        error += e * e, size += (double)wanted[i] * (double)wanted[i];
    }
    const double distance = sqrt(error / size);
    print_message("%-44s %-40s %.2e by %s\n", c->r->name, l->name, distance, kernel->name);
    if (!(distance <= bound_of(c->r->name)))
        fail_msg("%s: '%s': outputs differ by %.3g, at most %.3g is due", c->r->name, l->name, distance,
                 bound_of(c->r->name));
    free(x);
    free(wanted);
    free(y);
    c->r->outputs++;
}

/* A weight takes no more room than in its file. What stands around the product grows with its sides alone. */
static void check_resident(const one_case *c, const layer *l)
{
    oq_scheme scheme;
    double held = 0, stored = 0, most = 1.05;
    oq_part_scheme(&l->part, &scheme);
    for (int p = OQ_PLANE_DATA; p <= OQ_PLANE_ZERO; p++) {
        held += (double)oq_scheme_plane_bytes(&scheme, (oq_plane)p, l->n, l->k);
        if (l->part.plane[p].tensor) stored += (double)l->part.plane[p].tensor->bytes;
    }
    for (int i = 0; i < OQ_MAX_BESIDE && l->part.beside[i]; i++) stored += (double)l->part.beside[i]->bytes;
    if (strcmp(c->r->name, "torchao/intx_int4_g32") == 0)
        most = 0.6; /* a byte for each code of four bits there */
    if (strncmp(c->r->name, "compressed-tensors/sparse_", 26) == 0) most = 4; /* dense in memory */
    if (held <= most * stored) return;
    print_message("%s: %.0f bytes in memory for %.0f in the file, %.3f of it; at most %.2f is due\n",
                  c->r->name, held, stored, held / stored, most);
    c->r->too_large++;
}

static void check_layer(one_case *c, const char *name, const oq_json *json)
{
    const oq_json *shape = oq_json_get(json, "shape"),
                  *output = oq_json_get(oq_json_get(c->json, "outputs"), name);
    const oq_resolved_component *component = &c->resolved->components[0];
    layer l = {
        .name = name, .n = oq_json_int(oq_json_at(shape, 0), 0), .k = oq_json_int(oq_json_at(shape, 1), 0)};
    bool found = false;
    if (!component->dialect) fail_msg("%s: no dialect reads it", c->r->name);
    const oq_status st =
        component->dialect->locate(c->r->env, &component->declared, c->ckpt, name, l.n, l.k, &l.part, &found);
    if (st == OQ_E_UNSUPPORTED && is_refused(c, st)) return;
    if (st != OQ_OK || !found)
        fail_msg("%s: '%s': %s", c->r->name, name, st == OQ_OK ? "not found" : oq_env_error(c->r->env));
    read_planes(&l);
    check_values(c, &l, json);
    check_resident(c, &l);
    if (output) check_output(c, &l, output);
    free_layer(&l);
}

static void check_case(run *r)
{
    one_case c;
    const oq_json *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    if (open_case(&c, r))
        while (oq_json_next(oq_json_get(c.json, "dequant"), &at, &key, &value)) check_layer(&c, key, value);
    close_case(&c);
    r->cases++;
}

/* ---- folders ------------------------------------------------------------------------------------------- */

static bool is_name(const struct dirent *e)
{
    return e->d_name[0] != '.' && strncmp(e->d_name, "README", 6) != 0;
}

static void walk_producer(run *r, const char *producer)
{
    char path[1200], name[600];
    snprintf(path, sizeof path, "%s/%s", r->root, producer);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (!is_name(e)) continue;
        snprintf(name, sizeof name, "%.200s/%.255s", producer, e->d_name);
        r->name = name;
        check_case(r);
    }
    closedir(dir);
}

static void walk(run *r, const char *root)
{
    DIR *dir = opendir(root);
    r->root = root;
    r->cases = r->layers = r->outputs = r->refused = r->too_large = 0;
    assert_non_null(dir);
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (is_name(e) && strcmp(e->d_name, "gguf") != 0) walk_producer(r, e->d_name); /* another container */
    closedir(dir);
    print_message("%s: %d cases, %d layers bit for bit, %d outputs, %d refused\n", root, r->cases, r->layers,
                  r->outputs, r->refused);
}

static void test_cases(void **state)
{
    run *r = *state;
    walk(r, CASES);
    assert_true(r->cases >= 60 && r->layers >= 90 && r->outputs >= 70 && r->refused == 0 &&
                r->too_large == 0);
}

static void test_whole_files(void **state)
{
    const char *root = getenv("OMNIQ_PRODUCERS");
    if (!root || !*root) skip();
    walk(*state, root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cases, setup, teardown),
        cmocka_unit_test_setup_teardown(test_whole_files, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
