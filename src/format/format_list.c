/* format_list.c -- the index of the room: every format, once. */
#include "format/format.h"
#include "format/format_e5m2.h"

#include <stdio.h>
#include <string.h>

const oq_format *const oq_format_list[] = {
    &oq_format_f32,
    &oq_format_bf16,
    &oq_format_f16,
    &oq_format_fp8_e4m3_tensor,
    &oq_format_fp8_e4m3_channel,
    &oq_format_fp8_e4m3_block128,
    &oq_format_fp8_e4m3_group128,
    &oq_format_fp8_e5m2_tensor,
    &oq_format_fp8_e5m2_channel,
    &oq_format_int8_tensor,
    &oq_format_int8_channel,
    &oq_format_int8_scb,
    &oq_format_mxfp8,
    &oq_format_mxfp4,
    &oq_format_mxfp4_q725,
    &oq_format_mxfp4_dual,
    &oq_format_nvfp4,
    &oq_format_nvfp4_rows,
    &oq_format_nvfp4_inverse,
    &oq_format_nvfp4_inverse_rows,
#define ENTRY(b)                                                                                             \
    &oq_format_nf4_b##b, &oq_format_nf4_b##b##_nested, &oq_format_fp4_b##b, &oq_format_fp4_b##b##_nested,
    OQ_BNB4_BLOCKS(ENTRY)
#undef ENTRY
#define ENTRY(name) &oq_format_##name,
            OQ_INT4F_FORMATS(ENTRY) OQ_INT_FORMATS(ENTRY) OQ_WHOLE_FORMATS(ENTRY) OQ_AFFINE_FORMATS(ENTRY)
                OQ_SPREAD_FORMATS(ENTRY)
#define ENTRY_FN(E, M)  OQ_MINI_GROUPS(ENTRY, e##E##m##M##fn)
#define ENTRY_FNU(E, M) OQ_MINI_GROUPS(ENTRY, e##E##m##M##fnu)
                    OQ_MINI_SIGNED(ENTRY_FN) OQ_MINI_UNSIGNED(ENTRY_FNU)
#undef ENTRY_FN
#undef ENTRY_FNU
#undef ENTRY
        & oq_format_int4_e4m3_g128,
    &oq_format_int4_channel,
    &oq_format_q4_0,
    &oq_format_q4_1,
    &oq_format_q5_0,
    &oq_format_q5_1,
    &oq_format_q8_0,
    &oq_format_q2_k,
    &oq_format_q3_k,
    &oq_format_q4_k,
    &oq_format_q5_k,
    &oq_format_q6_k,
    &oq_format_q8_k,
    &oq_format_iq4_nl,
    &oq_format_iq4_xs,
    &oq_format_tq1_0,
    &oq_format_tq2_0,
    &oq_format_mxfp4_gguf,
    &oq_format_nvfp4_gguf,
    &oq_format_q1_0,
    &oq_format_q2_0,
    &oq_format_iq2_xxs,
    &oq_format_iq2_xs,
    &oq_format_iq2_s,
    &oq_format_iq3_xxs,
    &oq_format_iq3_s,
    &oq_format_iq1_s,
    &oq_format_iq1_m,
    NULL,
};

const oq_format *oq_format_find(const char *name)
{
    for (size_t i = 0; oq_format_list[i]; i++)
        if (!strcmp(oq_format_list[i]->name, name)) return oq_format_list[i];
    return NULL;
}

const oq_format *oq_format_plain(const oq_dtype *dtype)
{
    if (dtype == &oq_dtype_f32) return &oq_format_f32;
    if (dtype == &oq_dtype_bf16) return &oq_format_bf16;
    if (dtype == &oq_dtype_f16) return &oq_format_f16;
    return NULL;
}

static bool has_scales(const oq_format *f, const oq_dtype *scale)
{
    return f->scale_type == (scale == &oq_dtype_f16 || scale == &oq_dtype_bf16 ? scale : NULL);
}

const oq_format *oq_format_int(int bits, int group, bool zero_points, const oq_dtype *scale)
{
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *f = oq_format_list[i];
        const bool zeros = f->planes & 1u << OQ_PLANE_ZERO;
        if (bits > 0 && f->int_bits == bits && f->block_k == group && zeros == zero_points &&
            has_scales(f, scale))
            return f;
    }
    return NULL;
}

const oq_format *oq_format_int4_float(int group, bool middle, const oq_dtype *scale)
{
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *f = oq_format_list[i];
        if (strcmp(f->kernel_name, middle ? "int4f" : "uint4f") == 0 && f->block_k == group &&
            has_scales(f, scale))
            return f;
    }
    return NULL;
}

const oq_format *oq_format_affine(oq_affine kind, int bits, int group, const oq_dtype *scale)
{
    static const char *const words[] = {
        [OQ_AFFINE_FMA] = "fma", [OQ_AFFINE_ZF] = "zf", [OQ_AFFINE_SUM] = "sum"};
    char word[24];
    snprintf(word, sizeof word, "uint%d%s", bits, words[kind]);
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *f = oq_format_list[i];
        if (strcmp(f->kernel_name, word) == 0 && f->block_k == group && has_scales(f, scale)) return f;
    }
    return NULL;
}

const oq_format *oq_format_spread(int bits, int64_t group, const oq_dtype *scale)
{
    char word[32];
    snprintf(word, sizeof word, "uint%dzf_spread", bits);
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *f = oq_format_list[i];
        if (strcmp(f->kernel_name, word) == 0 && f->block_n == group && has_scales(f, scale)) return f;
    }
    return NULL;
}

const oq_format *oq_format_mini(int exponent, int mantissa, bool sign, int group)
{
    char name[40];
    snprintf(name, sizeof name, group ? "e%dm%dfn%s_g%d" : "e%dm%dfn%s_channel", exponent, mantissa,
             sign ? "" : "u", group);
    return oq_format_find(name);
}
