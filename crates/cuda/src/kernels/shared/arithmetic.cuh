// Functions of single numbers: the same operations in the same order as the crate `arithmetic`, so the same bits.
//
// Compiled with `--fmad=false`: no product is fused into a sum. Divisions and square roots are IEEE by default, and subnormal
// numbers are kept. `tests/arithmetic.rs` compiles this file for the host and compares it with the crate.

#pragma once

#include "element.cuh"

#define PTERO_NAN __uint_as_float(0x7fc00000u)
#define PTERO_INFINITY __uint_as_float(0x7f800000u)

namespace arithmetic {

#define FUNCTION __device__ __forceinline__
// Long and rarely called: not copied to every call.
#define LONG_FUNCTION __device__ __noinline__

FUNCTION bool is_nan(float x) { return x != x; }
FUNCTION bool is_infinite(float x) { return fabsf(x) == PTERO_INFINITY; }
FUNCTION bool is_finite(float x) { return fabsf(x) < PTERO_INFINITY; }
FUNCTION bool is_negative(float x) { return __float_as_uint(x) >> 31; }

// single.rs: exponential and logarithm in f32.

#define LN_2_HIGH_F32 __uint_as_float(0x3f317200u)
#define LN_2_LOW_F32 1.4286068e-6f
#define WHOLE_F32 12582912.0f

// Horner's rule, lowest power first.
template <int N>
FUNCTION float polynomial(const float (&coefficients)[N], float x) {
    float sum = coefficients[N - 1];
#pragma unroll
    for (int i = N - 2; i >= 0; --i) sum = sum * x + coefficients[i];
    return sum;
}

// 2^power for powers from -126 to 127.
FUNCTION float power_of_two(int power) { return __uint_as_float((u32)(power + 127) << 23); }

FUNCTION float ln(float x) {
    const float LN[9] = {0.33333313f,   -0.2500001f, 0.2000212f,   -0.16667996f, 0.14219552f,
                         -0.124055885f, 0.11888162f, -0.11675652f, 0.06746642f};
    // Subnormal numbers have no exponent of their own.
    const bool is_small = x < 1.17549435e-38f;
    const u32 bits = __float_as_uint(is_small ? x * 8388608.0f : x);
    const int exponent = (int)(bits - 0x3f3504f3u) >> 23;
    const float mantissa = __uint_as_float(bits - ((u32)exponent << 23));
    const float power = (float)(exponent - (is_small ? 23 : 0));
    const float f = mantissa - 1.0f;
    const float square = f * f;
    const float tail = square * f * polynomial(LN, f);
    const float result = power * LN_2_HIGH_F32 + (f - (0.5f * square - (tail + power * LN_2_LOW_F32)));
    if (x > 0.0f && x < PTERO_INFINITY) return result;
    if (x == 0.0f) return -PTERO_INFINITY;
    return x > 0.0f ? x : PTERO_NAN;
}

FUNCTION float exp(float x) {
    const float EXP[5] = {0.49999994f, 0.16666521f, 0.04166839f, 0.00836871f, 0.0013814613f};
    // Beyond these it is infinite or zero. NaN passes through everything below.
    float bounded = x > 89.0f ? 89.0f : x;
    bounded = bounded < -104.0f ? -104.0f : bounded;
    const float shifted = bounded * 1.44269504f + WHOLE_F32;
    const float power = shifted - WHOLE_F32;
    const float r = (bounded - power * LN_2_HIGH_F32) - power * LN_2_LOW_F32;
    const float mantissa = 1.0f + (r + r * r * polynomial(EXP, r));
    // In two steps, because 2^power alone may not be a number when the product is.
    const int whole = (int)(__float_as_uint(shifted) - 0x4b400000u), half = whole >> 1;
    return mantissa * power_of_two(half) * power_of_two((int)((u32)whole - (u32)half));
}

FUNCTION float sigmoid(float x) {
    const float power = exp(-fabsf(x));
    const float numerator = x >= 0.0f ? 1.0f : power;
    return numerator / (1.0f + power);
}

FUNCTION float tanh(float x) {
    const float TANH[5] = {-0.3333328f, 0.13331442f, -0.053739716f, 0.02063909f, -0.0057049887f};
    const float magnitude = fabsf(x);
    const float large = 1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f);
    const float square = x * x;
    const float small = x + x * square * polynomial(TANH, square);
    return copysignf(magnitude < 0.625f ? small : large, x);
}

// wide.rs: exponential, logarithm and arc tangent in f64.

namespace wide {

#define PI_F64 3.14159265358979323846
#define FRAC_PI_2_F64 1.57079632679489661923
#define LOG2_E_F64 1.44269504088896340736
#define LOG10_E_F64 0.43429448190325182765
#define LN_2_HIGH_F64 __longlong_as_double(0x3fe62e42fef00000ll)
#define LN_2_LOW_F64 7.440617110012397e-11
#define WHOLE_F64 6755399441055744.0
#define INFINITY_F64 __longlong_as_double(0x7ff0000000000000ll)
#define NAN_F64 __longlong_as_double(0x7ff8000000000000ll)

FUNCTION double exponential_series(double x, int first, int last) {
    double sum = 1.0;
    for (int n = last; n >= first; --n) sum = 1.0 + x / (double)n * sum;
    return sum;
}

LONG_FUNCTION double exp(double x) {
    x = x > 200.0 ? 200.0 : x;
    x = x < -200.0 ? -200.0 : x;
    const double shifted = x * LOG2_E_F64 + WHOLE_F64;
    const double power = shifted - WHOLE_F64;
    const double r = (x - power * LN_2_HIGH_F64) - power * LN_2_LOW_F64;
    const u64 exponent = (u64)__double_as_longlong(shifted) - (u64)__double_as_longlong(WHOLE_F64);
    // The exponent of a NaN is garbage, but the product stays NaN.
    return exponential_series(r, 1, 14) * __longlong_as_double((i64)((exponent + 1023) << 52));
}

LONG_FUNCTION double exp_m1(double x) {
    return fabs(x) < 0.5 ? x * exponential_series(x, 2, 16) : exp(x) - 1.0;
}

FUNCTION double logarithm_series(double s) {
    const double square = s * s;
    double sum = 0.0;
    for (int n = 11; n >= 0; --n) sum = sum * square + 1.0 / (double)(2 * n + 1);
    return 2.0 * s * sum;
}

LONG_FUNCTION double ln(double x) {
    if (x == 0.0) return -INFINITY_F64;
    if (!(x > 0.0 && x < INFINITY_F64)) return x > 0.0 ? x : NAN_F64;
    const i64 bits = __double_as_longlong(x);
    const i64 exponent = (bits - 0x3fe6a09e667f3bcdll) >> 52;
    const double mantissa = __longlong_as_double((i64)((u64)bits - ((u64)exponent << 52)));
    const double power = (double)exponent;
    return power * LN_2_HIGH_F64 + (power * LN_2_LOW_F64 + logarithm_series((mantissa - 1.0) / (mantissa + 1.0)));
}

LONG_FUNCTION double ln_1p(double x) { return fabs(x) < 0.25 ? logarithm_series(x / (2.0 + x)) : ln(1.0 + x); }

FUNCTION double halved(double tangent) { return tangent / (1.0 + sqrt(1.0 + tangent * tangent)); }

LONG_FUNCTION double atan(double x) {
    const double magnitude = fabs(x);
    const bool is_steep = magnitude > 1.0;
    const double tangent = is_steep ? 1.0 / magnitude : magnitude;
    const double quarter = halved(halved(tangent));
    const double square = quarter * quarter;
    double sum = 0.0;
    for (int n = 12; n >= 0; --n) sum = 1.0 / (double)(2 * n + 1) - sum * square;
    const double angle = 4.0 * quarter * sum;
    return copysign(is_steep ? FRAC_PI_2_F64 - angle : angle, x);
}

}  // namespace wide

// angle.rs: sine, cosine and tangent.

struct Wide128 {
    u64 high, low;
};

// 128 bits of 2 / pi, starting at bit `first`, as an integer whose highest bit is that one.
FUNCTION Wide128 bits_of_two_over_pi(u32 first) {
    const u64 WORDS[7] = {0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull, 0xdb6295993c439041ull, 0xfe5163abdebbc561ull, 0, 0, 0};
    const u32 index = first / 64, shift = first % 64;
    const u64 a = WORDS[index], b = WORDS[index + 1], c = WORDS[index + 2];
    if (shift == 0) return {a, b};
    return {a << shift | b >> (64 - shift), b << shift | c >> (64 - shift)};
}

// A signed number of 128 bits, rounded to nearest, even.
FUNCTION double rounded_128(Wide128 x) {
    const bool is_negative = x.high >> 63;
    if (is_negative) x = {~x.high + (x.low == 0), (u64)0 - x.low};
    double magnitude;
    if (x.high == 0) {
        magnitude = (double)x.low;
    } else {
        const int shift = __clzll((i64)x.high);
        const u64 top = shift == 0 ? x.high : x.high << shift | x.low >> (64 - shift);
        // What is cut off only decides between halves.
        const u64 sticky = x.low << shift != 0;
        magnitude = (double)(top | sticky) * __longlong_as_double((i64)(1023 + 64 - shift) << 52);
    }
    return is_negative ? -magnitude : magnitude;
}

struct Quarters {
    u32 quarter;
    double rest;
};

FUNCTION Quarters quarters(float x) {
    const u32 bits = __float_as_uint(x) & 0x7fffffffu;
    if (fabsf(x) <= 0.785398163397448309616f) return {0, (double)fabsf(x)};
    const u64 mantissa = (bits & 0x7fffffu) | 0x800000u;
    const int exponent = (int)(bits >> 23) - 150;
    Wide128 factor;
    if (exponent >= 2) {
        factor = bits_of_two_over_pi((u32)(exponent - 2));
    } else {
        const int shift = 2 - exponent;
        const Wide128 first = bits_of_two_over_pi(0);
        factor = {first.high >> shift, first.high << (64 - shift) | first.low >> shift};
    }
    const Wide128 product = {mantissa * factor.high + __umul64hi(mantissa, factor.low), mantissa * factor.low};
    // Rounded to the nearest quarter; the rest has its sign.
    const u64 quarter = (product.high + (1ull << 61)) >> 62;
    const Wide128 rest = {product.high - (quarter << 62), product.low};
    return {(u32)quarter, rounded_128(rest) * __longlong_as_double((i64)(1023 - 126) << 52) * FRAC_PI_2_F64};
}

FUNCTION double sine_of_eighth(double x) {
    const double square = x * x;
    double sum = 1.0;
    for (int n = 9; n >= 1; --n) sum = 1.0 - square / (double)(2 * n * (2 * n + 1)) * sum;
    return x * sum;
}

FUNCTION double cosine_of_eighth(double x) {
    const double square = x * x;
    double sum = 1.0;
    for (int n = 9; n >= 1; --n) sum = 1.0 - square / (double)(2 * n * (2 * n - 1)) * sum;
    return sum;
}

struct SineCosine {
    double sine, cosine;
};

// Of the magnitude of an angle.
LONG_FUNCTION SineCosine sine_and_cosine(float x) {
    if (!is_finite(x)) return {NAN_F64, NAN_F64};
    const Quarters angle = quarters(x);
    const double sine = sine_of_eighth(angle.rest), cosine = cosine_of_eighth(angle.rest);
    switch (angle.quarter % 4) {
        case 0: return {sine, cosine};
        case 1: return {cosine, -sine};
        case 2: return {-sine, -cosine};
        default: return {-cosine, sine};
    }
}

FUNCTION void sin_cos(float x, float& sine, float& cosine) {
    const SineCosine both = sine_and_cosine(x);
    sine = (float)(is_negative(x) ? -both.sine : both.sine);
    cosine = (float)both.cosine;
}

FUNCTION float sin(float x) {
    float sine, cosine;
    sin_cos(x, sine, cosine);
    return sine;
}

FUNCTION float cos(float x) {
    float sine, cosine;
    sin_cos(x, sine, cosine);
    return cosine;
}

LONG_FUNCTION float tan(float x) {
    const SineCosine both = sine_and_cosine(x);
    const float tangent = (float)(both.sine / both.cosine);
    return is_negative(x) ? -tangent : tangent;
}

// erf.rs

LONG_FUNCTION float erf(float x) {
    const double COEFFICIENTS[20] = {
        0.3535309956188323,     -0.17657623321207605,  0.13167512178022886,    -0.1077104490397979,
        0.09020883404955081,    -0.07472772607429223,  0.059888935440950586,   -0.045766481926030125,
        0.03304758581446077,    -0.02246618352318503,  0.014397568146890761,   -0.00863003750367861,
        0.0047468294862892816,  -0.002530356910027403, 0.00143801816253921,    -0.0006730861976881829,
        0.00015834110045548821, -7.231701991948019e-5, 9.735199437156073e-5,   -3.6714063722703764e-5};
    const double magnitude = fabs((double)x);
    const double bounded = magnitude > 4.0 ? 4.0 : magnitude;
    const double t = bounded * bounded * (2.0 / (4.0 * 4.0)) - 1.0;
    double sum = 0.0;
    for (int i = 19; i >= 0; --i) sum = sum * t + COEFFICIENTS[i];
    return copysignf((float)(bounded * sum), x);
}

// functions.rs

FUNCTION float rsqrt(float x) { return 1.0f / sqrtf(x); }

FUNCTION float sign(float x) {
    const float outside = x < 0.0f ? -1.0f : x;
    return x > 0.0f ? 1.0f : outside;
}

// NaN if either is NaN; of two zeros, the second.
FUNCTION float max(float a, float b) { return a > b || is_nan(a) ? a : b; }
FUNCTION float min(float a, float b) { return -max(-a, -b); }

FUNCTION float floor_div(float a, float b) { return floorf(a / b); }

FUNCTION float remainder(float a, float b) {
    const float remainder = fmodf(a, b);
    return remainder != 0.0f && (remainder < 0.0f) != (b < 0.0f) ? remainder + b : remainder;
}

LONG_FUNCTION float exp_m1(float x) { return (float)wide::exp_m1((double)x); }
LONG_FUNCTION float ln_1p(float x) { return (float)wide::ln_1p((double)x); }
FUNCTION float log2(float x) { return (float)(wide::ln((double)x) * LOG2_E_F64); }
FUNCTION float log10(float x) { return (float)(wide::ln((double)x) * LOG10_E_F64); }
FUNCTION float atan(float x) { return (float)wide::atan((double)x); }

LONG_FUNCTION float asin(float x) {
    const double y = (double)x;
    return (float)wide::atan(y / ::sqrt((1.0 - y) * (1.0 + y)));
}

LONG_FUNCTION float acos(float x) {
    const double y = (double)x;
    return (float)(2.0 * wide::atan(::sqrt((1.0 - y) / (1.0 + y))));
}

LONG_FUNCTION float atan2(float y, float x) {
    if (is_nan(y) || is_nan(x)) return PTERO_NAN;
    double slope = (double)fabsf(y) / (double)fabsf(x);
    if (y == 0.0f) {
        slope = 0.0;
    } else if (is_infinite(y) && is_infinite(x)) {
        slope = 1.0;
    }
    const double angle = wide::atan(slope);
    return copysignf((float)(is_negative(x) ? PI_F64 - angle : angle), y);
}

LONG_FUNCTION float sinh(float x) {
    const double less_one = wide::exp_m1((double)fabsf(x));
    return copysignf((float)((less_one + less_one / (less_one + 1.0)) * 0.5), x);
}

LONG_FUNCTION float cosh(float x) {
    const double power = wide::exp((double)fabsf(x));
    return (float)((power + 1.0 / power) * 0.5);
}

LONG_FUNCTION float asinh(float x) {
    const double magnitude = (double)fabsf(x);
    const double square = magnitude * magnitude;
    const double over_one = magnitude + square / (1.0 + ::sqrt(1.0 + square));
    return is_infinite(x) ? x : copysignf((float)wide::ln_1p(over_one), x);
}

LONG_FUNCTION float acosh(float x) {
    const double over_one = (double)x - 1.0;
    const double root = ::sqrt(over_one * (2.0 + over_one));
    return x < 1.0f ? PTERO_NAN : (float)wide::ln_1p(over_one + root);
}

LONG_FUNCTION float atanh(float x) {
    const double magnitude = (double)fabsf(x);
    return copysignf((float)(0.5 * wide::ln_1p(2.0 * magnitude / (1.0 - magnitude))), x);
}

LONG_FUNCTION float power(float a, float b) {
    if (b == 2.0f) return a * a;
    if (b == 0.0f || a == 1.0f) return 1.0f;
    const bool is_whole = truncf(b) == b;
    const bool is_odd = is_whole && truncf(b * 0.5f) != b * 0.5f;
    if (a < 0.0f && is_finite(a) && !is_whole) return PTERO_NAN;
    const double magnitude = (double)fabsf(a);
    // One has no logarithm that an infinite exponent could multiply.
    const bool is_one = magnitude == 1.0 && !is_nan(b);
    const float size = (float)(is_one ? 1.0 : wide::exp((double)b * wide::ln(magnitude)));
    return is_negative(a) && is_odd ? -size : size;
}

LONG_FUNCTION float log_add_exp(float a, float b) {
    const float high = max(a, b), low = min(a, b);
    // Two equal infinities have no difference.
    if (is_infinite(high)) return high;
    return (float)((double)high + wide::ln_1p(wide::exp((double)low - (double)high)));
}

}  // namespace arithmetic
