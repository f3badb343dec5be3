// Random bits (`ptero_sampling::threefry`).

#pragma once

#include "element.cuh"

struct Pair {
    u32 low, high;
};

__device__ __forceinline__ u32 rotated(u32 x, u32 by) { return x << by | x >> (32 - by); }

// Encrypts a counter.
__device__ __forceinline__ Pair threefry(u32 k0, u32 k1, u32 c0, u32 c1) {
    const u32 k2 = k0 ^ k1 ^ 0x1bd11bdau;
    const u32 keys[3] = {k0, k1, k2};
    const u32 rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    u32 x0 = c0 + k0, x1 = c1 + k1;
#pragma unroll
    for (u32 group = 1; group <= 5; ++group) {
#pragma unroll
        for (u32 round = 0; round < 4; ++round) {
            x0 += x1;
            x1 = rotated(x1, rotations[(group - 1) % 2][round]) ^ x0;
        }
        x0 += keys[group % 3];
        x1 += keys[(group + 1) % 3] + group;
    }
    return {x0, x1};
}

// Word `at` of the `count` words of a key.
__device__ __forceinline__ u32 random_word(u32 k0, u32 k1, u64 count, u64 at) {
    const u64 half = count / 2, upper = count - half;
    if (at < half) return threefry(k0, k1, (u32)at, (u32)(at + upper)).low;
    if (at < upper) return threefry(k0, k1, (u32)half, 0).low;
    return threefry(k0, k1, (u32)(at - upper), (u32)at).high;
}
