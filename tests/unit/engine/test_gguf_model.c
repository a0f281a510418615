/* test_gguf_model.c -- whole models out of GGUF files: a file gives the very picture that its types give when they are
 * chosen while loading; parts of one product in types of their own; names of other programs; the wrong file is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/strbuf.h"
#include "support/env_setup.h"
#include "support/gguf_writer.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

/* ---- running -------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    char *plan;
    uint8_t *pixels;
    size_t bytes;
} outcome;

static oq_options *options_for(oq_env *env, const char *option, const char *value, const char *dtype)
{
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "model", MODEL), OQ_OK);
    assert_int_equal(oq_options_set(o, "prompt", "a small blue star"), OQ_OK);
    assert_int_equal(oq_options_set(o, "width", "64"), OQ_OK);
    assert_int_equal(oq_options_set(o, "height", "64"), OQ_OK);
    assert_int_equal(oq_options_set(o, "steps", "2"), OQ_OK);
    assert_int_equal(oq_options_set(o, "seed", "42"), OQ_OK);
    assert_int_equal(oq_options_set(o, "dtype", dtype), OQ_OK);
    if (option) assert_int_equal(oq_options_set(o, option, value), OQ_OK);
    return o;
}

static outcome run_in(oq_env *env, const char *option, const char *value, const char *dtype)
{
    outcome out = {0};
    oq_model *model = NULL;
    oq_report *report = NULL;
    oq_media *media = NULL;
    oq_options *o = options_for(env, option, value, dtype);
    if (oq_model_open(env, o, &model) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(oq_model_plan(env, model, &report), OQ_OK);
    out.plan = strdup(oq_report_json(report));
    oq_report_free(report);
    assert_int_equal(oq_generate(env, model, o, &media), OQ_OK);
    out.bytes = (size_t)oq_media_width(media) * (size_t)oq_media_height(media) * 3;
    out.pixels = malloc(out.bytes);
    memcpy(out.pixels, oq_media_pixels(media, 0), out.bytes);
    oq_media_free(media);
    oq_model_close(model);
    oq_options_free(o);
    return out;
}

static outcome run(oq_env *env, const char *option, const char *value)
{
    return run_in(env, option, value, "bf16");
}

static void drop(outcome *o)
{
    free(o->plan);
    free(o->pixels);
}

static double psnr(const outcome *a, const outcome *b)
{
    double sum = 0;
    assert_int_equal(a->bytes, b->bytes);
    for (size_t i = 0; i < a->bytes; i++) {
        const double d = (double)a->pixels[i] - (double)b->pixels[i];
        sum += d * d;
    }
    return sum > 0 ? 10 * log10(255.0 * 255.0 * (double)a->bytes / sum) : INFINITY;
}

static void refused(oq_env *env, const char *option, const char *path, oq_status status, const char *text)
{
    oq_model *model = NULL;
    oq_options *o = options_for(env, option, path, "bf16");
    assert_int_equal(oq_model_open(env, o, &model), status);
    if (!strstr(oq_env_error(env), text)) fail_msg("'%s' is not in '%s'", text, oq_env_error(env));
    oq_env_clear(env);
    oq_options_free(o);
}

/* ---- the demo model's weights as GGUF -------------------------------------------------------------------------- */

typedef struct recipe {
    const char *
        type; /* of the layers that the network lets quantize; rows that do not fit as the format's tool does */
    const char *kept; /* of the others: "BF16" or a type */
    const char *prefix;
    bool original;                /* names of the original release: q, k and v are one tensor */
    const char *q, *k, *w3;       /* types of these parts; NULL: `type` */
    const char *odd, *odd_type;   /* one tensor of a type of its own */
    const oq_ckpt_tensor *values; /* that one's values; NULL: its own */
} recipe;

static bool is_kept(const char *name)
{
    static const char *const words[] = {"embedder", "adaLN", "final_layer"};
    for (size_t i = 0; i < OQ_COUNT(words); i++)
        if (strstr(name, words[i])) return true;
    return false;
}

static const char *type_name(const recipe *r, const char *name)
{
    if (r->odd && strcmp(r->odd, name) == 0) return r->odd_type;
    if (r->q && strstr(name, "to_q.")) return r->q;
    if (r->k && strstr(name, "to_k.")) return r->k;
    if (r->w3 && strstr(name, ".w3.")) return r->w3;
    return is_kept(name) ? r->kept : r->type;
}

static void spell(const recipe *r, const char *name, char *out, size_t n)
{
    static const struct {
        const char *ours, *theirs;
    } pairs[] = {{".attention.to_q.", ".attention.qkv."},      {".attention.to_out.0.", ".attention.out."},
                 {".attention.norm_q.", ".attention.q_norm."}, {".attention.norm_k.", ".attention.k_norm."},
                 {"all_x_embedder.2-1.", "x_embedder."},       {"all_final_layer.2-1.", "final_layer."}};
    snprintf(out, n, "%s%s", r->prefix, name);
    for (size_t i = 0; r->original && i < OQ_COUNT(pairs); i++) {
        const char *at = strstr(name, pairs[i].ours);
        if (at)
            snprintf(out, n, "%s%.*s%s%s", r->prefix, (int)(at - name), name, pairs[i].theirs,
                     at + strlen(pairs[i].ours));
    }
}

static void put_tensor(gguf_writer *w, const oq_ckpt *ckpt, const oq_ckpt_tensor *t, const recipe *r)
{
    const bool replaced = r->values && strcmp(r->odd, t->name) == 0;
    const oq_ckpt_tensor *parts[3] = {replaced ? r->values : t};
    char name[512], other[512];
    int n_parts = 1;
    const char *q = strstr(t->name, "to_q.");
    if (r->original && (strstr(t->name, "to_k.") || strstr(t->name, "to_v."))) return;
    for (; r->original && q && n_parts < 3; n_parts++) {
        snprintf(other, sizeof other, "%.*sto_%c.%s", (int)(q - t->name), t->name, n_parts == 1 ? 'k' : 'v',
                 q + 5);
        parts[n_parts] = oq_ckpt_find(ckpt, other);
    }
    spell(r, t->name, name, sizeof name);
    const oq_gguf_type *type = oq_gguf_type_by_name(type_name(r, t->name));
    gguf_tensor(w, name, parts, n_parts, oq_gguf_type_fitting(type, t->dim[t->n_dims - 1]));
}

static const char *write_transformer(oq_env *env, const char *dir, const recipe *r)
{
    oq_ckpt *ckpt = NULL;
    gguf_writer w;
    assert_int_equal(oq_ckpt_open_folder(env, MODEL "/transformer", NULL, &ckpt), OQ_OK);
    gguf_begin(&w, env);
    gguf_key_text(&w, "general.architecture", "pig"); /* ComfyUI-GGUF#230 */
    for (size_t i = 0; i < ckpt->n_tensors; i++) put_tensor(&w, ckpt, &ckpt->tensors[i], r);
    oq_ckpt_close(ckpt);
    return gguf_finish(&w, dir, "transformer.gguf");
}

/* ---- a file is what loading would have made of the weights ------------------------------------------------------- */

static void test_file_is_online(void **state)
{
    static const char *const types[] = {"Q8_0", "Q4_K", "Q4_0", "Q6_K", "Q5_K", "IQ4_NL", "Q2_K"};
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-model"));
    for (size_t i = 0; i < OQ_COUNT(types); i++) {
        char online[128];
        const recipe r = {.type = types[i], .kept = "BF16", .prefix = ""};
        snprintf(online, sizeof online, "{\"transformer\": {\"method\": \"gguf\", \"type\": \"%s\"}}",
                 types[i]);
        outcome file = run(env, "transformer", write_transformer(env, dir, &r));
        outcome made = run(env, "quantization", online);
        assert_memory_equal(file.pixels, made.pixels, made.bytes);
        drop(&file);
        drop(&made);
    }
    free(dir);
}

/* How many tensors a file has is the one thing in which spellings differ: fused ones are fewer. */
static void blank_tensor_counts(char *plan)
{
    static const char key[] = "\"tensors\": ";
    for (char *at = plan; (at = strstr(at, key)) != NULL;)
        for (at += sizeof key - 1; *at >= '0' && *at <= '9'; at++) *at = ' ';
}

static bool same_but_spaces(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, " ");
        b += strspn(b, " ");
        if (*a != *b) return false;
        if (!*a) return true;
    }
}

/* Six prefixes and both spellings of one file: one plan, one picture. */
static void test_names(void **state)
{
    static const struct {
        const char *prefix;
        bool original;
    } rows[] = {
        {"", false},    {"model.", false}, {"transformer.", false},         {"diffusion_model.", true},
        {"net.", true}, {"", true},        {"model.diffusion_model.", true}};
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-names"));
    outcome first = {0};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const recipe r = {
            .type = "Q4_1", .kept = "Q8_0", .prefix = rows[i].prefix, .original = rows[i].original};
        outcome file = run(env, "transformer", write_transformer(env, dir, &r));
        blank_tensor_counts(file.plan);
        if (i == 0) {
            assert_non_null(strstr(file.plan, "\"q4_1\""));
            first = file;
            continue;
        }
        assert_true(same_but_spaces(file.plan, first.plan));
        assert_memory_equal(file.pixels, first.pixels, first.bytes);
        drop(&file);
    }
    drop(&first);
    free(dir);
}

/* q, k and v (w1 and w3) in types of their own: three products, each exactly as stored. */
static void test_parts_apart(void **state)
{
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-apart"));
    outcome plain = run(env, NULL, NULL);
    const recipe even = {.type = "Q8_0", .kept = "BF16", .prefix = ""};
    const recipe odd = {.type = "Q8_0", .kept = "BF16", .prefix = "", .q = "BF16", .k = "Q6_K", .w3 = "Q5_1"};
    outcome together = run(env, "transformer", write_transformer(env, dir, &even));
    outcome apart = run(env, "transformer", write_transformer(env, dir, &odd));
    assert_non_null(strstr(together.plan, "layers.0.attention.to_qkv"));
    assert_null(strstr(apart.plan, "layers.0.attention.to_qkv"));
    assert_non_null(strstr(apart.plan, "layers.0.attention.to_q"));
    assert_non_null(strstr(apart.plan, "layers.0.feed_forward.w3"));
    assert_true(psnr(&together, &plain) > 38 && psnr(&apart, &plain) > 33);
    assert_true(isfinite(psnr(&apart, &plain)));
    drop(&plain);
    drop(&together);
    drop(&apart);
    free(dir);
}

/* Every scratch byte of parts that run apart is measured, at both compute types. */
static void test_apart_in_f32(void **state)
{
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-apart"));
    const recipe odd = {.type = "Q8_0", .kept = "F16", .prefix = "", .q = "F16", .k = "F32", .w3 = "Q8_0"};
    char path[1024];
    oq_model *model = NULL;
    oq_media *media = NULL;
    snprintf(path, sizeof path, "%s", write_transformer(env, dir, &odd));
    oq_options *o = options_for(env, "transformer", path, "fp32");
    if (oq_model_open(env, o, &model) != OQ_OK || oq_generate(env, model, o, &media) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    oq_media_free(media);
    oq_model_close(model);
    oq_options_free(o);
    free(dir);
}

/* A layer in indices into a code book gives what its decoded values give: in float32, where these stay as they are. A run
 * in BF16 rounds them, and how near that comes depends on which of the machine's products round the code book's too. */
static void test_code_books(void **state)
{
    static const char name[] = "layers.3.feed_forward.w2.weight";
    static const char *const types[] = {"IQ3_S", "IQ2_XXS", "IQ1_S"};
    oq_env *env = *state;
    char *dir = strdup(
        scratch_dir(OMNIQ_BINARY_DIR, "gguf-books")); /* its file stays open while the other is written */
    char *plain_dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-books-plain"));
    for (size_t i = 0; i < OQ_COUNT(types); i++) {
        recipe r = {.type = "BF16", .kept = "BF16", .prefix = "", .odd = name, .odd_type = types[i]};
        oq_ckpt *ckpt = NULL;
        outcome books = run_in(env, "transformer", write_transformer(env, dir, &r), "fp32");
        assert_non_null(strstr(books.plan, i == 0 ? "\"iq3_s\"" : i == 1 ? "\"iq2_xxs\"" : "\"iq1_s\""));
        assert_int_equal(oq_ckpt_open(env, scratch_path(dir, "transformer.gguf"), &ckpt), OQ_OK);
        oq_ckpt_tensor values = *oq_ckpt_find(ckpt, name);
        float *x = malloc((size_t)values.elems * sizeof *x);
        assert_non_null(x);
        values.format->decode_row(values.format, x, &(oq_planes){{values.data}}, 0, 1, values.elems);
        values.dtype = &oq_dtype_f32, values.format = NULL, values.data = (const uint8_t *)x;
        r.odd_type = "F32", r.values = &values;
        outcome plain = run_in(env, "transformer", write_transformer(env, plain_dir, &r), "fp32");
        printf("%s: %.1f dB to its decoded values\n", types[i], psnr(&books, &plain));
        assert_true(psnr(&books, &plain) > 50);
        drop(&books);
        drop(&plain);
        free(x);
        oq_ckpt_close(ckpt);
    }
    free(dir);
    free(plain_dir);
}

/* ---- text encoders ------------------------------------------------------------------------------------------------ */

static void llama_name(const char *name, char *out, size_t n)
{
    static const struct {
        const char *ours, *theirs;
    } pairs[] = {{"input_layernorm", "attn_norm"},    {"post_attention_layernorm", "ffn_norm"},
                 {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
                 {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"},
                 {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
                 {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
                 {"mlp.down_proj", "ffn_down"}};
    int layer = 0, at = 0;
    name = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    snprintf(out, n, "%s", name);
    if (strcmp(name, "norm.weight") == 0) snprintf(out, n, "output_norm.weight");
    if (strcmp(name, "embed_tokens.weight") == 0) snprintf(out, n, "token_embd.weight");
    if (sscanf(name, "layers.%d.%n", &layer, &at) != 1) return;
    for (size_t i = 0; i < OQ_COUNT(pairs); i++) {
        const size_t m = strlen(pairs[i].ours);
        if (strncmp(name + at, pairs[i].ours, m) == 0)
            snprintf(out, n, "blk.%d.%s%s", layer, pairs[i].theirs, name + at + m);
    }
}

/* `longer`: the vocabulary has rows twice over; `norms` false: without the norms that make it Qwen3. */
static const char *write_encoder(oq_env *env, const char *dir, const char *table, bool longer, bool norms)
{
    oq_ckpt *ckpt = NULL;
    gguf_writer w;
    assert_int_equal(oq_ckpt_open_folder(env, MODEL "/text_encoder", NULL, &ckpt), OQ_OK);
    gguf_begin(&w, env);
    gguf_key_text(&w, "general.architecture", norms ? "qwen3" : "llama");
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i], *parts[2] = {t, t};
        const bool is_table = strstr(t->name, "embed_tokens") != NULL;
        char name[512];
        llama_name(t->name, name, sizeof name);
        if (!norms && (strstr(name, "attn_q_norm") || strstr(name, "attn_k_norm"))) continue;
        gguf_tensor(&w, name, parts, is_table && longer ? 2 : 1,
                    oq_gguf_type_by_name(is_table ? table : "Q8_0"));
    }
    gguf_tensor(&w, "output.weight",
                (const oq_ckpt_tensor *[]){oq_ckpt_find(ckpt, "embed_tokens.weight")
                                               ? oq_ckpt_find(ckpt, "embed_tokens.weight")
                                               : oq_ckpt_find(ckpt, "model.embed_tokens.weight")},
                1, oq_gguf_type_by_name("Q8_0"));
    oq_ckpt_close(ckpt);
    return gguf_finish(&w, dir, "encoder.gguf");
}

/* ComfyUI-GGUF#374, ComfyUI#7638: names of llama.cpp; a vocabulary with more rows than the configuration says. */
static void test_text_encoder(void **state)
{
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-encoder"));
    outcome made = run(env, "quantization", "{\"text_encoder\": {\"method\": \"gguf\", \"type\": \"Q8_0\"}}");
    outcome file = run(env, "text-encoder", write_encoder(env, dir, "BF16", false, true));
    assert_memory_equal(file.pixels, made.pixels, made.bytes);
    drop(&file);
    file = run(env, "text-encoder", write_encoder(env, dir, "BF16", true, true));
    assert_memory_equal(file.pixels, made.pixels, made.bytes);
    drop(&file);
    file =
        run(env, "text-encoder", write_encoder(env, dir, "Q8_0", false, true)); /* the table in blocks, too */
    assert_true(psnr(&file, &made) > 35 && isfinite(psnr(&file, &made)));
    drop(&file);
    drop(&made);
    free(dir);
}

/* ---- the seed's way of naming the file ------------------------------------------------------------------------ */

/* A path, a file of a repository in the cache, or a type that one file of it is named after. */
static void test_gguf_model(void **state)
{
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-cache")), path[1024], folder[1200], text[2048];
    const recipe r = {.type = "Q4_0", .kept = "BF16", .prefix = ""};
    snprintf(folder, sizeof folder, "%s/models--me--toy/snapshots/0123456789abcdef", dir);
    assert_int_equal(oq_dir_make(env, folder), OQ_OK);
    snprintf(path, sizeof path, "%s", write_transformer(env, folder, &r));
    outcome file = run(env, "transformer", path);
    setenv("HF_HUB_CACHE", dir, 1);
    snprintf(text, sizeof text, "%s/toy-q4_0.gguf", folder);
    assert_int_equal(rename(path, text), 0);
    const char *forms[] = {text, "me/toy/toy-q4_0.gguf", "me/toy:Q4_0"};
    for (size_t i = 0; i < OQ_COUNT(forms); i++) {
        char request[2300];
        snprintf(request, sizeof request, "{\"method\": \"gguf\", \"gguf_model\": \"%s\"}", forms[i]);
        outcome made = run(env, "quantization", request);
        assert_memory_equal(made.pixels, file.pixels, file.bytes);
        drop(&made);
    }
    refused(env, "quantization", "{\"method\": \"gguf\", \"gguf_model\": \"me/toy:Q8_0\"}", OQ_E_NOTFOUND,
            "'me/toy:Q8_0': 0 files in '");
    refused(env, "quantization", "{\"method\": \"gguf\", \"gguf_model\": \"me/toy/other.gguf\"}",
            OQ_E_NOTFOUND, "'me/toy/other.gguf': there is no file '");
    refused(env, "quantization", "{\"method\": \"gguf\", \"gguf_model\": \"none.gguf\"}", OQ_E_NOTFOUND,
            "none.gguf: there is no such file or folder");
    refused(env, "quantization",
            "{\"method\": \"gguf\", \"gguf_model\": \"" MODEL "/text_encoder/model.safetensors\"}",
            OQ_E_MISMATCH, "gguf_model '");
    unsetenv("HF_HUB_CACHE");
    drop(&file);
    free(dir);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------ */

static void test_refusals(void **state)
{
    oq_env *env = *state;
    char *dir = strdup(scratch_dir(OMNIQ_BINARY_DIR, "gguf-refused")), path[1024];
    /* ComfyUI#10558: a text encoder in the model's slot */
    snprintf(path, sizeof path, "%s", write_encoder(env, dir, "BF16", false, true));
    refused(env, "transformer", path, OQ_E_MISMATCH,
            "this is a text encoder (Qwen3), the model needs a transformer (Z-Image)");
    /* files of llama have q and k in another order of rows: they are not taken for Qwen's */
    snprintf(path, sizeof path, "%s", write_encoder(env, dir, "BF16", false, false));
    refused(env, "text-encoder", path, OQ_E_MISMATCH,
            "this is a language model of llama.cpp (Llama, Mistral), whose rows of q and k stand in another "
            "order "
            "than anything that this build reads, the model needs a text encoder (Qwen3)");
    recipe r = {.type = "Q8_0",
                .kept = "BF16",
                .prefix = "",
                .odd = "layers.3.feed_forward.w2.weight",
                .odd_type = "Q8_1"};
    snprintf(path, sizeof path, "%s", write_transformer(env, dir, &r));
    refused(env, "transformer", path, OQ_E_UNSUPPORTED,
            "tensor 'layers.3.feed_forward.w2.weight' is Q8_1: it holds activations, not weights");
    refused(env, "transformer", OMNIQ_SOURCE_DIR "/tests/data/quant/gguf/all_types.gguf", OQ_E_MISMATCH,
            "its 19 tensors (the first is 'blk.0.f16.weight') are no network that this build knows");
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_file_is_online, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_names, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_parts_apart, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_apart_in_f32, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_code_books, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_text_encoder, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_gguf_model, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, env_setup, env_teardown),
    };
    return cmocka_run_group_tests_name("gguf_model", tests, NULL, NULL);
}
