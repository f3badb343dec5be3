// Rows that are drawn from whole, or greedily: one pass.
//
// Every block takes a share of all pairs of words of noise, so that each pair is computed once, whichever rows its words belong
// to. Scores are estimated first; only those that may win are computed. Blocks store the best contender of each row they
// touched; the last block to arrive stores the tokens.

#pragma once

#include "rows.cuh"

// A row, or nothing where `wanted` is false.
template <class T> struct Side {
    const typename T::Element *logits;
    // Null, or what is read instead of `logits`.
    const float *adjusted;
    float temperature, rate;
    // Scaled logits below this number, of this key, do not take part.
    float floor;
    u32 least, row, index;
    bool wanted, exact_tail;

    __device__ __forceinline__ Side(const SampleArgs &args, const Settings &settings, u32 row, u32 index, u32 least = 0)
        : least(least), row(row), index(index) {
        floor = least ? number(least) : MINUS_INFINITY;
        logits = (const typename T::Element *)args.logits + row * args.stride + index;
        adjusted = adjusted_row(args, row);
        if (adjusted) adjusted += index;
        temperature = settings.greedy() ? 0.0f : settings.temperature;
        rate = settings.greedy() ? 1.0f : 1.0f / settings.temperature;
        wanted = !settings.filtered(args.vocabulary);
        exact_tail = settings.exact_tail && !settings.greedy();
    }

    __device__ __forceinline__ float load(u32 at) const { return adjusted ? adjusted[at] : T::widen(__ldg(logits + at)); }
    __device__ __forceinline__ bool greedy() const { return temperature == 0.0f; }

    // Enters the logit at `at` of the stream, whose word is `word`.
    __device__ __forceinline__ void enter(Race *race, float logit, const Stream &stream, u32 at, u32 word, u32 token) const {
        if (exact_tail) enter_exact(race, logit, temperature, stream, at, token);
        else ::enter(race, logit, temperature, word, token);
    }

    // What this logit surely reaches. Where there is no estimate there is no bar: infinite noise, infinite or no logits.
    template <bool with_floor> __device__ __forceinline__ u32 sure(float logit, float noise) const {
        if (greedy()) return ordered(logit);
        const float scaled = logit * rate, score = scaled + noise - slack(scaled);
        if (with_floor && !(scaled - slack(scaled) >= floor)) return 0;
        return fabsf(score) < 1e30f ? ordered(score) : 0;
    }

    template <bool with_floor> __device__ __forceinline__ bool may_win(float bar, float logit, float noise) const {
        if (greedy()) return logit >= bar;
        return ::may_win(bar, logit * rate, noise) && (!with_floor || ordered(logit / temperature) >= least);
    }
};

// `count` pairs of words from `pair` on: their lower words belong to one row, their upper ones to another or the same. The race
// of each row gets its contenders. `with_floor`: only logits from the floor of their side on take part. With `with_top`, returns
// the largest of this thread's logits, or NaN if all are NaN.
template <class T, bool with_top, bool with_floor>
__device__ __forceinline__ float draw_pairs(Race *low_race, Race *high_race, const Stream &stream, u32 pair, u32 count,
                                          const Side<T> &low, const Side<T> &high) {
    // Pairs that a thread looks at together.
    const u32 several = 2;
    const bool noisy = !(low.greedy() && high.greedy());
    float top = __int_as_float(0x7fc00000);
    bool is_first = true;
#pragma unroll 1
    for (u32 base = threadIdx.x; is_first || base < count; base += several * THREADS) {
        float low_logit[several], high_logit[several], low_noise[several], high_noise[several];
        Words words[several];
        u32 low_bar = 0, high_bar = 0;
#pragma unroll
        for (u32 i = 0; i < several; ++i) {
            const u32 at = min(base + i * THREADS, count - 1);
            low_logit[i] = low.load(at), high_logit[i] = high.load(at);
        }
#pragma unroll
        for (u32 i = 0; i < several; ++i) {
            words[i] = {0, 0}, low_noise[i] = high_noise[i] = 0;
            if (noisy) {
                words[i] = stream.pair(pair + base + i * THREADS);
                low_noise[i] = gumbel_estimate(words[i].low), high_noise[i] = gumbel_estimate(words[i].high);
                const u32 at = pair + base + i * THREADS;
                if (low.exact_tail) low_noise[i] = estimate_exact(stream, at);
                if (high.exact_tail) high_noise[i] = estimate_exact(stream, at + stream.upper());
            }
            if (with_top) top = fmaxf(top, fmaxf(low_logit[i], high_logit[i]));
        }
        if (is_first) {
            // One warp after another raises the bar before anything is computed.
#pragma unroll
            for (u32 i = 0; i < several; ++i) {
                if (base + i * THREADS >= count) continue;
                low_bar = max(low_bar, low.template sure<with_floor>(low_logit[i], low_noise[i]));
                high_bar = max(high_bar, high.template sure<with_floor>(high_logit[i], high_noise[i]));
            }
            if (low_race == high_race) low_bar = max(low_bar, high_bar);
            low_bar = warp_max(low_bar);
            if (threadIdx.x % 32 == 0) atomicMax(&low_race->bar, low_bar);
            if (low_race != high_race) {
                high_bar = warp_max(high_bar);
                if (threadIdx.x % 32 == 0) atomicMax(&high_race->bar, high_bar);
            }
            __syncthreads();
            is_first = false;
        }
        const float low_limit = bar_of(low_race), high_limit = low_race == high_race ? low_limit : bar_of(high_race);
#pragma unroll
        for (u32 i = 0; i < several; ++i) {
            const u32 at = base + i * THREADS;
            if (at >= count) break;
            if (low.template may_win<with_floor>(low_limit, low_logit[i], low_noise[i]))
                low.enter(low_race, low_logit[i], stream, pair + at, words[i].low, low.index + at);
            if (high.template may_win<with_floor>(high_limit, high_logit[i], high_noise[i]))
                high.enter(high_race, high_logit[i], stream, pair + at + stream.upper(), words[i].high, high.index + at);
        }
    }
    return top;
}

// The share of this block in all the pairs of words, cut where rows end.
template <class T>
__device__ __forceinline__ void draw_whole_rows(const SampleArgs &args, const Settings &shared, const Noise &noise,
                                                BlockState *local) {
    const u32 vocabulary = args.vocabulary;
    const bool alone = args.flags & SEED_PER_ROW;
    const u32 count = alone ? vocabulary : args.rows * vocabulary, per_stream = count - count / 2;
    const u32 all = per_stream * (alone ? args.rows : 1), end = min(all, (blockIdx.x + 1) * args.share);
    for (u32 at = blockIdx.x * args.share, length; at < end; at += length) {
        const u32 before = args.rows == 1 ? 0 : at / per_stream, pair = at - before * per_stream;
        const u32 low_at = before * count + pair, high_at = low_at + per_stream;
        const u32 low_row = args.rows == 1 ? 0 : low_at / vocabulary, high_row = args.rows == 1 ? 0 : high_at / vocabulary;
        const bool mixed = args.flags & SETTINGS_PER_ROW;
        const Side<T> low(args, mixed ? settings_of(args, low_row) : shared, low_row, low_at - low_row * vocabulary);
        const Stream stream = args.flags & SEED_PER_ROW ? noise_of(args, low_row, false).stream : noise.stream;
        Race *low_race = &local->low_race, *high_race = low_row == high_row ? low_race : &local->high_race;
        if (at != blockIdx.x * args.share) {
            __syncthreads();
            if (threadIdx.x == 0) start_race(low_race), start_race(high_race);
            __syncthreads();
        }
        if (pair == stream.half()) {
            // The middle of an odd count has no partner.
            length = 1;
            if (threadIdx.x == 0 && low.wanted) {
                low.enter(low_race, low.load(0), stream, pair, stream.middle(), low.index);
                atomicMax(args.best + low_row, low_race->best);
            }
            continue;
        }
        const Side<T> high(args, mixed ? settings_of(args, high_row) : shared, high_row, high_at - high_row * vocabulary);
        length = min(min(end - at, stream.half() - pair), vocabulary - max(low.index, high.index));
        if (!low.wanted && !high.wanted) continue;
        draw_pairs<T, false, false>(low_race, high_race, stream, pair, length, low, high);
        __syncthreads();
        if (threadIdx.x == 0 && low.wanted && low_race->best) atomicMax(args.best + low_row, low_race->best);
        if (threadIdx.x == 0 && high.wanted && high_race != low_race && high_race->best)
            atomicMax(args.best + high_row, high_race->best);
    }
    if (args.rows == 1) {
        // Nobody but this thread has anything left to do.
        if (threadIdx.x == 0 && increment_wrapping(args.arrived, gridDim.x - 1) == gridDim.x - 1)
            store(args, 0, load_volatile(args.best)), args.best[0] = 0;
        return;
    }
    if (!last_to_arrive(args.arrived, gridDim.x, &local->flag)) return;
    for (u32 row = threadIdx.x; row < args.rows; row += THREADS) {
        if (args.flags & SETTINGS_PER_ROW && settings_of(args, row).filtered(vocabulary)) continue;
        store(args, row, load_volatile(args.best + row));
        args.best[row] = 0;
    }
}
