/* locate.c -- a dialect's planes of one part, and what no dialect may let pass: scales that are all zero beside codes that
 * are not all alike. Such a layer would compute nothing, in silence. */
#include "quant/dialect.h"

static bool all_alike(const oq_ckpt_tensor *t)
{
    for (size_t i = 1; i < t->bytes; i++)
        if (t->data[i] != t->data[0]) return false;
    return true;
}

/* Zero bytes are a zero of every float, and the smallest of all powers of two; where scales are codes themselves, a code. */
static oq_status check_scales(oq_env *env, const oq_part_source *part, oq_plane plane)
{
    const oq_plane_source *scale = &part->plane[plane];
    const oq_ckpt_tensor *t = scale->tensor, *codes = part->plane[OQ_PLANE_DATA].tensor;
    const bool coded = t && t->dtype == &oq_dtype_u8 && scale->make;
    if (!t || !codes || t == codes || coded || !t->bytes || !t->data || !codes->data) return OQ_OK;
    if (t->data[0] != 0 || !all_alike(t) || all_alike(codes)) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "scale '%s' is zero in all of its %lld values, beside codes that are not", t->name,
                   (long long)t->elems);
}

oq_status oq_dialect_locate(oq_env *env, const oq_dialect *dialect, const oq_declared *declared,
                            const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k, oq_part_source *out,
                            bool *found)
{
    OQ_TRY(dialect->locate(env, declared, ckpt, name, n, k, out, found));
    if (!*found) return OQ_OK;
    OQ_TRY(check_scales(env, out, OQ_PLANE_SCALE));
    return check_scales(env, out, OQ_PLANE_GLOBAL);
}
