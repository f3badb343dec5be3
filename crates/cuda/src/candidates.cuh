// Candidates for the boundary of what is kept: the last block of a row decides among them.

#pragma once

#include "rows.cuh"

// Where a scaled logit lies below the maximum, in the same order: `bins` bins cover 32 unscaled logits, the last all others.
__device__ __forceinline__ u32 bin_of(float scaled, float largest, float temperature, u32 bins) {
    if (scaled == largest) return 0;
    const float distance = (largest - scaled) * ((float)(bins / 32) * temperature);
    return distance < (float)(bins - 1) ? (u32)distance : bins - 1;
}

// Calls `use(key, index)` for the candidates: those listed or, if there was no room, those of the row that are chosen.
template <class T, class Use>
__device__ __forceinline__ void each_candidate(const BlockState *local, u32 count, u32 least, Use use) {
    if (count <= ROOM) {
        for (u32 at = threadIdx.x; at < count; at += THREADS)
            if ((u32)(local->list[at] >> 32) >= least) use((u32)(local->list[at] >> 32), (u32)local->list[at]);
        return;
    }
    const Choice &choice = local->choice;
    const RowPart<T> whole = {(const typename T::Element *)choice.row, choice.adjusted, 0, choice.vocabulary, 0, 0};
    whole.template each<1>([&](u32 index, float logit) {
        const float scaled = logit / choice.temperature;
        const u32 key = ordered(scaled);
        if (key < max(least, choice.least)) return;
        const u32 bin = choice.bin == BINS ? BINS : bin_of(scaled, choice.largest, choice.temperature, choice.bins);
        if (bin == choice.bin) use(key, index);
    });
}

__device__ __forceinline__ u32 block_or(BlockState *local, u32 bits) {
    bits = __reduce_or_sync(~0u, bits);
    __syncthreads();
    if (threadIdx.x % 32 == 0) local->keys[threadIdx.x / 32] = bits;
    __syncthreads();
    return __reduce_or_sync(~0u, local->keys[threadIdx.x % WARPS]);
}

// By one warp: the smallest digit that has candidates and no more than `most` before it, and what is before it.
__device__ __forceinline__ void last_digit_within(BlockState *local, u64 base, u64 most) {
    const u32 each = DIGITS / 32, greatest = DIGITS - 1 - threadIdx.x * each;
    u64 sums[each], sum = 0;
    for (u32 i = 0; i < each; ++i) sum += sums[i] = (u64)local->high[greatest - i] << 32 | local->low[greatest - i];
    u64 before = base + warp_sum_to(sum) - sum, before_digit = 0;
    u32 digit = DIGITS;
    for (u32 i = 0; i < each; before += sums[i++])
        if (sums[i] && before <= most) digit = greatest - i, before_digit = before;
    // Lanes go down: the last that found one has the smallest.
    const u32 found = __ballot_sync(~0u, digit != DIGITS);
    if (threadIdx.x == 31 - __clz(found)) local->flag = digit, local->base = before_digit;
}

// The smallest key of a candidate with no more than `most` before it: `base`, and the number or the masses of greater candidates.
// There is one: `base` is not above `most`. Keys below `least` are no candidates.
template <class T>
__device__ __noinline__ u32 smallest_within(BlockState *local, u32 count, u32 least, u64 base, u64 most, bool by_mass) {
    u32 zeros = 0, ones = 0;
    each_candidate<T>(local, count, least, [&](u32 key, u32) { zeros |= ~key, ones |= key; });
    zeros = block_or(local, zeros), ones = block_or(local, ones);
    u32 prefix = ~zeros;
    const float largest = local->choice.largest;
    for (int high = 31 - __clz(zeros & ones); high >= 0; high -= 8) {
        // The digit is bits `shift` to `high`; candidates still in question agree above it.
        const int shift = max(high - 7, 0);
        const u32 digits = 1u << (high - shift + 1), above = high == 31 ? 0 : ~0u << (high + 1);
        __syncthreads();
        if (threadIdx.x < DIGITS) local->low[threadIdx.x] = local->high[threadIdx.x] = 0;
        __syncthreads();
        each_candidate<T>(local, count, least, [&](u32 key, u32) {
            if ((key ^ prefix) & above) return;
            const u32 digit = key >> shift & (digits - 1);
            add_shared(local->low + digit, local->high + digit, by_mass ? mass(number(key), largest) : 1);
        });
        __syncthreads();
        if (threadIdx.x < 32) last_digit_within(local, base, most);
        __syncthreads();
        prefix = prefix & above | local->flag << shift;
        base = local->base;
    }
    __syncthreads();
    return prefix;
}
