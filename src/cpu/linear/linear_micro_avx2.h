/* linear_micro_avx2.h -- the AVX2 microkernel: up to 6 rows x 16 columns in 12 registers, four dwords of k
 * per round. In assembly because gcc 12 spills accumulators that it is free to place. OP(t, b, acc) is the
 * product of the broadcast in ymm<t> and of B in ymm<b>, added to ymm<acc>; ymm3 is free for it. */
#ifndef OQ_CPU_LINEAR_LINEAR_MICRO_AVX2_H
#define OQ_CPU_LINEAR_LINEAR_MICRO_AVX2_H

#include "cpu/linear/linear_panel.h"

#define OP_F32(t, b, acc) "vfmadd231ps %%ymm" b ", %%ymm" t ", %%ymm" acc "\n\t"
#define OP_I16(t, b, acc)                                                                                    \
    "vpmaddwd %%ymm" b ", %%ymm" t ", %%ymm3\n\tvpaddd %%ymm3, %%ymm" acc ", %%ymm" acc "\n\t"
#define OP_VNNI(t, b, acc) "%{vex%} vpdpbusd %%ymm" b ", %%ymm" t ", %%ymm" acc "\n\t"

#define ROW(OP, d, at, lo, hi) "vbroadcastss " d at ", %%ymm2\n\t" OP("2", "0", lo) OP("2", "1", hi)

#define R0(OP, d) ROW(OP, d, "(%[a0])", "4", "5")
#define R1(OP, d) ROW(OP, d, "(%[a0],%[ld])", "6", "7")
#define R2(OP, d) ROW(OP, d, "(%[a0],%[ld],2)", "8", "9")
#define R3(OP, d) ROW(OP, d, "(%[a1])", "10", "11")
#define R4(OP, d) ROW(OP, d, "(%[a1],%[ld])", "12", "13")
#define R5(OP, d) ROW(OP, d, "(%[a1],%[ld],2)", "14", "15")

#define ROWS_1(OP, d) R0(OP, d)
#define ROWS_2(OP, d) ROWS_1(OP, d) R1(OP, d)
#define ROWS_3(OP, d) ROWS_2(OP, d) R2(OP, d)
#define ROWS_4(OP, d) ROWS_3(OP, d) R3(OP, d)
#define ROWS_5(OP, d) ROWS_4(OP, d) R4(OP, d)
#define ROWS_6(OP, d) ROWS_5(OP, d) R5(OP, d)

#define LOAD(at, lo, hi)  "vmovups " at "(%[c]), %%ymm" lo "\n\tvmovups 32+" at "(%[c]), %%ymm" hi "\n\t"
#define STORE(at, lo, hi) "vmovups %%ymm" lo ", " at "(%[c])\n\tvmovups %%ymm" hi ", 32+" at "(%[c])\n\t"

#define CLEAR(at, lo, hi) "vxorps %%ymm" lo ", %%ymm" lo ", %%ymm" lo "\n\tvxorps %%ymm" hi ", %%ymm" hi ", %%ymm" hi "\n\t"

#define C_1(M) M("0", "4", "5")
#define C_2(M) C_1(M) M("64", "6", "7")
#define C_3(M) C_2(M) M("128", "8", "9")
#define C_4(M) C_3(M) M("192", "10", "11")
#define C_5(M) C_4(M) M("256", "12", "13")
#define C_6(M) C_5(M) M("320", "14", "15")

#define DWORD(OP, n, da, db)                                                                                 \
    "vmovups " db "(%[b]), %%ymm0\n\tvmovups 32+" db "(%[b]), %%ymm1\n\t" ROWS_##n(OP, da)

#define MICRO(name, OP, n)                                                                                   \
    static void name##_##n(const void *a, size_t lda, const void *b, int64_t rounds, void *c, int64_t onto)  \
    {                                                                                                        \
        const char *a0 = a, *a1 = a0 + 3 * lda;                                                              \
        __asm__ volatile("test %[onto], %[onto]\n\tjnz 2f\n\t" C_##n(CLEAR) "jmp 3f\n2:\n\t" C_##n(LOAD)         \
                         "3:\n\t.p2align 5\n1:\n\t" DWORD(OP, n, "", "0") DWORD(OP, n, "4", "64")      \
                             DWORD(OP, n, "8", "128") DWORD(OP, n, "12", "192") "add $16, %[a0]\n\t"         \
                                                                                "add $16, %[a1]\n\t"         \
                                                                                "add $256, %[b]\n\t"         \
                                                                                "dec %[rounds]\n\t"          \
                                                                                "jnz 1b\n\t" C_##n(STORE)    \
                         : [a0] "+r"(a0), [a1] "+r"(a1), [b] "+r"(b), [rounds] "+r"(rounds)                  \
                         : [ld] "r"(lda), [c] "r"(c), [onto] "r"(onto)                                                         \
                         : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");            \
    }

/* The functions name_1 ... name_6 and their table `name`. */
#define MICRO_TABLE(name, OP)                                                                                \
    MICRO(name, OP, 1)                                                                                       \
    MICRO(name, OP, 2)                                                                                       \
    MICRO(name, OP, 3)                                                                                       \
    MICRO(name, OP, 4)                                                                                       \
    MICRO(name, OP, 5)                                                                                       \
    MICRO(name, OP, 6)                                                                                       \
    static const oq_panel_micro name[] = {NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6};

#endif
