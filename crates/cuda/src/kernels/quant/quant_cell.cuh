// Cells of quantized weights as bytes, and their exact products with activations (`docs/ARITHMETIC.md`, "QuantMatMul").

// Not `#pragma once`: a launch that does several steps includes this for each of them.
#ifndef QUANT_CELL_CUH
#define QUANT_CELL_CUH

#include "quant.cuh"

// c + a · b of four bytes; those of `a` are weights, those of `b` activations.
__device__ __forceinline__ int dot4(u32 a, u32 b, int c) {
#ifdef __CUDA_ARCH__
    int d;
#if SIGNED
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#endif
    return d;
#else
    for (u32 i = 0; i < 32; i += 8) c += (SIGNED ? (int)(i8)(a >> i) : (int)(a >> i & 255)) * (int)(i8)(b >> i);
    return c;
#endif
}

// What is loaded of a cell, before it is decoded: so that loads of several cells are under way at once.
struct RawCell {
#if FORMAT == Q6_K
    u32 low[16], high[8], scales, factor;
#elif FORMAT == Q5_K
    u32 header[4], high[8], low[8];
#elif FORMAT == Q4_K
    u32 header[4], low[8];
#else
    u32 words[2 * BITS];
    SCALE::Element scales[GROUPS];
#if HAS_BIAS
    BIAS::Element biases[GROUPS];
#endif
#endif
};

// A cell with its codes as bytes.
struct Cell {
    u32 codes[16];
    float scales[GROUPS];
#if WITH_BIAS
    float biases[GROUPS];
#endif
};

#if IS_BLOCKS
// `N` words from byte `first` on, which is even.
template <u32 N> __device__ __forceinline__ void load_words(u32 (&to)[N], const u8 *block, i64 step, u32 first) {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
#if VECTOR && FORMAT != Q6_K
        if (i % 4 == 0) {
            const uint4 four = *(const uint4 *)(block + first + 4 * i);
            to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
        }
#elif VECTOR
        const u16 *halves = (const u16 *)(block + first + 4 * i);
        to[i] = halves[0] | (u32)halves[1] << 16;
#else
        const u8 *bytes = block + (first + 4 * i) * step;
        to[i] = bytes[0] | (u32)bytes[step] << 8 | (u32)bytes[2 * step] << 16 | (u32)bytes[3 * step] << 24;
#endif
    }
}
#endif

__device__ __forceinline__ void load_cell(RawCell &raw, const WeightMatrix &matrix, i64 row, i64 cell) {
#if IS_BLOCKS
    const u8 *block = matrix.codes + row * matrix.row + cell / 4 * BLOCK_BYTES * matrix.step;
    const u32 quarter = (u32)(cell % 4);
#if FORMAT == Q6_K
    load_words(raw.low, block, matrix.step, 64 * (quarter / 2));
    load_words(raw.high, block, matrix.step, 128 + 32 * (quarter / 2));
    u32 scales[1];
    load_words(scales, block, matrix.step, 192 + 4 * quarter);
    raw.scales = scales[0];
    raw.factor = block[208 * matrix.step] | (u32)block[209 * matrix.step] << 8;
#else
    load_words(raw.header, block, matrix.step, 0);
#if FORMAT == Q5_K
    load_words(raw.high, block, matrix.step, 16);
#endif
    load_words(raw.low, block, matrix.step, FIRST_CODE + 32 * quarter);
#endif
#else
    const u32 *words = matrix.codes + row * matrix.row + cell * (2 * BITS) * matrix.step;
    const i64 left = matrix.length * BITS / 32 - cell * (2 * BITS);
#if VECTOR
    if (WHOLE || left >= 2 * BITS) {
#pragma unroll
        for (u32 i = 0; i < 2 * BITS; i += BITS % 2 ? 2 : 4) {
            if (BITS % 2) {
                const uint2 two = *(const uint2 *)(words + i);
                raw.words[i] = two.x, raw.words[i + 1] = two.y;
            } else {
                const uint4 four = *(const uint4 *)(words + i);
                raw.words[i] = four.x, raw.words[i + 1] = four.y, raw.words[i + 2] = four.z, raw.words[i + 3] = four.w;
            }
        }
    } else
#endif
    {
#pragma unroll
        for (u32 i = 0; i < 2 * BITS; ++i) raw.words[i] = i < left ? words[i * matrix.step] : 0;
    }
    const i64 first = cell * 64 / GROUP, count = matrix.length / GROUP;
#pragma unroll
    for (u32 i = 0; i < GROUPS; ++i) {
        const i64 group = WHOLE || first + i < count ? first + i : count - 1;
        raw.scales[i] = matrix.scales[row * matrix.scale_row + group * matrix.scale_step];
#if HAS_BIAS
        raw.biases[i] = matrix.biases[row * matrix.bias_row + group * matrix.bias_step];
#endif
    }
#endif
}

#if IS_E2M1
// Four codes of four bits as twice their numbers, in bytes.
__device__ __forceinline__ u32 doubled_e2m1(u32 four) {
    const u32 magnitudes = __byte_perm(0x03020100u, 0x0c080604u, four & 0x7777u);
    const u32 opposites = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, four & 0x7777u);
    const u32 is_negative = __byte_perm(0xff00u, 0u, four >> 3 & 0x1111u);
    return (opposites & is_negative) | (magnitudes & ~is_negative);
}
#endif

__device__ __forceinline__ void decode(Cell &cell, const RawCell &raw, i64 index) {
#if FORMAT == Q6_K
    const u32 quarter = (u32)(index % 4), second = quarter % 2;
    const float factor = half_to_float((u16)raw.factor);
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        const u32 nibbles = (second ? raw.low[i] >> 4 : raw.low[i]) & 0x0f0f0f0fu;
        const u32 pairs = raw.high[i % 8] >> (4 * second + 2 * (i / 8)) & 0x03030303u;
        // 32 is taken from each byte; none borrows, because the sign bit is free.
        const u32 codes = nibbles | pairs << 4;
        cell.codes[i] = ((codes | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) cell.scales[i] = factor * (float)(i8)(raw.scales >> (8 * i));
#elif IS_BLOCKS
    const u32 quarter = (u32)(index % 4);
    const float factor = half_to_float((u16)raw.header[0]), minimum_factor = half_to_float((u16)(raw.header[0] >> 16));
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        cell.codes[i] = (i < 8 ? raw.low[i % 8] : raw.low[i % 8] >> 4) & 0x0f0f0f0fu;
#if FORMAT == Q5_K
        cell.codes[i] |= (raw.high[i % 8] >> (2 * quarter + i / 8) & 0x01010101u) << 4;
#endif
    }
    const auto byte = [&](u32 at) { return (at < 4 ? raw.header[1] : at < 8 ? raw.header[2] : raw.header[3]) >> (8 * (at % 4)) & 255; };
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        u32 scale, minimum;
        scale_and_minimum(2 * quarter + i, byte, scale, minimum);
        cell.scales[i] = factor * (float)scale;
        cell.biases[i] = -(minimum_factor * (float)minimum);
    }
#else
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
#if INTERLEAVED
        cell.codes[i] = (i % 2 ? raw.words[i / 2] >> 4 : raw.words[i / 2]) & 0x0f0f0f0fu;
#elif IS_E2M1
        cell.codes[i] = doubled_e2m1(i % 2 ? raw.words[i / 2] >> 16 : raw.words[i / 2]);
#elif BITS == 8
        cell.codes[i] = raw.words[i];
#else
        u32 codes = 0;
#pragma unroll
        for (u32 part = 0; part < 4; ++part) {
            const u32 bit = (4 * i + part) * BITS, shift = bit % 32;
            u32 code = raw.words[bit / 32] >> shift;
            if (shift + BITS > 32) code |= raw.words[(bit / 32 + 1) % (2 * BITS)] << (32 - shift);
            codes |= (code & ((1u << BITS) - 1)) << (8 * part);
        }
        cell.codes[i] = codes;
#endif
    }
#pragma unroll
    for (u32 i = 0; i < GROUPS; ++i) {
        const float scale = scale_of(raw.scales[i]);
        cell.scales[i] = IS_E2M1 ? scale * 0.5f : scale;
#if HAS_BIAS
        cell.biases[i] = BIAS::to_float(raw.biases[i]);
#endif
    }
#endif
}

// Activations of a cell: of each group the step, and the step times the sum; and whole numbers as two planes of bytes, whose
// value is 256 · high + low.
struct CellActivations {
    u32 high[16], low[16];
    float2 steps[GROUPS];
};

// The activations of all rows, as `quantize` leaves them: 128 bytes a cell, the high plane and then the low one, and a pair a group.
struct QuantizedRows {
    const uint4 *planes;
    const float2 *steps;
    i64 cells, groups;

    __device__ __forceinline__ void load(CellActivations &to, i64 row, i64 cell) const {
        const uint4 *from = planes + (row * cells + cell) * 8;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const uint4 high = from[i], low = from[i + 4];
            to.high[4 * i] = high.x, to.high[4 * i + 1] = high.y, to.high[4 * i + 2] = high.z, to.high[4 * i + 3] = high.w;
            to.low[4 * i] = low.x, to.low[4 * i + 1] = low.y, to.low[4 * i + 2] = low.z, to.low[4 * i + 3] = low.w;
        }
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
            const i64 group = cell * GROUPS + i;
            to.steps[i] = group < groups ? steps[row * groups + group] : make_float2(0.0f, 0.0f);
        }
    }
};

// The number of groups that a cell has, of a row of this length.
__device__ __forceinline__ u32 groups_of(i64 length, i64 cell) {
    if (WHOLE) return cell * 64 < length ? GROUPS : 0;
    const i64 left = length - cell * 64;
    return left >= 64 ? GROUPS : left <= 0 ? 0 : (u32)(left / STEP);
}

// The sum of a cell. A group that does not exist has a step of 0, and codes of 0 to be safe from scales that are not finite.
__device__ __forceinline__ float cell_sum(const Cell &cell, const CellActivations &x, u32 groups) {
    float sum = 0.0f;
#pragma unroll
    for (u32 group = 0; group < GROUPS; ++group) {
        if (group >= groups) continue;
        int high = 0, low = 0;
#pragma unroll
        for (u32 i = group * STEP / 4; i < (group + 1) * STEP / 4; ++i) {
            high = dot4(cell.codes[i], x.high[i], high);
            low = dot4(cell.codes[i], x.low[i], low);
        }
        sum = __fmaf_rn(cell.scales[group] * x.steps[group].x, (float)(high * 256 + low), sum);
#if WITH_BIAS
        sum = __fmaf_rn(cell.biases[group], x.steps[group].y, sum);
#endif
    }
    return sum;
}
#endif
