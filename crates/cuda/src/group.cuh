// Threads of a block, and blocks that share a row.
//
// A *group* is the blocks that work on one row. They are all on the device at once (the launch is cooperative), so they may wait
// for each other. What they leave behind between launches is in a `Board`, which starts as zeros; every launch ends with the
// board ready for the next, so a captured launch can be replayed.

#pragma once

#include "contract.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
// Bins of a histogram over a row.
#define BINS 2048
// Values of a digit of a radix selection.
#define DIGITS 256
// Candidates that a board has room for. Rows with more are read again instead.
#define ROOM 8192
// Blocks leave at least this many maxima of parts of a row, and fewer than twice as many.
#define MAXIMA 96
#define SLOTS 256

struct Board {
    // Launches so far that used the board; those that used the masses.
    u32 launches, nuclei;
    // Arrivals of blocks, counted on for ever.
    u32 arrived[4];
    u32 candidates, unused;
    // The largest of the contenders.
    u64 best;
    // A number that one block found for all: the launch in the upper half.
    u64 found;
    // Numbers that blocks tell each other: the launch in the upper half.
    u64 told[SLOTS], told_high[SLOTS], told_low[SLOTS];
    u32 counts[BINS];
    // While one is used, the other is cleared for the next launch.
    u64 masses[2][BINS];
    u64 list[ROOM];
};
static_assert(sizeof(Board) == 112688, "the size of a board in sample.rs");

__device__ __forceinline__ u64 look(const u64 *place) { return *(const volatile u64 *)place; }
__device__ __forceinline__ u32 look(const u32 *place) { return *(const volatile u32 *)place; }
__device__ __forceinline__ void tell(u64 *place, u32 launch, u32 number) {
    *(volatile u64 *)place = (u64)launch << 32 | number;
}
__device__ __forceinline__ u32 hear(const u64 *place, u32 launch) {
    u64 heard;
    while ((heard = look(place)) >> 32 != launch) {}
    return (u32)heard;
}

// The largest key of a warp, in all its threads.
__device__ __forceinline__ u32 warp_max(u32 key) { return __reduce_max_sync(~0u, key); }

// The largest over the threads of a block, in all of them. `scratch` has a place per warp.
__device__ __forceinline__ u64 block_max(u64 value, u64 *scratch) {
    for (int offset = 16; offset; offset /= 2) value = max(value, __shfl_xor_sync(~0u, value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[threadIdx.x % WARPS];
    for (int offset = 16; offset; offset /= 2) value = max(value, __shfl_xor_sync(~0u, value, offset));
    return value;
}

__device__ __forceinline__ u64 block_sum(u64 value, u64 *scratch) {
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[threadIdx.x % WARPS];
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    return value;
}

// The sum over this thread and those before it in the warp.
__device__ __forceinline__ u64 warp_sum_to(u64 sum) {
    for (int offset = 1; offset < 32; offset *= 2) {
        const u64 before = __shfl_up_sync(~0u, sum, offset);
        if (threadIdx.x % 32 >= offset) sum += before;
    }
    return sum;
}

// The sum of what the threads before this one have.
__device__ __forceinline__ u64 block_sum_before(u64 value, u64 *scratch) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 sum = warp_sum_to(value);
    __syncthreads();
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    const u64 warps = __shfl_sync(~0u, warp_sum_to(scratch[lane]), (warp + 31) % 32);
    return sum - value + (warp ? warps : 0);
}

// Adds to a 64-bit number in shared memory, which has no such instruction: whoever makes the lower half overflow carries.
__device__ __forceinline__ void add_shared(u32 *low, u32 *high, u64 value) {
    const u32 add = (u32)value, old = atomicAdd(low, add);
    const u32 carried = (u32)(value >> 32) + (old + add < old);
    if (carried) atomicAdd(high, carried);
}

// Counts this block in; true in the last of `blocks` to come, which then sees what all the others wrote before.
__device__ __forceinline__ bool last_to_arrive(u32 *arrived, u32 blocks, u32 *flag) {
    __syncthreads();
    if (blocks == 1) return true;
    if (threadIdx.x == 0) {
        __threadfence();
        *flag = atomicAdd(arrived, 1) % blocks == blocks - 1;
        __threadfence();
    }
    __syncthreads();
    return *flag;
}

// Waits until all blocks of the group are here, and sees what they wrote before.
__device__ __forceinline__ void meet(u32 *arrived, u32 blocks) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const u32 ticket = atomicAdd(arrived, 1), all = ticket - ticket % blocks + blocks;
        while ((int)(look(arrived) - all) < 0) {}
        __threadfence();
    }
    __syncthreads();
}
