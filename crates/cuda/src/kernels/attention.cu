// Scaled dot-product attention, `docs/ARITHMETIC.md`, "Attention": keys in blocks of 64 by position, blocks in runs of four, runs in
// order. `q [B, H, T, D]`, `k [B, G, S, D]`, `v [B, G, S, E]`, `out [B, H, T, E]`; head h uses group h / (H / G).
//
// A block of threads has a tile of QUERIES queries that share keys (the heads of a group, for neighbouring tokens) and a tile of up to
// 256 columns of the values. It goes through the runs that its queries see. For each block of keys: a thread has a key and half of the
// queries, and computes scores in ascending order of D, with keys and queries in shared memory; a warp has a query, and turns scores
// into weights; a thread has two columns of the values, and mixes them in ascending order of keys.
//
// Launch: tiles of queries in x, batches, groups and tiles of columns in y. `attention` goes through all runs. For few queries,
// `attention_part` has a block for each part of the keys as well (the slowest part of x) and leaves partial results in scratch memory,
// which `attention_merge` merges in order, with a block for each query. A part is a block of keys, or a run if there are many.
// Compiled with the tags Q, K, V, MASK (MASK_KIND: 0 none, 1 boolean, 2 float) and OUT.

#include "strands.cuh"
#include "view.cuh"

struct AttentionArgs {
    Launch launch;
    View out, q, k, v, mask;
    Number first;
    // The largest i64 if there is none.
    i64 window;
    // Of `attention_part`: for each query and part, a largest score and a sum, and a row of the mix. `most_parts` have room.
    float2 *partial;
    float *mixes;
    i64 most_parts;
    float scale;
    u32 causal;
};
static_assert(sizeof(AttentionArgs) == 824, "as in attention.rs");

#define QUERIES 8
#define BLOCK 64
#define RUN 256
#define THREADS 128
// Columns of the values of a tile, and columns of keys that are in shared memory at once.
#define WIDTH 256
#define DEPTH 64
#define UNSEEN (-1.0f)
// Up to this many runs, parts are blocks of keys.
#define FINE_RUNS 16

// The largest score, the sum and two columns of the mix, of a query.
struct Partial {
    float largest, sum;
    float mix[2];

    __device__ __forceinline__ void clear() { largest = -PTERO_INFINITY, sum = 0.0f, mix[0] = 0.0f, mix[1] = 0.0f; }

    __device__ __forceinline__ void join(const Partial &other) {
        const float most = arithmetic::max(largest, other.largest), base = most == -PTERO_INFINITY ? 0.0f : most;
        const float a = arithmetic::exp(largest - base), b = arithmetic::exp(other.largest - base);
        sum = sum * a + other.sum * b;
        mix[0] = mix[0] * a + other.mix[0] * b;
        mix[1] = mix[1] * a + other.mix[1] * b;
        largest = most;
    }
};

struct Shared {
    float keys[BLOCK][DEPTH + 1];
    float queries[QUERIES][DEPTH];
    // Scores, and then weights.
    float weights[QUERIES][BLOCK];
    u64 visible[QUERIES];
    float largest[QUERIES], sum[QUERIES];
};

// A tile of queries: where they are, and what they see.
struct Tile {
    const AttentionArgs &args;
    const Lane &lane;
    i64 heads, groups, tokens, keys, depth, width, heads_per_group;
    i64 batch, group, first_query, first_column;
    // The position of the first key, counted from the start of its run.
    i64 position;

    __device__ __forceinline__ Tile(const AttentionArgs &args, const Lane &lane) : args(args), lane(lane) {
        heads = args.q.size(lane, 1), tokens = args.q.size(lane, 2), depth = args.q.size(lane, 3);
        groups = args.k.size(lane, 1), keys = args.k.size(lane, 2), width = args.v.size(lane, 3);
        heads_per_group = groups > 0 && heads >= groups ? heads / groups : 1;
        position = args.first.of(lane) % RUN;
        if (position < 0) position += RUN;
    }

    __device__ __forceinline__ i64 queries() const { return heads_per_group * tokens; }
    __device__ __forceinline__ i64 runs() const { return (position + keys + RUN - 1) / RUN; }

    // Query `query` of the tile: neighbouring tokens of a head follow each other.
    __device__ __forceinline__ bool exists(u32 query) const { return first_query + query < queries(); }
    __device__ __forceinline__ i64 head(u32 query) const { return group * heads_per_group + View::divided(first_query + query, tokens); }
    __device__ __forceinline__ i64 token(u32 query) const {
        const i64 index = first_query + query;
        return index - View::divided(index, tokens) * tokens;
    }

    // Returns true if a query sees a key, masks aside.
    __device__ __forceinline__ bool reaches(u32 query, i64 key) const {
        const i64 own = keys - tokens + token(query);
        const bool is_past = !args.causal || key <= own;
        const i64 least = -0x7fffffffffffffffll - 1;
        return is_past && key > (args.window > 0 && own < least + args.window ? least : own - args.window);
    }

    // The runs that any query of the tile can see.
    __device__ __forceinline__ void seen_runs(i64 &from, i64 &to) const {
        from = 0, to = runs();
        i64 lowest = keys, highest = -1;
        for (u32 query = 0; query < QUERIES && exists(query); ++query) {
            const i64 own = keys - tokens + token(query);
            const i64 first = own < args.window ? 0 : own - args.window + 1, last = args.causal && own < keys - 1 ? own : keys - 1;
            if (first < lowest) lowest = first;
            if (last > highest) highest = last;
        }
        if (highest < lowest) {
            to = from;
            return;
        }
        from = (position + lowest) / RUN, to = (position + highest) / RUN + 1;
    }

    // Scores of a block of keys, in `shared.weights`; what is not visible is not in `shared.visible`. `start` is the key at the start of
    // the block, which may be before the first one.
    __device__ __forceinline__ void scores(Shared &shared, i64 start) const {
        const K::Element *k = args.k.data<K>(lane) + batch * args.k.stride(lane, 0) + group * args.k.stride(lane, 1);
        const Q::Element *q = args.q.data<Q>(lane) + batch * args.q.stride(lane, 0);
        const i64 k_row = args.k.stride(lane, 2), k_step = args.k.stride(lane, 3), q_step = args.q.stride(lane, 3);
        const i64 q_head = args.q.stride(lane, 1), q_token = args.q.stride(lane, 2);
        const u32 own = threadIdx.x % BLOCK, half = threadIdx.x / BLOCK;
        float sums[QUERIES / 2];
#pragma unroll
        for (u32 i = 0; i < QUERIES / 2; ++i) sums[i] = 0.0f;
        for (i64 d0 = 0; d0 < depth; d0 += DEPTH) {
            __syncthreads();
            // A warp loads half a row of keys at a time.
            const u32 d = threadIdx.x % DEPTH;
            const bool is_in_depth = d0 + d < depth;
            const K::Element *k_from = k + start * k_row + (d0 + d) * k_step;
#pragma unroll 8
            for (u32 row = threadIdx.x / DEPTH; row < BLOCK; row += THREADS / DEPTH) {
                const bool is_there = is_in_depth && start + row >= 0 && start + row < keys;
                shared.keys[row][d] = is_there ? K::to_float(k_from[row * k_row]) : 0.0f;
            }
#pragma unroll
            for (u32 row = threadIdx.x / DEPTH; row < QUERIES; row += THREADS / DEPTH) {
                const bool is_there = is_in_depth && exists(row);
                const i64 at = is_there ? head(row) * q_head + token(row) * q_token + (d0 + d) * q_step : 0;
                shared.queries[row][d] = is_there ? Q::to_float(q[at]) : 0.0f;
            }
            __syncthreads();
            const u32 count = depth - d0 < DEPTH ? (u32)(depth - d0) : DEPTH;
            if (count == DEPTH) {
#pragma unroll 4
                for (u32 d = 0; d < DEPTH; d += 4) {
                    const float k0 = shared.keys[own][d], k1 = shared.keys[own][d + 1], k2 = shared.keys[own][d + 2], k3 = shared.keys[own][d + 3];
#pragma unroll
                    for (u32 i = 0; i < QUERIES / 2; ++i) {
                        const float4 four = *(const float4 *)(shared.queries[half * (QUERIES / 2) + i] + d);
                        float sum = __fmaf_rn(four.x, k0, sums[i]);
                        sum = __fmaf_rn(four.y, k1, sum);
                        sum = __fmaf_rn(four.z, k2, sum);
                        sums[i] = __fmaf_rn(four.w, k3, sum);
                    }
                }
            } else {
                for (u32 d = 0; d < count; ++d) {
#pragma unroll
                    for (u32 i = 0; i < QUERIES / 2; ++i) {
                        sums[i] = __fmaf_rn(shared.queries[half * (QUERIES / 2) + i][d], shared.keys[own][d], sums[i]);
                    }
                }
            }
        }
        const i64 key = start + own;
#pragma unroll
        for (u32 i = 0; i < QUERIES / 2; ++i) {
            const u32 query = half * (QUERIES / 2) + i;
            bool is_visible = key >= 0 && key < keys && exists(query) && reaches(query, key);
            float bias = 0.0f;
#if MASK_KIND
            if (is_visible) {
                const i64 at = batch * args.mask.stride(lane, 0) + head(query) * args.mask.stride(lane, 1) + token(query) * args.mask.stride(lane, 2) + key * args.mask.stride(lane, 3);
                const MASK::Element raw = args.mask.data<MASK>(lane)[at];
#if MASK_KIND == 1
                is_visible = MASK::to_int(raw) != 0;
#else
                bias = MASK::to_float(raw);
#endif
            }
#endif
            const float score = sums[i] * args.scale + bias;
            const u32 ballot = __ballot_sync(WHOLE_WARP, is_visible);
            shared.weights[query][own] = is_visible ? score : -PTERO_INFINITY;
            if (own % 32 == 0) ((u32 *)&shared.visible[query])[own / 32] = ballot;
        }
        __syncthreads();
    }

    // Weights from scores, with their largest and sum, a warp to a query.
    __device__ __forceinline__ void weights(Shared &shared) const {
        const u32 at = threadIdx.x % 32;
        for (u32 query = threadIdx.x / 32; query < QUERIES; query += THREADS / 32) {
            const u64 visible = shared.visible[query];
            float low = shared.weights[query][at], high = shared.weights[query][at + 32];
            float largest = arithmetic::max(low, high);
#pragma unroll
            for (u32 width = 16; width > 0; width /= 2) largest = arithmetic::max(largest, __shfl_xor_sync(WHOLE_WARP, largest, width));
            const float base = largest == -PTERO_INFINITY ? 0.0f : largest;
            // What is not visible adds nothing.
            low = visible >> at & 1 ? arithmetic::exp(low - base) : 0.0f;
            high = visible >> (at + 32) & 1 ? arithmetic::exp(high - base) : 0.0f;
            shared.weights[query][at] = low, shared.weights[query][at + 32] = high;
            const float low_next = __shfl_down_sync(WHOLE_WARP, low, 16), high_next = __shfl_down_sync(WHOLE_WARP, high, 16);
            // The upper half of the warp holds the same sums in another order, which nobody reads.
            float sum = (((0.0f + low) + low_next) + high) + high_next;
#pragma unroll
            for (u32 width = 8; width > 0; width /= 2) sum = sum + __shfl_down_sync(WHOLE_WARP, sum, width);
            if (at == 0) shared.largest[query] = largest, shared.sum[query] = sum;
        }
        __syncthreads();
    }

    // Joins the partial results of a block of keys to those of its run. Returns the queries that saw a key.
    __device__ __forceinline__ u32 join_block(Shared &shared, i64 start, Partial (&run)[QUERIES]) const {
        scores(shared, start);
        weights(shared);
        const i64 v_row = args.v.stride(lane, 2), v_step = args.v.stride(lane, 3);
        const V::Element *v = args.v.data<V>(lane) + batch * args.v.stride(lane, 0) + group * args.v.stride(lane, 1) + start * v_row;
        const i64 column = first_column + threadIdx.x, next = column + THREADS;
        const bool has_first = column < width, has_next = next < width;
        u64 any = 0;
        u32 seen = 0;
        Partial block[QUERIES];
#pragma unroll
        for (u32 query = 0; query < QUERIES; ++query) {
            block[query].clear();
            block[query].largest = shared.largest[query], block[query].sum = shared.sum[query];
            any |= shared.visible[query];
            seen |= (u32)(shared.visible[query] != 0) << query;
        }
        const V::Element *v_first = v + column * v_step, *v_next = v + next * v_step;
#pragma unroll 8
        for (u32 key = 0; key < BLOCK; ++key) {
            // What no query sees is not read; its weights are not used.
            const bool is_read = any >> key & 1;
            const float first_value = is_read && has_first ? V::to_float(v_first[key * v_row]) : 0.0f;
            const float next_value = is_read && has_next ? V::to_float(v_next[key * v_row]) : 0.0f;
#pragma unroll
            for (u32 query = 0; query < QUERIES; ++query) {
                if (!(shared.visible[query] >> key & 1)) continue;
                const float weight = shared.weights[query][key];
                block[query].mix[0] = __fmaf_rn(weight, first_value, block[query].mix[0]);
                block[query].mix[1] = __fmaf_rn(weight, next_value, block[query].mix[1]);
            }
        }
#pragma unroll
        for (u32 query = 0; query < QUERIES; ++query) {
            if (seen >> query & 1) run[query].join(block[query]);
        }
        return seen;
    }

    // The partial results of some blocks of a run, whose first is block `first` of all. Returns the queries that saw a key.
    __device__ __forceinline__ u32 blocks(Shared &shared, i64 first, u32 count, Partial (&run)[QUERIES]) const {
        u32 seen = 0;
#pragma unroll
        for (u32 query = 0; query < QUERIES; ++query) run[query].clear();
        for (u32 block = 0; block < count; ++block) {
            const i64 start = (first + block) * BLOCK - position;
            if (start + BLOCK <= 0 || start >= keys) continue;
            seen |= join_block(shared, start, run);
        }
        return seen;
    }

    // The number of blocks of keys of a part.
    __device__ __forceinline__ u32 part_blocks() const { return runs() <= FINE_RUNS ? 1 : RUN / BLOCK; }

    // Goes to an item of y: a batch, a group and a tile of columns.
    __device__ __forceinline__ i64 items() const { return args.q.size(lane, 0) * groups * ((width + WIDTH - 1) / WIDTH); }
    __device__ __forceinline__ void go_to(i64 item) {
        const i64 across = (width + WIDTH - 1) / WIDTH, pair = View::divided(item, across);
        first_column = (item - pair * across) * WIDTH;
        batch = View::divided(pair, groups), group = pair - batch * groups;
    }

    // A query among all of them, for partial results.
    __device__ __forceinline__ i64 number(u32 query) const { return (batch * heads + head(query)) * tokens + token(query); }
};

extern "C" __global__ void __launch_bounds__(THREADS) attention(const __grid_constant__ AttentionArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    __shared__ __align__(16) Shared shared;
    Tile tile(args, lane);
    const i64 tiles = (tile.queries() + QUERIES - 1) / QUERIES;
    for (i64 item = blockIdx.y; item < tile.items(); item += gridDim.y) {
        tile.go_to(item);
        for (i64 index = blockIdx.x; index < tiles; index += gridDim.x) {
            // The last queries see most: they start first.
            tile.first_query = (tiles - 1 - index) * QUERIES;
            Partial whole[QUERIES];
#pragma unroll
            for (u32 query = 0; query < QUERIES; ++query) whole[query].clear();
            i64 from, to;
            tile.seen_runs(from, to);
            for (i64 run_index = from; run_index < to; ++run_index) {
                Partial run[QUERIES];
                const u32 seen = tile.blocks(shared, run_index * (RUN / BLOCK), RUN / BLOCK, run);
#pragma unroll
                for (u32 query = 0; query < QUERIES; ++query) {
                    if (seen >> query & 1) whole[query].join(run[query]);
                }
            }
#pragma unroll
            for (u32 query = 0; query < QUERIES; ++query) {
                if (!tile.exists(query)) continue;
                const float factor = 1.0f / whole[query].sum;
                OUT::Element *out = args.out.data<OUT>(lane) + tile.batch * args.out.stride(lane, 0) + tile.head(query) * args.out.stride(lane, 1) + tile.token(query) * args.out.stride(lane, 2);
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    const i64 column = tile.first_column + threadIdx.x + i * THREADS;
                    if (column < tile.width) out[column * args.out.stride(lane, 3)] = OUT::from_float(whole[query].mix[i] * factor + 0.0f);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_part(const __grid_constant__ AttentionArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    __shared__ __align__(16) Shared shared;
    Tile tile(args, lane);
    const u32 part_blocks = tile.part_blocks(), run_parts = RUN / BLOCK / part_blocks;
    const i64 tiles = (tile.queries() + QUERIES - 1) / QUERIES, parts = tile.runs() * run_parts;
    for (i64 item = blockIdx.y; item < tile.items(); item += gridDim.y) {
        tile.go_to(item);
        for (i64 index = blockIdx.x; index < tiles * parts; index += gridDim.x) {
            const i64 part_index = View::divided(index, tiles);
            tile.first_query = (index - part_index * tiles) * QUERIES;
            i64 from, to;
            tile.seen_runs(from, to);
            Partial part[QUERIES];
#pragma unroll
            for (u32 query = 0; query < QUERIES; ++query) part[query].clear();
            const bool is_read = part_index >= from * run_parts && part_index < to * run_parts;
            const u32 seen = is_read ? tile.blocks(shared, part_index * part_blocks, part_blocks, part) : 0;
#pragma unroll
            for (u32 query = 0; query < QUERIES; ++query) {
                if (!tile.exists(query)) continue;
                const i64 number = tile.number(query) * args.most_parts + part_index;
                const bool is_seen = seen >> query & 1;
                if (threadIdx.x == 0) args.partial[number] = make_float2(part[query].largest, is_seen ? part[query].sum : UNSEEN);
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    const i64 column = tile.first_column + threadIdx.x + i * THREADS;
                    if (is_seen && column < tile.width) args.mixes[number * tile.width + column] = part[query].mix[i];
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_merge(const __grid_constant__ AttentionArgs args) {
    Lane &lane = lane_of(args.launch);
    if (is_halted(lane)) return;
    Tile tile(args, lane);
    const i64 count = args.q.size(lane, 0) * tile.heads * tile.tokens, runs = tile.runs();
    const u32 run_parts = RUN / BLOCK / tile.part_blocks();
    for (i64 query = blockIdx.x; query < count; query += gridDim.x) {
        OUT::Element *out = args.out.data<OUT>(lane) + args.out.at(lane, query, 3);
        for (i64 column = threadIdx.x; column < tile.width; column += THREADS) {
            Partial whole;
            whole.clear();
            for (i64 index = 0; index < runs; ++index) {
                Partial run;
                run.clear();
                bool is_seen = false;
                for (u32 i = 0; i < run_parts; ++i) {
                    const i64 number = query * args.most_parts + index * run_parts + i;
                    const float2 found = args.partial[number];
                    if (found.y == UNSEEN) continue;
                    const Partial part = {found.x, found.y, {args.mixes[number * tile.width + column], 0.0f}};
                    // A part that is a run is that of no other blocks.
                    if (run_parts == 1) run = part;
                    else run.join(part);
                    is_seen = true;
                }
                if (is_seen) whole.join(run);
            }
            out[column * args.out.stride(lane, 3)] = OUT::from_float(whole.mix[0] * (1.0f / whole.sum) + 0.0f);
        }
    }
}
