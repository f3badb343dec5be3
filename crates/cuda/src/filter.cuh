// Rows with top-k, top-p or min-p: two or three passes by the blocks of a group, and no sort. See few.cuh and nucleus.cuh.

#pragma once

#include "candidates.cuh"
#include "whole.cuh"

// A number of candidates: another block has them.
#define NOT_MINE ~0u

// The number of parts of a block, a power of two, whose maxima bound the k-th largest logit well; 0 if there are too few.
__device__ __forceinline__ u32 parts_of_block(u32 blocks, u32 top_k) {
    u32 parts = 1;
    while (parts * blocks < MAXIMA || top_k > parts * blocks / 4 * 3) parts *= 2;
    return parts <= THREADS && parts * blocks <= MOST_MAXIMA ? parts : 0;
}

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

    // Maxima are found before the division, which is monotone; but an infinite temperature turns infinite logits into NaN, and
    // all others into zeros.
    __device__ __forceinline__ float early(float logit) const { return isinf(settings.temperature) ? logit * 0.0f : logit; }
    __device__ __forceinline__ float late(float maximum) const {
        return isinf(settings.temperature) ? maximum : scaled(maximum);
    }

    // few.cuh
    __device__ __forceinline__ u32 top_of_thread() const;
    __device__ __forceinline__ void publish_maxima(u32 parts, u64 *published, u32 key);
    __device__ __forceinline__ void take_maxima(u32 parts, const u64 *published);
    __device__ __forceinline__ u32 rank_maximum(const u32 *maxima, u32 all, u32 rank);
    __device__ __forceinline__ u32 bound_of_maxima(u32 all, u32 rank);
    __device__ __forceinline__ float near(u32 bound) const;
    __device__ __forceinline__ u32 gather(u32 bound);
    __device__ __forceinline__ void decide_all(u32 count);
    __device__ __forceinline__ void decide_few(u32 count);

    // nucleus.cuh
    template <bool with_floor> __device__ __forceinline__ u32 draw_part(u32 least);
    __device__ __forceinline__ void draw_whole();
    __device__ __forceinline__ bool is_settled(u32 least, u32 chosen_bin, u32 time);
    __device__ __forceinline__ void settle(u32 least);
    __device__ __forceinline__ u32 kth_largest();
    __device__ __forceinline__ u32 cut_in(u32 chosen_bin, u32 least, u64 above, u64 most, bool by_mass, u32 which);
    __device__ __forceinline__ void weigh(u32 least);
    __device__ __forceinline__ void draw_from(u32 least);
    __device__ __forceinline__ void nucleus(u32 least);
    __device__ __forceinline__ void many();

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

    // The best of a contender per thread, in all threads.
    __device__ __forceinline__ u64 best_of(u64 contender) const {
        const u32 score = block_max((u32)(contender >> 32), local->scratch);
        return (u64)score << 32 | block_max(contender >> 32 == score ? (u32)contender : 0, local->scratch);
    }

    __device__ __forceinline__ u32 bin(float scaled) const { return bin_of(scaled, largest, settings.temperature, bins); }

    __device__ __forceinline__ void clear_bins(u32 bins) {
        for (u32 at = threadIdx.x; at < bins; at += THREADS) local->low[at] = local->high[at] = 0;
        __syncthreads();
    }

    // The first bin at whose end the running sum is more than `most_of(total)`, and the sum before it; BINS if there is none.
    template <class Bin, class Most> __device__ __forceinline__ void find_bin(u32 bins, Bin of, Most most_of) {
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

    // Adds to this block's list.
    __device__ __forceinline__ void add_candidate(u32 key, u32 index) {
        const u32 at = atomicAdd(&local->count, 1);
        if (at < ROOM) local->list[at] = (u64)key << 32 | index;
    }

    // Adds this block's list to that of the group.
    __device__ __forceinline__ void hand_over_candidates() {
        if (blocks == 1) return;
        __syncthreads();
        const u32 count = local->count;
        if (threadIdx.x == 0 && count) local->threshold = atomicAdd(&global->candidates, count);
        __syncthreads();
        const u32 first = local->threshold;
        for (u32 at = threadIdx.x; at < min(count, ROOM); at += THREADS)
            if (first + at < ROOM) global->list[first + at] = local->list[at];
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
        if (threadIdx.x == 0)
            local->choice = {part.row, part.adjusted, args.vocabulary, least, chosen_bin, bins, settings.temperature, largest};
        __syncthreads();
        return local->count;
    }

    // Enters the candidates with a key of at least `least`.
    __device__ __forceinline__ void enter_candidates(u32 count, u32 least) {
        Race *race = &local->low_race;
        each_candidate<T>(local, count, least, [&](u32 key, u32 index) { enter_scaled(race, noise, number(key), index); });
    }

    // In one block, when all have entered: `best` is the draw, and keys from `least` on were kept.
    __device__ __forceinline__ void finish(u64 best, u32 least) {
        if (threadIdx.x) return;
        store(args, row, best);
        args.kept[row] = least;
        // Others may wait for this.
        if (args.which) __threadfence();
        *(volatile u32 *)&global->launches = launch;
    }

    // In the last block of a row: finishes with the best of its own race.
    __device__ __forceinline__ void finish_race(u32 least) {
        __syncthreads();
        finish(local->low_race.best, least);
    }

    // The smallest key that min-p keeps, in all threads: 32 threads try keys at a time.
    __device__ __forceinline__ u32 least_likely() const {
        if (!(settings.min_p > 0.0f)) return 1;
        // Keys below `low` are not likely, `low + count` is.
        u32 low = LEAST_KEY, count = ordered(largest) - low;
        while (count) {
            const u32 step = count / 32 + 1, at = min(threadIdx.x % 32 * step, count);
            const u32 likely = __ballot_sync(~0u, is_likely(number(low + at), largest, settings.min_p));
            // The last of those tried that is not likely, and all before it.
            const u32 unlikely = likely ? __ffs(likely) - 1 : 32;
            if (!unlikely) break;
            const u32 first = (unlikely - 1) * step + 1, last = min(unlikely * step, count);
            low += first, count = last - first;
        }
        return low;
    }

    __device__ __forceinline__ u32 parts_of_block() const { return ::parts_of_block(blocks, settings.top_k); }

    // In all blocks, if all logits of the row are NaN.
    __device__ __forceinline__ void finish_nothing() {
        if (last_to_arrive(global->arrived, blocks, &local->flag)) finish(0, 1);
    }

    // Returns true if the maxima that `few` needs are published when the row is adjusted.
    __device__ __forceinline__ bool publishes_early(u32 parts) const {
        return part.adjusted && blocks > 1 && parts && !isinf(settings.temperature);
    }

    // With a k for which `parts_of_block` is not 0.
    __device__ __forceinline__ void few() {
        const u32 parts = parts_of_block();
        take_part(false);
        if (!publishes_early(parts)) publish_maxima(parts, global->maxima, top_of_thread());
        take_maxima(parts, global->maxima);
        if (!local->flag) return finish_nothing();
        const u32 count = gather(bound_of_maxima(parts * blocks, settings.top_k));
        if (count != NOT_MINE) decide_all(count);
    }
};

#include "few.cuh"
#include "nucleus.cuh"

template <class T>
__device__ __forceinline__ Filter<T> filter_of(const SampleArgs &args, const Settings &settings, BlockState *local, u32 row) {
    const u32 group = blockIdx.x / args.blocks, block = blockIdx.x % args.blocks, launch = local->launches + 1;
    const typename T::Element *logits = (const typename T::Element *)args.logits + row * args.stride;
    const RowPart<T> part = {logits, adjusted_row(args, row), 0, 0, 0, 0};
    const u32 bins = args.blocks > FEW_BLOCKS ? COARSE_BINS : BINS;
    GroupState *global = args.group_states + group;
    return {args, local, global, row, args.blocks, block, launch, settings, noise_of(args, row, settings.exact_tail), part, bins, 0.0f, 0};
}

// On their own, the two ways need fewer registers each, but more time to start.
template <class T>
__device__ __noinline__ void few_apart(const SampleArgs &args, Settings settings, BlockState *local, u32 row) {
    filter_of<T>(args, settings, local, row).few();
}
template <class T>
__device__ __noinline__ void many_apart(const SampleArgs &args, Settings settings, BlockState *local, u32 row) {
    filter_of<T>(args, settings, local, row).many();
}

template <class T, bool apart>
__device__ __forceinline__ void filter_rows(const SampleArgs &args, const Settings &shared, BlockState *local) {
    const u32 groups = gridDim.x / args.blocks, group = blockIdx.x / args.blocks;
    if (group >= groups) return;
    for (u32 row = group; row < args.rows; row += groups) {
        const Settings settings = args.flags & SETTINGS_PER_ROW ? settings_of(args, row) : shared;
        if (!settings.filtered(args.vocabulary)) continue;
        if (threadIdx.x == 0) local->count = 0, start_race(&local->low_race);
        const bool is_few = parts_of_block(args.blocks, settings.top_k);
        if (apart) is_few ? few_apart<T>(args, settings, local, row) : many_apart<T>(args, settings, local, row);
        else is_few ? filter_of<T>(args, settings, local, row).few() : filter_of<T>(args, settings, local, row).many();
        __syncthreads();
        if (threadIdx.x == 0) ++local->launches;
        __syncthreads();
    }
}
