/* amx.h -- the tile instructions of AMX, or, with OQ_AMX_MODEL defined, a model of them in C that runs anywhere: kernels
 * are compiled twice, so that what they compute is tested on machines that have no tiles (kcheck; tests/kernels/model_*).
 *
 * A tile is up to 16 rows of up to 64 bytes. All kernels here use the same eight: 0 to 3 are sums, [2][2] tiles of 16 x 16
 * f32 or i32; 4 and 5 are the rows of A; 6 and 7 the columns of B, each row of which holds one dword of k for 16 columns. */
#ifndef OQ_CPU_AMX_H
#define OQ_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { OQ_AMX_ROWS = 16, OQ_AMX_DWORDS = 16 }; /* of a tile at most */

typedef struct oq_amx_config { /* as ldtilecfg reads it */
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} oq_amx_config;

/* The eight tiles for up to 32 rows of A and `depth` dwords of k. */
static inline oq_amx_config oq_amx_config_for(int rows, int depth)
{
    oq_amx_config c = {.palette = 1};
    const int low = rows < OQ_AMX_ROWS ? rows : OQ_AMX_ROWS, high = rows - low;
    for (int t = 0; t < 4; t++) {
        c.rows[t] = (uint8_t)(t < 2 ? low : high);
        c.row_bytes[t] = c.rows[t] ? 4 * OQ_AMX_DWORDS : 0;
    }
    for (int t = 4; t < 6; t++) {
        c.rows[t] = (uint8_t)(t == 4 ? low : high);
        c.row_bytes[t] = (uint16_t)(c.rows[t] ? 4 * depth : 0);
    }
    for (int t = 6; t < 8; t++) c.rows[t] = (uint8_t)depth, c.row_bytes[t] = 4 * OQ_AMX_DWORDS;
    return c;
}

/* What a kernel of tiles needs, and its name. */
#ifdef OQ_AMX_MODEL
#define OQ_AMX_NEED       OQ_CPU_AVX512BF16
#define OQ_AMX_NAME(name) name "_model"
#else
#define OQ_AMX_NEED       OQ_CPU_AMX
#define OQ_AMX_NAME(name) name
#endif

#ifndef OQ_AMX_MODEL

#define oq_amx_load_config(config)       _tile_loadconfig(config)
#define oq_amx_release()                 _tile_release()
#define oq_amx_zero(t)                   _tile_zero(t)
#define oq_amx_load(t, from, row_bytes)  _tile_loadd(t, from, (size_t)(row_bytes))
#define oq_amx_pass(t, from, row_bytes)  _tile_stream_loadd(t, from, (size_t)(row_bytes))
#define oq_amx_store(t, to, row_bytes)   _tile_stored(t, to, (size_t)(row_bytes))
#define oq_amx_dot_bf16(sums, a, b)      _tile_dpbf16ps(sums, a, b)
#define oq_amx_dot_u8i8(sums, a, b)      _tile_dpbusd(sums, a, b)

#else

typedef struct oq_amx_model {
    oq_amx_config config;
    uint8_t       tile[8][OQ_AMX_ROWS][64];
} oq_amx_model;

static _Thread_local oq_amx_model oq_amx;

/* What the processor answers with a fault ends the program here. */
static inline void oq_amx_check(int right)
{
    if (!right) __builtin_trap();
}

static inline void oq_amx_load_config(const void *config)
{
    memset(&oq_amx, 0, sizeof oq_amx);
    memcpy(&oq_amx.config, config, sizeof oq_amx.config);
    oq_amx_check(oq_amx.config.palette == 1 && oq_amx.config.start_row == 0);
    for (int t = 0; t < 8; t++)
        oq_amx_check(oq_amx.config.rows[t] <= OQ_AMX_ROWS && oq_amx.config.row_bytes[t] <= 64 &&
                     !oq_amx.config.rows[t] == !oq_amx.config.row_bytes[t]);
}

static inline void oq_amx_release(void)
{
    memset(&oq_amx, 0, sizeof oq_amx);
}

static inline void oq_amx_zero(int t)
{
    oq_amx_check(oq_amx.config.rows[t]);
    memset(oq_amx.tile[t], 0, sizeof oq_amx.tile[t]);
}

static inline void oq_amx_load(int t, const void *from, int64_t row_bytes)
{
    oq_amx_check(oq_amx.config.rows[t]);
    memset(oq_amx.tile[t], 0, sizeof oq_amx.tile[t]);
    for (int r = 0; r < oq_amx.config.rows[t]; r++)
        memcpy(oq_amx.tile[t][r], (const char *)from + r * row_bytes, oq_amx.config.row_bytes[t]);
}

#define oq_amx_pass oq_amx_load

static inline void oq_amx_store(int t, void *to, int64_t row_bytes)
{
    oq_amx_check(oq_amx.config.rows[t]);
    for (int r = 0; r < oq_amx.config.rows[t]; r++)
        memcpy((char *)to + r * row_bytes, oq_amx.tile[t][r], oq_amx.config.row_bytes[t]);
}

/* sums[rows][16] += a[rows][depth] . b[depth][16]; shapes must fit, as the instruction demands. */
static inline void oq_amx_check_product(int sums, int a, int b)
{
    const oq_amx_config *const c = &oq_amx.config;
    oq_amx_check(c->rows[sums] && c->rows[sums] == c->rows[a] && c->row_bytes[a] == 4 * c->rows[b] &&
                 c->row_bytes[sums] == c->row_bytes[b]);
}

static inline float oq_amx_bf16(const uint8_t *at)
{
    uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
    float x;
    if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u; /* subnormal numbers count as zero */
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The even and the odd halves of pairs have sums of their own, which are added to the tile at the end. */
static inline void oq_amx_dot_bf16(int sums, int a, int b)
{
    oq_amx_check_product(sums, a, b);
    for (int r = 0; r < oq_amx.config.rows[sums]; r++)
        for (int c = 0; c < OQ_AMX_DWORDS; c++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < oq_amx.config.rows[b]; k++) {
                const uint8_t *const x = &oq_amx.tile[a][r][4 * k], *const w = &oq_amx.tile[b][k][4 * c];
                even = __builtin_fmaf(oq_amx_bf16(x), oq_amx_bf16(w), even);
                odd = __builtin_fmaf(oq_amx_bf16(x + 2), oq_amx_bf16(w + 2), odd);
            }
            memcpy(&sum, &oq_amx.tile[sums][r][4 * c], sizeof sum);
            sum += even + odd;
            memcpy(&oq_amx.tile[sums][r][4 * c], &sum, sizeof sum);
        }
}

static inline void oq_amx_dot_u8i8(int sums, int a, int b)
{
    oq_amx_check_product(sums, a, b);
    for (int r = 0; r < oq_amx.config.rows[sums]; r++)
        for (int c = 0; c < OQ_AMX_DWORDS; c++) {
            uint32_t sum;
            memcpy(&sum, &oq_amx.tile[sums][r][4 * c], sizeof sum);
            for (int k = 0; k < oq_amx.config.rows[b]; k++)
                for (int i = 0; i < 4; i++)
                    sum += (uint32_t)(oq_amx.tile[a][r][4 * k + i] * (int8_t)oq_amx.tile[b][k][4 * c + i]);
            memcpy(&oq_amx.tile[sums][r][4 * c], &sum, sizeof sum);
        }
}

#endif

/* The configuration that this thread's tiles have; none at the start of a task, because whatever else runs in the
 * process may have released it in the meantime. */
static _Thread_local struct {
    int rows, depth;
} oq_amx_now;

static inline void oq_amx_begin(void)
{
    oq_amx_now.rows = 0;
}

static inline void oq_amx_end(void)
{
    oq_amx_release();
}

/* Does nothing where it is so already; else the contents of all tiles are lost. */
static inline void oq_amx_configure(int rows, int depth)
{
    if (oq_amx_now.rows == rows && oq_amx_now.depth == depth) return;
    const oq_amx_config config = oq_amx_config_for(rows, depth);
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc takes the instruction for one that reads eight bytes */
    oq_amx_load_config(&config);
    oq_amx_now.rows = rows;
    oq_amx_now.depth = depth;
}

/* sums += one depth of k: A's rows `a_bytes` apart, B's `b_bytes`; tall: more than 16 rows, wide: 32 columns. load_a and
 * load_b: oq_amx_load, or oq_amx_pass for what only passes by, so that the first level of the cache keeps the other one. */
#define OQ_AMX_STEP(dot, load_a, a, a_bytes, load_b, b, b_bytes, tall, wide)                                 \
    do {                                                                                                     \
        load_b(6, b, b_bytes);                                                                               \
        load_a(4, a, a_bytes);                                                                               \
        dot(0, 4, 6);                                                                                        \
        if (wide) {                                                                                          \
            load_b(7, (const char *)(b) + 64, b_bytes);                                                      \
            dot(1, 4, 7);                                                                                    \
        }                                                                                                    \
        if (tall) {                                                                                          \
            load_a(5, (const char *)(a) + OQ_AMX_ROWS * (a_bytes), a_bytes);                                 \
            dot(2, 5, 6);                                                                                    \
            if (wide) dot(3, 5, 7);                                                                          \
        }                                                                                                    \
    } while (0)

/* The sums from memory, rows `bytes` apart, or zeros; and back. What was stored before is there for all loads of the product:
 * gcc does not know that those read memory. */
static inline __attribute__((always_inline)) void oq_amx_load_sums(const char *c, int64_t bytes, const int add, const int tall,
                                                                   const int wide)
{
    __asm__ volatile("" : : : "memory");
    if (add) {
        oq_amx_load(0, c, bytes);
        if (wide) oq_amx_load(1, c + 64, bytes);
        if (tall) oq_amx_load(2, c + OQ_AMX_ROWS * bytes, bytes);
        if (tall && wide) oq_amx_load(3, c + OQ_AMX_ROWS * bytes + 64, bytes);
    } else {
        oq_amx_zero(0);
        if (wide) oq_amx_zero(1);
        if (tall) oq_amx_zero(2);
        if (tall && wide) oq_amx_zero(3);
    }
}

static inline __attribute__((always_inline)) void oq_amx_store_sums(char *c, int64_t bytes, const int tall, const int wide)
{
    oq_amx_store(0, c, bytes);
    if (wide) oq_amx_store(1, c + 64, bytes);
    if (tall) oq_amx_store(2, c + OQ_AMX_ROWS * bytes, bytes);
    if (tall && wide) oq_amx_store(3, c + OQ_AMX_ROWS * bytes + 64, bytes);
}

#endif
