/* test_media.c -- PNG of every kind in, RGB out; texts survive; damaged files are refused; terminals get
 * their bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "media/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA OMNIQ_SOURCE_DIR "/tests/data/media/"

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

static void sample_path(char *path, size_t n, const char *name)
{
    snprintf(path, n, DATA "%s.png", name);
}

static void check_pixels(const oq_image *image, const oq_json *want, const char *name)
{
    const char *hex = oq_json_string(oq_json_get(want, "pixels"));
    assert_int_equal(image->width, oq_json_int(oq_json_get(want, "width"), 0));
    assert_int_equal(image->height, oq_json_int(oq_json_get(want, "height"), 0));
    const size_t n = (size_t)(image->width * image->height * 3);
    assert_int_equal(strlen(hex), 2 * n);
    for (size_t i = 0; i < n; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        if (image->pixels[i] != byte) fail_msg("%s: byte %zu is %u, not %u", name, i, image->pixels[i], byte);
    }
}

static void test_every_kind(void **state)
{
    oq_env *env = *state;
    oq_json *expected = NULL;
    assert_int_equal(oq_json_parse_file(env, DATA "expected.json", 1 << 20, &expected), OQ_OK);
    assert_true(oq_json_size(expected) >= 20);
    for (size_t i = 0; i < oq_json_size(expected); i++) {
        const oq_json *want = oq_json_at(expected, i);
        const char *name = oq_json_string(oq_json_get(want, "name"));
        char path[512];
        oq_image image;
        sample_path(path, sizeof path, name);
        if (oq_png_read(env, path, &image) != OQ_OK) fail_msg("%s", oq_env_error(env));
        check_pixels(&image, want, name);
        oq_image_deinit(env, &image);
    }
    oq_json_free(expected);
}

static void check_text(oq_env *env, const char *path, const char *key, const char *want)
{
    char *text = NULL;
    if (oq_png_read_text(env, path, key, &text) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_string_equal(text, want);
    oq_free(env, text);
}

static void test_foreign_texts(void **state)
{
    oq_env *env = *state;
    static const char *const files[] = {"texts_before", "texts_behind"};
    for (size_t i = 0; i < OQ_COUNT(files); i++) {
        char path[512], *text = NULL;
        sample_path(path, sizeof path, files[i]);
        check_text(env, path, "Latin", "caf\xc3\xa9");
        check_text(env, path, "Star", "a \xe2\x98\x85 star");
        check_text(env, path, "StarPacked", "a \xe2\x98\x85 star");
        assert_int_equal(oq_png_read_text(env, path, "Packed", &text), OQ_OK);
        assert_int_equal(strlen(text), 9 * 40);
        oq_free(env, text);
        assert_int_equal(oq_png_read_text(env, path, "omniq", &text), OQ_E_NOTFOUND);
        assert_null(text);
        assert_string_equal(oq_env_error(env) + strlen(path), ": has no text 'omniq'");
        oq_env_clear(env);
    }
}

static void fill(uint8_t *pixels, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) pixels[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

static void test_round_trip(void **state)
{
    oq_env *env = *state;
    uint8_t pixels[7 * 5 * 3];
    char path[512];
    fill(pixels, sizeof pixels, 1);
    snprintf(path, sizeof path, "%s/media-test-%ld.png", OMNIQ_BINARY_DIR, (long)getpid());
    const oq_image_text texts[] = {{"parameters", "a ball\nSteps: 8"},
                                   {"omniq", "{\"prompt\": \"caf\xc3\xa9\"}"},
                                   {"odd", "x\xffy"},
                                   {"empty", ""}};
    assert_int_equal(oq_png_write(env, path, 7, 5, pixels, texts, OQ_COUNT(texts)), OQ_OK);
    oq_image image;
    assert_int_equal(oq_png_read(env, path, &image), OQ_OK);
    assert_true(image.width == 7 && image.height == 5);
    assert_memory_equal(image.pixels, pixels, sizeof pixels);
    oq_image_deinit(env, &image);
    for (size_t i = 0; i < 2; i++) check_text(env, path, texts[i].key, texts[i].text);
    check_text(env, path, "odd", "x\xef\xbf\xbdy");
    check_text(env, path, "empty", "");
    unlink(path);
}

/* Which chunk a text goes to: tEXt for ASCII, iTXt else. */
static void test_text_chunks(void **state)
{
    oq_env *env = *state;
    static const uint8_t pixels[3];
    const oq_image_text texts[] = {{"plain", "abc"}, {"wide", "\xe2\x98\x85"}};
    char *png = NULL;
    size_t n = 0;
    assert_int_equal(oq_png_encode(env, 1, 1, pixels, texts, 2, "picture", &png, &n), OQ_OK);
    assert_non_null(memmem(png, n, "tEXtplain\0abc", 13));
    assert_non_null(memmem(png, n, "iTXtwide\0\0\0\0\0\xe2\x98\x85", 16));
    oq_free(env, png);
}

static void expect_refused(oq_env *env, const void *bytes, size_t n, const char *text)
{
    oq_image image;
    assert_int_equal(oq_png_decode(env, bytes, n, "x.png", &image), OQ_E_FORMAT);
    assert_null(image.pixels);
    if (text) assert_string_equal(oq_env_error(env), text);
    assert_true(strncmp(oq_env_error(env), "x.png: ", 7) == 0);
    oq_env_clear(env);
}

/* A header alone, with its checksum. */
static size_t header_of(uint8_t out[33], uint32_t width, uint32_t height, uint8_t depth, uint8_t color)
{
    static const uint8_t start[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n',
                                    0,    0,   0,   13,  'I',  'H',  'D',  'R'};
    memcpy(out, start, sizeof start);
    for (int i = 0; i < 4; i++)
        out[16 + i] = (uint8_t)(width >> (24 - 8 * i)), out[20 + i] = (uint8_t)(height >> (24 - 8 * i));
    out[24] = depth, out[25] = color, out[26] = out[27] = out[28] = 0;
    uint32_t crc = 0xffffffffu;
    for (int i = 12; i < 29; i++) {
        crc ^= out[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    crc = ~crc;
    for (int i = 0; i < 4; i++) out[29 + i] = (uint8_t)(crc >> (24 - 8 * i));
    return 33;
}

static void test_hostile(void **state)
{
    oq_env *env = *state;
    uint8_t bytes[64] = {0};
    expect_refused(env, "", 0, "x.png: is not a PNG");
    expect_refused(env, "GIF89a..", 8, "x.png: is not a PNG");
    expect_refused(env, bytes, header_of(bytes, 5, 5, 8, 2),
                   "x.png: is not a readable PNG: it ends too early");
    expect_refused(env, bytes, header_of(bytes, 70000, 5, 8, 2),
                   "x.png: is not a readable PNG: Invalid IHDR data");
    expect_refused(env, bytes, header_of(bytes, 0, 5, 8, 2),
                   "x.png: is not a readable PNG: Invalid IHDR data");
    expect_refused(env, bytes, header_of(bytes, 5, 5, 7, 2),
                   "x.png: is not a readable PNG: Invalid IHDR data");
    /* An empty IDAT behind, so that the header is complete. */
    static const uint8_t idat[] = {0, 0, 0, 0, 'I', 'D', 'A', 'T', 0x35, 0xaf, 0x06, 0x1e};
    size_t n = header_of(bytes, 65536, 65536, 8, 2);
    memcpy(bytes + n, idat, sizeof idat);
    expect_refused(env, bytes, n + sizeof idat,
                   "x.png: 65536 x 65536 pixels, at most 268435456 pixels are read");
    n = header_of(bytes, 16384, 16384, 8, 2);
    memcpy(bytes + n, idat, sizeof idat);
    expect_refused(env, bytes, n + sizeof idat,
                   "x.png: 16384 x 16384 pixels are claimed, 45 bytes cannot hold them");
}

/* Every prefix of a file is refused; with one byte changed it is read or refused, never worse. */
static void test_damaged(void **state)
{
    oq_env *env = *state;
    static const char *const files[] = {"texts_behind", "palette_transparent", "gray16"};
    for (size_t f = 0; f < OQ_COUNT(files); f++) {
        char path[512], *bytes = NULL, *text = NULL;
        size_t n = 0;
        oq_image image;
        sample_path(path, sizeof path, files[f]);
        assert_int_equal(oq_file_read(env, path, 1 << 20, &bytes, &n), OQ_OK);
        for (size_t k = 0; k < n; k++) {
            char *part = malloc(k ? k : 1); /* of its own size, so that a sanitizer sees a read behind it */
            assert_non_null(part);
            memcpy(part, bytes, k);
            expect_refused(env, part, k, NULL);
            free(part);
            bytes[k] = (char)(bytes[k] ^ 0x41);
            oq_status st = oq_png_decode(env, bytes, n, "x.png", &image);
            assert_true(st == OQ_OK || st == OQ_E_FORMAT);
            oq_image_deinit(env, &image);
            oq_env_clear(env);
            st = oq_png_decode_text(env, bytes, n, "x.png", "Star", &text);
            assert_true(st == OQ_OK || st == OQ_E_FORMAT || st == OQ_E_NOTFOUND);
            oq_free(env, text);
            oq_env_clear(env);
            bytes[k] = (char)(bytes[k] ^ 0x41);
        }
        oq_free(env, bytes);
    }
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    static const uint8_t pixels[3];
    const oq_image_text bad[] = {{"", "x"}, {"caf\xc3\xa9", "x"}};
    oq_image image;
    char path[512];
    assert_int_equal(oq_image_new(env, 0, 4, &image), OQ_E_ARG);
    assert_string_equal(oq_env_error(env), "a picture of 0 x 4 pixels, sides are 1 to 65536");
    oq_env_clear(env);
    assert_int_equal(oq_image_new(env, 4, 65537, &image), OQ_E_ARG);
    oq_env_clear(env);
    snprintf(path, sizeof path, "%s/no such folder/x.png", OMNIQ_BINARY_DIR);
    assert_int_equal(oq_png_write(env, path, 1, 1, pixels, NULL, 0), OQ_E_NOTFOUND);
    assert_non_null(strstr(oq_env_error(env), "no such folder/x.png: cannot be written"));
    oq_env_clear(env);
    assert_int_equal(oq_png_write(env, "x.png", 1, 1, pixels, bad, 1), OQ_E_ARG);
    assert_string_equal(oq_env_error(env),
                        "x.png: '' cannot be the key of a text, 1 to 79 ASCII characters can");
    oq_env_clear(env);
    assert_int_equal(oq_png_write(env, "x.png", 1, 1, pixels, bad + 1, 1), OQ_E_ARG);
    oq_env_clear(env);
    assert_int_equal(oq_png_write(env, "x.png", 0, 1, pixels, NULL, 0), OQ_E_ARG);
    assert_string_equal(oq_env_error(env),
                        "x.png: a picture of 0 x 1 pixels with 0 texts, sides are 1 to 65536");
    oq_env_clear(env);
    assert_int_equal(oq_png_read(env, DATA "absent.png", &image), OQ_E_NOTFOUND);
    oq_env_clear(env);
    assert_int_equal(oq_png_read(env, DATA, &image), OQ_E_IO);
    oq_env_clear(env);
}

/* ---- allocation failures ------------------------------------------------------------------------------- */

typedef struct failing {
    long left, live;
} failing;

static void *allocate(void *user, size_t bytes)
{
    failing *f = user;
    if (f->left-- <= 0) return NULL;
    f->live++;
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

static void release(void *user, void *ptr)
{
    failing *f = user;
    if (ptr) f->live--;
    free(ptr);
}

static oq_status write_and_read(oq_env *env, const uint8_t *pixels)
{
    const oq_image_text texts[] = {{"plain", "abc"}, {"wide", "\xe2\x98\x85"}};
    char *png = NULL, *text = NULL;
    size_t n = 0;
    oq_image image = {0};
    oq_status st = oq_png_encode(env, 8, 8, pixels, texts, 2, "x.png", &png, &n);
    if (st == OQ_OK) st = oq_png_decode(env, png, n, "x.png", &image);
    if (st == OQ_OK) st = oq_png_decode_text(env, png, n, "x.png", "wide", &text);
    oq_free(env, text);
    oq_image_deinit(env, &image);
    oq_free(env, png);
    return st;
}

static void test_no_memory(void **state)
{
    (void)state;
    uint8_t pixels[8 * 8 * 3];
    failing f = {.left = 1000000};
    const oq_env_params params = {
        .size = sizeof params, .allocate = allocate, .release = release, .alloc_user = &f, .n_threads = 1};
    oq_env *env = NULL;
    fill(pixels, sizeof pixels, 9);
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    const long before = f.live;
    bool done = false;
    for (long k = 0; !done && k < 10000; k++) {
        f.left = k;
        const oq_status st = write_and_read(env, pixels);
        done = st == OQ_OK;
        if (!done && st != OQ_E_NOMEM)
            fail_msg("allocation %ld: %s: %s", k, oq_status_name(st), oq_env_error(env));
        assert_int_equal(f.live, before);
        oq_env_clear(env);
    }
    assert_true(done);
    f.left = 1000000;
    oq_env_free(env);
}

/* ---- pictures of pictures ------------------------------------------------------------------------------ */

static void test_side_by_side(void **state)
{
    oq_env *env = *state;
    uint8_t a[] = {10, 20, 30, 0, 0, 0}, b[] = {12, 20, 100, 0, 255, 31};
    static const uint8_t want[] = {10, 20, 30, 12, 20, 100, 16, 0, 255, 0, 0, 0, 0, 255, 31, 0, 255, 248};
    const oq_image p = {.width = 1, .height = 2, .pixels = a}, q = {.width = 1, .height = 2, .pixels = b};
    const oq_image other = {.width = 2, .height = 1, .pixels = b};
    oq_image out;
    assert_int_equal(oq_image_side_by_side(env, &p, &q, &out), OQ_OK);
    assert_true(out.width == 3 && out.height == 2);
    assert_memory_equal(out.pixels, want, sizeof want);
    oq_image_deinit(env, &out);
    assert_int_equal(oq_image_side_by_side(env, &p, &other, &out), OQ_E_ARG);
    assert_string_equal(oq_env_error(env), "pictures of 1 x 2 and 2 x 1 pixels cannot be compared");
    oq_env_clear(env);
}

static void test_half_blocks(void **state)
{
    oq_env *env = *state;
    static const uint8_t pixels[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
    char *out = NULL;
    assert_int_equal(oq_image_show(env, OQ_TERM_HALF_BLOCKS, 2, 3, pixels, 80, &out), OQ_OK);
    assert_string_equal(
        out,
        "\x1b[38;2;1;2;3m\x1b[48;2;7;8;9m\xe2\x96\x80\x1b[38;2;4;5;6m\x1b[48;2;10;11;12m\xe2\x96\x80\x1b[0m\n"
        "\x1b[38;2;13;14;15m\xe2\x96\x80\x1b[38;2;16;17;18m\xe2\x96\x80\x1b[0m\n");
    oq_free(env, out);
    assert_int_equal(oq_image_show(env, OQ_TERM_HALF_BLOCKS, 2, 2, pixels, 1, &out),
                     OQ_OK); /* the mean of four */
    assert_string_equal(out, "\x1b[38;2;6;7;8m\xe2\x96\x80\x1b[0m\n");
    oq_free(env, out);
    assert_int_equal(oq_image_show(env, OQ_TERM_HALF_BLOCKS, 2, 2, pixels, 0, &out), OQ_E_ARG);
    assert_string_equal(oq_env_error(env), "a picture of 2 x 2 pixels cannot be shown in 0 columns");
    oq_env_clear(env);
}

/* Digits of base 64 between the sequence's marks, chunk by chunk. */
static size_t decode_base64(const char *text, size_t n, unsigned char *dst)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned word = 0, bits = 0;
    size_t out = 0;
    for (size_t i = 0; i < n && text[i] != '='; i++) {
        const char *at = strchr(digits, text[i]);
        assert_non_null(at);
        word = word << 6 | (unsigned)(at - digits), bits += 6;
        if (bits >= 8) bits -= 8, dst[out++] = (unsigned char)(word >> bits);
    }
    return out;
}

static void check_sent_png(oq_env *env, const unsigned char *png, size_t n, const uint8_t *pixels,
                           size_t bytes)
{
    oq_image image;
    assert_int_equal(oq_png_decode(env, png, n, "sent", &image), OQ_OK);
    assert_memory_equal(image.pixels, pixels, bytes);
    oq_image_deinit(env, &image);
}

static void test_kitty(void **state)
{
    oq_env *env = *state;
    enum { W = 64, H = 48 };
    uint8_t pixels[W * H * 3];
    unsigned char png[W * H * 4];
    size_t n = 0;
    char *out = NULL;
    fill(pixels, sizeof pixels, 3);
    assert_int_equal(oq_image_show(env, OQ_TERM_KITTY, W, H, pixels, 80, &out), OQ_OK);
    assert_true(strncmp(out, "\x1b_Ga=T,f=100,q=2,c=7,m=1;", 25) == 0); /* 64 pixels are 7 cells */
    for (const char *at = out; (at = strchr(at, ';'));) {
        const char *end = strstr(++at, "\x1b\\");
        assert_non_null(end);
        assert_true(end - at <= 4096);
        n += decode_base64(at, (size_t)(end - at), png + n);
        at = end;
    }
    check_sent_png(env, png, n, pixels, sizeof pixels);
    assert_non_null(strstr(out, "\x1b_Gm=0;"));
    oq_free(env, out);
}

static void test_iterm2(void **state)
{
    oq_env *env = *state;
    uint8_t pixels[10 * 3 * 3];
    unsigned char png[1024];
    char *out = NULL;
    fill(pixels, sizeof pixels, 4);
    assert_int_equal(oq_image_show(env, OQ_TERM_ITERM2, 10, 3, pixels, 80, &out), OQ_OK);
    assert_true(strncmp(out, "\x1b]1337;File=inline=1;size=", 26) == 0);
    const char *at = strchr(out, ':') + 1, *end = strchr(out, '\a');
    const size_t n = decode_base64(at, (size_t)(end - at), png);
    assert_int_equal(n, atoi(out + 26));
    check_sent_png(env, png, n, pixels, sizeof pixels);
    oq_free(env, out);
}

/* Pixels of the six levels come back exactly: the sixels are drawn and looked up in the palette. */
static void draw_sixel(const char *s, uint8_t *dst, int width)
{
    int palette[256][3], color = 0, rgb[3], x = 0, band = 0, repeat = 1, used = 0;
    s = strchr(s, '"');
    for (s += strcspn(s, "#"); *s && *s != '\x1b'; s += used) {
        if (sscanf(s, "#%d;2;%d;%d;%d%n", &color, &rgb[0], &rgb[1], &rgb[2], &used) == 4) {
            memcpy(palette[color], rgb, sizeof rgb);
            continue;
        }
        if (sscanf(s, "#%d%n", &color, &used) == 1 || sscanf(s, "!%d%n", &repeat, &used) == 1) continue;
        used = 1;
        if (*s == '$' || *s == '-') {
            x = 0;
            band += *s == '-';
            continue;
        }
        for (; repeat > 0; repeat--, x++)
            for (int bit = 0; bit < 18; bit++)
                if ((*s - 63) >> (bit / 3) & 1)
                    dst[((band * 6 + bit / 3) * width + x) * 3 + bit % 3] =
                        (uint8_t)(palette[color][bit % 3] * 255 / 100);
        repeat = 1;
    }
}

static void test_sixel(void **state)
{
    oq_env *env = *state;
    enum { W = 9, H = 8 };
    uint8_t pixels[W * H * 3], drawn[W * 12 * 3];
    char *out = NULL;
    fill(pixels, sizeof pixels, 5);
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(pixels[i] % 6 * 51);
    assert_int_equal(oq_image_show(env, OQ_TERM_SIXEL, W, H, pixels, 80, &out), OQ_OK);
    assert_true(strncmp(out, "\x1bP0;1q\"1;1;9;8#0;2;0;0;0", 24) == 0);
    memset(drawn, 1, sizeof drawn);
    draw_sixel(out, drawn, W);
    assert_memory_equal(drawn, pixels, sizeof pixels);
    oq_free(env, out);
}

static void test_detect(void **state)
{
    (void)state;
    static const char *const names[] = {"TMUX", "TERM", "KITTY_WINDOW_ID", "TERM_PROGRAM", "LC_TERMINAL"};
    for (size_t i = 0; i < OQ_COUNT(names); i++) unsetenv(names[i]);
    assert_int_equal(oq_terminal_detect(), OQ_TERM_HALF_BLOCKS);
    setenv("TERM", "xterm-kitty", 1);
    assert_int_equal(oq_terminal_detect(), OQ_TERM_KITTY);
    setenv("TERM", "foot", 1);
    assert_int_equal(oq_terminal_detect(), OQ_TERM_SIXEL);
    setenv("TERM", "xterm-256color", 1);
    setenv("TERM_PROGRAM", "iTerm.app", 1);
    assert_int_equal(oq_terminal_detect(), OQ_TERM_ITERM2);
    setenv("TMUX", "1", 1);
    assert_int_equal(oq_terminal_detect(), OQ_TERM_HALF_BLOCKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),   cmocka_unit_test(test_foreign_texts),
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_text_chunks),
        cmocka_unit_test(test_hostile),      cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_half_blocks),
        cmocka_unit_test(test_kitty),        cmocka_unit_test(test_iterm2),
        cmocka_unit_test(test_sixel),        cmocka_unit_test(test_detect),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
