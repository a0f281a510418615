/* test_family_files.c -- networks as single files, in the spelling of their original release, of ComfyUI and of GGUF: the picture
 * is the folder's, bit for bit, and a file in the place of another network is named.
 *
 * The files are written here from the folder's tensors by tables of names (tests/data/names, written by
 * tests/reference/original_names.py), which go from diffusers' names to the others; the networks' own tables (oq_name_rule) go
 * the other way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/names.h"
#include "parity/family.h"
#include "support/gguf_writer.h"

#define NAMES OMNIQ_SOURCE_DIR "/tests/data/names/"

typedef struct file_case { /* a component's file */
    const char *component, *option;
    const char *table; /* its names; NULL: as they are */
    const char *prefix;
    bool gguf;
    const char *leftover; /* a tensor of one value that people's files hold beside it, or NULL */
    const char *pruned;   /* names that begin so are left out: no run needs them; NULL: none */
} file_case;

typedef struct family_case {
    const char *name; /* below tests/data/golden */
    const char *
        overlay; /* below tests/data/names: components in the size that the original's numbers mean; or NULL */
    const char *prompt;           /* NULL: one that most of the small tokenizers know */
    const char *side_px, *frames; /* of the pictures; frames NULL: of families of pictures */
    bool begins_with_image;
    file_case files[16];
} family_case;

static const family_case flux1 = {
    "flux1",
    NULL,
    NULL,
    "64",
    NULL,
    true,
    {{"transformer", "transformer", "flux1_transformer", "model.diffusion_model.", false, NULL, NULL},
     {"vae", "vae", "flux1_vae", "vae.", false, NULL, NULL},
     {"text_encoder", "text-encoder", NULL, "text_encoders.clip_l.transformer.", false, NULL, NULL},
     {"text_encoder_2", "text-encoder-2", NULL, "text_encoders.t5xxl.transformer.", false, NULL, NULL},
     {"text_encoder_2", "text-encoder-2", "flux1_t5_gguf", "", true, NULL, NULL},
     {"transformer", "transformer", "flux1_transformer", "", false, NULL, NULL},
     {"transformer", "transformer", "flux1_transformer", "", true, NULL, NULL}}};

static const family_case flux2 = {
    "flux2-klein",
    NULL,
    NULL,
    "64",
    NULL,
    true,
    {{"transformer", "transformer", "flux2_transformer", "model.diffusion_model.", false, NULL, NULL},
     {"vae", "vae", "flux2_vae", "first_stage_model.", false, NULL, NULL},
     {"transformer", "transformer", "flux2_transformer", "", true, NULL, NULL},
     {"text_encoder", "text-encoder", NULL, "text_encoders.qwen3_4b.transformer.", false, NULL, NULL},
     {"text_encoder", "text-encoder", "qwen3_gguf", "", true, NULL, NULL}}};

static const family_case flux2_dev = {
    "flux2-dev",
    NULL,
    "a small red ball to the left of a blue star",
    "64",
    NULL,
    false,
    {{"transformer", "transformer", "flux2_dev_transformer", "", false, NULL, NULL},
     {"transformer", "transformer", "flux2_dev_transformer", "", true, NULL, NULL},
     {"text_encoder", "text-encoder", "mistral_of_comfy", "", false, "tekken_model", NULL},
     {"text_encoder", "text-encoder", NULL, "text_encoders.mistral3_24b.transformer.", false, NULL, NULL},
     {"text_encoder", "text-encoder", NULL, "", false, NULL, "language_model.model.layers.3."}}};

static const family_case qwen_image_files = {
    "qwen-image",
    "wan21",
    NULL,
    "64",
    NULL,
    false,
    {{"transformer", "transformer", NULL, "", false, NULL, NULL},
     {"transformer", "transformer", NULL, "model.diffusion_model.", false, NULL, NULL},
     {"transformer", "transformer", NULL, "diffusion_model.", false, NULL, NULL},
     {"transformer", "transformer", NULL, "transformer.", false, NULL, NULL},
     {"transformer", "transformer", NULL, "net.", false, NULL, NULL},
     {"transformer", "transformer", NULL, "model.", false, NULL, NULL},
     {"transformer", "transformer", NULL, "", true, NULL, NULL},
     {"vae", "vae", "wan21_vae", "", false, NULL, NULL},
     {"text_encoder", "text-encoder", NULL, "text_encoders.qwen25_7b.transformer.", false, NULL, NULL},
     {"text_encoder", "text-encoder", "qwen25_gguf", "", true, NULL, NULL}}};

static const family_case qwen_image_edit_files = {
    "qwen-image-edit",
    NULL,
    "make the ball blue",
    "64",
    NULL,
    true,
    {{"text_encoder", "text-encoder", NULL, "text_encoders.qwen25_7b.transformer.", false, NULL, NULL},
     {"text_encoder", "text-encoder", "qwen25_vl_of_transformers5", "", false, NULL, NULL}}};

static const family_case wan_i2v = {
    "wan2.2/i2v-a14b",
    "wan21",
    NULL,
    "64",
    "5",
    true,
    {{"transformer", "transformer", "wan_transformer", "", false, NULL, NULL},
     {"transformer", "transformer", "wan_transformer", "model.diffusion_model.", false, NULL, NULL},
     {"transformer_2", "transformer-2", "wan_transformer", "diffusion_model.", false, NULL, NULL},
     {"transformer", "transformer", "wan_transformer", "transformer.", false, NULL, NULL},
     {"transformer", "transformer", "wan_transformer", "net.", false, NULL, NULL},
     {"transformer", "transformer", "wan_transformer", "model.", false, NULL, NULL},
     {"transformer", "transformer", "wan_transformer", "", true, NULL, NULL},
     {"transformer_2", "transformer-2", NULL, "model.diffusion_model.", false, NULL, NULL},
     {"vae", "vae", "wan21_vae", "", false, NULL, NULL},
     {"text_encoder", "text-encoder", NULL, "", false, "spiece_model", NULL},
     {"text_encoder", "text-encoder", NULL, "text_encoders.umt5xxl.transformer.", false, NULL, NULL},
     {"text_encoder", "text-encoder", "umt5_of_wan", "", false, NULL, NULL},
     {"text_encoder", "text-encoder", "umt5_gguf", "", true, NULL, NULL}}};

static const family_case wan_5b = {
    "wan2.2/ti2v-5b",
    "wan22",
    NULL,
    "64",
    "5",
    true,
    {{"transformer", "transformer", "wan_5b_transformer", "model.diffusion_model.", false, NULL, NULL},
     {"transformer", "transformer", "wan_5b_transformer", "", true, NULL, NULL},
     {"vae", "vae", "wan22_vae", "vae.", false, NULL, NULL}}};

/* ---- writing a file ------------------------------------------------------------------------------------ */

enum { MAX_PARTS = 4 };

typedef struct writer {
    const file_case *c;
    const oq_ckpt *ckpt;
    oq_strbuf header, data;
    gguf_writer gguf;
    size_t n_taken;
} writer;

static void put_header(writer *w, const char *name, const char *type, const int64_t *dim, int n_dims,
                       size_t bytes)
{
    oq_strbuf_printf(&w->header, "%s\"%s%s\": {\"dtype\": \"%s\", \"shape\": [",
                     w->header.size > 1 ? ", " : "", w->c->prefix, name, type);
    for (int i = 0; i < n_dims; i++) oq_strbuf_printf(&w->header, "%s%lld", i ? ", " : "", (long long)dim[i]);
    oq_strbuf_printf(&w->header, "], \"data_offsets\": [%zu, %zu]}", w->data.size, w->data.size + bytes);
}

static void put_gguf(writer *w, const char *name, const oq_ckpt_tensor *const *part, int n_parts,
                     bool swapped)
{
    const oq_gguf_type *type = oq_gguf_type_by_name("F32");
    oq_ckpt_tensor turned = *part[0];
    uint8_t *data = swapped ? malloc(turned.bytes) : NULL;
    if (data) {
        assert_int_equal(n_parts, 1);
        memcpy(data, turned.data + turned.bytes / 2, turned.bytes / 2);
        memcpy(data + turned.bytes / 2, turned.data, turned.bytes / 2);
        turned.data = data;
    }
    gguf_tensor(&w->gguf, name, data ? (const oq_ckpt_tensor *const[]){&turned} : part, n_parts, type);
    free(data);
}

/* Rows of the parts, one behind the other; swapped: a part's second half first. */
static void put(writer *w, const char *name, const oq_ckpt_tensor *const *part, int n_parts, bool swapped)
{
    const oq_ckpt_tensor *t = part[0];
    int64_t dim[OQ_CKPT_MAX_DIMS];
    int n_dims = t->n_dims;
    size_t bytes = 0;
    w->n_taken += (size_t)n_parts;
    if (w->c->gguf) {
        put_gguf(w, name, part, n_parts, swapped);
        return;
    }
    memcpy(dim, t->dim, sizeof dim);
    for (int p = 0; p < n_parts; p++) dim[0] += p ? part[p]->dim[0] : 0, bytes += part[p]->bytes;
    if (n_dims == 2 && strstr(name, ".attn_1."))
        dim[n_dims++] = 1, dim[n_dims++] = 1; /* attention by convolutions */
    put_header(w, name, t->type_name, dim, n_dims, bytes);
    for (int p = 0; p < n_parts; p++) {
        const size_t half = swapped ? part[p]->bytes / 2 : 0;
        oq_strbuf_add(&w->data, part[p]->data + half, part[p]->bytes - half);
        oq_strbuf_add(&w->data, part[p]->data, half);
    }
}

/* "THEIRS OURS[,OURS...]"; "~" in front: halves swapped. */
static void put_row(writer *w, char *line)
{
    char *ours = strchr(line, ' '), word[256];
    const oq_ckpt_tensor *part[MAX_PARTS];
    const bool swapped = *line == '~';
    int n = 0;
    assert_non_null(ours);
    *ours++ = '\0';
    for (; oq_csv_word(ours, (size_t)n, word, sizeof word); n++) {
        assert_true(n < MAX_PARTS);
        part[n] = oq_ckpt_find(w->ckpt, word);
        if (!part[n]) fail_msg("%s: the folder has no '%s'", w->c->table, word);
    }
    put(w, line + swapped, part, n, swapped);
}

static void put_by_table(writer *w, oq_env *env)
{
    char path[512], *text = NULL, *rest = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, NAMES "%s.txt", w->c->table);
    assert_int_equal(oq_file_read(env, path, 1 << 20, &text, &n), OQ_OK);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) put_row(w, line);
    oq_free(env, text);
}

static void write_file(oq_env *env, const char *folder, const file_case *c, const char *dir, char *path,
                       size_t size)
{
    oq_ckpt *ckpt = NULL;
    char leaf[96];
    assert_int_equal(oq_ckpt_open_folder(env, scratch_path(folder, c->component), NULL, &ckpt), OQ_OK);
    writer w = {.c = c, .ckpt = ckpt};
    oq_strbuf_init(&w.header, env);
    oq_strbuf_init(&w.data, env);
    oq_strbuf_puts(&w.header, "{");
    if (c->gguf) {
        gguf_begin(&w.gguf, env);
        gguf_key_text(&w.gguf, "general.architecture", "any");
    }
    if (c->table) put_by_table(&w, env);
    for (size_t i = 0; !c->table && i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        if (c->pruned && strncmp(t->name, c->pruned, strlen(c->pruned)) == 0)
            w.n_taken++;
        else
            put(&w, t->name, &t, 1, false);
    }
    assert_int_equal(w.n_taken, ckpt->n_tensors);
    if (c->leftover) {
        put_header(&w, c->leftover, "U8", (const int64_t[]){4}, 1, 4);
        oq_strbuf_add(&w.data, "text", 4);
    }
    snprintf(leaf, sizeof leaf, "%s.%s", c->component, c->gguf ? "gguf" : "safetensors");
    if (c->gguf) {
        snprintf(path, size, "%s", gguf_finish(&w.gguf, dir, leaf));
    } else {
        oq_strbuf_puts(&w.header, "}");
        scratch_safetensors(dir, leaf, oq_strbuf_text(&w.header), w.data.text, w.data.size);
        snprintf(path, size, "%s", scratch_path(dir, leaf));
    }
    oq_strbuf_deinit(&w.header);
    oq_strbuf_deinit(&w.data);
    oq_ckpt_close(ckpt);
}

/* ---- running it ---------------------------------------------------------------------------------------- */

static oq_options *options_for(oq_env *env, const family_case *f, const char *folder, const char *image,
                               const file_case *c, const char *file)
{
    oq_options *o = NULL;
    const char *const rows[][2] = {{"model", folder},
                                   {"dtype", "fp32"},
                                   {"prompt", f->frames   ? "<71><1712>"
                                              : f->prompt ? f->prompt
                                                          : "a red circle on a white background"},
                                   {"seed", "3"},
                                   {"width", f->side_px},
                                   {"height", f->side_px},
                                   {"steps", "2"},
                                   {"num-frames", f->frames},
                                   {"image", image},
                                   {c ? c->option : NULL, file}};
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (rows[i][0] && rows[i][1]) assert_int_equal(oq_options_set(o, rows[i][0], rows[i][1]), OQ_OK);
    return o;
}

static oq_media *generate(oq_env *env, const family_case *f, const char *folder, const char *image,
                          const file_case *c, const char *file)
{
    oq_model *model = NULL;
    oq_media *media = NULL;
    oq_options *o = options_for(env, f, folder, image, c, file);
    oq_status st = oq_model_open(env, o, &model);
    family_small_pictures(model);
    if (st == OQ_OK) st = oq_generate(env, model, o, &media);
    if (st != OQ_OK)
        fail_msg("%s (%s, '%s'): %s", file ? file : folder, c ? c->table : "", c ? c->prefix : "",
                 oq_env_error(env));
    oq_model_close(model);
    oq_options_free(o);
    return media;
}

/* A file of component `from` in the slot of component `to`. */
static void refused(oq_env *env, const family_case *f, const char *folder, const file_case *slot,
                    const char *file, const char *text)
{
    oq_model *model = NULL;
    oq_options *o = options_for(env, f, folder, NULL, slot, file);
    assert_int_equal(oq_model_open(env, o, &model), OQ_E_MISMATCH);
    if (!strstr(oq_env_error(env), text)) fail_msg("'%s' is not in '%s'", text, oq_env_error(env));
    oq_env_clear(env);
    oq_options_free(o);
}

static void make_folder(oq_env *env, const family_case *f, char *folder, size_t size)
{
    static const int32_t ids[] = {1, 71, 1712};
    char data[512];
    snprintf(folder, size, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-files-folder"));
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", f->name);
    golden_folder_make(env, data, folder, &oq_dtype_f32);
    snprintf(data, sizeof data, NAMES "%s", f->overlay ? f->overlay : "");
    if (f->overlay) golden_folder_make(env, data, folder, &oq_dtype_f32);
    if (f->frames) golden_ids_tokenizer(env, scratch_path(folder, "tokenizer"), ids, OQ_COUNT(ids), -1, 1);
}

static void check_family(const family_case *f)
{
    oq_env *env = NULL;
    char folder[512], dir[512], image[600] = "", path[600];
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    make_folder(env, f, folder, sizeof folder);
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-files"));
    if (f->begins_with_image) { /* both sides of the autoencoder work */
        oq_image picture = golden_picture("image", 64, 64);
        snprintf(image, sizeof image, "%s", scratch_path(dir, "first.png"));
        assert_int_equal(oq_png_write(env, image, 64, 64, picture.pixels, NULL, 0), OQ_OK);
        free(picture.pixels);
    }
    oq_media *want = generate(env, f, folder, *image ? image : NULL, NULL, NULL);
    const size_t n =
        (size_t)oq_media_width(want) * (size_t)oq_media_height(want) * (size_t)oq_media_frames(want) * 3;
    for (const file_case *c = f->files; c->component; c++) {
        write_file(env, folder, c, dir, path, sizeof path);
        oq_media *got = generate(env, f, folder, *image ? image : NULL, c, path);
        assert_memory_equal(oq_media_pixels(got, 0), oq_media_pixels(want, 0), n);
        oq_media_free(got);
    }
    oq_media_free(want);
    oq_env_free(env);
}

static void test_flux1(void **state)
{
    (void)state;
    check_family(&flux1);
}
static void test_flux2(void **state)
{
    (void)state;
    check_family(&flux2);
}
static void test_flux2_dev(void **state)
{
    (void)state;
    check_family(&flux2_dev);
}
static void test_qwen_image(void **state)
{
    (void)state;
    check_family(&qwen_image_files);
}
static void test_qwen_image_edit(void **state)
{
    (void)state;
    check_family(&qwen_image_edit_files);
}

/* A file of another tower, or without one, says so instead of running with what fits. */
static void test_other_towers_are_refused(void **state)
{
    static const file_case files[] = {
        {"text_encoder", "text-encoder", NULL, "", false, "visual.blocks.2.norm1.weight", NULL},
        {"text_encoder", "text-encoder", NULL, "", false, NULL, "visual.blocks.1.mlp."},
        {"text_encoder", "text-encoder", NULL, "", false, NULL, "visual."}};
    static const char *const texts[] = {
        ("1 of 57 tensors belong to no layer of Qwen2_5_VLForConditionalGeneration, the first is "
         "'visual.blocks.2.norm1.weight'"),
        "tensor 'visual.blocks.1.mlp.gate_proj.weight' is missing",
        "tensor 'visual.patch_embed.proj.weight' is missing"};
    oq_env *env = NULL;
    char folder[512], dir[512], path[600];
    (void)state;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    make_folder(env, &qwen_image_edit_files, folder, sizeof folder);
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-files"));
    for (size_t i = 0; i < OQ_COUNT(files); i++) {
        oq_model *model = NULL;
        write_file(env, folder, &files[i], dir, path, sizeof path);
        oq_options *o = options_for(env, &qwen_image_edit_files, folder, NULL, &files[i], path);
        assert_int_equal(oq_model_open(env, o, &model), OQ_E_FORMAT);
        if (!strstr(oq_env_error(env), texts[i]))
            fail_msg("'%s' is not in '%s'", texts[i], oq_env_error(env));
        oq_env_clear(env);
        oq_options_free(o);
    }
    oq_env_free(env);
}
static void test_wan_i2v(void **state)
{
    (void)state;
    check_family(&wan_i2v);
}
static void test_wan_5b(void **state)
{
    (void)state;
    check_family(&wan_5b);
}

/* ---- files in the slots of others ---------------------------------------------------------------------- */

typedef struct stranger {
    const family_case *from;
    int file;
    const char *what;
} stranger;

/* Each network's file in every slot of the target (three of its files) is told by name, in the original's spelling too. */
static void check_strangers(const stranger *rows, size_t n, const family_case *target, const int slots[3])
{
    oq_env *env = NULL;
    char folder[512], into[512], dir[512], path[600];
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-files-wrong"));
    snprintf(into, sizeof into, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-files-target"));
    snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", target->name);
    golden_folder_make(env, path, into, &oq_dtype_f32);
    for (size_t i = 0; i < n; i++) {
        make_folder(env, rows[i].from, folder, sizeof folder);
        write_file(env, folder, &rows[i].from->files[rows[i].file], dir, path, sizeof path);
        for (int slot = 0; slot < 3; slot++)
            refused(env, target, into, &target->files[slots[slot]], path, rows[i].what);
    }
    oq_env_free(env);
}

static void test_wrong_slots(void **state)
{
    static const stranger rows[] = {
        {&wan_i2v, 0, "this is a transformer (Wan), the model needs "},
        {&wan_i2v, 8, "this is an autoencoder (Wan or Qwen-Image), the model needs "},
        {&wan_i2v, 11, "this is a text encoder (T5 or UMT5), the model needs "},
        {&wan_i2v, 12, "this is a text encoder (T5 or UMT5), the model needs "},
        {&flux2_dev, 2, "this is a text encoder (Mistral or Llama), the model needs "},
        {&wan_5b, 2, "this is an autoencoder (Wan or Qwen-Image), the model needs "},
        {&qwen_image_files, 0, "this is a transformer (Qwen-Image), the model needs "},
        {&qwen_image_files, 8, "this is a text encoder (Qwen2.5-VL), the model needs "},
        {&qwen_image_files, 9, "this is a text encoder (Qwen2.5-VL), the model needs "},
    };
    (void)state;
    check_strangers(rows, OQ_COUNT(rows), &flux1, (const int[]){0, 1, 2});
}

static void test_wrong_slots_of_the_flux_line(void **state)
{
    static const stranger rows[] = {
        {&flux1, 0, "this is a transformer (FLUX.1), the model needs "},
        {&flux1, 1, "this is an autoencoder (AutoencoderKL), the model needs "},
        {&flux1, 2, "this is a text encoder (CLIP), the model needs "},
        {&flux1, 3, "this is a text encoder (T5 or UMT5), the model needs "},
        {&flux1, 6, "this is a transformer (FLUX.1), the model needs "},
        {&flux2, 0, "this is a transformer (FLUX.2), the model needs "},
        {&flux2, 1, "this is an autoencoder (AutoencoderKLFlux2), the model needs "},
        {&flux2, 2, "this is a transformer (FLUX.2), the model needs "},
        {&flux2, 3, "this is a text encoder (Qwen3), the model needs "},
        {&flux2, 4, "this is a text encoder (Qwen3), the model needs "},
    };
    (void)state;
    check_strangers(rows, OQ_COUNT(rows), &qwen_image_files, (const int[]){0, 7, 8});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flux1),           cmocka_unit_test(test_flux2),
        cmocka_unit_test(test_flux2_dev),       cmocka_unit_test(test_qwen_image),
        cmocka_unit_test(test_qwen_image_edit), cmocka_unit_test(test_other_towers_are_refused),
        cmocka_unit_test(test_wan_i2v),         cmocka_unit_test(test_wan_5b),
        cmocka_unit_test(test_wrong_slots),     cmocka_unit_test(test_wrong_slots_of_the_flux_line)};
    return cmocka_run_group_tests_name("single files of families", tests, NULL, NULL);
}
