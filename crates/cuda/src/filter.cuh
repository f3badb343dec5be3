// Rows with top-k or top-p: two or three passes by the blocks of a group, and no sort.
//
// First, blocks tell each other the maxima of parts of the row.
//   top-k up to three quarters of the number of parts: at least k logits are as large as the k-th largest maximum, so the few that
//   are become candidates, and the last block decides among them.
//   Otherwise a histogram over the distance from the maximum finds the bin in which the boundary lies; logits above the bin are kept,
//   those in the bin become candidates. First for top-k by counts, then for top-p by masses.

#pragma once

#include "rows.cuh"

template <class T> struct Filter {
    const SampleArgs &args;
    Desk *desk;
    Board *board;
    u32 row, blocks, block, launch;
    Settings settings;
    Noise noise;
    Part<T> part, whole;
    float largest;

    __device__ float scaled(float logit) const { return logit / settings.temperature; }
    __device__ __noinline__ u64 contender_of(float scaled, u32 index) const { return contender(scaled + gumbel(noise.word(index)), index); }

    // The maxima of parts of the row, from all blocks to all blocks, and how many there are. `parts` per block, a power of two.
    __device__ u32 gather_maxima() {
        u32 parts = 1;
        while (parts * blocks < MAXIMA) parts *= 2;
        const u32 size = THREADS / parts, lanes = min(size, 32u), lane = threadIdx.x % 32;
        u32 key = 0;
        part.template each<4>([&](u32, float logit) { key = max(key, ordered(logit)); });
        for (u32 offset = lanes / 2; offset; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
        if (size > 32) {
            u32 *warps = desk->low;
            if (lane == 0) warps[threadIdx.x / 32] = key;
            __syncthreads();
            if (threadIdx.x < 32) {
                key = warps[lane];
                for (u32 offset = size / 64; offset; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
                if (lane % (size / 32) == 0) leave_maximum(block * parts + lane / (size / 32), key);
            }
        } else if (lane % size == 0) {
            leave_maximum(block * parts + threadIdx.x / size, key);
        }
        const u32 all = blocks * parts;
        if (blocks > 1)
            for (u32 at = threadIdx.x; at < all; at += THREADS) desk->keys[at] = hear(board->told + at, launch);
        __syncthreads();
        u32 top = 0;
        for (u32 at = threadIdx.x % 32; at < all; at += 32) top = max(top, desk->keys[at]);
        for (u32 offset = 16; offset; offset /= 2) top = max(top, __shfl_xor_sync(~0u, top, offset));
        largest = top ? scaled(number(top)) : 0.0f;
        desk->flag = top != 0;
        __syncthreads();
        return all;
    }

    __device__ void leave_maximum(u32 at, u32 key) {
        if (blocks > 1) tell(board->told + at, launch, key);
        else desk->keys[at] = key;
    }

    // The `rank`-th largest of the maxima: as many logits are at least as large.
    __device__ u32 rank_maximum(u32 all, u32 rank) {
        if (threadIdx.x == 0) desk->threshold = ~0u;
        __syncthreads();
        for (u32 at = threadIdx.x / 4; at < (all + THREADS / 4 - 1) / (THREADS / 4) * (THREADS / 4); at += THREADS / 4) {
            const u32 key = at < all ? desk->keys[at] : 0;
            u32 greater = 0;
            for (u32 other = threadIdx.x % 4; other < all; other += 4) greater += desk->keys[other] > key;
            greater += __shfl_xor_sync(~0u, greater, 1);
            greater += __shfl_xor_sync(~0u, greater, 2);
            if (at < all && greater < rank && threadIdx.x % 4 == 0) atomicMin(&desk->threshold, key);
        }
        __syncthreads();
        return desk->threshold;
    }

    // Where a scaled logit lies below the maximum: the same order, 1/64 of an unscaled logit wide.
    __device__ u32 bin(float scaled) const {
        if (scaled == largest) return 0;
        const float distance = (largest - scaled) * (64.0f * settings.temperature);
        return distance < (float)(BINS - 1) ? (u32)distance : BINS - 1;
    }

    __device__ void clear_bins() {
        for (u32 at = threadIdx.x; at < BINS; at += THREADS) desk->low[at] = desk->high[at] = 0;
        __syncthreads();
    }

    // The first bin at whose end the running sum is more than `most_of(total)`, and the sum before it; BINS if there is none.
    template <class Bin, class Most> __device__ void find_bin(Bin of, Most most_of) {
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

    __device__ void add_candidate(u32 key, u32 index) {
        u32 *count = blocks > 1 ? &board->candidates : &desk->count;
        const u32 at = atomicAdd(count, 1);
        if (at < ROOM) (blocks > 1 ? board->list : desk->list)[at] = (u64)key << 32 | index;
    }

    // In the last block: the candidates, from the board to the desk; how many there are.
    __device__ u32 take_candidates() {
        if (blocks > 1) {
            const u32 count = *(volatile u32 *)&board->candidates;
            for (u32 at = threadIdx.x; at < min(count, ROOM); at += THREADS) desk->list[at] = look(board->list + at);
            __syncthreads();
            if (threadIdx.x == 0) desk->count = count, board->candidates = 0;
        }
        __syncthreads();
        return desk->count;
    }

    // Calls `use(key, index)` for the candidates: those listed or, if there was no room, whatever of the row is `chosen(scaled)`.
    template <class Chosen, class Use> __device__ void each_candidate(u32 count, Chosen chosen, Use use) const {
        if (count <= ROOM) {
            for (u32 at = threadIdx.x; at < count; at += THREADS) use((u32)(desk->list[at] >> 32), (u32)desk->list[at]);
        } else {
            whole.template each<1>([&](u32 index, float logit) {
                const float scaled = this->scaled(logit);
                if (chosen(scaled)) use(ordered(scaled), index);
            });
        }
    }

    // The smallest key of a candidate with no more than `most` before it: `base` and the weights of greater candidates. There is
    // one: `base` is not above `most`. Keys below `least` are no candidates.
    template <class Chosen, class Weight>
    __device__ u32 smallest_within(u32 count, Chosen chosen, u32 least, u64 base, u64 most, Weight weight) {
        u32 ones = ~0u, any = 0;
        each_candidate(count, chosen, [&](u32 key, u32) {
            if (key >= least) ones &= key, any |= key;
        });
        ones = ~(u32)block_or(~ones), any = (u32)block_or(any);
        u32 prefix = ones & any;
        for (int high = 31 - __clz(ones ^ any); high >= 0; high -= 8) {
            // The digit is bits `shift` to `high`; candidates still in question agree above it.
            const int shift = max(high - 7, 0);
            const u32 digits = 1u << (high - shift + 1), above = high == 31 ? 0 : ~0u << (high + 1);
            if (threadIdx.x < DIGITS) desk->low[threadIdx.x] = desk->high[threadIdx.x] = 0;
            __syncthreads();
            each_candidate(count, chosen, [&](u32 key, u32) {
                if (key < least || (key ^ prefix) & above) return;
                const u32 digit = key >> shift & (digits - 1);
                add_shared(desk->low + digit, desk->high + digit, weight(key));
            });
            __syncthreads();
            if (threadIdx.x < 32) last_digit_within(base, most);
            __syncthreads();
            prefix = prefix & above | desk->flag << shift;
            base = desk->base;
            __syncthreads();
        }
        return prefix;
    }

    // By one warp: the smallest digit that has candidates and no more than `most` before it, and what is before it.
    __device__ void last_digit_within(u64 base, u64 most) {
        const u32 each = DIGITS / 32, greatest = DIGITS - 1 - threadIdx.x * each;
        u64 sums[each], sum = 0;
        for (u32 i = 0; i < each; ++i) sum += sums[i] = (u64)desk->high[greatest - i] << 32 | desk->low[greatest - i];
        u64 before = sum;
        for (u32 offset = 1; offset < 32; offset *= 2) {
            const u64 greater = __shfl_up_sync(~0u, before, offset);
            if (threadIdx.x >= offset) before += greater;
        }
        before += base - sum;
        u32 digit = DIGITS;
        u64 before_digit = 0;
        for (u32 i = 0; i < each; before += sums[i++])
            if (sums[i] && before <= most) digit = greatest - i, before_digit = before;
        // Lanes go down: the last that found one has the smallest.
        const u32 found = __ballot_sync(~0u, digit != DIGITS);
        if (threadIdx.x == 31 - __clz(found)) desk->flag = digit, desk->base = before_digit;
    }

    __device__ u32 block_or(u32 bits) {
        bits = __reduce_or_sync(~0u, bits);
        __syncthreads();
        if (threadIdx.x % 32 == 0) desk->keys[threadIdx.x / 32] = bits;
        __syncthreads();
        return __reduce_or_sync(~0u, desk->keys[threadIdx.x % WARPS]);
    }

    // The largest contender among the candidates with a key of at least `least`.
    template <class Chosen> __device__ u64 best_candidate(u32 count, Chosen chosen, u32 least) {
        u64 best = 0;
        each_candidate(count, chosen, [&](u32 key, u32 index) {
            if (key >= least) best = max(best, contender_of(number(key), index));
        });
        return block_max(best, desk->scratch);
    }

    // In the last block of a row, when all is known.
    __device__ void finish(u64 best) {
        if (threadIdx.x) return;
        if (blocks > 1) best = max(best, look(&board->best)), board->best = 0;
        store(args, row, best);
    }

    // Candidates that surely include what top-k keeps: everything that is left to do.
    template <class Chosen> __device__ void decide_all(u32 count, Chosen chosen) {
        if (count <= MAXIMA) return decide_few(count);
        const u32 t = settings.top_k < count
            ? smallest_within(count, chosen, 0, 0, settings.top_k - 1, [](u32) { return 1ull; }) : 1;
        u32 least = t;
        if (settings.top_p < 1.0f) {
            u64 total = 0;
            each_candidate(count, chosen, [&](u32 key, u32) { if (key >= t) total += mass(number(key), largest); });
            total = block_sum(total, desk->scratch);
            const float largest = this->largest;
            least = smallest_within(count, chosen, t, 0, limit(settings.top_p, total),
                                    [=](u32 key) { return mass(number(key), largest); });
        }
        finish(best_candidate(count, chosen, least));
    }

    // Of few candidates each is compared with all: eight threads for one.
    __device__ void decide_few(u32 count) {
        if (threadIdx.x < count) {
            const u64 mine = mass(number((u32)(desk->list[threadIdx.x] >> 32)), largest);
            desk->low[threadIdx.x] = (u32)mine, desk->high[threadIdx.x] = mine >> 32;
        }
        __syncthreads();
        const u32 at = threadIdx.x / 8;
        const u32 key = at < count ? (u32)(desk->list[at] >> 32) : ~0u;
        u32 greater = 0;
        u64 before = 0;
        for (u32 other = threadIdx.x % 8; other < count; other += 8)
            if ((u32)(desk->list[other] >> 32) > key)
                ++greater, before += (u64)desk->high[other] << 32 | desk->low[other];
        for (int offset = 1; offset < 8; offset *= 2)
            greater += __shfl_xor_sync(~0u, greater, offset), before += __shfl_xor_sync(~0u, before, offset);
        const bool mine = at < count && greater < settings.top_k && threadIdx.x % 8 == 0;
        const u64 total = block_sum(mine ? (u64)desk->high[at] << 32 | desk->low[at] : 0, desk->scratch);
        u64 best = 0;
        if (mine && before <= limit(settings.top_p, total)) best = contender_of(number(key), (u32)desk->list[at]);
        finish(block_max(best, desk->scratch));
    }

    // Top-k with a k so small that the maxima bound it.
    __device__ void few(u32 maxima) {
        const u32 bound = rank_maximum(maxima, settings.top_k);
        const float least = bound ? scaled(number(bound)) : 0;
        const auto chosen = [=](float scaled) { return bound ? scaled >= least : scaled == scaled; };
        part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            if (chosen(scaled)) add_candidate(ordered(scaled), index);
        });
        if (!last_to_arrive(board->arrived, blocks, &desk->flag)) return;
        decide_all(take_candidates(), chosen);
        leave();
    }

    // The smallest scaled logit that top-k keeps, as a key, in all blocks.
    __device__ u32 kth_largest() {
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
        find_bin([=](u32 at) { return (u64)*(volatile u32 *)(counts + at); }, [=](u64) { return settings.top_k - 1; });
        const u32 chosen_bin = desk->bin;
        // Fewer numbers than k: all are kept.
        if (chosen_bin == BINS) return meet_after_counts(), 1;
        const u64 above = desk->base;
        const auto chosen = [=](float scaled) { return scaled == scaled && bin(scaled) == chosen_bin; };
        part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            if (chosen(scaled)) add_candidate(ordered(scaled), index);
        });
        if (last_to_arrive(board->arrived + 2, blocks, &desk->flag)) {
            const u32 count = take_candidates();
            const u32 key = smallest_within(count, chosen, 0, above, settings.top_k - 1, [](u32) { return 1ull; });
            if (blocks > 1) {
                for (u32 at = threadIdx.x; at < BINS; at += THREADS) board->counts[at] = 0;
                __threadfence();
                __syncthreads();
                if (threadIdx.x == 0) tell(&board->found, launch, key);
            }
            if (threadIdx.x == 0) desk->threshold = key, desk->count = 0;
        } else if (threadIdx.x == 0) {
            desk->threshold = hear(&board->found, launch);
            __threadfence();
        }
        __syncthreads();
        return desk->threshold;
    }

    // The counts are read by all blocks before the last clears them.
    __device__ void meet_after_counts() {
        if (blocks == 1) return;
        if (last_to_arrive(board->arrived + 2, blocks, &desk->flag)) {
            for (u32 at = threadIdx.x; at < BINS; at += THREADS) board->counts[at] = 0;
        }
    }

    // Top-p over what is at least `least`: masses per bin, then candidates of one bin.
    __device__ void nucleus(u32 least) {
        clear_bins();
        part.template each<1>([&](u32, float logit) {
            const float scaled = this->scaled(logit);
            if (ordered(scaled) < least) return;
            const u64 weight = mass(scaled, largest);
            const u32 at = bin(scaled);
            if (weight) add_shared(desk->low + at, desk->high + at, weight);
        });
        __syncthreads();
        u64 *masses = board->masses[board->nuclei % 2];
        if (blocks > 1) {
            u64 *next = board->masses[(board->nuclei + 1) % 2];
            for (u32 at = threadIdx.x; at < BINS; at += THREADS) {
                const u64 sum = (u64)desk->high[at] << 32 | desk->low[at];
                if (sum) atomicAdd(masses + at, sum);
                if (at % blocks == block) next[at] = 0;
            }
            meet(board->arrived + 3, blocks);
        }
        const auto of = [&](u32 at) {
            return blocks > 1 ? look(masses + at) : (u64)desk->high[at] << 32 | desk->low[at];
        };
        find_bin(of, [=](u64 total) { return limit(settings.top_p, total); });
        const u32 chosen_bin = desk->bin;
        const u64 above = desk->base, most = desk->limit;
        const auto chosen = [=](float scaled) { return ordered(scaled) >= least && bin(scaled) == chosen_bin; };
        u64 best = 0;
        part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            const u32 key = ordered(scaled);
            if (key < least) return;
            const u32 at = bin(scaled);
            if (at < chosen_bin) best = max(best, contender_of(scaled, index));
            else if (at == chosen_bin) add_candidate(key, index);
        });
        best = block_max(best, desk->scratch);
        if (blocks > 1 && threadIdx.x == 0 && best) atomicMax(&board->best, best);
        if (!last_to_arrive(board->arrived, blocks, &desk->flag)) return;
        const u32 count = take_candidates();
        const float largest = this->largest;
        const u32 key = smallest_within(count, chosen, least, above, most, [=](u32 key) { return mass(number(key), largest); });
        finish(max(best, best_candidate(count, chosen, key)));
        if (threadIdx.x == 0) ++board->nuclei;
        leave();
    }

    // Everything that is at least `least`.
    __device__ void all_from(u32 least) {
        u64 best = 0;
        part.template each<1>([&](u32 index, float logit) {
            const float scaled = this->scaled(logit);
            if (ordered(scaled) >= least) best = max(best, contender_of(scaled, index));
        });
        best = block_max(best, desk->scratch);
        if (blocks > 1 && threadIdx.x == 0 && best) atomicMax(&board->best, best);
        if (!last_to_arrive(board->arrived, blocks, &desk->flag)) return;
        finish(best);
        leave();
    }

    __device__ void leave() {
        if (threadIdx.x == 0) ++board->launches;
    }

    __device__ void run() {
        if (threadIdx.x == 0) desk->count = 0;
        const u32 maxima = gather_maxima();
        if (!desk->flag) {
            // Nothing in the row is a number.
            if (last_to_arrive(board->arrived, blocks, &desk->flag)) finish(0), leave();
            return;
        }
        const bool top_k = settings.top_k < args.vocabulary;
        if (top_k && settings.top_k <= maxima / 4 * 3) return few(maxima);
        const u32 least = top_k ? kth_largest() : 1;
        if (settings.top_p < 1.0f) nucleus(least);
        else all_from(least);
    }
};

template <class T> __device__ void filter_rows(const SampleArgs &args, Desk *desk) {
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
        const u32 launch = *(volatile u32 *)&board->launches + 1;
        Filter<T>{args, desk, board, row, args.blocks, block, launch, settings, noise_of(args, row),
                  {logits, begin, end}, {logits, 0, args.vocabulary}, 0.0f}.run();
        __syncthreads();
    }
}
