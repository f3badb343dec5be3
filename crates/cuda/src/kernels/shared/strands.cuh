// Sums of fixed shape (`docs/ARITHMETIC.md`, "Strands"), spread over the threads of a warp.
//
// Where upper and lower half are combined, every thread computes the sum of its own and its partner's: an addition gives the same bits in
// either order, so all threads end with the result.

#pragma once

#include "arithmetic.cuh"

#define WHOLE_WARP 0xffffffffu

// A sum in 64 strands: a thread of a warp holds strands `lane` and `lane + 32`.
struct SumStrands {
    float low, high;

    __device__ __forceinline__ void add_low(float x) { low = low + x; }
    __device__ __forceinline__ void add_high(float x) { high = high + x; }

    __device__ __forceinline__ float combined() const {
        float sum = low + high;
#pragma unroll
        for (u32 width = 16; width > 0; width /= 2) sum = sum + __shfl_xor_sync(WHOLE_WARP, sum, width);
        return sum;
    }
};

// The sum of `get(0)` to `get(size - 1)` in 64 strands, by a warp.
template <typename Get> __device__ __forceinline__ float strand_sum(i64 size, u32 lane, Get get) {
    SumStrands sum = {0.0f, 0.0f};
    i64 at = lane;
#pragma unroll 8
    for (; at + 32 < size; at += 64) {
        sum.add_low(get(at));
        sum.add_high(get(at + 32));
    }
    if (at < size) sum.add_low(get(at));
    return sum.combined();
}

// The largest of `get(0)` to `get(size - 1)`, by a warp; NaN if there is one.
template <typename Get> __device__ __forceinline__ float strand_max(i64 size, u32 lane, Get get) {
    float largest = -PTERO_INFINITY;
#pragma unroll 4
    for (i64 at = lane; at < size; at += 32) largest = arithmetic::max(largest, get(at));
#pragma unroll
    for (u32 width = 16; width > 0; width /= 2) {
        largest = arithmetic::max(largest, __shfl_xor_sync(WHOLE_WARP, largest, width));
    }
    return largest;
}

// The sum of 16 strands, of which a thread holds strand `lane mod 16`: two sums in a warp.
__device__ __forceinline__ float combined_16(float strand) {
#pragma unroll
    for (u32 width = 8; width > 0; width /= 2) strand = strand + __shfl_xor_sync(WHOLE_WARP, strand, width);
    return strand;
}

// The sum of strands that one thread holds: `COUNT` is a power of two.
template <u32 COUNT> __device__ __forceinline__ float combined(float (&strands)[COUNT]) {
#pragma unroll
    for (u32 width = COUNT / 2; width > 0; width /= 2) {
#pragma unroll
        for (u32 i = 0; i < width; ++i) strands[i] = strands[i] + strands[i + width];
    }
    return strands[0];
}
