/* test_safetensors.c -- one weight file: what is read, and that everything else is refused with the right
 * sentence. Fixtures S*.safetensors are small files, good and hostile; the reports behind them are named
 * beside each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DATA OMNIQ_SOURCE_DIR "/tests/data/ckpt/"

typedef struct bench {
    oq_env *env;
    const char *dir;
} bench;

static int setup(void **state)
{
    static bench b;
    static char dir[1024];
    if (oq_env_new(NULL, &b.env) != OQ_OK) return -1;
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "safetensors"));
    b.dir = dir;
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    oq_env_free(b->env);
    return 0;
}

/* Opening fails with this status and a sentence "path: text". */
static void refused(bench *b, const char *path, oq_status status, const char *text)
{
    oq_ckpt *ckpt = NULL;
    char expected[2048];
    oq_env_clear(b->env);
    assert_int_equal(oq_ckpt_open(b->env, path, &ckpt), status);
    assert_null(ckpt);
    snprintf(expected, sizeof expected, "%s: %s", path, text);
    assert_string_equal(oq_env_error(b->env), expected);
    oq_env_clear(b->env);
}

static oq_ckpt *opened(bench *b, const char *path)
{
    oq_ckpt *ckpt = NULL;
    if (oq_ckpt_open(b->env, path, &ckpt) != OQ_OK) fail_msg("%s", oq_env_error(b->env));
    return ckpt;
}

static void test_hostile_fixtures(void **state)
{
    static const struct {
        const char *file;
        const char *text;
    } rows[] = {
        {"S01_hlen_past_eof",
         "the file ends 1048505 bytes early, inside its header of 1048576 bytes: download it again"},
        {"S02_hlen_2e63", "a header of 9223372036854775816 bytes, at most 100000000 are read"},
        /* safetensors#668: the limit is the reference library's; the file has 10 bytes */
        {"S03_hlen_100MB_plus", "a header of 100000001 bytes, at most 100000000 are read"},
        {"S04_leading_space", "its header of 56 bytes does not begin with '{'"},
        /* safetensors#401: the key is named */
        {"S05_dup_key", "tensor 'a' stands twice in its header"},
        {"S06_hole", "tensor 'b': begins at byte 20 of the data, 4 bytes before it belong to no tensor"},
        /* airllm#137, InvokeAI#7009: what does not fit says so in bytes */
        {"S08_trailing",
         "4 bytes follow the last tensor, its header does not describe them: download it again"},
        {"S09_end_before_begin", "tensor 'a': ends at byte 0, before its begin at 16"},
        {"S10_size_mismatch", "tensor 'a': 5 elements of F32 are 20 bytes, its data_offsets span 16"},
        {"S11_shape_overflow", "tensor 'a': its shape has more elements than can be counted"},
        {"S13_no_offsets", "tensor 'a': has no data_offsets"},
        {"S14_offsets_past_eof",
         "the file ends 4080 bytes early (16 of 4096 bytes of data): download it again"},
        {"S16_meta_not_string", "__metadata__ key 'k' is a whole number, not a string"},
        {"S19_unknown_dtype", "tensor 'a': unknown dtype 'F7_WAT'"},
        /* sd-scripts#990, bizgen#15 */
        {"S20_torch_zip", "is no whole zip archive (its directory is missing at the end): download it again"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char path[1024];
        snprintf(path, sizeof path, DATA "%s.safetensors", rows[i].file);
        refused(*state, path, OQ_E_FORMAT, rows[i].text);
    }
}

/* S17: 200,000 brackets must not reach a recursive parser. */
static void test_deep_json(void **state)
{
    bench *b = *state;
    enum { DEPTH = 100000 };
    char *text = malloc(2 * DEPTH + 6);
    assert_non_null(text);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', DEPTH);
    memset(text + 5 + DEPTH, ']', DEPTH - 1);
    memcpy(text + 4 + 2 * DEPTH, "}", 2);
    scratch_safetensors(b->dir, "deep.safetensors", text, "", 0);
    free(text);
    refused(b, scratch_path(b->dir, "deep.safetensors"), OQ_E_FORMAT,
            "malformed header: an object expected at byte 5");
    char nested[256];
    snprintf(nested, sizeof nested, "{\"a\":{\"dtype\":%070d%070d}}", 0, 0);
    memset(strchr(nested, '0'), '[', 70);
    memset(strchr(nested, '0'), ']', 70);
    scratch_safetensors(b->dir, "nested.safetensors", nested, "", 0);
    refused(b, scratch_path(b->dir, "nested.safetensors"), OQ_E_FORMAT,
            "header at byte 1: JSON nested 72 deep, at most 64 are read");
}

/* The bytes of a tensor as f32, whatever their alignment. */
static void values_are(const oq_ckpt *ckpt, const char *name, const float *expected, size_t n)
{
    float got[64];
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, name);
    assert_non_null(t);
    assert_int_equal(t->elems, n);
    t->dtype->to_f32(got, t->data, n);
    for (size_t i = 0; i < n; i++) assert_true(got[i] <= expected[i] && got[i] >= expected[i]);
}

static const float one_to_four[] = {1, 2, 3, 4};

/* flux2.c loads no tensor when __metadata__ holds braces. */
static void test_metadata_braces(void **state)
{
    oq_ckpt *ckpt = opened(*state, DATA "S30_meta_braces.safetensors");
    assert_int_equal(ckpt->n_tensors, 1);
    values_are(ckpt, "a", one_to_four, 4);
    assert_string_equal(oq_json_string(oq_ckpt_metadata(ckpt, "note")), "unbalanced }} \"quoted\\\" { brace");
    assert_string_equal(oq_json_string(oq_ckpt_metadata(ckpt, "format")), "pt");
    assert_null(oq_ckpt_metadata(ckpt, "missing"));
    oq_ckpt_close(ckpt);
}

static void test_scalar(void **state)
{
    static const float half = 0.5f;
    oq_ckpt *ckpt = opened(*state, DATA "S31_scalar_0d.safetensors");
    assert_int_equal(oq_ckpt_find(ckpt, "s")->n_dims, 0);
    values_are(ckpt, "s", &half, 1);
    oq_ckpt_close(ckpt);
}

/* diffusion-pipe#381, ComfyUI-GGUF#345: a tensor without elements is legal. */
static void test_empty_tensor(void **state)
{
    oq_ckpt *ckpt = opened(*state, DATA "S32_empty.safetensors");
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, "scaled_fp8");
    assert_non_null(t);
    assert_int_equal(t->bytes, 0);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->dim[0], 0);
    assert_null(t->data);
    assert_ptr_equal(t->dtype, &oq_dtype_f8_e4m3);
    values_are(ckpt, "a", one_to_four, 4);
    oq_ckpt_close(ckpt);
}

/* Alignment is not promised by the container; read under UBSan this test proves that none is assumed. */
static void test_unaligned(void **state)
{
    static const float seven = 7;
    oq_ckpt *ckpt = opened(*state, DATA "S33_unaligned.safetensors");
    assert_int_equal((uintptr_t)oq_ckpt_find(ckpt, "a")->data % 2, 1);
    values_are(ckpt, "a", one_to_four, 4);
    values_are(ckpt, "b", &seven, 1);
    oq_ckpt_close(ckpt);
}

static void test_long_name(void **state)
{
    oq_ckpt *ckpt = opened(*state, DATA "S34_long_name.safetensors");
    assert_int_equal(ckpt->n_tensors, 1);
    assert_int_equal(strlen(ckpt->tensors[0].name), 2 + 400 + 7);
    assert_ptr_equal(oq_ckpt_find(ckpt, ckpt->tensors[0].name), &ckpt->tensors[0]);
    oq_ckpt_close(ckpt);
}

/* safetensors#466: metadata alone is a whole file. */
static void test_metadata_only(void **state)
{
    oq_ckpt *ckpt = opened(*state, DATA "S35_meta_only.safetensors");
    assert_int_equal(ckpt->n_tensors, 0);
    assert_null(oq_ckpt_find(ckpt, "a"));
    assert_string_equal(oq_json_string(oq_ckpt_metadata(ckpt, "k")), "v");
    oq_ckpt_close(ckpt);
}

static void test_five_dims(void **state)
{
    static const int64_t dim[] = {2, 3, 1, 2, 2};
    oq_ckpt *ckpt = opened(*state, DATA "S38_5d.safetensors");
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, "patch_embedding.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 5);
    assert_memory_equal(t->dim, dim, sizeof dim);
    assert_int_equal(t->elems, 24);
    assert_string_equal(t->type_name, "BF16");
    oq_ckpt_close(ckpt);
}

/* Headers that no fixture covers: each field, each bound. Data is 16 bytes. */
static void test_hostile_headers(void **state)
{
    bench *b = *state;
    static const char data[16] = {0};
    static const struct {
        const char *header, *text;
    } rows[] = {
        {"{\"a\":1}", "malformed header: an object expected at byte 5"},
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "tensor 'a': has no dtype"},
        {"{\"a\":{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,16]}}",
         "tensor 'a': dtype is a whole number, not a string"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "tensor 'a': has no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,16]}}",
         "tensor 'a': shape is an object, not a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}",
         "tensor 'a': dimension 0 of its shape is not a whole number from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}}",
         "tensor 'a': dimension 0 of its shape is not a whole number from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}}",
         "tensor 'a': 9 dimensions, at most 8 are read"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,16]}}",
         "tensor 'a': 4611686018427387904 elements of F64 are more bytes than can be counted"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}",
         "tensor 'a': 3 elements of F4 do not fill whole bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}",
         "tensor 'a': data_offsets is not a list of two whole numbers from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,-16]}}",
         "tensor 'a': data_offsets is not a list of two whole numbers from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"stride\":[1]}}",
         "tensor 'a': unknown field 'stride' in its header entry"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"U8\",\"shape\":"
         "[4],"
         "\"data_offsets\":[8,12]}}",
         "tensor 'b': begins at byte 8 of the data, inside tensor 'a' that ends at 16"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"U8\",\"shape\":"
         "[0],"
         "\"data_offsets\":[8,8]}}",
         "tensor 'b': begins at byte 8 of the data, inside tensor 'a' that ends at 16"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}}",
         "tensor 'a': begins at byte 4 of the data, 4 bytes before it belong to no tensor"},
        {"{\"__metadata__\":[]}", "malformed header: an object expected at byte 16"},
        {"{\"__metadata__\":{\"k\":[]}}",
         "__metadata__ holds a list or an object, its values must be strings"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", "__metadata__ stands twice in its header"},
        {"{\"__met\\u0061data__\":{\"k\":{}}}", "__metadata__ key 'k' is an object, not a string"},
        {"{\"a\" {}}", "malformed header: ':' expected at byte 5"},
        {"{\"a\":{}", "malformed header: ',' or '}' expected at byte 7"},
        {"{\"a\":{},}", "malformed header: a name in quotes expected at byte 8"},
        {"{\"a\":{\"b", "malformed header: an object that ends expected at byte 5"},
        {"{\"a", "malformed header: a name that ends expected at byte 1"},
        {"{}", "16 bytes follow the last tensor, its header does not describe them: download it again"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}{",
         "malformed header: nothing more expected at byte 55"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,16]}}",
         "header at byte 1: not valid JSON at line 1, column 49: too big integer"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        scratch_safetensors(b->dir, "bad.safetensors", rows[i].header, data, sizeof data);
        refused(b, scratch_path(b->dir, "bad.safetensors"), OQ_E_FORMAT, rows[i].text);
    }
}

/* safetensors files of 100 MB that are all header: a member is refused by its size before it becomes values. */
static void test_costly_members(void **state)
{
    bench *b = *state;
    enum { N = 5000 };
    char *text = malloc(N + 64);
    assert_non_null(text);
    int at = sprintf(text, "{\"a\":{\"shape\":[");
    while (at < N) at += sprintf(text + at, "[],");
    sprintf(text + at, "0]}}");
    scratch_safetensors(b->dir, "costly.safetensors", text, "", 0);
    char message[128];
    snprintf(message, sizeof message, "header entry \"a\" has %zu bytes, at most 4096 are read",
             strlen(text) - 6);
    refused(b, scratch_path(b->dir, "costly.safetensors"), OQ_E_FORMAT, message);
    free(text);
}

/* Types that are listed but never computed with keep their bytes. */
static void test_opaque_types(void **state)
{
    bench *b = *state;
    scratch_safetensors(b->dir, "opaque.safetensors",
                        "{\"s\":{\"dtype\":\"F8_E8M0\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
                        "\"w\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[4,7]}}   \n",
                        "\x7f\x80\x81\x82\x10\x32\x54", 7);
    oq_ckpt *ckpt = opened(b, scratch_path(b->dir, "opaque.safetensors"));
    const oq_ckpt_tensor *s = oq_ckpt_find(ckpt, "s"), *w = oq_ckpt_find(ckpt, "w");
    assert_null(s->dtype);
    assert_string_equal(s->type_name, "F8_E8M0");
    assert_memory_equal(s->data, "\x7f\x80\x81\x82", 4);
    assert_int_equal(w->bytes, 3);
    assert_int_equal(w->elems, 6);
    oq_ckpt_close(ckpt);
}

/* sd-scripts#990, bizgen#15: "header too large" was always some other file. The first bytes say which. */
static void test_other_containers(void **state)
{
    bench *b = *state;
    static const char zeros[1000];
    static const struct {
        const char *bytes;
        size_t n;
        oq_status status;
        const char *text;
    } rows[] = {
        {"", 0, OQ_E_FORMAT, "is empty (0 bytes): download it again"},
        {" \n ", 3, OQ_E_FORMAT, "is not a weight file (3 bytes, begins with ' \\x0a ')"},
        {"abc", 3, OQ_E_FORMAT, "is not a weight file (3 bytes, begins with 'abc')"},
        {"Entry not found", 15, OQ_E_FORMAT, "is not a weight file (15 bytes, begins with 'Entry no')"},
        {"\x01\x02\x03\x04\xff\xff\xff\xffzz", 10, OQ_E_FORMAT,
         "is not a weight file (10 bytes, begins with '\\x01\\x02\\x03\\x04\\xff\\xff\\xff\\xff')"},
        {"\x02\0\0\0\0\0\0\0{", 9, OQ_E_FORMAT,
         "9 bytes are too few for a safetensors file: download it again"},
        {"\0\0\0\0\0\0\0\0{}", 10, OQ_E_FORMAT, "its header of 0 bytes does not begin with '{'"},
        {"\x80\x02}q\1.", 6, OQ_E_FORMAT,
         "is a bare Python pickle; of pickles only the zip archives of torch.save are read: save it again "
         "with "
         "PyTorch 1.6 or later, or convert it to safetensors"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", 69, OQ_E_FORMAT,
         "is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull' or download it again"},
        {"\n  <!DOCTYPE html><html>", 24, OQ_E_FORMAT,
         "is a web page (HTML), not the file itself: download it again"},
        {"<html><head>", 12, OQ_E_FORMAT, "is a web page (HTML), not the file itself: download it again"},
        {zeros, sizeof zeros, OQ_E_FORMAT,
         "begins with zeros, as files do whose download has not ended: download it again"},
        {"\x1f\x8b\x08\0", 4, OQ_E_FORMAT, "is compressed with gzip: unpack it first"},
        {"{\"model_type\": \"qwen3\"}", 23, OQ_E_FORMAT,
         "is JSON text, but no index of weight files: it has no weight_map (an object from tensor names to "
         "file names)"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        scratch_write(b->dir, "model.safetensors", rows[i].bytes, rows[i].n);
        refused(b, scratch_path(b->dir, "model.safetensors"), rows[i].status, rows[i].text);
    }
}

/* Headers whose length begins like another format's first bytes: 640 as a pickle, 35615 as gzip. */
static void test_lengths_like_magics(void **state)
{
    bench *b = *state;
    static const size_t lengths[] = {640, 896, 1152, 1408, 35615};
    static char bytes[8 + 35615];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint64_t n = lengths[i];
        memset(bytes, ' ', sizeof bytes);
        for (int k = 0; k < 8; k++) bytes[k] = (char)(n >> 8 * k & 0xff);
        memcpy(bytes + 8, "{}", 2);
        scratch_write(b->dir, "model.safetensors", bytes, 8 + n);
        oq_ckpt *ckpt = opened(b, scratch_path(b->dir, "model.safetensors"));
        assert_int_equal(ckpt->n_tensors, 0);
        oq_ckpt_close(ckpt);
    }
}

static void test_missing_and_folder(void **state)
{
    bench *b = *state;
    refused(b, scratch_path(b->dir, "none.safetensors"), OQ_E_NOTFOUND,
            "cannot be opened: No such file or directory");
    refused(b, b->dir, OQ_E_IO, "is a folder, not a file");
    assert_int_equal(mkfifo(scratch_path(b->dir, "pipe"), 0600),
                     0); /* opening it must not wait for a writer */
    refused(b, scratch_path(b->dir, "pipe"), OQ_E_IO, "is a special file, not a file");
}

/* airllm#137: a download may stop anywhere. Every shorter file is refused, and never read beyond its end. */
static void test_every_truncation(void **state)
{
    bench *b = *state;
    char *bytes = NULL;
    size_t n = 0;
    assert_int_equal(oq_file_read(b->env, DATA "S33_unaligned.safetensors", 4096, &bytes, &n), OQ_OK);
    for (size_t cut = 0; cut < n; cut++) {
        oq_ckpt *ckpt = NULL;
        scratch_write(b->dir, "cut.safetensors", bytes, cut);
        assert_int_equal(oq_ckpt_open(b->env, scratch_path(b->dir, "cut.safetensors"), &ckpt), OQ_E_FORMAT);
        assert_null(ckpt);
        assert_non_null(
            strstr(oq_env_error(b->env), cut < 8 && cut > 0 ? "is not a weight file" : "download it again"));
        oq_env_clear(b->env);
    }
    oq_free(b->env, bytes);
}

/* Names come out sorted and are found among many; the work is O(n log n). */
static void test_many_tensors(void **state)
{
    bench *b = *state;
    enum { N = 50000 };
    char *header = malloc(N * 80 + 16), *at = header;
    assert_non_null(header);
    *at++ = '{';
    for (int i = 0; i < N; i++)
        at += sprintf(at, "%s\"layers.%d.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i ? "," : "", (i * 7919) % N, i, i + 1);
    memcpy(at, "}", 2);
    unsigned char *data = malloc(N);
    assert_non_null(data);
    for (int i = 0; i < N; i++) data[(size_t)i] = (unsigned char)((i * 7919) % N % 251);
    scratch_safetensors(b->dir, "many.safetensors", header, data, N);
    free(header);
    free(data);
    oq_ckpt *ckpt = opened(b, scratch_path(b->dir, "many.safetensors"));
    assert_int_equal(ckpt->n_tensors, N);
    for (size_t i = 1; i < N; i++) assert_true(strcmp(ckpt->tensors[i - 1].name, ckpt->tensors[i].name) < 0);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d.w", i);
        const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, name);
        assert_non_null(t);
        assert_int_equal(*t->data, i % 251);
    }
    assert_null(oq_ckpt_find(ckpt, "layers.50000.w"));
    oq_ckpt_close(ckpt);
}

/* The hash names the header: equal for equal headers, whatever the data. */
static void test_header_hash(void **state)
{
    bench *b = *state;
    static const char *const header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    scratch_safetensors(b->dir, "x.safetensors", header, "1", 1);
    scratch_safetensors(b->dir, "y.safetensors", header, "2", 1);
    oq_ckpt *x = opened(b, scratch_path(b->dir, "x.safetensors")),
            *y = opened(b, scratch_path(b->dir, "y.safetensors"));
    uint64_t hash = 14695981039346656037u;
    for (const char *p = header; *p; p++) hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    char expected[17];
    snprintf(expected, sizeof expected, "%016llx", (unsigned long long)hash);
    assert_string_equal(x->files[0].header_hash, expected);
    assert_string_equal(y->files[0].header_hash, expected);
    oq_ckpt_close(x);
    oq_ckpt_close(y);
}

/* Memory that ends at the n-th allocation, for every n: a sentence, no crash, no leak. */
typedef struct failing {
    long left;
} failing;

static void *failing_allocate(void *user, size_t bytes)
{
    failing *f = user;
    if (f->left-- <= 0) return NULL;
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

static void failing_release(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

static void test_no_memory(void **state)
{
    (void)state;
    failing f = {.left = 1000};
    const oq_env_params params = {.size = sizeof params,
                                  .allocate = failing_allocate,
                                  .release = failing_release,
                                  .alloc_user = &f,
                                  .n_threads = 1};
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    oq_status st = OQ_E_NOMEM;
    int n = 0;
    for (; st != OQ_OK; n++) {
        oq_ckpt *ckpt = NULL;
        oq_env_clear(env);
        f.left = n;
        st = oq_ckpt_open(env, DATA "S30_meta_braces.safetensors", &ckpt);
        assert_true(st == OQ_OK || (st == OQ_E_NOMEM && !ckpt && *oq_env_error(env)));
        oq_ckpt_close(ckpt);
    }
    assert_in_range(n, 3, 100);
    f.left = 1000;
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_fixtures),   cmocka_unit_test(test_deep_json),
        cmocka_unit_test(test_metadata_braces),    cmocka_unit_test(test_scalar),
        cmocka_unit_test(test_empty_tensor),       cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_long_name),          cmocka_unit_test(test_metadata_only),
        cmocka_unit_test(test_five_dims),          cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_costly_members),     cmocka_unit_test(test_opaque_types),
        cmocka_unit_test(test_other_containers),   cmocka_unit_test(test_lengths_like_magics),
        cmocka_unit_test(test_missing_and_folder), cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_many_tensors),       cmocka_unit_test(test_header_hash),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
