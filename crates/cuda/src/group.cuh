// Threads of a block, and blocks that share a row.
//
// A *group* is the blocks that work on one row. They are all on the device at once (the launch is cooperative), so they may wait
// for each other. They share a `GroupState` in global memory, which starts as zeros. Every launch leaves it ready for the next,
// so a captured launch can be replayed.

#pragma once

#include "contract.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
// Bins of a histogram over a row; fewer if many blocks share the row, because they have to add them up.
#define BINS 2048
#define COARSE_BINS 512
// Values of a digit of a radix selection.
#define DIGITS 256
// The number of candidates that are stored. Rows with more are read again instead.
#define ROOM 8192
// The blocks of a group publish at least this many maxima of parts of a row, and fewer than twice as many.
#define MAXIMA 96
#define SLOTS 256
// The most maxima: they bound k up to three quarters of this.
#define MOST_MAXIMA 4096
// Up to FEW_BLOCKS blocks, each part of a row is long, and up to CONTENDERS contenders near the best are stored.
#define FEW_BLOCKS 32
#define CONTENDERS 1024
// A score is stored if it is at most this far below the best.
#define MARGIN 3.0f

struct GroupState {
    // The number of launches that used this state, and of those that used the masses.
    u32 launches, nuclei;
    // Counts the blocks that have arrived.
    u32 arrived[4];
    u32 candidates;
    // The best contender.
    u64 best;
    // The mass of a row.
    u64 total;
    // Numbers that one block computed for all: the launch in the upper half.
    u64 results[2];
    // One number per block, for all others to read: the launch in the upper half.
    u64 slots[SLOTS], slots_high[SLOTS], slots_low[SLOTS];
    u64 maxima[MOST_MAXIMA];
    // The maxima that bound the likeliest tokens.
    u64 likeliest[SLOTS];
    u32 counts[BINS];
    // While one is used, the other is cleared for the next launch.
    u64 masses[2][BINS];
    u64 list[ROOM];
};
static_assert(sizeof(GroupState) == 147520, "GROUP_STATE_BYTES in sample.rs");

__device__ __forceinline__ u64 load_volatile(const u64 *from) { return *(const volatile u64 *)from; }
__device__ __forceinline__ u32 load_volatile(const u32 *from) { return *(const volatile u32 *)from; }
// Writes a number for other blocks to read in this launch.
__device__ __forceinline__ void publish(u64 *to, u32 launch, u32 number) {
    *(volatile u64 *)to = (u64)launch << 32 | number;
}
// Waits for the number that `publish` writes in this launch.
__device__ __forceinline__ u32 wait_for(const u64 *from, u32 launch) {
    u64 word;
    while ((word = load_volatile(from)) >> 32 != launch) {}
    return (u32)word;
}

// The largest key of a warp, in all its threads.
__device__ __forceinline__ u32 warp_max(u32 key) { return __reduce_max_sync(~0u, key); }

// The sum over a warp, in all its threads, in three parts whose sums fit 32 bits.
__device__ __forceinline__ u64 warp_sum(u64 value) {
    const u64 low = __reduce_add_sync(~0u, (u32)value & 0xffffff), middle = __reduce_add_sync(~0u, (u32)(value >> 24) & 0xffffff);
    return low + (middle << 24) + ((u64)__reduce_add_sync(~0u, (u32)(value >> 48)) << 48);
}

// The largest key of a block, in all its threads. `scratch` has an element per warp.
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

// Adds to a 64-bit number in shared memory, for which there is no instruction: the thread whose addition overflows carries.
__device__ __forceinline__ void add_shared(u32 *low, u32 *high, u64 value) {
    const u32 add = (u32)value, old = atomicAdd(low, add);
    const u32 carried = (u32)(value >> 32) + (old + add < old);
    if (carried) atomicAdd(high, carried);
}

// Increments a counter, which wraps to 0 after `last`, and returns its old value. An acquire and a release.
__device__ __forceinline__ u32 increment_wrapping(u32 *counter, u32 last) {
#ifndef __CUDA_ARCH__
    const u32 old = *counter;
    *counter = old >= last ? 0 : old + 1;
    return old;
#else
    u32 before;
    asm volatile("atom.inc.acq_rel.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
#endif
}
__device__ __forceinline__ u32 load_acquire(const u32 *counter) {
#ifndef __CUDA_ARCH__
    return *(const volatile u32 *)counter;
#else
    u32 count;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
#endif
}

// Returns true in the last of `blocks` blocks to call it; that block sees what the others wrote before their call.
__device__ __forceinline__ bool last_to_arrive(u32 *arrived, u32 blocks, u32 *flag) {
    __syncthreads();
    if (blocks == 1) return true;
    if (threadIdx.x == 0) *flag = increment_wrapping(arrived, blocks - 1) == blocks - 1;
    __syncthreads();
    return *flag;
}

// Waits until all blocks of the group have called it; what they wrote before is then visible.
__device__ __forceinline__ void group_barrier(u32 *arrived, u32 blocks) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // A block may reach the next barrier before others have left this one, so the counter runs on over barriers and wraps at
        // a multiple of `blocks`. This barrier is passed when the count is `blocks` above its first ticket, or has wrapped.
        const u32 ticket = increment_wrapping(arrived, 0x7fffffffu - 0x80000000u % blocks), first = ticket - ticket % blocks;
        while (load_acquire(arrived) - first < blocks) {}
    }
    __syncthreads();
}
