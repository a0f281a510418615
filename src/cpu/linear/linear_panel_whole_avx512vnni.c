/* linear_panel_whole_avx512vnni.c -- many rows of x in fixed point times weights whose codes are whole numbers, both of 16
 * bits, by vpdpwssd: twice as many products as f32 has. Sums of a group of columns are exact in int32, then scaled and added
 * as f32. For x of type BF16; the planes of W are those that the engines of f32 products read. */
#include "cpu/linear/linear_fixed.h"
#include "cpu/linear/linear_micro_avx512.h"

/* What a row of x beyond FIXED_ROOM is divided by: what is left of the largest f32 is FIXED_ROOM. */
#define LARGE 0x1p40f

enum { MR = 12, NR = 32, WHOLE_NR = NR, TURN = 16 };

#include "cpu/linear/linear_any_fetch.h"
#include "cpu/linear/linear_decode_whole.h"
#include "cpu/linear/linear_panel_rows.h"

MICRO_GROUPED_TABLE(grouped, "vpdpwssd")

static oq_panel_group group_of(const oq_linear_spec *spec)
{
    const whole_way way = whole_way_of(spec);
    return (oq_panel_group){.columns = way.columns, .sums = way.sums, .chunk = WHOLE_CHUNK};
}

/* ---- x ----------------------------------------------------------------------------------------------------- */

/* A group of x: numbers, the step (twice as large where numbers are to be narrow), sums of its runs. One that is not finite:
 * zeros under NaN. False: its numbers are, but products may be none. */
static inline bool put_group(char *a, const float *x, const oq_panel_group *g, bool narrow)
{
    const float amax = row_amax(x, g->columns), step = fixed_step(amax, FIXED_BF16) * (narrow ? 2.0f : 1.0f),
                inverse = 1.0f / step;
    int16_t *const number = (int16_t *)(void *)a;
    float *const tail = (float *)(void *)(a + 2 * g->columns);
    if (step != step)
        memset(number, 0, (size_t)g->columns * sizeof *number);
    else
        for (int i = 0; i < g->columns; i++) number[i] = (int16_t)fixed_whole(x[i], inverse);
    tail[0] = step;
    const int run = g->sums ? g->columns / g->sums : 0;
    for (int s = 0; s < g->sums; s++) {
        int32_t sum = 0;
        for (int i = 0; i < run; i++) sum += number[s * run + i];
        tail[1 + s] = (float)sum * step;
    }
    return step != step || amax <= FIXED_ROOM;
}

/* Row of x times `by`. */
static bool put_row(const oq_panel_job *job, int64_t row, float by)
{
    const oq_panel_group *const g = &job->layout.group;
    const size_t bytes = (size_t)oq_panel_group_dwords(g) * 4;
    char *a = job->a + (size_t)row * job->lda;
    const whole_way way = whole_way_of(job->args->spec);
    bool fits = true;
    for (int64_t first = 0; first < job->args->spec->k; first += g->columns, a += bytes) {
        const oq_tensor piece = oq_tensor_cols(job->args->x, first, g->columns);
        float x[WHOLE_CHUNK];
        row_load(x, &piece, job->first + row, g->columns);
        for (int i = 0; by < 1.0f && i < g->columns; i++) x[i] *= by;
        fits &= put_group(a, x, g, way.digits < 15);
    }
    return fits;
}

/* A row with numbers that leave W no room is put as its LARGE-th part. */
static void prologue(const oq_panel_job *job, int64_t row)
{
    job->row_scale[row] = 1.0f;
    if (put_row(job, row, 1.0f)) return;
    job->row_scale[row] = LARGE;
    put_row(job, row, 1.0f / LARGE);
}

/* And its sums are that much larger. */
static void finish(const oq_panel_job *job, void *c, int64_t row, int64_t count)
{
    float *sums = c;
    for (int64_t r = 0; r < count; r++, sums += NR)
        for (int64_t i = 0; job->row_scale[row + r] > 1.0f && i < NR; i++) sums[i] *= job->row_scale[row + r];
}

/* ---- W ----------------------------------------------------------------------------------------------------- */

/* Sixteen rows of numbers, WHOLE_CHUNK apart, to dwords of pairs under each other; the columns of one group. */
static void turn(uint32_t *dst, const int16_t *src, int64_t columns)
{
    __m512i r[TURN];
    for (int64_t k = 0; k < columns; k += 2 * TURN, dst += TURN * NR, src += 2 * TURN) {
        OQ_UNROLL
        for (int i = 0; i < TURN; i++) r[i] = _mm512_loadu_si512(src + i * WHOLE_CHUNK);
        v_transpose16(dst, NR, r);
    }
}

static void decode_row(const oq_panel_job *job, const whole_way *way, __m512i table, whole_to to, int64_t row,
                       int64_t first, int64_t count)
{
    const oq_linear_spec *const spec = job->args->spec;
    const oq_block *const block = spec->scheme.weight->block;
    if (!block) {
        whole_planes(way, spec, &job->planes, table, to, row, first, count);
        return;
    }
    const int64_t at = (row * spec->k + first) / block->elems;
    way->blocks(to, (const uint8_t *)job->planes.plane[OQ_PLANE_DATA] + at * block->bytes,
                count / block->elems, block, way->columns);
}

/* Columns of W that are not there are zero. */
static void absent_row(whole_to to, const oq_panel_group *g, int64_t count)
{
    memset(to.number, 0, (size_t)count * sizeof *to.number);
    for (int64_t at = 0; at < count; at += g->columns, to.scale += to.step)
        for (int s = 0; s <= g->sums; s++) to.scale[s * NR] = 0.0f;
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    const oq_linear_spec *const spec = job->args->spec;
    const oq_panel_group *const g = &job->layout.group;
    const int64_t dwords = oq_panel_group_dwords(g), step = dwords * NR;
    const int64_t from = first / dwords * g->columns, there = count / dwords * g->columns;
    const int64_t next = from + there, ahead = oq_min_i64(spec->k - next, there);
    const codes_of_row codes = codes_init(job);
    const whole_way way = whole_way_of(spec);
    const __m512i table =
        spec->scheme.weight->piece ? whole_table(spec, &job->planes, way.times) : _mm512_setzero_si512();
    _Alignas(64) int16_t rows[TURN * WHOLE_CHUNK];
    for (int64_t c = 0; c < NR; c += TURN) {
        for (int64_t j = 0; j < TURN; j++) {
            const int64_t row = panel * NR + c + j;
            const whole_to to = {rows + j * WHOLE_CHUNK, (float *)buffer + g->columns / 2 * NR + c + j, step};
            if (row < spec->n)
                decode_row(job, &way, table, to, row, from, there);
            else
                absent_row(to, g, there);
            if (row < spec->n && ahead > 0) fetch_ahead(&codes, row, next, ahead);
        }
        for (int64_t k = 0; k < there; k += g->columns)
            turn((uint32_t *)buffer + k / g->columns * step + c, rows + k, g->columns);
    }
    return buffer;
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = 1,
                                       .pack_step = 0,
                                       .integers = false,
                                       .grouped = grouped,
                                       .group_of = group_of,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .store = oq_panel_store_avx512,
                                       .finish = finish};

/* ---- the engine and what it leaves to others ----------------------------------------------------------------- */

/* A product of 16-bit numbers stands for two of bytes, and scaling its sums takes up to a third of the time. Nothing
 * measured: bytes are taken to be as fast as they mostly are, pairs of bf16 too. */
static bool pays(const oq_device *device)
{
    const double *const g = device->rates.gflops,
                        most = g[OQ_RATE_F32] > g[OQ_RATE_BF16] ? g[OQ_RATE_F32] : g[OQ_RATE_BF16];
    if (!(g[OQ_RATE_INT8] > 0)) return !(device->features & OQ_CPU_AVX512BF16);
    return g[OQ_RATE_INT8] > 2.8 * most;
}

static bool whole_takes(const oq_linear_spec *spec)
{
    return oq_panel_any(spec) && whole_way_of(spec).columns;
}

bool oq_panel_whole_multiplies(const oq_device *device, const oq_linear_spec *spec, const oq_dtype *x,
                               int64_t m)
{
    return m > OQ_PANEL_FEW && x == &oq_dtype_bf16 && whole_takes(spec) && pays(device);
}

double oq_panel_whole_loss(const oq_linear_spec *spec, int64_t *run)
{
    const whole_way way = whole_way_of(spec);
    *run = way.columns;
    return way.digits < 15 ? 2.0 * (double)FIXED_LOSS_16 : (double)FIXED_LOSS_16;
}

double oq_panel_whole_times(const oq_linear_spec *spec)
{
    const whole_way way = whole_way_of(spec);
    return way.times > 2.0f ? (double)way.times : 0.0;
}

bool oq_panel_whole_avx512vnni_takes(const oq_linear_spec *spec)
{
    return whole_takes(spec);
}

size_t oq_panel_whole_avx512vnni_packed_bytes(const oq_linear_spec *spec)
{
    return oq_panel_any_avx512_packed_bytes(spec); /* the same planes */
}

void oq_panel_whole_avx512vnni_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    oq_panel_any_avx512_pack(dst, src, spec);
}

size_t oq_panel_whole_avx512vnni_scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    return oq_panel_any_avx512_scratch_bytes(spec, m); /* rows of f32 are the largest */
}

void oq_panel_whole_avx512vnni_run(oq_device *device, const oq_linear_args *args)
{
    if (oq_panel_whole_multiplies(device, args->spec, args->x.dtype, args->x.rows))
        oq_panel_run(&engine, device, args);
    else if (oq_panel_fixed_avx512vnni_takes(args->spec))
        oq_panel_fixed_avx512vnni_run(device, args);
    else if (device->features & OQ_CPU_AVX512BF16)
        oq_panel_any_avx512bf16_run(device, args);
    else
        oq_panel_any_avx512_run(device, args);
}

unsigned oq_panel_whole_avx512vnni_fuses(const oq_linear_spec *spec)
{
    return oq_panel_any_avx512_fuses(spec);
}
