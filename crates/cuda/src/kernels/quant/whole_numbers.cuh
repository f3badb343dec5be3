// Activations as whole numbers, `docs/ARITHMETIC.md`, "QuantMatMul": 16 bits as two planes of bytes, a step for each group of STEP
// columns. Compiled with STEP and INTERLEAVED (as in `quant.cuh`).

// Not `#pragma once`: a launch that does several steps includes this for each of them.
#ifndef WHOLE_NUMBERS_CUH
#define WHOLE_NUMBERS_CUH

#include "strands.cuh"

// The largest magnitude of an activation as a whole number: 127 · 257, so that it is two signed bytes.
#define LARGEST 32639.0f
// 2^-96: groups of activations that are all smaller are zeros.
#define SMALLEST 1.2621774e-29f

// Two neighbouring columns of a group: their whole numbers.
struct WholePair {
    int q[2];
    float step;

    // A group is STEP / 2 threads.
    __device__ __forceinline__ WholePair(const float (&x)[2]) {
        float largest = arithmetic::max(arithmetic::max(0.0f, fabsf(x[0])), fabsf(x[1]));
#pragma unroll
        for (u32 width = STEP / 4; width > 0; width /= 2) {
            largest = arithmetic::max(largest, __shfl_xor_sync(WHOLE_WARP, largest, width));
        }
        const bool is_finite = arithmetic::is_finite(largest), is_zero = !is_finite || largest < SMALLEST;
        step = is_zero ? (is_finite ? 0.0f : PTERO_NAN) : largest * (1.0f / LARGEST);
        const float inverse = LARGEST / largest;
        q[0] = is_zero ? 0 : (int)rintf(x[0] * inverse);
        q[1] = is_zero ? 0 : (int)rintf(x[1] * inverse);
    }

    // Stores both planes, and by one thread of the group its step.
    __device__ __forceinline__ void store(u8 *planes, float2 *steps, u32 lane, bool exists) const {
        int sum = q[0] + q[1];
#pragma unroll
        for (u32 width = STEP / 4; width > 0; width /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, width);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 column = 2 * lane + i;
            const u32 at = INTERLEAVED ? column / 8 * 8 + column % 2 * 4 + column % 8 / 2 : column;
            planes[at] = (u8)((q[i] + 128) >> 8);
            planes[64 + at] = (u8)q[i];
        }
        if (exists && lane % (STEP / 2) == 0) steps[lane / (STEP / 2)] = make_float2(step, step * (float)sum);
    }
};
#endif
