/* strbuf.h -- a growing text. After the first failed growth it stays unchanged and `failed` is set, so callers
 * append freely and check once at the end. */
#ifndef OQ_BASE_STRBUF_H
#define OQ_BASE_STRBUF_H

#include "base/env.h"

typedef struct oq_strbuf {
    oq_env *env;
    char   *text; /* terminated; NULL while empty */
    size_t  size, capacity;
    bool    failed;
} oq_strbuf;

void        oq_strbuf_init(oq_strbuf *buf, oq_env *env);
void        oq_strbuf_deinit(oq_strbuf *buf);
void        oq_strbuf_clear(oq_strbuf *buf);
void        oq_strbuf_add(oq_strbuf *buf, const void *bytes, size_t n);
void        oq_strbuf_puts(oq_strbuf *buf, const char *text);
void        oq_strbuf_putc(oq_strbuf *buf, char c);
void        oq_strbuf_printf(oq_strbuf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void        oq_strbuf_put_bytes(oq_strbuf *buf, size_t bytes); /* "12.3 MiB" */
void        oq_strbuf_put_wrapped(oq_strbuf *buf, size_t indent, size_t hang, const char *fmt, ...)
    __attribute__((format(printf, 4, 5))); /* a paragraph up to column 110; spaces before its first line, and the others */
const char *oq_strbuf_text(const oq_strbuf *buf); /* never NULL */
oq_status   oq_strbuf_check(const oq_strbuf *buf, const char *what); /* OQ_E_NOMEM if something was lost */
char       *oq_strbuf_take(oq_strbuf *buf); /* the text becomes the caller's (oq_free); NULL if failed */

#endif
