// Rows with top-k or top-p: two or three passes by the blocks of a group, and no sort.
//
// Small k: blocks publish the maxima of parts of the row. At least k logits are as large as the k-th largest maximum, so
// the few that are become candidates, and the last block decides among them.
//
// Otherwise a token is drawn from the whole row first. A histogram over the distance from the maximum finds the bin in which the
// boundary lies: for top-k by counts, then for top-p by masses. A token that lies above the bin is the draw from what is kept,
// too, and most are. If not, perhaps another that came near is; where the boundary within the bin matters, the last block finds
// it. Only when all that fails is there a second draw, from what is kept.

#pragma once

#include "candidates.cuh"
#include "whole.cuh"

template <class T> struct Filter {
    const SampleArgs &args;
    BlockState *local;
    GroupState *global;
    u32 row, blocks, block, launch;
    Settings settings;
    Noise noise;
    RowPart<T> part;
    u32 bins;
    float largest;
    // The best contender of the whole row, if it was drawn from.
    u64 drawn;

    __device__ __forceinline__ float scaled(float logit) const { return logit / settings.temperature; }

    // Maxima are found before the division, which is monotone; but an infinite temperature turns infinite logits into NaN.
    __device__ __forceinline__ float early(float logit) const { return isinf(settings.temperature) ? scaled(logit) : logit; }
    __device__ __forceinline__ float late(float maximum) const {
        return isinf(settings.temperature) ? maximum : scaled(maximum);
    }

    __device__ __forceinline__ void publish_maximum(u32 at, u32 key) {
        if (blocks > 1) publish(global->slots + at, launch, key);
        else local->keys[at] = key;
    }

    // Returns true if the row has its own stream of noise: both words of a pair belong to it.
    __device__ __forceinline__ bool is_alone() const { return noise.stream.count == args.vocabulary; }

    // This block's part of the row: a stretch of it or, to draw from it, one of each half.
    __device__ __forceinline__ void take_part(bool in_pairs) {
        const u32 length = in_pairs ? noise.stream.upper() : args.vocabulary;
        // Stretches start at multiples of eight elements, so that loads can be wide.
        const u32 share = ((length + blocks - 1) / blocks + 7) / 8 * 8;
        part.begin = min(length, block * share), part.end = min(length, part.begin + share);
        part.second_begin = part.second_end = 0;
        if (in_pairs && part.begin < noise.stream.half())
            part.second_begin = part.begin + length, part.second_end = min(part.end, noise.stream.half()) + length;
    }

    // Enters what is at least `least` of a part in pairs; 0 is all of it. What comes back is the largest key of this thread.
    template <bool with_floor> __device__ __forceinline__ u32 draw_part(u32 least) {
        Race *race = &local->low_race;
        const Side<T> low(args, settings, row, part.begin, least), high(args, settings, row, part.second_begin, least);
        const u32 pairs = part.second_end - part.second_begin;
        u32 top = 0;
        if (pairs)
            top = ordered(draw_pairs<T, !with_floor, with_floor>(race, race, noise.stream, part.begin, pairs, low, high));
        if (part.begin + pairs < part.end && threadIdx.x == 0) {
            const float middle = part.at(part.end - 1);
            if (ordered(scaled(middle)) >= least)
                enter(race, middle, settings.temperature, noise.stream.middle(), part.end - 1);
            top = max(top, ordered(middle));
        }
        return top;
    }

    // Draws from the whole row; the maximum is found on the way. `flag` stays 0 if nothing can be drawn from.
    __device__ __forceinline__ void draw_whole() {
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

    // The best of a contender per thread, in all threads.
    __device__ __forceinline__ u64 best_of(u64 contender) const {
        const u32 score = block_max((u32)(contender >> 32), local->scratch);
        return (u64)score << 32 | block_max(contender >> 32 == score ? (u32)contender : 0, local->scratch);
    }

    // Returns true if the draw from the whole row decides: the token is surely kept (at least `least` and above the bin), or
    // another stored contender is, and no contender that was not stored can be better. Then `drawn` is the draw. All blocks find
    // the same. `time` is 0 for the first call in a launch, 1 for the second.
    __device__ __forceinline__ bool is_settled(u32 least, u32 chosen_bin, u32 time) {
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
    __device__ __forceinline__ void settle() {
        if (block) return;
        if (threadIdx.x == 0) local->low_race.best = drawn;
        finish();
    }

    // Publishes the maxima of parts of the row and collects those of all blocks. `flag` stays 0 if nothing can be drawn from.
    __device__ __forceinline__ void gather_maxima() {
        take_part(false);
        // Parts of a block: a power of two.
        u32 parts = 1;
        while (parts * blocks < MAXIMA) parts *= 2;
        const u32 size = THREADS / parts, lane = threadIdx.x % 32, warps = size / 32;
        float top_logit = __int_as_float(0x7fc00000);
        part.template each<4>([&](u32, float logit) { top_logit = fmaxf(top_logit, early(logit)); });
        u32 key = ordered(top_logit);
        if (size < 32) {
            for (u32 offset = size / 2; offset; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
            if (lane % size == 0) publish_maximum(block * parts + threadIdx.x / size, key);
        } else {
            key = warp_max(key);
            if (lane == 0) local->low[threadIdx.x / 32] = key;
            __syncthreads();
            if (threadIdx.x < WARPS) {
                key = local->low[lane];
                for (u32 offset = warps / 2; offset; offset /= 2)
                    key = max(key, __shfl_xor_sync((1u << WARPS) - 1, key, offset));
                if (lane % warps == 0) publish_maximum(block * parts + lane / warps, key);
            }
        }
        const u32 all = blocks * parts;
        if (threadIdx.x < SLOTS) {
            if (threadIdx.x >= all) local->keys[threadIdx.x] = 0;
            else if (blocks > 1) local->keys[threadIdx.x] = wait_for(global->slots + threadIdx.x, launch);
        }
        __syncthreads();
        u32 top = 0;
        for (u32 at = lane; at < all; at += 32) top = max(top, local->keys[at]);
        top = warp_max(top);
        largest = top ? late(number(top)) : 0.0f;
        if (threadIdx.x == 0) local->flag = top != 0;
        __syncthreads();
    }

    // The `rank`-th largest of the maxima: as many logits are at least as large. Four threads compare one with all.
    __device__ __forceinline__ u32 rank_maximum(u32 all, u32 rank) {
        if (threadIdx.x == 0) local->threshold = ~0u;
        __syncthreads();
        for (u32 at = threadIdx.x / 4; at / 8 * 8 < all; at += THREADS / 4) {
            const u32 key = local->keys[at];
            u32 greater = 0;
            const uint4 *keys = (const uint4 *)local->keys;
            for (u32 other = threadIdx.x % 4; other < (all + 3) / 4; other += 4) {
                const uint4 four = keys[other];
                greater += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
            }
            greater += __shfl_xor_sync(~0u, greater, 1);
            greater += __shfl_xor_sync(~0u, greater, 2);
            if (at < all && greater < rank && threadIdx.x % 4 == 0) atomicMin(&local->threshold, key);
        }
        __syncthreads();
        return local->threshold;
    }

    __device__ __forceinline__ u32 bin(float scaled) const { return bin_of(scaled, largest, settings.temperature, bins); }

    __device__ __forceinline__ void clear_bins() {
        for (u32 at = threadIdx.x; at < bins; at += THREADS) local->low[at] = local->high[at] = 0;
        __syncthreads();
    }

    // The first bin at whose end the running sum is more than `most_of(total)`, and the sum before it; BINS if there is none.
    template <class Bin, class Most> __device__ __forceinline__ void find_bin(Bin of, Most most_of) {
        const u32 each = bins / THREADS, first = threadIdx.x * each;
        u64 sum = 0;
        for (u32 at = first; at < first + each; ++at) sum += of(at);
        u64 before = block_sum_before(sum, local->scratch);
        if (threadIdx.x == 0) local->bin = BINS;
        if (threadIdx.x == THREADS - 1) local->limit = most_of(before + sum);
        __syncthreads();
        const u64 most = local->limit;
        if (before <= most && before + sum > most) {
            u32 at = first;
            for (u64 bin; before + (bin = of(at)) <= most; ++at) before += bin;
            local->bin = at, local->base = before;
        }
        __syncthreads();
    }

    __device__ __forceinline__ void add_candidate(u32 key, u32 index) {
        const u32 at = atomicAdd(blocks > 1 ? &global->candidates : &local->count, 1);
        if (at < ROOM) (blocks > 1 ? global->list : local->list)[at] = (u64)key << 32 | index;
    }

    // In the last block: copies the candidates to shared memory, notes how they were chosen, and returns their number.
    __device__ __forceinline__ u32 take_candidates(u32 least, u32 chosen_bin) {
        if (blocks > 1) {
            // There are usually fewer candidates than threads: issue both loads at once.
            const u64 first = load_volatile(global->list + threadIdx.x);
            const u32 count = load_volatile(&global->candidates);
            if (threadIdx.x < count) local->list[threadIdx.x] = first;
            for (u32 at = THREADS + threadIdx.x; at < min(count, ROOM); at += THREADS)
                local->list[at] = load_volatile(global->list + at);
            __syncthreads();
            if (threadIdx.x == 0) local->count = count, global->candidates = 0;
        }
        if (threadIdx.x == 0) local->choice = {part.row, args.vocabulary, least, chosen_bin, bins, settings.temperature, largest};
        __syncthreads();
        return local->count;
    }

    // Enters the candidates with a key of at least `least`.
    __device__ __forceinline__ void enter_candidates(u32 count, u32 least) {
        each_candidate<T>(local, count, least, [&](u32 key, u32 index) { enter_scaled(number(key), index); });
    }

    // Computes the score only if it may win.
    __device__ __forceinline__ void enter_scaled(float scaled, u32 index) {
        const u32 word = noise.word(index);
        if (may_win(bar_of(&local->low_race), scaled, gumbel_estimate(word))) enter(&local->low_race, scaled, 1.0f, word, index);
    }

    // In the last block of a row, when all have entered.
    __device__ __forceinline__ void finish() {
        __syncthreads();
        if (threadIdx.x) return;
        u64 best = local->low_race.best;
        if (blocks > 1) best = max(best, load_volatile(&global->best)), global->best = 0;
        store(args, row, best);
        ++global->launches;
    }

    // Draws from candidates that include all that top-k keeps.
    __device__ __forceinline__ void decide_all(u32 count) {
        if (count <= THREADS / 4) return decide_few(count);
        u32 least = settings.top_k < count ? smallest_within<T>(local, count, 1, 0, settings.top_k - 1, false) : 1;
        if (settings.top_p < 1.0f) {
            u64 total = 0;
            each_candidate<T>(local, count, least, [&](u32 key, u32) { total += mass(number(key), largest); });
            total = block_sum(total, local->scratch);
            least = smallest_within<T>(local, count, least, 0, limit(settings.top_p, total), true);
        }
        enter_candidates(count, least);
        finish();
    }

    // Draws from few candidates: each is compared with all, by four threads.
    __device__ __forceinline__ void decide_few(u32 count) {
        if (threadIdx.x < count) {
            const u64 mine = mass(number((u32)(local->list[threadIdx.x] >> 32)), largest);
            local->low[threadIdx.x] = (u32)mine, local->high[threadIdx.x] = mine >> 32;
        }
        __syncthreads();
        const u32 at = threadIdx.x / 4;
        bool mine = false;
        u64 before = 0, weight = 0;
        if (at / 8 * 8 < count) {
            const u32 key = at < count ? (u32)(local->list[at] >> 32) : ~0u;
            u32 greater = 0;
            for (u32 other = threadIdx.x % 4; other < count; other += 4)
                if ((u32)(local->list[other] >> 32) > key)
                    ++greater, before += (u64)local->high[other] << 32 | local->low[other];
            for (int offset = 1; offset < 4; offset *= 2)
                greater += __shfl_xor_sync(~0u, greater, offset), before += __shfl_xor_sync(~0u, before, offset);
            mine = at < count && greater < settings.top_k && threadIdx.x % 4 == 0;
            if (mine) weight = (u64)local->high[at] << 32 | local->low[at];
        }
        const u64 most = limit(settings.top_p, block_sum(weight, local->scratch));
        if (mine && before <= most) enter_scaled(number((u32)(local->list[at] >> 32)), (u32)local->list[at]);
        finish();
    }

    // Top-k with a k so small that the maxima bound it.
    __device__ __forceinline__ void few(u32 maxima) {
        const u32 bound = rank_maximum(maxima, settings.top_k);
        const float least = bound ? late(number(bound)) : 0.0f;
        const u32 least_key = bound ? ordered(least) : 1;
        // What is much below the bound need not be divided. Near zero and at infinity division may make others equal to it.
        const float maximum = bound ? number(bound) : 0.0f;
        const bool is_plain = fabsf(least) > 1e-30f && fabsf(least) < 1e38f && !isinf(settings.temperature);
        const float near = is_plain ? maximum - fabsf(maximum) * 1e-6f : __int_as_float(0xff800000);
        part.template each<1>([&](u32 index, float logit) {
            if (!(logit >= near)) return;
            const u32 key = ordered(scaled(logit));
            if (key >= least_key) add_candidate(key, index);
        });
        if (!last_to_arrive(global->arrived, blocks, &local->flag)) return;
        decide_all(take_candidates(least_key, BINS));
    }

    // The smallest scaled logit that top-k keeps, as a key, in all blocks.
    __device__ __forceinline__ u32 kth_largest() {
        clear_bins();
        part.template each<1>([&](u32, float logit) {
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
        find_bin([=](u32 at) { return (u64)load_volatile(counts + at); }, [=](u64) { return (u64)most; });
        return cut_in(local->bin, 1, local->base, most, false, 0);
    }

    // The smallest key of the bin with no more than `most` before it, in all blocks: the last to arrive looks for it. BINS (there
    // are fewer numbers than k) gives `least`.
    __device__ __forceinline__ u32 cut_in(u32 chosen_bin, u32 least, u64 above, u64 most, bool by_mass, u32 which) {
        part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            const u32 key = ordered(scaled);
            if (key >= least && bin(scaled) == chosen_bin) add_candidate(key, index);
        });
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
            local->threshold = wait_for(global->results + which, launch);
            __threadfence();
        }
        __syncthreads();
        return local->threshold;
    }

    // The masses of what is at least `least`, per bin, over all blocks; then the bin in which top-p ends.
    __device__ __forceinline__ void weigh(u32 least) {
        clear_bins();
        part.template each<1>([&](u32, float logit) {
            const float scaled = this->scaled(logit);
            if (ordered(scaled) < least) return;
            const u64 weight = mass(scaled, largest);
            const u32 at = bin(scaled);
            if (weight) add_shared(local->low + at, local->high + at, weight);
        });
        __syncthreads();
        const float top_p = settings.top_p;
        const auto most = [=](u64 total) { return limit(top_p, total); };
        if (blocks == 1) return find_bin([&](u32 at) { return (u64)local->high[at] << 32 | local->low[at]; }, most);
        u64 *masses = global->masses[global->nuclei % 2], *next = global->masses[(global->nuclei + 1) % 2];
        for (u32 at = threadIdx.x; at < bins; at += THREADS) {
            const u64 sum = (u64)local->high[at] << 32 | local->low[at];
            if (sum) atomicAdd(masses + at, sum);
            if (at % blocks == block) next[at] = 0;
        }
        group_barrier(global->arrived + 3, blocks);
        find_bin([=](u32 at) { return load_volatile(masses + at); }, most);
    }

    // A draw from everything that is at least `least`.
    __device__ __forceinline__ void draw_from(u32 least) {
        __syncthreads();
        if (threadIdx.x == 0) start_race(&local->low_race);
        __syncthreads();
        if (is_alone()) draw_part<true>(least);
        else part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            if (ordered(scaled) >= least) enter_scaled(scaled, index);
        });
        __syncthreads();
        if (blocks > 1 && threadIdx.x == 0 && local->low_race.best) atomicMax(&global->best, local->low_race.best);
        if (last_to_arrive(global->arrived, blocks, &local->flag)) finish();
    }

    // Top-p, over what is at least `least`.
    __device__ __forceinline__ void nucleus(u32 least) {
        weigh(least);
        // All blocks have read `nuclei` by now.
        if (block == 0 && threadIdx.x == 0) ++global->nuclei;
        if (is_settled(least, local->bin, 0)) return settle();
        least = cut_in(local->bin, least, local->base, local->limit, true, 1);
        if (is_settled(least, BINS, 1)) return settle();
        draw_from(least);
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) local->count = 0, start_race(&local->low_race);
        u32 parts = blocks;
        while (parts < MAXIMA) parts *= 2;
        const bool is_few = settings.top_k <= parts / 4 * 3;
        if (is_few) gather_maxima();
        else draw_whole();
        if (!local->flag) {
            // All logits of the row are NaN.
            if (last_to_arrive(global->arrived, blocks, &local->flag)) finish();
            return;
        }
        if (is_few) return few(parts);
        const u32 least = settings.top_k < args.vocabulary ? kth_largest() : 1;
        if (settings.top_p < 1.0f) return nucleus(least);
        if (is_settled(least, BINS, 0)) return settle();
        draw_from(least);
    }
};

template <class T>
__device__ __forceinline__ void filter_rows(const SampleArgs &args, const Settings &shared, BlockState *local) {
    const u32 groups = gridDim.x / args.blocks, group = blockIdx.x / args.blocks, block = blockIdx.x % args.blocks;
    if (group >= groups) return;
    for (u32 row = group; row < args.rows; row += groups) {
        const Settings settings = args.flags & 7 ? settings_of(args, row) : shared;
        if (!settings.filtered(args.vocabulary)) continue;
        GroupState *global = args.group_states + group;
        const typename T::Element *logits = (const typename T::Element *)args.logits + row * args.stride;
        const u32 launch = load_volatile(&global->launches) + 1;
        const u32 bins = args.blocks > FEW_BLOCKS ? COARSE_BINS : BINS;
        const Noise noise = noise_of(args, row);
        const RowPart<T> part = {logits, 0, 0, 0, 0};
        Filter<T>{args, local, global, row, args.blocks, block, launch, settings, noise, part, bins, 0.0f, 0}.run();
        __syncthreads();
    }
}
