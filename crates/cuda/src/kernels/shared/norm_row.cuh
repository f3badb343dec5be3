// What a norm multiplies the elements of a row with, `docs/ARITHMETIC.md`, "Norm".

#pragma once

#include "element.cuh"
#include "strands.cuh"

// Loads of a thread that are under way together. A store between two loads would make each wait for the one before.
#define ROW_BATCH 8

// Leaves the elements `get(0)` to `get(length - 1)` of a row in shared memory, by all threads of a block.
template <typename T, typename Get> __device__ __forceinline__ void stage_row(float *to, u32 length, u32 threads, Get get) {
    for (u32 first = threadIdx.x; first < length; first += ROW_BATCH * threads) {
        typename T::Element loaded[ROW_BATCH];
#pragma unroll
        for (u32 i = 0; i < ROW_BATCH; ++i) loaded[i] = get(min(first + i * threads, length - 1));
#pragma unroll
        for (u32 i = 0; i < ROW_BATCH; ++i) {
            if (first + i * threads < length) to[first + i * threads] = T::to_float(loaded[i]);
        }
    }
}

// Center and factor of a row, by a warp.
template <typename Get>
__device__ __forceinline__ float2 center_and_factor(i64 size, u32 lane, bool is_layer, float eps, Get get) {
    const float count = (float)size;
    float center = 0.0f, spread;
    if (is_layer) {
        center = strand_sum(size, lane, get) / count;
        spread = strand_sum(size, lane, [&](i64 at) {
            const float distance = get(at) - center;
            return distance * distance;
        }) / count;
    } else {
        spread = strand_sum(size, lane, [&](i64 at) {
            const float x = get(at);
            return x * x;
        }) / count;
    }
    return make_float2(center, 1.0f / sqrtf(spread + eps));
}
