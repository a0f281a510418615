/* test_rewrite_memory.c -- quantize and dequantize stream: a process that rewrites a file of many layers never holds as much as
 * that file, nor as what it writes and reads back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/strbuf.h"

#include "support/scratch.h"
#include "support/toybox_run.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* toybox's transformer, WIDER times as wide. The largest of its layers, as f32, counts 10 MB. */
enum { DIM = 192, HIDDEN = 512, WIDER = 5, MIB = 1 << 20 };

static int64_t wider(int64_t d)
{
    return d == DIM || d == HIDDEN ? WIDER * d : d;
}

/* The header; the values are a hole in the file, which costs no disk. */
static size_t write_weights(oq_env *env, const char *path)
{
    oq_ckpt *c = NULL;
    oq_strbuf h;
    size_t at = 0;
    assert_int_equal(oq_ckpt_open_folder(env, TRANSFORMER, NULL, &c), OQ_OK);
    oq_strbuf_init(&h, env);
    for (size_t i = 0; i < c->n_tensors; i++) {
        const oq_ckpt_tensor *t = &c->tensors[i];
        size_t bytes = 2;
        oq_strbuf_printf(&h, "%s\"%s\": {\"dtype\": \"BF16\", \"shape\": [", i ? ", " : "{", t->name);
        for (int d = 0; d < t->n_dims; d++) {
            oq_strbuf_printf(&h, "%s%lld", d ? ", " : "", (long long)wider(t->dim[d]));
            bytes *= (size_t)wider(t->dim[d]);
        }
        oq_strbuf_printf(&h, "], \"data_offsets\": [%zu, %zu]}", at, at + bytes);
        at += bytes;
    }
    oq_strbuf_puts(&h, "}");
    const uint64_t n = h.size;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&n, sizeof n, 1, f), 1);
    assert_int_equal(fwrite(oq_strbuf_text(&h), 1, h.size, f), h.size);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), (off_t)(sizeof n + h.size + at)), 0);
    fclose(f);
    oq_strbuf_deinit(&h);
    oq_ckpt_close(c);
    return at;
}

static void make_component(const char *dir)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"_class_name\": \"ZImageTransformer2DModel\", \"all_f_patch_size\": [1], \"all_patch_size\": "
             "[2], \"axes_dims\": [16, 24, 24], \"axes_lens\": [512, 128, 128], \"cap_feat_dim\": %d, "
             "\"dim\": %d, \"in_channels\": 16, \"n_heads\": %d, \"n_kv_heads\": %d, \"n_layers\": 12, "
             "\"n_refiner_layers\": 1, \"norm_eps\": 1e-05, \"qk_norm\": true, \"rope_theta\": 256.0, "
             "\"t_scale\": 1000.0}",
             DIM * WIDER, DIM * WIDER, 3 * WIDER, 3 * WIDER);
    scratch_text(dir, "config.json", text);
}

/* Peak resident memory of the program with these arguments, bytes; pages of mapped files count. What it allocates is bounded by
 * the kernel: beyond that it fails. */
static size_t peak_of(char *const *argv, size_t allocated)
{
    pid_t pid = 0;
    int status = 0;
    struct rusage usage;
    struct rlimit before, tight;
    assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
    tight = before;
    tight.rlim_cur = allocated;
    assert_int_equal(setrlimit(RLIMIT_DATA, &tight), 0);
    const int spawned = posix_spawn(&pid, argv[0], NULL, NULL, argv, environ);
    assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
    assert_int_equal(spawned, 0);
    assert_int_equal(wait4(pid, &status, 0, &usage), pid);
    assert_int_equal(status, 0);
    return (size_t)usage.ru_maxrss * 1024;
}

/* Two workers, each with its layer in f32, encoded and spelled, their stacks and the process itself. Of the files, pages of what
 * was written are mapped when it is read back (the kernel maps more around those that are looked at); all of the source and of
 * the output at once would be more than `held`. */
static void expect_small(const char *what, char *const *argv, size_t held)
{
    const size_t peak = peak_of(argv, (size_t)96 * MIB);
    print_message("%s: at most %zu MiB resident, the source is %zu MiB\n", what, peak / MIB, held / MIB);
    assert_true(peak < held - held / 4);
}

static void test_streams(void **state)
{
    static const char *const specs[][2] = {
        {"int8", NULL}, {"nvfp4", "modelopt"}, {"{\"method\": \"gguf\", \"type\": \"Q4_0\"}", NULL}};
    static char program[] = OMNIQ_BINARY_DIR "/omniq", quantize[] = "quantize", dequantize[] = "dequantize",
                to[] = "--output", force[] = "--force", quiet[] = "-q", threads[] = "--threads", two[] = "2",
                as[] = "--quantization", layout[] = "--layout";
    char root[400], in[500], file[600], out[500], back[500], spec[128], word[64];
    oq_env *env = NULL;
    (void)state;
#ifdef OMNIQ_SANITIZED
    skip(); /* shadow memory counts */
#endif
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    snprintf(root, sizeof root, "%s", scratch_dir(OMNIQ_BINARY_DIR, "rewrite-memory"));
    snprintf(in, sizeof in, "%s/in", root);
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(back, sizeof back, "%s/back", root);
    snprintf(file, sizeof file, "%s/diffusion_pytorch_model.safetensors", in);
    scratch_subdir(root, "in");
    make_component(in);
    const size_t bytes = write_weights(env, file);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        snprintf(spec, sizeof spec, "%s", specs[i][0]);
        snprintf(word, sizeof word, "%s", specs[i][1] ? specs[i][1] : "");
        char *const there[] = {program, quantize, in,    as,      spec, to,
                               out,     force,    quiet, threads, two,  specs[i][1] ? layout : NULL,
                               word,    NULL};
        char *const again[] = {program, dequantize, out, to, back, force, quiet, threads, two, NULL};
        expect_small(spec, there, bytes);
        if (i == 0) expect_small("dequantize", again, bytes);
    }
    scratch_dir(OMNIQ_BINARY_DIR, "rewrite-memory"); /* nothing of that size stays behind */
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams)};
    return cmocka_run_group_tests_name("memory of rewriting", tests, NULL, NULL);
}
