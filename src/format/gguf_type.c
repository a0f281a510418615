/* gguf_type.c -- the table of GGUF's element types. Numbers that are missing were withdrawn by the format's owners. */
#include "format/gguf_type.h"

#include <ctype.h>
#include <string.h>

#define INTERMEDIATE "it holds activations, not weights"

const oq_gguf_type oq_gguf_types[] = {
    {0, "F32", 1, 4, &oq_dtype_f32, NULL, NULL},
    {1, "F16", 1, 2, &oq_dtype_f16, NULL, NULL},
    {2, "Q4_0", 32, 18, NULL, &oq_format_q4_0, NULL},
    {3, "Q4_1", 32, 20, NULL, &oq_format_q4_1, NULL},
    {6, "Q5_0", 32, 22, NULL, &oq_format_q5_0, NULL},
    {7, "Q5_1", 32, 24, NULL, &oq_format_q5_1, NULL},
    {8, "Q8_0", 32, 34, NULL, &oq_format_q8_0, NULL},
    {9, "Q8_1", 32, 36, NULL, NULL, INTERMEDIATE},
    {10, "Q2_K", 256, 84, NULL, &oq_format_q2_k, NULL},
    {11, "Q3_K", 256, 110, NULL, &oq_format_q3_k, NULL},
    {12, "Q4_K", 256, 144, NULL, &oq_format_q4_k, NULL},
    {13, "Q5_K", 256, 176, NULL, &oq_format_q5_k, NULL},
    {14, "Q6_K", 256, 210, NULL, &oq_format_q6_k, NULL},
    {15, "Q8_K", 256, 292, NULL, &oq_format_q8_k, NULL},
    {16, "IQ2_XXS", 256, 66, NULL, &oq_format_iq2_xxs, NULL},
    {17, "IQ2_XS", 256, 74, NULL, &oq_format_iq2_xs, NULL},
    {18, "IQ3_XXS", 256, 98, NULL, &oq_format_iq3_xxs, NULL},
    {19, "IQ1_S", 256, 50, NULL, &oq_format_iq1_s, NULL},
    {20, "IQ4_NL", 32, 18, NULL, &oq_format_iq4_nl, NULL},
    {21, "IQ3_S", 256, 110, NULL, &oq_format_iq3_s, NULL},
    {22, "IQ2_S", 256, 82, NULL, &oq_format_iq2_s, NULL},
    {23, "IQ4_XS", 256, 136, NULL, &oq_format_iq4_xs, NULL},
    {24, "I8", 1, 1, &oq_dtype_i8, NULL, NULL},
    {25, "I16", 1, 2, &oq_dtype_i16, NULL, NULL},
    {26, "I32", 1, 4, &oq_dtype_i32, NULL, NULL},
    {27, "I64", 1, 8, &oq_dtype_i64, NULL, NULL},
    {28, "F64", 1, 8, &oq_dtype_f64, NULL, NULL},
    {29, "IQ1_M", 256, 56, NULL, &oq_format_iq1_m, NULL},
    {30, "BF16", 1, 2, &oq_dtype_bf16, NULL, NULL},
    {34, "TQ1_0", 256, 54, NULL, &oq_format_tq1_0, NULL},
    {35, "TQ2_0", 256, 66, NULL, &oq_format_tq2_0, NULL},
    {39, "MXFP4", 32, 17, NULL, &oq_format_mxfp4_gguf, NULL},
    {40, "NVFP4", 64, 36, NULL, &oq_format_nvfp4_gguf, NULL},
    {41, "Q1_0", 128, 18, NULL, &oq_format_q1_0, NULL},
    {42, "Q2_0", 64, 18, NULL, &oq_format_q2_0, NULL},
    {0, NULL, 0, 0, NULL, NULL, NULL},
};

const oq_gguf_type *oq_gguf_type_by_id(uint32_t id)
{
    for (const oq_gguf_type *t = oq_gguf_types; t->name; t++)
        if (t->id == id) return t;
    return NULL;
}

static bool same_letters(const char *a, const char *b)
{
    while (*a && toupper((unsigned char)*a) == toupper((unsigned char)*b)) a++, b++;
    return *a == *b;
}

const oq_gguf_type *oq_gguf_type_by_name(const char *name)
{
    for (const oq_gguf_type *t = oq_gguf_types; t->name; t++)
        if (same_letters(t->name, name)) return t;
    return NULL;
}

const oq_gguf_type *oq_gguf_type_of(const oq_format *format)
{
    for (const oq_gguf_type *t = oq_gguf_types; t->name; t++)
        if (t->format ? t->format == format : t->dtype && oq_format_plain(t->dtype) == format) return t;
    return NULL;
}

const oq_gguf_type *oq_gguf_type_fitting(const oq_gguf_type *wanted, int64_t k)
{
    static const char *const instead[][2] = {
        {"Q2_K", "IQ4_NL"}, {"Q3_K", "IQ4_NL"}, {"IQ4_XS", "IQ4_NL"}, {"Q4_K", "Q5_0"},  {"Q5_K", "Q5_1"},
        {"Q6_K", "Q8_0"},   {"Q8_K", "Q8_0"},   {"TQ1_0", "Q4_0"},    {"TQ2_0", "Q4_0"}, {"NVFP4", "MXFP4"},
    };
    if (k % wanted->elems == 0) return wanted;
    for (size_t i = 0; i < sizeof instead / sizeof *instead && k % 32 == 0; i++)
        if (strcmp(instead[i][0], wanted->name) == 0) return oq_gguf_type_by_name(instead[i][1]);
    return oq_gguf_type_by_id(1);
}
