// The sampling contract on the device: the same operations in the same order as the crate `sampling`, so the same bits.
//
// Compiled with `--fmad=false`: no product may be fused into a sum. Divisions and square roots are IEEE by default.

#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Threefry-2x32, 20 rounds (`threefry.rs`).
struct Words {
    u32 low, high;
};

__device__ __forceinline__ u32 rotate(u32 word, int by) { return __funnelshift_l(word, word, by); }

__device__ __forceinline__ Words threefry(u32 k0, u32 k1, u32 x0, u32 x1) {
    const u32 k2 = k0 ^ k1 ^ 0x1BD11BDAu;
    x0 += k0, x1 += k1;
#define FOUR_ROUNDS(a, b, c, d)                         \
    x0 += x1, x1 = rotate(x1, a) ^ x0;                  \
    x0 += x1, x1 = rotate(x1, b) ^ x0;                  \
    x0 += x1, x1 = rotate(x1, c) ^ x0;                  \
    x0 += x1, x1 = rotate(x1, d) ^ x0;
    FOUR_ROUNDS(13, 15, 26, 6)
    x0 += k1, x1 += k2 + 1;
    FOUR_ROUNDS(17, 29, 16, 24)
    x0 += k2, x1 += k0 + 2;
    FOUR_ROUNDS(13, 15, 26, 6)
    x0 += k0, x1 += k1 + 3;
    FOUR_ROUNDS(17, 29, 16, 24)
    x0 += k1, x1 += k2 + 4;
    FOUR_ROUNDS(13, 15, 26, 6)
    x0 += k2, x1 += k0 + 5;
#undef FOUR_ROUNDS
    return {x0, x1};
}

// A stream of `count` random words: word `i` of the lower half is made together with word `i` of the upper half.
struct Stream {
    u32 k0, k1;
    u32 count;

    __device__ u32 half() const { return count / 2; }
    __device__ u32 upper() const { return count - count / 2; }

    // The words at `at` and `at + upper()`, for `at` below `half()`.
    __device__ __forceinline__ Words pair(u32 at) const { return threefry(k0, k1, at, at + upper()); }

    // Both words of a token with an exact tail, of a stream of twice as many.
    __device__ __forceinline__ Words both(u32 at) const { return threefry(k0, k1, at, at + count); }

    // The word in the middle of an odd count.
    __device__ u32 middle() const { return threefry(k0, k1, half(), 0).low; }

    __device__ __forceinline__ u32 word(u32 at) const {
        // One encryption, whichever half it is in.
        const bool is_low = at < upper();
        const u32 first = is_low ? at : at - upper();
        const Words words = threefry(k0, k1, first, first < half() ? first + upper() : 0);
        return is_low ? words.low : words.high;
    }
};

// The key of a seed: its low half, sign-extended (`noise.rs`).
__device__ __forceinline__ Stream seeded(i64 seed, u32 count) {
    return {(u32)((i64)(int)seed >> 32), (u32)seed, count};
}

// Logarithm and exponential (`single.rs` of the crate `arithmetic`).
#define LN_2_HIGH __uint_as_float(0x3f317200u)
#define LN_2_LOW 1.4286068e-6f

// Of normal numbers above 0.
__device__ __forceinline__ float ln_of_normal(float x) {
    const int bits = __float_as_int(x);
    const int exponent = (bits - 0x3f3504f3) >> 23;
    const float f = __int_as_float(bits - (exponent << 23)) - 1.0f;
    const float power = (float)exponent;
    const float square = f * f;
    float sum = 0.06746642f;
    sum = sum * f + -0.11675652f;
    sum = sum * f + 0.11888162f;
    sum = sum * f + -0.124055885f;
    sum = sum * f + 0.14219552f;
    sum = sum * f + -0.16667996f;
    sum = sum * f + 0.2000212f;
    sum = sum * f + -0.2500001f;
    sum = sum * f + 0.33333313f;
    const float tail = square * f * sum;
    return power * LN_2_HIGH + (f - (0.5f * square - (tail + power * LN_2_LOW)));
}

// Of numbers from -28 to 0, where the result is normal.
__device__ __forceinline__ float exp_to_one(float x) {
    const float power = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const float r = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    float sum = 0.0013814613f;
    sum = sum * r + 0.00836871f;
    sum = sum * r + 0.04166839f;
    sum = sum * r + 0.16666521f;
    sum = sum * r + 0.49999994f;
    const float mantissa = 1.0f + (r + r * r * sum);
    return __int_as_float(__float_as_int(mantissa) + ((int)power << 23));
}

// Of any number up to 0; NaN stays NaN.
__device__ __forceinline__ float exp_of(float x) {
    const float bounded = x < -104.0f ? -104.0f : x;
    const float shifted = bounded * 1.44269504f + 12582912.0f, power = shifted - 12582912.0f;
    const float r = (bounded - power * LN_2_HIGH) - power * LN_2_LOW;
    float sum = 0.0013814613f;
    sum = sum * r + 0.00836871f;
    sum = sum * r + 0.04166839f;
    sum = sum * r + 0.16666521f;
    sum = sum * r + 0.49999994f;
    const float mantissa = 1.0f + (r + r * r * sum);
    // In two steps, because 2^power alone may not be a normal number when the product is.
    const int whole = __float_as_int(shifted) - 0x4b400000, half = whole >> 1;
    return mantissa * __int_as_float((half + 127) << 23) * __int_as_float((whole - half + 127) << 23);
}

// Noise (`noise.rs`).
__device__ __forceinline__ float gumbel(u32 word) {
    if (word == 0) return __int_as_float(0xff800000);
    const float uniform = fminf((float)word / 4294967296.0f, 0.99999994f);
    return -ln_of_normal(-ln_of_normal(uniform));
}

// The logarithm to base 2, roughly.
__device__ __forceinline__ float log2_estimate(float x) {
#ifndef __CUDA_ARCH__
    return log2f(x);
#else
    float logarithm;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
    return logarithm;
#endif
}

// Within 1/1024 of the noise, at a tenth of its cost; infinite for the few words that are too large for that.
__device__ __forceinline__ float gumbel_estimate(u32 word) {
    const float inner = log2_estimate((float)word * 2.3283064e-10f), outer = log2_estimate(inner * -0.6931472f);
    return word > 0xffc00000u ? __int_as_float(0x7f800000) : outer * -0.6931472f;
}

// Noise with an exact tail, of both words of a block: the distance of a uniform number from 1.
__device__ __forceinline__ float distance(Words words) {
    const float sum = (float)words.low / 4294967296.0f + (float)words.high / 18446744073709551616.0f;
    return fminf(fmaxf(sum, 1.0f / 18446744073709551616.0f), 0.99999994f);
}

// The logarithm of `(1 + s) / (1 - s)` (`wide.rs` of the crate `arithmetic`).
__device__ __forceinline__ double logarithm_series(double s) {
    const double square = s * s;
    double sum = 0.0;
#pragma unroll
    for (int n = 11; n >= 0; --n) sum = sum * square + 1.0 / (2 * n + 1);
    return 2.0 * s * sum;
}

// Of numbers above 0.
__device__ __forceinline__ double wide_ln(double x) {
    const i64 bits = __double_as_longlong(x), exponent = (bits - 0x3fe6a09e667f3bcdll) >> 52;
    const double mantissa = __longlong_as_double(bits - (exponent << 52)), power = (double)exponent;
    const double high = __longlong_as_double(0x3fe62e42fef00000ll), low = 7.440617110012397e-11;
    return power * high + (power * low + logarithm_series((mantissa - 1.0) / (mantissa + 1.0)));
}

__device__ __noinline__ float exact_gumbel(Words words) {
    const double x = -(double)distance(words);
    const double logarithm = x > -0.25 ? logarithm_series(x / (2.0 + x)) : wide_ln(1.0 + x);
    return -ln_of_normal(-(float)logarithm);
}

// Within 1/1024 of it.
__device__ __forceinline__ float exact_gumbel_estimate(Words words) {
    const float v = distance(words), inner = log2_estimate(1.0f - v);
    const float logarithm = v < 0.015625f ? v * (1.0f + v * (0.5f + v * 0.33333334f)) : inner * -0.6931472f;
    return log2_estimate(logarithm) * -0.6931472f;
}

// Masses (`mass.rs`).
#define MASS_ONE (1ull << 40)

__device__ __forceinline__ u64 mass(float scaled, float largest) {
    if (scaled == largest) return MASS_ONE;
    const float distance = scaled - largest;
    if (distance < -28.0f) return 0;
    const u32 bits = __float_as_uint(exp_to_one(distance));
    return ((u64)(bits & 0x7fffffu | 0x800000u) << 17) >> (127 - (bits >> 23));
}

__device__ __forceinline__ u64 limit(float top_p, u64 total) {
    if (top_p >= 1.0f) return total;
    if (!(top_p > 0.0f)) return 0;
    const u32 bits = __float_as_uint(top_p);
    const u32 exponent = bits >> 23 ? bits >> 23 : 1;
    const u64 mantissa = bits >> 23 ? bits & 0x7fffffu | 0x800000u : bits;
    const u32 shift = 150 - exponent;
    const u64 low = mantissa * total, high = __umul64hi(mantissa, total);
    if (shift >= 128) return 0;
    if (shift >= 64) return high >> (shift - 64);
    return low >> shift | high << (64 - shift);
}

// Returns true if min-p, not above 1, keeps a scaled logit (`reference.rs`). Infinities that are equal give NaN, and are kept.
__device__ __forceinline__ bool is_likely(float scaled, float largest, float min_p) {
    return !(exp_of(scaled - largest) < min_p);
}

// The logarithm of a share of the total (`categorical.rs`).
__device__ __forceinline__ float log_probability(float scaled, float largest, u64 total) {
    const float distance = scaled == largest ? 0.0f : scaled - largest;
    return distance - ln_of_normal((float)total / (float)MASS_ONE);
}

// Floats as integers of the same order: NaN is 0, and the two zeros are equal.
__device__ __forceinline__ u32 ordered(float x) {
    if (x != x) return 0;
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}

#define MINUS_INFINITY __int_as_float(0xff800000)
// The key of minus infinity, the smallest but that of NaN.
#define LEAST_KEY 0x007fffffu

// The number of a key that is not 0.
__device__ __forceinline__ float number(u32 key) {
    return __uint_as_float(key ^ ((u32)((int)~key >> 31) | 0x80000000u));
}

// A score with its index: the largest is the best, and of equal scores the first. NaN gives 0.
__device__ __forceinline__ u64 contender(float score, u32 index) {
    const u32 key = ordered(score);
    return key ? (u64)key << 32 | (u32)~index : 0;
}

// The token of the best contender; 0 if there was none.
__device__ __forceinline__ u32 winner(u64 best) { return best ? ~(u32)best : 0; }
