/* vec_math.h -- exp, tanh, erf and the activation functions made of them, as polynomials fitted for this
 * library. Errors are stated per function and checked by kcheck_ops over all magnitudes; NaN stays NaN. */
#ifndef OQ_CPU_VEC_MATH_H
#define OQ_CPU_VEC_MATH_H

#include "backend/backend.h"
#include "cpu/vec/vec.h"

/* e^x within 2 ulp; overflow gives infinity, what is below the smallest denormal gives 0. Range reduction by
 * ln 2 in two parts, then 1 + r + r^2 p(r), whose own relative error is 3.1e-9. */
OQ_INLINE vf v_exp(vf x)
{
    x = v_min(v_set(90.0f), v_max(v_set(-105.0f), x)); /* a NaN in the second place passes */
    const vf n = v_rint(v_mul(x, v_set(1.44269504f)));
    vf r = v_fnma(n, v_set(0.693359375f), x); /* ten bits of ln 2: exact */
    r = v_fnma(n, v_set(-2.12194440e-4f), r);
    vf p = v_set(1.381459986e-3f);
    p = v_fma(p, r, v_set(8.368715412e-3f));
    p = v_fma(p, r, v_set(4.166838793e-2f));
    p = v_fma(p, r, v_set(1.666652064e-1f));
    p = v_fma(p, r, v_set(4.999999345e-1f));
    p = v_fma(v_mul(r, r), p, r);
    return v_scale2(v_add(p, v_set(1.0f)), n);
}

/* 2^x for x <= 128 or NaN, within 1 ulp; 0 below -150, also for -infinity. For softmax, whose scale takes the
 * base along. Relative error of the polynomial: 2.0e-9. */
OQ_INLINE vf v_exp2(vf x)
{
    x = v_max(v_set(-200.0f), x); /* a NaN in the second place passes */
    const vf n = v_rint(x), r = v_sub(x, n);
    vf p = v_set(1.535336172e-4f);
    p = v_fma(p, r, v_set(1.339887448e-3f));
    p = v_fma(p, r, v_set(9.618437359e-3f));
    p = v_fma(p, r, v_set(5.550332471e-2f));
    p = v_fma(p, r, v_set(2.402264791e-1f));
    p = v_fma(p, r, v_set(6.931472029e-1f));
    return v_scale2(v_fma(p, r, v_set(1.0f)), n);
}

/* 2^r for |r| <= 1/2, within 2^-13.7 of it */
OQ_INLINE vf v_exp2_part_short(vf r)
{
    vf p = v_set(5.517167e-2f);
    p = v_fma(p, r, v_set(2.4261113e-1f));
    p = v_fma(p, r, v_set(6.9326097e-1f));
    return v_fma(p, r, v_set(9.9992806e-1f));
}

/* 2^x as v_exp2, within 2^-13.7 of it: for weights that are rounded to bf16 next. */
OQ_INLINE vf v_exp2_short(vf x)
{
    x = v_max(v_set(-200.0f), x);
    const vf n = v_rint(x), r = v_sub(x, n);
    return v_scale2(v_exp2_part_short(r), n);
}

/* x sigmoid(k x) */
OQ_INLINE vf v_swish(vf x, float k)
{
    return v_div(x, v_add(v_set(1.0f), v_exp(v_mul(x, v_set(-k)))));
}

/* x sigmoid(x) within 2^-12.6 of it: for results that are rounded to bf16 next. Below -87, where it is less than 1e-36, it
 * is x 2^-126. */
OQ_INLINE vf v_silu_short(vf x)
{
    const vf magic = v_set(12582912.0f); /* 1.5 * 2^23 + n has the whole number n in its low bits */
    vf u = v_mul(x, v_set(-1.44269504f));
    u = v_max(v_set(-126.0f), v_min(v_set(126.0f), u)); /* a NaN in the second place passes */
    const vf n = v_add(u, magic), r = v_sub(u, v_sub(n, magic));
    const vf p = v_add_exponent(v_exp2_part_short(r), n);
    return v_mul(x, v_inverse_short(v_add(v_set(1.0f), p)));
}

/* x / (1 + 2^u) within 2^-13.6 of it: for results that are rounded to bf16 next. The same bits in every instruction set, so
 * a quotient that is exact. */
OQ_INLINE vf v_swish_short(vf x, vf u)
{
    u = v_max(v_set(-126.0f), v_min(v_set(200.0f), u)); /* a NaN in the second place passes */
    const vf n = v_rint(u), r = v_sub(u, n);
    const vf p = v_scale2(v_exp2_part_short(r), n);
    return v_div(x, v_add(v_set(1.0f), p));
}

/* Within 3 ulp: an odd polynomial below 0.625 (relative error 4.4e-9), 1 - 2 / (e^2x + 1) above. */
OQ_INLINE vf v_tanh(vf x)
{
    const vf a = v_abs(x), s = v_mul(x, x);
    vf p = v_set(-5.704990410e-3f);
    p = v_fma(p, s, v_set(2.063909066e-2f));
    p = v_fma(p, s, v_set(-5.373971628e-2f));
    p = v_fma(p, s, v_set(1.333144222e-1f));
    p = v_fma(p, s, v_set(-3.333328194e-1f));
    p = v_fma(v_mul(p, s), x, x);
    const vf e = v_exp(v_add(a, a));
    const vf big = v_sub(v_set(1.0f), v_div(v_set(2.0f), v_add(e, v_set(1.0f))));
    return v_if_less(a, v_set(0.625f), p, v_if_less(x, v_zero(), v_neg(big), big));
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
OQ_INLINE vf v_gelu_tanh(vf x)
{
    const vf cubic = v_fma(v_mul(v_set(0.044715f), v_mul(x, x)), x, x);
    return v_div(x, v_add(v_set(1.0f), v_exp(v_mul(cubic, v_set(-1.5957691216f)))));
}

/* erfc(z) / 2 for z >= 0: e^(-z^2) times a polynomial in t = 1 / (1 + 0.4 z), relative error 8.4e-9 to z
 * = 10. */
OQ_INLINE vf v_half_erfc(vf z)
{
    const vf t = v_div(v_set(1.0f), v_fma(v_set(0.4f), z, v_set(1.0f)));
    vf p = v_set(-2.920584320e-2f);
    p = v_fma(p, t, v_set(1.959031496e-1f));
    p = v_fma(p, t, v_set(-4.938495144e-1f));
    p = v_fma(p, t, v_set(5.408184260e-1f));
    p = v_fma(p, t, v_set(-2.788639036e-1f));
    p = v_fma(p, t, v_set(2.691132045e-1f));
    p = v_fma(p, t, v_set(1.307000842e-1f));
    p = v_fma(p, t, v_set(2.147005423e-1f));
    p = v_fma(p, t, v_set(2.249783043e-1f));
    p = v_fma(p, t, v_set(2.257055586e-1f));
    return v_mul(v_mul(v_set(0.5f), v_mul(p, t)), v_exp(v_neg(v_mul(z, z))));
}

/* x Phi(x): from the nearer tail on both sides; above 14 the tail is far below an ulp (and 0 * inf stays away) */
OQ_INLINE vf v_gelu_erf(vf x)
{
    const vf tail = v_mul(x, v_half_erfc(v_mul(v_abs(x), v_set(0.70710678f))));
    return v_if_less(x, v_zero(), tail, v_if_less(v_set(14.0f), x, x, v_sub(x, tail)));
}

/* v_gelu_tanh, short as above. */
OQ_INLINE vf v_gelu_tanh_short(vf x)
{
    const vf cubic = v_fma(v_mul(v_set(0.044715f), v_mul(x, x)), x, x);
    return v_swish_short(x, v_mul(cubic, v_set(-2.3022082f)));
}

/* `kind` is a constant where this is used, so one branch remains. */
OQ_INLINE vf v_unary(oq_unary kind, vf x)
{
    switch (kind) {
    case OQ_SILU:
        return v_swish(x, 1.0f);
    case OQ_GELU_TANH:
        return v_gelu_tanh(x);
    case OQ_GELU_ERF:
        return v_gelu_erf(x);
    case OQ_QUICK_GELU:
        return v_swish(x, 1.702f);
    case OQ_TANH:
        return v_tanh(x);
    case OQ_N_UNARY:
        break;
    }
    return x;
}

/* The same for a result that is rounded to bf16 next. */
OQ_INLINE vf v_unary_short(oq_unary kind, vf x)
{
    switch (kind) {
    case OQ_SILU:
        return v_swish_short(x, v_mul(x, v_set(-1.44269504f)));
    case OQ_GELU_TANH:
        return v_gelu_tanh_short(x);
    case OQ_QUICK_GELU:
        return v_swish_short(x, v_mul(x, v_set(-2.4554670f)));
    case OQ_GELU_ERF:
    case OQ_TANH:
    case OQ_N_UNARY:
        break;
    }
    return v_unary(kind, x);
}

/* Of a result that is BF16 the short form is exact enough. One rule for the operation alone and for a product's store. */
OQ_INLINE vf v_unary_for(oq_unary kind, vf x, bool to_bf16)
{
    return to_bf16 ? v_unary_short(kind, x) : v_unary(kind, x);
}

#endif
