/* quanto_bits.c -- finds and checks optimum-quanto's groups of four and two bits, and puts their codes into rows: value = code *
 * scale - shift, each step in the type of the scales. */
#include "quant/quanto_bits.h"

#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include "base/size.h"
#include "format/format_int.h"

#include <string.h>

typedef struct layer {
    oq_env *env;
    const char *name;
    int64_t n, k, bits, group, groups; /* groups of the whole matrix */
    const oq_ckpt_tensor *codes, *scale, *shift;
} layer;

/* ---- planes ------------------------------------------------------------------------------------------------ */

/* arg[0] bits, arg[1] columns of a group, arg[2] groups that a run of the tensor's rows begins with */
static void make_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t bits = self->arg[0], group = self->arg[1], step = self->arg[2],
                  row_bytes = (k * bits + 7) / 8;
    memset(dst, 0, (size_t)(n * row_bytes));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            const int64_t g = (r * k + c) / group;
            const unsigned byte = self->tensor->data[g % step * group + c % group];
            oq_code_put((uint8_t *)dst + r * row_bytes, c, (int)bits,
                        byte >> g / step * bits & ((1u << bits) - 1u));
        }
}

/* arg[0] columns of a group, arg[1] those of the format's, arg[2] with the other sign */
static void make_numbers(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *t = self->tensor;
    const int64_t groups = oq_ceil_div(k, self->arg[1]), stored = k / self->arg[0];
    const size_t each = t->dtype->bytes;
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++) {
            uint8_t *const to = (uint8_t *)dst + (size_t)(r * groups + j) * each;
            memcpy(to, t->data + (size_t)(r * stored + j * self->arg[1] / self->arg[0]) * each, each);
            if (self->arg[2]) to[each - 1] ^= 0x80; /* little-endian: the sign */
        }
}

/* ---- checks ------------------------------------------------------------------------------------------------ */

static oq_status check_numbers(const layer *l, const oq_ckpt_tensor *t, const char *suffix, bool scale)
{
    if (!t)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s'", l->name, suffix,
                       l->codes->name);
    if (t->n_dims != 2 || t->dim[1] != 1 || t->dim[0] != l->groups)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values in %d dimensions, its layer needs [%lld, 1]", t->name,
                       (long long)t->elems, t->n_dims, (long long)l->groups);
    OQ_TRY(oq_group_scale_values(l->env, t));
    return scale ? oq_scale_not_below_zero(l->env, t, "quanto") : OQ_OK;
}

/* Rows of the tensor hold 8 / bits groups each, the last of them perhaps fewer. */
static bool holds(int64_t rows, int64_t groups, int64_t bits)
{
    return rows == oq_ceil_div(groups, 8 / bits);
}

static oq_status check_codes(layer *l, const char *says)
{
    const oq_ckpt_tensor *t = l->codes;
    const int64_t columns = t->n_dims == 2 ? t->dim[1] : 0;
    const bool cut = t->dtype == &oq_dtype_u8 && columns >= 32 && l->k % columns == 0 && columns % 32 == 0;
    l->group = columns;
    l->groups = cut ? l->n * (l->k / columns) : 0;
    l->bits = cut && holds(t->dim[0], l->groups, 4) ? 4 : 2;
    if (cut && !says && holds(t->dim[0], l->groups, 4) && holds(t->dim[0], l->groups, 2))
        return oq_fail(
            l->env, OQ_E_FORMAT,
            "tensor '%s' may hold codes of 4 or of 2 bits: one row of bytes for %lld groups, and no "
            "metadata says which",
            t->name, (long long)l->groups);
    if (cut && says && holds(t->dim[0], l->groups, 2) && strcmp(says, "int2") == 0) l->bits = 2;
    if (!cut || !holds(t->dim[0], l->groups, l->bits))
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values of %s in %d dimensions, which are no [%lld, %lld] codes "
                       "of 4 or 2 bits "
                       "in groups of 32, 64, 96 or 128",
                       t->name, (long long)t->elems, t->type_name, t->n_dims, (long long)l->n,
                       (long long)l->k);
    if (!says || strcmp(says, l->bits == 4 ? "int4" : "int2") == 0) return OQ_OK;
    return oq_fail(l->env, OQ_E_MISMATCH,
                   "tensor '%s' has codes of %lld bits, but the metadata says weights_dtype '%s'", t->name,
                   (long long)l->bits, says);
}

/* ---- the layer --------------------------------------------------------------------------------------------- */

oq_status oq_quanto_bits_locate(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *says,
                                int64_t n, int64_t k, oq_part_source *out)
{
    layer l = {.env = env, .name = name, .n = n, .k = k};
    l.codes = oq_scaled_find(ckpt, name, OQ_QUANTO_BITS_CODES);
    l.scale = oq_scaled_find(ckpt, name, "weight._scale");
    l.shift = oq_scaled_find(ckpt, name, "weight._shift");
    OQ_TRY(check_codes(&l, says));
    OQ_TRY(check_numbers(&l, l.scale, "weight._scale", true));
    OQ_TRY(check_numbers(&l, l.shift, "weight._shift", false));
    if (l.scale->dtype != l.shift->dtype)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %s, but '%s' is %s; they are of one type",
                       l.scale->name, l.scale->type_name, l.shift->name, l.shift->type_name);
    const int64_t columns = l.group % 128 == 0 ? 128 : l.group % 96 == 0 ? 96 : l.group % 64 == 0 ? 64 : 32;
    *out = (oq_part_source){.format =
                                oq_format_affine(OQ_AFFINE_SUM, (int)l.bits, (int)columns, l.scale->dtype)};
    out->plane[OQ_PLANE_DATA] =
        (oq_plane_source){.tensor = l.codes, .make = make_codes, .arg = {l.bits, l.group, l.codes->dim[0]}};
    out->plane[OQ_PLANE_SCALE] =
        (oq_plane_source){.tensor = l.scale, .make = make_numbers, .arg = {l.group, columns}};
    out->plane[OQ_PLANE_ZERO] =
        (oq_plane_source){.tensor = l.shift, .make = make_numbers, .arg = {l.group, columns, true}};
    return OQ_OK;
}

/* Groups times columns are all codes; how many rows they make, nothing but the bias says, where there is one. */
bool oq_quanto_bits_shape(const oq_ckpt *ckpt, const char *name, const oq_ckpt_tensor *t, int64_t *n,
                          int64_t *k)
{
    const oq_ckpt_tensor *scale = oq_scaled_find(ckpt, name, "weight._scale"),
                         *bias = oq_scaled_find(ckpt, name, "bias");
    if (!scale || scale->n_dims != 2 || t->n_dims != 2 || t->dim[1] > INT32_MAX || scale->dim[0] > INT32_MAX)
        return false;
    *n = bias && bias->n_dims == 1 && bias->dim[0] > 0 && scale->dim[0] % bias->dim[0] == 0 ? bias->dim[0]
                                                                                            : scale->dim[0];
    *k = scale->dim[0] / (*n ? *n : 1) * t->dim[1];
    return *n > 0 && *k > 0;
}
