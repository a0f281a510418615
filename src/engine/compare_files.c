/* compare_files.c -- two pictures, or two folders whose pictures have equal names. */
#include "engine/compare.h"

#include <inttypes.h>
#include <string.h>

typedef struct folder_names {
    char **names;
    size_t n;
} folder_names;

static bool is_picture(const char *name)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".webp"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < OQ_COUNT(endings); i++)
        if (oq_name_equal(dot, endings[i])) return true;
    return false;
}

static void free_names(oq_env *env, folder_names *f)
{
    for (size_t i = 0; i < f->n; i++) oq_free(env, f->names[i]);
    oq_free(env, f->names);
    *f = (folder_names){0};
}

/* Sorted names of a folder's pictures; the others are left out. */
static oq_status list_pictures(oq_env *env, const char *folder, folder_names *out)
{
    char **names = NULL;
    size_t n = 0, kept = 0;
    OQ_TRY(oq_dir_list(env, folder, &names, &n));
    for (size_t i = 0; i < n; i++) {
        if (is_picture(names[i]))
            names[kept++] = names[i];
        else
            oq_free(env, names[i]);
    }
    *out = (folder_names){names, kept};
    return kept ? OQ_OK : oq_fail(env, OQ_E_NOTFOUND, "%s: holds no picture (PNG, JPEG, WebP)", folder);
}

static oq_status check_same_names(oq_env *env, const char *a, const folder_names *x, const char *b,
                                  const folder_names *y)
{
    for (size_t i = 0; i < x->n || i < y->n; i++) {
        const int order = i >= x->n ? 1 : i >= y->n ? -1 : strcmp(x->names[i], y->names[i]);
        if (order < 0) return oq_fail(env, OQ_E_ARG, "%s: has '%s', %s does not", a, x->names[i], b);
        if (order > 0) return oq_fail(env, OQ_E_ARG, "%s: has '%s', %s does not", b, y->names[i], a);
    }
    return OQ_OK;
}

static oq_status read_picture(oq_env *env, const char *folder, const char *name, oq_image *out)
{
    if (!name) return oq_image_read(env, folder, out);
    char *path = oq_path_join(env, folder, name);
    if (!path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", folder);
    const oq_status st = oq_image_read(env, path, out);
    oq_free(env, path);
    return st;
}

static oq_status read_pair(oq_env *env, const char *a, const char *b, const char *name,
                           oq_picture_pairs *pairs, size_t i)
{
    OQ_TRY(read_picture(env, a, name, &pairs->a[i]));
    OQ_TRY(read_picture(env, b, name, &pairs->b[i]));
    const oq_image *x = &pairs->a[i], *y = &pairs->b[i];
    if (x->width == y->width && x->height == y->height) return OQ_OK;
    return oq_fail(env, OQ_E_ARG,
                   "%s is %" PRId64 "x%" PRId64 ", %s is %" PRId64 "x%" PRId64 ": sizes must be equal",
                   name ? name : a, x->width, x->height, name ? "its partner" : b, y->width, y->height);
}

static oq_status save_side_by_side(oq_env *env, const oq_options *options, const oq_picture_pairs *pairs,
                                   oq_json *saved)
{
    const char *dir = oq_options_text(options, "save-output-dir", NULL);
    oq_status st = OQ_OK;
    for (size_t i = 0; dir && st == OQ_OK && i < pairs->n; i++) {
        oq_image both = {0};
        oq_arena arena;
        oq_arena_init(&arena, env);
        const char *path = oq_arena_printf(&arena, "%s/side_by_side_%zu.png", dir, i);
        st = path ? oq_image_side_by_side(env, &pairs->a[i], &pairs->b[i], &both)
                  : oq_fail(env, OQ_E_NOMEM, "%s: no memory", dir);
        if (st == OQ_OK) st = oq_png_write(env, path, both.width, both.height, both.pixels, NULL, 0);
        if (st == OQ_OK) oq_json_append(saved, oq_json_new_string(path));
        oq_image_deinit(env, &both);
        oq_arena_deinit(&arena);
    }
    return st;
}

static oq_status make_report(oq_env *env, oq_options *options, const oq_picture_pairs *pairs, oq_report **out)
{
    oq_pairs_metrics_result result;
    oq_json *metrics = NULL, *json = NULL, *saved = oq_json_new_array();
    oq_strbuf text;
    bool passed = true;
    oq_strbuf_init(&text, env);
    oq_status st = oq_pairs_metrics(env, pairs, &result, &metrics);
    if (st == OQ_OK) {
        json = oq_json_new_object();
        oq_json_set(json, "output_metrics", metrics);
        oq_pairs_print(pairs, &result, &text);
        st = oq_compare_judge(env, options, &result.worst, json, &text, &passed);
    }
    if (st == OQ_OK) st = save_side_by_side(env, options, pairs, saved);
    if (st == OQ_OK && oq_json_size(saved)) oq_json_set(json, "saved_outputs", oq_json_ref(saved));
    oq_json_free(saved);
    if (st == OQ_OK) st = oq_compare_write_json(env, options, json);
    if (st == OQ_OK) return oq_report_finish(env, json, &text, passed, out);
    oq_json_free(json);
    oq_strbuf_deinit(&text);
    return st;
}

static oq_status read_all(oq_env *env, const char *a, const char *b, folder_names names[2],
                          oq_picture_pairs *pairs)
{
    const bool folders = oq_file_is_dir(a);
    if (folders != oq_file_is_dir(b))
        return oq_fail(env, OQ_E_ARG, "%s is %s, %s is %s: compare two of a kind", a,
                       folders ? "a folder" : "a file", b, folders ? "not" : "a folder");
    if (folders) {
        OQ_TRY(list_pictures(env, a, &names[0]));
        OQ_TRY(list_pictures(env, b, &names[1]));
        OQ_TRY(check_same_names(env, a, &names[0], b, &names[1]));
    }
    const size_t n = folders ? names[0].n : 1;
    OQ_TRY(oq_new(env, n, sizeof *pairs->a, "pictures", &pairs->a));
    OQ_TRY(oq_new(env, n, sizeof *pairs->b, "pictures", &pairs->b));
    pairs->n = n;
    if (folders) pairs->names = (const char **)names[0].names;
    for (size_t i = 0; i < n; i++) OQ_TRY(read_pair(env, a, b, folders ? names[0].names[i] : NULL, pairs, i));
    return OQ_OK;
}

oq_status oq_compare_files(oq_env *env, oq_options *options, oq_report **out)
{
    oq_picture_pairs pairs = {0};
    folder_names names[2] = {{0}};
    const char *dir = oq_options_text(options, "save-output-dir", NULL);
    const char *a = oq_options_argument(options, 0), *b = oq_options_argument(options, 1);
    if (oq_options_flag(options, "layers"))
        return oq_fail(env, OQ_E_ARG,
                       "layers compares variants of a model: give --model DIR instead of pictures");
    const bool ours = dir && !oq_file_exists(dir);
    if (dir) OQ_TRY(oq_dir_make(env, dir));
    oq_status st = read_all(env, a, b, names, &pairs);
    if (st != OQ_OK && ours) oq_dir_remove(dir); /* nothing is in it yet */
    if (st == OQ_OK) st = make_report(env, options, &pairs, out);
    for (size_t i = 0; i < pairs.n; i++) {
        oq_image_deinit(env, &pairs.a[i]);
        oq_image_deinit(env, &pairs.b[i]);
    }
    oq_free(env, pairs.a);
    oq_free(env, pairs.b);
    free_names(env, &names[0]);
    free_names(env, &names[1]);
    return st;
}
