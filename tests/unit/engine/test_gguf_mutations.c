/* test_gguf_mutations.c -- GGUF files of every type spoilt in one place: types, shapes, offsets, alignment, blocks' scales, tensors
 * and keys too few, too many and of the wrong kind, files cut off, parts of split files. As for other layouts (test_mutations.c),
 * plan, inspect and generate agree, and what they take is the unspoilt picture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/size.h"
#include "format/gguf_type.h"
#include "support/env_setup.h"
#include "support/gguf_mutant.h"
#include "support/mutation_judge.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    mutation_judge judge;
    char folder[1024]; /* with the configuration */
    gguf_mutant whole;
} bench;

static int setup(void **state)
{
    static bench b;
    void *env = NULL;
    if (env_setup(&env) != 0) return -1;
    b.judge.env = env;
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    void *env = ((bench *)*state)->judge.env;
    return env_teardown(&env);
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static const char *path_of(const bench *b, const char *leaf)
{
    static char path[2048];
    snprintf(path, sizeof path, "%s/%s", b->folder, leaf);
    return path;
}

static void remove_weights(const bench *b)
{
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(oq_dir_list(b->judge.env, b->folder, &names, &n), OQ_OK);
    for (size_t i = 0; i < n; i++) {
        if (strstr(names[i], ".gguf")) remove(path_of(b, names[i]));
        oq_free(b->judge.env, names[i]);
    }
    oq_free(b->judge.env, names);
}

static void judge_may(bench *b, gguf_mutant *m, const char *what, bool may_differ)
{
    if (mutation_due(&b->judge)) {
        remove_weights(b);
        gguf_mutant_write(m, path_of(b, "model.gguf"));
        mutation_verdict(&b->judge, b->folder, what, may_differ);
    }
    gguf_mutant_free(m);
}

static void judge(bench *b, gguf_mutant *m, const char *what)
{
    judge_may(b, m, what, false);
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

/* A part of a fused product, a row of another length, a vector, a matrix that stays plain, a part of the network's end. */
static const char *const names[] = {"layers.0.attention.to_k.weight", "layers.1.feed_forward.w2.weight",
                                    "layers.0.attention_norm1.weight", "cap_embedder.1.weight"};

/* Types of as many bytes hold other numbers in the same blocks: nothing tells them apart. */
static bool same_bytes(const oq_gguf_type *a, const oq_gguf_type *b)
{
    return a->elems * b->bytes == b->elems * a->bytes;
}

static void spoil_type(bench *b, const char *name)
{
    static const uint32_t unknown[] = {4, 5, 36, 99, 0xffffffffu};
    const oq_gguf_type *own = oq_gguf_type_by_id(gguf_mutant_find(&b->whole, name)->type);
    char what[300];
    gguf_mutant m;
    for (const oq_gguf_type *t = oq_gguf_types; t->name; t++) {
        if (same_bytes(t, own)) continue;
        gguf_mutant_copy(&m, &b->whole);
        gguf_mutant_find(&m, name)->type = t->id;
        snprintf(what, sizeof what, "%s: %s called %s", name, own->name, t->name);
        judge(b, &m, what);
    }
    for (size_t i = 0; i < OQ_COUNT(unknown); i++) {
        gguf_mutant_copy(&m, &b->whole);
        gguf_mutant_find(&m, name)->type = unknown[i];
        snprintf(what, sizeof what, "%s: type %u", name, unknown[i]);
        judge(b, &m, what);
    }
}

static void swap_dims(gguf_mutant_tensor *t)
{
    const uint64_t d = t->dim[0];
    t->dim[0] = t->dim[1];
    t->dim[1] = d;
}
static void flat(gguf_mutant_tensor *t)
{
    t->dim[0] *= t->n_dims > 1 ? t->dim[1] : 1;
    t->n_dims = 1;
}
static void one_more_dim(gguf_mutant_tensor *t)
{
    t->dim[t->n_dims++] = 1;
}
static void no_dims(gguf_mutant_tensor *t)
{
    t->n_dims = 0;
}
static void nine_dims(gguf_mutant_tensor *t)
{
    for (; t->n_dims < 9; t->n_dims++) t->dim[t->n_dims] = 1;
}
static void no_rows(gguf_mutant_tensor *t)
{
    t->dim[t->n_dims - 1] = 0;
}
static void fewer(gguf_mutant_tensor *t)
{
    t->dim[t->n_dims - 1]--;
}
static void more(gguf_mutant_tensor *t)
{
    t->dim[t->n_dims - 1]++;
}
static void half_as_wide(gguf_mutant_tensor *t)
{
    t->dim[0] /= 2, t->dim[1] *= 2;
}
static void countless(gguf_mutant_tensor *t)
{
    t->dim[0] = t->dim[1] = (uint64_t)1 << 62;
}
static void row_cut(gguf_mutant_tensor *t) /* and its bytes with it: the file is one of its own */
{
    const size_t row = t->bytes / (size_t)t->dim[t->n_dims - 1];
    t->dim[t->n_dims - 1]--;
    t->bytes -= row;
}
static void moved(gguf_mutant_tensor *t)
{
    t->moved = 32;
}
static void moved_back(gguf_mutant_tensor *t)
{
    t->moved = -32;
}
static void moved_a_byte(gguf_mutant_tensor *t)
{
    t->moved = 1;
}
static void moved_far(gguf_mutant_tensor *t)
{
    t->moved = INT64_MAX / 2 / 32 * 32;
}
static void dropped(gguf_mutant_tensor *t)
{
    t->dropped = true;
}
static void renamed(gguf_mutant_tensor *t)
{
    strcat(t->name, "2");
}
static void nameless(gguf_mutant_tensor *t)
{
    t->name[0] = '\0';
}

static void spoil_entry(bench *b, const char *name)
{
    static const struct {
        void (*spoil)(gguf_mutant_tensor *t);
        const char *what;
    } ways[] = {{swap_dims, "shape transposed"},
                {flat, "one dimension"},
                {one_more_dim, "one dimension of 1 more"},
                {no_dims, "no dimensions"},
                {nine_dims, "nine dimensions"},
                {no_rows, "no rows"},
                {fewer, "a row less is told"},
                {more, "a row more is told"},
                {half_as_wide, "half as wide"},
                {countless, "countless"},
                {row_cut, "a row less"},
                {moved, "32 bytes further"},
                {moved_back, "32 bytes before"},
                {moved_a_byte, "a byte further"},
                {moved_far, "far away"},
                {dropped, "left out"},
                {renamed, "renamed"},
                {nameless, "without a name"}};
    char what[300];
    gguf_mutant m;
    for (size_t i = 0; i < OQ_COUNT(ways); i++) {
        gguf_mutant_copy(&m, &b->whole);
        ways[i].spoil(gguf_mutant_find(&m, name));
        snprintf(what, sizeof what, "%s: %s", name, ways[i].what);
        judge(b, &m, what);
    }
    for (int same = 0; same < 2; same++) {
        gguf_mutant_copy(&m, &b->whole);
        gguf_mutant_add(&m, gguf_mutant_find(&m, name), same ? name : "layers.99.attention.to_k.weight");
        snprintf(what, sizeof what, "%s: %s", name, same ? "twice" : "once more by another name");
        judge(b, &m, what);
    }
}

/* ---- scales of blocks ------------------------------------------------------------------------------------ */

typedef enum scale_kind { SCALE_F16, SCALE_F32, SCALE_E8M0, SCALE_E4M3 } scale_kind;

/* Where a block has its scale. */
static bool scale_of(const oq_gguf_type *t, size_t *at, scale_kind *kind)
{
    static const struct {
        const char *name;
        size_t at;
        scale_kind kind;
    } rows[] = {{"Q4_0", 0, SCALE_F16},   {"Q4_1", 0, SCALE_F16},   {"Q5_0", 0, SCALE_F16},
                {"Q5_1", 0, SCALE_F16},   {"Q8_0", 0, SCALE_F16},   {"Q2_K", 80, SCALE_F16},
                {"Q3_K", 108, SCALE_F16}, {"Q4_K", 0, SCALE_F16},   {"Q5_K", 0, SCALE_F16},
                {"Q6_K", 208, SCALE_F16}, {"Q8_K", 0, SCALE_F32},   {"IQ4_NL", 0, SCALE_F16},
                {"IQ4_XS", 0, SCALE_F16}, {"TQ1_0", 52, SCALE_F16}, {"TQ2_0", 64, SCALE_F16},
                {"MXFP4", 0, SCALE_E8M0}, {"NVFP4", 0, SCALE_E4M3}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (strcmp(rows[i].name, t->name) == 0) {
            *at = rows[i].at, *kind = rows[i].kind;
            return true;
        }
    return false;
}

typedef enum bad_scale { BAD_ZERO, BAD_NAN, BAD_INFINITE, N_BAD } bad_scale;

/* False: the kind has no such number. */
static bool put_scale(uint8_t *p, scale_kind kind, bad_scale bad)
{
    static const uint16_t f16[] = {0, 0x7e00, 0x7c00};
    static const uint32_t f32[] = {0, 0x7fc00000, 0x7f800000};
    if (kind == SCALE_F16) memcpy(p, &f16[bad], 2);
    if (kind == SCALE_F32) memcpy(p, &f32[bad], 4);
    if (kind == SCALE_E4M3) memset(p, bad == BAD_ZERO ? 0 : 0x7f, 4);
    return kind == SCALE_F16 || kind == SCALE_F32 || (kind == SCALE_E4M3 && bad == BAD_ZERO);
}

/* Plain numbers. */
static void spoil_numbers(bench *b, const char *name)
{
    static const uint32_t bad[] = {0x7fc00000, 0x7f800000, 0xff800000};
    const oq_gguf_type *type = oq_gguf_type_by_id(gguf_mutant_find(&b->whole, name)->type);
    char what[300];
    if (type->elems > 1) return;
    for (size_t i = 0; i < OQ_COUNT(bad); i++) {
        gguf_mutant m;
        float x;
        memcpy(&x, &bad[i], sizeof x);
        gguf_mutant_copy(&m, &b->whole);
        type->dtype->from_f32(gguf_mutant_find(&m, name)->data + 2 * (size_t)type->bytes, &x, 1);
        snprintf(what, sizeof what, "%s: a number of %s is %g", name, type->name, (double)x);
        judge(b, &m, what);
    }
}

static void spoil_scales(bench *b, const char *name)
{
    static const char *const words[] = {"zero", "NaN", "infinite"};
    const oq_gguf_type *type = oq_gguf_type_by_id(gguf_mutant_find(&b->whole, name)->type);
    size_t at = 0;
    scale_kind kind = SCALE_F16;
    char what[300];
    if (!scale_of(type, &at, &kind)) return;
    for (int bad = 0; bad < N_BAD; bad++)
        for (int all = 0; all < 2; all++) {
            gguf_mutant m;
            gguf_mutant_copy(&m, &b->whole);
            gguf_mutant_tensor *t = gguf_mutant_find(&m, name);
            bool is = true;
            for (size_t i = all ? 0 : 3 * (size_t)type->bytes; is && i < t->bytes; i += (size_t)type->bytes) {
                is = put_scale(t->data + i + at, kind, (bad_scale)bad);
                if (!all) break;
            }
            snprintf(what, sizeof what, "%s: %s of %s %s", name, all ? "all scales" : "a scale", type->name,
                     words[bad]);
            /* a block of zeros is a block like others: only that all are tells */
            if (is)
                judge_may(b, &m, what, bad == BAD_ZERO && !all);
            else
                gguf_mutant_free(&m);
        }
}

/* ---- keys ------------------------------------------------------------------------------------------------ */

static const uint32_t two = 2, three = 3;
static const uint8_t text[] = {3, 0, 0, 0, 0, 0, 0, 0, 'p', 'i', 'g'};

static void spoil_keys(bench *b)
{
    char what[300];
    gguf_mutant m;
    for (size_t i = 0; i < b->whole.n_keys; i++) {
        const char *name = b->whole.keys[i].name;
        for (int way = 0; way < 5; way++) {
            static const char *const words[] = {"left out", "a text", "a number", "twice", "of type 77"};
            gguf_mutant_copy(&m, &b->whole);
            gguf_mutant_key *k = &m.keys[i];
            if (way == 0) k->dropped = true;
            if (way == 1) gguf_mutant_set(k, GGUF_STRING, text, sizeof text);
            if (way == 2) gguf_mutant_set(k, GGUF_U32, &three, sizeof three);
            if (way == 3) gguf_mutant_add_key(&m, name, k->type, k->value, k->bytes);
            if (way == 4) k->type = 77;
            snprintf(what, sizeof what, "key %s %s", name, words[way]);
            judge(b, &m, what);
        }
    }
}

/* Keys that a file may have and this one has not. */
static void add_keys(bench *b)
{
    static const uint64_t long_list[] = {GGUF_U32 | (uint64_t)1 << 32, 0xffffffff};
    static const uint8_t shape[] = {5, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0};
    static const uint32_t alignments[] = {0, 1, 3, 64, 1u << 30};
    const uint64_t eight = 8;
    char what[300], key[256];
    gguf_mutant m;
    for (size_t i = 0; i < OQ_COUNT(alignments); i++) {
        gguf_mutant_copy(&m, &b->whole);
        gguf_mutant_add_key(&m, "general.alignment", GGUF_U32, &alignments[i], 4);
        snprintf(what, sizeof what, "alignment %u is told", alignments[i]);
        judge(b, &m, what);
    }
    gguf_mutant_copy(&m, &b->whole);
    m.alignment = 8;
    gguf_mutant_add_key(&m, "general.alignment", GGUF_U64, &eight, sizeof eight);
    judge(b, &m, "alignment of 64 bits");
    gguf_mutant_copy(&m, &b->whole);
    m.alignment = 4096;
    const uint32_t page = 4096;
    gguf_mutant_add_key(&m, "general.alignment", GGUF_U32, &page, sizeof page);
    judge(b, &m, "alignment 4096, as it is");
    gguf_mutant_copy(&m, &b->whole);
    m.alignment = 64;
    judge(b, &m, "laid out by 64, not told");
    gguf_mutant_copy(&m, &b->whole);
    gguf_mutant_add_key(&m, "tokenizer.ggml.tokens", GGUF_ARRAY, long_list, sizeof long_list);
    judge(b, &m, "a list that is longer than the file");
    for (int text_shape = 0; text_shape < 2; text_shape++) {
        gguf_mutant_copy(&m, &b->whole);
        snprintf(key, sizeof key, "comfy.gguf.orig_shape.%s", names[1]);
        if (text_shape)
            gguf_mutant_add_key(&m, key, GGUF_STRING, text, sizeof text);
        else
            gguf_mutant_add_key(&m, key, GGUF_ARRAY, shape, sizeof shape);
        judge(b, &m, text_shape ? "a shape that is a text" : "a shape of another tensor");
    }
    static const char *const split[] = {"split.count", "split.no", "split.tensors.count"};
    for (size_t i = 0; i < OQ_COUNT(split); i++)
        for (int is_text = 0; is_text < 2; is_text++) {
            gguf_mutant_copy(&m, &b->whole);
            if (is_text)
                gguf_mutant_add_key(&m, split[i], GGUF_STRING, text, sizeof text);
            else
                gguf_mutant_add_key(&m, split[i], GGUF_U32, &two, sizeof two);
            snprintf(what, sizeof what, "%s of a whole file is %s", split[i], is_text ? "a text" : "2");
            judge(b, &m, what);
        }
}

/* ---- the file -------------------------------------------------------------------------------------------- */

static void spoil_file(bench *b)
{
    static const size_t cuts[] = {1, 31, 1000, 1000000, (size_t)-1}, additions[] = {1, 32, 5000};
    static const uint32_t versions[] = {0, 1, 4, 3u << 24, 0xffffffffu};
    char what[300];
    gguf_mutant m;
    for (size_t i = 0; i < OQ_COUNT(cuts); i++) {
        gguf_mutant_copy(&m, &b->whole);
        m.cut = cuts[i] == (size_t)-1 ? (size_t)1 << 40 : cuts[i];
        snprintf(what, sizeof what, "%zu bytes cut off", m.cut);
        judge(b, &m, what);
    }
    for (size_t i = 0; i < OQ_COUNT(additions); i++) {
        gguf_mutant_copy(&m, &b->whole);
        m.added = additions[i];
        snprintf(what, sizeof what, "%zu bytes more", m.added);
        judge(b, &m, what);
    }
    for (size_t i = 0; i < OQ_COUNT(versions); i++) {
        gguf_mutant_copy(&m, &b->whole);
        m.version = versions[i];
        snprintf(what, sizeof what, "version %u", m.version);
        judge(b, &m, what);
    }
    for (int way = 0; way < 6; way++) {
        gguf_mutant_copy(&m, &b->whole);
        const uint64_t by = way % 3 == 0 ? 1 : way % 3 == 1 ? (uint64_t)-1 : (uint64_t)1 << 60;
        *(way < 3 ? &m.more_keys : &m.more_tensors) = by;
        snprintf(what, sizeof what, "%s, %+lld are told", way < 3 ? "keys" : "tensors", (long long)by);
        judge(b, &m, what);
    }
}

/* ---- two parts ------------------------------------------------------------------------------------------- */

typedef enum part_fault {
    PARTS_WHOLE,
    PARTS_ONE,
    PARTS_TWICE,
    PARTS_SHARED,
    PARTS_SAME_NUMBER,
    PARTS_OTHER_COUNT,
    PARTS_SUM_WRONG,
    PARTS_UNNUMBERED,
    PARTS_NUMBER_TEXT,
    PARTS_RENAMED,
    PARTS_SECOND_ALONE,
    PARTS_OTHER_FILE,
    PARTS_EMPTY,
    PARTS_CUT,
    N_PART_FAULTS
} part_fault;

static const char *const part_words[] = {
    "both",
    "the second missing",
    "the first in both places",
    "a tensor in both",
    "both say they are the first",
    "the second says three parts",
    "more tensors told than there are",
    "the second without numbers",
    "the second's number a text",
    "names that say nothing",
    "the second alone",
    "a safetensors file for the second",
    "an empty second",
    "the second cut off",
};

static void number(gguf_mutant *m, uint16_t no, uint16_t count, int32_t n_tensors)
{
    gguf_mutant_add_key(m, "split.no", GGUF_U16, &no, sizeof no);
    gguf_mutant_add_key(m, "split.count", GGUF_U16, &count, sizeof count);
    gguf_mutant_add_key(m, "split.tensors.count", GGUF_I32, &n_tensors, sizeof n_tensors);
}

static void make_parts(const bench *b, part_fault fault, gguf_mutant part[2])
{
    const size_t n = b->whole.n_tensors;
    for (int p = 0; p < 2; p++) {
        gguf_mutant_copy(&part[p], &b->whole);
        for (size_t i = 0; i < n; i++) part[p].tensors[i].dropped = (i >= n / 2) != p;
        if (p == 1 && fault == PARTS_SHARED) part[p].tensors[0].dropped = false;
        if (p == 1 && fault == PARTS_UNNUMBERED) continue;
        number(&part[p], (uint16_t)(fault == PARTS_SAME_NUMBER ? 0 : p),
               (uint16_t)(p == 1 && fault == PARTS_OTHER_COUNT ? 3 : 2),
               (int32_t)n + (fault == PARTS_SUM_WRONG));
        if (p == 1 && fault == PARTS_NUMBER_TEXT)
            gguf_mutant_set(gguf_mutant_find_key(&part[p], "split.no"), GGUF_STRING, text, sizeof text);
        if (p == 1 && fault == PARTS_CUT) part[p].cut = 100;
    }
}

static void spoil_parts(bench *b)
{
    for (int fault = 0; fault < N_PART_FAULTS; fault++) {
        gguf_mutant part[2];
        char what[300];
        if (!mutation_due(&b->judge)) continue;
        make_parts(b, (part_fault)fault, part);
        remove_weights(b);
        const bool renamed = fault == PARTS_RENAMED;
        if (fault != PARTS_SECOND_ALONE)
            gguf_mutant_write(&part[0], path_of(b, renamed ? "a.gguf" : "m-00001-of-00002.gguf"));
        if (fault == PARTS_OTHER_FILE || fault == PARTS_EMPTY)
            scratch_text(b->folder, "m-00002-of-00002.gguf",
                         fault == PARTS_EMPTY ? "" : "\x02\0\0\0\0\0\0\0{}");
        else if (fault != PARTS_ONE)
            gguf_mutant_write(&part[fault != PARTS_TWICE],
                              path_of(b, renamed ? "b.gguf" : "m-00002-of-00002.gguf"));
        snprintf(what, sizeof what, "two parts: %s", part_words[fault]);
        mutation_verdict(&b->judge, b->folder, what, false);
        for (int p = 0; p < 2; p++) gguf_mutant_free(&part[p]);
    }
}

/* ---- every type ------------------------------------------------------------------------------------------ */

static void spoil_all(bench *b)
{
    for (size_t i = 0; i < OQ_COUNT(names); i++) {
        spoil_type(b, names[i]);
        spoil_entry(b, names[i]);
        spoil_scales(b, names[i]);
        spoil_numbers(b, names[i]);
    }
    spoil_keys(b);
    add_keys(b);
    spoil_file(b);
    spoil_parts(b);
}

static void test_types(void **state)
{
    bench *b = *state;
    const char *only = getenv("MUTATIONS_ONLY");
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-mutations")), out[1024];
    size_t turn = 0;
    snprintf(out, sizeof out, "%s/whole.gguf", root);
    snprintf(b->folder, sizeof b->folder, "%s/spoilt", root);
    scratch_subdir(root, "spoilt");
    assert_int_equal(oq_file_copy(b->judge.env, TRANSFORMER "/config.json", path_of(b, "config.json")),
                     OQ_OK);
    assert_int_equal(mutation_picture(b->judge.env, NULL, &b->judge.plain), OQ_OK);
    for (const oq_gguf_type *t = oq_gguf_types; t->name; t++) {
        char spec[128];
        size_t at = 0;
        scale_kind kind = SCALE_F16;
        if (!scale_of(t, &at, &kind) || (only && strcmp(t->name, only) != 0)) continue;
        snprintf(spec, sizeof spec, "{\"method\": \"gguf\", \"type\": \"%s\"}", t->name);
        done(b->judge.env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", spec, "output", out, "force", "true", NULL}, NULL);
        gguf_mutant_read(&b->whole, out);
        assert_int_equal(mutation_picture(b->judge.env, out, &b->judge.whole), OQ_OK);
        b->judge.layout = t->name;
        b->judge.turn = turn++;
        spoil_all(b);
        free(b->judge.whole.pixels);
        gguf_mutant_free(&b->whole);
    }
    print_message("%zu spoilt files, %zu of them taken, %zu wrongly\n", b->judge.n, b->judge.n_taken,
                  b->judge.n_wrong);
    free(b->judge.plain.pixels);
    free(root);
    assert_int_equal(b->judge.n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_types, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
