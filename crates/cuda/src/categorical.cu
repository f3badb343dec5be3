// `softmax_sample`: a token and its log-probability per row, drawn with a uniform number that is given.
//
// Blocks of a group publish the maxima of their parts, then their masses. The block in whose part the running mass exceeds the
// share of the total looks for the token there. Threads take neighbouring elements, because the order of tokens matters.
//
// Launch: as sample.cu.

#include "rows.cuh"

struct Drawn {
    u32 token;
    float log_probability;
};

struct CategoricalArgs {
    const void *logits;
    const float *random;
    Drawn *drawn;
    GroupState *group_states;
    // Elements between rows.
    u64 stride;
    float temperature;
    u32 rows, vocabulary;
    // Blocks per row.
    u32 blocks;
};
static_assert(sizeof(CategoricalArgs) == 56, "the layout of `CategoricalArgs` in categorical.rs");

// The largest scaled logit of the row, as a key, in all blocks.
template <class T>
__device__ u32 largest_of(const CategoricalArgs &args, BlockState *local, GroupState *global, u32 launch, u32 block,
                          const RowPart<T> &part) {
    u32 key = 0;
    part.template each<4>([&](u32, float logit) { key = max(key, ordered(logit / args.temperature)); });
    key = block_max(key, local->scratch);
    if (args.blocks == 1) return key;
    if (threadIdx.x == 0) publish(global->slots + block, launch, key);
    key = 0;
    for (u32 at = threadIdx.x; at < args.blocks; at += THREADS) key = max(key, wait_for(global->slots + at, launch));
    return block_max(key, local->scratch);
}

template <class T>
__device__ void draw_row(const CategoricalArgs &args, BlockState *local, GroupState *global, u32 row, u32 block) {
    const typename T::Element *logits = (const typename T::Element *)args.logits + row * args.stride;
    const u32 share = ((args.vocabulary + args.blocks - 1) / args.blocks + 7) / 8 * 8;
    const u32 begin = min(args.vocabulary, block * share), end = min(args.vocabulary, begin + share);
    const u32 launch = *(volatile u32 *)&global->launches + 1;
    const RowPart<T> part = {logits, 0, begin, end, 0, 0};
    const u32 key = largest_of<T>(args, local, global, launch, block, part);
    const float largest = key ? number(key) : 0.0f;

    // The masses of this thread, of this block, and of those before.
    const u32 each = (end - begin + THREADS - 1) / THREADS;
    const u32 first = min(end, begin + threadIdx.x * each), last = min(end, first + each);
    const auto mass_at = [&](u32 index) {
        const float scaled = part.at(index) / args.temperature;
        return scaled == scaled ? mass(scaled, largest) : 0;
    };
    u64 mine = 0;
    for (u32 index = first; index < last; ++index) mine += mass_at(index);
    u64 before = block_sum_before(mine, local->scratch), total = block_sum(mine, local->scratch);
    if (args.blocks > 1) {
        if (threadIdx.x == 0) {
            publish(global->slots_low + block, launch, (u32)total);
            publish(global->slots_high + block, launch, (u32)(total >> 32));
        }
        u64 all = 0, blocks_before = 0;
        for (u32 at = threadIdx.x; at < args.blocks; at += THREADS) {
            const u64 sum = (u64)wait_for(global->slots_high + at, launch) << 32 | wait_for(global->slots_low + at, launch);
            all += sum;
            if (at < block) blocks_before += sum;
        }
        total = block_sum(all, local->scratch);
        before += block_sum(blocks_before, local->scratch);
    }

    const u64 target = limit(args.random[row], total);
    if (before <= target && target < before + mine) {
        u32 token = first;
        while ((before += mass_at(token)) <= target) ++token;
        const float scaled = part.at(token) / args.temperature;
        args.drawn[row] = {token, log_probability(scaled, largest, total)};
    }
    if (last_to_arrive(global->arrived, args.blocks, &local->flag) && threadIdx.x == 0) {
        ++global->launches;
        // No logit is above minus infinity: there is no token, and the host reports it.
        if (!key || largest == MINUS_INFINITY) args.drawn[row] = {~0u, __int_as_float(0x7fc00000)};
    }
    __syncthreads();
}

template <class T> __device__ void draw_rows(const CategoricalArgs &args) {
    extern __shared__ u64 shared[];
    const u32 groups = gridDim.x / args.blocks, group = blockIdx.x / args.blocks;
    if (group >= groups) return;
    for (u32 row = group; row < args.rows; row += groups)
        draw_row<T>(args, (BlockState *)shared, args.group_states + group, row, blockIdx.x % args.blocks);
}

// LOGITS is the type of the logits.
extern "C" __global__ void __launch_bounds__(THREADS, 2) categorical(const __grid_constant__ CategoricalArgs args) {
    draw_rows<LOGITS>(args);
}
