// Rows with top-k or top-p: two or three passes by the blocks of a group, and no sort.
//
// First, blocks tell each other the maxima of parts of the row.
//   top-k up to three quarters of the number of parts: at least k logits are as large as the k-th largest maximum, so the few that
//   are become candidates, and the last block decides among them.
//   Otherwise a histogram over the distance from the maximum finds the bin in which the boundary lies; logits above the bin are kept,
//   those in the bin become candidates. First for top-k by counts, then for top-p by masses.

#pragma once

#include "rows.cuh"

// Where a scaled logit lies below the maximum: the same order, 1/64 of an unscaled logit wide.
__device__ __forceinline__ u32 bin_of(float scaled, float largest, float temperature) {
    if (scaled == largest) return 0;
    const float distance = (largest - scaled) * (64.0f * temperature);
    return distance < (float)(BINS - 1) ? (u32)distance : BINS - 1;
}

// ---- The last block: candidates ----------------------------------------------------------------------------------------------

// Calls `use(key, index)` for the candidates: those listed or, if there was no room, those of the row that are chosen.
template <class T, class Use> __device__ __forceinline__ void each_candidate(const Desk *desk, u32 count, u32 least, Use use) {
    if (count <= ROOM) {
        for (u32 at = threadIdx.x; at < count; at += THREADS)
            if ((u32)(desk->list[at] >> 32) >= least) use((u32)(desk->list[at] >> 32), (u32)desk->list[at]);
        return;
    }
    const Choice &choice = desk->choice;
    const Part<T> whole = {(const typename T::Element *)choice.row, 0, choice.vocabulary};
    whole.template each<1>([&](u32 index, float logit) {
        const float scaled = logit / choice.temperature;
        const u32 key = ordered(scaled);
        if (key < max(least, choice.least)) return;
        if (choice.bin == BINS || bin_of(scaled, choice.largest, choice.temperature) == choice.bin) use(key, index);
    });
}

__device__ __forceinline__ u32 block_or(Desk *desk, u32 bits) {
    bits = __reduce_or_sync(~0u, bits);
    __syncthreads();
    if (threadIdx.x % 32 == 0) desk->keys[threadIdx.x / 32] = bits;
    __syncthreads();
    return __reduce_or_sync(~0u, desk->keys[threadIdx.x % WARPS]);
}

// By one warp: the smallest digit that has candidates and no more than `most` before it, and what is before it.
__device__ __forceinline__ void last_digit_within(Desk *desk, u64 base, u64 most) {
    const u32 each = DIGITS / 32, greatest = DIGITS - 1 - threadIdx.x * each;
    u64 sums[each], sum = 0;
    for (u32 i = 0; i < each; ++i) sum += sums[i] = (u64)desk->high[greatest - i] << 32 | desk->low[greatest - i];
    u64 before = base + warp_sum_to(sum) - sum, before_digit = 0;
    u32 digit = DIGITS;
    for (u32 i = 0; i < each; before += sums[i++])
        if (sums[i] && before <= most) digit = greatest - i, before_digit = before;
    // Lanes go down: the last that found one has the smallest.
    const u32 found = __ballot_sync(~0u, digit != DIGITS);
    if (threadIdx.x == 31 - __clz(found)) desk->flag = digit, desk->base = before_digit;
}

// The smallest key of a candidate with no more than `most` before it: `base`, and the number or the masses of greater candidates.
// There is one: `base` is not above `most`. Keys below `least` are no candidates.
template <class T>
__device__ __noinline__ u32 smallest_within(Desk *desk, u32 count, u32 least, u64 base, u64 most, bool by_mass) {
    u32 zeros = 0, ones = 0;
    each_candidate<T>(desk, count, least, [&](u32 key, u32) { zeros |= ~key, ones |= key; });
    zeros = block_or(desk, zeros), ones = block_or(desk, ones);
    u32 prefix = ~zeros;
    const float largest = desk->choice.largest;
    for (int high = 31 - __clz(zeros & ones); high >= 0; high -= 8) {
        // The digit is bits `shift` to `high`; candidates still in question agree above it.
        const int shift = max(high - 7, 0);
        const u32 digits = 1u << (high - shift + 1), above = high == 31 ? 0 : ~0u << (high + 1);
        __syncthreads();
        if (threadIdx.x < DIGITS) desk->low[threadIdx.x] = desk->high[threadIdx.x] = 0;
        __syncthreads();
        each_candidate<T>(desk, count, least, [&](u32 key, u32) {
            if ((key ^ prefix) & above) return;
            const u32 digit = key >> shift & (digits - 1);
            add_shared(desk->low + digit, desk->high + digit, by_mass ? mass(number(key), largest) : 1);
        });
        __syncthreads();
        if (threadIdx.x < 32) last_digit_within(desk, base, most);
        __syncthreads();
        prefix = prefix & above | desk->flag << shift;
        base = desk->base;
    }
    __syncthreads();
    return prefix;
}

// ---- The blocks of a group ---------------------------------------------------------------------------------------------------

template <class T> struct Filter {
    const SampleArgs &args;
    Desk *desk;
    Board *board;
    u32 row, blocks, block, launch;
    Settings settings;
    Noise noise;
    Part<T> part;
    float largest;

    __device__ __forceinline__ float scaled(float logit) const { return logit / settings.temperature; }

    // Maxima are found before the division, which is monotone; but an infinite temperature makes infinite logits no numbers.
    __device__ __forceinline__ float early(float logit) const { return isinf(settings.temperature) ? scaled(logit) : logit; }
    __device__ __forceinline__ float late(float maximum) const {
        return isinf(settings.temperature) ? maximum : scaled(maximum);
    }

    __device__ __forceinline__ void leave_maximum(u32 at, u32 key) {
        if (blocks > 1) tell(board->told + at, launch, key);
        else desk->keys[at] = key;
    }

    // The maxima of parts of the row, from all blocks to all blocks, and how many there are. Nothing to draw from leaves `flag` 0.
    __device__ __forceinline__ u32 gather_maxima() {
        // Parts of a block: a power of two.
        u32 parts = 1;
        while (parts * blocks < MAXIMA) parts *= 2;
        const u32 size = THREADS / parts, lane = threadIdx.x % 32;
        u32 key = 0;
        part.template each<4>([&](u32, float logit) { key = max(key, ordered(early(logit))); });
        if (size < 32) {
            for (u32 offset = size / 2; offset; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
            if (lane % size == 0) leave_maximum(block * parts + threadIdx.x / size, key);
        } else {
            key = warp_max(key);
            if (lane == 0) desk->low[threadIdx.x / 32] = key;
            __syncthreads();
            if (threadIdx.x < 32) {
                key = desk->low[lane];
                for (u32 offset = size / 64; offset; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
                if (lane % (size / 32) == 0) leave_maximum(block * parts + lane / (size / 32), key);
            }
        }
        const u32 all = blocks * parts;
        if (threadIdx.x < SLOTS) {
            if (threadIdx.x >= all) desk->keys[threadIdx.x] = 0;
            else if (blocks > 1) desk->keys[threadIdx.x] = hear(board->told + threadIdx.x, launch);
        }
        __syncthreads();
        u32 top = 0;
        for (u32 at = lane; at < all; at += 32) top = max(top, desk->keys[at]);
        top = warp_max(top);
        largest = top ? late(number(top)) : 0.0f;
        if (threadIdx.x == 0) desk->flag = top != 0;
        __syncthreads();
        return all;
    }

    // The `rank`-th largest of the maxima: as many logits are at least as large. Four threads compare one with all.
    __device__ __forceinline__ u32 rank_maximum(u32 all, u32 rank) {
        if (threadIdx.x == 0) desk->threshold = ~0u;
        __syncthreads();
        const u32 at = threadIdx.x / 4, key = desk->keys[at];
        if (threadIdx.x / 32 * 8 < all) {
            u32 greater = 0;
            const uint4 *keys = (const uint4 *)desk->keys;
            for (u32 other = threadIdx.x % 4; other < (all + 3) / 4; other += 4) {
                const uint4 four = keys[other];
                greater += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
            }
            greater += __shfl_xor_sync(~0u, greater, 1);
            greater += __shfl_xor_sync(~0u, greater, 2);
            if (at < all && greater < rank && threadIdx.x % 4 == 0) atomicMin(&desk->threshold, key);
        }
        __syncthreads();
        return desk->threshold;
    }

    __device__ __forceinline__ u32 bin(float scaled) const { return bin_of(scaled, largest, settings.temperature); }

    __device__ __forceinline__ void clear_bins() {
        for (u32 at = threadIdx.x; at < BINS; at += THREADS) desk->low[at] = desk->high[at] = 0;
        __syncthreads();
    }

    // The first bin at whose end the running sum is more than `most_of(total)`, and the sum before it; BINS if there is none.
    template <class Bin, class Most> __device__ __forceinline__ void find_bin(Bin of, Most most_of) {
        const u32 each = BINS / THREADS, first = threadIdx.x * each;
        u64 bins[each], sum = 0;
        for (u32 i = 0; i < each; ++i) sum += bins[i] = of(first + i);
        u64 before = block_sum_before(sum, desk->scratch);
        if (threadIdx.x == 0) desk->bin = BINS;
        if (threadIdx.x == THREADS - 1) desk->limit = most_of(before + sum);
        __syncthreads();
        const u64 most = desk->limit;
        for (u32 i = 0; i < each; before += bins[i++])
            if (before <= most && before + bins[i] > most) desk->bin = first + i, desk->base = before;
        __syncthreads();
    }

    __device__ __forceinline__ void add_candidate(u32 key, u32 index) {
        const u32 at = atomicAdd(blocks > 1 ? &board->candidates : &desk->count, 1);
        if (at < ROOM) (blocks > 1 ? board->list : desk->list)[at] = (u64)key << 32 | index;
    }

    // In the last block: the candidates, from the board to the desk, and which they are; how many there are.
    __device__ __forceinline__ u32 take_candidates(u32 least, u32 chosen_bin) {
        if (blocks > 1) {
            // Most often they are fewer than threads: both loads at once.
            const u64 first = look(board->list + threadIdx.x);
            const u32 count = look(&board->candidates);
            if (threadIdx.x < count) desk->list[threadIdx.x] = first;
            for (u32 at = THREADS + threadIdx.x; at < min(count, ROOM); at += THREADS) desk->list[at] = look(board->list + at);
            __syncthreads();
            if (threadIdx.x == 0) desk->count = count, board->candidates = 0;
        }
        if (threadIdx.x == 0) desk->choice = {part.row, args.vocabulary, least, chosen_bin, settings.temperature, largest};
        __syncthreads();
        return desk->count;
    }

    // Enters the candidates with a key of at least `least`.
    __device__ __forceinline__ void enter_candidates(u32 count, u32 least) {
        each_candidate<T>(desk, count, least, [&](u32 key, u32 index) { enter_scaled(number(key), index); });
    }

    // Computes the score only if it may win.
    __device__ __forceinline__ void enter_scaled(float scaled, u32 index) {
        const u32 word = noise.word(index);
        if (may_win(&desk->low_race, scaled, gumbel_estimate(word))) enter(&desk->low_race, scaled, 1.0f, word, index);
    }

    // In the last block of a row, when all have entered.
    __device__ __forceinline__ void finish() {
        __syncthreads();
        if (threadIdx.x) return;
        u64 best = desk->low_race.best;
        if (blocks > 1) best = max(best, look(&board->best)), board->best = 0;
        store(args, row, best);
        ++board->launches;
    }

    // Candidates that surely include what top-k keeps: everything that is left to do.
    __device__ __forceinline__ void decide_all(u32 count) {
        if (count <= THREADS / 8) return decide_few(count);
        u32 least = settings.top_k < count ? smallest_within<T>(desk, count, 1, 0, settings.top_k - 1, false) : 1;
        if (settings.top_p < 1.0f) {
            u64 total = 0;
            each_candidate<T>(desk, count, least, [&](u32 key, u32) { total += mass(number(key), largest); });
            total = block_sum(total, desk->scratch);
            least = smallest_within<T>(desk, count, least, 0, limit(settings.top_p, total), true);
        }
        enter_candidates(count, least);
        finish();
    }

    // Of few candidates each is compared with all: eight threads for one.
    __device__ __forceinline__ void decide_few(u32 count) {
        if (threadIdx.x < count) {
            const u64 mine = mass(number((u32)(desk->list[threadIdx.x] >> 32)), largest);
            desk->low[threadIdx.x] = (u32)mine, desk->high[threadIdx.x] = mine >> 32;
        }
        __syncthreads();
        const u32 at = threadIdx.x / 8;
        bool mine = false;
        u64 before = 0, weight = 0;
        if (threadIdx.x / 32 * 4 < count) {
            const u32 key = at < count ? (u32)(desk->list[at] >> 32) : ~0u;
            u32 greater = 0;
            for (u32 other = threadIdx.x % 8; other < count; other += 8)
                if ((u32)(desk->list[other] >> 32) > key)
                    ++greater, before += (u64)desk->high[other] << 32 | desk->low[other];
            for (int offset = 1; offset < 8; offset *= 2)
                greater += __shfl_xor_sync(~0u, greater, offset), before += __shfl_xor_sync(~0u, before, offset);
            mine = at < count && greater < settings.top_k && threadIdx.x % 8 == 0;
            if (mine) weight = (u64)desk->high[at] << 32 | desk->low[at];
        }
        const u64 most = limit(settings.top_p, block_sum(weight, desk->scratch));
        if (mine && before <= most) enter_scaled(number((u32)(desk->list[at] >> 32)), (u32)desk->list[at]);
        finish();
    }

    // Top-k with a k so small that the maxima bound it.
    __device__ __forceinline__ void few(u32 maxima) {
        const u32 bound = rank_maximum(maxima, settings.top_k);
        const float least = bound ? late(number(bound)) : 0.0f;
        const u32 least_key = bound ? ordered(least) : 1;
        // What is much below the bound need not be divided. Near zero, division may round much away.
        const float maximum = bound ? number(bound) : 0.0f;
        const float near = fabsf(least) > 1e-30f && !isinf(settings.temperature) ? maximum - fabsf(maximum) * 1e-6f
                                                                                    : __int_as_float(0xff800000);
        part.template each<1>([&](u32 index, float logit) {
            if (!(logit >= near)) return;
            const u32 key = ordered(scaled(logit));
            if (key >= least_key) add_candidate(key, index);
        });
        if (!last_to_arrive(board->arrived, blocks, &desk->flag)) return;
        decide_all(take_candidates(least_key, BINS));
    }

    // The smallest scaled logit that top-k keeps, as a key, in all blocks.
    __device__ __noinline__ u32 kth_largest() {
        clear_bins();
        part.template each<1>([&](u32, float logit) {
            const float scaled = this->scaled(logit);
            if (scaled == scaled) atomicAdd(desk->low + bin(scaled), 1);
        });
        __syncthreads();
        u32 *counts = desk->low;
        if (blocks > 1) {
            counts = board->counts;
            for (u32 at = threadIdx.x; at < BINS; at += THREADS)
                if (desk->low[at]) atomicAdd(counts + at, desk->low[at]);
            meet(board->arrived + 1, blocks);
        }
        const u32 most = settings.top_k - 1;
        find_bin([=](u32 at) { return (u64)look(counts + at); }, [=](u64) { return (u64)most; });
        // Fewer numbers than k leave no bin: all are kept.
        const u32 chosen_bin = desk->bin;
        const u64 above = desk->base;
        part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            if (scaled == scaled && bin(scaled) == chosen_bin) add_candidate(ordered(scaled), index);
        });
        if (last_to_arrive(board->arrived + 2, blocks, &desk->flag)) {
            u32 key = 1;
            if (chosen_bin < BINS)
                key = smallest_within<T>(desk, take_candidates(1, chosen_bin), 1, above, settings.top_k - 1, false);
            if (blocks > 1) {
                for (u32 at = threadIdx.x; at < BINS; at += THREADS) counts[at] = 0;
                __syncthreads();
                if (threadIdx.x == 0) __threadfence(), tell(&board->found, launch, key);
            }
            if (threadIdx.x == 0) desk->threshold = key, desk->count = 0;
        } else if (threadIdx.x == 0) {
            desk->threshold = hear(&board->found, launch);
            __threadfence();
        }
        __syncthreads();
        return desk->threshold;
    }

    // The masses of what is at least `least`, per bin, over all blocks; then the bin in which top-p ends.
    __device__ __forceinline__ void weigh(u32 least) {
        clear_bins();
        part.template each<1>([&](u32, float logit) {
            const float scaled = this->scaled(logit);
            if (ordered(scaled) < least) return;
            const u64 weight = mass(scaled, largest);
            const u32 at = bin(scaled);
            if (weight) add_shared(desk->low + at, desk->high + at, weight);
        });
        __syncthreads();
        const float top_p = settings.top_p;
        const auto most = [=](u64 total) { return limit(top_p, total); };
        if (blocks == 1) return find_bin([&](u32 at) { return (u64)desk->high[at] << 32 | desk->low[at]; }, most);
        u64 *masses = board->masses[board->nuclei % 2], *next = board->masses[(board->nuclei + 1) % 2];
        for (u32 at = threadIdx.x; at < BINS; at += THREADS) {
            const u64 sum = (u64)desk->high[at] << 32 | desk->low[at];
            if (sum) atomicAdd(masses + at, sum);
            if (at % blocks == block) next[at] = 0;
        }
        meet(board->arrived + 3, blocks);
        find_bin([=](u32 at) { return look(masses + at); }, most);
    }

    // Everything that is at least `least` and above the bin enters; what is in the bin becomes a candidate.
    __device__ __forceinline__ void enter_above(u32 least, u32 chosen_bin) {
        part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            const u32 key = ordered(scaled);
            if (key < least) return;
            const u32 at = chosen_bin == BINS ? 0 : bin(scaled);
            if (at < chosen_bin) enter_scaled(scaled, index);
            else if (at == chosen_bin) add_candidate(key, index);
        });
        if (blocks == 1) return;
        __syncthreads();
        if (threadIdx.x == 0 && desk->low_race.best) atomicMax(&board->best, desk->low_race.best);
    }

    // Top-p, over what is at least `least`.
    __device__ __noinline__ void nucleus(u32 least) {
        weigh(least);
        const u32 chosen_bin = desk->bin;
        const u64 above = desk->base, most = desk->limit;
        enter_above(least, chosen_bin);
        if (!last_to_arrive(board->arrived, blocks, &desk->flag)) return;
        const u32 count = take_candidates(least, chosen_bin);
        enter_candidates(count, smallest_within<T>(desk, count, least, above, most, true));
        if (threadIdx.x == 0) ++board->nuclei;
        finish();
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) desk->count = 0, start_race(&desk->low_race);
        const u32 maxima = gather_maxima();
        if (!desk->flag) {
            // Nothing in the row is a number.
            if (last_to_arrive(board->arrived, blocks, &desk->flag)) finish();
            return;
        }
        const bool top_k = settings.top_k < args.vocabulary;
        if (top_k && settings.top_k <= maxima / 4 * 3) return few(maxima);
        const u32 least = top_k ? kth_largest() : 1;
        if (settings.top_p < 1.0f) return nucleus(least);
        enter_above(least, BINS);
        if (last_to_arrive(board->arrived, blocks, &desk->flag)) finish();
    }
};

template <class T> __device__ __forceinline__ void filter_rows(const SampleArgs &args, Desk *desk) {
    const u32 groups = gridDim.x / args.blocks, group = blockIdx.x / args.blocks, block = blockIdx.x % args.blocks;
    if (group >= groups) return;
    for (u32 row = group; row < args.rows; row += groups) {
        const Settings settings = settings_of(args, row);
        if (!settings.filtered(args.vocabulary)) continue;
        Board *board = args.boards + group;
        const typename T::Element *logits = (const typename T::Element *)args.logits + row * args.stride;
        // Shares start at multiples of eight elements, so that loads can be wide.
        const u32 share = ((args.vocabulary + args.blocks - 1) / args.blocks + 7) / 8 * 8;
        const u32 begin = min(args.vocabulary, block * share), end = min(args.vocabulary, begin + share);
        const u32 launch = look(&board->launches) + 1;
        Filter<T>{args, desk, board, row, args.blocks, block, launch, settings, noise_of(args, row), {logits, begin, end}, 0.0f}
            .run();
        __syncthreads();
    }
}
