/* disk.c -- what a checkpoint says about its quantization, and how a request meets it. */
#include "quant/method_modelopt.h"
#include "quant/resolve_internal.h"

#include "base/names.h"
#include "base/strbuf.h"

#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------- */

/* Keys of a mapping, for a message. */
static void list_keys(const oq_json *object, oq_strbuf *out)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    for (int n = 0; oq_json_next(object, &at, &key, &value) && n < 8; n++)
        oq_strbuf_printf(out, "%s%s", n ? ", " : "", key);
}

static oq_status fail_unreadable(oq_env *env, const oq_resolve_input *in)
{
    oq_strbuf keys;
    oq_strbuf_init(&keys, env);
    oq_status st;
    if (oq_json_type(in->quant) == OQ_JSON_OBJECT) {
        list_keys(in->quant, &keys);
        st = oq_fail(env, OQ_E_FORMAT,
                     "component '%s': the quantization block of '%s' names no quant_method; its keys are: %s",
                     in->name, in->quant_source, oq_json_size(in->quant) ? oq_strbuf_text(&keys) : "none");
    } else {
        st = oq_fail(env, OQ_E_FORMAT,
                     "component '%s': the quantization block of '%s' must be a mapping, not %s", in->name,
                     in->quant_source, oq_json_type_name(in->quant));
    }
    oq_strbuf_deinit(&keys);
    return st;
}

/* The method of metadata that has a producer's own shape instead of a name. */
static const char *shaped_method(const oq_json *quant)
{
    const oq_json *layers = oq_json_get(quant, "quantized_layers");
    const char *producer = oq_json_string(oq_json_get(oq_json_get(quant, "producer"), "name"));
    const char *recipe = oq_json_string(oq_json_get(quant, "recipe"));
    const char *own = oq_json_string(oq_json_get(quant, "method")); /* nunchaku's header */
    if (producer && oq_name_equal(producer, "modelopt")) return "modelopt";
    if (own && oq_name_equal(own, "svdquant")) return "svdquant";
    if (recipe) return recipe;
    return layers && oq_json_type(layers) != OQ_JSON_OBJECT ? "comfy_nvfp4" : NULL;
}

/* The name under `quant_method`; NULL: none. */
static const char *written_method(const oq_json *quant)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    if (oq_json_type(quant) == OQ_JSON_STRING) return oq_json_string(quant);
    while (oq_json_next(quant, &at, &key, &value))
        if (oq_name_equal(key, "quant_method")) return oq_json_string(value);
    return shaped_method(quant);
}

/* Value of the first "is_checkpoint_…_serialized" (the two may share an underscore): 1, 0, or -1 when there
 * is none. */
static int serialized_flag(const oq_json *options)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    int flag = -1;
    while (oq_json_next(options, &at, &key, &value)) {
        if (strncmp(key, "is_checkpoint_", 14) != 0 || !oq_name_ends(key, "_serialized")) continue;
        if (oq_json_type(value) == OQ_JSON_BOOL) flag = flag == 1 || oq_json_bool(value, false);
    }
    return flag;
}

/* The first two dialects that the evidence fits, and the method `wish` too unless it is NULL; how many there are. */
static size_t fitting(const oq_resolve_input *in, const oq_method *named, const oq_method *wish,
                      const oq_dialect *found[2])
{
    size_t n = 0;
    for (const oq_dialect *const *d = oq_dialect_list; *d; d++) {
        if (!(*d)->detect || !(*d)->detect(named, in->ckpt) || (wish && !(*d)->detect(wish, in->ckpt)))
            continue;
        if (n < 2) found[n] = *d;
        n++;
    }
    return n;
}

/* The one dialect that the evidence fits; NULL in *out: none. Files that fit two are not guessed at: the method that the
 * request names (NULL: none) fits one of them alone, or they are refused. */
static oq_status find_dialect(oq_env *env, const oq_resolve_input *in, const oq_method *named,
                              const oq_method *wish, const oq_dialect **out)
{
    const oq_dialect *found[2] = {NULL}, *meant[2] = {NULL};
    const size_t n = fitting(in, named, NULL, found);
    *out = found[0];
    if (n < 2) return OQ_OK;
    *out = NULL;
    if (wish && fitting(in, named, wish, meant) == 1) {
        *out = meant[0];
        return OQ_OK;
    }
    return oq_fail(env, OQ_E_FORMAT,
                   "component '%s': its tensors fit the spellings '%s' and '%s'; --quantization or a "
                   "quantization_config in its config.json must say which it is",
                   in->name, found[0]->name, found[1]->name);
}

static oq_status declare(oq_env *env, oq_resolved *resolved, const oq_resolve_input *in, oq_disk *disk)
{
    const oq_declare_input input = {.arena = &resolved->arena,
                                    .held = resolved->held,
                                    .method = disk->declared.method,
                                    .quant = in->quant,
                                    .quant_source = in->quant_source,
                                    .ckpt = in->ckpt};
    OQ_TRY(disk->dialect && disk->dialect->read ? disk->dialect->read(env, &input, &disk->declared)
                                                : oq_declared_read(env, &input, &disk->declared));
    disk->declared.encoder = in->encoder;
    return OQ_OK;
}

static oq_status read_metadata(oq_env *env, oq_resolved *resolved, const oq_resolve_input *in, oq_disk *disk)
{
    const char *name = written_method(in->quant);
    if (!name || !*name) return fail_unreadable(env, in);
    disk->source = oq_arena_strdup(&resolved->arena, in->quant_source ? in->quant_source : "metadata");
    disk->said = oq_method_find(env, name);
    if (!disk->source) return oq_fail(env, OQ_E_NOMEM, "component '%s': no memory", in->name);
    if (!disk->said)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "component '%s': '%s' declares quantization method '%s', which is not in "
                       "this build yet",
                       in->name, disk->source, name);
    disk->declared.method = oq_modelopt_refine(disk->said, in->quant);
    OQ_TRY(find_dialect(env, in, disk->declared.method, NULL, &disk->dialect));
    OQ_TRY(declare(env, resolved, in, disk));
    disk->present = true;
    disk->serialized = serialized_flag(disk->declared.options) != 0;
    return OQ_OK;
}

/* A weight file in a folder that says of itself what the folder's metadata does not say: the folder counts, as for other readers of
 * folders. (A lone file's header is what `in->quant` came from.) */
static oq_status compare_header(oq_env *env, oq_resolved *resolved, const oq_resolve_input *in)
{
    const char *text = in->ckpt ? oq_json_string(oq_ckpt_metadata(in->ckpt, "quantization_config")) : NULL;
    oq_json *own = NULL;
    if (!text || !in->quant_source || strcmp(in->quant_source, in->ckpt->path) == 0) return OQ_OK;
    OQ_TRY(oq_json_parse(env, text, strlen(text), in->ckpt->path, &own));
    const bool same = oq_json_equal(own, in->quant);
    oq_json_free(own);
    if (same) return OQ_OK;
    return oq_resolved_warn(
        resolved,
        "component '%s': the header of the weights in '%s' has another quantization_config than "
        "'%s', which counts",
        in->name, in->ckpt->path, in->quant_source);
}

oq_status oq_disk_read(oq_env *env, oq_resolved *resolved, const oq_resolve_input *in, const oq_method *wish,
                       oq_disk *out)
{
    *out = (oq_disk){0};
    OQ_TRY(compare_header(env, resolved, in));
    if (oq_json_type(in->quant) != OQ_JSON_NULL) return read_metadata(env, resolved, in, out);
    const oq_dialect *found = NULL;
    if (in->ckpt) OQ_TRY(find_dialect(env, in, NULL, wish, &found));
    if (!found) return OQ_OK;
    out->present = out->serialized = true;
    out->dialect = found;
    out->said = out->declared.method = found->method;
    return declare(env, resolved, in, out);
}

const char *oq_disk_subject(oq_arena *arena, const oq_disk *disk, const oq_resolve_input *in)
{
    const char *text = disk->source ? oq_arena_printf(arena, "'%s' declares", disk->source)
                                    : oq_arena_printf(arena, "the tensors of '%s' are",
                                                      in->ckpt ? in->ckpt->path : in->name);
    return text ? text : "the checkpoint declares";
}

/* ---- a request meets it -------------------------------------------------------------------------------- */

bool oq_spec_is_serialized(const oq_method *method, const oq_quant_spec *spec)
{
    if (spec->serialized_form || serialized_flag(spec->options) == 1) return true;
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (method->file_keys && oq_json_next(spec->options, &at, &key, &value))
        if (oq_csv_has(method->file_keys, key)) return true;
    return false;
}

/* A global fp8 also means ModelOpt's FP8 checkpoints. */
bool oq_disk_agrees(const oq_disk *disk, const oq_method *wish, const oq_method *refined)
{
    const oq_method *is = disk->declared.method;
    if (refined == is || (wish == disk->said && refined == wish)) return true;
    const char *algo = oq_json_string(oq_json_get(disk->declared.options, "quant_algo"));
    return wish == oq_method_find(NULL, "fp8") && is == &oq_method_modelopt && disk->serialized && algo &&
           strncmp(algo, "FP8", 3) == 0;
}

static const oq_method_option *row_of(const oq_method *method, const char *key)
{
    for (const oq_method_option *row = method->options; row->name; row++)
        if (strcmp(row->name, key) == 0) return row;
    return NULL;
}

/* Equal as sets: order and repetition do not matter. */
static bool same_set(const oq_json *a, const oq_json *b)
{
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < oq_json_size(a); i++) {
            bool found = false;
            for (size_t j = 0; j < oq_json_size(b) && !found; j++)
                found = oq_json_equal(oq_json_at(a, i), oq_json_at(b, j));
            if (!found) return false;
        }
        const oq_json *c = a;
        a = b;
        b = c;
    }
    return true;
}

typedef struct merge {
    oq_env *env;
    oq_resolved *resolved;
    const oq_resolve_input *input;
    const oq_disk *disk;
    oq_json *out;
} merge;

static oq_status put(const merge *m, const char *key, const oq_json *value)
{
    if (oq_json_set(m->out, key, oq_json_copy(value))) return OQ_OK;
    return oq_fail(m->env, OQ_E_NOMEM, "component '%s': no memory for option '%s'", m->input->name, key);
}

static oq_status fail_value(const merge *m, const char *key, const oq_json *wish, const oq_json *fact)
{
    char *a = NULL, *b = NULL;
    oq_status st = oq_json_dump(m->env, wish, OQ_JSON_COMPACT, &a);
    if (st == OQ_OK) st = oq_json_dump(m->env, fact, OQ_JSON_COMPACT, &b);
    if (st == OQ_OK)
        st = oq_fail(m->env, OQ_E_MISMATCH, "component '%s': the request sets %s to %.200s, but %s %.200s",
                     m->input->name, key, a, oq_disk_subject(&m->resolved->arena, m->disk, m->input), b);
    oq_free(m->env, a);
    oq_free(m->env, b);
    return st;
}

static oq_status merge_ignored(const merge *m, const oq_json *wish, const oq_json *fact)
{
    if (!fact) return put(m, "ignored_layers", wish);
    if (same_set(wish, fact)) return OQ_OK;
    if (oq_json_size(wish) == 0) return OQ_OK;
    return oq_resolved_warn(
        m->resolved,
        "component '%s': ignored_layers of the request are replaced by the checkpoint's %zu entries: its "
        "layers were quantized beforehand",
        m->input->name, oq_json_size(fact));
}

static oq_status merge_value(const merge *m, const char *key, const oq_json *wish)
{
    const oq_json *fact = oq_json_get(m->disk->declared.options, key);
    const oq_method_option *row = row_of(m->disk->declared.method, key);
    if (strcmp(key, "ignored_layers") == 0) return merge_ignored(m, wish, fact);
    if (strncmp(key, "is_checkpoint_", 14) == 0) return OQ_OK;
    const oq_option_side side = row ? row->side : OQ_SIDE_FILE;
    if (side == OQ_SIDE_ONLINE && m->disk->serialized)
        return oq_resolved_warn(m->resolved,
                                "component '%s': %s has no effect: its layers were quantized beforehand",
                                m->input->name, key);
    if (side == OQ_SIDE_REQUEST || side == OQ_SIDE_ONLINE || !fact) return put(m, key, wish);
    if (side == OQ_SIDE_EITHER) return oq_json_bool(wish, false) ? put(m, key, wish) : OQ_OK;
    return oq_json_equal(wish, fact) ? OQ_OK : fail_value(m, key, wish, fact);
}

/* The file's options without those that a request decides (an absent wish means their default). */
static oq_status put_facts(const merge *m)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(m->disk->declared.options, &at, &key, &value)) {
        const oq_method_option *row = row_of(m->disk->declared.method, key);
        if (!row || row->side != OQ_SIDE_REQUEST) OQ_TRY(put(m, key, value));
    }
    return OQ_OK;
}

oq_status oq_disk_merge(oq_env *env, oq_resolved *resolved, const oq_resolve_input *input,
                        const oq_disk *disk, const oq_json *wish, oq_json **out)
{
    const merge m = {env, resolved, input, disk, oq_json_new_object()};
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    *out = NULL;
    if (!m.out) return oq_fail(env, OQ_E_NOMEM, "component '%s': no memory for options", input->name);
    oq_status st = put_facts(&m);
    while (st == OQ_OK && oq_json_next(wish, &at, &key, &value)) st = merge_value(&m, key, value);
    if (st == OQ_OK)
        *out = m.out;
    else
        oq_json_free(m.out);
    return st;
}
