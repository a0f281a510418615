/* rewrite.c -- the list of what an output holds: copies, decoded layers, encoded layers. */
#include "engine/rewrite.h"

#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool begins_with(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* A name that the folder's reader looks for: "pytorch_model-00001-of-00002.bin" -> "model-00001-of-00002.safetensors", a file
 * "x.gguf" alone -> "diffusion_pytorch_model.safetensors"; in a container of one file "x-00001-of-00002.safetensors" ->
 * "x.gguf". NULL: no memory. */
static const char *output_name(const oq_rewrite *rw, const char *leaf)
{
    static const char *const endings[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf"};
    const char *shown = begins_with(leaf, "pytorch_model") ? leaf + strlen("pytorch_") : leaf;
    const char *to = rw->container->ending, *number = strstr(shown, "-00001-of-");
    const bool known = begins_with(shown, "model") || begins_with(shown, "diffusion_pytorch_model");
    const size_t n = strlen(shown);
    if (rw->container->whole && number)
        return oq_arena_printf(rw->arena, "%.*s%s", (int)(number - shown), shown, to);
    for (size_t i = 0; i < OQ_COUNT(endings); i++) {
        const size_t m = strlen(endings[i]);
        if (n <= m || strcmp(shown + n - m, endings[i]) != 0) continue;
        if (strcmp(endings[i], to) == 0) return leaf;
        if (rw->n_files == 1 && !known) return oq_arena_printf(rw->arena, "diffusion_pytorch_model%s", to);
        return oq_arena_printf(rw->arena, "%.*s%s", (int)(n - m), shown, to);
    }
    return leaf;
}

oq_status oq_rewrite_begin(oq_env *env, oq_arena *arena, const oq_inspect_part *part,
                           const oq_write_container *container, const char *single_name, oq_rewrite *out)
{
    const oq_ckpt *ckpt = part->ckpt;
    *out = (oq_rewrite){.env = env,
                        .arena = arena,
                        .part = part,
                        .container = container,
                        .n_files = single_name || container->whole ? 1 : ckpt->n_files};
    OQ_TRY(oq_arena_new(arena, (size_t)out->n_files, sizeof *out->file_names, "files", &out->file_names));
    for (int i = 0; i < out->n_files; i++) {
        out->file_names[i] = single_name ? single_name : output_name(out, oq_path_leaf(ckpt->files[i].path));
        if (!out->file_names[i]) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", ckpt->path);
    }
    return OQ_OK;
}

void oq_rewrite_end(oq_rewrite *rw)
{
    if (rw->env) oq_free(rw->env, rw->jobs);
    rw->jobs = NULL;
}

static oq_status new_job(oq_rewrite *rw, const char *name, oq_rewrite_job **out)
{
    if (rw->n_jobs == rw->cap_jobs) {
        const size_t capacity = rw->cap_jobs ? 2 * rw->cap_jobs : 256;
        oq_rewrite_job *more = NULL;
        OQ_TRY(oq_new(rw->env, capacity, sizeof *more, "output list", &more));
        if (rw->n_jobs) memcpy(more, rw->jobs, rw->n_jobs * sizeof *more);
        oq_free(rw->env, rw->jobs);
        rw->jobs = more;
        rw->cap_jobs = capacity;
    }
    *out = &rw->jobs[rw->n_jobs++];
    **out = (oq_rewrite_job){.name = name};
    return OQ_OK;
}

static oq_status add_tensor(oq_rewrite *rw, oq_rewrite_job *job, const char *name, const char *suffix,
                            const char *type, size_t bytes, int file, oq_write_tensor **out)
{
    oq_write_tensor *t = NULL;
    OQ_TRY(oq_arena_new(rw->arena, 1, sizeof *t, name, &t));
    *t = (oq_write_tensor){.name = oq_arena_printf(rw->arena, "%s%s", name, suffix),
                           .type = type,
                           .bytes = bytes,
                           .file = rw->n_files == 1 ? 0 : file};
    if (!t->name) return oq_fail(rw->env, OQ_E_NOMEM, "%s: no memory", name);
    job->out[job->n_out++] = t;
    rw->bytes += bytes;
    *out = t;
    return OQ_OK;
}

/* What a plain tensor becomes; NULL: it stays as it is. Blocks of GGUF that are no layer are numbers elsewhere, and
 * GGUF's readers take vectors in F32 alone. */
static const oq_dtype *type_of_copy(const oq_rewrite *rw, const oq_ckpt_tensor *t, const oq_dtype *as)
{
    enum { SMALL = 1024 };
    const bool small = rw->container->small_f32 && (t->n_dims < 2 || t->elems <= SMALL);
    if (!as && t->format && rw->container != &oq_container_gguf) as = &oq_dtype_bf16;
    if (!as && small && t->dtype && t->dtype->floating && t->dtype->bytes < 4) as = &oq_dtype_f32;
    return as == t->dtype ? NULL : as;
}

oq_status oq_rewrite_copy(oq_rewrite *rw, const char *name, const oq_ckpt_tensor *tensor, const oq_dtype *as)
{
    oq_rewrite_job *job = NULL;
    oq_write_tensor *t = NULL;
    as = type_of_copy(rw, tensor, as);
    size_t bytes = tensor->bytes;
    if (as && !oq_size_mul((size_t)tensor->elems, as->bytes, &bytes))
        return oq_fail(rw->env, OQ_E_FORMAT, "tensor '%s' of %lld values does not fit in memory",
                       tensor->name, (long long)tensor->elems);
    OQ_TRY(new_job(rw, name, &job));
    job->plain = tensor;
    job->as = as;
    job->n = 1;
    job->k = tensor->elems;
    OQ_TRY(add_tensor(rw, job, name, "", as ? as->name : tensor->type_name, bytes, tensor->file, &t));
    t->n_dims = tensor->n_dims;
    memcpy(t->dim, tensor->dim, sizeof tensor->dim);
    return OQ_OK;
}

static int file_of(const oq_inspect_layer *layer, const oq_ckpt_tensor *plain)
{
    return plain ? plain->file : layer->source.plane[OQ_PLANE_DATA].tensor->file;
}

oq_status oq_rewrite_decode(oq_rewrite *rw, const char *name, const oq_inspect_layer *layer,
                            const oq_dtype *as)
{
    oq_rewrite_job *job = NULL;
    oq_write_tensor *t = NULL;
    size_t bytes = 0;
    if (!oq_size_mul((size_t)layer->n, (size_t)layer->k, &bytes) || !oq_size_mul(bytes, as->bytes, &bytes))
        return oq_fail(rw->env, OQ_E_FORMAT, "layer '%s' of [%lld, %lld] does not fit in memory", layer->name,
                       (long long)layer->n, (long long)layer->k);
    OQ_TRY(new_job(rw, name, &job));
    job->layer = layer;
    job->n = layer->n;
    job->k = layer->k;
    job->as = as;
    OQ_TRY(add_tensor(rw, job, name, ".weight", as->name, bytes, file_of(layer, NULL), &t));
    t->n_dims = 2;
    t->dim[0] = layer->n;
    t->dim[1] = layer->k;
    return OQ_OK;
}

oq_status oq_rewrite_encode(oq_rewrite *rw, const oq_layout *layout, const oq_write_layer *to,
                            const oq_inspect_layer *layer, const oq_ckpt_tensor *plain)
{
    oq_rewrite_job *job = NULL;
    OQ_TRY(new_job(rw, to->name, &job));
    job->layer = layer;
    job->plain = plain;
    job->n = to->n;
    job->k = to->k;
    job->to = *to;
    const int n = oq_layout_spell(layout, to, job->spelled);
    for (int i = 0; i < n; i++) {
        const oq_spelled *s = &job->spelled[i];
        oq_write_tensor *t = NULL;
        OQ_TRY(add_tensor(rw, job, to->name, s->suffix, s->type, s->bytes, file_of(layer, plain), &t));
        t->n_dims = s->n_dims;
        for (int d = 0; d < s->n_dims; d++) t->dim[d] = s->dim[d];
    }
    return OQ_OK;
}

oq_status oq_rewrite_bias(oq_rewrite *rw, const oq_inspect_layer *layer, const oq_dtype *as)
{
    oq_ckpt_tensor *t = NULL;
    float *values = NULL;
    const oq_ckpt_tensor *stored = layer->source.bias.tensor;
    const size_t bytes = (size_t)layer->n * sizeof *values;
    OQ_TRY(oq_arena_new(rw->arena, 1, sizeof *t, layer->name, &t));
    OQ_TRY(oq_arena_new(rw->arena, (size_t)layer->n, sizeof *values, layer->name, &values));
    OQ_TRY(oq_rewrite_bias_values(rw->env, layer, values));
    *t = (oq_ckpt_tensor){.name = oq_arena_printf(rw->arena, "%s.bias", layer->name),
                          .dtype = &oq_dtype_f32,
                          .type_name = oq_dtype_f32.name,
                          .n_dims = 1,
                          .dim = {layer->n},
                          .elems = layer->n,
                          .data = (const uint8_t *)values,
                          .bytes = bytes,
                          .file = stored->file};
    if (!t->name) return oq_fail(rw->env, OQ_E_NOMEM, "%s: no memory", layer->name);
    return oq_rewrite_copy(rw, t->name, t, as);
}

/* Bytes of one row of a job's first tensor. */
static size_t row_bytes(const oq_write_tensor *t)
{
    return t->n_dims && t->dim[0] ? t->bytes / (size_t)t->dim[0] : 0;
}

oq_status oq_rewrite_also(oq_rewrite *rw, const oq_inspect_layer *layer, const oq_ckpt_tensor *plain)
{
    oq_rewrite_job *job = &rw->jobs[rw->n_jobs - 1];
    oq_write_tensor *t = job->out[0];
    const int64_t rows = layer ? layer->n : plain->n_dims ? plain->dim[0] : 0;
    const int64_t cols = layer ? layer->k : rows ? plain->elems / rows : 0;
    const int64_t own = job->to.scheme.weight ? job->k : t->dim[0] ? job->n * job->k / t->dim[0] : 0;
    if (job->n_more == OQ_REWRITE_MORE || rows == 0 || cols != own ||
        (plain && !plain->dtype && !plain->format))
        return oq_fail(rw->env, OQ_E_FORMAT, "'%s' does not fit behind what comes before it in '%s'",
                       layer ? layer->name : plain->name, job->name);
    job->more[job->n_more++] = (oq_rewrite_source){.plain = plain, .layer = layer, .n = rows};
    if (job->to.scheme.weight) return OQ_OK;
    if (!job->as) job->as = job->plain->dtype;
    const size_t more = row_bytes(t) * (size_t)rows;
    t->dim[0] += rows;
    t->bytes += more;
    rw->bytes += more;
    job->n = t->dim[0];
    job->k = cols;
    return OQ_OK;
}

void oq_rewrite_swap_halves(oq_rewrite *rw)
{
    oq_rewrite_job *job = &rw->jobs[rw->n_jobs - 1];
    const int64_t rows = job->to.scheme.weight ? job->n : job->out[0]->n_dims ? job->out[0]->dim[0] : 1;
    job->swap_halves = true;
    if (job->to.scheme.weight) return;
    if (!job->as) job->as = job->plain->dtype;
    job->k = job->n * job->k / (rows ? rows : 1);
    job->n = rows;
}

double oq_rewrite_snr_db(const oq_rewrite_job *job)
{
    return job->noise > 0 ? 10.0 * log10(job->signal / job->noise) : INFINITY;
}
