// Threads of a block, and blocks that share a row.
//
// A *group* is the blocks that work on one row. They are all on the device at once (the launch is cooperative), so they may wait
// for each other. What they leave behind between launches is in a `Board`, which starts as zeros; every launch ends with the
// board ready for the next, so a captured launch can be replayed.

#pragma once

#include "contract.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
// Bins of a histogram over a row, at most; where many blocks share a row and have to add them up, fewer.
#define BINS 2048
#define COARSE_BINS 512
// Values of a digit of a radix selection.
#define DIGITS 256
// Candidates that a board has room for. Rows with more are read again instead.
#define ROOM 8192
// Blocks leave at least this many maxima of parts of a row, and fewer than twice as many.
#define MAXIMA 96
#define SLOTS 256
// Up to so many blocks, parts of a row are long: contenders that come near the best are written down, so many of them.
#define FEW_BLOCKS 32
#define CONTENDERS 1024
// How far below the best a score is still written down.
#define MARGIN 3.0f

struct Board {
    // Launches so far that used the board; those that used the masses.
    u32 launches, nuclei;
    // Arrivals of blocks.
    u32 arrived[4];
    u32 candidates, unused;
    // The largest of the contenders.
    u64 best;
    // Numbers that one block found for all: the launch in the upper half.
    u64 found[2];
    // Numbers that blocks tell each other: the launch in the upper half.
    u64 told[SLOTS], told_high[SLOTS], told_low[SLOTS];
    u32 counts[BINS];
    // While one is used, the other is cleared for the next launch.
    u64 masses[2][BINS];
    u64 list[ROOM];
};
static_assert(sizeof(Board) == 112696, "the size of a board in sample.rs");

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

// The sum over a warp, in all its threads. Three parts whose sums fit 32 bits.
__device__ __forceinline__ u64 warp_sum(u64 value) {
    const u64 low = __reduce_add_sync(~0u, (u32)value & 0xffffff), middle = __reduce_add_sync(~0u, (u32)(value >> 24) & 0xffffff);
    return low + (middle << 24) + ((u64)__reduce_add_sync(~0u, (u32)(value >> 48)) << 48);
}

// The largest key of a block, in all its threads. `scratch` has a place per warp.
__device__ __forceinline__ u32 block_max(u32 key, u64 *scratch) {
    key = warp_max(key);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = key;
    __syncthreads();
    return warp_max((u32)scratch[threadIdx.x % WARPS]);
}

__device__ __forceinline__ u64 block_sum(u64 value, u64 *scratch) {
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < WARPS ? scratch[threadIdx.x % WARPS] : 0);
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
    const u64 warps = __shfl_sync(~0u, warp_sum_to(scratch[lane % WARPS]), (warp + 31) % 32);
    return sum - value + (warp ? warps : 0);
}

// Adds to a 64-bit number in shared memory, which has no such instruction: whoever makes the lower half overflow carries.
__device__ __forceinline__ void add_shared(u32 *low, u32 *high, u64 value) {
    const u32 add = (u32)value, old = atomicAdd(low, add);
    const u32 carried = (u32)(value >> 32) + (old + add < old);
    if (carried) atomicAdd(high, carried);
}

// Adds to a counter, behind `last` comes 0 again; what was written before is seen by whoever sees the sum, and the other way round.
__device__ __forceinline__ u32 count_in(u32 *counter, u32 last) {
    u32 before;
    asm volatile("atom.inc.acq_rel.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}
__device__ __forceinline__ u32 watch(const u32 *counter) {
    u32 count;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
}

// Counts this block in; true in the last of `blocks` to come, which then sees what all the others wrote before.
__device__ __forceinline__ bool last_to_arrive(u32 *arrived, u32 blocks, u32 *flag) {
    __syncthreads();
    if (blocks == 1) return true;
    if (threadIdx.x == 0) *flag = count_in(arrived, blocks - 1) == blocks - 1;
    __syncthreads();
    return *flag;
}

// Waits until all blocks of the group are here, and sees what they wrote before.
__device__ __forceinline__ void meet(u32 *arrived, u32 blocks) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // Some may meet again before others have seen that all were here. So meetings are counted on, as far as whole ones go; the
        // first ticket of this one is passed when the count is `blocks` further, or starts again.
        const u32 ticket = count_in(arrived, 0x7fffffffu - 0x80000000u % blocks), first = ticket - ticket % blocks;
        while (watch(arrived) - first < blocks) {}
    }
    __syncthreads();
}
