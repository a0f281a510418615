/* png_guard.h -- libpng under the house's rules: memory from env, errors as a status and a sentence.
 * libpng leaves by longjmp. All state that a step changes lives in the struct of its caller, never in locals
 * of the function that calls setjmp, so nothing is lost or stale after the jump. Only png_*.c include this.
 */
#ifndef OQ_MEDIA_PNG_GUARD_H
#define OQ_MEDIA_PNG_GUARD_H

#include "base/env.h"

#include <png.h>

typedef struct oq_png_guard {
    oq_env *env;
    const char *name;  /* of the file, for errors */
    oq_status status;  /* set by a step that knows better than libpng's message */
    bool no_memory;    /* an allocation failed */
    char message[128]; /* libpng's */
} oq_png_guard;

/* Callbacks for png_create_*_struct_2; error_ptr and mem_ptr are the guard. */
void oq_png_on_error(png_structp png, png_const_charp message);
void oq_png_on_warning(png_structp png, png_const_charp message);
png_voidp oq_png_allocate(png_structp png, png_alloc_size_t bytes);
void oq_png_release(png_structp png, png_voidp ptr);

/* Runs `step(user)`; false if libpng jumped out of it. */
bool oq_png_guarded(png_structp png, void (*step)(void *user), void *user);
/* The status and sentence of a jump; `what` is "is not a readable PNG" or the like. */
oq_status oq_png_failure(const oq_png_guard *guard, const char *what);

#endif
