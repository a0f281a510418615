/* sdnq_words.h -- what SDNQ's metadata says about one layer: its type of codes and how it is multiplied. Private to this
 * room. */
#ifndef OQ_QUANT_SDNQ_WORDS_H
#define OQ_QUANT_SDNQ_WORDS_H

#include "quant/dialect.h"

typedef struct oq_sdnq_type { /* "uint4": codes of 4 bits with zero points; "float8_e4m3fn": is_e4m3 */
    int  bits;
    bool has_zero, is_e4m3;
    int  exponent, mantissa; /* "float4_e2m1fn": bits of each; 0 and 0: codes are integers, or is_e4m3 */
    bool is_e5m2; /* "float8_e5m2": whole elements, whose codes of infinities and NaN no writer has; exponent and mantissa are set */
} oq_sdnq_type;

typedef struct oq_sdnq_words {
    char type_name[64];
    oq_sdnq_type type;
    const char *matmul; /* "int8", "uint8", "float8_e4m3fn": activations become this; NULL: they stay as they are */
    int64_t rotate;     /* columns of a run; 0: none */
    const char *left_out; /* the entry of modules_to_not_convert that names it; NULL: none */
} oq_sdnq_words;

/* `name` as the file has it, the layer [n, k]. OQ_E_UNSUPPORTED names a type that is not read. k 0: no rotation is found
 * out. env may be NULL. */
oq_status oq_sdnq_words_read(oq_env *env, const oq_declared *declared, const char *name, int64_t n, int64_t k,
                             oq_sdnq_words *out);

#endif
