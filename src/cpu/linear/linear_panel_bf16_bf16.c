/* linear_panel_bf16_bf16.c -- bf16, fp8 and int8 weights times x that bf16 holds exactly, by bfmmla: two rows by two columns,
 * four of k at once; four rows and fewer straight from the weights at rest. An x of type F32 is not rounded: the same panels
 * then go through f32 products. */
#include "cpu/linear/linear_micro_neon.h"
#include "cpu/linear/linear_pairs.h"

enum {
    MR = MICRO_ROWS,
    NR = MICRO_COLUMNS,
    STEP = 2,
    RUN = 4 /* k of one column side by side */,
    FEW = 4,
    AHEAD = 2048
};

MICRO_TABLE_PAIRS(micro, OP_BF16)
MICRO_TABLE_LANES(micro_f32, DWORDS, OP_F32)

/* ---- codes as bf16: the upper halves of their numbers, which have all of them -------------------------------- */

OQ_INLINE bfloat16x8_t upper_halves(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_bf16_u16(vuzp2q_u16(vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b)));
}

OQ_INLINE f16x numbers_of(const char *at, bool integers)
{
    const b16 codes = b16_load(at);
    return integers ? f16x_i8(codes) : f16x_mul(f16x_halves(h16_of_e4m3(codes)), f16x_set(256.0f));
}

/* Two registers of B, two columns each, out of weights of so many bytes. */
typedef struct two {
    bfloat16x8_t a, b;
} two;

OQ_INLINE two next_two(const char **at, size_t element, bool integers)
{
    const char *const p = *at;
    __builtin_prefetch(p + AHEAD);
    *at += 16 * element;
    if (element == 2) {
        const uint16_t *const words = (const uint16_t *)(const void *)p;
        return (two){vreinterpretq_bf16_u16(vld1q_u16(words)), vreinterpretq_bf16_u16(vld1q_u16(words + 8))};
    }
    const f16x x = numbers_of(p, integers);
    return (two){upper_halves(x.v[0], x.v[1]), upper_halves(x.v[2], x.v[3])};
}

static const char *piece_of(const oq_panel_job *job, int64_t panel, int64_t k)
{
    return job->panels + (size_t)panel * job->layout.panel_bytes + (size_t)(k * NR) * job->layout.element;
}

static const void *decode_bf16(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                               int64_t count)
{
    const char *src = piece_of(job, panel, first * STEP);
    if (job->layout.element == 2) return src;
    const bool integers = is_i8(job);
    uint16_t *to = buffer;
    for (int64_t i = 0; i < count * NR / 8; i++, to += 16) {
        const two w = integers ? next_two(&src, 1, true) : next_two(&src, 1, false);
        vst1q_u16(to, vreinterpretq_u16_bf16(w.a));
        vst1q_u16(to + 8, vreinterpretq_u16_bf16(w.b));
    }
    return buffer;
}

/* ---- few rows: all of k, from the weights at rest ------------------------------------------------------------ */

/* Rows 2 p and 2 p + 1 of x (the last one twice where there is no other), eight of k: four of both, then the next four. */
OQ_INLINE void rows_of(bfloat16x8_t x[2], const oq_panel_job *job, int p, size_t at)
{
    const int64_t second = 2 * p + 1 < job->rows ? 2 * p + 1 : 2 * p;
    const char *const a = job->a + (size_t)(2 * p) * job->lda + at, *const b = job->a +
                                                                               (size_t)second * job->lda + at;
    const float32x4_t one = vld1q_f32((const float *)(const void *)a),
                      other = vld1q_f32((const float *)(const void *)b);
    x[0] = vreinterpretq_bf16_f32(neon_halves(one, other, false));
    x[1] = vreinterpretq_bf16_f32(neon_halves(one, other, true));
}

OQ_INLINE void few_body(const oq_panel_job *job, float *c, int64_t panel, const int pairs,
                        const size_t element, const bool integers)
{
    float32x4_t acc[FEW / 2][8];
    const char *at = piece_of(job, panel, 0);
    for (int p = 0; p < pairs; p++)
        for (int v = 0; v < 8; v++) acc[p][v] = vdupq_n_f32(0.0f);
    for (int64_t k = 0; k < job->layout.depth * STEP; k += 8) {
        bfloat16x8_t x[FEW / 2][2];
        OQ_UNROLL
        for (int p = 0; p < pairs; p++) rows_of(x[p], job, p, (size_t)k * 2);
        OQ_UNROLL
        for (int i = 0; i < 8; i++) {
            const two w = next_two(&at, element, integers);
            OQ_UNROLL
            for (int p = 0; p < pairs; p++) {
                acc[p][i % 4 * 2] = vbfmmlaq_f32(acc[p][i % 4 * 2], x[p][i / 4], w.a);
                acc[p][i % 4 * 2 + 1] = vbfmmlaq_f32(acc[p][i % 4 * 2 + 1], x[p][i / 4], w.b);
            }
        }
    }
    for (int p = 0; p < pairs; p++)
        for (int v = 0; v < 4; v++) {
            float *const to = c + 2 * p * NR + 4 * v;
            vst1q_f32(to, neon_halves(acc[p][2 * v], acc[p][2 * v + 1], false));
            if (2 * p + 1 < job->rows)
                vst1q_f32(to + NR, neon_halves(acc[p][2 * v], acc[p][2 * v + 1], true));
        }
}

static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    const bool one = job->rows <= 2;
    if (job->layout.element == 2)
        one ? few_body(job, c, panel, 1, 2, false) : few_body(job, c, panel, 2, 2, false);
    else if (is_i8(job))
        one ? few_body(job, c, panel, 1, 1, true) : few_body(job, c, panel, 2, 1, true);
    else
        one ? few_body(job, c, panel, 1, 1, false) : few_body(job, c, panel, 2, 1, false);
}

static int64_t few_rows(const oq_linear_spec *spec)
{
    (void)spec;
    return FEW;
}

/* ---- x of type F32 ------------------------------------------------------------------------------------------- */

/* Four columns, four of k each, as they lie there. */
OQ_INLINE f16x block_of(const char *at, size_t element, bool integers)
{
    if (element == 1) return numbers_of(at, integers);
    const uint16_t *const p = (const uint16_t *)(const void *)at;
    const vf low = v_load_bf16(p), high = v_load_bf16(p + 8);
    return (f16x){{low.a, low.b, high.a, high.b}};
}

static const void *decode_f32(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first,
                              int64_t count)
{
    const size_t element = job->layout.element;
    const bool integers = is_i8(job);
    const char *src = piece_of(job, panel, first);
    for (int64_t k = 0; k < count; k += RUN)
        for (int64_t c = 0; c < NR; c += 4, src += 16 * element) {
            f16x block = block_of(src, element, integers);
            neon_transpose4(block.v);
            for (int64_t i = 0; i < RUN; i++) vst1q_f32((float *)buffer + (k + i) * NR + c, block.v[i]);
        }
    return buffer;
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = RUN,
                                       .integers = false,
                                       .plain = &oq_dtype_bf16,
                                       .micro = micro,
                                       .prologue = prologue_bf16,
                                       .decode = decode_bf16,
                                       .few = few,
                                       .few_rows = few_rows,
                                       .store = oq_panel_store_neon};

static const oq_panel_engine engine_f32 = {.mr = MR,
                                           .nr = NR,
                                           .step = 1,
                                           .pack_step = RUN,
                                           .integers = false,
                                           .plain = &oq_dtype_f32,
                                           .micro = micro_f32,
                                           .prologue = prologue_f32,
                                           .decode = decode_f32,
                                           .store = oq_panel_store_neon};

PAIRS_ENGINE_DEFINE(bf16_bf16, &engine, &engine_f32)
