// Large k, top-p without top-k, and min-p alone: a token is drawn from the whole row first. A histogram over the distance from
// the maximum finds the bin in which the boundary lies: for top-k by counts, then for top-p by masses. A token that lies above
// the bin is the draw from what is kept, too, and most are. If not, perhaps another that came near is; where the boundary within
// the bin matters, the last block finds it. Only when all that fails is there a second draw, from what is kept.

#pragma once

#include "filter.cuh"

// Enters what is at least `least` of a part in pairs; 0 is all of it. What comes back is the largest key of this thread.
template <class T>
template <bool with_floor>
__device__ __forceinline__ u32 Filter<T>::draw_part(u32 least) {
    Race *race = &local->low_race;
    const Side<T> low(args, settings, row, part.begin, least), high(args, settings, row, part.second_begin, least);
    const u32 pairs = part.second_end - part.second_begin;
    u32 top = 0;
    if (pairs)
        top = ordered(draw_pairs<T, !with_floor, with_floor>(race, race, noise.stream, part.begin, pairs, low, high));
    if (part.begin + pairs < part.end && threadIdx.x == 0) {
        const float middle = part.at(part.end - 1);
        if (ordered(scaled(middle)) >= least)
            low.enter(race, middle, noise.stream, part.end - 1, noise.stream.middle(), part.end - 1);
        top = max(top, ordered(middle));
    }
    return top;
}

// Draws from the whole row; the maximum is found on the way. `flag` stays 0 if nothing can be drawn from.
template <class T> __device__ __forceinline__ void Filter<T>::draw_whole() {
    take_part(is_alone());
    u32 top = 0;
    Race *race = &local->low_race;
    __syncthreads();
    if (threadIdx.x == 0 && blocks <= FEW_BLOCKS) start_race(race, local->contenders, MARGIN);
    __syncthreads();
    if (is_alone()) top = draw_part<false>(0);
    if (!is_alone() || isinf(settings.temperature)) {
        float top_logit = __int_as_float(0x7fc00000);
        part.template each<4>([&](u32, float logit) { top_logit = fmaxf(top_logit, early(logit)); });
        top = ordered(top_logit);
    }
    top = block_max(top, local->scratch);
    drawn = is_alone() ? race->best : 0;
    if (blocks > 1) {
        if (threadIdx.x == 0) {
            publish(global->slots + block, launch, top);
            publish(global->slots_high + block, launch, (u32)(drawn >> 32));
            publish(global->slots_low + block, launch, (u32)drawn);
        }
        top = 0, drawn = 0;
        if (threadIdx.x < blocks) {
            top = wait_for(global->slots + threadIdx.x, launch);
            drawn = (u64)wait_for(global->slots_high + threadIdx.x, launch) << 32;
            drawn |= wait_for(global->slots_low + threadIdx.x, launch);
        }
        top = block_max(top, local->scratch);
        drawn = best_of(drawn);
    }
    largest = top ? late(number(top)) : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0) local->flag = top != 0;
    __syncthreads();
}

// Returns true if the draw from the whole row decides: the token is surely kept (at least `least` and above the bin), or
// another stored contender is, and no contender that was not stored can be better. Then `drawn` is the draw. All blocks find
// the same. `time` is 0 for the first call in a launch, 1 for the second.
template <class T> __device__ __forceinline__ bool Filter<T>::is_settled(u32 least, u32 chosen_bin, u32 time) {
    if (!drawn) return false;
    const auto bin_at = [&](u64 contender) {
        const float token = scaled(part.at(winner(contender)));
        return ordered(token) < least ? BINS : bin(token);
    };
    if (bin_at(drawn) < chosen_bin) return true;
    const Race &race = local->low_race;
    if (!race.list) return false;
    // The best that is kept, and the best that is not known to be.
    u64 kept = 0, unknown = 0;
    const u32 entered = race.entered;
    for (u32 at = threadIdx.x; at < min(entered, CONTENDERS); at += THREADS) {
        const u64 contender = race.list[at];
        const u32 found = contender ? bin_at(contender) : BINS;
        if (found < chosen_bin) kept = max(kept, contender);
        else if (found == chosen_bin && found < BINS) unknown = max(unknown, contender);
    }
    kept = best_of(kept), unknown = entered > CONTENDERS ? ~0ull : best_of(unknown);
    if (blocks > 1) {
        const u32 second = SLOTS / 2 + time * FEW_BLOCKS;
        if (threadIdx.x == 0) {
            publish(global->slots + second + block, launch, (u32)(unknown >> 32));
            publish(global->slots_high + second + block, launch, (u32)(kept >> 32));
            publish(global->slots_low + second + block, launch, (u32)kept);
        }
        kept = unknown = 0;
        if (threadIdx.x < blocks) {
            unknown = (u64)wait_for(global->slots + second + threadIdx.x, launch) << 32;
            kept = (u64)wait_for(global->slots_high + second + threadIdx.x, launch) << 32;
            kept |= wait_for(global->slots_low + second + threadIdx.x, launch);
        }
        kept = best_of(kept), unknown = best_of(unknown);
    }
    // Contenders that were not stored are at least the margin below the best.
    const u32 least_sure = ordered(number((u32)(drawn >> 32)) - MARGIN + 0.01f);
    if (!kept || kept >> 32 <= unknown >> 32 || kept >> 32 < least_sure) return false;
    drawn = kept;
    return true;
}

// All blocks have passed a barrier since they read the group state, so one can finish for all.
template <class T> __device__ __forceinline__ void Filter<T>::settle(u32 least) {
    if (block == 0) finish(drawn, least);
}

// The smallest scaled logit that top-k keeps, as a key, in all blocks.
template <class T> __device__ __forceinline__ u32 Filter<T>::kth_largest() {
    clear_bins(bins);
    part.template each<2>([&](u32, float logit) {
        const float scaled = this->scaled(logit);
        if (scaled == scaled) atomicAdd(local->low + bin(scaled), 1);
    });
    __syncthreads();
    u32 *counts = local->low;
    if (blocks > 1) {
        counts = global->counts;
        for (u32 at = threadIdx.x; at < bins; at += THREADS)
            if (local->low[at]) atomicAdd(counts + at, local->low[at]);
        group_barrier(global->arrived + 3, blocks);
    }
    const u32 most = settings.top_k - 1;
    find_bin(bins, [=](u32 at) { return (u64)load_volatile(counts + at); }, [=](u64) { return (u64)most; });
    return cut_in(local->bin, 1, local->base, most, false, 0);
}

// The smallest key of the bin with no more than `most` before it, in all blocks: the last to arrive looks for it. BINS (there
// are fewer numbers than k) gives `least`.
template <class T>
__device__ __forceinline__ u32 Filter<T>::cut_in(u32 chosen_bin, u32 least, u64 above, u64 most, bool by_mass, u32 which) {
    part.template each<1>([&](u32 index, float logit) {
        const float scaled = this->scaled(logit);
        const u32 key = ordered(scaled);
        if (key >= least && bin(scaled) == chosen_bin) add_candidate(key, index);
    });
    hand_over_candidates();
    if (last_to_arrive(global->arrived + 1 + which, blocks, &local->flag)) {
        u32 key = least;
        if (chosen_bin < BINS)
            key = smallest_within<T>(local, take_candidates(least, chosen_bin), least, above, most, by_mass);
        if (blocks > 1) {
            for (u32 at = threadIdx.x; !by_mass && at < bins; at += THREADS) global->counts[at] = 0;
            __syncthreads();
            if (threadIdx.x == 0) __threadfence(), publish(global->results + which, launch, key);
        }
        if (threadIdx.x == 0) local->threshold = key, local->count = 0;
    } else if (threadIdx.x == 0) {
        local->threshold = wait_for(global->results + which, launch), local->count = 0;
        __threadfence();
    }
    __syncthreads();
    return local->threshold;
}

// The masses of what is at least `least`, per bin, over all blocks; then the bin in which top-p ends.
template <class T> __device__ __forceinline__ void Filter<T>::weigh(u32 least) {
    clear_bins(bins);
    part.template each<2, true>([&](u32, float logit) {
        const float scaled = this->scaled(logit);
        if (ordered(scaled) < least) return;
        const u64 weight = mass(scaled, largest);
        const u32 at = bin(scaled);
        if (weight) add_shared(local->low + at, local->high + at, weight);
    });
    __syncthreads();
    const float top_p = settings.top_p;
    const auto most = [=](u64 total) { return limit(top_p, total); };
    if (blocks == 1) return find_bin(bins, [&](u32 at) { return (u64)local->high[at] << 32 | local->low[at]; }, most);
    u64 *masses = global->masses[global->nuclei % 2], *next = global->masses[(global->nuclei + 1) % 2];
    for (u32 at = threadIdx.x; at < bins; at += THREADS) {
        const u64 sum = (u64)local->high[at] << 32 | local->low[at];
        if (sum) atomicAdd(masses + at, sum);
        if (at % blocks == block) next[at] = 0;
    }
    group_barrier(global->arrived + 3, blocks);
    find_bin(bins, [=](u32 at) { return load_volatile(masses + at); }, most);
}

// A draw from everything that is at least `least`.
template <class T> __device__ __forceinline__ void Filter<T>::draw_from(u32 least) {
    __syncthreads();
    if (threadIdx.x == 0) start_race(&local->low_race);
    __syncthreads();
    if (is_alone()) draw_part<true>(least);
    else part.template each<1>([&](u32 index, float logit) {
        const float scaled = this->scaled(logit);
        if (ordered(scaled) >= least) enter_scaled(&local->low_race, noise, scaled, index);
    });
    __syncthreads();
    if (blocks > 1 && threadIdx.x == 0 && local->low_race.best) atomicMax(&global->best, local->low_race.best);
    if (!last_to_arrive(global->arrived, blocks, &local->flag)) return;
    if (blocks == 1) return finish_race(least);
    const u64 best = load_volatile(&global->best);
    if (threadIdx.x == 0) global->best = 0;
    finish(best, least);
}

// Top-p, over what is at least `least`.
template <class T> __device__ __forceinline__ void Filter<T>::nucleus(u32 least) {
    weigh(least);
    // All blocks have read `nuclei` by now.
    if (block == 0 && threadIdx.x == 0) ++global->nuclei;
    const u32 likely = least_likely();
    // Log-probabilities of what is kept need to know where that ends.
    const bool is_exact = which_of(args, row) > 1;
    if (!is_exact && is_settled(max(least, likely), local->bin, 0)) return settle(least);
    least = max(likely, cut_in(local->bin, least, local->base, local->limit, true, 1));
    if (is_settled(least, BINS, 1)) return settle(least);
    draw_from(least);
}

template <class T> __device__ __forceinline__ void Filter<T>::many() {
    draw_whole();
    if (!local->flag) return finish_nothing();
    u32 least = settings.top_k < args.vocabulary ? kth_largest() : 1;
    if (settings.top_p < 1.0f) return nucleus(least);
    least = max(least, least_likely());
    if (is_settled(least, BINS, 0)) return settle(least);
    draw_from(least);
}

