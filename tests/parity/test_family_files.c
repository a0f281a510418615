/* test_family_files.c -- transformers and autoencoders of FLUX in the spelling of their original release, as single files: the
 * picture is the folder's, bit for bit.
 *
 * The files are written here from the folder's tensors by the tables below, which go from diffusers' names to the others; the
 * networks' own tables (oq_name_rule) go the other way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/names.h"
#include "parity/family.h"

/* `ours` may name several layers, whose rows stand one behind the other in the file; '*' is a block's number. */
typedef struct respelling {
    const char *ours, *theirs;
    bool halves_swapped;
} respelling;

static const respelling flux1[] = {
    {"time_text_embed.timestep_embedder.linear_1", "time_in.in_layer", false},
    {"time_text_embed.timestep_embedder.linear_2", "time_in.out_layer", false},
    {"time_text_embed.text_embedder.linear_1", "vector_in.in_layer", false},
    {"time_text_embed.text_embedder.linear_2", "vector_in.out_layer", false},
    {"time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer", false},
    {"time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer", false},
    {"context_embedder", "txt_in", false},
    {"x_embedder", "img_in", false},
    {"transformer_blocks.*.norm1.linear", "double_blocks.*.img_mod.lin", false},
    {"transformer_blocks.*.norm1_context.linear", "double_blocks.*.txt_mod.lin", false},
    {"transformer_blocks.*.attn.to_q,transformer_blocks.*.attn.to_k,transformer_blocks.*.attn.to_v",
     "double_blocks.*.img_attn.qkv", false},
    {"transformer_blocks.*.attn.add_q_proj,transformer_blocks.*.attn.add_k_proj,transformer_blocks.*.attn."
     "add_v_proj",
     "double_blocks.*.txt_attn.qkv", false},
    {"transformer_blocks.*.ff.net.0.proj", "double_blocks.*.img_mlp.0", false},
    {"transformer_blocks.*.ff.net.2", "double_blocks.*.img_mlp.2", false},
    {"transformer_blocks.*.ff_context.net.0.proj", "double_blocks.*.txt_mlp.0", false},
    {"transformer_blocks.*.ff_context.net.2", "double_blocks.*.txt_mlp.2", false},
    {"single_transformer_blocks.*.norm.linear", "single_blocks.*.modulation.lin", false},
    {"single_transformer_blocks.*.attn.to_q,single_transformer_blocks.*.attn.to_k,"
     "single_transformer_blocks.*.attn.to_v,single_transformer_blocks.*.proj_mlp",
     "single_blocks.*.linear1", false},
    {"single_transformer_blocks.*.proj_out", "single_blocks.*.linear2", false},
    {0},
};

static const respelling flux2[] = {
    {"time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer", false},
    {"time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer", false},
    {"double_stream_modulation_img.linear", "double_stream_modulation_img.lin", false},
    {"double_stream_modulation_txt.linear", "double_stream_modulation_txt.lin", false},
    {"single_stream_modulation.linear", "single_stream_modulation.lin", false},
    {"context_embedder", "txt_in", false},
    {"x_embedder", "img_in", false},
    {"transformer_blocks.*.attn.to_q,transformer_blocks.*.attn.to_k,transformer_blocks.*.attn.to_v",
     "double_blocks.*.img_attn.qkv", false},
    {"transformer_blocks.*.attn.add_q_proj,transformer_blocks.*.attn.add_k_proj,transformer_blocks.*.attn."
     "add_v_proj",
     "double_blocks.*.txt_attn.qkv", false},
    {"transformer_blocks.*.ff.linear_in", "double_blocks.*.img_mlp.0", false},
    {"transformer_blocks.*.ff.linear_out", "double_blocks.*.img_mlp.2", false},
    {"transformer_blocks.*.ff_context.linear_in", "double_blocks.*.txt_mlp.0", false},
    {"transformer_blocks.*.ff_context.linear_out", "double_blocks.*.txt_mlp.2", false},
    {"single_transformer_blocks.*.attn.to_qkv_mlp_proj", "single_blocks.*.linear1", false},
    {"single_transformer_blocks.*.attn.to_out", "single_blocks.*.linear2", false},
    {0},
};

static const respelling both[] = {
    {"transformer_blocks.*.attn.norm_q.weight", "double_blocks.*.img_attn.norm.query_norm.scale", false},
    {"transformer_blocks.*.attn.norm_k.weight", "double_blocks.*.img_attn.norm.key_norm.scale", false},
    {"transformer_blocks.*.attn.norm_added_q.weight", "double_blocks.*.txt_attn.norm.query_norm.scale",
     false},
    {"transformer_blocks.*.attn.norm_added_k.weight", "double_blocks.*.txt_attn.norm.key_norm.scale", false},
    {"transformer_blocks.*.attn.to_out.0", "double_blocks.*.img_attn.proj", false},
    {"transformer_blocks.*.attn.to_add_out", "double_blocks.*.txt_attn.proj", false},
    {"single_transformer_blocks.*.attn.norm_q.weight", "single_blocks.*.norm.query_norm.scale", false},
    {"single_transformer_blocks.*.attn.norm_k.weight", "single_blocks.*.norm.key_norm.scale", false},
    {"norm_out.linear", "final_layer.adaLN_modulation.1", true},
    {"proj_out", "final_layer.linear", false},
    {0},
};

#define SIDE(side)                                                                                           \
    {side ".mid_block.resnets.0", side ".mid.block_1", false},                                               \
        {side ".mid_block.resnets.1", side ".mid.block_2", false},                                           \
        {side ".mid_block.attentions.0.group_norm", side ".mid.attn_1.norm", false},                         \
        {side ".mid_block.attentions.0.to_q", side ".mid.attn_1.q", false},                                  \
        {side ".mid_block.attentions.0.to_k", side ".mid.attn_1.k", false},                                  \
        {side ".mid_block.attentions.0.to_v", side ".mid.attn_1.v", false},                                  \
        {side ".mid_block.attentions.0.to_out.0", side ".mid.attn_1.proj_out", false},                       \
    {                                                                                                        \
        side ".conv_norm_out", side ".norm_out", false                                                       \
    }
#define UP(ours, theirs)                                                                                     \
    {"decoder.up_blocks." ours ".resnets.*.conv_shortcut", "decoder.up." theirs ".block.*.nin_shortcut",     \
     false},                                                                                                 \
        {"decoder.up_blocks." ours ".resnets.*", "decoder.up." theirs ".block.*", false},                    \
    {                                                                                                        \
        "decoder.up_blocks." ours ".upsamplers.0.conv", "decoder.up." theirs ".upsample.conv", false         \
    }
static const respelling vae[] = {
    SIDE("encoder"),
    SIDE("decoder"),
    {"encoder.down_blocks.*.downsamplers.0.conv", "encoder.down.*.downsample.conv", false},
    {"encoder.down_blocks.*.resnets.*.conv_shortcut", "encoder.down.*.block.*.nin_shortcut", false},
    {"encoder.down_blocks.*.resnets.*", "encoder.down.*.block.*", false},
    UP("0", "3"),
    UP("1", "2"),
    UP("2", "1"),
    UP("3", "0"),
    {"quant_conv", "encoder.quant_conv", false},
    {"post_quant_conv", "decoder.post_quant_conv", false},
    {0},
};

/* ---- writing the file ---------------------------------------------------------------------------------- */

/* Does the pattern stand for the beginning of `name`, as whole components? The rest of the name, or NULL. */
static const char *match(const char *pattern, const char *name, char number[2][24])
{
    int n = 0;
    for (; *pattern; pattern++) {
        if (*pattern == '*') {
            const size_t length = strcspn(name, ".");
            assert_true(n < 2 && length < sizeof number[0]);
            snprintf(number[n++], sizeof number[0], "%.*s", (int)length, name);
            name += length;
        } else if (*name++ != *pattern) {
            return NULL;
        }
    }
    return *name == '\0' || *name == '.' ? name : NULL;
}

static void spell(const char *pattern, char number[2][24], const char *rest, char *out, size_t n)
{
    size_t used = 0;
    for (int star = 0; *pattern; pattern++)
        used += (size_t)(*pattern == '*' ? snprintf(out + used, n - used, "%s", number[star++])
                                         : snprintf(out + used, n - used, "%c", *pattern));
    snprintf(out + used, n - used, "%s", rest);
}

typedef struct writer {
    oq_strbuf header, data;
    const oq_ckpt *ckpt;
    size_t n_taken, n_respelled;
} writer;

static void put(writer *w, const char *name, const oq_ckpt_tensor *const *part, int n_parts,
                const respelling *row)
{
    const oq_ckpt_tensor *t = part[0];
    const bool matrix_of_1x1 = t->n_dims == 2 && strstr(name, ".attn_1."); /* attention by convolutions */
    const size_t begin = w->data.size;
    int64_t rows = 0;
    for (int p = 0; p < n_parts; p++) {
        const size_t half = row && row->halves_swapped ? part[p]->bytes / 2 : 0;
        rows += part[p]->dim[0];
        oq_strbuf_add(&w->data, part[p]->data + half, part[p]->bytes - half);
        oq_strbuf_add(&w->data, part[p]->data, half);
    }
    oq_strbuf_printf(&w->header, "%s\"model.diffusion_model.%s\": {\"dtype\": \"%s\", \"shape\": [%lld",
                     w->header.size > 1 ? ", " : "", name, t->type_name, (long long)rows);
    for (int i = 1; i < t->n_dims; i++) oq_strbuf_printf(&w->header, ", %lld", (long long)t->dim[i]);
    oq_strbuf_printf(&w->header, "%s], \"data_offsets\": [%zu, %zu]}", matrix_of_1x1 ? ", 1, 1" : "", begin,
                     w->data.size);
    w->n_taken += (size_t)n_parts;
    w->n_respelled += row != NULL;
}

/* The tensor by the first row that fits it; the later parts of a fused row come with its first. */
static bool put_by(writer *w, const oq_ckpt_tensor *t, const respelling *rows)
{
    for (const respelling *row = rows; row->ours; row++) {
        char word[256], number[2][24], name[256];
        for (size_t i = 0; oq_csv_word(row->ours, i, word, sizeof word); i++) {
            const oq_ckpt_tensor *part[4] = {t};
            int n_parts = 1;
            const char *rest = match(word, t->name, number);
            if (!rest) continue;
            if (i > 0) return true;
            for (; oq_csv_word(row->ours, (size_t)n_parts, word, sizeof word); n_parts++) {
                spell(word, number, rest, name, sizeof name);
                part[n_parts] = oq_ckpt_find(w->ckpt, name);
                assert_non_null(part[n_parts]);
            }
            spell(row->theirs, number, rest, name, sizeof name);
            put(w, name, part, n_parts, row);
            return true;
        }
    }
    return false;
}

static void write_file(oq_env *env, const char *folder, const char *component, const respelling *own,
                       const respelling *shared, const char *dir, const char *leaf)
{
    oq_ckpt *ckpt = NULL;
    assert_int_equal(oq_ckpt_open_folder(env, scratch_path(folder, component), NULL, &ckpt), OQ_OK);
    writer w = {.ckpt = ckpt};
    oq_strbuf_init(&w.header, env);
    oq_strbuf_init(&w.data, env);
    oq_strbuf_puts(&w.header, "{");
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        if (!put_by(&w, t, own) && !(shared && put_by(&w, t, shared))) put(&w, t->name, &t, 1, NULL);
    }
    assert_int_equal(w.n_taken, ckpt->n_tensors);
    oq_strbuf_puts(&w.header, "}");
    scratch_safetensors(dir, leaf, oq_strbuf_text(&w.header), w.data.text, w.data.size);
    printf("%s: %zu tensors as %zu respelled ones\n", leaf, ckpt->n_tensors, w.n_respelled);
    oq_strbuf_deinit(&w.header);
    oq_strbuf_deinit(&w.data);
    oq_ckpt_close(ckpt);
}

/* ---- running it ---------------------------------------------------------------------------------------- */

static oq_media *generate(oq_env *env, const char *folder, const char *image, const char *option,
                          const char *file)
{
    oq_options *o = NULL;
    oq_model *model = NULL;
    oq_media *media = NULL;
    const char *const rows[][2] = {
        {"model", folder}, {"dtype", "fp32"}, {"prompt", "a red circle on a white background"},
        {"seed", "3"},     {"width", "64"},   {"height", "64"},
        {"steps", "2"},    {"image", image},  {option, file}};
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (rows[i][0] && rows[i][1]) assert_int_equal(oq_options_set(o, rows[i][0], rows[i][1]), OQ_OK);
    if (oq_model_open(env, o, &model) != OQ_OK || oq_generate(env, model, o, &media) != OQ_OK)
        fail_msg("%s: %s", file ? file : folder, oq_env_error(env));
    oq_model_close(model);
    oq_options_free(o);
    return media;
}

static void check_family(const char *name, const respelling *own)
{
    oq_env *env = NULL;
    char folder[512], dir[512], data[512], image[600];
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    snprintf(folder, sizeof folder, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-files-folder"));
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "family-files"));
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", name);
    golden_folder_make(env, data, folder, &oq_dtype_f32);
    write_file(env, folder, "transformer", own, both, dir, "transformer.safetensors");
    write_file(env, folder, "vae", vae, NULL, dir, "vae.safetensors");
    oq_media *first = generate(env, folder, NULL, NULL, NULL);
    snprintf(image, sizeof image, "%s", scratch_path(dir, "first.png"));
    assert_int_equal(oq_media_save_png(env, first, 0, image), OQ_OK);
    oq_media_free(first);
    oq_media *want =
        generate(env, folder, image, NULL, NULL); /* begins with a picture: both sides of the autoencoder */
    static const char *const components[] = {"transformer", "vae"};
    for (size_t i = 0; i < OQ_COUNT(components); i++) {
        char leaf[64];
        snprintf(leaf, sizeof leaf, "%s.safetensors", components[i]);
        oq_media *got = generate(env, folder, image, components[i], scratch_path(dir, leaf));
        assert_memory_equal(oq_media_pixels(got, 0), oq_media_pixels(want, 0), 64 * 64 * 3);
        oq_media_free(got);
    }
    oq_media_free(want);
    oq_env_free(env);
}

static void test_flux1(void **state)
{
    (void)state;
    check_family("flux1", flux1);
}

static void test_flux2(void **state)
{
    (void)state;
    check_family("flux2-klein", flux2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flux1), cmocka_unit_test(test_flux2)};
    return cmocka_run_group_tests_name("single files of FLUX", tests, NULL, NULL);
}
