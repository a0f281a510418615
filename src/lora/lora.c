/* lora.c -- adapters: files to pairs of small layers that hang on the plan's layers. */
#include "lora/lora.h"

#include "base/file.h"
#include "base/size.h"
#include "ckpt/ckpt.h"
#include "lora/lora_delta.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, MAX_TENSORS = 1 << 16 };

typedef struct adapter { /* one named layer of a file */
    const char *name;    /* of the layer, n bytes of a key */
    size_t n;
    const oq_ckpt_tensor *tensor[OQ_LORA_N_ROLES];
    oq_lora_target targets[OQ_LORA_MAX_TARGETS];
    int n_targets;
    oq_lora_subject subject;
    oq_lora_delta delta;
} adapter;

typedef struct lora_file {
    const char *path;
    double scale;
    double *
        alpha; /* of the layers of each of the plan's components, where the file says one for all; NAN: it does not */
    oq_ckpt *ckpt;
    adapter *adapters;
    size_t n_adapters;
    oq_lora_summary summary;
} lora_file;

typedef struct hung { /* a pair as it was attached, and where its weights are */
    oq_lora_pair *pair;
    const lora_file *file;
    const adapter *of;
    int64_t from; /* rows of the adapter */
    double alpha; /* the file's for this component; NAN: none */
} hung;

struct oq_loras {
    oq_env *env;
    oq_plan *plan;
    oq_arena arena;
    lora_file *files;
    size_t n_files;
    hung *pairs;
    size_t n_pairs, capacity;
    size_t bytes;
    void *block; /* backend memory of all packed weights */
};

/* ---- requests ------------------------------------------------------------------------------------------ */

oq_status oq_lora_parse(oq_env *env, char *text, oq_lora_request *out)
{
    char *colon = strrchr(text, ':'), *end = NULL;
    *out = (oq_lora_request){.path = text, .scale = 1};
    if (!colon || strchr(colon, '/')) return OQ_OK;
    out->scale = strtod(colon + 1, &end);
    if (end == colon + 1 || *end || !isfinite(out->scale))
        return oq_fail(env, OQ_E_ARG, "--lora '%s': '%s' is no scale (FILE or FILE:SCALE)", text, colon + 1);
    *colon = '\0';
    return OQ_OK;
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* A file, or a folder as diffusers and PEFT write it. */
static oq_status open_file(oq_loras *l, lora_file *f, const char *path)
{
    static const char *const names[] = {"pytorch_lora_weights.safetensors", "adapter_model.safetensors"};
    if (!oq_file_is_dir(path)) return oq_ckpt_open(l->env, path, &f->ckpt);
    for (size_t i = 0; i < OQ_COUNT(names); i++) {
        const char *inside = oq_arena_printf(&l->arena, "%s/%s", path, names[i]);
        if (!inside) return oq_fail(l->env, OQ_E_NOMEM, "%s: no memory", path);
        if (oq_file_exists(inside)) return oq_ckpt_open(l->env, inside, &f->ckpt);
    }
    return oq_fail(l->env, OQ_E_NOTFOUND, "--lora '%s': the folder holds neither %s nor %s", path, names[0],
                   names[1]);
}

/* Ways to begin the training which take out of the model's weights what the adapter begins with: beside weights as they are
 * published, such an adapter is not what was trained. */
static oq_status check_start(oq_loras *l, const lora_file *f, const oq_json *json, const char *where,
                             const char *prefix)
{
    static const char *const starts[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    char key[64];
    snprintf(key, sizeof key, "%sinit_lora_weights", prefix);
    const char *start = oq_json_string(oq_json_get(json, key));
    for (size_t i = 0; start && i < OQ_COUNT(starts); i++)
        if (strncmp(start, starts[i], strlen(starts[i])) == 0)
            return oq_fail(
                l->env, OQ_E_UNSUPPORTED,
                "--lora '%s': '%s' of its %s is \"%s\": it goes with weights that were changed when its "
                "training began; convert it to a plain adapter",
                f->path, key, where, start);
    return OQ_OK;
}

/* A key of an adapter's description that changes what it does and is not followed here. */
static oq_status check_description(oq_loras *l, const lora_file *f, const oq_json *json, const char *where,
                                   const char *prefix)
{
    static const char *const flags[] = {"use_dora", "use_rslora", "fan_in_fan_out", "lora_bias"};
    char key[64];
    for (size_t i = 0; i < OQ_COUNT(flags); i++) {
        snprintf(key, sizeof key, "%s%s", prefix, flags[i]);
        if (oq_json_bool(oq_json_get(json, key), false))
            return oq_fail(l->env, OQ_E_UNSUPPORTED, "--lora '%s': '%s' of its %s is not supported", f->path,
                           key, where);
    }
    snprintf(key, sizeof key, "%salpha_pattern", prefix);
    if (oq_json_size(oq_json_get(json, key)) > 0)
        return oq_fail(l->env, OQ_E_UNSUPPORTED, "--lora '%s': '%s' of its %s is not supported", f->path, key,
                       where);
    OQ_TRY(check_start(l, f, json, where, prefix));
    snprintf(key, sizeof key, "%sbias", prefix);
    const char *bias = oq_json_string(oq_json_get(json, key));
    if (bias && strcmp(bias, "none") != 0)
        return oq_fail(l->env, OQ_E_UNSUPPORTED, "--lora '%s': '%s' of its %s is \"%s\", want \"none\"",
                       f->path, key, where, bias);
    return OQ_OK;
}

static oq_status take_alpha(oq_loras *l, const lora_file *f, const oq_json *json, const char *where,
                            const char *prefix, double *out)
{
    static const char *const names[] = {"lora_alpha", "alpha"};
    char key[64];
    OQ_TRY(check_description(l, f, json, where, prefix));
    for (size_t i = 0; i < OQ_COUNT(names); i++) {
        snprintf(key, sizeof key, "%s%s", prefix, names[i]);
        const oq_json *alpha = oq_json_get(json, key);
        if (!alpha || oq_json_type(alpha) == OQ_JSON_NULL) continue;
        *out = oq_json_real(alpha, (double)NAN);
        if (isfinite(*out)) return OQ_OK;
        return oq_fail(l->env, OQ_E_FORMAT, "--lora '%s': '%s' of its %s is %s, want a number", f->path, key,
                       where, oq_json_type_name(alpha));
    }
    return OQ_OK;
}

/* diffusers keeps one description of each component's adapter in the file's metadata, keys behind the component's name. */
static oq_status read_metadata(oq_loras *l, lora_file *f)
{
    static const char metadata[] = "lora_adapter_metadata";
    const char *text = oq_json_string(oq_ckpt_metadata(f->ckpt, metadata));
    oq_json *json = NULL;
    if (!text) return OQ_OK;
    OQ_TRY(oq_json_parse(l->env, text, strlen(text), metadata, &json));
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < l->plan->n_components; i++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "%s.", l->plan->components[i].name);
        st = take_alpha(l, f, json, metadata, prefix, &f->alpha[i]);
    }
    oq_json_free(json);
    return st;
}

/* Alpha of all pairs that have none of their own: PEFT's stands beside a folder's file, diffusers' in a file's metadata. */
static oq_status read_alpha(oq_loras *l, lora_file *f, const char *path)
{
    static const char beside[] = "adapter_config.json";
    const size_t n = l->plan->n_components;
    oq_json *json = NULL;
    double all = (double)NAN;
    OQ_TRY(oq_arena_new(&l->arena, n, sizeof *f->alpha, "adapters", &f->alpha));
    for (size_t i = 0; i < n; i++) f->alpha[i] = all;
    OQ_TRY(read_metadata(l, f));
    const char *config = oq_file_is_dir(path) ? oq_arena_printf(&l->arena, "%s/%s", path, beside) : NULL;
    if (!config || !oq_file_exists(config)) return OQ_OK;
    OQ_TRY(oq_json_parse_file(l->env, config, 1 << 20, &json));
    const oq_status st = take_alpha(l, f, json, beside, "", &all);
    oq_json_free(json);
    for (size_t i = 0; i < n && !isnan(all); i++) f->alpha[i] = all;
    return st;
}

static adapter *find_adapter(lora_file *f, const char *name, size_t n)
{
    for (size_t i = f->n_adapters; i-- > 0;) /* names are sorted: the layer is the last one or new */
        if (f->adapters[i].n == n && memcmp(f->adapters[i].name, name, n) == 0) return &f->adapters[i];
    adapter *a = &f->adapters[f->n_adapters++];
    *a = (adapter){.name = name, .n = n};
    return a;
}

static oq_status take_key(oq_loras *l, lora_file *f, const oq_ckpt_tensor *t)
{
    oq_lora_role role = OQ_LORA_DOWN;
    const char *foreign = NULL;
    const size_t n = oq_lora_key(t->name, &role, &foreign);
    if (foreign)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "--lora '%s': '%s' belongs to an adapter of another kind (%s)", f->path, t->name,
                       foreign);
    if (n == 0) return OQ_OK; /* counted as unmatched */
    adapter *a = find_adapter(f, t->name, n);
    if (a->tensor[role])
        return oq_fail(l->env, OQ_E_FORMAT, "--lora '%s': '%s' and '%s' are the same", f->path,
                       a->tensor[role]->name, t->name);
    a->tensor[role] = t;
    return OQ_OK;
}

static oq_status read_file(oq_loras *l, lora_file *f, const oq_lora_request *request)
{
    f->path = oq_arena_strdup(&l->arena, request->path);
    if (!f->path) return oq_fail(l->env, OQ_E_NOMEM, "--lora: no memory");
    f->scale = request->scale;
    OQ_TRY(open_file(l, f, f->path));
    OQ_TRY(read_alpha(l, f, f->path));
    if (f->ckpt->n_tensors > MAX_TENSORS)
        return oq_fail(l->env, OQ_E_UNSUPPORTED, "--lora '%s': %zu tensors, at most %d are read", f->path,
                       f->ckpt->n_tensors, (int)MAX_TENSORS);
    OQ_TRY(oq_arena_new(&l->arena, f->ckpt->n_tensors + 1, sizeof *f->adapters, f->path, &f->adapters));
    for (size_t i = 0; i < f->ckpt->n_tensors; i++) OQ_TRY(take_key(l, f, &f->ckpt->tensors[i]));
    f->summary = (oq_lora_summary){.path = f->path, .scale = f->scale, .keys = f->ckpt->n_tensors};
    return OQ_OK;
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

static oq_status plain_layer(oq_loras *l, oq_linear *out, const char *name, int64_t n, int64_t k)
{
    const oq_format *weight = l->plan->compute == &oq_dtype_bf16 ? &oq_format_bf16 : &oq_format_f32;
    oq_part *part = NULL;
    OQ_TRY(oq_arena_new(&l->plan->arena, 1, sizeof *part, name, &part));
    *part = (oq_part){.name = name, .n = n};
    *out = (oq_linear){.name = name, .parts = part, .n_parts = 1, .keep = "adapter"};
    out->spec = (oq_linear_spec){.scheme = {.weight = weight}, .n = n, .k = k};
    out->kernel = l->plan->backend->find_linear(l->plan->device, &out->spec);
    if (!out->kernel)
        return oq_fail(l->env, OQ_E_UNSUPPORTED, "adapter of layer '%s': no kernel of %s takes [%lld,%lld]",
                       name, l->plan->backend->name, (long long)n, (long long)k);
    size_t bytes;
    if (!oq_size_add(l->bytes, oq_align_up(out->kernel->packed_bytes(&out->spec), ALIGNMENT), &bytes))
        return oq_fail(l->env, OQ_E_NOMEM, "adapter of layer '%s': does not fit in memory", name);
    l->bytes = bytes;
    return OQ_OK;
}

static oq_status hang(oq_loras *l, const lora_file *f, const adapter *a, const oq_lora_target *target)
{
    oq_lora_pair *pair = NULL;
    const oq_lora_delta *d = &a->delta;
    const char *name = target->linear->name;
    const size_t before = l->bytes;
    OQ_TRY(oq_arena_new(&l->plan->arena, 1, sizeof *pair, name, &pair));
    *pair = (oq_lora_pair){.form = d->form, .at = target->at, .n = target->n};
    if (d->down_n) OQ_TRY(plain_layer(l, &pair->down, name, d->down_n, d->down_k));
    OQ_TRY(plain_layer(l, &pair->up, name, d->up_n ? d->up_n : target->n, d->up_k));
    if (d->form == OQ_LORA_KRONECKER) pair->from = target->from;
    target->component->bytes += l->bytes - before;
    pair->next = target->linear->lora;
    target->linear->lora = pair;
    target->linear->fused = 0; /* the pair is added to the product itself */
    if (l->n_pairs == l->capacity) {
        const size_t capacity = l->capacity ? 2 * l->capacity : 256;
        hung *grown = NULL;
        OQ_TRY(oq_arena_new(&l->arena, capacity, sizeof *grown, "adapters", &grown));
        if (l->n_pairs) memcpy(grown, l->pairs, l->n_pairs * sizeof *grown);
        l->pairs = grown;
        l->capacity = capacity;
    }
    l->pairs[l->n_pairs++] = (hung){.pair = pair,
                                    .file = f,
                                    .of = a,
                                    .from = target->from,
                                    .alpha = f->alpha[target->component - l->plan->components]};
    return OQ_OK;
}

/* One file means the same rows of a layer twice, in two spellings or as a part and within the whole product. */
static oq_status check_once(oq_loras *l, const adapter *a)
{
    for (const adapter *b = l->files[l->n_files - 1].adapters; b < a; b++)
        for (int i = 0; i < b->n_targets * a->n_targets; i++) {
            const oq_lora_target *x = &a->targets[i % a->n_targets], *y = &b->targets[i / a->n_targets];
            if (x->linear == y->linear && x->at < y->at + y->n && y->at < x->at + x->n)
                return oq_fail(l->env, OQ_E_FORMAT,
                               "--lora '%s': '%.*s' and '%.*s' mean the same rows of layer '%s'",
                               a->subject.path, (int)b->n, b->name, (int)a->n, a->name, x->linear->name);
        }
    return OQ_OK;
}

static oq_status attach_file(oq_loras *l, lora_file *f, const oq_lora_names *names)
{
    for (size_t i = 0; i < f->n_adapters; i++) {
        adapter *a = &f->adapters[i];
        oq_lora_subject *s = &a->subject;
        *s = (oq_lora_subject){.path = f->path, .name = a->name, .n_name = (int)a->n};
        a->n_targets = oq_lora_names_find(names, a->name, a->n, a->targets, &s->rows, &s->halves_swapped);
        if (a->n_targets == 0) continue;
        OQ_TRY(check_once(l, a));
        s->k = a->targets[0].linear->spec.k;
        OQ_TRY(oq_lora_delta_make(l->env, s, a->tensor, &a->delta));
        for (int t = 0; t < a->n_targets; t++) OQ_TRY(hang(l, f, a, &a->targets[t]));
        f->summary.layers++;
        for (int r = 0; r < OQ_LORA_N_ROLES; r++) f->summary.matched += a->tensor[r] != NULL;
    }
    return OQ_OK;
}

/* The first key, in the file's order, that changes nothing. */
static void note_unmatched(lora_file *f)
{
    for (size_t i = 0; i < f->ckpt->n_tensors && !f->summary.first_unmatched; i++) {
        const char *key = f->ckpt->tensors[i].name, *foreign = NULL;
        oq_lora_role role = OQ_LORA_DOWN;
        const size_t n = oq_lora_key(key, &role, &foreign);
        const adapter *a = n ? find_adapter(f, key, n) : NULL;
        if (!a || a->n_targets == 0) f->summary.first_unmatched = key;
    }
}

static oq_status tell(oq_loras *l, lora_file *f)
{
    const oq_lora_summary *s = &f->summary;
    if (s->matched == 0)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "--lora '%s': none of its %zu tensors fits a layer of this model (the first is '%s')",
                       f->path, s->keys, s->keys ? f->ckpt->tensors[0].name : "");
    if (s->matched == s->keys) {
        oq_log(l->env, OQ_LOG_INFO, "--lora '%s': %zu layers, all %zu tensors fit", f->path, s->layers,
               s->keys);
        return OQ_OK;
    }
    note_unmatched(f);
    f->summary.first_unmatched = oq_arena_strdup(&l->arena, s->first_unmatched ? s->first_unmatched : "");
    return oq_plan_warn(
        l->plan, "--lora '%s': %zu layers, %zu of %zu tensors fit; the others (first '%s') are left out",
        f->path, s->layers, s->matched, s->keys, s->first_unmatched);
}

static oq_status attach(oq_loras *l, const oq_lora_request *requests, size_t n)
{
    oq_lora_names *names = NULL;
    OQ_TRY(oq_arena_new(&l->arena, n, sizeof *l->files, "adapters", &l->files));
    OQ_TRY(oq_lora_names_new(l->env, l->plan, &names));
    oq_status st = OQ_OK;
    for (size_t i = 0; st == OQ_OK && i < n; i++) {
        lora_file *f = &l->files[l->n_files++];
        st = read_file(l, f, &requests[i]);
        if (st == OQ_OK) st = attach_file(l, f, names);
        if (st == OQ_OK) st = tell(l, f);
    }
    oq_lora_names_free(l->env, names);
    if (st == OQ_OK) l->plan->weights_bytes += l->bytes;
    return st;
}

oq_status oq_loras_attach(oq_env *env, oq_plan *plan, const oq_lora_request *requests, size_t n,
                          oq_loras **out)
{
    oq_loras *l = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *l, "adapters", &l));
    l->env = env;
    l->plan = plan;
    oq_arena_init(&l->arena, env);
    const oq_status st = attach(l, requests, n);
    if (st != OQ_OK) {
        oq_loras_free(env, l);
        return st;
    }
    *out = l;
    return OQ_OK;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/* What multiplies `up`: the request's scale and alpha over rank. */
static double scale_of(const hung *h)
{
    const oq_ckpt_tensor *alpha = h->of->tensor[OQ_LORA_ALPHA];
    const double rank = h->of->delta.rank;
    float own = 0;
    if (rank <= 0) return h->file->scale;
    if (alpha) {
        alpha->dtype->to_f32(&own, alpha->data, 1);
        return h->file->scale * (double)own / rank;
    }
    return h->file->scale * (isnan(h->alpha) ? 1.0 : h->alpha / rank);
}

/* f32 rows -> the planes of a plain format -> the kernel's own layout -> backend memory at *at. */
static oq_status load_layer(oq_loras *l, oq_linear *layer, const float *values, size_t *at)
{
    const size_t elems = (size_t)(layer->spec.n * layer->spec.k),
                 bytes = layer->kernel->packed_bytes(&layer->spec);
    const oq_dtype *type = l->plan->compute == &oq_dtype_bf16 ? &oq_dtype_bf16 : &oq_dtype_f32;
    void *plain = oq_alloc_raw(l->env, elems * type->bytes), *packed = oq_alloc_raw(l->env, bytes);
    oq_status st = plain && packed
                       ? OQ_OK
                       : oq_fail(l->env, OQ_E_NOMEM, "adapter of layer '%s': no memory for %zu bytes",
                                 layer->name, bytes);
    if (st == OQ_OK) {
        void *device = (char *)l->block + *at;
        type->from_f32(plain, values, elems);
        layer->kernel->pack(packed, &(oq_planes){{plain}}, &layer->spec);
        st = l->plan->backend->upload(l->env, l->plan->device, device, packed, bytes);
        layer->packed = device;
        *at += oq_align_up(bytes, ALIGNMENT);
    }
    oq_free(l->env, packed);
    oq_free(l->env, plain);
    return st;
}

static oq_status check_finite(oq_loras *l, const hung *h, const float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return oq_fail(l->env, OQ_E_NUMERIC, "--lora '%s': '%.*s' holds a value that is not finite",
                           h->file->path, (int)h->of->n, h->of->name);
    return OQ_OK;
}

static oq_status load_pair(oq_loras *l, const hung *h, size_t *at)
{
    oq_linear *down = &h->pair->down, *up = &h->pair->up;
    const int64_t n_down = down->spec.n * down->spec.k, n_up = up->spec.n * up->spec.k;
    float *values = NULL;
    OQ_TRY(oq_new(l->env, (size_t)(n_down + n_up), sizeof *values, up->name, &values));
    oq_status st = oq_lora_delta_fill(l->env, &h->of->delta, h->from, h->pair->n, &h->of->subject,
                                      scale_of(h), values, values + n_down);
    if (st == OQ_OK) st = check_finite(l, h, values, n_down + n_up);
    if (st == OQ_OK && n_down) st = load_layer(l, down, values, at);
    if (st == OQ_OK) st = load_layer(l, up, values + n_down, at);
    oq_free(l->env, values);
    return st;
}

oq_status oq_loras_load(oq_env *env, oq_loras *l)
{
    size_t at = 0;
    if (l->bytes) OQ_TRY(l->plan->backend->buffer_new(env, l->plan->device, l->bytes, &l->block));
    for (size_t i = 0; i < l->n_pairs; i++) OQ_TRY(load_pair(l, &l->pairs[i], &at));
    for (size_t i = 0; i < l->n_files; i++) {
        oq_ckpt_close(l->files[i].ckpt);
        l->files[i].ckpt = NULL;
    }
    return OQ_OK;
}

void oq_loras_free(oq_env *env, oq_loras *l)
{
    if (!l) return;
    for (size_t i = 0; i < l->n_files; i++) oq_ckpt_close(l->files[i].ckpt);
    if (l->block) l->plan->backend->buffer_free(env, l->plan->device, l->block);
    oq_arena_deinit(&l->arena);
    oq_free(env, l);
}

size_t oq_loras_count(const oq_loras *l)
{
    return l ? l->n_files : 0;
}

oq_lora_summary oq_loras_summary(const oq_loras *l, size_t index)
{
    return l->files[index].summary;
}
