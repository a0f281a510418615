/* linear_panel_any_avx512bf16.c -- bf16 products for weights that rest in their format's own planes: a piece of a panel
 * becomes bf16 (rounded once, as a checkpoint that is dequantized to the compute type would be) and is multiplied by
 * vdpbf16ps. For x that bf16 holds: BF16 as it is, or codes under powers of two. A few rows meet codes that are
 * bf16 as they are read. An x of type F32, or of a few rows over other codes, goes through f32 products of the same
 * planes. */
#define OQ_SPAN_BF16 1
#include "cpu/linear/linear_micro_avx512.h"
#include "cpu/linear/linear_few_bf16.h"
#include "cpu/linear/linear_panel_any.h"

enum { MR = 12, NR = 32, STEP = 2, COLUMNS = 16, ROW = OQ_PANEL_CHUNK * STEP };

MICRO_TABLE(micro, "vdpbf16ps")

/* Codes times a power of two: exact. */
static void prologue_mx(const oq_scheme *scheme, const oq_tensor *x, int64_t row, int64_t k, uint16_t *a)
{
    for (int64_t first = 0; first < k; first += ROW_CHUNK) {
        const int64_t n = k - first < ROW_CHUNK ? k - first : ROW_CHUNK;
        const oq_tensor piece = oq_tensor_cols(*x, first, n);
        float part[ROW_CHUNK];
        row_load(part, &piece, row, n);
        row_mx(scheme, part, n);
        for (int64_t i = 0; i < n; i++) a[first + i] = (uint16_t)(oq_f32_bits(part[i]) >> 16);
    }
}

static void prologue(const oq_panel_job *job, int64_t row)
{
    const oq_tensor *const x = &job->args->x;
    const int64_t k = job->args->spec->k, from = job->first + row;
    uint16_t *const a = (uint16_t *)(job->a + (size_t)row * job->lda);
    memset(a + k, 0, (size_t)(job->layout.depth * STEP - k) * sizeof *a);
    job->row_scale[row] = 1.0f;
    if (job->args->spec->scheme.act)
        prologue_mx(&job->args->spec->scheme, x, from, k, a);
    else
        memcpy(a, (const uint16_t *)x->data + from * x->ld, (size_t)k * sizeof *a);
    if (!job->few) return;
    const int group = few_sums_group(job->args->spec);
    if (group) {
        float *const sums = few_sums(job, row);
        sums[few_sums_flag(job->args->spec)] = few_sum_groups(sums, a, k, group) ? 0.0f : 1.0f;
    }
    few_order_pairs(few_kind_of(job->args->spec), a, k);
}

/* dst[i][j] = src[j][i] for 16 x 16 dwords; rows of src are ROW numbers apart, those of dst NR dwords. */
static void transpose16(uint32_t *dst, const uint16_t *src)
{
    __m512i r[16];
    OQ_UNROLL
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(src + i * ROW);
    v_transpose16(dst, NR, r);
}

/* The columns that come next, on their way into L2 while the product runs on those at hand. */
static void fetch_ahead(const codes_of_row *c, int64_t row, int64_t first, int64_t count)
{
    const size_t from = c->row_bytes * (size_t)first / (size_t)c->k,
                 n = c->row_bytes * (size_t)count / (size_t)c->k;
    const char *const at = c->data + (size_t)row * c->row_bytes + from;
    for (size_t i = 0; i < n; i += 64) _mm_prefetch(at + i, _MM_HINT_T1);
}

/* Sixteen columns of W at a time: decoded along k, then turned. Columns and k that are not there are zero. */
static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    const oq_linear_spec *const spec = job->args->spec;
    const int64_t left = spec->k - first * STEP, there = left < count * STEP ? left : count * STEP;
    const int64_t filled = (count + 15) / 16 * 16 * STEP;
    const int64_t next = first * STEP + there, ahead = spec->k - next < there ? spec->k - next : there;
    const codes_of_row codes = codes_init(job);
    _Alignas(64) uint16_t rows[COLUMNS * ROW + 16];
    for (int64_t c = 0; c < NR; c += COLUMNS) {
        for (int64_t j = 0; j < COLUMNS; j++) {
            const int64_t row = panel * NR + c + j, have = row < spec->n && there > 0 ? there : 0;
            uint16_t *const at = rows + j * ROW;
            if (have) decode_columns(spec, &job->planes, at, row, first * STEP, have);
            if (have && ahead > 0) fetch_ahead(&codes, row, next, ahead);
            if (have < filled) memset(at + have, 0, (size_t)(filled - have) * sizeof *at);
        }
        for (int64_t i = 0; i < count; i += 16) transpose16((uint32_t *)buffer + i * NR + c, rows + i * STEP);
    }
    return buffer;
}

static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    pairs_few(job, c, panel, NR);
}

static int64_t few_rows(const oq_linear_spec *spec)
{
    return few_pairs_take(spec, OQ_PANEL_FEW) ? OQ_PANEL_FEW : 0;
}

/* Rows that f32 products take whose codes are not for pairs: more of them pay for a panel, two where W is decoded to
 * memory in either way. */
static int64_t f32_rows(const oq_linear_spec *spec)
{
    return few_kind_of(spec) == FEW_SPANS ? 1 : 4;
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = 0,
                                       .integers = false,
                                       .plain = &oq_dtype_bf16,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .few = few,
                                       .few_rows = few_rows,
                                       .store = oq_panel_store_avx512};

size_t oq_panel_any_avx512bf16_packed_bytes(const oq_linear_spec *spec)
{
    return oq_panel_packed_bytes(&engine, spec);
}

void oq_panel_any_avx512bf16_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    oq_panel_pack(&engine, dst, src, spec);
}

size_t oq_panel_any_avx512bf16_scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    return oq_panel_any_avx512_scratch_bytes(spec, m); /* the larger of the two */
}

bool oq_panel_any_avx512bf16_rounds(const oq_linear_spec *spec, int64_t m)
{
    return m > f32_rows(spec) && !few_pairs_take(spec, m);
}

void oq_panel_any_avx512bf16_run(oq_device *device, const oq_linear_args *args)
{
    const int64_t m = args->x.rows;
    const bool pairs = m > f32_rows(args->spec) || few_pairs_take(args->spec, m);
    if (args->x.dtype == &oq_dtype_bf16 && pairs)
        oq_panel_run(&engine, device, args);
    else
        oq_panel_any_avx512_run(device, args);
}

unsigned oq_panel_any_avx512bf16_fuses(const oq_linear_spec *spec)
{
    return oq_panel_fuses(&engine, spec); /* both */
}
