// Log-probabilities of a row (`log_probabilities.rs`): the drawn token's, and the likeliest tokens with theirs.
//
// The maxima of parts of the row bound the likeliest from below, as they do where k is small. Then one pass adds up the masses
// and gathers what reaches the bound, and the last block puts that in order.

#pragma once

#include "filter.cuh"

#define MOST_LIKELIEST 20

template <class T> struct Likeliest {
    const SampleArgs &args;
    // Knows the row's scores: its temperature is 1 where logits are taken as they are, and its k is the number of the likeliest.
    Filter<T> filter;
    // Keys below this have no probability.
    u32 least;

    __device__ __forceinline__ float share(u32 key, u64 total) const {
        return key >= least && key > LEAST_KEY ? log_probability(number(key), filter.largest, total) : MINUS_INFINITY;
    }

    __device__ __forceinline__ void put(u32 at, u32 token, float value) const {
        args.likeliest[filter.row * MOST_LIKELIEST + at] = token;
        args.of_likeliest[filter.row * MOST_LIKELIEST + at] = value;
    }

    // The candidates in order: each is compared with all if there are few, and otherwise they are found one after another.
    __device__ __forceinline__ u32 put_candidates(u32 count, u64 total) {
        BlockState *local = filter.local;
        if (count <= THREADS) {
            const u64 mine = threadIdx.x < count ? local->list[threadIdx.x] ^ 0xffffffffu : 0;
            u32 greater = 0;
            for (u32 at = 0; at < count; ++at) greater += (local->list[at] ^ 0xffffffffu) > mine;
            if (threadIdx.x < count && greater < MOST_LIKELIEST) put(greater, ~(u32)mine, share((u32)(mine >> 32), total));
            return min(count, MOST_LIKELIEST);
        }
        u64 last = ~0ull;
        for (u32 at = 0; at < MOST_LIKELIEST; ++at) {
            u64 best = 0;
            each_candidate<T>(local, count, 1, [&](u32 key, u32 index) {
                const u64 mine = (u64)key << 32 | (u32)~index;
                if (mine < last) best = max(best, mine);
            });
            last = filter.best_of(best);
            if (threadIdx.x == 0) put(at, ~(u32)last, share((u32)(last >> 32), total));
        }
        return MOST_LIKELIEST;
    }

    // By one warp: after `found` likeliest come the first tokens that are not among them.
    __device__ __forceinline__ void put_others(u32 found) {
        const u32 lane = threadIdx.x;
        for (u32 first = 0, at = found; first < 2 * MOST_LIKELIEST && at < MOST_LIKELIEST; first += 32) {
            const u32 index = first + lane;
            bool is_other = index < args.vocabulary;
            for (u32 other = 0; other < found; ++other) is_other &= (u32)filter.local->list[other] != index;
            const u32 others = __ballot_sync(~0u, is_other), mine = at + __popc(others & ((1u << lane) - 1));
            if (is_other && mine < MOST_LIKELIEST) put(mine, index, MINUS_INFINITY);
            at += __popc(others);
            if (first + 32 < 2 * MOST_LIKELIEST) continue;
            // There are no more tokens.
            if (at + lane < MOST_LIKELIEST) put(at + lane, 0, MINUS_INFINITY);
        }
    }

    __device__ __forceinline__ void finish(u32 count, u64 total) {
        const u32 found = put_candidates(count, total);
        if (threadIdx.x < 32 && found < MOST_LIKELIEST) put_others(found);
        if (threadIdx.x) return;
        const u32 token = args.flags & WIDE_TOKENS ? (u32)((i64 *)args.tokens)[filter.row] : ((u32 *)args.tokens)[filter.row];
        args.log_probability[filter.row] = share(ordered(filter.scaled(filter.part.at(token))), total);
        filter.global->launches = filter.launch;
    }

    // Publishes what the others need to know of this block's part.
    __device__ __forceinline__ void begin() {
        filter.take_part(false);
        publish(filter.top_of_thread());
    }

    __device__ __forceinline__ void publish(u32 top) {
        filter.publish_maxima(filter.parts_of_block(), filter.global->likeliest, top);
    }

    // The rest, when the token is drawn.
    __device__ __forceinline__ void complete() {
        BlockState *local = filter.local;
        GroupState *global = filter.global;
        if (threadIdx.x == 0) local->count = 0;
        const u32 parts = filter.parts_of_block(), blocks = filter.blocks;
        filter.take_part(false);
        filter.take_maxima(parts, global->likeliest);
        const u32 bound = filter.rank_maximum((const u32 *)local->list, parts * blocks, MOST_LIKELIEST);
        const u32 bound_key = bound ? ordered(filter.late(number(bound))) : 0;
        // What has no probability is not put in order with the others.
        const u32 from = max(max(bound_key, least), LEAST_KEY + 1);
        u64 total = 0;
        filter.part.template each<2>([&](u32 index, float logit) {
            const float score = filter.scaled(logit);
            const u32 key = ordered(score);
            if (key >= least) total += mass(score, filter.largest);
            if (key >= from) filter.add_candidate(key, index);
        });
        total = block_sum(total, local->scratch);
        if (blocks > 1 && threadIdx.x == 0) atomicAdd(&global->total, total);
        filter.hand_over_candidates();
        if (!last_to_arrive(global->arrived, blocks, &local->flag)) return;
        const u32 count = filter.take_candidates(from, BINS);
        if (blocks > 1) {
            total = load_volatile(&global->total);
            __syncthreads();
            if (threadIdx.x == 0) global->total = 0;
        }
        finish(count, total);
    }
};

// Of a row that has log-probabilities; `launch` tags what its blocks publish.
template <class T>
__device__ __forceinline__ Likeliest<T> likeliest_of(const SampleArgs &args, BlockState *local, u32 row, u32 launch) {
    const u32 group = blockIdx.x / args.blocks, block = blockIdx.x % args.blocks;
    const bool is_model = which_of(args, row) == 1;
    Settings settings = settings_of(args, row);
    const u32 least = !is_model && settings.filtered(args.vocabulary) ? load_volatile(args.kept + row) : 1;
    if (is_model || settings.greedy()) settings.temperature = 1.0f;
    settings.top_k = MOST_LIKELIEST;
    const typename T::Element *logits = (const typename T::Element *)args.logits + row * args.stride;
    const RowPart<T> part = {logits, is_model ? 0 : adjusted_row(args, row), 0, 0, 0, 0};
    GroupState *global = args.group_states + group;
    return {args, {args, local, global, row, args.blocks, block, launch, settings, {}, part, BINS, 0.0f, 0}, least};
}

// The model's own log-probabilities do not depend on the draw: where blocks share a row, what they need to know of each other is
// on its way while they draw.
__device__ __forceinline__ bool begins_early(const SampleArgs &args, u32 row) {
    return args.blocks > 1 && which_of(args, row) == 1;
}

// Rows without log-probabilities get zeros.
__device__ __forceinline__ void put_none(const SampleArgs &args, u32 row) {
    if (threadIdx.x < MOST_LIKELIEST) {
        args.likeliest[row * MOST_LIKELIEST + threadIdx.x] = 0;
        args.of_likeliest[row * MOST_LIKELIEST + threadIdx.x] = 0.0f;
    }
    if (threadIdx.x == 0) args.log_probability[row] = 0.0f;
}
// Of all rows, if none has any.
__device__ __forceinline__ void put_none(const SampleArgs &args) {
    for (u32 row = blockIdx.x; row < args.rows; row += gridDim.x) put_none(args, row);
}

// Before the draw.
template <class T>
__device__ __forceinline__ Likeliest<T> early_likeliest_of(const SampleArgs &args, BlockState *local, u32 row) {
    const u32 launch = local->launches + 1 + settings_of(args, row).filtered(args.vocabulary);
    return likeliest_of<T>(args, local, row, launch);
}

// Before the draws. Rows that are adjusted have begun.
template <class T> __device__ __noinline__ void begin_likeliest(const SampleArgs &args, BlockState *local) {
    // Groups of several blocks have one row at most.
    const u32 groups = gridDim.x / args.blocks, row = blockIdx.x / args.blocks;
    if (row >= min(groups, args.rows) || !begins_early(args, row) || adjusted_row(args, row)) return;
    early_likeliest_of<T>(args, local, row).begin();
    __syncthreads();
}

// Waits until the last block of a draw has finished it.
__device__ __forceinline__ void wait_for_draw(const GroupState *global, u32 launches) {
    if (threadIdx.x == 0)
        while (load_acquire(&global->launches) != launches) {}
    __syncthreads();
}

// The log-probabilities of all rows, after the draws.
template <class T> __device__ __noinline__ void find_likeliest(const SampleArgs &args, BlockState *local) {
    // Tokens and what was kept may come from any block. But the model's own log-probabilities need a token only in the last block
    // of its row, and where a row has a filter, it comes from one of them.
    bool waits = false;
    for (u32 row = threadIdx.x; row < args.rows; row += THREADS) {
        const i64 which = which_of(args, row);
        waits |= which > 1 || which == 1 && !settings_of(args, row).filtered(args.vocabulary);
    }
    if (__syncthreads_or(waits)) group_barrier(args.arrived + 2, gridDim.x);
    const u32 groups = gridDim.x / args.blocks, group = blockIdx.x / args.blocks;
    for (u32 row = group; row < args.rows && group < groups; row += groups) {
        if (which_of(args, row) < 1) {
            if (blockIdx.x % args.blocks == 0) put_none(args, row);
            continue;
        }
        Likeliest<T> likeliest = likeliest_of<T>(args, local, row, local->launches + 1);
        if (!begins_early(args, row)) likeliest.begin();
        else if (settings_of(args, row).filtered(args.vocabulary)) wait_for_draw(args.group_states + group, local->launches);
        likeliest.complete();
        __syncthreads();
    }
}
