/* arena.c -- blocks of at least 64 KiB, bump-allocated, freed together. */
#include "base/arena.h"

#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct oq_arena_block {
    oq_arena_block *previous;
    size_t used, capacity; /* of the bytes that follow this header */
};

#define HEADER_BYTES oq_align_up(sizeof(oq_arena_block), 64)
#define BLOCK_BYTES  ((size_t)64 * 1024)

void oq_arena_init(oq_arena *arena, oq_env *env)
{
    *arena = (oq_arena){.env = env};
}

void oq_arena_deinit(oq_arena *arena)
{
    while (arena->last) {
        oq_arena_block *block = arena->last;
        arena->last = block->previous;
        oq_free(arena->env, block);
    }
    arena->bytes = 0;
}

static oq_arena_block *add_block(oq_arena *arena, size_t bytes)
{
    size_t total;
    if (!oq_size_add(bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES, HEADER_BYTES, &total)) return NULL;
    oq_arena_block *block = oq_alloc_raw(arena->env, total);
    if (!block) return NULL;
    *block = (oq_arena_block){.previous = arena->last, .capacity = total - HEADER_BYTES};
    arena->last = block;
    return block;
}

void *oq_arena_alloc(oq_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - 64) return NULL;
    bytes = oq_align_up(bytes ? bytes : 1, 16);
    oq_arena_block *block = arena->last;
    if (!block || block->capacity - block->used < bytes) {
        block = add_block(arena, bytes);
        if (!block) return NULL;
    }
    void *p = (char *)block + HEADER_BYTES + block->used;
    block->used += bytes;
    arena->bytes += bytes;
    return memset(p, 0, bytes);
}

oq_status oq_arena_new(oq_arena *arena, size_t count, size_t size, const char *what, void *out_pointer)
{
    size_t bytes;
    if (!oq_size_mul(count, size, &bytes))
        return oq_fail(arena->env, OQ_E_NOMEM, "%s: %zu times %zu bytes do not fit in memory", what, count,
                       size);
    void *p = oq_arena_alloc(arena, bytes);
    if (!p) return oq_fail(arena->env, OQ_E_NOMEM, "%s: no memory for %zu bytes", what, bytes);
    memcpy(out_pointer, &p, sizeof p);
    return OQ_OK;
}

char *oq_arena_strndup(oq_arena *arena, const char *text, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *copy = oq_arena_alloc(arena, n + 1);
    if (copy && n) memcpy(copy, text, n);
    return copy;
}

char *oq_arena_strdup(oq_arena *arena, const char *text)
{
    return oq_arena_strndup(arena, text, strlen(text));
}

char *oq_arena_printf(oq_arena *arena, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    char *text = n < 0 ? NULL : oq_arena_alloc(arena, (size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}
