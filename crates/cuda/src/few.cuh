// Small k: blocks publish the maxima of parts of the row. At least k logits are as large as the k-th largest maximum, so the few
// that are become candidates, and one block decides among them.
//
// Where many blocks share the row, each publishes its largest logits together with its maximum. Those are usually all the
// candidates that it has, which saves a step: the others need not learn of the bound.

#pragma once

#include "filter.cuh"

// The published bound of a block that has more logits from its bound on than it can publish.
#define NO_BOUND ~0u
// A block publishes what is at least its bound, the maximum with this rank of its warps.
#define BOUND_RANK 6
// The words of a thread of the block that collects them.
#define WORDS_OF_THREAD (SLOTS * WORDS / THREADS)

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

// Publishes this block's largest logits.
template <class T> __device__ __forceinline__ void Filter<T>::publish_words(u32 step) {
    const u32 lane = threadIdx.x % 32;
    float top_logit = __int_as_float(0x7fc00000);
    part.template each<2>([&](u32, float logit) { top_logit = fmaxf(top_logit, early(logit)); });
    const u32 top = warp_max(ordered(top_logit));
    if (lane == 0) local->keys[threadIdx.x / 32] = top;
    __syncthreads();
    // Every warp finds the bound by itself.
    const u32 mine = lane < WARPS ? local->keys[lane] : 0;
    u32 greater = 0;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; ++warp) greater += __shfl_sync(~0u, mine, warp) > mine;
    const u32 bound = ~warp_max(lane < WARPS && greater < BOUND_RANK ? ~mine : 0);
    const float least = bound ? number(bound) : MINUS_INFINITY;
    part.template each<2>([&](u32 index, float logit) {
        const float kept = early(logit);
        if (kept >= least) add_candidate(ordered(kept), index);
    });
    __syncthreads();
    if (threadIdx.x < WORDS) {
        const u32 count = local->count;
        const u32 largest = warp_max(mine);
        u64 word = 0;
        if (lane == 0) word = (u64)largest << 32;
        else if (lane == 1) word = (u64)(count > WORDS - 2 ? NO_BOUND : bound) << 32;
        else if (lane - 2 < count) word = local->list[lane - 2] >> 32 << 32 | (u32)local->list[lane - 2] << 8;
        *(volatile u64 *)(global->words + block * WORDS + lane) = word | step;
    }
}

// What is below this number is below the bound, even when both are divided. Near zero and at infinity, division may make others
// equal to it.
template <class T> __device__ __forceinline__ float Filter<T>::near(u32 bound) const {
    if (!bound) return MINUS_INFINITY;
    const float least = late(number(bound));
    const bool is_plain = fabsf(least) > 1e-30f && fabsf(least) < 1e38f && !isinf(settings.temperature);
    return is_plain ? number(bound) - fabsf(number(bound)) * 1e-6f : MINUS_INFINITY;
}

// In one block: waits for what all have published, and returns the number of candidates. `threshold` is the bound.
template <class T> __device__ __forceinline__ u32 Filter<T>::take_words(u32 step) {
    const u32 all = blocks * WORDS, lane = threadIdx.x % WORDS;
    u64 words[WORDS_OF_THREAD];
#pragma unroll
    for (u32 i = 0; i < WORDS_OF_THREAD; ++i)
        words[i] = i * THREADS + threadIdx.x < all ? load_volatile(global->words + i * THREADS + threadIdx.x) : 0;
#pragma unroll
    for (u32 i = 0; i < WORDS_OF_THREAD; ++i)
        while (i * THREADS + threadIdx.x < all && (words[i] & 0xff) != step)
            words[i] = load_volatile(global->words + i * THREADS + threadIdx.x);
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < WORDS_OF_THREAD; ++i)
        if (lane == 0) local->keys[(i * THREADS + threadIdx.x) / WORDS] = (u32)(words[i] >> 32);
    if (threadIdx.x == 0) local->count = 0, local->flag = 0, ++global->steps;
    __syncthreads();
    u32 top = 0;
    for (u32 at = lane; at < blocks; at += 32) top = max(top, local->keys[at]);
    top = warp_max(top);
    largest = top ? late(number(top)) : 0.0f;
    const u32 bound = rank_maximum(local->keys, blocks, settings.top_k), near = max(ordered(this->near(bound)), 1);
#pragma unroll
    for (u32 i = 0; i < WORDS_OF_THREAD; ++i) {
        const u32 key = (u32)(words[i] >> 32);
        if (lane > 1 && key >= near) add_candidate(key, (u32)words[i] >> 8);
        // What a block left out is below its bound.
        if (lane == 1 && key > near && local->keys[(i * THREADS + threadIdx.x) / WORDS] >= near) local->flag = 1;
    }
    choose(bound ? ordered(late(number(bound))) : 1, BINS);
    __syncthreads();
    const u32 count = local->count;
    for (u32 at = threadIdx.x; at < count; at += THREADS) {
        const u64 word = local->list[at];
        local->list[at] = (u64)ordered(late(number((u32)(word >> 32)))) << 32 | (u32)word;
    }
    return local->flag ? INCOMPLETE : count;
}

// The number of candidates, if this block has all, and the bound as `threshold`.
template <class T> __device__ __forceinline__ u32 Filter<T>::gather_in_one_step() {
    const u32 step = (load_volatile(&global->steps) + 1) & 0xff;
    __syncthreads();
    publish_words(step);
    u32 count = NOT_MINE;
    if (block == 0) {
        count = take_words(step);
        if (threadIdx.x == 0) {
            publish(global->results + 1, launch, ordered(largest));
            publish(global->results, launch, count == INCOMPLETE ? local->threshold : ~0u);
        }
    } else {
        if (threadIdx.x == 0) {
            local->threshold = wait_for(global->results, launch);
            local->keys[0] = wait_for(global->results + 1, launch);
        }
        __syncthreads();
        if (local->threshold != ~0u) largest = number(local->keys[0]), count = INCOMPLETE;
    }
    __syncthreads();
    if (threadIdx.x == 0 && count == INCOMPLETE) local->count = 0;
    if (threadIdx.x == 0 && count != INCOMPLETE) local->is_busy = 0;
    __syncthreads();
    return count;
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
        mine = contender(number(key) + gumbel(noise.word((u32)word)), (u32)word);
        if (args.which) atomicMin(&local->threshold, key);
    }
    const u64 best = best_of(mine);
    finish(best, local->threshold);
}
