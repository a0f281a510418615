/* linear_panel_any_bf16.c -- bf16 products for weights that rest in their format's own planes: a piece of a panel becomes bf16
 * (rounded once, as a checkpoint that is dequantized to the compute type would be) and is multiplied by bfmmla. For x that
 * bf16 holds: BF16 as it is, or codes under powers of two. An x of type F32, or of a few rows, goes through f32 products of
 * the same planes. */
#define OQ_SPAN_BF16 1
#include "cpu/linear/linear_any_pairs.h"
#include "cpu/linear/linear_few_codes.h"
#include "cpu/linear/linear_micro_neon.h"

MICRO_TABLE_PAIRS(micro, OP_BF16)

static void prologue(const oq_panel_job *job, int64_t row)
{
    pairs_prologue(job, row);
}

/* Eight of k of two columns at a time: the first four of both stand side by side, then the other four. */
OQ_INLINE void turn(uint32_t *dst, const uint16_t *src)
{
    for (int64_t k = 0; k < 32; k += 8, dst += 4 * MICRO_COLUMNS)
        for (int64_t c = 0; c < PAIR_COLUMNS; c += 2) {
            const float32x4_t a = vreinterpretq_f32_u16(vld1q_u16(src + c * PAIR_ROW + k));
            const float32x4_t b = vreinterpretq_f32_u16(vld1q_u16(src + (c + 1) * PAIR_ROW + k));
            vst1q_u32(dst + 2 * c, vreinterpretq_u32_f32(neon_halves(a, b, false)));
            vst1q_u32(dst + 2 * (c + MICRO_COLUMNS), vreinterpretq_u32_f32(neon_halves(a, b, true)));
        }
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return pairs_decode(job, buffer, panel, first, count, turn);
}

/* Rows that f32 products take: more of them pay for a panel, two where W is decoded to memory in either way. */
static int64_t f32_rows(const oq_linear_spec *spec)
{
    return few_kind_of(spec) == FEW_SPANS ? 1 : 4;
}

static const oq_panel_engine engine = {.mr = MICRO_ROWS,
                                       .nr = MICRO_COLUMNS,
                                       .step = 2,
                                       .pack_step = 0,
                                       .integers = false,
                                       .plain = &oq_dtype_bf16,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .store = oq_panel_store_neon};

size_t oq_panel_any_bf16_packed_bytes(const oq_linear_spec *spec)
{
    return oq_panel_packed_bytes(&engine, spec);
}

void oq_panel_any_bf16_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    oq_panel_pack(&engine, dst, src, spec);
}

size_t oq_panel_any_bf16_scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    const size_t pairs = oq_panel_scratch_bytes(&engine, spec, m),
                 plain = oq_panel_any_neon_scratch_bytes(spec, m);
    return pairs > plain ? pairs : plain;
}

bool oq_panel_any_pairs_rounds(const oq_linear_spec *spec, int64_t m)
{
    return m > f32_rows(spec);
}

void oq_panel_any_bf16_run(oq_device *device, const oq_linear_args *args)
{
    if (args->x.dtype == &oq_dtype_bf16 && args->x.rows > f32_rows(args->spec))
        oq_panel_run(&engine, device, args);
    else
        oq_panel_any_neon_run(device, args);
}

unsigned oq_panel_any_bf16_fuses(const oq_linear_spec *spec)
{
    return oq_panel_fuses(&engine, spec); /* both */
}
