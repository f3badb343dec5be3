// Quantized weights: rows of codes with a scale for each group, as in `crates/tensor/src/quant.rs`.
//
// Compiled with FORMAT (below), and for words with BITS and GROUP, the tags SCALE and BIAS, HAS_BIAS, and VECTOR = 1 if rows of
// codes are contiguous and start at multiples of 16 bytes; WHOLE may be 1 if rows are made of whole cells.
//
// A cell is 64 codes. As whole numbers, a weight is `scale * code + bias`: codes are bytes, signed (SIGNED) or not, and a cell has
// GROUPS groups of STEP codes. Words of four bits hold their codes INTERLEAVED: of eight codes, first those at even indices, then the
// others; the activations that they are multiplied with lie in the same order.

// Not `#pragma once`: a launch that does several steps includes this for each of them.
#ifndef QUANT_CUH
#define QUANT_CUH

#include "view.cuh"

#define AFFINE 0
#define MXFP4 1
#define NVFP4 2
#define MXFP8 3
#define Q4_K 4
#define Q5_K 5
#define Q6_K 6

#ifndef WHOLE
#define WHOLE 0
#endif

#define IS_BLOCKS (FORMAT >= Q4_K)
#if FORMAT >= Q4_K
#define BITS 0
#endif
#define IS_E2M1 (FORMAT == MXFP4 || FORMAT == NVFP4)

#if FORMAT == Q4_K
#define BLOCK_BYTES 144
#define FIRST_CODE 16
#elif FORMAT == Q5_K
#define BLOCK_BYTES 176
#define FIRST_CODE 48
#elif FORMAT == Q6_K
#define BLOCK_BYTES 210
#endif

#if FORMAT == Q6_K
#define STEP 16
#elif IS_BLOCKS
#define STEP 32
#elif GROUP > 64
#define STEP 64
#else
#define STEP GROUP
#endif
// Groups that a kernel cannot multiply as whole numbers are only decoded.
#define GROUPS (STEP < 64 ? 64 / STEP : 1)
#define SIGNED (IS_E2M1 || FORMAT == Q6_K)
#define WITH_BIAS (FORMAT == Q4_K || FORMAT == Q5_K || HAS_BIAS)
#define INTERLEAVED (FORMAT == AFFINE && BITS == 4)

// 2^(code - 127).
__device__ __forceinline__ float e8m0(u32 code) { return __uint_as_float(code ? code << 23 : 0x00400000u); }

// Sign, 4 bits of exponent, 3 of mantissa; finite but for one NaN of each sign.
__device__ __forceinline__ float e4m3(u32 code) {
    const u32 exponent = code >> 3 & 15, mantissa = code & 7;
    float magnitude = exponent ? __uint_as_float((exponent + 120) << 23 | mantissa << 20) : (float)mantissa * 0.001953125f;
    if ((code & 127) == 127) magnitude = __uint_as_float(0x7fc00000u);
    return code & 128 ? -magnitude : magnitude;
}

// Sign, 2 bits of exponent, 1 of mantissa.
__device__ __forceinline__ float e2m1(u32 code) {
    const u32 exponent = code >> 1 & 3, mantissa = code & 1;
    const float magnitude = exponent ? __uint_as_float((exponent + 126) << 23 | mantissa << 22) : (float)mantissa * 0.5f;
    return code & 8 ? -magnitude : magnitude;
}

#if !IS_BLOCKS
// A scale as a number.
__device__ __forceinline__ float scale_of(SCALE::Element raw) {
#if FORMAT == MXFP4 || FORMAT == MXFP8
    return e8m0((u32)SCALE::to_int(raw) & 255);
#elif FORMAT == NVFP4
    return e4m3((u32)SCALE::to_int(raw) & 255);
#else
    return SCALE::to_float(raw);
#endif
}
#endif

struct QuantizedViews {
    View codes, scales, biases;
};

// A matrix of weights.
struct WeightMatrix {
#if IS_BLOCKS
    const u8 *codes;
#else
    const u32 *codes;
    const SCALE::Element *scales;
    i64 scale_row, scale_step;
#if HAS_BIAS
    const BIAS::Element *biases;
    i64 bias_row, bias_step;
#endif
#endif
    // Strides of rows, and of words or bytes within a row.
    i64 row, step;
    // The number of weights in a row.
    i64 length;

    __device__ __forceinline__ WeightMatrix() {}

    __device__ __forceinline__ WeightMatrix(const Lane &lane, const QuantizedViews &views, i64 index) {
        const u32 axis = views.codes.rank - 2;
        const i64 distance = views.codes.at(lane, index, axis);
        row = views.codes.stride(lane, axis), step = views.codes.stride(lane, axis + 1);
#if IS_BLOCKS
        codes = (const u8 *)views.codes.data<U8>(lane) + distance;
        length = views.codes.size(lane, axis + 1) / BLOCK_BYTES * 256;
#else
        codes = views.codes.data<U32>(lane) + distance;
        length = views.scales.size(lane, axis + 1) * GROUP;
        scales = views.scales.data<SCALE>(lane) + views.scales.at(lane, index, axis);
        scale_row = views.scales.stride(lane, axis), scale_step = views.scales.stride(lane, axis + 1);
#if HAS_BIAS
        biases = views.biases.data<BIAS>(lane) + views.biases.at(lane, index, axis);
        bias_row = views.biases.stride(lane, axis), bias_step = views.biases.stride(lane, axis + 1);
#endif
#endif
    }
};

#if IS_BLOCKS
// Scale and minimum of group `group` of a block with minima, from its twelve bytes of scales.
template <typename Byte> __device__ __forceinline__ void scale_and_minimum(u32 group, Byte byte, u32 &scale, u32 &minimum) {
    if (group < 4) {
        scale = byte(group) & 63, minimum = byte(group + 4) & 63;
    } else {
        const u32 last = byte(group + 4);
        scale = (last & 15) | (byte(group - 4) >> 6) << 4, minimum = (last >> 4) | (byte(group) >> 6) << 4;
    }
}
#endif

// A weight as a number, in f32: `Dequantize`.
__device__ __forceinline__ float weight_at(const WeightMatrix &matrix, i64 row, i64 at) {
#if IS_BLOCKS
    const u8 *block = matrix.codes + row * matrix.row + at / 256 * BLOCK_BYTES * matrix.step;
    const auto byte = [&](u32 index) { return (u32)block[index * matrix.step]; };
    const u32 in_block = (u32)(at % 256);
#if FORMAT == Q6_K
    const u32 half = in_block / 128, run = in_block / 32 % 4, in_run = in_block % 32;
    const u32 low = byte(64 * half + 32 * (run % 2) + in_run), high = byte(128 + 32 * half + in_run);
    const int code = (int)((run < 2 ? low & 15 : low >> 4) | (high >> (2 * run) & 3) << 4) - 32;
    const float factor = half_to_float((u16)(byte(208) | byte(209) << 8));
    const float scale = factor * (float)(i8)byte(192 + 8 * half + 2 * run + in_run / 16);
    return scale * (float)code;
#else
    const u32 group = in_block / 32, in_group = in_block % 32;
    const u32 low = byte(FIRST_CODE + 32 * (group / 2) + in_group);
    u32 code = group % 2 ? low >> 4 : low & 15;
#if FORMAT == Q5_K
    code |= (byte(16 + in_group) >> group & 1) << 4;
#endif
    u32 scale, minimum;
    scale_and_minimum(group, [&](u32 index) { return byte(4 + index); }, scale, minimum);
    const float factor = half_to_float((u16)(byte(0) | byte(1) << 8)), minimum_factor = half_to_float((u16)(byte(2) | byte(3) << 8));
    return factor * (float)scale * (float)code - minimum_factor * (float)minimum;
#endif
#else
    const i64 bit = at * BITS, word = bit / 32;
    const u32 shift = (u32)(bit % 32);
    const u32 *codes = matrix.codes + row * matrix.row;
    u32 code = codes[word * matrix.step] >> shift;
    if (shift + BITS > 32) code |= codes[(word + 1) * matrix.step] << (32 - shift);
    code &= (1u << BITS) - 1;
    const float scale = scale_of(matrix.scales[row * matrix.scale_row + at / GROUP * matrix.scale_step]);
#if FORMAT == MXFP8
    return scale * e4m3(code);
#elif IS_E2M1
    return scale * e2m1(code);
#elif HAS_BIAS
    return scale * (float)code + BIAS::to_float(matrix.biases[row * matrix.bias_row + at / GROUP * matrix.bias_step]);
#else
    return scale * (float)code + 0.0f;
#endif
#endif
}
#endif
