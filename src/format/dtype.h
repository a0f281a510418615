/* dtype.h -- element types: what one stored number is. Identity is the pointer (or the name outside). */
#ifndef OQ_FORMAT_DTYPE_H
#define OQ_FORMAT_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct oq_dtype {
    const char *name;     /* safetensors' spelling: "F32", "BF16", "F8_E4M3" */
    const char *label;    /* the user's spelling: "f32", "bf16", "fp8_e4m3" */
    size_t      bytes;
    bool        floating;
    /* n elements at any alignment; exact except F64, I64 and U64, which round to nearest even. */
    void (*to_f32)(float *dst, const void *src, size_t n);
    /* Rounds to nearest even. Floats of 8 bits saturate finite values, keep NaN, and map infinities to the largest
     * finite value (e4m3) or keep them (others). NULL: nothing is ever encoded to it. */
    void (*from_f32)(void *dst, const float *src, size_t n);
} oq_dtype;

extern const oq_dtype oq_dtype_f64, oq_dtype_f32, oq_dtype_f16, oq_dtype_bf16;
extern const oq_dtype oq_dtype_f8_e4m3, oq_dtype_f8_e5m2;
extern const oq_dtype oq_dtype_i64, oq_dtype_u64, oq_dtype_i32, oq_dtype_u32, oq_dtype_i16, oq_dtype_u16;
extern const oq_dtype oq_dtype_i8, oq_dtype_u8, oq_dtype_bool;

/* x as `dtype` (a float of 32 bits at most) holds it, in place: from_f32 and to_f32, a piece at a time. */
void oq_dtype_round(const oq_dtype *dtype, float *x, size_t n);

extern const oq_dtype *const oq_dtype_list[]; /* NULL-terminated */
const oq_dtype *oq_dtype_find(const char *name); /* by safetensors' spelling, exactly; NULL: unknown */

#endif
