/* builder.c -- declare: each name and shape once, in the order of the network. */
#include "base/size.h"
#include "nn/nn.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static oq_status no_memory(oq_builder *b, const char *name)
{
    return oq_fail(b->env, OQ_E_NOMEM, "declaring '%s': no memory", name);
}

oq_status oq_scope_enter(oq_builder *b, oq_scope *saved, const char *fmt, ...)
{
    char word[128];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(word, sizeof word, fmt, args);
    va_end(args);
    assert(n >= 0 && (size_t)n < sizeof word);
    (void)n;
    char *scope = oq_arena_printf(b->arena, "%s%s.", b->scope, word);
    if (!scope) return no_memory(b, word);
    *saved = b->scope;
    b->scope = scope;
    return OQ_OK;
}

void oq_scope_leave(oq_builder *b, oq_scope saved)
{
    b->scope = saved;
}

static oq_status full_name(oq_builder *b, const char *name, const char **out)
{
    *out = oq_arena_printf(b->arena, "%s%s", b->scope, name);
    return *out ? OQ_OK : no_memory(b, name);
}

static oq_status push(oq_builder *b, oq_item item)
{
    if (b->n_items == b->capacity) {
        const size_t capacity = b->capacity ? b->capacity * 2 : 256;
        oq_item *items = NULL;
        OQ_TRY(oq_arena_new(b->arena, capacity, sizeof *items, "declared layers", &items));
        if (b->n_items) memcpy(items, b->items, b->n_items * sizeof *items);
        b->items = items;
        b->capacity = capacity;
    }
    b->items[b->n_items] = item;
    b->items[b->n_items++].unused = b->unused;
    return OQ_OK;
}

oq_status oq_declare_linear(oq_builder *b, oq_linear *l, const char *name, int64_t n, int64_t k,
                            unsigned flags, const char *keep)
{
    const oq_part part = {.name = name, .n = n};
    return oq_declare_fused(b, l, name, k, flags, &part, 1, keep);
}

oq_status oq_declare_fused(oq_builder *b, oq_linear *l, const char *name, int64_t k, unsigned flags,
                           const oq_part *parts, int n_parts, const char *keep)
{
    oq_part *own = NULL;
    OQ_TRY(oq_arena_new(b->arena, (size_t)n_parts, sizeof *own, name, &own));
    *l = (oq_linear){.n_parts = n_parts,
                     .parts = own,
                     .has_bias = (flags & OQ_BIAS) != 0,
                     .keep = keep,
                     .wants = flags >> 8};
    l->spec.k = k;
    for (int i = 0; i < n_parts; i++) {
        OQ_TRY(full_name(b, parts[i].name, &own[i].name));
        own[i].n = parts[i].n;
        l->spec.n += parts[i].n;
    }
    OQ_TRY(full_name(b, name, &l->name));
    return push(b, (oq_item){.kind = OQ_ITEM_LINEAR, .u.linear = l});
}

oq_status oq_declare_columns(oq_builder *b, oq_linear *l, const oq_column_part *columns, int n_columns)
{
    oq_column_part *own = NULL;
    int64_t sum = 0;
    OQ_TRY(oq_arena_new(b->arena, (size_t)n_columns, sizeof *own, l->name, &own));
    for (int i = 0; i < n_columns; sum += columns[i++].k) {
        OQ_TRY(full_name(b, columns[i].name, &own[i].name));
        own[i].k = columns[i].k;
    }
    if (sum != l->spec.k)
        return oq_fail(b->env, OQ_E_ARG, "layer '%s': columns of %lld in all do not fit its %lld", l->name,
                       (long long)sum, (long long)l->spec.k);
    l->columns = own;
    l->n_columns = n_columns;
    return OQ_OK;
}

oq_status oq_declare_vector(oq_builder *b, oq_vector *v, const char *name, int64_t n)
{
    *v = (oq_vector){.n = n};
    OQ_TRY(full_name(b, name, &v->name));
    return push(b, (oq_item){.kind = OQ_ITEM_VECTOR, .u.vector = v});
}

oq_status oq_declare_table(oq_builder *b, oq_table *t, const char *name, int64_t rows, int64_t cols)
{
    *t = (oq_table){.rows = rows, .cols = cols};
    OQ_TRY(full_name(b, name, &t->name));
    return push(b, (oq_item){.kind = OQ_ITEM_TABLE, .u.table = t});
}

oq_status oq_declare_conv2d(oq_builder *b, oq_conv2d *c, const char *name, int64_t c_out, int64_t c_in,
                            int kernel)
{
    *c = (oq_conv2d){.has_bias = true, .spec = oq_conv2d_same(c_out, c_in, kernel)};
    OQ_TRY(full_name(b, name, &c->name));
    return push(b, (oq_item){.kind = OQ_ITEM_CONV2D, .u.conv2d = c});
}

oq_status oq_declare_conv3d(oq_builder *b, oq_conv2d *c, const char *name, int64_t c_out, int64_t c_in,
                            int kt, int kernel)
{
    OQ_TRY(oq_declare_conv2d(b, c, name, c_out, c_in, kernel));
    c->spec.kt = kt;
    c->spec.stride_t = 1;
    c->spec.pad_front = kt - 1;
    return OQ_OK;
}

oq_status oq_declare_attention(oq_builder *b, oq_attention *a, const char *name, oq_attention_spec spec)
{
    *a = (oq_attention){.spec = spec};
    OQ_TRY(full_name(b, name, &a->name));
    return push(b, (oq_item){.kind = OQ_ITEM_ATTENTION, .u.attention = a});
}

const char *oq_item_name(const oq_item *item)
{
    switch (item->kind) {
    case OQ_ITEM_LINEAR:
        return item->u.linear->name;
    case OQ_ITEM_VECTOR:
        return item->u.vector->name;
    case OQ_ITEM_TABLE:
        return item->u.table->name;
    case OQ_ITEM_CONV2D:
        return item->u.conv2d->name;
    case OQ_ITEM_ATTENTION:
        break;
    }
    return item->u.attention->name;
}
