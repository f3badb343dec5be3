// What changes the logits of a row before anything is drawn (`adjust.rs`): penalties, biases, a mask.
//
// The blocks of a row write an adjusted copy of it, a tile at a time: a tile's counts and sums of biases fit the shared memory.
// Counts are whole numbers, so their order does not matter. The biases of a token are added by one warp, in their order.
//
// The largest logits before and after are found on the way, which saves a pass each.

#pragma once

#include "likeliest.cuh"

// Elements of a tile: those whose counts and sums fit the list.
#define TILE 8192
static_assert(TILE * 8 <= sizeof(((BlockState *)0)->list), "a tile fits the list");
// The count of a token is that of the text; this bit says that the prompt has it.
#define IN_PROMPT 0x80000000u

// A row's parts of the buffers, which it cannot leave.
__device__ __forceinline__ u32 part_of(u32 &start, u32 count, u32 length) {
    start = min(start, length);
    return min(count, length - start);
}

struct Adjuster {
    const SampleArgs &args;
    Adjustments row;
    u32 *counts;
    float *sums;
    // The bits of the value above, the token below.
    u64 *biases;
    // The largest logits that this thread has seen.
    float before, after;

    __device__ __forceinline__ Adjuster(const SampleArgs &args, u32 row, BlockState *local)
        : args(args), row(args.adjustments[row]), counts((u32 *)local->list), sums((float *)local->list + TILE),
          biases(local->contenders), before(__int_as_float(0x7fc00000)), after(before) {
        this->row.history_length = part_of(this->row.history_start, this->row.history_length, args.history_length);
        this->row.bias_count = part_of(this->row.bias_start, this->row.bias_count, args.bias_length);
        this->row.mask_words = part_of(this->row.mask_start, this->row.mask_words, args.mask_length);
    }

    // Tokens outside the tile, and so those outside the vocabulary, are not below `length`.
    __device__ __forceinline__ void count(u32 begin, u32 length) const {
        const int *history = args.history + row.history_start;
#pragma unroll 4
        for (u32 at = threadIdx.x; at < row.history_length; at += THREADS) {
            const u32 token = (u32)__ldg(history + at) - begin;
            if (token >= length) continue;
            if (at < row.prompt_end) atomicOr(counts + token, IN_PROMPT);
            else atomicAdd(counts + token, 1);
        }
    }

    // Biases come through shared memory, as many at a time as fit.
    __device__ __forceinline__ void add_biases(u32 begin, u32 length) const {
        for (u32 first = 0; first < row.bias_count; first += CONTENDERS) {
            const u32 several = min(row.bias_count - first, CONTENDERS);
            __syncthreads();
            for (u32 at = threadIdx.x; at < several; at += THREADS) {
                const u32 from = row.bias_start + first + at;
                biases[at] = (u64)__float_as_uint(__ldg(args.bias_values + from)) << 32 | (u32)__ldg(args.bias_tokens + from);
            }
            __syncthreads();
            for (u32 at = 0; at < several; at += 32) add_of_warp(at, several, begin, length);
        }
    }

    __device__ __forceinline__ void add_of_warp(u32 first, u32 end, u32 begin, u32 length) const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const u64 word = first + lane < end ? biases[first + lane] : 0;
        const u32 token = (u32)word - begin;
        // All biases of a token are this warp's, or none.
        const bool is_mine = first + lane < end && token < length && token % WARPS == warp;
        if (!__ballot_sync(~0u, is_mine)) return;
        // Others match nobody.
        const u32 same = __match_any_sync(~0u, is_mine ? token : ~lane);
        const u32 rank = __popc(same & ((1u << lane) - 1)), last = warp_max(is_mine ? rank : 0);
        for (u32 turn = 0; turn <= last; ++turn) {
            if (is_mine && rank == turn) sums[token] += __uint_as_float((u32)(word >> 32));
            __syncwarp();
        }
    }

    __device__ __forceinline__ float adjusted(float logit, u32 count, float sum, bool may) const {
        if (count) {
            logit = logit < 0.0f ? logit * row.repetition : logit / row.repetition;
            if (count & ~IN_PROMPT) logit = logit - (float)(count & ~IN_PROMPT) * row.frequency - row.presence;
        }
        return may ? logit + sum : MINUS_INFINITY;
    }

    // The word of the mask that has a token's bit, which then is the token's remainder by 32.
    __device__ __forceinline__ u32 mask_word(u32 token) const {
        return token / 32 < row.mask_words ? (u32)__ldg(args.mask + row.mask_start + token / 32) : ~0u;
    }

    // Adjusts four logits of a tile that starts at `begin`.
    __device__ __forceinline__ float4 four(const float *logits, u32 begin, u32 at, u32 word) {
        const uint4 count = *(const uint4 *)(counts + at);
        const float4 sum = *(const float4 *)(sums + at);
        const u32 bits = word >> (begin + at) % 32;
        const float4 result = {adjusted(logits[0], count.x, sum.x, bits & 1), adjusted(logits[1], count.y, sum.y, bits & 2),
                               adjusted(logits[2], count.z, sum.z, bits & 4), adjusted(logits[3], count.w, sum.w, bits & 8)};
        before = fmaxf(before, fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3])));
        after = fmaxf(after, fmaxf(fmaxf(result.x, result.y), fmaxf(result.z, result.w)));
        return result;
    }

    // Tiles start at multiples of 32 tokens.
    template <class T> __device__ __forceinline__ void tile(const typename T::Element *from, float *to, u32 begin, u32 length) {
        for (u32 at = threadIdx.x; at < length; at += THREADS) counts[at] = 0, sums[at] = 0.0f;
        __syncthreads();
        if (row.penalize()) count(begin, length);
        add_biases(begin, length);
        __syncthreads();
        const u32 wide = 16 / sizeof(typename T::Element), ahead = 2;
        const bool is_aligned = (((u64)(from + begin) | (u64)(to + begin)) & 15) == 0;
        const u32 whole = is_aligned ? length / wide : 0;
#pragma unroll 1
        for (u32 first = threadIdx.x; first < whole; first += ahead * THREADS) {
            uint4 loaded[ahead];
            u32 words[ahead];
#pragma unroll
            for (u32 i = 0; i < ahead; ++i) {
                const u32 at = min(first + i * THREADS, whole - 1);
                loaded[i] = __ldg((const uint4 *)(from + begin) + at), words[i] = mask_word(begin + at * wide);
            }
#pragma unroll
            for (u32 i = 0; i < ahead; ++i) {
                const u32 at = first + i * THREADS;
                if (at >= whole) break;
                float logits[wide];
#pragma unroll
                for (u32 j = 0; j < wide; ++j) logits[j] = T::widen(((const typename T::Element *)&loaded[i])[j]);
#pragma unroll
                for (u32 j = 0; j < wide; j += 4)
                    *(float4 *)(to + begin + at * wide + j) = four(logits + j, begin, at * wide + j, words[i]);
            }
        }
        for (u32 at = whole * wide + threadIdx.x; at < length; at += THREADS) {
            const float logit = T::widen(__ldg(from + begin + at));
            const bool may = mask_word(begin + at) >> (begin + at) % 32 & 1;
            const float result = adjusted(logit, counts[at], sums[at], may);
            to[begin + at] = result;
            before = fmaxf(before, logit), after = fmaxf(after, result);
        }
        __syncthreads();
    }
};

// Publishes what others need to know of a row, as far as this block has seen it, before it is drawn from.
template <class T>
__device__ __forceinline__ void publish_early(const SampleArgs &args, BlockState *local, u32 row, float before, float after) {
    const Settings settings = settings_of(args, row);
    if (settings.filtered(args.vocabulary)) {
        Filter<T> filter = filter_of<T>(args, settings, local, row);
        const u32 parts = filter.parts_of_block();
        if (filter.publishes_early(parts)) filter.publish_maxima(parts, filter.global->maxima, ordered(after));
    }
    __syncthreads();
    if (begins_early(args, row)) early_likeliest_of<T>(args, local, row).publish(ordered(before));
}

// Writes the adjusted rows. All blocks see them afterwards.
template <class T> __device__ __noinline__ void adjust_rows(const SampleArgs &args, BlockState *local) {
    const u32 groups = gridDim.x / args.blocks, block = blockIdx.x % args.blocks;
    for (u32 row = blockIdx.x / args.blocks; row < args.rows && blockIdx.x / args.blocks < groups; row += groups) {
        if (args.adjustments[row].neutral()) continue;
        Adjuster adjuster(args, row, local);
        const typename T::Element *from = (const typename T::Element *)args.logits + row * args.stride;
        float *to = args.adjusted + (u64)row * args.vocabulary;
        const u32 share = ((args.vocabulary + args.blocks - 1) / args.blocks + 31) / 32 * 32;
        const u32 begin = min(args.vocabulary, block * share), end = min(args.vocabulary, begin + share);
        for (u32 at = begin; at < end; at += TILE) adjuster.template tile<T>(from, to, at, min(end - at, TILE));
        publish_early<T>(args, local, row, adjuster.before, adjuster.after);
        __syncthreads();
    }
    group_barrier(args.arrived + 2, gridDim.x);
}
