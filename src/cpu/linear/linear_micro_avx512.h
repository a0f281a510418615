/* linear_micro_avx512.h -- the AVX-512 microkernel: up to 12 rows x 32 columns in 24 registers, four dwords
 * of k per round. In assembly because gcc 12 spills accumulators that it is free to place. OP is
 * "vfmadd231ps" (f32), "vpdpbusd" (u8 . s8) or "vpdpwssd" (s16 . s16); both take B, the broadcast of A, and the accumulator in this
 * order. */
#ifndef OQ_CPU_LINEAR_LINEAR_MICRO_AVX512_H
#define OQ_CPU_LINEAR_LINEAR_MICRO_AVX512_H

#include "cpu/linear/linear_panel.h"

#define ROW(op, d, at, t, lo, hi)                                                                            \
    "vbroadcastss " d at ", %%zmm" t "\n\t" op " %%zmm0, %%zmm" t ", %%zmm" lo "\n\t" op " %%zmm1, %%zmm" t  \
    ", %%zmm" hi "\n\t"

#define R0(op, d)  ROW(op, d, "(%[a0])", "4", "8", "9")
#define R1(op, d)  ROW(op, d, "(%[a0],%[ld])", "5", "10", "11")
#define R2(op, d)  ROW(op, d, "(%[a0],%[ld],2)", "6", "12", "13")
#define R3(op, d)  ROW(op, d, "(%[a1])", "7", "14", "15")
#define R4(op, d)  ROW(op, d, "(%[a1],%[ld])", "4", "16", "17")
#define R5(op, d)  ROW(op, d, "(%[a1],%[ld],2)", "5", "18", "19")
#define R6(op, d)  ROW(op, d, "(%[a2])", "6", "20", "21")
#define R7(op, d)  ROW(op, d, "(%[a2],%[ld])", "7", "22", "23")
#define R8(op, d)  ROW(op, d, "(%[a2],%[ld],2)", "4", "24", "25")
#define R9(op, d)  ROW(op, d, "(%[a3])", "5", "26", "27")
#define R10(op, d) ROW(op, d, "(%[a3],%[ld])", "6", "28", "29")
#define R11(op, d) ROW(op, d, "(%[a3],%[ld],2)", "7", "30", "31")

#define ROWS_1(op, d)  R0(op, d)
#define ROWS_2(op, d)  ROWS_1(op, d) R1(op, d)
#define ROWS_3(op, d)  ROWS_2(op, d) R2(op, d)
#define ROWS_4(op, d)  ROWS_3(op, d) R3(op, d)
#define ROWS_5(op, d)  ROWS_4(op, d) R4(op, d)
#define ROWS_6(op, d)  ROWS_5(op, d) R5(op, d)
#define ROWS_7(op, d)  ROWS_6(op, d) R6(op, d)
#define ROWS_8(op, d)  ROWS_7(op, d) R7(op, d)
#define ROWS_9(op, d)  ROWS_8(op, d) R8(op, d)
#define ROWS_10(op, d) ROWS_9(op, d) R9(op, d)
#define ROWS_11(op, d) ROWS_10(op, d) R10(op, d)
#define ROWS_12(op, d) ROWS_11(op, d) R11(op, d)

#define LOAD(at, lo, hi)  "vmovups " at "(%[c]), %%zmm" lo "\n\tvmovups 64+" at "(%[c]), %%zmm" hi "\n\t"
#define STORE(at, lo, hi) "vmovups %%zmm" lo ", " at "(%[c])\n\tvmovups %%zmm" hi ", 64+" at "(%[c])\n\t"

#define CLEAR(at, lo, hi) "vpxord %%zmm" lo ", %%zmm" lo ", %%zmm" lo "\n\tvpxord %%zmm" hi ", %%zmm" hi ", %%zmm" hi "\n\t"

#define C_1(M)  M("0", "8", "9")
#define C_2(M)  C_1(M) M("128", "10", "11")
#define C_3(M)  C_2(M) M("256", "12", "13")
#define C_4(M)  C_3(M) M("384", "14", "15")
#define C_5(M)  C_4(M) M("512", "16", "17")
#define C_6(M)  C_5(M) M("640", "18", "19")
#define C_7(M)  C_6(M) M("768", "20", "21")
#define C_8(M)  C_7(M) M("896", "22", "23")
#define C_9(M)  C_8(M) M("1024", "24", "25")
#define C_10(M) C_9(M) M("1152", "26", "27")
#define C_11(M) C_10(M) M("1280", "28", "29")
#define C_12(M) C_11(M) M("1408", "30", "31")

#define DWORD(op, n, da, db)                                                                                 \
    "vmovups " db "(%[b]), %%zmm0\n\tvmovups 64+" db "(%[b]), %%zmm1\n\t" ROWS_##n(op, da)

#define MICRO(name, op, n)                                                                                   \
    static void name##_##n(const void *a, size_t lda, const void *b, int64_t rounds, void *c, int64_t onto)  \
    {                                                                                                        \
        const char *a0 = a, *a1 = a0 + 3 * lda, *a2 = a0 + 6 * lda, *a3 = a0 + 9 * lda;                      \
        __asm__ volatile(                                                                                    \
            "test %[onto], %[onto]\n\tjnz 2f\n\t" C_##n(CLEAR) "jmp 3f\n2:\n\t" C_##n(LOAD)                      \
            "3:\n\t.p2align 5\n1:\n\t" DWORD(op, n, "", "0") DWORD(op, n, "4", "128")                  \
                DWORD(op, n, "8", "256") DWORD(op, n, "12", "384") "add $16, %[a0]\n\t"                      \
                                                                   "add $16, %[a1]\n\t"                      \
                                                                   "add $16, %[a2]\n\t"                      \
                                                                   "add $16, %[a3]\n\t"                      \
                                                                   "add $512, %[b]\n\t"                      \
                                                                   "dec %[rounds]\n\t"                       \
                                                                   "jnz 1b\n\t" C_##n(STORE)                 \
            : [a0] "+r"(a0), [a1] "+r"(a1), [a2] "+r"(a2), [a3] "+r"(a3), [b] "+r"(b), [rounds] "+r"(rounds) \
            : [ld] "r"(lda), [c] "r"(c), [onto] "r"(onto)                                                                      \
            : "memory", "cc", "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
              "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",      \
              "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30",      \
              "xmm31");                                                                                      \
    }

/* What MICRO leaves in registers, times a factor for each row, onto c. */
#define ONTO(at, f, lo, hi)                                                                                  \
    "vbroadcastss " f "(%[factor]), %%zmm4\n\tvfmadd213ps " at "(%[c]), %%zmm4, %%zmm" lo                   \
    "\n\tvfmadd213ps 64+" at "(%[c]), %%zmm4, %%zmm" hi "\n\t" STORE(at, lo, hi)

#define S_1  ONTO("0", "0", "8", "9")
#define S_2  S_1 ONTO("128", "4", "10", "11")
#define S_3  S_2 ONTO("256", "8", "12", "13")
#define S_4  S_3 ONTO("384", "12", "14", "15")
#define S_5  S_4 ONTO("512", "16", "16", "17")
#define S_6  S_5 ONTO("640", "20", "18", "19")
#define S_7  S_6 ONTO("768", "24", "20", "21")
#define S_8  S_7 ONTO("896", "28", "22", "23")
#define S_9  S_8 ONTO("1024", "32", "24", "25")
#define S_10 S_9 ONTO("1152", "36", "26", "27")
#define S_11 S_10 ONTO("1280", "40", "28", "29")
#define S_12 S_11 ONTO("1408", "44", "30", "31")

#define MICRO_SCALED(name, op, n)                                                                            \
    static void name##_##n(const void *a, size_t lda, const void *b, int64_t rounds, void *c, const float *factor) \
    {                                                                                                        \
        const char *a0 = a, *a1 = a0 + 3 * lda, *a2 = a0 + 6 * lda, *a3 = a0 + 9 * lda;                      \
        __asm__ volatile(                                                                                    \
            C_##n(CLEAR) ".p2align 5\n1:\n\t" DWORD(op, n, "", "0") DWORD(op, n, "4", "128")                 \
                DWORD(op, n, "8", "256") DWORD(op, n, "12", "384") "add $16, %[a0]\n\t"                      \
                                                                   "add $16, %[a1]\n\t"                      \
                                                                   "add $16, %[a2]\n\t"                      \
                                                                   "add $16, %[a3]\n\t"                      \
                                                                   "add $512, %[b]\n\t"                      \
                                                                   "dec %[rounds]\n\t"                       \
                                                                   "jnz 1b\n\t" S_##n                        \
            : [a0] "+r"(a0), [a1] "+r"(a1), [a2] "+r"(a2), [a3] "+r"(a3), [b] "+r"(b), [rounds] "+r"(rounds) \
            : [ld] "r"(lda), [c] "r"(c), [factor] "r"(factor)                                                \
            : "memory", "cc", "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
              "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",      \
              "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30",      \
              "xmm31");                                                                                      \
    }

/* A group's whole sums in registers to f32, under both scales (W's in zmm0 and zmm1), and onto c; what comes after them in
 * the group is added as f32. */
#define G(at, c, lo, hi)                                                                                     \
    "vbroadcastss " at ", %%zmm4\n\tvcvtdq2ps %%zmm" lo ", %%zmm" lo "\n\tvcvtdq2ps %%zmm" hi ", %%zmm" hi  \
    "\n\tvmulps %%zmm0, %%zmm4, %%zmm5\n\tvmulps %%zmm1, %%zmm4, %%zmm6\n\tvfmadd213ps " c                  \
    "(%[c]), %%zmm5, %%zmm" lo "\n\tvfmadd213ps 64+" c "(%[c]), %%zmm6, %%zmm" hi "\n\t"

#define G_1  G("(%[a0])", "0", "8", "9")
#define G_2  G_1 G("(%[a0],%[ld])", "128", "10", "11")
#define G_3  G_2 G("(%[a0],%[ld],2)", "256", "12", "13")
#define G_4  G_3 G("(%[a1])", "384", "14", "15")
#define G_5  G_4 G("(%[a1],%[ld])", "512", "16", "17")
#define G_6  G_5 G("(%[a1],%[ld],2)", "640", "18", "19")
#define G_7  G_6 G("(%[a2])", "768", "20", "21")
#define G_8  G_7 G("(%[a2],%[ld])", "896", "22", "23")
#define G_9  G_8 G("(%[a2],%[ld],2)", "1024", "24", "25")
#define G_10 G_9 G("(%[a3])", "1152", "26", "27")
#define G_11 G_10 G("(%[a3],%[ld])", "1280", "28", "29")
#define G_12 G_11 G("(%[a3],%[ld],2)", "1408", "30", "31")

#define NEXT_DWORD "add $4, %[a0]\n\tadd $4, %[a1]\n\tadd $4, %[a2]\n\tadd $4, %[a3]\n\tadd $128, %[b]\n\t"

/* OP is "vpdpwssd": pairs of i16. */
#define MICRO_GROUPED(name, op, n)                                                                           \
    static void name##_##n(const void *a, size_t lda, const void *b, int64_t groups, void *c,                \
                           const oq_panel_group *group)                                                      \
    {                                                                                                        \
        const char *a0 = a, *a1 = a0 + 3 * lda, *a2 = a0 + 6 * lda, *a3 = a0 + 9 * lda;                      \
        const int64_t rounds = group->columns / (2 * OQ_PANEL_UNROLL), sums = group->sums;                   \
        int64_t left;                                                                                        \
        __asm__ volatile(                                                                                    \
            "4:\n\tmov %[rounds], %[left]\n\t" C_##n(CLEAR) ".p2align 5\n1:\n\t" DWORD(op, n, "", "0")       \
                DWORD(op, n, "4", "128") DWORD(op, n, "8", "256") DWORD(op, n, "12", "384")                  \
            "add $16, %[a0]\n\tadd $16, %[a1]\n\tadd $16, %[a2]\n\tadd $16, %[a3]\n\tadd $512, %[b]\n\t"      \
            "dec %[left]\n\tjnz 1b\n\tvmovups (%[b]), %%zmm0\n\tvmovups 64(%[b]), %%zmm1\n\t" G_##n NEXT_DWORD \
            "mov %[sums], %[left]\n\ttest %[left], %[left]\n\tjz 3f\n2:\n\t" DWORD("vfmadd231ps", n, "", "0")   \
                NEXT_DWORD "dec %[left]\n\tjnz 2b\n3:\n\t" C_##n(STORE) "dec %[groups]\n\tjnz 4b\n\t"           \
            : [a0] "+r"(a0), [a1] "+r"(a1), [a2] "+r"(a2), [a3] "+r"(a3), [b] "+r"(b), [left] "=&r"(left),   \
              [groups] "+r"(groups)                                                                          \
            : [ld] "r"(lda), [c] "r"(c), [rounds] "r"(rounds), [sums] "r"(sums)                              \
            : "memory", "cc", "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
              "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",      \
              "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30",      \
              "xmm31");                                                                                      \
    }

#define MICRO_EACH(MICRO, name, op)                                                                          \
    MICRO(name, op, 1)                                                                                       \
    MICRO(name, op, 2)                                                                                       \
    MICRO(name, op, 3)                                                                                       \
    MICRO(name, op, 4)                                                                                       \
    MICRO(name, op, 5)                                                                                       \
    MICRO(name, op, 6)                                                                                       \
    MICRO(name, op, 7)                                                                                       \
    MICRO(name, op, 8)                                                                                       \
    MICRO(name, op, 9)                                                                                       \
    MICRO(name, op, 10)                                                                                      \
    MICRO(name, op, 11)                                                                                      \
    MICRO(name, op, 12)
#define MICRO_ROWS(name)                                                                                     \
    NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9,          \
        name##_10, name##_11, name##_12

/* The functions name_1 ... name_12 and their table `name`. */
#define MICRO_TABLE(name, op)                                                                                \
    MICRO_EACH(MICRO, name, op)                                                                              \
    static const oq_panel_micro name[] = {MICRO_ROWS(name)};
#define MICRO_SCALED_TABLE(name, op)                                                                         \
    MICRO_EACH(MICRO_SCALED, name, op)                                                                       \
    static const oq_panel_micro_scaled name[] = {MICRO_ROWS(name)};
#define MICRO_GROUPED_TABLE(name, op)                                                                        \
    MICRO_EACH(MICRO_GROUPED, name, op)                                                                      \
    static const oq_panel_micro_grouped name[] = {MICRO_ROWS(name)};

#endif
