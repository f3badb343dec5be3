// The operations of `ptero_plan::expr`, by the names that generated kernels call: `f_…` of floats, `i_…` of integers in 64 bits,
// which wrap. As `reference/src/scalar.rs`.

#pragma once

#include "arithmetic.cuh"

#define SCALAR __device__ __forceinline__

SCALAR float f_neg(float x) { return -x; }
SCALAR float f_abs(float x) { return fabsf(x); }
SCALAR float f_sign(float x) { return arithmetic::sign(x); }
SCALAR float f_square(float x) { return x * x; }
SCALAR float f_sqrt(float x) { return sqrtf(x); }
SCALAR float f_rsqrt(float x) { return arithmetic::rsqrt(x); }
SCALAR float f_reciprocal(float x) { return 1.0f / x; }
SCALAR float f_exp(float x) { return arithmetic::exp(x); }
SCALAR float f_expm1(float x) { return arithmetic::exp_m1(x); }
SCALAR float f_log(float x) { return arithmetic::ln(x); }
SCALAR float f_log2(float x) { return arithmetic::log2(x); }
SCALAR float f_log10(float x) { return arithmetic::log10(x); }
SCALAR float f_log1p(float x) { return arithmetic::ln_1p(x); }
SCALAR float f_sin(float x) { return arithmetic::sin(x); }
SCALAR float f_cos(float x) { return arithmetic::cos(x); }
SCALAR float f_tan(float x) { return arithmetic::tan(x); }
SCALAR float f_arcsin(float x) { return arithmetic::asin(x); }
SCALAR float f_arccos(float x) { return arithmetic::acos(x); }
SCALAR float f_arctan(float x) { return arithmetic::atan(x); }
SCALAR float f_sinh(float x) { return arithmetic::sinh(x); }
SCALAR float f_cosh(float x) { return arithmetic::cosh(x); }
SCALAR float f_tanh(float x) { return arithmetic::tanh(x); }
SCALAR float f_arcsinh(float x) { return arithmetic::asinh(x); }
SCALAR float f_arccosh(float x) { return arithmetic::acosh(x); }
SCALAR float f_arctanh(float x) { return arithmetic::atanh(x); }
SCALAR float f_erf(float x) { return arithmetic::erf(x); }
SCALAR float f_sigmoid(float x) { return arithmetic::sigmoid(x); }
SCALAR float f_floor(float x) { return floorf(x); }
SCALAR float f_ceil(float x) { return ceilf(x); }
SCALAR float f_round(float x) { return rintf(x); }
SCALAR float f_trunc(float x) { return truncf(x); }

SCALAR float f_add(float a, float b) { return a + b; }
SCALAR float f_sub(float a, float b) { return a - b; }
SCALAR float f_mul(float a, float b) { return a * b; }
SCALAR float f_div(float a, float b) { return a / b; }
SCALAR float f_floor_div(float a, float b) { return arithmetic::floor_div(a, b); }
SCALAR float f_remainder(float a, float b) { return arithmetic::remainder(a, b); }
SCALAR float f_power(float a, float b) { return arithmetic::power(a, b); }
SCALAR float f_max(float a, float b) { return arithmetic::max(a, b); }
SCALAR float f_min(float a, float b) { return arithmetic::min(a, b); }
SCALAR float f_atan2(float a, float b) { return arithmetic::atan2(a, b); }
SCALAR float f_log_add_exp(float a, float b) { return arithmetic::log_add_exp(a, b); }

SCALAR i64 i_neg(i64 x) { return (i64)(0 - (u64)x); }
SCALAR i64 i_abs(i64 x) { return x < 0 ? i_neg(x) : x; }
SCALAR i64 i_sign(i64 x) { return (x > 0) - (x < 0); }
SCALAR i64 i_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
SCALAR i64 i_square(i64 x) { return i_mul(x, x); }
SCALAR i64 i_bit_not(i64 x) { return ~x; }

SCALAR i64 i_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
SCALAR i64 i_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
SCALAR i64 i_max(i64 a, i64 b) { return a > b ? a : b; }
SCALAR i64 i_min(i64 a, i64 b) { return a < b ? a : b; }
SCALAR i64 i_bit_and(i64 a, i64 b) { return a & b; }
SCALAR i64 i_bit_or(i64 a, i64 b) { return a | b; }
SCALAR i64 i_bit_xor(i64 a, i64 b) { return a ^ b; }

// Rounded down; 0 for a divisor of zero. Dividing the smallest number by -1 wraps.
SCALAR i64 i_floor_div(i64 a, i64 b) {
    if (b == 0) return 0;
    if (b == -1) return i_neg(a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

// The remainder of `i_floor_div`, with the sign of the divisor; 0 for a divisor of zero.
SCALAR i64 i_remainder(i64 a, i64 b) {
    if (b == 0 || b == -1) return 0;
    const i64 remainder = a % b;
    return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// By squaring. A negative exponent gives 0, except for bases 1 and -1.
SCALAR i64 i_power(i64 base, i64 exponent) {
    if (exponent < 0) {
        if (base == 1) return 1;
        return base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
    }
    i64 result = 1, square = base;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1) result = i_mul(result, square);
        square = i_mul(square, square);
    }
    return result;
}
