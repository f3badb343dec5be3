// The gated delta rule for a row of a state, by 16 threads, each with the elements of one strand. Compiled with DK, the length of a row.

#ifndef DELTA_RULE_CUH
#define DELTA_RULE_CUH

#include "strands.cuh"

#define HELD (DK ? (DK + 15) / 16 : 1)

// The elements of a row that belong to a strand; those that do not exist are 0 and not used.
template <typename T, typename Get> __device__ __forceinline__ void load_strand(float (&to)[HELD], u32 strand, Get get) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) to[i] = strand + 16 * i < DK ? T::to_float(get(strand + 16 * i)) : 0.0f;
}

__device__ __forceinline__ float dot(const float (&a)[HELD], const float (&b)[HELD], u32 strand) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        if (strand + 16 * i < DK) sum = __fmaf_rn(a[i], b[i], sum);
    }
    return combined_16(sum);
}

// What a token reads of the state, after it has changed it.
__device__ __forceinline__ float delta_rule(float (&state)[HELD], const float (&key)[HELD], const float (&query)[HELD], float value, float decay, float rate, u32 strand) {
    const float difference = (value - decay * dot(state, key, strand)) * rate;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) state[i] = __fmaf_rn(difference, key[i], state[i] * decay);
    return dot(state, query, strand);
}

#endif
