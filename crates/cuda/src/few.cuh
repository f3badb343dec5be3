// Small k: blocks publish the maxima of parts of the row. At least k logits are as large as the k-th largest maximum, so the few
// that are become candidates, and one block decides among them.

#pragma once

#include "filter.cuh"

// The largest key of what this thread reads of its block's part.
template <class T> __device__ __forceinline__ u32 Filter<T>::top_of_thread() const {
    float top_logit = __int_as_float(0x7fc00000);
    part.template each<4>([&](u32, float logit) { top_logit = fmaxf(top_logit, early(logit)); });
    return ordered(top_logit);
}

// Publishes the maxima of parts of the row, from the largest keys of threads.
template <class T> __device__ __forceinline__ void Filter<T>::publish_maxima(u32 parts, u64 *published, u32 key) {
    u32 *maxima = (u32 *)local->list;
    const u32 size = THREADS / parts, lane = threadIdx.x % 32;
    const auto put = [&](u32 at, u32 key) {
        if (blocks > 1) publish(published + block * parts + at, launch, key);
        else maxima[at] = key;
    };
    for (u32 offset = min(size, 32u) / 2; offset; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
    if (size <= 32) {
        if (lane % size == 0) put(threadIdx.x / size, key);
        return;
    }
    if (lane == 0) local->low[threadIdx.x / 32] = key;
    __syncthreads();
    if (threadIdx.x >= parts) return;
    key = 0;
    for (u32 warp = 0; warp < size / 32; ++warp) key = max(key, local->low[threadIdx.x * (size / 32) + warp]);
    put(threadIdx.x, key);
}

// Waits for the maxima of all blocks, which are then in the list. `flag` stays 0 if nothing can be drawn from.
template <class T> __device__ __forceinline__ void Filter<T>::take_maxima(u32 parts, const u64 *published) {
    u32 *maxima = (u32 *)local->list;
    const u32 all = blocks * parts;
    __syncthreads();
#pragma unroll 1
    for (u32 first = threadIdx.x; blocks > 1 && first < all; first += 4 * THREADS) {
        // All loads at once; usually nothing is left to wait for.
        u64 words[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = load_volatile(published + min(first + i * THREADS, all - 1));
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 at = first + i * THREADS;
            if (at < all) maxima[at] = words[i] >> 32 == launch ? (u32)words[i] : wait_for(published + at, launch);
        }
    }
    // Readers take four at a time.
    if (threadIdx.x < 4) maxima[all + threadIdx.x] = 0;
    __syncthreads();
    u32 top = 0;
    for (u32 at = threadIdx.x; at < all; at += THREADS) top = max(top, maxima[at]);
    top = block_max(top, local->scratch);
    largest = top ? late(number(top)) : 0.0f;
    if (threadIdx.x == 0) local->flag = top != 0;
    __syncthreads();
}

// The `rank`-th largest of the maxima: as many logits are at least as large. Four threads compare one with all.
template <class T> __device__ __forceinline__ u32 Filter<T>::rank_maximum(const u32 *maxima, u32 all, u32 rank) {
    if (threadIdx.x == 0) local->threshold = ~0u;
    __syncthreads();
    for (u32 at = threadIdx.x / 4; at / 8 * 8 < all; at += THREADS / 4) {
        const u32 key = at < all ? maxima[at] : 0;
        u32 greater = 0;
        const uint4 *keys = (const uint4 *)maxima;
        for (u32 other = threadIdx.x % 4; other < (all + 3) / 4; other += 4) {
            const uint4 four = keys[other];
            greater += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
        }
        greater += __shfl_xor_sync(~0u, greater, 1);
        greater += __shfl_xor_sync(~0u, greater, 2);
        const u32 least = ~warp_max(at < all && greater < rank ? ~key : 0);
        if (threadIdx.x % 32 == 0) atomicMin(&local->threshold, least);
    }
    __syncthreads();
    return local->threshold;
}

// A key that at least `rank` of the gathered maxima reach, and not many more. Of many maxima a histogram finds it, which is
// refined until its bin is small.
template <class T> __device__ __forceinline__ u32 Filter<T>::bound_of_maxima(u32 all, u32 rank) {
    const u32 *maxima = (const u32 *)local->list;
    if (all <= THREADS) return rank_maximum(maxima, all, rank);
    u32 bottom = 0, top = 0;
    for (u32 at = threadIdx.x; at < all; at += THREADS) top = max(top, maxima[at]), bottom = max(bottom, ~maxima[at]);
    top = block_max(top, local->scratch), bottom = ~block_max(bottom, local->scratch);
    for (u32 above = 0;;) {
        const int shift = max(21 - __clz(top - bottom), 0);
        clear_bins(BINS);
        for (u32 at = threadIdx.x; at < all; at += THREADS)
            if (maxima[at] >= bottom && maxima[at] <= top) atomicAdd(local->low + ((maxima[at] - bottom) >> shift), 1);
        __syncthreads();
        const u32 most = rank - 1 - above, *counts = local->low;
        find_bin(BINS, [=](u32 at) { return (u64)counts[BINS - 1 - at]; }, [=](u64) { return (u64)most; });
        const u32 chosen = BINS - 1 - local->bin, count = counts[chosen];
        bottom += chosen << shift, top = min(top, bottom + ((1u << shift) - 1));
        above += (u32)local->base;
        if (!shift || count <= 16 || above + count <= rank + rank / 16) break;
        __syncthreads();
    }
    return bottom < LEAST_KEY ? 0 : bottom;
}

// What is below this number is below the bound, even when both are divided. Near zero and at infinity, division may make others
// equal to it.
template <class T> __device__ __forceinline__ float Filter<T>::near(u32 bound) const {
    if (!bound) return MINUS_INFINITY;
    const float least = late(number(bound));
    const bool is_plain = fabsf(least) > 1e-30f && fabsf(least) < 1e38f && !isinf(settings.temperature);
    return is_plain ? number(bound) - fabsf(number(bound)) * 1e-6f : MINUS_INFINITY;
}

// Gathers what is at least `bound`, a key that at least k logits reach. Returns the number of candidates in the last block.
template <class T> __device__ __forceinline__ u32 Filter<T>::gather(u32 bound) {
    const u32 least_key = bound ? ordered(late(number(bound))) : 1;
    const float near = this->near(bound);
    part.template each<4, true>([&](u32 index, float logit) {
        if (!(logit >= near)) return;
        const u32 key = ordered(scaled(logit));
        if (key >= least_key) add_candidate(key, index);
    });
    hand_over_candidates();
    if (!last_to_arrive(global->arrived, blocks, &local->flag)) return NOT_MINE;
    return take_candidates(least_key, BINS);
}

// Draws from candidates that include all that top-k keeps.
template <class T> __device__ __forceinline__ void Filter<T>::decide_all(u32 count) {
    if (count <= THREADS / 4) return decide_few(count);
    u32 least = local->choice.least;
    if (settings.top_k < count) least = smallest_within<T>(local, count, least, 0, settings.top_k - 1, false);
    if (settings.top_p < 1.0f) {
        u64 total = 0;
        each_candidate<T>(local, count, least, [&](u32 key, u32) { total += mass(number(key), largest); });
        total = block_sum(total, local->scratch);
        least = smallest_within<T>(local, count, least, 0, limit(settings.top_p, total), true);
    }
    least = max(least, least_likely());
    enter_candidates(count, least);
    finish_race(least);
}

// Draws from few candidates: each is compared with all, by four threads.
template <class T> __device__ __forceinline__ void Filter<T>::decide_few(u32 count) {
    u64 *masses = local->contenders;
    if (threadIdx.x == 0) local->threshold = ~0u;
    if (threadIdx.x < count) masses[threadIdx.x] = mass(number((u32)(local->list[threadIdx.x] >> 32)), largest);
    __syncthreads();
    const u32 at = threadIdx.x / 4;
    const u64 word = at < count ? local->list[at] : ~0ull;
    const u32 key = (u32)(word >> 32);
    u32 greater = 0;
    u64 before = 0;
#pragma unroll 4
    for (u32 other = threadIdx.x % 4; other < count; other += 4) {
        const bool is_greater = (u32)(local->list[other] >> 32) > key;
        greater += is_greater, before += is_greater ? masses[other] : 0;
    }
    for (int offset = 1; offset < 4; offset *= 2)
        greater += __shfl_xor_sync(~0u, greater, offset), before += __shfl_xor_sync(~0u, before, offset);
    const bool is_counted = at < count && greater < settings.top_k && threadIdx.x % 4 == 0;
    const u64 most = limit(settings.top_p, block_sum(is_counted ? masses[at] : 0, local->scratch));
    u64 mine = 0;
    if (is_counted && before <= most && (settings.min_p == 0.0f || is_likely(number(key), largest, settings.min_p))) {
        mine = contender(number(key) + noise.of((u32)word), (u32)word);
        if (args.which) atomicMin(&local->threshold, key);
    }
    const u64 best = best_of(mine);
    finish(best, local->threshold);
}
