// What changes the logits of a row before anything is drawn (`adjust.rs`): penalties, biases, a mask.
//
// The blocks of a row write an adjusted copy of it, a tile at a time: a tile's counts and sums of biases fit the shared memory.
// Counts are whole numbers, so their order does not matter. The biases of a token are added by one warp, in their order.

#pragma once

#include "rows.cuh"

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

    __device__ __forceinline__ Adjuster(const SampleArgs &args, u32 row, BlockState *local)
        : args(args), row(args.adjustments[row]), counts((u32 *)local->list), sums((float *)local->list + TILE),
          biases(local->contenders) {
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

    __device__ __forceinline__ float adjusted(float logit, u32 token, u32 count, float sum) const {
        if (count) {
            logit = logit < 0.0f ? logit * row.repetition : logit / row.repetition;
            if (count & ~IN_PROMPT) logit = logit - (float)(count & ~IN_PROMPT) * row.frequency - row.presence;
        }
        logit += sum;
        const bool may = token / 32 >= row.mask_words || __ldg(args.mask + row.mask_start + token / 32) >> token % 32 & 1;
        return may ? logit : MINUS_INFINITY;
    }

    template <class T>
    __device__ __forceinline__ void tile(const typename T::Element *from, float *to, u32 begin, u32 length) const {
        for (u32 at = threadIdx.x; at < length; at += THREADS) counts[at] = 0, sums[at] = 0.0f;
        __syncthreads();
        if (row.penalize()) count(begin, length);
        add_biases(begin, length);
        __syncthreads();
#pragma unroll 4
        for (u32 at = threadIdx.x; at < length; at += THREADS)
            to[begin + at] = adjusted(T::widen(__ldg(from + begin + at)), begin + at, counts[at], sums[at]);
        __syncthreads();
    }
};

// Writes the adjusted rows. All blocks see them afterwards.
template <class T> __device__ __noinline__ void adjust_rows(const SampleArgs &args, BlockState *local) {
    const u32 groups = gridDim.x / args.blocks, block = blockIdx.x % args.blocks;
    for (u32 row = blockIdx.x / args.blocks; row < args.rows && blockIdx.x / args.blocks < groups; row += groups) {
        if (args.adjustments[row].neutral()) continue;
        const Adjuster adjuster(args, row, local);
        const typename T::Element *from = (const typename T::Element *)args.logits + row * args.stride;
        float *to = args.adjusted + (u64)row * args.vocabulary;
        const u32 share = (args.vocabulary + args.blocks - 1) / args.blocks;
        const u32 begin = min(args.vocabulary, block * share), end = min(args.vocabulary, begin + share);
        for (u32 at = begin; at < end; at += TILE) adjuster.template tile<T>(from, to, at, min(end - at, TILE));
    }
    group_barrier(args.arrived + 2, gridDim.x);
}
