// Elements of tensors, by type: a tag for each, with its memory type and its conversions.
//
// Kernels compute in `float` or in `i64` and convert where they load and store: floats are widened exactly and rounded to nearest,
// even; integers wrap; floats become integers by truncation, with saturation to 64 bits and then wrapping, and NaN becomes 0.
// A type that is known when a kernel is compiled is a tag (`typename T`, or a macro such as `X`); one that is not is a `u32` code,
// for `load_float`, `load_int`, `store_float` and `store_int`.

#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

// Codes of types, as `ptero_tensor::DType` numbers them.
#define U8_CODE 0
#define I8_CODE 1
#define I16_CODE 2
#define I32_CODE 3
#define I64_CODE 4
#define F16_CODE 5
#define F32_CODE 6
#define BOOL_CODE 11
#define BF16_CODE 15
#define U16_CODE 27
#define U32_CODE 28

__device__ __forceinline__ float half_to_float(u16 bits) {
#ifdef __CUDA_ARCH__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
#else
    return (float)__builtin_bit_cast(_Float16, bits);
#endif
}

__device__ __forceinline__ u16 float_to_half(float x) {
#ifdef __CUDA_ARCH__
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    return __builtin_bit_cast(u16, (_Float16)x);
#endif
}

__device__ __forceinline__ float bfloat_to_float(u16 bits) { return __uint_as_float((u32)bits << 16); }

__device__ __forceinline__ u16 float_to_bfloat(float x) {
    const u32 bits = __float_as_uint(x);
    if (x != x) return 0x7fc0;
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Truncated, saturated; NaN gives 0.
__device__ __forceinline__ i64 float_to_int(float x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0f) return 0x7fffffffffffffffll;
    if (x <= -9223372036854775808.0f) return -0x7fffffffffffffffll - 1;
    return (i64)x;
}

struct F32 {
    typedef float Element;
    static const u32 CODE = F32_CODE;
    static const bool IS_FLOAT = true;
    static __device__ __forceinline__ float to_float(float x) { return x; }
    static __device__ __forceinline__ float from_float(float x) { return x; }
    static __device__ __forceinline__ i64 to_int(float x) { return float_to_int(x); }
    static __device__ __forceinline__ float from_int(i64 x) { return (float)x; }
};

struct F16 {
    typedef u16 Element;
    static const u32 CODE = F16_CODE;
    static const bool IS_FLOAT = true;
    static __device__ __forceinline__ float to_float(u16 x) { return half_to_float(x); }
    static __device__ __forceinline__ u16 from_float(float x) { return float_to_half(x); }
    static __device__ __forceinline__ i64 to_int(u16 x) { return float_to_int(half_to_float(x)); }
    static __device__ __forceinline__ u16 from_int(i64 x) { return float_to_half((float)x); }
};

struct Bf16 {
    typedef u16 Element;
    static const u32 CODE = BF16_CODE;
    static const bool IS_FLOAT = true;
    static __device__ __forceinline__ float to_float(u16 x) { return bfloat_to_float(x); }
    static __device__ __forceinline__ u16 from_float(float x) { return float_to_bfloat(x); }
    static __device__ __forceinline__ i64 to_int(u16 x) { return float_to_int(bfloat_to_float(x)); }
    static __device__ __forceinline__ u16 from_int(i64 x) { return float_to_bfloat((float)x); }
};

#define INTEGER_ELEMENT(NAME, TYPE, NUMBER)                                                                                           \
    struct NAME {                                                                                                                     \
        typedef TYPE Element;                                                                                                         \
        static const u32 CODE = NUMBER;                                                                                               \
        static const bool IS_FLOAT = false;                                                                                           \
        static __device__ __forceinline__ float to_float(TYPE x) { return (float)x; }                                                 \
        static __device__ __forceinline__ TYPE from_float(float x) { return (TYPE)float_to_int(x); }                                  \
        static __device__ __forceinline__ i64 to_int(TYPE x) { return (i64)x; }                                                       \
        static __device__ __forceinline__ TYPE from_int(i64 x) { return (TYPE)x; }                                                    \
    };

INTEGER_ELEMENT(I64, i64, I64_CODE)
INTEGER_ELEMENT(I32, i32, I32_CODE)
INTEGER_ELEMENT(U32, u32, U32_CODE)
INTEGER_ELEMENT(I16, i16, I16_CODE)
INTEGER_ELEMENT(U16, u16, U16_CODE)
INTEGER_ELEMENT(I8, i8, I8_CODE)
INTEGER_ELEMENT(U8, u8, U8_CODE)

// Anything but zero is true, NaN included.
struct Bool {
    typedef u8 Element;
    static const u32 CODE = BOOL_CODE;
    static const bool IS_FLOAT = false;
    static __device__ __forceinline__ float to_float(u8 x) { return x ? 1.0f : 0.0f; }
    static __device__ __forceinline__ u8 from_float(float x) { return x != 0.0f; }
    static __device__ __forceinline__ i64 to_int(u8 x) { return x != 0; }
    static __device__ __forceinline__ u8 from_int(i64 x) { return x != 0; }
};

// Calls `DO(TAG)` with the tag of a type's code. Codes that no kernel computes with do not get here.
#define WITH_ELEMENT(CODE, DO)                                                                                                        \
    switch (CODE) {                                                                                                                   \
    case U8_CODE: DO(U8) break;                                                                                                       \
    case I8_CODE: DO(I8) break;                                                                                                       \
    case I16_CODE: DO(I16) break;                                                                                                     \
    case I32_CODE: DO(I32) break;                                                                                                     \
    case I64_CODE: DO(I64) break;                                                                                                     \
    case F16_CODE: DO(F16) break;                                                                                                     \
    case F32_CODE: DO(F32) break;                                                                                                     \
    case BOOL_CODE: DO(Bool) break;                                                                                                   \
    case BF16_CODE: DO(Bf16) break;                                                                                                   \
    case U16_CODE: DO(U16) break;                                                                                                     \
    default: DO(U32) break;                                                                                                           \
    }

__device__ __forceinline__ bool is_float(u32 code) { return code == F32_CODE || code == F16_CODE || code == BF16_CODE; }

__device__ __forceinline__ u32 size_of(u32 code) {
#define SIZE(T) return sizeof(T::Element);
    WITH_ELEMENT(code, SIZE)
#undef SIZE
    return 0;
}

// The element at an index from `data` on.
__device__ __forceinline__ float load_float(u32 code, const char *data, i64 at) {
#define LOAD(T) return T::to_float(((const T::Element *)data)[at]);
    WITH_ELEMENT(code, LOAD)
#undef LOAD
    return 0.0f;
}

__device__ __forceinline__ i64 load_int(u32 code, const char *data, i64 at) {
#define LOAD(T) return T::to_int(((const T::Element *)data)[at]);
    WITH_ELEMENT(code, LOAD)
#undef LOAD
    return 0;
}

__device__ __forceinline__ void store_float(u32 code, char *data, i64 at, float x) {
#define STORE(T) ((T::Element *)data)[at] = T::from_float(x);
    WITH_ELEMENT(code, STORE)
#undef STORE
}

__device__ __forceinline__ void store_int(u32 code, char *data, i64 at, i64 x) {
#define STORE(T) ((T::Element *)data)[at] = T::from_int(x);
    WITH_ELEMENT(code, STORE)
#undef STORE
}

// A number rounded or wrapped to a type, as storing and loading it would.
template <typename T> __device__ __forceinline__ float round_to(float x) { return T::to_float(T::from_float(x)); }
template <typename T> __device__ __forceinline__ i64 wrap_to(i64 x) { return T::to_int(T::from_int(x)); }
