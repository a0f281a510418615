/* dialect_bitsandbytes.c -- 4-bit weights as bitsandbytes writes them: packed codes of the flattened matrix in `weight`
 * (under any element type), `weight.absmax` per block, itself in 8 bits where it is nested, the code table, and a JSON
 * text `weight.quant_state.bitsandbytes__nf4` (or fp4) with shape and offset. Nested scales become numbers at the door, in
 * the producer's own order of rounding, where layers with offsets of their own go into one product. LLM.int8: `weight` int8, `SCB` with each row's largest number, and a
 * `weight_format`. */
#include "format/float4.h"
#include "quant/scaled_planes.h"

#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const oq_method oq_method_bitsandbytes;

enum { NESTED = 256, MAP = 256 };

static const char state_mark[] = ".weight.quant_state.bitsandbytes__";

typedef struct bnb_layer { /* what one quant_state says, and the tensors around it */
    char *name;
    bool nf4;
    int64_t n, k, blocksize, nested_blocksize;
    float offset;
    const oq_ckpt_tensor *codes, *absmax, *table, *nested_absmax, *nested_map;
} bnb_layer;

typedef struct bnb_file {
    bnb_layer *layers;
    size_t n;
} bnb_file;

static const char *find_mark(const oq_ckpt_tensor *t)
{
    return strstr(t->name, state_mark);
}

static bool is_scb(const oq_ckpt_tensor *t)
{
    const size_t n = strlen(t->name), m = strlen(".SCB");
    return n > m && strcmp(t->name + n - m, ".SCB") == 0;
}

/* So that products of two cannot overflow. */
static bool is_dimension(int64_t x)
{
    return x > 0 && x <= INT32_MAX;
}

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    if (named) return named == &oq_method_bitsandbytes;
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++)
        if (find_mark(&ckpt->tensors[i]) || is_scb(&ckpt->tensors[i])) return true;
    return false;
}

/* ---- reading quant_state ------------------------------------------------------------------------------- */

static oq_status read_json(oq_env *env, const oq_ckpt *ckpt, const oq_ckpt_tensor *t, const oq_json *json,
                           bnb_layer *out)
{
    const char *type = oq_json_string(oq_json_get(json, "quant_type"));
    const oq_json *shape = oq_json_get(json, "shape"), *offset = oq_json_get(json, "nested_offset");
    out->n = oq_json_int(oq_json_at(shape, 0), 0);
    out->k = oq_json_int(oq_json_at(shape, 1), 0);
    out->blocksize = oq_json_int(oq_json_get(json, "blocksize"), 0);
    out->nested_blocksize = oq_json_int(oq_json_get(json, "nested_blocksize"), 0);
    out->offset = (float)oq_json_real(offset, 0);
    out->nf4 = type && strcmp(type, "nf4") == 0;
    out->codes = oq_scaled_find(ckpt, out->name, "weight");
    out->absmax = oq_scaled_find(ckpt, out->name, "weight.absmax");
    out->table = oq_scaled_find(ckpt, out->name, "weight.quant_map");
    out->nested_absmax = oq_scaled_find(ckpt, out->name, "weight.nested_absmax");
    out->nested_map = oq_scaled_find(ckpt, out->name, "weight.nested_quant_map");
    if (type && (out->nf4 || strcmp(type, "fp4") == 0) && oq_json_size(shape) == 2 && is_dimension(out->n) &&
        is_dimension(out->k))
        return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' names no quant_type nf4 or fp4 with a shape of two numbers",
                   t->name);
}

static oq_status read_state(oq_env *env, const oq_declare_input *in, const oq_ckpt_tensor *t, bnb_layer *out)
{
    oq_json *json = NULL;
    out->name = oq_arena_strndup(in->arena, t->name, (size_t)(find_mark(t) - t->name));
    if (!out->name) return oq_fail(env, OQ_E_NOMEM, "no memory for '%s'", t->name);
    if (t->dtype != &oq_dtype_u8 || t->bytes == 0 || !t->data)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' must hold JSON text as U8, not %zu bytes of %s",
                       t->name, t->bytes, t->type_name);
    OQ_TRY(oq_json_parse(env, (const char *)t->data, t->bytes, t->name, &json));
    const oq_status st = read_json(env, in->ckpt, t, json, out);
    oq_json_free(json);
    return st;
}

static oq_status read_file(oq_env *env, const oq_declare_input *in, oq_declared *out)
{
    bnb_file *file = NULL;
    size_t n = 0;
    OQ_TRY(oq_declared_read(env, in, out));
    for (size_t i = 0; in->ckpt && i < in->ckpt->n_tensors; i++)
        n += find_mark(&in->ckpt->tensors[i]) != NULL;
    OQ_TRY(oq_arena_new(in->arena, 1, sizeof *file, "quant_state", &file));
    OQ_TRY(oq_arena_new(in->arena, n, sizeof *file->layers, "quant_state", &file->layers));
    for (size_t i = 0; in->ckpt && i < in->ckpt->n_tensors; i++)
        if (find_mark(&in->ckpt->tensors[i]))
            OQ_TRY(read_state(env, in, &in->ckpt->tensors[i], &file->layers[file->n++]));
    out->file = file;
    return OQ_OK;
}

/* ---- planes -------------------------------------------------------------------------------------------- */

/* The first code of a byte is in the high nibble; here in the low one. */
static void swap_nibbles(void *dst, const oq_ckpt_tensor *src, int64_t n, int64_t k)
{
    uint8_t *to = dst;
    for (int64_t i = 0; i < (n * k + 1) / 2; i++) to[i] = (uint8_t)(src->data[i] << 4 | src->data[i] >> 4);
}

static float f32_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x;
    memcpy(&x, t->data + (size_t)i * sizeof x, sizeof x);
    return x;
}

/* Product rounded, then sum: the producer's order. */
static void unnest(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const bnb_layer *l = self->of;
    float *to = dst;
    for (int64_t i = 0; i < oq_ceil_div(n * k, l->blocksize); i++) {
        const float product =
            f32_at(l->nested_map, l->absmax->data[i]) * f32_at(l->nested_absmax, i / NESTED);
        to[i] = product + l->offset;
    }
}

/* The format's plane: offset, map, absmax of runs of scales. */
static void make_global(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const bnb_layer *l = self->of;
    char *to = dst;
    (void)n, (void)k;
    memcpy(to, &l->offset, sizeof l->offset);
    memcpy(to + sizeof l->offset, l->nested_map->data, l->nested_map->bytes);
    memcpy(to + sizeof l->offset + l->nested_map->bytes, l->nested_absmax->data, l->nested_absmax->bytes);
}

/* Nested scales around an offset of their own become numbers. */
static void join(oq_part_source *part)
{
    const bnb_layer *l = part->plane[OQ_PLANE_GLOBAL].of;
    if (!l) return;
    part->format = oq_format_bnb4(l->nf4, l->blocksize, false);
    part->plane[OQ_PLANE_GLOBAL] = (oq_plane_source){0};
    part->plane[OQ_PLANE_SCALE].make = unnest;
    part->plane[OQ_PLANE_SCALE].of = l;
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static oq_status check_tensor(oq_env *env, const bnb_layer *l, const oq_ckpt_tensor *t, const char *suffix,
                              const oq_dtype *dtype, int64_t elems)
{
    if (!t) return oq_fail(env, OQ_E_FORMAT, "tensor '%s.weight.%s' is missing", l->name, suffix);
    if (t->dtype == dtype && t->elems == elems && t->data) {
        for (int64_t i = 0; dtype == &oq_dtype_f32 && i < elems; i++)
            if (!isfinite(f32_at(t, i)))
                return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is not finite at index %lld", t->name,
                               (long long)i);
        return OQ_OK;
    }
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it needs %lld of %s", t->name,
                   (long long)t->elems, t->type_name, (long long)elems, dtype->label);
}

/* Largest magnitudes: none is negative. */
static oq_status check_magnitudes(oq_env *env, const bnb_layer *l, const oq_ckpt_tensor *t,
                                  const char *suffix, int64_t elems)
{
    OQ_TRY(check_tensor(env, l, t, suffix, &oq_dtype_f32, elems));
    for (int64_t i = 0; i < elems; i++)
        if (f32_at(t, i) < 0)
            return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %g at index %lld; a magnitude is not negative",
                           t->name, (double)f32_at(t, i), (long long)i);
    return OQ_OK;
}

/* The absmax in eight bits: their table rises, and the blocks' own magnitudes are not all zero while codes differ. */
static oq_status check_nested(oq_env *env, const bnb_layer *l, int64_t blocks)
{
    const int64_t n = oq_ceil_div(blocks, NESTED);
    bool zero = true, differ = false;
    OQ_TRY(check_tensor(env, l, l->absmax, "absmax", &oq_dtype_u8, blocks));
    OQ_TRY(check_tensor(env, l, l->nested_map, "nested_quant_map", &oq_dtype_f32, MAP));
    OQ_TRY(check_magnitudes(env, l, l->nested_absmax, "nested_absmax", n));
    for (int64_t i = 1; i < MAP; i++)
        if (!(f32_at(l->nested_map, i) > f32_at(l->nested_map, i - 1)))
            return oq_fail(env, OQ_E_FORMAT,
                           "tensor '%s' is no table that rises: %g follows %g at index %lld",
                           l->nested_map->name, (double)f32_at(l->nested_map, i),
                           (double)f32_at(l->nested_map, i - 1), (long long)i);
    for (int64_t i = 0; i < n; i++) zero &= !(f32_at(l->nested_absmax, i) > 0);
    for (int64_t i = 1; i < blocks; i++) differ |= l->absmax->data[i] != l->absmax->data[0];
    if (!zero || !differ) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "scale '%s' is zero in all of its %lld values, beside codes that are not",
                   l->nested_absmax->name, (long long)n);
}

static oq_status check_table(oq_env *env, const bnb_layer *l)
{
    const float *ours = l->nf4 ? oq_nf4_table : oq_fp4_table;
    OQ_TRY(check_tensor(env, l, l->table, "quant_map", &oq_dtype_f32, 16));
    for (int i = 0; i < 16; i++) {
        const float x = f32_at(l->table, i);
        if (x < ours[i] || x > ours[i])
            return oq_fail(env, OQ_E_UNSUPPORTED, "tensor '%s' is a code table of its own (%g at index %d)",
                           l->table->name, (double)x, i);
    }
    return OQ_OK;
}

static oq_status check_layer(oq_env *env, const bnb_layer *l, int64_t n, int64_t k)
{
    const int64_t total = n * k;
    if (l->n != n || l->k != k)
        return oq_fail(env, OQ_E_FORMAT,
                       "layer '%s': quant_state says [%lld, %lld], its layer needs [%lld, %lld]", l->name,
                       (long long)l->n, (long long)l->k, (long long)n, (long long)k);
    if (!oq_format_bnb4(l->nf4, l->blocksize, false))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s' has blocks of %lld weights; powers of two from 32 to 4096 are read",
                       l->name, (long long)l->blocksize);
    if (l->nested_absmax && l->nested_blocksize != NESTED)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s' has nested blocks of %lld scales; those of %d are read", l->name,
                       (long long)l->nested_blocksize, NESTED);
    if (!l->codes || (int64_t)l->codes->bytes != (total + 1) / 2)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s.weight' has %zu bytes, %lld codes of 4 bits need %lld",
                       l->name, l->codes ? l->codes->bytes : 0, (long long)total,
                       (long long)((total + 1) / 2));
    const int64_t blocks = oq_ceil_div(total, l->blocksize);
    OQ_TRY(check_table(env, l));
    return l->nested_absmax ? check_nested(env, l, blocks)
                            : check_magnitudes(env, l, l->absmax, "absmax", blocks);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static const bnb_layer *find_layer(const oq_declared *declared, const char *name)
{
    const bnb_file *file = declared->file;
    for (size_t i = 0; file && i < file->n; i++)
        if (strcmp(file->layers[i].name, name) == 0) return &file->layers[i];
    return NULL;
}

static oq_status check_plain(oq_env *env, const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    if (!t || (t->dtype && t->dtype->floating && t->dtype->bytes > 1)) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %s, but its quant_state is missing", t->name,
                   t->type_name);
}

/* ---- LLM.int8 ------------------------------------------------------------------------------------------ */

static oq_status check_scb(oq_env *env, const oq_ckpt_tensor *scb, const oq_ckpt_tensor *codes, int64_t n,
                           int64_t k)
{
    if (codes->dtype != &oq_dtype_i8 || codes->n_dims != 2 || codes->dim[0] != n || codes->dim[1] != k)
        return oq_fail(env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values of %s, its layer needs [%lld, %lld] of I8", codes->name,
                       (long long)codes->elems, codes->type_name, (long long)n, (long long)k);
    if (scb->dtype != &oq_dtype_f32 || scb->elems != n)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it needs %lld of F32", scb->name,
                       (long long)scb->elems, scb->type_name, (long long)n);
    for (int64_t i = 0; scb->data && i < n; i++)
        if (!isfinite(f32_at(scb, i)) || f32_at(scb, i) < 0)
            return oq_fail(env, OQ_E_FORMAT,
                           "tensor '%s' is %g at index %lld; it must be a row's largest magnitude", scb->name,
                           (double)f32_at(scb, i), (long long)i);
    return OQ_OK;
}

/* Other numbers than 0 (rows) are orders that GPUs had. */
static oq_status check_order(oq_env *env, const oq_ckpt_tensor *order)
{
    if (!order) return OQ_OK;
    if (order->dtype != &oq_dtype_u8 || order->elems != 1)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it must be one of U8",
                       order->name, (long long)order->elems, order->type_name);
    if (!order->data || order->data[0] == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "tensor '%s' is %d: codes in the order of a GPU are not in this build yet; 0, rows, is",
                   order->name, order->data[0]);
}

/* Columns of x with a number beyond the threshold are multiplied as they are; 0: none. The sign of absent ones is that of
 * a threshold that nothing reaches. */
static oq_status locate_int8(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                             int64_t n, int64_t k, const oq_ckpt_tensor *scb, oq_part_source *out)
{
    const oq_ckpt_tensor *codes = oq_scaled_find(ckpt, name, "weight"),
                         *order = oq_scaled_find(ckpt, name, "weight_format");
    const double threshold = oq_json_real(oq_json_get(declared->options, "llm_int8_threshold"), 6.0);
    if (!codes)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is there, '%s.weight' is missing", scb->name, name);
    OQ_TRY(check_scb(env, scb, codes, n, k));
    OQ_TRY(check_order(env, order));
    *out = (oq_part_source){.format = &oq_format_int8_scb,
                            .act = &oq_dtype_i8,
                            .act_scale = OQ_ACT_DYNAMIC_TOKEN,
                            .outlier = threshold > 0 ? (float)threshold : 3e38f,
                            .beside = {order}};
    out->plane[OQ_PLANE_DATA].tensor = codes;
    out->plane[OQ_PLANE_SCALE].tensor = scb;
    return OQ_OK;
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const bnb_layer *l = find_layer(declared, name);
    const oq_ckpt_tensor *scb = l ? NULL : oq_scaled_find(ckpt, name, "SCB");
    *found = false;
    if (scb) {
        OQ_TRY(locate_int8(env, declared, ckpt, name, n, k, scb, out));
        *found = true;
        return OQ_OK;
    }
    if (!l) return check_plain(env, ckpt, name);
    OQ_TRY(check_layer(env, l, n, k));
    *out = (oq_part_source){.format = oq_format_bnb4(l->nf4, l->blocksize, l->nested_absmax != NULL),
                            .act_scale = OQ_ACT_NONE};
    out->plane[OQ_PLANE_DATA] = (oq_plane_source){.tensor = l->codes, .fix = swap_nibbles};
    out->plane[OQ_PLANE_SCALE] = (oq_plane_source){.tensor = l->absmax};
    if (l->nested_absmax)
        out->plane[OQ_PLANE_GLOBAL] =
            (oq_plane_source){.tensor = l->nested_absmax, .make = make_global, .of = l};
    *found = true;
    return OQ_OK;
}

static bool harmless(const oq_ckpt_tensor *t)
{
    static const char *const endings[] = {".weight.quant_map", ".weight.nested_absmax",
                                          ".weight.nested_quant_map"};
    const size_t n = strlen(t->name);
    for (size_t i = 0; i < OQ_COUNT(endings); i++) {
        const size_t m = strlen(endings[i]);
        if (n > m && strcmp(t->name + n - m, endings[i]) == 0) return true;
    }
    return find_mark(t) != NULL;
}

/* The shape stands in the text of quant_state. */
static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    (void)declared, (void)ckpt;
    char text[1024];
    const char *mark = find_mark(t);
    const size_t length = strlen(t->name), m = strlen(".weight");
    if (t->dtype == &oq_dtype_i8 && t->n_dims == 2 && length > m &&
        strcmp(t->name + length - m, ".weight") == 0) {
        *name_length = length - m, *n = t->dim[0], *k = t->dim[1]; /* LLM.int8 */
        return true;
    }
    if (!mark || !t->data) return false;
    *name_length = (size_t)(mark - t->name);
    const size_t bytes = t->bytes < sizeof text - 1 ? t->bytes : sizeof text - 1;
    memcpy(text, t->data, bytes);
    text[bytes] = '\0';
    const char *at = strstr(text, "\"shape\"");
    at = at ? strchr(at, '[') : NULL;
    if (!at) return false;
    char *end = NULL;
    *n = strtoll(at + 1, &end, 10);
    *k = *end == ',' ? strtoll(end + 1, NULL, 10) : 0;
    return is_dimension(*n) && is_dimension(*k);
}

const oq_dialect oq_dialect_bitsandbytes = {
    .name = "bitsandbytes",
    .help = "bitsandbytes' NF4 and FP4 in blocks of 32 to 4096, nested or not, and LLM.int8",
    .method = &oq_method_bitsandbytes,
    .detect = detect,
    .read = read_file,
    .locate = locate,
    .harmless = harmless,
    .layer_of = layer_of,
    .shape_from = "'shape' in the text of its quant_state",
    .join = join,
};
