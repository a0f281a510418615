/* strbuf.c -- growth by doubling; the first failure is remembered. */
#include "base/strbuf.h"

#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void oq_strbuf_init(oq_strbuf *buf, oq_env *env)
{
    *buf = (oq_strbuf){.env = env};
}

void oq_strbuf_deinit(oq_strbuf *buf)
{
    if (buf->env) oq_free(buf->env, buf->text);
    *buf = (oq_strbuf){.env = buf->env};
}

void oq_strbuf_clear(oq_strbuf *buf)
{
    buf->size = 0;
    if (buf->text) buf->text[0] = '\0';
}

static bool reserve(oq_strbuf *buf, size_t more)
{
    size_t need;
    if (buf->failed) return false;
    if (!oq_size_add(buf->size, more, &need) || !oq_size_add(need, 1, &need)) return !(buf->failed = true);
    if (need <= buf->capacity) return true;
    size_t capacity = buf->capacity ? buf->capacity : 128;
    while (capacity < need) capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
    char *text = oq_alloc_raw(buf->env, capacity);
    if (!text) return !(buf->failed = true);
    if (buf->size) memcpy(text, buf->text, buf->size);
    text[buf->size] = '\0';
    oq_free(buf->env, buf->text);
    buf->text = text;
    buf->capacity = capacity;
    return true;
}

void oq_strbuf_add(oq_strbuf *buf, const void *bytes, size_t n)
{
    if (!reserve(buf, n)) return;
    if (n) memcpy(buf->text + buf->size, bytes, n);
    buf->size += n;
    buf->text[buf->size] = '\0';
}

void oq_strbuf_puts(oq_strbuf *buf, const char *text)
{
    oq_strbuf_add(buf, text, strlen(text));
}

void oq_strbuf_putc(oq_strbuf *buf, char c)
{
    oq_strbuf_add(buf, &c, 1);
}

static void put_formatted(oq_strbuf *buf, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    if (n >= 0 && reserve(buf, (size_t)n)) {
        vsnprintf(buf->text + buf->size, (size_t)n + 1, fmt, again);
        buf->size += (size_t)n;
    }
    va_end(again);
}

void oq_strbuf_printf(oq_strbuf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_formatted(buf, fmt, args);
    va_end(args);
}

void oq_strbuf_put_bytes(oq_strbuf *buf, size_t bytes)
{
    const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u + 1 < OQ_COUNT(units)) x /= 1024, u++;
    oq_strbuf_printf(buf, u ? "%.1f %s" : "%.0f %s", x, units[u]);
}

enum { PARAGRAPH_WIDTH = 110 };

static void put_words(oq_strbuf *buf, size_t indent, size_t hang, const char *text)
{
    size_t column = 0;
    while (*(text += strspn(text, " "))) {
        const size_t n = strcspn(text, " ");
        if (column && column + 1 + n <= PARAGRAPH_WIDTH) {
            oq_strbuf_putc(buf, ' '), column++;
        } else {
            const size_t spaces = column ? hang : indent;
            oq_strbuf_printf(buf, "%s%*s", column ? "\n" : "", (int)spaces, "");
            column = spaces;
        }
        oq_strbuf_add(buf, text, n);
        column += n, text += n;
    }
    oq_strbuf_putc(buf, '\n');
}

void oq_strbuf_put_wrapped(oq_strbuf *buf, size_t indent, size_t hang, const char *fmt, ...)
{
    oq_strbuf text;
    va_list args;
    oq_strbuf_init(&text, buf->env);
    va_start(args, fmt);
    put_formatted(&text, fmt, args);
    va_end(args);
    if (text.failed) buf->failed = true;
    put_words(buf, indent, hang, oq_strbuf_text(&text));
    oq_strbuf_deinit(&text);
}

const char *oq_strbuf_text(const oq_strbuf *buf)
{
    return buf->text ? buf->text : "";
}

oq_status oq_strbuf_check(const oq_strbuf *buf, const char *what)
{
    if (!buf->failed) return OQ_OK;
    return oq_fail(buf->env, OQ_E_NOMEM, "%s: no memory for a text of more than %zu bytes", what, buf->size);
}

char *oq_strbuf_take(oq_strbuf *buf)
{
    if (!buf->text) oq_strbuf_add(buf, "", 0);
    if (buf->failed) return NULL;
    char *text = buf->text;
    *buf = (oq_strbuf){.env = buf->env};
    return text;
}
