/* png_guard.c -- the only place that calls setjmp. */
#include "media/png_guard.h"

#include <setjmp.h>
#include <stdio.h>

void oq_png_on_error(png_structp png, png_const_charp message)
{
    oq_png_guard *guard = png_get_error_ptr(png);
    snprintf(guard->message, sizeof guard->message, "%s", message ? message : "unknown error");
    png_longjmp(png, 1);
}

/* Damage in parts that pixels do not depend on: those parts are left out. */
void oq_png_on_warning(png_structp png, png_const_charp message)
{
    const oq_png_guard *guard = png_get_error_ptr(png);
    oq_log(guard->env, OQ_LOG_DEBUG, "%s: %s", guard->name, message);
}

png_voidp oq_png_allocate(png_structp png, png_alloc_size_t bytes)
{
    oq_png_guard *guard = png_get_mem_ptr(png);
    void *ptr = oq_alloc_raw(guard->env, bytes);
    if (!ptr) guard->no_memory = true;
    return ptr;
}

void oq_png_release(png_structp png, png_voidp ptr)
{
    const oq_png_guard *guard = png_get_mem_ptr(png);
    oq_free(guard->env, ptr);
}

bool oq_png_guarded(png_structp png, void (*step)(void *user), void *user)
{
    if (setjmp(png_jmpbuf(png))) return false;
    step(user);
    return true;
}

oq_status oq_png_failure(const oq_png_guard *guard, const char *what)
{
    if (guard->status != OQ_OK) return guard->status;
    if (guard->no_memory)
        return oq_fail(guard->env, OQ_E_NOMEM, "%s: no memory for the picture", guard->name);
    return oq_fail(guard->env, OQ_E_FORMAT, "%s: %s: %s", guard->name, what, guard->message);
}
