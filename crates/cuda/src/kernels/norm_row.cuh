// What a norm multiplies the elements of a row with, `docs/ARITHMETIC.md`, "Norm".

#pragma once

#include "strands.cuh"

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
