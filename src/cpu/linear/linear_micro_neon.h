/* linear_micro_neon.h -- the NEON microkernels: up to 6 rows x 16 columns in v8 to v31, four dwords of k per round. In
 * assembly because gcc 12 spills accumulators that it is free to place. A quarter of a row of A lies in one register:
 * MICRO_LANES takes it lane by lane, against the columns of that k; MICRO_MATRIX multiplies two rows by two columns at
 * once, eight bytes of k each. */
#ifndef OQ_CPU_LINEAR_LINEAR_MICRO_NEON_H
#define OQ_CPU_LINEAR_LINEAR_MICRO_NEON_H

#include "cpu/linear/linear_panel.h"

enum { MICRO_ROWS = 6, MICRO_COLUMNS = 16 };

/* acc += b . lane of a: of f32, of fours of i8, of i16 (eight columns, two accumulators). */
#define OP_F32(acc, b, a, lane) "fmla v" acc ".4s, v" b ".4s, v" a ".s[" lane "]\n\t"
#define OP_I8(acc, b, a, lane)  "sdot v" acc ".4s, v" b ".16b, v" a ".4b[" lane "]\n\t"
#define OP_I16(acc, next, b, a, lane)                                                                        \
    "smlal v" acc ".4s, v" b ".4h, v" a ".h[" lane "]\n\tsmlal2 v" next ".4s, v" b ".8h, v" a ".h[" lane "]\n\t"

/* acc (two rows of two columns) += rows a . columns b. */
#define OP_BF16(acc, a, b)      "bfmmla v" acc ".4s, v" a ".8h, v" b ".8h\n\t"
#define OP_MATRIX_I8(acc, a, b) "smmla v" acc ".4s, v" a ".16b, v" b ".16b\n\t"

#define NEXT_B         "ldp q6, q7, [%[b]], #32\n\t"
#define EACH_ROW_1(M)  M("0", "8", "9", "10", "11", "0")
#define EACH_ROW_2(M)  EACH_ROW_1(M) M("1", "12", "13", "14", "15", "64")
#define EACH_ROW_3(M)  EACH_ROW_2(M) M("2", "16", "17", "18", "19", "128")
#define EACH_ROW_4(M)  EACH_ROW_3(M) M("3", "20", "21", "22", "23", "192")
#define EACH_ROW_5(M)  EACH_ROW_4(M) M("4", "24", "25", "26", "27", "256")
#define EACH_ROW_6(M)  EACH_ROW_5(M) M("5", "28", "29", "30", "31", "320")

/* ---- one lane after another -------------------------------------------------------------------------------- */

#define LOAD(a, c0, c1, c2, c3, at)                                                                          \
    "ldp q" c0 ", q" c1 ", [%[c], #" at "]\n\tldp q" c2 ", q" c3 ", [%[c], #32+" at "]\n\t"
#define STORE(a, c0, c1, c2, c3, at)                                                                         \
    "stp q" c0 ", q" c1 ", [%[c], #" at "]\n\tstp q" c2 ", q" c3 ", [%[c], #32+" at "]\n\t"
#define CLEAR(a, c0, c1, c2, c3, at)                                                                         \
    "movi v" c0 ".4s, #0\n\tmovi v" c1 ".4s, #0\n\tmovi v" c2 ".4s, #0\n\tmovi v" c3 ".4s, #0\n\t"
#define ROW_OF_A(a, c0, c1, c2, c3, at) "ldr q" a ", [%[a" a "]], #16\n\t"

#define LOW_1(OP, l)  OP("8", "6", "0", l) OP("9", "7", "0", l)
#define LOW_2(OP, l)  LOW_1(OP, l) OP("12", "6", "1", l) OP("13", "7", "1", l)
#define LOW_3(OP, l)  LOW_2(OP, l) OP("16", "6", "2", l) OP("17", "7", "2", l)
#define LOW_4(OP, l)  LOW_3(OP, l) OP("20", "6", "3", l) OP("21", "7", "3", l)
#define LOW_5(OP, l)  LOW_4(OP, l) OP("24", "6", "4", l) OP("25", "7", "4", l)
#define LOW_6(OP, l)  LOW_5(OP, l) OP("28", "6", "5", l) OP("29", "7", "5", l)
#define HIGH_1(OP, l) OP("10", "6", "0", l) OP("11", "7", "0", l)
#define HIGH_2(OP, l) HIGH_1(OP, l) OP("14", "6", "1", l) OP("15", "7", "1", l)
#define HIGH_3(OP, l) HIGH_2(OP, l) OP("18", "6", "2", l) OP("19", "7", "2", l)
#define HIGH_4(OP, l) HIGH_3(OP, l) OP("22", "6", "3", l) OP("23", "7", "3", l)
#define HIGH_5(OP, l) HIGH_4(OP, l) OP("26", "6", "4", l) OP("27", "7", "4", l)
#define HIGH_6(OP, l) HIGH_5(OP, l) OP("30", "6", "5", l) OP("31", "7", "5", l)
#define WORDS_1(OP, l) OP("8", "9", "6", "0", l) OP("10", "11", "7", "0", l)
#define WORDS_2(OP, l) WORDS_1(OP, l) OP("12", "13", "6", "1", l) OP("14", "15", "7", "1", l)
#define WORDS_3(OP, l) WORDS_2(OP, l) OP("16", "17", "6", "2", l) OP("18", "19", "7", "2", l)
#define WORDS_4(OP, l) WORDS_3(OP, l) OP("20", "21", "6", "3", l) OP("22", "23", "7", "3", l)
#define WORDS_5(OP, l) WORDS_4(OP, l) OP("24", "25", "6", "4", l) OP("26", "27", "7", "4", l)
#define WORDS_6(OP, l) WORDS_5(OP, l) OP("28", "29", "6", "5", l) OP("30", "31", "7", "5", l)

/* A dword of each row; of I16, whose B has the columns of one k behind those of the other, a word. */
#define LANE(OP, n, l) NEXT_B LOW_##n(OP, l) NEXT_B HIGH_##n(OP, l)
#define WORD(OP, n, l) NEXT_B WORDS_##n(OP, l)
#define DWORDS(OP, n)  LANE(OP, n, "0") LANE(OP, n, "1") LANE(OP, n, "2") LANE(OP, n, "3")
#define WORD_PAIRS(OP, n)                                                                                    \
    WORD(OP, n, "0") WORD(OP, n, "1") WORD(OP, n, "2") WORD(OP, n, "3")                                      \
    WORD(OP, n, "4") WORD(OP, n, "5") WORD(OP, n, "6") WORD(OP, n, "7")

/* ---- two rows by two columns ------------------------------------------------------------------------------- */

/* Eight accumulators of two rows, the columns 0 1, 2 3, ...; their rows at these places of C. The last of an odd number of
 * rows is a pair with itself: both halves compute and store the same. */
#define FIRST_PAIR(M, two)  M("0", "1", "8", "9", "10", "11", "12", "13", "14", "15", "0", two)
#define SECOND_PAIR(M, two) M("2", "3", "16", "17", "18", "19", "20", "21", "22", "23", "128", two)
#define THIRD_PAIR(M, two)  M("4", "5", "24", "25", "26", "27", "28", "29", "30", "31", "256", two)
#define EACH_PAIR_1(M)      FIRST_PAIR(M, "64")
#define EACH_PAIR_2(M)      EACH_PAIR_1(M) SECOND_PAIR(M, "192")
#define EACH_PAIR_3(M)      EACH_PAIR_2(M) THIRD_PAIR(M, "320")
#define EACH_PAIR_1_ODD(M)  FIRST_PAIR(M, "0")
#define EACH_PAIR_2_ODD(M)  EACH_PAIR_1(M) SECOND_PAIR(M, "128")
#define EACH_PAIR_3_ODD(M)  EACH_PAIR_2(M) THIRD_PAIR(M, "256")

#define TWO_LOAD(c0, c1, one, two, at)                                                                       \
    "ldr q6, [%[c], #" at "+" one "]\n\tldr q7, [%[c], #" at "+" two "]\n\t"                                 \
    "zip1 v" c0 ".2d, v6.2d, v7.2d\n\tzip2 v" c1 ".2d, v6.2d, v7.2d\n\t"
#define TWO_STORE(c0, c1, one, two, at)                                                                      \
    "zip1 v6.2d, v" c0 ".2d, v" c1 ".2d\n\tzip2 v7.2d, v" c0 ".2d, v" c1 ".2d\n\t"                           \
    "str q6, [%[c], #" at "+" one "]\n\tstr q7, [%[c], #" at "+" two "]\n\t"
#define PAIR_LOAD(a, b, c0, c1, c2, c3, c4, c5, c6, c7, one, two)                                            \
    TWO_LOAD(c0, c1, one, two, "0") TWO_LOAD(c2, c3, one, two, "16")                                         \
    TWO_LOAD(c4, c5, one, two, "32") TWO_LOAD(c6, c7, one, two, "48")
#define PAIR_STORE(a, b, c0, c1, c2, c3, c4, c5, c6, c7, one, two)                                           \
    TWO_STORE(c0, c1, one, two, "0") TWO_STORE(c2, c3, one, two, "16")                                       \
    TWO_STORE(c4, c5, one, two, "32") TWO_STORE(c6, c7, one, two, "48")
#define PAIR_CLEAR(a, b, c0, c1, c2, c3, c4, c5, c6, c7, one, two)                                           \
    CLEAR(a, c0, c1, c2, c3, one) CLEAR(a, c4, c5, c6, c7, one)
/* The first halves of two rows of A side by side, then the second ones. */
#define PAIR_OF_A(a, b, c0, c1, c2, c3, c4, c5, c6, c7, one, two)                                            \
    "ldr q6, [%[a" a "]], #16\n\tldr q7, [%[a" b "]], #16\n\t"                                               \
    "zip1 v" a ".2d, v6.2d, v7.2d\n\tzip2 v" b ".2d, v6.2d, v7.2d\n\t"

#define COLUMNS_1(OP, a0, a1, a2, c0, d0, c1, d1, c2, d2) OP(c0, a0, "6") OP(d0, a0, "7")
#define COLUMNS_2(OP, a0, a1, a2, c0, d0, c1, d1, c2, d2)                                                    \
    COLUMNS_1(OP, a0, a1, a2, c0, d0, c1, d1, c2, d2) OP(c1, a1, "6") OP(d1, a1, "7")
#define COLUMNS_3(OP, a0, a1, a2, c0, d0, c1, d1, c2, d2)                                                    \
    COLUMNS_2(OP, a0, a1, a2, c0, d0, c1, d1, c2, d2) OP(c2, a2, "6") OP(d2, a2, "7")
#define HALF_OF_K(OP, n, a0, a1, a2)                                                                         \
    NEXT_B COLUMNS_##n(OP, a0, a1, a2, "8", "9", "16", "17", "24", "25")                                     \
    NEXT_B COLUMNS_##n(OP, a0, a1, a2, "10", "11", "18", "19", "26", "27")                                   \
    NEXT_B COLUMNS_##n(OP, a0, a1, a2, "12", "13", "20", "21", "28", "29")                                   \
    NEXT_B COLUMNS_##n(OP, a0, a1, a2, "14", "15", "22", "23", "30", "31")
#define PAIRS(OP, n) HALF_OF_K(OP, n, "0", "2", "4") HALF_OF_K(OP, n, "1", "3", "5")

/* ---- functions --------------------------------------------------------------------------------------------- */

#define MICRO_ASM(clear, load, body, store)                                                                  \
    __asm__ volatile("cbnz %[onto], 2f\n\t" clear "b 3f\n2:\n\t" load "3:\n\t.p2align 4\n1:\n\t" body        \
                     "subs %[rounds], %[rounds], #1\n\tb.ne 1b\n\t" store                                    \
                     : [a0] "+r"(a0), [a1] "+r"(a1), [a2] "+r"(a2), [a3] "+r"(a3), [a4] "+r"(a4), [a5] "+r"(a5), \
                       [b] "+r"(b), [rounds] "+r"(rounds)                                                    \
                     : [c] "r"(c), [onto] "r"(onto)                                                          \
                     : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10",    \
                       "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",   \
                       "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

#define MICRO_FUNCTION(name, n, clear, load, body, store)                                                    \
    static void name##_##n(const void *a, size_t lda, const void *b, int64_t rounds, void *c, int64_t onto)  \
    {                                                                                                        \
        const char *a0 = a, *a1 = a0 + (n > 1 ? lda : 0), *a2 = a1 + (n > 2 ? lda : 0);                      \
        const char *a3 = a2 + (n > 3 ? lda : 0), *a4 = a3 + (n > 4 ? lda : 0), *a5 = a4 + (n > 5 ? lda : 0); \
        if (rounds <= 0) return;                                                                             \
        MICRO_ASM(clear, load, body, store);                                                                 \
    }

#define MICRO_LANES(name, EACH, OP, n)                                                                       \
    MICRO_FUNCTION(name, n, EACH_ROW_##n(CLEAR), EACH_ROW_##n(LOAD), EACH_ROW_##n(ROW_OF_A) EACH(OP, n),     \
                   EACH_ROW_##n(STORE))
#define MICRO_PAIRS(name, OP, rows, n, each)                                                                 \
    MICRO_FUNCTION(name, rows, EACH_PAIR_##each(PAIR_CLEAR), EACH_PAIR_##each(PAIR_LOAD),                    \
                   EACH_PAIR_##each(PAIR_OF_A) PAIRS(OP, n), EACH_PAIR_##each(PAIR_STORE))

/* The functions name_1 ... name_6 and their table `name`. */
#define MICRO_TABLE(name)                                                                                    \
    static const oq_panel_micro name[] = {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6};
#define MICRO_TABLE_LANES(name, EACH, OP)                                                                    \
    MICRO_LANES(name, EACH, OP, 1)                                                                           \
    MICRO_LANES(name, EACH, OP, 2)                                                                           \
    MICRO_LANES(name, EACH, OP, 3)                                                                           \
    MICRO_LANES(name, EACH, OP, 4)                                                                           \
    MICRO_LANES(name, EACH, OP, 5)                                                                           \
    MICRO_LANES(name, EACH, OP, 6)                                                                           \
    MICRO_TABLE(name)

#define MICRO_TABLE_PAIRS(name, OP)                                                                          \
    MICRO_PAIRS(name, OP, 1, 1, 1_ODD)                                                                       \
    MICRO_PAIRS(name, OP, 2, 1, 1)                                                                           \
    MICRO_PAIRS(name, OP, 3, 2, 2_ODD)                                                                       \
    MICRO_PAIRS(name, OP, 4, 2, 2)                                                                           \
    MICRO_PAIRS(name, OP, 5, 3, 3_ODD)                                                                       \
    MICRO_PAIRS(name, OP, 6, 3, 3)                                                                           \
    MICRO_TABLE(name)

#endif
