/* linear_panel_any_avx512bf16.c -- bf16 products for weights that rest in their format's own planes: a piece of a panel
 * becomes bf16 (rounded once, as a checkpoint that is dequantized to the compute type would be) and is multiplied by
 * vdpbf16ps. For x that bf16 holds: BF16 as it is, or codes under powers of two. A few rows meet codes that are
 * bf16 as they are read. An x of type F32, or of a few rows over other codes, goes through f32 products of the same
 * planes. */
#define OQ_SPAN_BF16 1
#include "cpu/linear/linear_micro_avx512.h"
#include "cpu/linear/linear_few_bf16.h"
#include "cpu/linear/linear_any_pairs.h"

enum { MR = 12, NR = 32, STEP = 2 };

MICRO_TABLE(micro, "vdpbf16ps")

#include "cpu/linear/linear_pairs_avx512.h"

static void prologue(const oq_panel_job *job, int64_t row)
{
    pairs_prologue(job, row);
    const int64_t k = job->args->spec->k;
    uint16_t *const a = (uint16_t *)(job->a + (size_t)row * job->lda);
    if (!job->few) return;
    const int group = few_sums_group(job->args->spec);
    if (group) {
        float *const sums = few_sums(job, row);
        sums[few_sums_flag(job->args->spec)] = few_sum_groups(sums, a, k, group) ? 0.0f : 1.0f;
    }
    few_order_pairs(few_kind_of(job->args->spec), a, k);
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

bool oq_panel_any_pairs_rounds(const oq_linear_spec *spec, int64_t m)
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
