/* pair_planes.c -- finds and checks codes of four bits of two rows a byte and their scales, and puts the codes into rows. */
#include "quant/pair_planes.h"

#include "base/size.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

typedef struct layer {
    oq_env *env;
    const char *name;
    int64_t n, k, groups;
    const oq_ckpt_tensor *codes, *scale;
} layer;

/* Two's complement plus eight is the unsigned code. */
static void make_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t row_bytes = (k + 1) / 2;
    const uint8_t *const src = self->tensor->data;
    for (int64_t r = 0; r < n; r++) {
        uint8_t *const row = (uint8_t *)dst + r * row_bytes;
        row[row_bytes - 1] = 0;
        for (int64_t c = 0; c < k; c++) {
            const uint8_t code = (uint8_t)((src[r / 2 * k + c] >> (r % 2 * 4) & 15) ^ 8);
            row[c / 2] = (uint8_t)(c % 2 ? row[c / 2] | code << 4 : code);
        }
    }
}

static oq_status check_codes(const layer *l)
{
    const oq_ckpt_tensor *t = l->codes;
    if ((t->dtype == &oq_dtype_u8 || t->dtype == &oq_dtype_i8) && t->n_dims == 2 && l->n % 2 == 0 &&
        t->dim[0] == l->n / 2 && t->dim[1] == l->k)
        return OQ_OK;
    return oq_fail(
        l->env, OQ_E_FORMAT,
        "tensor '%s' has %lld bytes of %s; a weight of [%lld, %lld] in 4 bits needs [%lld, %lld] of "
        "two rows each",
        t->name, (long long)t->bytes, t->type_name, (long long)l->n, (long long)l->k, (long long)(l->n / 2),
        (long long)l->k);
}

/* Columns of a group: what the shape of the scales says must be what the metadata says. */
static oq_status find_groups(layer *l, int64_t told, int64_t *group)
{
    const oq_ckpt_tensor *t = l->scale;
    l->groups = t->n_dims == 2 ? t->dim[1] : 1;
    *group = l->groups > 0 && l->k % l->groups == 0 ? l->k / l->groups : 0;
    if (*group && t->n_dims >= 1 && t->n_dims <= 2 && t->dim[0] == l->n && (!told || told == *group))
        return OQ_OK;
    return oq_fail(
        l->env, OQ_E_FORMAT,
        "scale '%s' has %lld values; a weight of [%lld, %lld]%s needs one for each row and group of "
        "columns",
        t->name, (long long)t->elems, (long long)l->n, (long long)l->k,
        told ? " in the groups of the metadata" : "");
}

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    if (t) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing: layer '%s' is in 4 bits", l->name, suffix,
                   l->name);
}

oq_status oq_pair_locate(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t group, int64_t n,
                         int64_t k, oq_part_source *out)
{
    layer l = {.env = env, .name = name, .n = n, .k = k};
    int64_t columns = 0;
    l.codes = oq_scaled_find(ckpt, name, "weight");
    l.scale = oq_scaled_find(ckpt, name, "weight_scale");
    OQ_TRY(need(&l, l.codes, "weight"));
    OQ_TRY(need(&l, l.scale, "weight_scale"));
    OQ_TRY(check_codes(&l));
    OQ_TRY(find_groups(&l, group, &columns));
    OQ_TRY(oq_group_scale_values(env, l.scale));
    const int64_t of_format = oq_group_of_format(columns, l.groups);
    if (!of_format)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s' has groups of %lld columns; multiples of 16 and whole rows are read", name,
                       (long long)columns);
    const oq_plane_source common = {.arg = {4, columns, of_format}};
    *out = (oq_part_source){.format = oq_format_int(4, (int)of_format, false, l.scale->dtype)};
    out->plane[OQ_PLANE_DATA] = out->plane[OQ_PLANE_SCALE] = common;
    out->plane[OQ_PLANE_DATA].tensor = l.codes;
    out->plane[OQ_PLANE_DATA].make = make_codes;
    out->plane[OQ_PLANE_SCALE].tensor = l.scale;
    out->plane[OQ_PLANE_SCALE].make = oq_group_make_scales;
    return OQ_OK;
}
