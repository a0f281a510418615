/* packed_shape.c -- the shape of a layer of packed integers out of the tensor of its codes, for reports. */
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include <stdio.h>
#include <string.h>

static bool has_ending(const char *name, const char *ending, size_t *length)
{
    const size_t n = strlen(name), m = strlen(ending);
    if (n <= m + 1 || name[n - m - 1] != '.' || strcmp(name + n - m, ending) != 0) return false;
    *length = n - m - 1;
    return true;
}

/* weight_shape tells k where codes do not fill their last word. */
static int64_t rows_k(const oq_ckpt *ckpt, const oq_ckpt_tensor *t, size_t length, int64_t bits)
{
    char name[1024];
    int64_t shape[2];
    snprintf(name, sizeof name, "%.*s", (int)length, t->name);
    const oq_ckpt_tensor *told = length < sizeof name ? oq_scaled_find(ckpt, name, "weight_shape") : NULL;
    if (!told || !told->data || told->bytes != sizeof shape || told->dtype != &oq_dtype_i64)
        return t->dim[1] * 32 / bits;
    memcpy(shape, told->data, sizeof shape);
    return shape[1];
}

bool oq_packed_layer_of(const oq_packed_layout *layout, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                        size_t *name_length, int64_t *n, int64_t *k)
{
    const int64_t bits = layout->bits < 1 ? 4 : layout->bits;
    if (t->n_dims != 2 || t->elems <= 0 || t->dim[0] > INT32_MAX || t->dim[1] > INT32_MAX) return false;
    if (!has_ending(t->name, oq_packed_codes(layout->packing), name_length)) return false;
    switch (layout->packing) {
    case OQ_PACK_GPTQ:
    case OQ_PACK_PLANES:
        *n = t->dim[1], *k = t->dim[0] * 32 / bits;
        break;
    case OQ_PACK_AWQ:
    case OQ_PACK_AWQ_PLAIN:
        *n = t->dim[1] * 8, *k = t->dim[0];
        break;
    case OQ_PACK_ROWS:
        *n = t->dim[0], *k = rows_k(ckpt, t, *name_length, bits);
        break;
    }
    return *n > 0 && *k > 0;
}
