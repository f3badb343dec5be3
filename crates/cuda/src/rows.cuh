// What the sampling kernels read: their arguments, settings, noise and logits.

#pragma once

#include "group.cuh"

// Bits of `flags`: which parameters have an element per row, and whether tokens have 64 bits.
#define TEMPERATURE_PER_ROW 1
#define TOP_K_PER_ROW 2
#define TOP_P_PER_ROW 4
#define SEED_PER_ROW 8
#define WIDE_TOKENS 16
#define MIN_P_PER_ROW 32
#define WHICH_PER_ROW 64
#define EXACT_PER_ROW 128
#define SETTINGS_PER_ROW (TEMPERATURE_PER_ROW | TOP_K_PER_ROW | TOP_P_PER_ROW | MIN_P_PER_ROW | EXACT_PER_ROW)

// What changes the logits of a row: parts of `history`, the biases and `mask`.
struct Adjustments {
    u32 history_start, history_length, prompt_end;
    u32 bias_start, bias_count;
    u32 mask_start, mask_words;
    float repetition, presence, frequency;

    __device__ bool penalize() const {
        return history_length && (repetition != 1.0f || presence != 0.0f || frequency != 0.0f);
    }
    __device__ bool neutral() const { return !penalize() && !bias_count && !mask_words; }
};
static_assert(sizeof(Adjustments) == 40, "the layout of `RowAdjustments` in sample.rs");

struct SampleArgs {
    const void *logits;
    const float *temperature;
    const i64 *top_k;
    const float *top_p;
    // Null: 0.
    const float *min_p;
    // Above 0: noise with an exact tail. Null: 0.
    const i64 *exact_tail;
    // Null: the next key of `sequence`.
    const i64 *seed;
    // The state of the sequence of keys.
    u32 *sequence;
    void *tokens;
    // The best contender of each row that needs one pass, and the number of blocks that have arrived.
    u64 *best;
    u32 *arrived;
    GroupState *group_states;
    // Per row. Null: nothing changes the logits.
    const Adjustments *adjustments;
    const int *history, *bias_tokens;
    const float *bias_values;
    const int *mask;
    // Rows of adjusted logits, written where the adjustments of a row are not neutral.
    float *adjusted;
    // Which log-probabilities (0: none, 1: the model's own, from 2 on: of what is drawn from). Null: none.
    const i64 *which;
    // The smallest key of a scaled logit that was kept, of rows with a filter.
    u32 *kept;
    float *log_probability;
    i64 *likeliest;
    float *of_likeliest;
    // Elements between rows.
    u64 stride;
    u32 rows, vocabulary;
    // Blocks per row.
    u32 blocks;
    u32 flags;
    // Pairs of words per block, of rows that are drawn from whole.
    u32 share;
    // The lengths of `history`, of the biases and of `mask`.
    u32 history_length, bias_length, mask_length;
};
static_assert(sizeof(SampleArgs) == 224, "the layout of `SampleArgs` in sample.rs");

struct Settings {
    float temperature, top_p, min_p;
    u32 top_k;
    bool exact_tail;

    __device__ bool greedy() const { return !(temperature > 0.0f); }
    __device__ bool filtered(u32 vocabulary) const {
        return !greedy() && (top_k < vocabulary || top_p < 1.0f || min_p > 0.0f);
    }
};

__device__ Settings settings_of(const SampleArgs &args, u32 row) {
    const i64 top_k = args.top_k[args.flags & TOP_K_PER_ROW ? row : 0];
    const float top_p = args.top_p[args.flags & TOP_P_PER_ROW ? row : 0];
    const float min_p = args.min_p ? args.min_p[args.flags & MIN_P_PER_ROW ? row : 0] : 0.0f;
    const bool exact_tail = args.exact_tail && args.exact_tail[args.flags & EXACT_PER_ROW ? row : 0] > 0;
    const bool all = top_k < 1 || top_k > (i64)args.vocabulary;
    const float temperature = args.temperature[args.flags & TEMPERATURE_PER_ROW ? row : 0];
    // `fmaxf` takes the number where the other is NaN.
    const u32 kept = all ? args.vocabulary : (u32)top_k;
    return {temperature, top_p == top_p ? top_p : 0.0f, fminf(fmaxf(min_p, 0.0f), 1.0f), kept, exact_tail};
}

// The adjusted logits of a row; null if nothing changes them.
__device__ __forceinline__ const float *adjusted_row(const SampleArgs &args, u32 row) {
    if (!args.adjustments || args.adjustments[row].neutral()) return 0;
    return args.adjusted + (u64)row * args.vocabulary;
}

__device__ __forceinline__ i64 which_of(const SampleArgs &args, u32 row) {
    return args.which ? args.which[args.flags & WHICH_PER_ROW ? row : 0] : 0;
}

// The words of noise of a row: where they begin in which stream.
struct Noise {
    Stream stream;
    u32 start;
    bool exact_tail;

    __device__ __forceinline__ float of(u32 index) const {
        if (exact_tail) return exact_gumbel(stream.both(start + index));
        return gumbel(stream.word(start + index));
    }
};

__device__ Noise noise_of(const SampleArgs &args, u32 row, bool exact_tail) {
    const bool alone = args.flags & SEED_PER_ROW;
    const u32 count = alone ? args.vocabulary : args.rows * args.vocabulary;
    const u32 start = alone ? 0 : row * args.vocabulary;
    if (args.seed) return {seeded(args.seed[alone ? row : 0], count), start, exact_tail};
    const Words first = threefry(args.sequence[0], args.sequence[1], 0, 2);
    const Words second = threefry(args.sequence[0], args.sequence[1], 1, 3);
    return {{first.high, second.high, count}, start, exact_tail};
}

// Moves the sequence of keys on, in the last block, if anything was drawn with its key.
__device__ void advance(const SampleArgs &args) {
    bool is_used = false;
    const u32 temperatures = args.flags & TEMPERATURE_PER_ROW ? args.rows : 1;
    for (u32 row = threadIdx.x; row < temperatures; row += THREADS) is_used |= args.temperature[row] > 0.0f;
    if (!__syncthreads_or(is_used) || threadIdx.x) return;
    const u32 k0 = args.sequence[0], k1 = args.sequence[1];
    args.sequence[0] = threefry(k0, k1, 0, 2).low;
    args.sequence[1] = threefry(k0, k1, 1, 3).low;
}

__device__ void store(const SampleArgs &args, u32 row, u64 best) {
    if (args.flags & WIDE_TOKENS) ((i64 *)args.tokens)[row] = winner(best);
    else ((u32 *)args.tokens)[row] = winner(best);
}

// Types of logits.
struct F32 {
    typedef float Element;
    __device__ static float widen(float x) { return x; }
};
struct F16 {
    typedef unsigned short Element;
    __device__ static float widen(unsigned short x) {
#ifndef __CUDA_ARCH__
        return (float)__builtin_bit_cast(_Float16, x);
#else
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
        return wide;
#endif
    }
};
struct Bf16 {
    typedef unsigned short Element;
    __device__ static float widen(unsigned short x) { return __uint_as_float((u32)x << 16); }
};

// The part of a row that a block reads, two ranges: where words of noise come in pairs, those of the lower and upper words.
template <class T> struct RowPart {
    const typename T::Element *row;
    // Null, or what is read instead of `row`.
    const float *adjusted;
    u32 begin, end, second_begin, second_end;

    __device__ __forceinline__ float at(u32 index) const { return adjusted ? adjusted[index] : T::widen(__ldg(row + index)); }

    // Calls `use(index, logit)` for each element, `ahead` wide loads before their use; `back`: from the end, which caches still
    // have after a first pass.
    template <int ahead, bool back = false, class Use> __device__ __forceinline__ void each(Use use) const {
#pragma unroll 1
        for (u32 first = begin, last = end, again = 2; again--; first = second_begin, last = second_end) {
            if constexpr (sizeof(typename T::Element) == sizeof(float))
                range<F32, false, ahead, back>(adjusted ? adjusted : (const float *)row, first, last, use);
            else if (adjusted) range<F32, false, ahead, back>(adjusted, first, last, use);
            else range<T, true, ahead, back>(row, first, last, use);
        }
    }

    // `constant`: nothing writes the elements during the launch.
    template <class From, bool constant, int ahead, bool back, class Use>
    __device__ __forceinline__ static void range(const typename From::Element *from, u32 first, u32 last, Use use) {
        const u32 wide = 16 / sizeof(typename From::Element);
        if (((u64)(from + first) & 15) == 0) {
            const u32 whole = (last - first) / wide;
            const uint4 *vectors = (const uint4 *)(from + first);
            const auto use_vector = [&](u32 at, const uint4 &vector) {
                const typename From::Element *elements = (const typename From::Element *)&vector;
#pragma unroll
                for (u32 i = 0; i < wide; ++i) use(first + at * wide + i, From::widen(elements[i]));
            };
            // Loads come first, which is not left to the compiler: it does not move them over what `use` may write.
#pragma unroll 1
            for (u32 at = threadIdx.x; at < whole; at += ahead * THREADS) {
                uint4 loaded[ahead];
#pragma unroll
                for (u32 i = 0; i < ahead; ++i) {
                    const u32 next = min(at + i * THREADS, whole - 1);
                    loaded[i] = load_vector<constant>(vectors + (back ? whole - 1 - next : next));
                }
#pragma unroll
                for (u32 i = 0; i < ahead; ++i) {
                    const u32 next = at + i * THREADS;
                    if (next < whole) use_vector(back ? whole - 1 - next : next, loaded[i]);
                }
            }
            first += whole * wide;
        }
#pragma unroll 1
        for (u32 index = first + threadIdx.x; index < last; index += THREADS)
            use(index, From::widen(constant ? __ldg(from + index) : from[index]));
    }

    template <bool constant> __device__ __forceinline__ static uint4 load_vector(const uint4 *from) {
        return constant ? __ldg(from) : *from;
    }
};

// A score that some logit of a row reaches, and the best contender so far, among the threads of a block. With a list, all that
// come within `margin` of the bar are stored, as long as there is room.
struct Race {
    u64 best;
    u64 *list;
    u32 bar, entered;
    float margin;
};

// Which logits of a row are candidates: those with a key of at least `least`, in one bin or (BINS) in any.
struct Choice {
    const void *row;
    const float *adjusted;
    u32 vocabulary, least, bin, bins;
    float temperature, largest;
};

// The shared memory of a block.
struct BlockState {
    u64 scratch[WARPS];
    Race low_race, high_race;
    Choice choice;
    u32 keys[WARPS];
    u32 low[BINS], high[BINS];
    // Candidates: key of the scaled logit above, index below. Or maxima, which are read four at a time.
    __align__(16) u64 list[ROOM];
    // Contenders that came near the best.
    u64 contenders[CONTENDERS];
    u64 base, limit;
    u32 flag, count, threshold, bin;
    // Those of the group, as every block counts them.
    u32 launches;
};
static_assert(sizeof(BlockState) == 90464, "BLOCK_STATE_BYTES in sample.rs");

__device__ __forceinline__ void start_race(Race *race, u64 *list = 0, float margin = 0) {
    *race = {0, list, 0, 0, margin};
}

__device__ __forceinline__ void enter_score(Race *race, float score, u32 index) {
    const u64 mine = contender(score, index);
    atomicMax(&race->best, mine);
    atomicMax(&race->bar, (u32)(mine >> 32));
    if (!race->list) return;
    const u32 at = atomicAdd(&race->entered, 1);
    if (at < CONTENDERS) race->list[at] = mine;
}

// Enters a logit whose estimated score came near the bar. `temperature` 0 is greedy.
__device__ __noinline__ void enter(Race *race, float logit, float temperature, u32 word, u32 index) {
    enter_score(race, temperature > 0.0f ? logit / temperature + gumbel(word) : logit, index);
}

// With an exact tail: `at` is where the token is in the stream.
__device__ __noinline__ void enter_exact(Race *race, float logit, float temperature, Stream stream, u32 at, u32 index) {
    enter_score(race, logit / temperature + exact_gumbel(stream.both(at)), index);
}
__device__ __noinline__ float estimate_exact(Stream stream, u32 at) { return exact_gumbel_estimate(stream.both(at)); }

// How far a score may be from its estimate: the noise's, and the rounding of a product instead of a division.
__device__ __forceinline__ float slack(float scaled) { return __fmaf_rn(fabsf(scaled), 1e-6f, 0.002f); }

// The score from which contenders are stored; minus infinity as long as there is no bar.
__device__ __forceinline__ float bar_of(const Race *race) {
    const u32 bar = load_volatile(&race->bar);
    return bar ? number(bar) - race->margin : MINUS_INFINITY;
}

// Returns true if a score with this estimate may reach the bar, or is NaN.
__device__ __forceinline__ bool may_win(float bar, float scaled, float noise) {
    return !(scaled + noise + slack(scaled) < bar);
}

// Enters a scaled logit, and computes the score only if it may win.
__device__ __noinline__ void enter_scaled(Race *race, Noise noise, float scaled, u32 index) {
    if (noise.exact_tail) {
        if (may_win(bar_of(race), scaled, estimate_exact(noise.stream, noise.start + index)))
            enter_exact(race, scaled, 1.0f, noise.stream, noise.start + index, index);
        return;
    }
    const u32 word = noise.stream.word(noise.start + index);
    if (may_win(bar_of(race), scaled, gumbel_estimate(word))) enter(race, scaled, 1.0f, word, index);
}
