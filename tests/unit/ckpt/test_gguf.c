/* test_gguf.c -- GGUF files: what is read, and that everything else is refused with the right sentence. Fixtures
 * G*.gguf are small files, good and hostile, made after the reports that are named beside them; the other files are
 * written here, byte by byte. */
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

#define DATA OMNIQ_SOURCE_DIR "/tests/data/ckpt/"

typedef struct bench {
    oq_env *env;
    char dir[1024];
} bench;

static int setup(void **state)
{
    static bench b;
    if (oq_env_new(NULL, &b.env) != OQ_OK) return -1;
    snprintf(b.dir, sizeof b.dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "gguf"));
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(((bench *)*state)->env);
    return 0;
}

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
    assert_string_equal(ckpt->container, "gguf");
    return ckpt;
}

/* ---- a file, piece by piece ------------------------------------------------------------------------------ */

typedef struct file {
    uint8_t bytes[1 << 16];
    size_t n;
} file;

enum {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    BOOL = 7,
    STRING = 8,
    ARRAY = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12
};
enum { T_F32 = 0, T_F16 = 1, T_Q4_0 = 2, T_Q8_1 = 9, T_Q4_K = 12, T_IQ2_XXS = 16, T_BF16 = 30 };

static void put(file *f, const void *bytes, size_t n)
{
    assert_true(f->n + n <= sizeof f->bytes);
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

static void put_u32(file *f, uint32_t x)
{
    put(f, &x, sizeof x);
}

static void put_u64(file *f, uint64_t x)
{
    put(f, &x, sizeof x);
}

static void put_text(file *f, const char *text)
{
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static void begin(file *f, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    f->n = 0;
    put(f, "GGUF", 4);
    put_u32(f, version);
    put_u64(f, n_tensors);
    put_u64(f, n_keys);
}

static void key(file *f, const char *name, uint32_t type)
{
    put_text(f, name);
    put_u32(f, type);
}

static void tensor(file *f, const char *name, int n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    put_text(f, name);
    put_u32(f, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++) put_u64(f, ne[i]);
    put_u32(f, type);
    put_u64(f, offset);
}

static void pad(file *f, size_t alignment)
{
    while (f->n % alignment) put(f, "", 1);
}

static void zeros(file *f, size_t n)
{
    for (size_t i = 0; i < n; i++) put(f, "", 1);
}

static const char *written(const bench *b, const file *f, const char *name)
{
    scratch_write(b->dir, name, f->bytes, f->n);
    return scratch_path(b->dir, name);
}

/* ---- fixtures ---------------------------------------------------------------------------------------------- */

static void test_hostile_fixtures(void **state)
{
    static const struct {
        const char *file;
        oq_status status;
        const char *text;
    } rows[] = {
        /* B46: ggml#1516, huggingface.js#2201, llama.cpp#26318 */
        {"G04_bad_align", OQ_E_FORMAT, "general.alignment is 24, it must be a power of two up to 1048576"},
        {"G06_align_type", OQ_E_FORMAT, "general.alignment is stored as INT32, it must be UINT32"},
        {"G14_str_huge", OQ_E_FORMAT, "a string of 1099511627776 bytes at byte 56, where 56 bytes are left"},
        {"G13_nt_huge", OQ_E_FORMAT,
         "its header tells 1152921504606846976 tensors, for which 120 bytes are left"},
        /* B45: llama.cpp#18674 */
        {"G07_dims_wrap", OQ_E_FORMAT, "tensor 'a': its shape has more elements than can be counted"},
        /* B47: gguf-tools#25 */
        {"G09_9dims", OQ_E_FORMAT, "tensor 'a': 9 dimensions, at most 8 are read"},
        /* B48 */
        {"G12_unknown_type", OQ_E_FORMAT, "tensor 'a': unknown type 999"},
        {"G15_dup_tensor", OQ_E_FORMAT, "tensor 'a' stands twice in its header"},
        {"G16_big_endian", OQ_E_UNSUPPORTED, "is a big-endian GGUF file; only little-endian ones are read"},
        {"G18_off_unaligned", OQ_E_FORMAT,
         "tensor 'a': begins at byte 4 of the data, which is no multiple of the alignment 32"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char path[1024];
        snprintf(path, sizeof path, DATA "%s.gguf", rows[i].file);
        refused(*state, path, rows[i].status, rows[i].text);
    }
}

/* B42, B43: ComfyUI-GGUF#230, #136, sd.cpp#1759: labels do not matter, dimensions survive, innermost last. */
static void test_good_fixtures(void **state)
{
    static const struct {
        const char *file, *tensor, *architecture;
        int n_dims;
        int64_t dim[8];
    } rows[] = {
        {"G01_ok", "a", "flux", 1, {4}},
        {"G02_no_arch", "a", NULL, 1, {4}},
        {"G03_arch_pig", "a", "pig", 1, {4}},
        {"G10_5dims", "patch_embedding.weight", "wan", 5, {2, 3, 1, 2, 2}},
        {"G20_lead1", "pos_embed", "sd3", 3, {1, 1, 4}},
    };
    bench *b = *state;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char path[1024];
        snprintf(path, sizeof path, DATA "%s.gguf", rows[i].file);
        oq_ckpt *ckpt = opened(b, path);
        const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, rows[i].tensor);
        const char *architecture = oq_json_string(oq_ckpt_metadata(ckpt, "general.architecture"));
        assert_true(t && t->dtype == &oq_dtype_f32 && t->n_dims == rows[i].n_dims);
        assert_memory_equal(t->dim, rows[i].dim, (size_t)t->n_dims * sizeof *t->dim);
        for (int64_t k = 0; k < t->elems; k++) {
            float x;
            memcpy(&x, t->data + 4 * k, sizeof x);
            assert_true(x == (float)(k + (t->n_dims != 5)));
        }
        assert_int_equal(architecture == NULL, rows[i].architecture == NULL);
        if (architecture) assert_string_equal(architecture, rows[i].architecture);
        oq_ckpt_close(ckpt);
    }
}

/* ---- metadata ---------------------------------------------------------------------------------------------- */

static void put_all_kinds(file *f)
{
    key(f, "a", U8), put(f, "\xff", 1);
    key(f, "b", I8), put(f, "\xff", 1);
    key(f, "c", U16), put(f, "\xff\xff", 2);
    key(f, "d", I16), put(f, "\xff\xff", 2);
    key(f, "e", U32), put_u32(f, 4000000000u);
    key(f, "f", I32), put_u32(f, 0xfffffffeu);
    key(f, "g", F32), put(f, &(float){1.5f}, 4);
    key(f, "h", BOOL), put(f, "\1", 1);
    key(f, "i", STRING), put_text(f, "text");
    key(f, "j", U64), put_u64(f, 1ull << 40);
    key(f, "k", I64), put_u64(f, (uint64_t)-5);
    key(f, "l", F64), put(f, &(double){0.25}, 8);
    key(f, "m", ARRAY), put_u32(f, STRING), put_u64(f, 2), put_text(f, "x"), put_text(f, "y");
    key(f, "n", ARRAY), put_u32(f, U8), put_u64(f, 65), zeros(f, 65);
    key(f, "o", ARRAY), put_u32(f, STRING), put_u64(f, 65);
    for (int i = 0; i < 65; i++) put_text(f, "word");
    key(f, "p", ARRAY), put_u32(f, ARRAY), put_u64(f, 1), put_u32(f, BOOL), put_u64(f, 1), put(f, "\0", 1);
}

static void test_every_kind_of_value(void **state)
{
    bench *b = *state;
    static file f;
    char *text = NULL;
    begin(&f, 2, 0, 16);
    put_all_kinds(&f);
    oq_ckpt *ckpt = opened(b, written(b, &f, "kinds.gguf"));
    assert_int_equal(oq_json_dump(b->env, ckpt->files[0].metadata, OQ_JSON_COMPACT, &text), OQ_OK);
    assert_string_equal(text, "{\"a\": 255, \"b\": -1, \"c\": 65535, \"d\": -1, \"e\": 4000000000, "
                              "\"f\": -2, \"g\": 1.5, \"h\": true, \"i\": \"text\", \"j\": 1099511627776, "
                              "\"k\": -5, \"l\": 0.25, \"m\": [\"x\", \"y\"], "
                              "\"n\": {\"array_of\": \"UINT8\", \"length\": 65}, "
                              "\"o\": {\"array_of\": \"STRING\", \"length\": 65}, \"p\": [[false]]}");
    oq_free(b->env, text);
    oq_ckpt_close(ckpt);
}

static void test_bad_metadata(void **state)
{
    bench *b = *state;
    static file f;
    begin(&f, 3, 0, 1);
    key(&f, "a", 13), zeros(&f, 64);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT, "key 'a' is of unknown type 13");
    begin(&f, 3, 0, 2);
    key(&f, "a", U8), put(&f, "", 1), key(&f, "a", U8), put(&f, "", 1);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT, "key 'a' stands twice");
    begin(&f, 3, 0, 1);
    key(&f, "a", ARRAY), put_u32(&f, F64), put_u64(&f, 1ull << 61), zeros(&f, 16);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "key 'a' is a list of 2305843009213693952 FLOAT64, for which 16 bytes are left");
    begin(&f, 3, 0, 1);
    key(&f, "a", ARRAY);
    for (int i = 0; i < 4; i++) put_u32(&f, ARRAY), put_u64(&f, 1);
    zeros(&f, 64);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT, "key 'a' holds lists in lists, more than 4 deep");
    begin(&f, 3, 0, 1);
    key(&f, "", U8), zeros(&f, 8);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT, "a key of 0 bytes at byte 32 is empty");
    begin(&f, 3, 0, 1ull << 40);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "its header tells 1099511627776 keys, for which 0 bytes are left");
    begin(&f, 3, 0, 1);
    key(&f, "abc", U32), put(&f, "\0\0", 2);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "the file ends inside a value (at byte 39 of 41, which needs 4 more): download it again");
    begin(&f, 1, 0, 0);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_UNSUPPORTED,
            "is a GGUF file of version 1; versions 2 and 3 are read");
    refused(b, (scratch_write(b->dir, "short.gguf", "GGUF\3", 5), scratch_path(b->dir, "short.gguf")),
            OQ_E_FORMAT,
            "the file ends inside its header (at byte 4 of 5, which needs 4 more): download it again");
}

/* ---- tensors ------------------------------------------------------------------------------------------------ */

static void test_bad_tensors(void **state)
{
    bench *b = *state;
    static file f;
    static const uint64_t two[] = {32, 2}, odd[] = {33, 2}, big[] = {1ull << 62};
    begin(&f, 3, 1, 0);
    tensor(&f, "w", 2, odd, T_Q4_0, 0), zeros(&f, 100);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "tensor 'w': rows of 33 elements are not whole blocks of Q4_0, which have 32");
    begin(&f, 3, 1,
          0); /* found by fuzzing: no elements, but a product of some dimensions that nobody can form */
    tensor(&f, "w", 3, (const uint64_t[]){0, 1ull << 62, 3}, T_F32, 0), zeros(&f, 100);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "tensor 'w': its shape has more elements than can be counted");
    begin(&f, 3, 1, 0);
    tensor(&f, "w", 1, big, T_F32, 0), zeros(&f, 100);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "tensor 'w': 4611686018427387904 elements of F32 are more bytes than can be counted");
    begin(&f, 3, 1, 0);
    tensor(&f, "w", 2, two, T_Q4_0, 0), pad(&f, 32), zeros(&f, 35);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "the file ends inside tensor 'w' (35 bytes of data, 36 needed): download it again");
    begin(&f, 3, 2, 0);
    tensor(&f, "v", 2, two, T_Q4_0, 0), tensor(&f, "w", 2, two, T_Q4_0, 32), pad(&f, 32), zeros(&f, 200);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "tensor 'w': begins at byte 32 of the data, but the one before it ends at 64");
    begin(&f, 3, 2, 0);
    tensor(&f, "v", 2, two, T_Q4_0, 0), tensor(&f, "w", 2, two, T_Q4_0, 128), pad(&f, 32), zeros(&f, 200);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "tensor 'w': begins at byte 128 of the data, but its place is at 64");
    begin(&f, 3, 1, 0);
    tensor(&f, "w", 2, two, T_Q4_0, 0), pad(&f, 32), zeros(&f, 36 + 32);
    refused(b, written(b, &f, "bad.gguf"), OQ_E_FORMAT,
            "32 bytes follow the last tensor, its header does not describe them: download it again");
}

/* B34, B44: ComfyUI-GGUF#234, #345: a tensor's shape is that of its weights, and one without elements is legal. */
static void test_good_tensors(void **state)
{
    bench *b = *state;
    static file f;
    static const uint64_t two[] = {64, 3}, none[] = {0}, six[] = {2, 1, 1, 1, 1, 3};
    begin(&f, 3, 4, 1);
    key(&f, "general.alignment", U32), put_u32(&f, 64);
    tensor(&f, "q", 2, two, T_Q4_0, 0), tensor(&f, "scaled_fp8", 1, none, T_F32, 128);
    tensor(&f, "h", 6, six, T_F16, 128), tensor(&f, "iq", 1, (const uint64_t[]){256}, T_IQ2_XXS, 192);
    pad(&f, 64), zeros(&f, 192 + 66);
    oq_ckpt *ckpt = opened(b, written(b, &f, "good.gguf"));
    const oq_ckpt_tensor *q = oq_ckpt_find(ckpt, "q"), *h = oq_ckpt_find(ckpt, "h");
    const oq_ckpt_tensor *empty = oq_ckpt_find(ckpt, "scaled_fp8"), *iq = oq_ckpt_find(ckpt, "iq");
    assert_true(q->format == &oq_format_q4_0 && !q->dtype && q->bytes == 108);
    assert_true(q->n_dims == 2 && q->dim[0] == 3 && q->dim[1] == 64 && q->elems == 192);
    assert_true(h->n_dims == 6 && h->dim[0] == 3 && h->dim[5] == 2 && h->dtype == &oq_dtype_f16);
    assert_true(empty->elems == 0 && !empty->data);
    assert_true(iq->format == &oq_format_iq2_xxs && strcmp(iq->type_name, "IQ2_XXS") == 0 && iq->bytes == 66);
    assert_true((size_t)(h->data - q->data) == 128);
    oq_ckpt_close(ckpt);
}

/* B36: shapes that do not fit into rows of blocks stand beside the flattened tensor. */
static void test_original_shape(void **state)
{
    bench *b = *state;
    static file f;
    static const uint64_t flat[] = {256, 2};
    for (int turn = 0; turn < 2; turn++) {
        begin(&f, 3, 1, 1);
        key(&f, "comfy.gguf.orig_shape.conv.weight", ARRAY), put_u32(&f, I32), put_u64(&f, 4);
        put_u32(&f, 8), put_u32(&f, turn ? 8 : 7), put_u32(&f, 2), put_u32(&f, 4);
        tensor(&f, "conv.weight", 2, flat, T_Q4_K, 0), pad(&f, 32), zeros(&f, 288);
        const char *path = written(b, &f, "shape.gguf");
        if (!turn) {
            refused(b, path, OQ_E_FORMAT,
                    "key 'comfy.gguf.orig_shape.conv.weight' tells 448 elements, its tensor has 512");
            continue;
        }
        oq_ckpt *ckpt = opened(b, path);
        const oq_ckpt_tensor *t = &ckpt->tensors[0];
        assert_true(t->n_dims == 4 && t->dim[0] == 8 && t->dim[1] == 8 && t->dim[2] == 2 && t->dim[3] == 4);
        oq_ckpt_close(ckpt);
    }
}

static void test_names_are_text(void **state)
{
    bench *b = *state;
    static file f;
    begin(&f, 3, 0, 1);
    key(&f, "general.\xff\xfe", U16), put(&f, &(uint16_t){1}, 2);
    refused(b, written(b, &f, "text.gguf"), OQ_E_FORMAT, "a key of 10 bytes at byte 32 is not UTF-8");
}

/* ---- several files ------------------------------------------------------------------------------------------- */

static void put_part(const bench *b, const char *name, int no, int count, int total, const char *tensor_name)
{
    static file f;
    static const uint64_t two[] = {32, 2};
    begin(&f, 3, 1, 3);
    key(&f, "split.no", U16), put(&f, &(uint16_t){(uint16_t)no}, 2);
    key(&f, "split.count", U16), put(&f, &(uint16_t){(uint16_t)count}, 2);
    key(&f, "split.tensors.count", I32), put_u32(&f, (uint32_t)total);
    tensor(&f, tensor_name, 2, two, T_Q4_0, 0), pad(&f, 32), zeros(&f, 36);
    scratch_write(b->dir, name, f.bytes, f.n);
}

static void test_split_files(void **state)
{
    bench *b = *state;
    char first[1100], other[1100], text[2048];
    put_part(b, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    put_part(b, "m-00002-of-00002.gguf", 1, 2, 2, "b");
    snprintf(first, sizeof first, "%s/m-00001-of-00002.gguf", b->dir);
    snprintf(other, sizeof other, "%s/m-00002-of-00002.gguf", b->dir);
    oq_ckpt *ckpt = opened(b, first);
    assert_true(ckpt->n_files == 2 && ckpt->n_tensors == 2);
    assert_int_equal(oq_ckpt_find(ckpt, "b")->file, 1);
    oq_ckpt_close(ckpt);
    refused(b, other, OQ_E_ARG, "is part 2 of 2; name the first one, '...-00001-of-00002.gguf'");
    assert_int_equal(oq_ckpt_open_folder(b->env, scratch_dir(OMNIQ_BINARY_DIR, "gguf-none"), NULL, &ckpt),
                     OQ_E_NOTFOUND);

    put_part(b, "m-00002-of-00002.gguf", 1, 2, 2, "a");
    snprintf(text, sizeof text,
             "tensor 'a' is in two files, m-00001-of-00002.gguf and m-00002-of-00002.gguf");
    refused(b, first, OQ_E_FORMAT, text);
    put_part(b, "m-00002-of-00002.gguf", 0, 2, 2, "b");
    oq_env_clear(b->env);
    assert_int_equal(oq_ckpt_open(b->env, first, &ckpt), OQ_E_FORMAT);
    snprintf(text, sizeof text, "%s: is part 1 of 2, so its name must end with '-00001-of-00002.gguf'",
             other);
    assert_string_equal(oq_env_error(b->env), text);
    put_part(b, "m-00002-of-00002.gguf", 1, 2, 3, "b");
    put_part(b, "m-00001-of-00002.gguf", 0, 2, 3, "a");
    refused(b, first, OQ_E_FORMAT, "tells 3 tensors in all parts, they hold 2");
    scratch_remove(b->dir, "m-00002-of-00002.gguf");
    refused(b, first, OQ_E_NOTFOUND, "part 2 of 2, 'm-00002-of-00002.gguf', is missing");
}

/* A component's folder without safetensors takes its one GGUF file, whole or in parts. */
static void test_folder(void **state)
{
    bench *b = *state;
    char dir[1024], text[2048];
    oq_ckpt *ckpt = NULL;
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "gguf-folder"));
    const bench in = {.dir = ""};
    bench at = in;
    snprintf(at.dir, sizeof at.dir, "%s", dir);
    put_part(&at, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    put_part(&at, "m-00002-of-00002.gguf", 1, 2, 2, "b");
    assert_int_equal(oq_ckpt_open_folder(b->env, dir, NULL, &ckpt), OQ_OK);
    assert_int_equal(ckpt->n_tensors, 2);
    oq_ckpt_close(ckpt);
    put_part(&at, "other.gguf", 0, 1, 1, "a");
    assert_int_equal(oq_ckpt_open_folder(b->env, dir, NULL, &ckpt), OQ_E_NOTFOUND);
    snprintf(text, sizeof text, "%s: holds 'm-00001-of-00002.gguf' and 'other.gguf': name one of them", dir);
    assert_string_equal(oq_env_error(b->env), text);
    oq_env_clear(b->env);
}

/* Whatever is cut off, the file is refused, never read beyond its end. */
static void test_truncated(void **state)
{
    bench *b = *state;
    static file f;
    static const uint64_t two[] = {32, 2};
    begin(&f, 3, 1, 16);
    put_all_kinds(&f);
    tensor(&f, "w", 2, two, T_Q4_0, 0), pad(&f, 32), zeros(&f, 36);
    for (size_t n = 0; n < f.n; n += 1) {
        oq_ckpt *ckpt = NULL;
        scratch_write(b->dir, "cut.gguf", f.bytes, n);
        oq_env_clear(b->env);
        assert_int_not_equal(oq_ckpt_open(b->env, scratch_path(b->dir, "cut.gguf"), &ckpt), OQ_OK);
        assert_true(oq_env_error(b->env)[0] != '\0');
    }
    oq_env_clear(b->env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_fixtures),    cmocka_unit_test(test_good_fixtures),
        cmocka_unit_test(test_every_kind_of_value), cmocka_unit_test(test_bad_metadata),
        cmocka_unit_test(test_bad_tensors),         cmocka_unit_test(test_good_tensors),
        cmocka_unit_test(test_original_shape),      cmocka_unit_test(test_names_are_text),
        cmocka_unit_test(test_split_files),         cmocka_unit_test(test_folder),
        cmocka_unit_test(test_truncated),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
