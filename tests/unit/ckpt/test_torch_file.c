/* test_torch_file.c -- files of torch.save: what torch itself wrote is read to the bit, and whatever a pickle or its
 * archive could try is refused by name; nothing is run. tests/reference/make_torch_files.py writes the files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/reader.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA OMNIQ_SOURCE_DIR "/tests/data/torch/"

typedef struct bench {
    oq_env *env;
    const char *dir;
} bench;

static int setup(void **state)
{
    static bench b;
    static char dir[1024];
    if (oq_env_new(NULL, &b.env) != OQ_OK) return -1;
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "torchfile"));
    b.dir = dir;
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(((bench *)*state)->env);
    return 0;
}

static oq_ckpt *opened(bench *b, const char *path)
{
    oq_ckpt *ckpt = NULL;
    if (oq_ckpt_open(b->env, path, &ckpt) != OQ_OK) fail_msg("%s", oq_env_error(b->env));
    assert_string_equal(ckpt->container, "torch");
    return ckpt;
}

static void shape_is(const oq_ckpt_tensor *t, int n_dims, const int64_t *dim)
{
    assert_int_equal(t->n_dims, n_dims);
    for (int i = 0; i < n_dims; i++) assert_int_equal(t->dim[i], dim[i]);
}

static void values_are(const oq_ckpt *ckpt, const char *name, const float *wanted, int64_t n)
{
    float values[64];
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, name);
    assert_non_null(t);
    assert_int_equal(t->elems, n);
    assert_int_equal(t->bytes, (size_t)n * t->dtype->bytes);
    t->dtype->to_f32(values, t->data, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&values[i], &wanted[i], sizeof(float)) != 0)
            fail_msg("%s[%lld] is %g, not %g", name, (long long)i, (double)values[i], (double)wanted[i]);
}

/* ---- what torch writes --------------------------------------------------------------------------------- */

static void test_element_types(void **state)
{
    static const struct {
        const char *name, *type;
    } rows[] = {{"k.float32", "F32"},
                {"k.float64", "F64"},
                {"k.float16", "F16"},
                {"k.bfloat16", "BF16"},
                {"k.int64", "I64"},
                {"k.int32", "I32"},
                {"k.int16", "I16"},
                {"k.int8", "I8"},
                {"k.uint8", "U8"},
                {"k.uint16", "U16"},
                {"k.uint32", "U32"},
                {"k.uint64", "U64"},
                {"k.float8_e4m3fn", "F8_E4M3"},
                {"k.float8_e5m2", "F8_E5M2"}};
    oq_ckpt *ckpt = opened(*state, DATA "kinds.bin");
    assert_int_equal(ckpt->n_tensors, OQ_COUNT(rows) + 2);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        assert_string_equal(oq_ckpt_find(ckpt, rows[i].name)->type_name, rows[i].type);
        values_are(ckpt, rows[i].name, (const float[]){0, 1, 2, 3}, 4);
    }
    values_are(ckpt, "k.bool", (const float[]){0, 0, 1, 1}, 4);
    const oq_ckpt_tensor *scales = oq_ckpt_find(ckpt, "k.e8m0");
    assert_string_equal(scales->type_name, "F8_E8M0");
    assert_null(scales->dtype);
    assert_memory_equal(scales->data, "\x00\x7f\x80\xff", 4);
    oq_ckpt_close(ckpt);
}

/* All of them share one storage of 0 .. 23; those out of order are put into the order of their shape. */
static void test_views(void **state)
{
    float whole[24], transposed[24];
    for (int i = 0; i < 24; i++) whole[i] = (float)i, transposed[i] = (float)(i % 4 * 6 + i / 4);
    oq_ckpt *ckpt = opened(*state, DATA "views.bin");
    values_are(ckpt, "whole", whole, 24);
    values_are(ckpt, "transposed", transposed, 24);
    values_are(ckpt, "rows", whole + 6, 12);
    values_are(ckpt, "columns", (const float[]){2, 3, 8, 9, 14, 15, 20, 21}, 8);
    values_are(ckpt, "stepped", (const float[]){0, 3, 12, 15}, 4);
    values_are(ckpt, "one", (const float[]){15}, 1);
    values_are(ckpt, "parameter", whole, 6);
    shape_is(oq_ckpt_find(ckpt, "transposed"), 2, (const int64_t[]){6, 4});
    shape_is(oq_ckpt_find(ckpt, "one"), 0, NULL);
    shape_is(oq_ckpt_find(ckpt, "none"), 2, (const int64_t[]){0, 6});
    const oq_ckpt_tensor *cube = oq_ckpt_find(ckpt, "cube");
    shape_is(cube, 3, (const int64_t[]){6, 2, 2});
    values_are(ckpt, "cube", (const float[]){0, 6, 12, 18, 1, 7,  13, 19, 2, 8,  14, 20,
                                             3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23},
               24);
    for (size_t i = 0; i < ckpt->n_tensors; i++) oq_ckpt_forget(ckpt, &ckpt->tensors[i]);
    values_are(ckpt, "transposed", transposed, 24);
    values_are(ckpt, "whole", whole, 24);
    oq_ckpt_close(ckpt);
}

static void test_forms(void **state)
{
    static const struct {
        const char *file, *name;
        float values[6];
        int64_t n;
    } rows[] = {
        {"module.bin", "0.weight", {0, 1, 2, 3, 4, 5}, 6}, /* an OrderedDict with attributes */
        {"module.bin", "0.bias", {0, 1}, 2},
        {"nested.bin", "a", {0, 1}, 2}, /* inside "state_dict" */
        {"protocol4.bin", "a", {0, 1, 2}, 3},
        {"protocol4.bin", "b", {0, 1}, 2},
        {"hand.bin", "a", {0, 1, 2, 3}, 4},
        {"zip64.bin", "a", {0, 1, 2, 3}, 4},
        {"zip64_local.bin", "a", {0, 1, 2, 3}, 4},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char path[1024];
        snprintf(path, sizeof path, DATA "%s", rows[i].file);
        oq_ckpt *ckpt = opened(*state, path);
        values_are(ckpt, rows[i].name, rows[i].values, rows[i].n);
        oq_ckpt_close(ckpt);
    }
}

/* A tensor's class is told in the words of TorchAO's safetensors. */
static void test_class(void **state)
{
    oq_ckpt *ckpt = opened(*state, DATA "wrapped.bin");
    oq_json *told = NULL, *wanted = NULL;
    static const char text[] =
        "{\"_type\": \"Int8Tensor\", \"_tensor_data_names\": [\"qdata\"], \"_data\": {\"shape\": [2, 2], "
        "\"block\": [1, 2], \"dtype\": {\"_type\": \"torch.dtype\", \"_data\": \"bfloat16\"}}}";
    bench *b = *state;
    values_are(ckpt, "m._weight_qdata", (const float[]){0, 1, 2, 3}, 4);
    assert_string_equal(oq_ckpt_find(ckpt, "m._weight_qdata")->origin, "m.weight");
    const char *found = oq_json_string(oq_ckpt_metadata(ckpt, "m.weight"));
    assert_non_null(found);
    assert_int_equal(oq_json_parse(b->env, found, strlen(found), "found", &told), OQ_OK);
    assert_int_equal(oq_json_parse(b->env, text, strlen(text), "wanted", &wanted), OQ_OK);
    assert_true(oq_json_equal(told, wanted));
    oq_json_free(wanted);
    oq_json_free(told);
    oq_ckpt_close(ckpt);
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

#define NOT_LISTED                                                                                           \
    ", which is not on the list of names that are read; nothing in a pickle is ever run: convert it to "     \
    "safetensors"
#define NO_USE       ", which files of weights have no use for"
#define NO_ARCHIVE   "is no whole zip archive (its directory is missing at the end): download it again"
#define TWICE_STORED "has strides that use one stored element several times"

static const struct {
    const char *file;
    oq_status status;
    const char *text;
} hostile[] = {
    {"h_system", OQ_E_UNSUPPORTED, "its pickle names 'os.system' (byte 2)" NOT_LISTED},
    {"h_eval", OQ_E_UNSUPPORTED, "its pickle names 'builtins.eval' (byte 18)" NOT_LISTED},
    {"h_getattr", OQ_E_UNSUPPORTED, "its pickle names 'torchao.getattr' (byte 10)" NOT_LISTED},
    {"h_torch_load", OQ_E_UNSUPPORTED, "its pickle names 'torch.serialization.load' (byte 10)" NOT_LISTED},
    {"h_opcode_inst", OQ_E_UNSUPPORTED, "its pickle has opcode 0x69 (byte 3)" NO_USE},
    {"h_opcode_ext", OQ_E_UNSUPPORTED, "its pickle has opcode 0x82 (byte 2)" NO_USE},
    {"h_memo_unset", OQ_E_FORMAT, "malformed pickle at byte 2: a memo number was never stored"},
    {"h_memo_large", OQ_E_FORMAT, "malformed pickle at byte 3: a memo number is larger than the pickle"},
    {"h_no_stop", OQ_E_FORMAT, "malformed pickle at byte 3: it ends too early"},
    {"h_after_stop", OQ_E_FORMAT, "malformed pickle at byte 148: bytes follow its end"},
    {"h_text_long", OQ_E_FORMAT, "malformed pickle at byte 2: a text is longer than the pickle"},
    {"h_text_utf8", OQ_E_FORMAT, "malformed pickle at byte 4: a text is no UTF-8"},
    {"h_append_self", OQ_E_FORMAT, "tensor 'm.weight' has attributes inside each other too deep"},
    {"h_deep", OQ_E_FORMAT, "tensor 'm.weight' has attributes inside each other too deep"},
    {"h_laughs", OQ_E_FORMAT, "tensor 'm.weight' has attributes that repeat too often"},
    {"h_beyond", OQ_E_FORMAT, "tensor 'a' reaches beyond its storage of 4 elements"},
    {"h_offset", OQ_E_FORMAT, "tensor 'a' reaches beyond its storage of 4 elements"},
    {"h_stride_negative", OQ_E_FORMAT, "tensor 'a' has a size or a stride that is no whole number from 0 on"},
    {"h_stride_zero", OQ_E_FORMAT, "tensor 'a' " TWICE_STORED},
    {"h_stride_overlap", OQ_E_FORMAT, "tensor 'a' " TWICE_STORED},
    {"h_shape_overflow", OQ_E_FORMAT, "tensor 'a' has more elements than can be counted"},
    {"h_size_real", OQ_E_FORMAT, "tensor 'a' has a size or a stride that is no whole number from 0 on"},
    {"h_dims", OQ_E_UNSUPPORTED, "tensor 'a' has 9 dimensions, at most 8 are read"},
    {"h_storage_missing", OQ_E_FORMAT, "tensor 'a' lies in entry 'f/data/7', which is missing"},
    {"h_storage_path", OQ_E_FORMAT, "tensor 'a' lies in entry 'f/data/../data.pkl', which is missing"},
    {"h_storage_size", OQ_E_FORMAT,
     "tensor 'a': its storage of 3 elements does not fit entry 'f/data/0' of 16 bytes"},
    {"h_storage_huge", OQ_E_FORMAT, "tensor 'a' has no storage in the form that torch.save writes"},
    {"h_storage_class", OQ_E_FORMAT, "tensor 'a' has elements of a type that is not read"},
    {"h_copies", OQ_E_FORMAT,
     "tensor 't1' and others that stand out of order would need more memory than the file has bytes"},
    {"h_no_tensor", OQ_E_FORMAT, "'a' is a number, not a tensor"},
    {"h_name_number", OQ_E_FORMAT, "a tensor's name is no text"},
    {"h_no_dict", OQ_E_FORMAT, "holds a list, not a dict of tensors"},
    {"h_twice", OQ_E_FORMAT, "tensor 'a' stands twice in its header"},
    {"h_big_endian", OQ_E_UNSUPPORTED, "its numbers are in another byte order than little-endian"},
    {"h_compressed", OQ_E_UNSUPPORTED,
     "entry 'f/data.pkl' is compressed (method 8); torch.save stores entries as they are, and only those are "
     "read"},
    {"h_encrypted", OQ_E_UNSUPPORTED, "entry 'f/byteorder' is encrypted"},
    {"h_two_pickles", OQ_E_FORMAT, "holds two pickles, 'f/data.pkl' and 'g/data.pkl'"},
    {"h_no_pickle", OQ_E_FORMAT, "is a zip archive without a data.pkl: torch.save did not write it"},
    {"h_zip_shared", OQ_E_FORMAT, "entry 'f/data/0' has another name in its own header"},
    {"h_zip_overlap", OQ_E_FORMAT, "entries 'f/data/0' and 'f/byteorder' overlap"},
    {"h_bare_pickle", OQ_E_FORMAT,
     "is a bare Python pickle; of pickles only the zip archives of torch.save are read: save it again with "
     "PyTorch 1.6 or later, or convert it to safetensors"},
};

static void test_hostile(void **state)
{
    bench *b = *state;
    for (size_t i = 0; i < OQ_COUNT(hostile); i++) {
        char path[1024], wanted[2048];
        oq_ckpt *ckpt = NULL;
        snprintf(path, sizeof path, DATA "%s.bin", hostile[i].file);
        snprintf(wanted, sizeof wanted, "%s: %s", path, hostile[i].text);
        assert_int_equal(oq_ckpt_open(b->env, path, &ckpt), hostile[i].status);
        assert_null(ckpt);
        assert_string_equal(oq_env_error(b->env), wanted);
        oq_env_clear(b->env);
    }
}

/* Cut anywhere, an archive has no directory at its end. */
static void test_every_truncation(void **state)
{
    bench *b = *state;
    char *bytes = NULL;
    size_t n = 0;
    assert_int_equal(oq_file_read(b->env, DATA "zip64.bin", 4096, &bytes, &n), OQ_OK);
    for (size_t cut = 4; cut < n; cut++) {
        oq_ckpt *ckpt = NULL;
        scratch_write(b->dir, "cut.bin", bytes, cut);
        assert_int_equal(oq_ckpt_open(b->env, scratch_path(b->dir, "cut.bin"), &ckpt), OQ_E_FORMAT);
        assert_non_null(strstr(oq_env_error(b->env), NO_ARCHIVE));
        oq_env_clear(b->env);
    }
    oq_free(b->env, bytes);
}

/* ---- folders ------------------------------------------------------------------------------------------- */

static void copy_in(bench *b, const char *dir, const char *from, const char *to)
{
    char source[1024];
    snprintf(source, sizeof source, DATA "%s", from);
    assert_int_equal(oq_file_copy(b->env, source, scratch_path(dir, to)), OQ_OK);
}

static void test_folder(void **state)
{
    bench *b = *state;
    static const struct {
        const char *name, *variant;
    } rows[] = {{"diffusion_pytorch_model.bin", NULL},
                {"pytorch_model.bin", NULL},
                {"pytorch_model.fp16.bin", "fp16"}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char dir[1024];
        oq_ckpt *ckpt = NULL;
        snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "torchfolder"));
        copy_in(b, dir, "hand.bin", rows[i].name);
        assert_int_equal(oq_ckpt_open_folder(b->env, dir, rows[i].variant, &ckpt), OQ_OK);
        values_are(ckpt, "a", (const float[]){0, 1, 2, 3}, 4);
        oq_ckpt_close(ckpt);
    }
}

/* Shards: the index names tensors as they were before their classes were taken apart. */
static void test_shards(void **state)
{
    static const char good[] =
        "{\"metadata\": {\"total_size\": 24}, \"weight_map\": {\"m.weight\": \"b.bin\", \"a\": "
        "\"a.bin\"}}",
                      more[] =
                          "{\"weight_map\": {\"m.weight\": \"b.bin\", \"a\": \"a.bin\", \"c\": \"a.bin\"}}",
                      less[] = "{\"weight_map\": {\"b\": \"b.bin\", \"a\": \"a.bin\"}}";
    bench *b = *state;
    char dir[1024];
    oq_ckpt *ckpt = NULL;
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "torchshards"));
    copy_in(b, dir, "hand.bin", "a.bin");
    copy_in(b, dir, "wrapped.bin", "b.bin");
    scratch_write(dir, "pytorch_model.bin.index.json", good, sizeof good - 1);
    assert_int_equal(oq_ckpt_open_folder(b->env, dir, NULL, &ckpt), OQ_OK);
    values_are(ckpt, "a", (const float[]){0, 1, 2, 3}, 4);
    values_are(ckpt, "m._weight_qdata", (const float[]){0, 1, 2, 3}, 4);
    oq_ckpt_close(ckpt);
    scratch_write(dir, "pytorch_model.bin.index.json", more, sizeof more - 1);
    assert_int_equal(oq_ckpt_open_folder(b->env, dir, NULL, &ckpt), OQ_E_FORMAT);
    assert_non_null(strstr(oq_env_error(b->env), "tensor 'c' is missing in a.bin"));
    oq_env_clear(b->env);
    scratch_write(dir, "pytorch_model.bin.index.json", less, sizeof less - 1);
    assert_int_equal(oq_ckpt_open_folder(b->env, dir, NULL, &ckpt), OQ_E_FORMAT);
    assert_non_null(strstr(oq_env_error(b->env), "does not name tensor 'm.weight' of b.bin"));
    oq_env_clear(b->env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_element_types), cmocka_unit_test(test_views),
        cmocka_unit_test(test_forms),         cmocka_unit_test(test_class),
        cmocka_unit_test(test_hostile),       cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_folder),        cmocka_unit_test(test_shards),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
