/* locate.c -- a dialect's layers, and its planes of one part, and what no dialect may let pass: scales that are all zero beside codes that
 * are not all alike. Such a layer would compute nothing, in silence. */
#include "quant/dialect.h"

#include <float.h>
#include <math.h>
#include <string.h>

static bool all_alike(const oq_ckpt_tensor *t)
{
    for (size_t i = 1; i < t->bytes; i++)
        if (t->data[i] != t->data[0]) return false;
    return true;
}

/* All below the smallest normal number: a machine that flushes such numbers computes with zeros, and none gets more than 1e-30 out of a
 * layer. (One among others is a row that training let die.) */
static bool all_subnormal(const oq_ckpt_tensor *t)
{
    float x = 0.0f;
    if (t->dtype != &oq_dtype_f32 && t->dtype != &oq_dtype_bf16 && t->dtype != &oq_dtype_f64) return false;
    for (int64_t i = 0; i < t->elems; i++) {
        t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
        if (!(fabsf(x) < FLT_MIN)) return false;
    }
    return true;
}

/* Zero bytes are a zero of every float, and the smallest of all powers of two; where scales are codes themselves, a code. */
static oq_status check_scales(oq_env *env, const oq_part_source *part, oq_plane plane)
{
    const oq_plane_source *scale = &part->plane[plane];
    const oq_ckpt_tensor *t = scale->tensor, *codes = part->plane[OQ_PLANE_DATA].tensor;
    const bool coded = t && t->dtype == &oq_dtype_u8 && scale->make;
    if (!t || !codes || t == codes || coded || !t->bytes || !t->data || !codes->data) return OQ_OK;
    if (all_alike(codes)) return OQ_OK;
    if (t->data[0] != 0 || !all_alike(t)) {
        if (!all_subnormal(t)) return OQ_OK;
        return oq_fail(
            env, OQ_E_FORMAT,
            "scale '%s' is subnormal (below %g) in all of its %lld values, beside codes that are not zero",
            t->name, (double)FLT_MIN, (long long)t->elems);
    }
    return oq_fail(env, OQ_E_FORMAT,
                   "scale '%s' is zero in all of its %lld values, beside codes that are not", t->name,
                   (long long)t->elems);
}

enum { RUN = 16 }; /* weights that no block has fewer of under one scale */

/* Each run is one number: nothing is left of the codes. */
static bool is_flat(const oq_block *block, const uint8_t *at)
{
    float x[OQ_BLOCK_ELEMS];
    block->decode(x, at);
    for (int i = 0; i < block->elems; i++)
        if (!(x[i] == x[i / RUN * RUN])) return false;
    return true;
}

/* Blocks that hold their scales, which are all zero: all numbers are zero, or minima alone, and yet blocks differ. Ends with the
 * first block of other numbers, as a rule. */
static oq_status check_blocks(oq_env *env, const oq_part_source *part)
{
    const oq_block *block = part->format->block;
    const oq_ckpt_tensor *t = part->plane[OQ_PLANE_DATA].tensor;
    if (!block || !t || !t->data || part->plane[OQ_PLANE_DATA].make) return OQ_OK;
    const size_t bytes = (size_t)block->bytes, n = t->bytes / bytes;
    bool alike = true;
    for (size_t i = 0; i < n; i++) {
        if (!is_flat(block, t->data + i * bytes)) return OQ_OK;
        alike &= memcmp(t->data, t->data + i * bytes, bytes) == 0;
    }
    if (alike) return OQ_OK;
    return oq_fail(
        env, OQ_E_FORMAT,
        "tensor '%s' (%s): the scales of all its %zu blocks are zero, beside codes that are not alike",
        t->name, t->type_name, n);
}

bool oq_dialect_layer_of(const oq_dialect *dialect, const oq_declared *declared, const oq_ckpt *ckpt,
                         const oq_ckpt_tensor *t, size_t *name_length, int64_t *n, int64_t *k)
{
    static const char ending[] = ".weight";
    const size_t length = strlen(t->name), m = sizeof ending - 1;
    *name_length = 0;
    if (dialect->layer_of) return dialect->layer_of(declared, ckpt, t, name_length, n, k);
    if (t->n_dims != 2 || length <= m || strcmp(t->name + length - m, ending) != 0) return false;
    *name_length = length - m;
    *n = t->dim[0];
    *k = t->dim[1];
    return true;
}

oq_status oq_dialect_locate(oq_env *env, const oq_dialect *dialect, const oq_declared *declared,
                            const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k, oq_part_source *out,
                            bool *found)
{
    OQ_TRY(dialect->locate(env, declared, ckpt, name, n, k, out, found));
    if (!*found) return OQ_OK;
    OQ_TRY(check_blocks(env, out));
    OQ_TRY(check_scales(env, out, OQ_PLANE_SCALE));
    return check_scales(env, out, OQ_PLANE_GLOBAL);
}
