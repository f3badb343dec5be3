// Scaled dot-product attention of one token, as in decoding: `docs/ARITHMETIC.md`, "Attention". `q [1, H, 1, D]`, `k [1, G, S, D]`,
// `v [1, G, S, E]`, rows contiguous; no mask. Heads of a group share keys.
//
// Launch: groups in y; parts of the keys are shared out in x. A part is a block of 64 keys, or a run of four blocks if there are many. For a block of
// keys, two threads have a key, each half of the heads, and compute scores; then a warp has every fourth head: it turns scores into weights,
// and its threads mix the values, E / 32 columns each. The block of threads that is done last merges the parts of its group in order.
// Compiled with the tags Q, K, V and OUT, HEADS (of a group), DEPTH (D) and WIDTH (E).

#include "block.cuh"
#include "strands.cuh"
#include "view.cuh"

struct AttentionRowArgs {
    Launch launch;
    const char *q, *k, *v;
    char *out;
    // In elements.
    i64 q_head, k_group, k_row, v_group, v_row, out_head;
    // The number of keys, and the position of the first one.
    Number keys, first;
    // The largest i64 if there is none.
    i64 window;
    // For each head and part a largest score and a sum, and a row of the mix. `most_parts` have room.
    float2 *partial;
    float *mixes;
    i64 most_parts;
    // By group, the blocks of threads that are done; 0 before and after a launch.
    u32 *done;
    float scale;
    u32 unused;
};
static_assert(sizeof(AttentionRowArgs) == 160, "as in attention_row.rs");

#define BLOCK 64
#define RUN_BLOCKS 4
#define WARPS 4
#define THREADS (32 * WARPS)
// Up to this many runs, parts are blocks of keys.
#define FINE_RUNS 16
#define UNSEEN (-1.0f)
// Heads of half of the threads, and of a warp.
#define HALF_HEADS ((HEADS + 1) / 2)
#define WARP_HEADS ((HEADS + WARPS - 1) / WARPS)
// Columns of the values of a thread, and keys whose values are loaded together.
#define COLUMNS (WIDTH / 32)
#define BATCH (COLUMNS > 4 ? 8 : COLUMNS > 2 ? 16 : 32)
// Elements of a key that are loaded together.
#define PIECE (DEPTH % 64 == 0 ? 64 : DEPTH % 32 == 0 ? 32 : 16)

template <typename T> __device__ __forceinline__ typename T::Element element_of(u32 word);
template <> __device__ __forceinline__ u16 element_of<Bf16>(u32 word) { return (u16)word; }
template <> __device__ __forceinline__ u16 element_of<F16>(u32 word) { return (u16)word; }
template <> __device__ __forceinline__ float element_of<F32>(u32 word) { return __uint_as_float(word); }

// Elements that are loaded together, as words: an array of smaller elements would be taken apart and put together again.
template <typename T, u32 N> struct __align__(N * sizeof(typename T::Element) > 16 ? 16 : N * sizeof(typename T::Element)) Elements {
    u32 words[N * sizeof(typename T::Element) / 4];

    __device__ __forceinline__ float at(u32 index) const {
        const u32 size = sizeof(typename T::Element), word = words[index * size / 4];
        return T::to_float(element_of<T>(size == 4 || index % 2 == 0 ? word : word >> 16));
    }
};
typedef Elements<V, COLUMNS> Values;

struct __align__(COLUMNS > 2 ? 16 : 8) Mix {
    float at[COLUMNS];
};

// The largest score, the sum and some columns of the mix, of a head.
struct Partial {
    float largest, sum;
    Mix mix;

    __device__ __forceinline__ void clear() {
        largest = -PTERO_INFINITY, sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < COLUMNS; ++i) mix.at[i] = 0.0f;
    }

    __device__ __forceinline__ void join(const Partial &other) {
        const float most = arithmetic::max(largest, other.largest), base = most == -PTERO_INFINITY ? 0.0f : most;
        const float a = arithmetic::exp(largest - base), b = arithmetic::exp(other.largest - base);
        sum = sum * a + other.sum * b;
#pragma unroll
        for (u32 i = 0; i < COLUMNS; ++i) mix.at[i] = mix.at[i] * a + other.mix.at[i] * b;
        largest = most;
    }
};

struct Shared {
    float queries[HEADS][DEPTH];
    // Scores, and then weights.
    float weights[HEADS][BLOCK];
    bool is_last;
};

// Keys that the token sees: from `from` to `to`, which is their number.
struct Seen {
    i64 from, to;

    __device__ __forceinline__ bool has_some(i64 start) const { return start < to && start + BLOCK > from; }
};

// Those of a block of keys, counted from its start.
struct SeenOfBlock {
    u32 from, to;

    __device__ __forceinline__ SeenOfBlock(const Seen &seen, i64 start) {
        from = seen.from > start ? (u32)(seen.from - start) : 0;
        to = seen.to - start < BLOCK ? (u32)(seen.to - start) : BLOCK;
    }

    __device__ __forceinline__ bool has(u32 key) const { return key >= from && key < to; }
};

// Scores of a block of keys, two threads to a key.
__device__ __forceinline__ void scores(const AttentionRowArgs &args, u32 group, Shared &shared, const SeenOfBlock &seen, i64 start) {
    const u32 own = threadIdx.x % BLOCK, first_head = threadIdx.x / BLOCK * HALF_HEADS;
    const bool is_visible = seen.has(own);
    const i64 key = start + (is_visible ? own : seen.from);
    const K::Element *k = (const K::Element *)args.k + group * args.k_group + key * args.k_row;
    float sums[HALF_HEADS] = {};
#pragma unroll 1
    for (u32 d0 = 0; d0 < DEPTH; d0 += PIECE) {
        Elements<K, PIECE> piece;
        const uint4 *from = (const uint4 *)(k + d0);
#pragma unroll
        for (u32 i = 0; i < PIECE * sizeof(K::Element) / 16; ++i) {
            const uint4 four = from[i];
            piece.words[4 * i] = four.x, piece.words[4 * i + 1] = four.y, piece.words[4 * i + 2] = four.z, piece.words[4 * i + 3] = four.w;
        }
#pragma unroll
        for (u32 d = 0; d < PIECE; d += 4) {
#pragma unroll
            for (u32 i = 0; i < HALF_HEADS; ++i) {
                const u32 head = HEADS % 2 && first_head + i >= HEADS ? HEADS - 1 : first_head + i;
                const float4 q = *(const float4 *)(shared.queries[head] + d0 + d);
                float sum = __fmaf_rn(q.x, piece.at(d), sums[i]);
                sum = __fmaf_rn(q.y, piece.at(d + 1), sum);
                sum = __fmaf_rn(q.z, piece.at(d + 2), sum);
                sums[i] = __fmaf_rn(q.w, piece.at(d + 3), sum);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < HALF_HEADS; ++i) {
        if (HEADS % 2 && first_head + i >= HEADS) continue;
        shared.weights[first_head + i][own] = is_visible ? sums[i] * args.scale : -PTERO_INFINITY;
    }
}

// Weights from the scores of a head, by a warp, with their largest and sum.
__device__ __forceinline__ void weights(float (&weights)[BLOCK], const SeenOfBlock &seen, u32 lane, Partial &block) {
    float low = weights[lane], high = weights[lane + 32], largest = arithmetic::max(low, high);
#pragma unroll
    for (u32 width = 16; width > 0; width /= 2) largest = arithmetic::max(largest, __shfl_xor_sync(WHOLE_WARP, largest, width));
    const float base = largest == -PTERO_INFINITY ? 0.0f : largest;
    // What is not visible adds nothing.
    low = seen.has(lane) ? arithmetic::exp(low - base) : 0.0f;
    high = seen.has(lane + 32) ? arithmetic::exp(high - base) : 0.0f;
    weights[lane] = low, weights[lane + 32] = high;
    const float low_next = __shfl_down_sync(WHOLE_WARP, low, 16), high_next = __shfl_down_sync(WHOLE_WARP, high, 16);
    // The upper half of the warp holds the same sums in another order, which nobody reads.
    float sum = (((0.0f + low) + low_next) + high) + high_next;
#pragma unroll
    for (u32 width = 8; width > 0; width /= 2) sum = sum + __shfl_down_sync(WHOLE_WARP, sum, width);
    block.largest = largest, block.sum = __shfl_sync(WHOLE_WARP, sum, 0);
    __syncwarp();
}

__device__ __forceinline__ void load_values(Values (&values)[BATCH], const V::Element *v, i64 row, const SeenOfBlock &seen, u32 first) {
    const V::Element *from = v + first * row;
#pragma unroll
    for (u32 i = 0; i < BATCH; ++i, from += row) {
        // What is not visible is not read, and has no weight.
        values[i] = Values{};
        if (seen.has(first + i)) values[i] = *(const Values *)from;
    }
}

// The partial results of a block of keys, joined to those before.
__device__ __forceinline__ void join_block(const AttentionRowArgs &args, u32 group, Shared &shared, const SeenOfBlock &seen, i64 start, Partial (&parts)[WARP_HEADS], bool is_alone) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const V::Element *v = (const V::Element *)args.v + group * args.v_group + start * args.v_row + lane * COLUMNS;
    Values values[BATCH];
    load_values(values, v, args.v_row, seen, 0);
    scores(args, group, shared, seen, start);
    __syncthreads();
    Partial block[WARP_HEADS];
#pragma unroll
    for (u32 i = 0; i < WARP_HEADS; ++i) {
        block[i].clear();
        if (warp + i * WARPS < HEADS) weights(shared.weights[warp + i * WARPS], seen, lane, block[i]);
    }
#pragma unroll 1
    for (u32 first = 0; first < seen.to; first += BATCH) {
        if (first) load_values(values, v, args.v_row, seen, first);
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
#pragma unroll
            for (u32 j = 0; j < WARP_HEADS; ++j) {
                const u32 head = warp + j * WARPS;
                const float weight = shared.weights[head < HEADS ? head : 0][first + i];
#pragma unroll
                for (u32 column = 0; column < COLUMNS; ++column) {
                    block[j].mix.at[column] = __fmaf_rn(weight, values[i].at(column), block[j].mix.at[column]);
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < WARP_HEADS; ++i) {
        if (is_alone) parts[i] = block[i];
        else parts[i].join(block[i]);
    }
    __syncthreads();
}

// A part of a head, as a block of threads has left it.
__device__ __forceinline__ void load_part(const AttentionRowArgs &args, i64 at, Partial &part) {
    const float2 pair = __ldcg(args.partial + at);
    part.largest = pair.x, part.sum = pair.y;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; ++i) part.mix.at[i] = __ldcg(args.mixes + at * WIDTH + threadIdx.x % 32 * COLUMNS + i);
}

// Parts of a head whose loads are under way together.
#define AHEAD 4

// Merges the parts of a head, in order.
__device__ __forceinline__ void merge(const AttentionRowArgs &args, u32 group, u32 head, i64 runs, u32 run_parts) {
    const u32 lane = threadIdx.x % 32, count = (u32)runs * run_parts;
    const i64 first = ((i64)group * HEADS + head) * args.most_parts;
    Partial whole, run, ahead[AHEAD];
    whole.clear(), run.clear();
#pragma unroll
    for (u32 i = 0; i < AHEAD; ++i) {
        if (i < count) load_part(args, first + i, ahead[i]);
    }
    bool is_seen = false;
#pragma unroll 1
    for (u32 part = 0; part < count; ++part) {
        const Partial found = ahead[0];
#pragma unroll
        for (u32 i = 1; i < AHEAD; ++i) ahead[i - 1] = ahead[i];
        if (part + AHEAD < count) load_part(args, first + part + AHEAD, ahead[AHEAD - 1]);
        if (found.sum != UNSEEN) {
            // A part that is a run is that of no other blocks.
            if (run_parts == 1) run = found;
            else run.join(found);
            is_seen = true;
        }
        if ((part + 1) % run_parts) continue;
        if (is_seen) whole.join(run);
        run.clear();
        is_seen = false;
    }
    OUT::Element *out = (OUT::Element *)args.out + ((i64)group * HEADS + head) * args.out_head + lane * COLUMNS;
    const float factor = 1.0f / whole.sum;
#pragma unroll
    for (u32 i = 0; i < COLUMNS; ++i) out[i] = OUT::from_float(whole.mix.at[i] * factor + 0.0f);
}

__device__ __forceinline__ void attention_row(const AttentionRowArgs &args, const Block &block) {
    __shared__ __align__(16) Shared shared;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Lane &owner = lane_of(args.launch);
    if (is_halted(owner)) return;
    const i64 keys = args.keys.of(owner);
    // The position of the first key, counted from the start of its run.
    i64 position = args.first.of(owner) % (RUN_BLOCKS * BLOCK);
    if (position < 0) position += RUN_BLOCKS * BLOCK;
    const Seen seen = {keys > args.window ? keys - args.window : 0, keys};
    const i64 runs = (position + keys + RUN_BLOCKS * BLOCK - 1) / (RUN_BLOCKS * BLOCK);
    const u32 part_blocks = runs <= FINE_RUNS ? 1 : RUN_BLOCKS, run_parts = RUN_BLOCKS / part_blocks;
    if (block.x < runs * run_parts) {
        const Q::Element *q = (const Q::Element *)args.q + (i64)block.y * HEADS * args.q_head;
        for (u32 at = threadIdx.x; at < HEADS * DEPTH; at += THREADS) shared.queries[at / DEPTH][at % DEPTH] = Q::to_float(q[at / DEPTH * args.q_head + at % DEPTH]);
        __syncthreads();
    }
    for (i64 part = block.x; part < runs * run_parts; part += block.across) {
        Partial parts[WARP_HEADS];
#pragma unroll
        for (u32 i = 0; i < WARP_HEADS; ++i) parts[i].clear();
        bool is_seen = false;
        for (u32 of_part = 0; of_part < part_blocks; ++of_part) {
            const i64 start = (part * part_blocks + of_part) * BLOCK - position;
            if (!seen.has_some(start)) continue;
            join_block(args, block.y, shared, SeenOfBlock(seen, start), start, parts, part_blocks == 1);
            is_seen = true;
        }
#pragma unroll
        for (u32 i = 0; i < WARP_HEADS; ++i) {
            const u32 head = warp + i * WARPS;
            if (head >= HEADS) continue;
            const i64 at = ((i64)block.y * HEADS + head) * args.most_parts + part;
            if (lane == 0) args.partial[at] = make_float2(parts[i].largest, is_seen ? parts[i].sum : UNSEEN);
            if (is_seen) *(Mix *)(args.mixes + at * WIDTH + lane * COLUMNS) = parts[i].mix;
        }
    }
    // What this block has left is there before it counts as done.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) shared.is_last = atomicAdd(args.done + block.y, 1u) == block.across - 1;
    __syncthreads();
    if (!shared.is_last) return;
    __threadfence();
    if (threadIdx.x == 0) args.done[block.y] = 0;
    for (u32 head = warp; head < HEADS; head += WARPS) merge(args, block.y, head, runs, run_parts);
}
