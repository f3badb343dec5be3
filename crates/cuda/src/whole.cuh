// Rows that are drawn from whole, or greedily: one pass.
//
// Every block takes a share of all the pairs of words of noise, so that each pair is made once, whichever rows its words belong to.
// It leaves the best contender of each row it touched; the last block to arrive stores the tokens.

#pragma once

#include "rows.cuh"

struct Row {
    Settings settings;
    u32 row;
    bool wanted;
};

__device__ Row row_of(const SampleArgs &args, u32 row) {
    const Settings settings = settings_of(args, row);
    return {settings, row, !settings.filtered(args.vocabulary)};
}

// A contender so far: threads see rising indices, so the first of equals stays.
struct Best {
    float score;
    u32 index;
    bool any;

    __device__ void offer(float offered, u32 at) {
        if (offered > score || (!any && offered == offered)) score = offered, index = at, any = true;
    }
    __device__ u64 contender() const { return any ? ::contender(score, index) : 0; }
};

__device__ __forceinline__ float score(const Row &row, float logit, u32 word) {
    return row.settings.greedy() ? logit : logit / row.settings.temperature + gumbel(word);
}

// `count` pairs of words from `pair` on: their lower words belong to `low` from `low_index` on, their upper ones to `high`.
template <class T>
__device__ void draw_pairs(const SampleArgs &args, Desk *desk, const Stream &stream, u64 pair, u32 count, const Row &low,
                           u32 low_index, const Row &high, u32 high_index) {
    const typename T::Element *logits = (const typename T::Element *)args.logits;
    const typename T::Element *lows = logits + low.row * args.stride + low_index;
    const typename T::Element *highs = logits + high.row * args.stride + high_index;
    const bool noisy = !(low.settings.greedy() && high.settings.greedy());
    Best best_low = {0, 0, false}, best_high = {0, 0, false};
#pragma unroll 2
    for (u32 at = threadIdx.x; at < count; at += THREADS) {
        const float low_logit = T::widen(__ldg(lows + at)), high_logit = T::widen(__ldg(highs + at));
        const Words words = noisy ? stream.pair(pair + at) : Words{0, 0};
        best_low.offer(score(low, low_logit, words.low), low_index + at);
        best_high.offer(score(high, high_logit, words.high), high_index + at);
    }
    u64 low_best = best_low.contender(), high_best = best_high.contender();
    if (low.row == high.row) low_best = max(low_best, high_best), high_best = 0;
    low_best = block_max(low_best, desk->scratch);
    if (threadIdx.x == 0 && low.wanted) atomicMax(args.best + low.row, low_best);
    if (low.row == high.row) return;
    high_best = block_max(high_best, desk->scratch);
    if (threadIdx.x == 0 && high.wanted) atomicMax(args.best + high.row, high_best);
}

// The share of this block in all the pairs of words, cut where rows end.
template <class T> __device__ void draw_whole_rows(const SampleArgs &args, Desk *desk) {
    const u32 vocabulary = args.vocabulary;
    const bool alone = args.flags & 8;
    const u64 count = alone ? vocabulary : (u64)args.rows * vocabulary, per_stream = count - count / 2;
    const u64 all = per_stream * (alone ? args.rows : 1), share = (all + gridDim.x - 1) / gridDim.x;
    const u64 end = min(all, (blockIdx.x + 1) * share);
    for (u64 at = blockIdx.x * share, length; at < end; at += length) {
        const u64 first = at / per_stream * count, pair = at % per_stream;
        const u64 low = first + pair, high = low + per_stream;
        const Row low_row = row_of(args, low / vocabulary);
        const Stream stream = noise_of(args, low_row.row).stream;
        if (pair == stream.half()) {
            // The middle of an odd count has no partner.
            length = 1;
            if (threadIdx.x == 0 && low_row.wanted) {
                const float logit = T::widen(((const typename T::Element *)args.logits)[low_row.row * args.stride + low % vocabulary]);
                atomicMax(args.best + low_row.row, contender(score(low_row, logit, stream.middle()), low % vocabulary));
            }
            continue;
        }
        const Row high_row = row_of(args, high / vocabulary);
        length = min(min(end - at, stream.half() - pair), (u64)vocabulary - max(low % vocabulary, high % vocabulary));
        if (low_row.wanted || high_row.wanted)
            draw_pairs<T>(args, desk, stream, pair, length, low_row, low % vocabulary, high_row, high % vocabulary);
    }
    if (!last_to_arrive(args.arrived, gridDim.x, &desk->flag)) return;
    for (u32 row = threadIdx.x; row < args.rows; row += THREADS) {
        if (settings_of(args, row).filtered(vocabulary)) continue;
        store(args, row, *(volatile u64 *)(args.best + row));
        args.best[row] = 0;
    }
}
