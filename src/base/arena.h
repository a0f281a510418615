/* arena.h -- memory that dies together: a bump allocator over blocks from env. Not for threads to share. */
#ifndef OQ_BASE_ARENA_H
#define OQ_BASE_ARENA_H

#include "base/env.h"

typedef struct oq_arena_block oq_arena_block;

typedef struct oq_arena { /* zero is a valid empty arena once `env` is set */
    oq_env         *env;
    oq_arena_block *last;
    size_t          bytes; /* handed out */
} oq_arena;

void  oq_arena_init(oq_arena *arena, oq_env *env);
void  oq_arena_deinit(oq_arena *arena);                 /* frees everything; the arena is empty again */
void *oq_arena_alloc(oq_arena *arena, size_t bytes);    /* zeroed, aligned to 16; NULL: no memory (no error text) */
/* The same with OQ_E_NOMEM and a sentence. out_pointer is a T **. */
oq_status oq_arena_new(oq_arena *arena, size_t count, size_t size, const char *what, void *out_pointer);
/* Copies; NULL: no memory. `n` bytes need not be terminated; the copy is. */
char *oq_arena_strndup(oq_arena *arena, const char *text, size_t n);
char *oq_arena_strdup(oq_arena *arena, const char *text);
char *oq_arena_printf(oq_arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
