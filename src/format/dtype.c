/* dtype.c -- rows of each element type to and from f32, and the list of all element types. */
#include "format/dtype.h"

#include "format/float8.h"

static void f32_to_f32(float *dst, const void *src, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

static void f32_from_f32(void *dst, const float *src, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
}

static void f64_from_f32(void *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = (double)src[i];
        memcpy((char *)dst + 8 * i, &x, sizeof x);
    }
}

/* One loop per numeric C type; the compiler turns the memcpy into a load of any alignment. */
#define TO_F32(name, type)                                                                                   \
    static void name##_to_f32(float *dst, const void *src, size_t n)                                         \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                     \
            type x;                                                                                          \
            memcpy(&x, (const char *)src + sizeof x * i, sizeof x);                                          \
            dst[i] = (float)x;                                                                               \
        }                                                                                                    \
    }

TO_F32(f64, double)
TO_F32(i64, int64_t)
TO_F32(u64, uint64_t)
TO_F32(i32, int32_t)
TO_F32(u32, uint32_t)
TO_F32(i16, int16_t)
TO_F32(u16, uint16_t)
TO_F32(i8, int8_t)
TO_F32(u8, uint8_t)

static void bool_to_f32(float *dst, const void *src, size_t n)
{
    const uint8_t *const b = src;
    for (size_t i = 0; i < n; i++) dst[i] = b[i] ? 1.0f : 0.0f;
}

const oq_dtype oq_dtype_f64 = {"F64", "f64", 8, true, f64_to_f32, f64_from_f32};
const oq_dtype oq_dtype_f32 = {"F32", "f32", 4, true, f32_to_f32, f32_from_f32};
const oq_dtype oq_dtype_f16 = {"F16", "f16", 2, true, oq_f16_row_to_f32, oq_f16_row_from_f32};
const oq_dtype oq_dtype_bf16 = {"BF16", "bf16", 2, true, oq_bf16_row_to_f32, oq_bf16_row_from_f32};
const oq_dtype oq_dtype_f8_e4m3 = {"F8_E4M3", "fp8_e4m3", 1, true, oq_e4m3_row_to_f32, oq_e4m3_row_from_f32};
const oq_dtype oq_dtype_f8_e5m2 = {"F8_E5M2", "fp8_e5m2", 1, true, oq_e5m2_row_to_f32, oq_e5m2_row_from_f32};
const oq_dtype oq_dtype_i64 = {"I64", "int64", 8, false, i64_to_f32, NULL};
const oq_dtype oq_dtype_u64 = {"U64", "uint64", 8, false, u64_to_f32, NULL};
const oq_dtype oq_dtype_i32 = {"I32", "int32", 4, false, i32_to_f32, NULL};
const oq_dtype oq_dtype_u32 = {"U32", "uint32", 4, false, u32_to_f32, NULL};
const oq_dtype oq_dtype_i16 = {"I16", "int16", 2, false, i16_to_f32, NULL};
const oq_dtype oq_dtype_u16 = {"U16", "uint16", 2, false, u16_to_f32, NULL};
const oq_dtype oq_dtype_i8 = {"I8", "int8", 1, false, i8_to_f32, NULL};
const oq_dtype oq_dtype_u8 = {"U8", "uint8", 1, false, u8_to_f32, NULL};
const oq_dtype oq_dtype_bool = {"BOOL", "bool", 1, false, bool_to_f32, NULL};

const oq_dtype *const oq_dtype_list[] = {
    &oq_dtype_f64, &oq_dtype_f32, &oq_dtype_f16,  &oq_dtype_bf16, &oq_dtype_f8_e4m3, &oq_dtype_f8_e5m2,
    &oq_dtype_i64, &oq_dtype_u64, &oq_dtype_i32,  &oq_dtype_u32,  &oq_dtype_i16,     &oq_dtype_u16,
    &oq_dtype_i8,  &oq_dtype_u8,  &oq_dtype_bool, NULL,
};

void oq_dtype_round(const oq_dtype *dtype, float *x, size_t n)
{
    enum { PIECE = 2048 };
    float piece[PIECE]; /* room for any of the types */
    if (dtype == &oq_dtype_f32) return;
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t some = n - at < PIECE ? n - at : PIECE;
        dtype->from_f32(piece, x + at, some);
        dtype->to_f32(x + at, piece, some);
    }
}

const oq_dtype *oq_dtype_find(const char *name)
{
    for (size_t i = 0; oq_dtype_list[i]; i++)
        if (!strcmp(oq_dtype_list[i]->name, name)) return oq_dtype_list[i];
    return NULL;
}
