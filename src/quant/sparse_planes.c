/* sparse_planes.c -- finds and checks the numbers of sparse weights and the bits that say where they stand, and puts them there. */
#include "quant/sparse_planes.h"

#include "base/size.h"
#include "quant/scaled_planes.h"

#include <stdio.h>
#include <string.h>

typedef struct layer {
    oq_env *env;
    const char *name;
    int64_t n, k;
    const oq_ckpt_tensor *numbers, *bits, *offsets, *shape;
} layer;

static bool bit_at(const oq_ckpt_tensor *bits, int64_t row, int64_t column)
{
    return bits->data[row * bits->dim[1] + column / 8] >> column % 8 & 1;
}

/* `of`: the bits. */
static void make_dense(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *t = self->tensor, *bits = self->of;
    const size_t each = t->dtype->bytes;
    const uint8_t *from = t->data;
    memset(dst, 0, (size_t)(n * k) * each);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            if (!bit_at(bits, r, c)) continue;
            memcpy((char *)dst + (size_t)(r * k + c) * each, from, each);
            from += each;
        }
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static int64_t i64_at(const oq_ckpt_tensor *t, int64_t i)
{
    int64_t x;
    memcpy(&x, t->data + i * 8, sizeof x);
    return x;
}

static oq_status need(const layer *l, const oq_ckpt_tensor *t, const char *suffix)
{
    return t ? OQ_OK
             : oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.%s' is missing beside '%s.compressed'", l->name,
                       suffix, l->name);
}

static oq_status check_shape(const layer *l)
{
    const oq_ckpt_tensor *t = l->shape;
    if (t->dtype != &oq_dtype_i64 || t->elems != 2)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it needs 2 of I64", t->name,
                       (long long)t->elems, t->type_name);
    if (!t->data || (i64_at(t, 0) == l->n && i64_at(t, 1) == l->k)) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' says [%lld, %lld], its layer needs [%lld, %lld]",
                   t->name, (long long)i64_at(t, 0), (long long)i64_at(t, 1), (long long)l->n,
                   (long long)l->k);
}

static oq_status check_types(const layer *l)
{
    const oq_ckpt_tensor *t = l->numbers, *b = l->bits, *o = l->offsets;
    if (!oq_format_plain(t->dtype))
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' holds sparse weights of %s; those of F32, BF16 and F16 are read", t->name,
                       t->type_name);
    if (b->dtype != &oq_dtype_u8 || b->n_dims != 2 || b->dim[0] != l->n || b->dim[1] != oq_ceil_div(l->k, 8))
        return oq_fail(
            l->env, OQ_E_FORMAT,
            "tensor '%s' has %lld values of %s; a sparse weight of [%lld, %lld] needs [%lld, %lld] of U8",
            b->name, (long long)b->elems, b->type_name, (long long)l->n, (long long)l->k, (long long)l->n,
            (long long)oq_ceil_div(l->k, 8));
    if (o && (o->dtype != &oq_dtype_i64 || o->elems != l->n))
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld elements of %s, it needs %lld of I64",
                       o->name, (long long)o->elems, o->type_name, (long long)l->n);
    if (o ? t->n_dims == 1 : t->n_dims == 2 && t->dim[0] == l->n && l->k % 4 == 0 && t->dim[1] == l->k / 2)
        return OQ_OK;
    return oq_fail(
        l->env, OQ_E_FORMAT,
        "tensor '%s' has %lld values in %d dimensions, which are no %s of a sparse weight of [%lld, %lld]",
        t->name, (long long)t->elems, t->n_dims, o ? "list" : "half", (long long)l->n, (long long)l->k);
}

/* Every number has its place: rows begin where they are said to, and of four places two are taken where none are said. */
static oq_status check_bits(const layer *l)
{
    int64_t at = 0;
    if (!l->bits->data || (l->offsets && !l->offsets->data)) return OQ_OK;
    for (int64_t r = 0; r < l->n; r++) {
        if (l->offsets && i64_at(l->offsets, r) != at)
            return oq_fail(l->env, OQ_E_FORMAT,
                           "tensor '%s' has row %lld begin at %lld; by '%s' it begins at %lld",
                           l->offsets->name, (long long)r, (long long)i64_at(l->offsets, r), l->bits->name,
                           (long long)at);
        for (int64_t c = 0; c < l->k; c++) {
            at += bit_at(l->bits, r, c);
            if (!l->offsets && c % 4 == 3 && at != (r * l->k + c + 1) / 2)
                return oq_fail(
                    l->env, OQ_E_FORMAT,
                    "tensor '%s' does not take two of four places in row %lld, columns %lld to %lld",
                    l->bits->name, (long long)r, (long long)(c - 3), (long long)c);
        }
        for (int64_t c = l->k; c < 8 * l->bits->dim[1]; c++)
            if (bit_at(l->bits, r, c))
                return oq_fail(l->env, OQ_E_FORMAT,
                               "tensor '%s' takes a place behind column %lld in row %lld", l->bits->name,
                               (long long)(l->k - 1), (long long)r);
    }
    if (at == l->numbers->elems) return OQ_OK;
    return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values for %lld places in '%s'",
                   l->numbers->name, (long long)l->numbers->elems, (long long)at, l->bits->name);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

oq_status oq_sparse_locate(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                           oq_part_source *out, bool *found)
{
    layer l = {.env = env, .name = name, .n = n, .k = k};
    *found = false;
    l.numbers = oq_scaled_find(ckpt, name, "compressed");
    l.bits = oq_scaled_find(ckpt, name, "bitmask");
    l.offsets = oq_scaled_find(ckpt, name, "row_offsets");
    l.shape = oq_scaled_find(ckpt, name, "shape");
    if (!l.numbers) return OQ_OK;
    const oq_ckpt_tensor *other = oq_scaled_stranger(ckpt, name, "compressed,bitmask,row_offsets,shape,bias");
    OQ_TRY(need(&l, l.bits, "bitmask"));
    OQ_TRY(need(&l, l.shape, "shape"));
    if (other)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "tensor '%s' stands beside the sparse weight '%s', in a way that is not in this build yet",
            other->name, l.numbers->name);
    OQ_TRY(check_shape(&l));
    OQ_TRY(check_types(&l));
    OQ_TRY(check_bits(&l));
    *out = (oq_part_source){.format = oq_format_plain(l.numbers->dtype)};
    out->plane[OQ_PLANE_DATA] = (oq_plane_source){.tensor = l.numbers, .make = make_dense, .of = l.bits};
    out->beside[0] = l.bits, out->beside[1] = l.shape, out->beside[2] = l.offsets;
    *found = true;
    return OQ_OK;
}

bool oq_sparse_layer_of(const oq_ckpt *ckpt, const oq_ckpt_tensor *t, size_t *name_length, int64_t *n,
                        int64_t *k)
{
    static const char ending[] = ".compressed";
    char name[1024];
    const size_t length = strlen(t->name), m = sizeof ending - 1;
    if (length <= m || length - m >= sizeof name || strcmp(t->name + length - m, ending) != 0) return false;
    snprintf(name, sizeof name, "%.*s", (int)(length - m), t->name);
    *name_length = length - m;
    const oq_ckpt_tensor *shape = oq_scaled_find(ckpt, name, "shape");
    if (!shape || shape->dtype != &oq_dtype_i64 || shape->elems != 2 || !shape->data) return false;
    *n = i64_at(shape, 0), *k = i64_at(shape, 1);
    return *n > 0 && *k > 0 && *n <= INT32_MAX && *k <= INT32_MAX;
}
