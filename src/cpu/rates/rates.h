/* rates.h -- how fast this processor multiplies by each kind of instruction: what kernels are chosen by, since an
 * instruction that is there need not be the faster one (vdpbf16ps is twice f32 on one make and half of it on another). */
#ifndef OQ_CPU_RATES_H
#define OQ_CPU_RATES_H

#include "cpu/cpu.h"

/* What this machine reached when it was measured: from the user's cache, or measured now (about 10 ms) and kept there.
 * A cache that cannot be read, written or believed costs the measurement again and nothing else. */
void oq_cpu_rates_get(uint64_t probed, oq_cpu_rates *out);

/* Features of `probed` that are better not used at these rates. */
uint64_t oq_cpu_rates_slower(uint64_t probed, const oq_cpu_rates *rates);

/* "products per core in GFLOP/s: f32 168, bf16 86 (left out), …": for people; nothing where nothing was measured. */
void oq_cpu_rates_describe(const oq_cpu_rates *rates, uint64_t features, char *out, size_t n);

/* What stands in the cache for a machine called `key`, and back; false: it is no such text. */
void oq_cpu_rates_print(const oq_cpu_rates *rates, const char *key, char *out, size_t n);
bool oq_cpu_rates_parse(const char *text, const char *key, oq_cpu_rates *out);

/* ---- the work that is timed: one tile product over these operands, OQ_RATE_STEP(kind) multiplications a dword ---- */

enum { OQ_RATE_ROWS = 32, OQ_RATE_COLS = 32, OQ_RATE_DEPTH = 192, OQ_RATE_LDA = OQ_RATE_DEPTH + 16 };

typedef struct oq_rate_work {
    _Alignas(64) float a[OQ_RATE_ROWS * OQ_RATE_LDA];
    _Alignas(64) float b[OQ_RATE_DEPTH * OQ_RATE_COLS];
    _Alignas(64) float c[OQ_RATE_ROWS * OQ_RATE_COLS];
} oq_rate_work;

void oq_rate_f32_avx2(oq_rate_work *w);
void oq_rate_f32_avx512(oq_rate_work *w);
void oq_rate_bf16_avx512bf16(oq_rate_work *w);
void oq_rate_i8_avx512vnni(oq_rate_work *w);
void oq_rate_bf16_amx(oq_rate_work *w);
void oq_rate_i8_amx(oq_rate_work *w);
void oq_rate_f32_neon(oq_rate_work *w);
void oq_rate_bf16_bf16(oq_rate_work *w);
void oq_rate_i8_dotprod(oq_rate_work *w);
void oq_rate_i8_i8mm(oq_rate_work *w);

#endif
