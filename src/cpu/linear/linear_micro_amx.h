/* linear_micro_amx.h -- the microkernel over matrix tiles: up to 32 rows x 32 columns, whole tiles of 16 dwords of k, then
 * what is left with tiles of that depth. Tiles are set up once in a task: between two tasks other code of the process may
 * have released them. */
#ifndef OQ_CPU_LINEAR_LINEAR_MICRO_AMX_H
#define OQ_CPU_LINEAR_LINEAR_MICRO_AMX_H

#include "cpu/linear/linear_panel.h"
#include "cpu/vec/amx.h"

enum { AMX_MR = 32, AMX_NR_BYTES = 128 };
_Static_assert((int)AMX_MR <= (int)OQ_PANEL_MAX_MR, "a tile's rows have room for their factors");

static void amx_begin(void)
{
    oq_amx_begin();
}

static void amx_end(void)
{
    oq_amx_end();
}

/* What this thread's next product fetches; nothing once it has begun. */
static _Thread_local struct {
    const char *from, *end;
} amx_next;

static void amx_ahead(const char *next, size_t bytes)
{
    amx_next.from = next;
    amx_next.end = next + bytes;
}

/* A step's part of it: spread evenly, since loads of tiles wait behind many at once. */
static inline __attribute__((always_inline)) const char *amx_fetch(const char *from, int64_t lines)
{
    for (int64_t i = 0; i < lines; i++) __builtin_prefetch(from + 64 * i, 0, 2);
    return from + 64 * lines;
}

/* What an engine over these tiles has besides its table. 1280 KB of A leave W's pieces room in the 2 MB of L2 of the Xeon it was
 * measured on (one thread, 512x1536x2048: int8 2784 -> 2995 GFLOP/s beside blocks of OQ_PANEL_ROWS; docs/SPEED.md). */
#define AMX_ENGINE .begin = amx_begin, .end = amx_end, .ahead = amx_ahead, .cached = 1280 << 10, .little = 256 << 10

/* Dwords [0, count) of k, `depth` at a time, onto what c holds or as c. */
#define AMX_PASS(name, dot)                                                                                  \
    static inline __attribute__((always_inline)) void name##_pass(const char *a, int64_t lda, const char *b, \
                                                                  int64_t count, int64_t depth, char *c,     \
                                                                  const int onto, const int tall)            \
    {                                                                                                        \
        const char *next = amx_next.from;                                                                    \
        const int64_t lines = ((amx_next.end - next) / 64 * depth + count - 1) / count;                      \
        amx_next.end = next;                                                                                 \
        oq_amx_load_sums(c, AMX_NR_BYTES, onto, tall, 1);                                                    \
        for (int64_t k = 0; k < count; k += depth) {                                                         \
            next = amx_fetch(next, lines);                                                                   \
            OQ_AMX_STEP(dot, oq_amx_pass, a + 4 * k, lda, oq_amx_load, b + AMX_NR_BYTES * k, AMX_NR_BYTES,   \
                        tall, 1);                                                                            \
        }                                                                                                    \
        oq_amx_store_sums(c, AMX_NR_BYTES, tall, 1);                                                         \
    }                                                                                                        \
                                                                                                             \
    static void name##_rows(const void *a, size_t lda, const void *b, int64_t rounds, void *c, int64_t onto, \
                            int rows)                                                                        \
    {                                                                                                        \
        const int64_t depth = rounds * OQ_PANEL_UNROLL, left = depth % OQ_AMX_DWORDS, whole = depth - left;  \
        const char *const a_left = (const char *)a + 4 * whole;                                              \
        const char *const b_left = (const char *)b + AMX_NR_BYTES * whole;                                   \
        if (whole) {                                                                                         \
            oq_amx_configure(rows, OQ_AMX_DWORDS);                                                           \
            if (rows > OQ_AMX_ROWS)                                                                          \
                name##_pass(a, (int64_t)lda, b, whole, OQ_AMX_DWORDS, c, onto != 0, 1);                      \
            else                                                                                             \
                name##_pass(a, (int64_t)lda, b, whole, OQ_AMX_DWORDS, c, onto != 0, 0);                      \
        }                                                                                                    \
        if (left) {                                                                                          \
            oq_amx_configure(rows, (int)left);                                                               \
            if (rows > OQ_AMX_ROWS)                                                                          \
                name##_pass(a_left, (int64_t)lda, b_left, left, left, c, onto || whole, 1);                  \
            else                                                                                             \
                name##_pass(a_left, (int64_t)lda, b_left, left, left, c, onto || whole, 0);                  \
        }                                                                                                    \
    }

#define AMX_MICRO(name, n)                                                                                   \
    static void name##_##n(const void *a, size_t lda, const void *b, int64_t rounds, void *c, int64_t onto)  \
    {                                                                                                        \
        name##_rows(a, lda, b, rounds, c, onto, n);                                                                \
    }
#define AMX_FOUR(M, name, a, b, c, d) M(name, a) M(name, b) M(name, c) M(name, d)
#define AMX_EACH(M, name)                                                                                    \
    AMX_FOUR(M, name, 1, 2, 3, 4)                                                                            \
    AMX_FOUR(M, name, 5, 6, 7, 8)                                                                            \
    AMX_FOUR(M, name, 9, 10, 11, 12)                                                                         \
    AMX_FOUR(M, name, 13, 14, 15, 16)                                                                        \
    AMX_FOUR(M, name, 17, 18, 19, 20)                                                                        \
    AMX_FOUR(M, name, 21, 22, 23, 24)                                                                        \
    AMX_FOUR(M, name, 25, 26, 27, 28)                                                                        \
    AMX_FOUR(M, name, 29, 30, 31, 32)
#define AMX_ENTRY(name, n) name##_##n,

/* The functions name_1 ... name_32 and their table `name`. */
#define AMX_MICRO_TABLE(name, dot)                                                                           \
    AMX_PASS(name, dot)                                                                                      \
    AMX_EACH(AMX_MICRO, name)                                                                                \
    static const oq_panel_micro name[AMX_MR + 1] = {NULL, AMX_EACH(AMX_ENTRY, name)};

/* Sums of a block of k, row by row under its factor onto c. */
static inline void amx_add_scaled(float *c, const float *sum, const float *factor, int rows)
{
    enum { COLUMNS = AMX_NR_BYTES / 4 };
    for (int r = 0; r < rows; r++, c += COLUMNS, sum += COLUMNS)
        for (int i = 0; i < COLUMNS; i += 16)
            _mm512_storeu_ps(c + i, _mm512_fmadd_ps(_mm512_set1_ps(factor[r]), _mm512_load_ps(sum + i), _mm512_loadu_ps(c + i)));
}

#define AMX_SCALED(name, n)                                                                                  \
    static void name##_scaled_##n(const void *a, size_t lda, const void *b, int64_t rounds, void *c,         \
                                  const float *factor)                                                       \
    {                                                                                                        \
        _Alignas(64) float sum[AMX_MR * AMX_NR_BYTES / 4];                                                   \
        name##_rows(a, lda, b, rounds, sum, 0, n);                                                           \
        amx_add_scaled(c, sum, factor, n);                                                                   \
    }
#define AMX_SCALED_ENTRY(name, n) name##_scaled_##n,

/* The functions name_scaled_1 ... and their table `name_scaled`, of a table `name` of sums in f32. */
#define AMX_SCALED_TABLE(name)                                                                               \
    AMX_EACH(AMX_SCALED, name)                                                                               \
    static const oq_panel_micro_scaled name##_scaled[AMX_MR + 1] = {NULL, AMX_EACH(AMX_SCALED_ENTRY, name)};

#endif
