/* terminal.c -- a picture as the bytes that a terminal draws it from. */
#include "base/strbuf.h"
#include "media/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool variable_is(const char *name, const char *value)
{
    const char *text = getenv(name);
    return text && strcmp(text, value) == 0;
}

static bool variable_holds(const char *name, const char *part)
{
    const char *text = getenv(name);
    return text && strstr(text, part);
}

oq_terminal oq_terminal_detect(void)
{
    /* Multiplexers swallow the graphics of the terminal behind them. */
    if (getenv("TMUX") || variable_holds("TERM", "screen") || variable_holds("TERM", "tmux"))
        return OQ_TERM_HALF_BLOCKS;
    if (getenv("KITTY_WINDOW_ID") || variable_is("TERM", "xterm-kitty") ||
        variable_is("TERM", "xterm-ghostty") || variable_is("TERM_PROGRAM", "ghostty"))
        return OQ_TERM_KITTY;
    if (variable_is("TERM_PROGRAM", "iTerm.app") || variable_is("LC_TERMINAL", "iTerm2") ||
        variable_is("TERM_PROGRAM", "WezTerm"))
        return OQ_TERM_ITERM2;
    if (variable_holds("TERM", "sixel") || variable_holds("TERM", "mlterm") ||
        variable_holds("TERM", "foot") || variable_holds("TERM", "contour") ||
        variable_is("TERM_PROGRAM", "mintty"))
        return OQ_TERM_SIXEL;
    return OQ_TERM_HALF_BLOCKS;
}

/* ---- smaller ------------------------------------------------------------------------------------------- */

/* Mean of the source pixels of each target pixel; at least one each. */
static void shrink_pixel(const uint8_t *src, int64_t width, const int64_t box[4], uint8_t *dst)
{
    uint64_t sum[3] = {0};
    const uint64_t n = (uint64_t)((box[1] - box[0]) * (box[3] - box[2]));
    for (int64_t y = box[2]; y < box[3]; y++)
        for (int64_t x = box[0]; x < box[1]; x++)
            for (int c = 0; c < 3; c++) sum[c] += src[(y * width + x) * 3 + c];
    for (int c = 0; c < 3; c++) dst[c] = (uint8_t)((sum[c] + n / 2) / n);
}

/* To a width of at most `most`, keeping the proportions. */
static oq_status shrink(oq_env *env, int64_t width, int64_t height, const uint8_t *pixels, int64_t most,
                        oq_image *out)
{
    const int64_t w = width < most ? width : most;
    int64_t h = (height * w + width / 2) / width;
    if (h < 1) h = 1;
    OQ_TRY(oq_image_new(env, w, h, out));
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            int64_t box[4] = {x * width / w, (x + 1) * width / w, y * height / h, (y + 1) * height / h};
            if (box[1] <= box[0]) box[1] = box[0] + 1;
            if (box[3] <= box[2]) box[3] = box[2] + 1;
            shrink_pixel(pixels, width, box, out->pixels + (y * w + x) * 3);
        }
    return OQ_OK;
}

/* ---- half blocks --------------------------------------------------------------------------------------- */

/* One character shows two pixels, the upper in the foreground, the lower in the background. */
static void put_half_blocks(const oq_image *image, oq_strbuf *out)
{
    for (int64_t y = 0; y < image->height; y += 2) {
        for (int64_t x = 0; x < image->width; x++) {
            const uint8_t *p = image->pixels + (y * image->width + x) * 3;
            oq_strbuf_printf(out, "\x1b[38;2;%d;%d;%dm", p[0], p[1], p[2]);
            if (y + 1 < image->height) {
                const uint8_t *q = p + image->width * 3;
                oq_strbuf_printf(out, "\x1b[48;2;%d;%d;%dm", q[0], q[1], q[2]);
            }
            oq_strbuf_puts(out, "\xe2\x96\x80"); /* upper half block */
        }
        oq_strbuf_puts(out, "\x1b[0m\n");
    }
}

static oq_status show_half_blocks(oq_env *env, const oq_image *image, int columns, oq_strbuf *out)
{
    oq_image small;
    OQ_TRY(shrink(env, image->width, image->height, image->pixels, columns, &small));
    put_half_blocks(&small, out);
    oq_image_deinit(env, &small);
    return OQ_OK;
}

/* ---- kitty and iTerm2: the PNG itself ------------------------------------------------------------------ */

static void put_base64(oq_strbuf *out, const unsigned char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const unsigned word = (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? bytes[i + 2] : 0);
        const char four[4] = {digits[word >> 18], digits[word >> 12 & 63],
                              left > 1 ? digits[word >> 6 & 63] : '=', left > 2 ? digits[word & 63] : '='};
        oq_strbuf_add(out, four, 4);
    }
}

/* Chunks of at most 4096 digits; all but the last say that more follow. */
static void put_kitty(const unsigned char *png, size_t n, int columns, oq_strbuf *out)
{
    enum { CHUNK = 3072 };
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t part = n - at < CHUNK ? n - at : CHUNK;
        const int more = at + part < n;
        if (at == 0)
            oq_strbuf_printf(out, "\x1b_Ga=T,f=100,q=2,c=%d,m=%d;", columns, more);
        else
            oq_strbuf_printf(out, "\x1b_Gm=%d;", more);
        put_base64(out, png + at, part);
        oq_strbuf_puts(out, "\x1b\\");
    }
    oq_strbuf_putc(out, '\n');
}

static void put_iterm2(const unsigned char *png, size_t n, int columns, oq_strbuf *out)
{
    oq_strbuf_printf(out, "\x1b]1337;File=inline=1;size=%zu;width=%d;preserveAspectRatio=1:", n, columns);
    put_base64(out, png, n);
    oq_strbuf_puts(out, "\a\n");
}

/* Cells are about ten pixels wide: a small picture is not blown up. */
enum { CELL_PX = 10 };

static int columns_for(const oq_image *image, int columns)
{
    const int64_t natural = (image->width + CELL_PX - 1) / CELL_PX;
    return natural < columns ? (int)natural : columns;
}

static oq_status show_png(oq_env *env, oq_terminal terminal, const oq_image *image, int columns,
                          oq_strbuf *out)
{
    char *png = NULL;
    size_t n = 0;
    OQ_TRY(oq_png_encode(env, image->width, image->height, image->pixels, NULL, 0, "picture", &png, &n));
    const int wide = columns_for(image, columns);
    if (terminal == OQ_TERM_KITTY)
        put_kitty((const unsigned char *)png, n, wide, out);
    else
        put_iterm2((const unsigned char *)png, n, wide, out);
    oq_free(env, png);
    return OQ_OK;
}

/* ---- sixel --------------------------------------------------------------------------------------------- */

enum { LEVELS = 6, COLORS = LEVELS * LEVELS * LEVELS };

/* Nearest of six levels after a threshold that depends on the place: the mean of an area keeps its color. */
static int dithered_level(int value, int64_t x, int64_t y)
{
    static const uint8_t bayer[4][4] = {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}};
    const int step = 255 / (LEVELS - 1);
    const int threshold = (2 * bayer[y & 3][x & 3] + 1) * step / 32; /* 0 to step */
    return (value + threshold) / step;
}

static uint8_t color_at(const oq_image *image, int64_t x, int64_t y)
{
    const uint8_t *p = image->pixels + (y * image->width + x) * 3;
    int color = 0;
    for (int c = 0; c < 3; c++) {
        const int level = dithered_level(p[c], x, y);
        color = color * LEVELS + (level < LEVELS ? level : LEVELS - 1);
    }
    return (uint8_t)color;
}

static void put_run(oq_strbuf *out, char sixel, int64_t n)
{
    if (n > 3)
        oq_strbuf_printf(out, "!%lld%c", (long long)n, sixel);
    else
        for (; n > 0; n--) oq_strbuf_putc(out, sixel);
}

/* Six rows of pixels; one pass over the line for each color that occurs in them. */
static void put_band(const uint8_t *colors, int64_t width, int64_t rows, oq_strbuf *out)
{
    bool used[COLORS] = {false};
    for (int64_t i = 0; i < width * rows; i++) used[colors[i]] = true;
    for (int color = 0; color < COLORS; color++) {
        if (!used[color]) continue;
        char last = 0;
        int64_t run = 0;
        oq_strbuf_printf(out, "#%d", color);
        for (int64_t x = 0; x < width; x++) {
            int bits = 0;
            for (int64_t r = 0; r < rows; r++) bits |= (colors[r * width + x] == color) << r;
            const char sixel = (char)(63 + bits);
            if (sixel != last) put_run(out, last, run), run = 0;
            last = sixel;
            run++;
        }
        if (last != 63) put_run(out, last, run);
        oq_strbuf_putc(out, '$');
    }
    oq_strbuf_putc(out, '-');
}

static oq_status put_sixel(oq_env *env, const oq_image *image, oq_strbuf *out)
{
    uint8_t *colors = NULL;
    OQ_TRY(oq_new(env, (size_t)image->width, 6, "picture", &colors));
    oq_strbuf_printf(out, "\x1bP0;1q\"1;1;%lld;%lld", (long long)image->width, (long long)image->height);
    for (int c = 0; c < COLORS; c++)
        oq_strbuf_printf(out, "#%d;2;%d;%d;%d", c, c / (LEVELS * LEVELS) * 20, c / LEVELS % LEVELS * 20,
                         c % LEVELS * 20);
    for (int64_t y = 0; y < image->height; y += 6) {
        const int64_t rows = image->height - y < 6 ? image->height - y : 6;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t x = 0; x < image->width; x++)
                colors[r * image->width + x] = color_at(image, x, y + r);
        put_band(colors, image->width, rows, out);
    }
    oq_strbuf_puts(out, "\x1b\\\n");
    oq_free(env, colors);
    return OQ_OK;
}

static oq_status show_sixel(oq_env *env, const oq_image *image, int columns, oq_strbuf *out)
{
    oq_image small;
    OQ_TRY(shrink(env, image->width, image->height, image->pixels, (int64_t)columns * CELL_PX, &small));
    const oq_status st = put_sixel(env, &small, out);
    oq_image_deinit(env, &small);
    return st;
}

/* ---- which --------------------------------------------------------------------------------------------- */

static oq_status show(oq_env *env, oq_terminal terminal, const oq_image *image, int columns, oq_strbuf *out)
{
    switch (terminal) {
    case OQ_TERM_KITTY:
    case OQ_TERM_ITERM2:
        return show_png(env, terminal, image, columns, out);
    case OQ_TERM_SIXEL:
        return show_sixel(env, image, columns, out);
    case OQ_TERM_HALF_BLOCKS:
        break;
    }
    return show_half_blocks(env, image, columns, out);
}

oq_status oq_image_show(oq_env *env, oq_terminal terminal, int64_t width, int64_t height,
                        const uint8_t *pixels, int columns, char **out)
{
    *out = NULL;
    if (width < 1 || height < 1 || width > OQ_IMAGE_MAX_PX || height > OQ_IMAGE_MAX_PX || columns < 1 ||
        columns > 4096)
        return oq_fail(env, OQ_E_ARG, "a picture of %lld x %lld pixels cannot be shown in %d columns",
                       (long long)width, (long long)height, columns);
    const oq_image image = {.width = width, .height = height, .pixels = (uint8_t *)(uintptr_t)pixels};
    oq_strbuf buf;
    oq_strbuf_init(&buf, env);
    oq_status st = show(env, terminal, &image, columns, &buf);
    if (st == OQ_OK) st = oq_strbuf_check(&buf, "picture for the terminal");
    if (st == OQ_OK) *out = oq_strbuf_take(&buf);
    oq_strbuf_deinit(&buf);
    return st;
}
