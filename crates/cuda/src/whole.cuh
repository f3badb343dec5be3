// Rows that are drawn from whole, or greedily: one pass.
//
// Every block takes a share of all the pairs of words of noise, so that each pair is made once, whichever rows its words belong to.
// Scores are estimated first; only those that may win are computed. Blocks leave the best contender of each row they touched;
// the last block to arrive stores the tokens.

#pragma once

#include "rows.cuh"

// A row, or nothing where `wanted` is false.
template <class T> struct Side {
    const typename T::Element *logits;
    float temperature, rate;
    u32 row, index;
    bool wanted;

    // From the element at `at` of all rows on.
    __device__ __forceinline__ Side(const SampleArgs &args, u32 at) {
        row = at / args.vocabulary, index = at - row * args.vocabulary;
        const Settings settings = settings_of(args, row);
        logits = (const typename T::Element *)args.logits + row * args.stride + index;
        temperature = settings.greedy() ? 0.0f : settings.temperature;
        rate = settings.greedy() ? 1.0f : 1.0f / settings.temperature;
        wanted = !settings.filtered(args.vocabulary);
    }

    __device__ __forceinline__ float load(u32 at) const { return T::widen(__ldg(logits + at)); }
    __device__ __forceinline__ bool greedy() const { return temperature == 0.0f; }

    // Raises the bar to what this logit surely reaches; of the threads of a warp, one does.
    __device__ __forceinline__ void raise(Race *race, bool is_there, float logit, u32 word) const {
        const float scaled = logit * rate;
        const float sure = scaled + gumbel_estimate(word) - slack(scaled);
        // Where there is no estimate there is no bar: infinite noise, infinite or no logits.
        const u32 mine = greedy() ? ordered(logit) : fabsf(sure) < 1e30f ? ordered(sure) : 0;
        const u32 key = warp_max(is_there ? mine : 0);
        if (threadIdx.x % 32 == 0) atomicMax(&race->bar, key);
    }

    __device__ __forceinline__ void run(Race *race, float logit, u32 word, u32 at) const {
        const bool may = greedy() ? !(ordered(logit) < look(&race->bar)) : may_win(race, logit * rate, gumbel_estimate(word));
        if (may) enter(race, logit, temperature, word, index + at);
    }
};

// `count` pairs of words from `pair` on: their lower words belong to one row, their upper ones to another or the same.
template <class T>
__device__ __forceinline__ void draw_pairs(const SampleArgs &args, Desk *desk, const Stream &stream, u32 pair, u32 count,
                                           const Side<T> &low, const Side<T> &high) {
    Race *low_race = &desk->low_race, *high_race = low.row == high.row ? low_race : &desk->high_race;
    const bool noisy = !(low.greedy() && high.greedy());
    __syncthreads();
    if (threadIdx.x == 0) start_race(low_race), start_race(high_race);
    __syncthreads();
    float low_logit = 0, high_logit = 0;
    Words words = {0, 0};
    const bool is_there = threadIdx.x < count;
    if (is_there) {
        low_logit = low.load(threadIdx.x), high_logit = high.load(threadIdx.x);
        if (noisy) words = stream.pair(pair + threadIdx.x);
    }
    low.raise(low_race, is_there, low_logit, words.low);
    high.raise(high_race, is_there, high_logit, words.high);
    __syncthreads();
    for (u32 at = threadIdx.x; at < count;) {
        const u32 next = at + THREADS;
        float next_low = 0, next_high = 0;
        if (next < count) next_low = low.load(next), next_high = high.load(next);
        low.run(low_race, low_logit, words.low, at);
        high.run(high_race, high_logit, words.high, at);
        at = next, low_logit = next_low, high_logit = next_high;
        if (noisy) words = stream.pair(pair + at);
    }
    __syncthreads();
    if (threadIdx.x == 0 && low.wanted && low_race->best) atomicMax(args.best + low.row, low_race->best);
    if (threadIdx.x == 0 && high.wanted && high_race != low_race && high_race->best)
        atomicMax(args.best + high.row, high_race->best);
}

// The share of this block in all the pairs of words, cut where rows end.
template <class T> __device__ __forceinline__ void draw_whole_rows(const SampleArgs &args, Desk *desk) {
    const u32 vocabulary = args.vocabulary;
    const bool alone = args.flags & 8;
    const u32 count = alone ? vocabulary : args.rows * vocabulary, per_stream = count - count / 2;
    const u32 all = per_stream * (alone ? args.rows : 1), share = (all + gridDim.x - 1) / gridDim.x;
    const u32 end = min(all, (blockIdx.x + 1) * share);
    for (u32 at = blockIdx.x * share, length; at < end; at += length) {
        const u32 first = at / per_stream * count, pair = at % per_stream;
        const Side<T> low(args, first + pair);
        const Stream stream = noise_of(args, low.row).stream;
        if (pair == stream.half()) {
            // The middle of an odd count has no partner.
            length = 1;
            if (threadIdx.x == 0 && low.wanted) {
                start_race(&desk->low_race);
                enter(&desk->low_race, low.load(0), low.temperature, stream.middle(), low.index);
                atomicMax(args.best + low.row, desk->low_race.best);
            }
            continue;
        }
        const Side<T> high(args, first + pair + per_stream);
        length = min(min(end - at, stream.half() - pair), vocabulary - max(low.index, high.index));
        if (low.wanted || high.wanted) draw_pairs<T>(args, desk, stream, pair, length, low, high);
    }
    if (!last_to_arrive(args.arrived, gridDim.x, &desk->flag)) return;
    for (u32 row = threadIdx.x; row < args.rows; row += THREADS) {
        if (args.flags & 7 && settings_of(args, row).filtered(vocabulary)) continue;
        store(args, row, look(args.best + row));
        args.best[row] = 0;
    }
}
